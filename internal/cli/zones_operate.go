package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
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
func newZoneSwitch(a *app, use, short string, enabled bool) *cobra.Command {
	return &cobra.Command{
		Use:     use + " ZONE",
		Short:   short,
		Example: "  meridian zones " + use + " east",
		Args:    exactly("ZONE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.switchZone(cmd.Context(), args[0], enabled)
		},
	}
}

// switchZone writes the zone's spec with another value of enabled, if it is still
// the version that was read.
func (a *app) switchZone(ctx context.Context, name string, enabled bool) error {
	zone, err := lookupKind(string(resource.KindZone))
	if err != nil {
		return err
	}
	stored, err := a.fetch(ctx, zone, "", name, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return err
	}
	spec := map[string]any{}
	if err := json.Unmarshal(stored.Canonical(), &spec); err != nil {
		return fmt.Errorf("read the spec of %s: %w", stored.Key(), err)
	}
	spec["enabled"] = enabled
	message := client.Encode(stored)
	if message.Spec, err = json.Marshal(spec); err != nil {
		return fmt.Errorf("write the spec of %s: %w", stored.Key(), err)
	}
	response, err := call(ctx, a, (*client.Client).ApplyBatch, &meridianv1.ApplyRequest{
		Resources: []*meridianv1.Resource{message}, IfVersions: asStored(stored), RequestId: rand.Text(),
	})
	if err != nil {
		return err
	}
	return a.printResults(print.FormatTable, response.GetResults(), response.GetRevision(), nil)
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
	cmd.Flags().BoolVar(&force, "force", false, "delete a zone that is connected")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !force {
			if err := a.checkDisconnected(cmd.Context(), args); err != nil {
				return err
			}
		}
		response, err := call(cmd.Context(), a, (*client.Client).DeleteBatch, &meridianv1.DeleteRequest{
			Keys: []*meridianv1.ResourceKey{{Kind: string(resource.KindZone), Name: args[0]}}, RequestId: rand.Text(),
		})
		if err != nil {
			return err
		}
		return a.printResults(print.FormatTable, response.GetResults(), response.GetRevision(), nil)
	}
	return cmd
}
