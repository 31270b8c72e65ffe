package cli

import (
	"context"
	"slices"
	"strings"

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
	selector    string
	watch       bool
	at          atFlag
}

func newGetCommand(a *app) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get KIND [NAME...] | KIND,KIND... | KIND/NAME... | all",
		Short: "Show one resource, or all of a kind in a mesh",
		Long: `Show one resource, or all of a kind in a mesh. The kind is written in any case,
singular or plural, kebab or camel: traffic-permissions, TrafficPermission. The
word "all" is every kind without secrets.

With -o json or -o yaml a resource is printed in the form that apply takes back.
With -o wide, policies on gateways and routes, and what they target, show in what
condition they are, and policies on dataplanes how many of the connected proxies obey
them in each zone; describe has the messages.`,
		Example: `  meridian get meshes
  meridian get traffic-permissions -m demo -o wide
  meridian get Retry web-retries -o yaml
  meridian get Timeout/web Retry/web -o json
  meridian get dp -l team=a -o jsonpath={.items[*].name}
  meridian get all -A
  meridian get timeouts -w`,
		Args:              atLeastOne("KIND"),
		ValidArgsFunction: completeKinds(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.get(cmd.Context(), args, &o)
		},
	}
	o.mesh = bindMesh(cmd)
	cmd.Flags().BoolVarP(&o.allMeshes, "all-meshes", "A", false, "list the resources of every mesh")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "only resources with these labels: LABEL=VALUE, LABEL!=VALUE, LABEL, !LABEL")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "then print changes until interrupted")
	bindConsistency(cmd, &o.consistency)
	o.at.bind(cmd)
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
	labels, err := parseSelector(o.selector)
	if err != nil {
		return err
	}
	if o.watch && o.at.given() {
		return exit.Usagef("--watch follows what changes from now on: leave --at out")
	}
	if kinds, err := parseKinds(args[0]); err != nil || len(kinds) > 1 {
		switch {
		case err != nil:
			return err
		case len(args) > 1:
			return exit.Usagef("a name needs one kind: write KIND/NAME in place of %q", args[0])
		case o.watch:
			return exit.Usagef("--watch follows one kind; `meridian watch` follows all")
		}
		return a.getList(ctx, kinds, consistency, labels, o)
	}
	if strings.ToLower(args[0]) == allKinds {
		switch {
		case len(args) > 1:
			return exit.Usagef("a name needs its kind: write the kind in place of %q", allKinds)
		case o.watch:
			return exit.Usagef("--watch follows one kind; `meridian watch` follows all")
		}
		return a.getList(ctx, nil, consistency, labels, o)
	}
	names, err := parseNames(args)
	if err != nil {
		return err
	}
	first := names[0]
	switch {
	case first.name == "":
		return a.getList(ctx, []*resource.Descriptor{first.kind}, consistency, labels, o)
	case len(labels) > 0:
		return exit.Usagef("--selector selects among all of a kind: leave the name out")
	case o.allMeshes && first.kind.Scope == resource.MeshScoped:
		return exit.Usagef("a name needs its mesh: use -m in place of -A")
	case o.watch && len(names) > 1:
		return exit.Usagef("--watch follows one resource, or all of a kind")
	case len(names) > 1:
		return a.getSeveral(ctx, names, consistency, o)
	}
	return a.getOne(ctx, first.kind, first.name, consistency, o)
}

func (a *app) getOne(ctx context.Context, kind *resource.Descriptor, name string, consistency meridianv1.Consistency, o *getOptions) error {
	r, err := a.fetchAt(ctx, kind, o.mesh.name, name, consistency, o.at.point)
	if err != nil {
		return err
	}
	err = a.Resource(o.output.Value, r, kind, a.wideStatus(ctx, o, kind, o.mesh.name, r)...)
	if err != nil || !o.watch {
		return err
	}
	return a.watchFrom(ctx, kind, string(r.Key().Mesh), uint64(r.Meta().Revision), o,
		func(changed *resource.Resource) bool { return changed.Key() == r.Key() })
}

// getSeveral prints the named resources, in the order given.
func (a *app) getSeveral(ctx context.Context, names []named, consistency meridianv1.Consistency, o *getOptions) error {
	var found []*resource.Resource
	kind := names[0].kind
	for _, n := range names {
		r, err := a.fetchAt(ctx, n.kind, o.mesh.name, n.name, consistency, o.at.point)
		if err != nil {
			return err
		}
		if n.kind != kind {
			kind = nil
		}
		found = append(found, r)
	}
	return a.Resources(o.output.Value, found, kind)
}

