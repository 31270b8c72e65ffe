package cli

import (
	"context"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

func newExportCommand(a *app) *cobra.Command {
	var (
		withSecrets bool
		consistency string
	)
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Print all resources of this control plane",
		Example: "  meridian export > meridian.yaml",
		Long: `Print every resource that is written on this control plane, of every mesh and
from one revision, in the form that apply takes back: ` + "`export | apply -f -`" + `
changes nothing. What a zone receives from its global is not part of it.

Secrets are left out unless asked for.`,
		Args: exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatYAML, print.FormatJSON, print.FormatName)
	cmd.Flags().BoolVar(&withSecrets, "include-secrets", false, "also print secrets; protect the output like a password")
	bindConsistency(cmd, &consistency)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		level, err := parseConsistency(consistency)
		if err != nil {
			return err
		}
		return a.export(cmd.Context(), output.Value, level, withSecrets)
	}
	return cmd
}

func (a *app) export(ctx context.Context, f print.Format, consistency meridianv1.Consistency, withSecrets bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var info *meridianv1.InfoResponse
	err = c.Call(ctx, func(ctx context.Context) (err error) {
		info, err = c.Info(ctx, &meridianv1.InfoRequest{})
		return err
	})
	if err != nil {
		return err
	}
	var kinds []*resource.Descriptor
	for _, d := range resource.Kinds() {
		if writtenOn(info.GetRole(), d) && (withSecrets || !d.Sensitive) {
			kinds = append(kinds, d)
		}
	}
	found, _, err := c.Resources(ctx, &meridianv1.ListRequest{Kinds: kindNames(kinds), Consistency: consistency})
	if err != nil {
		return err
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
