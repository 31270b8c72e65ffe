package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

func newExportCommand(a *app) *cobra.Command {
	var (
		withSecrets bool
		cleaned     bool
		include     []string
		mesh        *meshFlag
		consistency string
		out         *outFile
	)
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Print all resources of this control plane",
		Example: "  meridian export > meridian.yaml\n  meridian export tp timeouts -m demo --clean",
		Long: `Print every resource that is written on this control plane, of every mesh and
from one revision, in the form that apply takes back: ` + "`export | apply -f -`" + `
changes nothing. What a zone receives from its global is not part of it.

What says who is trusted is left out unless asked for with --include, or by its
kind: keys (the public halves of signing keys), tokens (records of tokens, and
revocations), zones, access (roles and bindings). Another control plane that
applied it would trust whom this one trusts. Secrets take --include-secrets;
signing keys and the admin token are in backups only.`,
		ValidArgsFunction: completeKinds(nil),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatYAML, print.FormatJSON, print.FormatName)
	cmd.Flags().BoolVar(&withSecrets, "include-secrets", false, "also print secrets; protect the output like a password")
	cmd.Flags().StringSliceVar(&include, "include", nil, "also print: keys, tokens, zones, access, or all of these")
	cmd.Flags().BoolVar(&cleaned, "clean", false, "leave out times, versions, revisions, owners, and records of keys and tokens")
	mesh = bindMesh(cmd)
	bindConsistency(cmd, &consistency)
	out = bindOut(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		level, err := parseConsistency(consistency)
		if err != nil {
			return err
		}
		if err := mesh.check(); err != nil {
			return err
		}
		o := exportOptions{consistency: level, withSecrets: withSecrets, clean: cleaned}
		if o.trust, err = parseInclude(include); err != nil {
			return err
		}
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
		return a.writing(cmd.Context(), out, func(ctx context.Context) error { return a.export(ctx, output.Value, o) })
	}
	return cmd
}

// exportOptions select what is exported.
type exportOptions struct {
	kinds              []*resource.Descriptor // empty for all
	mesh               string                 // empty for all
	consistency        meridianv1.Consistency
	withSecrets, clean bool
	// trust are the kinds of trust that are asked for.
	trust []resource.Kind
}

// trustKinds are the kinds that say who is trusted, by the words for --include.
var trustKinds = map[string][]resource.Kind{
	"keys":   {resource.KindSigningKey},
	"tokens": {resource.KindIssuedToken, resource.KindTokenRevocation},
	"zones":  {resource.KindZone},
	"access": {resource.KindAccessRole, resource.KindAccessRoleBinding},
}

// parseInclude reads the values of --include.
func parseInclude(words []string) ([]resource.Kind, error) {
	var kinds []resource.Kind
	for _, word := range words {
		if word == "all" {
			for _, some := range trustKinds {
				kinds = append(kinds, some...)
			}
			continue
		}
		some, ok := trustKinds[word]
		if !ok {
			return nil, exit.Usagef("--include %q: write keys, tokens, zones, access or all", word)
		}
		kinds = append(kinds, some...)
	}
	return kinds, nil
}

// asksFor reports whether a kind that says who is trusted is asked for, by its
// name or with --include. Other kinds are always.
func (o *exportOptions) asksFor(d *resource.Descriptor) bool {
	for _, some := range trustKinds {
		if slices.Contains(some, d.Kind) {
			return slices.Contains(o.kinds, d) || slices.Contains(o.trust, d.Kind)
		}
	}
	return true
}

// takes reports whether a kind is exported from a control plane in a role.
func (o *exportOptions) takes(role string, d *resource.Descriptor) bool {
	record := d.Kind == resource.KindIssuedToken || d.Kind == resource.KindSigningKey || d.Kind == resource.KindTokenRevocation
	switch {
	case len(o.kinds) > 0 && !slices.Contains(o.kinds, d):
		return false
	case len(o.kinds) == 0 && d.Kind == resource.KindRollout:
		return false // it is made by a command, for the zones of this global
	case o.mesh != "" && d.Scope != resource.MeshScoped && d.Kind != resource.KindMesh:
		return false
	}
	return writtenOn(role, d) && o.asksFor(d) && (o.withSecrets || !d.Sensitive) && !(o.clean && record)
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
		return exit.Usagef("nothing to export: none of the kinds is written on this control plane, in a mesh where -m names one, without --include and --include-secrets")
	}
	found, err := o.list(ctx, c, kinds)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(r *resource.Resource) bool {
		return token.LeavesInBackups(r.Key()) || r.Key() == token.AdminTokenKey
	})
	if o.clean {
		for i, r := range found {
			found[i] = clean(r)
		}
	}
	if len(found) == 0 {
		if err := checkMesh(ctx, c, o.mesh, true); err != nil {
			return err
		}
		a.Message("There is nothing to export.")
	}
	return a.Resources(f, found, nil)
}

// list returns the resources of some kinds: all, or those of the mesh and the Mesh
// itself.
func (o *exportOptions) list(ctx context.Context, c *client.Client, kinds []*resource.Descriptor) ([]*resource.Resource, error) {
	inMesh := slices.DeleteFunc(slices.Clone(kinds), func(d *resource.Descriptor) bool { return o.mesh != "" && d.Kind == resource.KindMesh })
	var found []*resource.Resource
	if len(inMesh) < len(kinds) {
		meshes, _, err := c.Resources(ctx, &meridianv1.ListRequest{Kinds: []string{string(resource.KindMesh)}, Consistency: o.consistency})
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(meshes, func(r *resource.Resource) bool { return r.Key().Name != o.mesh })
	}
	if len(inMesh) == 0 {
		return found, nil
	}
	read := (*client.Client).Resources
	if len(o.kinds) == 0 {
		read = (*client.Client).ResourcesOfKnown
	}
	rest, _, err := read(c, ctx, &meridianv1.ListRequest{Kinds: kindNames(inMesh), Mesh: o.mesh, Consistency: o.consistency})
	return append(found, rest...), err
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