// watchFrom follows a kind after a revision, until interrupted.
func (a *app) watchFrom(ctx context.Context, kind *resource.Descriptor, mesh string, revision uint64, o *getOptions, keep func(*resource.Resource) bool) error {
	return a.watch(ctx, &meridianv1.WatchRequest{Kinds: []string{string(kind.Kind)}, Mesh: mesh, FromRevision: &revision}, o.output.Value, keep)
}

// wideStatus returns the columns of conditions for the widest table.
func (a *app) wideStatus(ctx context.Context, o *getOptions, kind *resource.Descriptor, mesh string, found ...*resource.Resource) []print.StatusColumn {
	if o.output.Value != print.FormatWide || o.at.given() { // conditions are those of now
		return nil
	}
	return a.statusColumns(ctx, kind, mesh, found)
}

// fetch reads one resource from the control plane.
func (a *app) fetch(ctx context.Context, kind *resource.Descriptor, mesh, name string, consistency meridianv1.Consistency) (*resource.Resource, error) {
	return a.fetchAt(ctx, kind, mesh, name, consistency, nil)
}

// fetchAt reads one resource as it was, or is where at is nil.
func (a *app) fetchAt(ctx context.Context, kind *resource.Descriptor, mesh, name string, consistency meridianv1.Consistency, at *meridianv1.PointInTime) (*resource.Resource, error) {
	key, err := keyOf(kind, mesh, name)
	if err != nil {
		return nil, err
	}
	response, err := call(ctx, a, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(key), Consistency: consistency, At: at})
	if err != nil {
		return nil, err
	}
	if at != nil && response.GetAtRevision() == 0 {
		return nil, client.ErrNoPast
	}
	return client.Decode(response.GetResource()), nil
}

// getList prints all of some kinds; of every kind without secrets where none is given.
func (a *app) getList(ctx context.Context, kinds []*resource.Descriptor, consistency meridianv1.Consistency, labels selector, o *getOptions) error {
	var kind *resource.Descriptor // of a table of one kind
	if len(kinds) == 1 {
		kind = kinds[0]
	}
	several, read := len(kinds) > 1, (*client.Client).Resources
	if len(kinds) == 0 {
		kinds, read = notSensitive(), (*client.Client).ResourcesOfKnown
	}
	request := &meridianv1.ListRequest{Consistency: consistency, Kinds: kindNames(kinds), At: o.at.point}
	global := func(d *resource.Descriptor) bool { return d.Scope == resource.GlobalScoped }
	if !o.allMeshes && (kind == nil || !global(kind)) {
		request.Mesh = o.mesh.name
	}
	mesh := resource.MeshName(request.GetMesh())
	if several && slices.ContainsFunc(kinds, global) {
		request.Mesh = "" // a list of one mesh leaves them out
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	found, revision, err := read(c, ctx, request)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(r *resource.Resource) bool {
		elsewhere := mesh != "" && r.Key().Mesh != "" && r.Key().Mesh != mesh
		return elsewhere || !labels.matches(r.Meta().Labels)
	})
	if len(found) == 0 && o.at.given() {
		a.Message("There was none at revision %d.", revision)
	} else if len(found) == 0 {
		if err := checkMesh(ctx, c, request.GetMesh(), o.mesh.explicit()); err != nil {
			return err
		}
		a.Message("%s", nothingFound(ctx, c, kind, request.GetMesh()))
	}
	err = a.Resources(o.output.Value, found, kind, a.wideStatus(ctx, o, kind, request.GetMesh(), found...)...)
	if err != nil || !o.watch {
		return err
	}
	return a.watchFrom(ctx, kind, request.GetMesh(), revision, o,
		func(r *resource.Resource) bool { return labels.matches(r.Meta().Labels) })
}

// checkMesh fails where nothing was found because there is no such mesh as the
// caller named: most likely it is misspelt.
func checkMesh(ctx context.Context, c *client.Client, mesh string, explicit bool) error {
	if mesh == "" || !explicit {
		return nil
	}
	return c.Call(ctx, func(ctx context.Context) error {
		_, err := c.Get(ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: string(resource.KindMesh), Name: mesh}})
		return err
	})
}

// nothingFound says where else to look: resources of zones are not on the global.
func nothingFound(ctx context.Context, c *client.Client, kind *resource.Descriptor, mesh string) string {
	what := "resource of these kinds"
	if kind != nil {
		what = string(kind.Kind)
	}
	if kind != nil && kind.Owner == resource.OwnedByZone {
		info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{})
		if err == nil && info.GetRole() == "global" {
			return "The global has no " + what + ": zones have them. `meridian dataplanes` lists the dataplanes of all zones."
		}
	}
	if mesh == "" {
		return "There is no " + what + "."
	}
	return "There is no " + what + " in mesh " + mesh + "; -A looks in every mesh."
}
