package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

func newExportCommand(a *app) *cobra.Command {
	var (
		withSecrets bool
		cleaned     bool
		mesh        *meshFlag
		consistency string
	)
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Print all resources of this control plane",
		Example: "  meridian export > meridian.yaml\n  meridian export tp timeouts -m demo --clean",
		Long: `Print every resource that is written on this control plane, of every mesh and
from one revision, in the form that apply takes back: ` + "`export | apply -f -`" + `
changes nothing. What a zone receives from its global is not part of it.

Secrets are left out unless asked for.`,
		ValidArgsFunction: completeKinds(nil),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatYAML, print.FormatJSON, print.FormatName)
	cmd.Flags().BoolVar(&withSecrets, "include-secrets", false, "also print secrets; protect the output like a password")
	cmd.Flags().BoolVar(&cleaned, "clean", false, "leave out times, versions, revisions, owners, and records of keys and tokens")
	mesh = bindMesh(cmd)
	bindConsistency(cmd, &consistency)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		level, err := parseConsistency(consistency)
		if err != nil {
			return err
		}
		if err := mesh.check(); err != nil {
			return err
		}
		o := exportOptions{consistency: level, withSecrets: withSecrets, clean: cleaned}
		if mesh.explicit() {
			o.mesh = mesh.name
		}
		for _, arg := range args {
			kind, err := lookupKind(arg)
			if err != nil {
				return err
			}
			o.kinds = append(o.kinds, kind)
		}
		return a.export(cmd.Context(), output.Value, o)
	}
	return cmd
}

// exportOptions select what is exported.
type exportOptions struct {
	kinds              []*resource.Descriptor // empty for all
	mesh               string                 // empty for all
	consistency        meridianv1.Consistency
	withSecrets, clean bool
}

// takes reports whether a kind is exported from a control plane in a role.
func (o *exportOptions) takes(role string, d *resource.Descriptor) bool {
	record := d.Kind == resource.KindIssuedToken || d.Kind == resource.KindSigningKey || d.Kind == resource.KindTokenRevocation
	switch {
	case len(o.kinds) > 0 && !slices.Contains(o.kinds, d):
		return false
	case o.mesh != "" && d.Scope != resource.MeshScoped:
		return false
	}
	return writtenOn(role, d) && (o.withSecrets || !d.Sensitive) && !(o.clean && record)
}

func (a *app) export(ctx context.Context, f print.Format, o exportOptions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{})
	if err != nil {
		return err
	}
	var kinds []*resource.Descriptor
	for _, d := range resource.Kinds() {
		if o.takes(info.GetRole(), d) {
			kinds = append(kinds, d)
		}
	}
	if len(kinds) == 0 {
		return exit.Usagef("nothing to export: none of the kinds is written on this control plane, in a mesh where -m names one, without --include-secrets")
	}
	found, _, err := c.Resources(ctx, &meridianv1.ListRequest{Kinds: kindNames(kinds), Mesh: o.mesh, Consistency: o.consistency})
	if err != nil {
		return err
	}
	if o.clean {
		for i, r := range found {
			found[i] = clean(r)
		}
	}
	if len(found) == 0 {
		a.Message("There is nothing to export.")
	}
	return a.Resources(f, found, nil)
}

// writtenOn reports whether a control plane in the given role takes writes of a
// kind (§1.3). A standalone zone owns everything.
func writtenOn(role string, d *resource.Descriptor) bool {
	switch role {
	case "global":
		return d.Owner != resource.OwnedByZone
	case "zone":
		return d.Owner != resource.OwnedByGlobal
	default:
		return true
	}
}
