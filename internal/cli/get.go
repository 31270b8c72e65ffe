package cli

import (
	"context"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

// allKinds is what `get` takes for every kind.
const allKinds = "all"

// getOptions are the flags of get.
type getOptions struct {
	mesh        *meshFlag
	allMeshes   bool
	output      *print.FormatFlag
	consistency string
}

func newGetCommand(a *app) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get TYPE [NAME]",
		Short: "Show one resource, or all of a kind in a mesh",
		Long: `Show one resource, or all of a kind in a mesh. The kind is written in any case,
singular or plural, kebab or camel: traffic-permissions, TrafficPermission. The
word "all" is every kind without secrets.

With -o json or -o yaml a resource is printed in the form that apply takes back.
With -o wide, policies on gateways and routes, and what they target, show in what
condition they are; describe has the messages.`,
		Example: `  meridian get meshes
  meridian get traffic-permissions -m demo -o wide
  meridian get Retry web-retries -o yaml`,
		Args:              between(1, "TYPE", "NAME"),
		ValidArgsFunction: completeKinds(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.get(cmd.Context(), splitSlash(args), &o)
		},
	}
	o.mesh = bindMesh(cmd)
	cmd.Flags().BoolVarP(&o.allMeshes, "all-meshes", "A", false, "list the resources of every mesh")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
	bindConsistency(cmd, &o.consistency)
	return cmd
}

func bindConsistency(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "consistency", "linearizable",
		"linearizable: every acknowledged write; stale: the contacted server's state, without a leader")
}

func parseConsistency(value string) (meridianv1.Consistency, error) {
	switch value {
	case "linearizable":
		return meridianv1.Consistency_CONSISTENCY_LINEARIZABLE, nil
	case "stale":
		return meridianv1.Consistency_CONSISTENCY_STALE, nil
	}
	return 0, exit.Usagef("--consistency %q: write linearizable or stale", value)
}

func (a *app) get(ctx context.Context, args []string, o *getOptions) error {
	consistency, err := parseConsistency(o.consistency)
	if err != nil {
		return err
	}
	if err := o.mesh.check(); err != nil {
		return err
	}
	var kind *resource.Descriptor
	if args[0] != allKinds {
		if kind, err = lookupKind(args[0]); err != nil {
			return err
		}
	}
	switch {
	case len(args) == 2 && kind == nil:
		return exit.Usagef("a name needs its kind: write the kind in place of %q", allKinds)
	case len(args) == 2 && o.allMeshes && kind.Scope == resource.MeshScoped:
		return exit.Usagef("a name needs its mesh: use -m in place of -A")
	case len(args) == 2:
		return a.getOne(ctx, kind, args[1], consistency, o)
	}
	return a.getList(ctx, kind, consistency, o)
}

func (a *app) getOne(ctx context.Context, kind *resource.Descriptor, name string, consistency meridianv1.Consistency, o *getOptions) error {
	r, err := a.fetch(ctx, kind, o.mesh.name, name, consistency)
	if err != nil {
		return err
	}
	return a.Resource(o.output.Value, r, kind, a.wideStatus(ctx, o, kind, o.mesh.name, r)...)
}

// wideStatus returns the columns of conditions for the widest table.
func (a *app) wideStatus(ctx context.Context, o *getOptions, kind *resource.Descriptor, mesh string, found ...*resource.Resource) []print.StatusColumn {
	if o.output.Value != print.FormatWide {
		return nil
	}
	return a.statusColumns(ctx, kind, mesh, found)
}

// fetch reads one resource from the control plane.
func (a *app) fetch(ctx context.Context, kind *resource.Descriptor, mesh, name string, consistency meridianv1.Consistency) (*resource.Resource, error) {
	key, err := keyOf(kind, mesh, name)
	if err != nil {
		return nil, err
	}
	response, err := call(ctx, a, (*client.Client).Get, &meridianv1.GetRequest{Key: key, Consistency: consistency})
	if err != nil {
		return nil, err
	}
	return client.Decode(response.GetResource()), nil
}

func (a *app) getList(ctx context.Context, kind *resource.Descriptor, consistency meridianv1.Consistency, o *getOptions) error {
	request := &meridianv1.ListRequest{Consistency: consistency}
	switch {
	case kind == nil:
		request.Kinds = kindNames(notSensitive())
	default:
		request.Kinds = []string{string(kind.Kind)}
	}
	if !o.allMeshes && (kind == nil || kind.Scope == resource.MeshScoped) {
		request.Mesh = o.mesh.name
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	found, err := c.Resources(ctx, request)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		if err := checkMesh(ctx, c, request.GetMesh(), o); err != nil {
			return err
		}
		a.Message("%s", nothingFound(kind, request.GetMesh()))
	}
	return a.Resources(o.output.Value, found, kind, a.wideStatus(ctx, o, kind, request.GetMesh(), found...)...)
}

// checkMesh fails where nothing was found because there is no such mesh as the
// caller named: most likely it is misspelt.
func checkMesh(ctx context.Context, c *client.Client, mesh string, o *getOptions) error {
	if mesh == "" || !o.mesh.explicit() {
		return nil
	}
	return c.Call(ctx, func(ctx context.Context) error {
		_, err := c.Get(ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: string(resource.KindMesh), Name: mesh}})
		return err
	})
}

func nothingFound(kind *resource.Descriptor, mesh string) string {
	what := "resources"
	if kind != nil {
		what = string(kind.Kind)
	}
	if mesh == "" {
		return "There is no " + what + "."
	}
	return "There is no " + what + " in mesh " + mesh + "; -A looks in every mesh."
}
