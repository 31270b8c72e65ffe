package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

// newZoneSwitch returns the command that enables or disables a zone.
func newZoneSwitch(a *app, use, short, long string, change func(*zoneSwitch)) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use + " ZONE",
		Short:   short,
		Long:    long,
		Example: "  meridian zones " + use + " east",
		Args:    exactly("ZONE"),
	}
	output := bindResults(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.switchZone(cmd.Context(), output.Value, args[0], change)
	}
	return cmd
}

func bindResults(cmd *cobra.Command) *print.FormatFlag {
	return print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
}

// zoneSwitch is what the commands about a zone change of it.
type zoneSwitch struct {
	spec   map[string]any
	labels map[string]string
}

// enableZone has it connect and take dataplanes.
func enableZone(z *zoneSwitch) {
	z.spec["enabled"] = true
	delete(z.labels, resource.DrainingLabel)
}

func disableZone(z *zoneSwitch) { z.spec["enabled"] = false }

func drainZone(z *zoneSwitch) { z.labels[resource.DrainingLabel] = resource.Draining }

// switchZone writes a zone as changed, if it is still the version that was read.
func (a *app) switchZone(ctx context.Context, f print.Format, name string, change func(*zoneSwitch)) error {
	zone, err := lookupKind(string(resource.KindZone))
	if err != nil {
		return err
	}
	stored, err := a.fetch(ctx, zone, "", name, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return err
	}
	now := zoneSwitch{spec: map[string]any{}, labels: map[string]string{}}
	if err := json.Unmarshal(stored.Canonical(), &now.spec); err != nil {
		return fmt.Errorf("read the spec of %s: %w", stored.Key(), err)
	}
	message := client.Encode(stored)
	maps.Copy(now.labels, message.GetLabels())
	change(&now)
	message.Labels = now.labels
	if message.Spec, err = json.Marshal(now.spec); err != nil {
		return fmt.Errorf("write the spec of %s: %w", stored.Key(), err)
	}
	response, err := call(ctx, a, (*client.Client).ApplyBatch, &meridianv1.ApplyRequest{
		Resources: []*meridianv1.Resource{message}, IfVersions: asStored(stored), RequestId: rand.Text(),
	})
	if err != nil {
		return err
	}
	return a.printResults(f, response.GetResults(), response.GetRevision(), nil)
}

// checkDisconnected fails where one of the zones is connected, or may be.
func (a *app) checkDisconnected(ctx context.Context, names []string) error {
	zones, err := call(ctx, a, (*client.Client).Zones, &meridianv1.ZonesRequest{})
	if err != nil {
		return err
	}
	for _, z := range zones.GetZones() {
		if slices.Contains(names, z.GetName()) && len(z.GetInstances()) > 0 {
			return exit.Failf(exit.Conflict, "delete zone %s: it is connected (%s)", z.GetName(), z.GetState()).
				With("Stop it first, or use --force.")
		}
	}
	if len(zones.GetNotes()) > 0 {
		return exit.Failf(exit.Conflict, "delete zone %s: it may be connected: %s", strings.Join(names, ", "), zones.GetNotes()[0]).
			With("Use --force to delete it.")
	}
	return nil
}

func newZoneDelete(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete ZONE",
		Short: "Delete a zone that is not connected",
		Long: `Delete a zone. A zone that is connected, or whose state is not known, is deleted
only with --force: disable and stop it first.`,
		Example: "  meridian zones delete east",
		Args:    exactly("ZONE"),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete a zone that is connected; the server is asked with force too, as by `meridian delete`")
	output := bindResults(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !force {
			if err := a.checkDisconnected(cmd.Context(), args); err != nil {
				return err
			}
		}
		response, err := call(cmd.Context(), a, (*client.Client).DeleteBatch, &meridianv1.DeleteRequest{
			Keys: []*meridianv1.ResourceKey{{Kind: string(resource.KindZone), Name: args[0]}}, RequestId: rand.Text(), Force: force,
		})
		if err != nil {
			return err
		}
		return a.printResults(output.Value, response.GetResults(), response.GetRevision(), nil)
	}
	return cmd
}
