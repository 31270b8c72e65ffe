package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/rbac"
	"meridian/internal/resource"
)

func newAuthCommand(a *app) *cobra.Command {
	return newGroup("auth", "Examine access rights", newCanICommand(a), newWhoCanCommand(a), newWhoAmICommand(a))
}

// rolesFlags choose between a control plane's roles and those of files.
type rolesFlags struct {
	offline bool
	from    sources
}

func (r *rolesFlags) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.offline, "offline", false, "answer from the roles and bindings of --roles, without a control plane")
	r.from = sources{cmd: cmd, recursive: true}
	cmd.Flags().StringArrayVar(&r.from.files, "roles", nil, "with --offline: file or directory of AccessRoles and AccessRoleBindings; repeatable")
}

func (r *rolesFlags) check() error {
	if r.offline != r.from.given() {
		return exit.Usagef("--offline and --roles go together: the roles to answer from")
	}
	return nil
}

// documents is a view of documents, which is what an offline answer is from. It
// adds no default roles and no default bindings.
type documents []resource.Document

// List yields the resources of a kind in key order.
func (d documents) List(kind resource.Kind, _ resource.MeshName) iter.Seq[*resource.Resource] {
	var of []*resource.Resource
	for _, r := range resourcesOf(d) {
		if r.Key().Kind == kind {
			of = append(of, r)
		}
	}
	slices.SortFunc(of, func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
	return slices.Values(of)
}

// get returns what the documents hold under a key.
func (d documents) get(key resource.Key) (*resource.Resource, bool) {
	for r := range d.List(key.Kind, key.Mesh) {
		if r.Key() == key {
			return r, true
		}
	}
	return nil, false
}

// rules loads the roles and bindings of the files.
func (a *app) rules(from *sources) (documents, error) {
	loaded, err := a.loadDocuments(from, resource.DecodeOptions{})
	if err != nil {
		return nil, err
	}
	a.advise(remarksOf(loaded))
	held := slices.ContainsFunc(loaded, func(d resource.Document) bool { return d.Resource.Key().Kind == resource.KindAccessRoleBinding })
	if !held {
		a.Warn("there is no AccessRoleBinding in the files of --roles: no user has any access")
	}
	return loaded, nil
}

// accessNamed reads an access in any case, with dashes or underscores.
func accessNamed(name string) (resource.Access, error) {
	access := resource.Access(strings.ReplaceAll(strings.ToUpper(name), "-", "_"))
	if slices.Contains(rbac.Accesses(), access) {
		return access, nil
	}
	names := make([]string, len(rbac.Accesses()))
	for i, a := range rbac.Accesses() {
		names[i] = string(a)
	}
	if hint := exit.DidYouMean(string(access), names); hint != "" {
		return "", exit.Usagef("unknown access %q%s", name, hint)
	}
	return "", exit.Usagef("unknown access %q; write one of %s", name, strings.Join(names, ", "))
}

// completeAccesses offers the accesses, then the kinds.
func completeAccesses(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return completeKinds(nil)(cmd, args[1:], typed)
	}
	var accesses []cobra.Completion
	for _, access := range rbac.Accesses() {
		accesses = append(accesses, cobra.Completion(access))
	}
	return accesses, cobra.ShellCompDirectiveNoFileComp
}

// resourceNamed reads TYPE, TYPE/NAME or TYPE NAME. An access to tokens is about
// no resource.
func resourceNamed(access resource.Access, args []string, mesh string) (resource.Key, error) {
	if !rbac.OnResources(access) {
		if len(args) > 0 {
			return resource.Key{}, exit.Usagef("%s is about no resource: leave %q out", access, args[0])
		}
		return resource.Key{Mesh: resource.MeshName(mesh)}, nil
	}
	args = splitSlash(args)
	kind, err := lookupKind(args[0])
	if err != nil {
		return resource.Key{}, err
	}
	key := resource.Key{Kind: kind.Kind}
	if kind.Scope == resource.MeshScoped {
		key.Mesh = resource.MeshName(mesh)
	}
	if len(args) > 1 {
		if err := resource.CheckName(args[1]); err != nil {
			return key, exit.Usagef("%s: %w", kind.Kind, err)
		}
		key.Name = args[1]
	}
	return key, nil
}

func newWhoAmICommand(a *app) *cobra.Command {
	var output *print.FormatFlag
	cmd := &cobra.Command{
		Use:     "whoami",
		Short:   "Show the authenticated identity and its roles",
		Example: "  meridian auth whoami",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.whoAmI(cmd.Context(), output.Value)
		},
	}
	output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	return cmd
}

// heldView is a role of the authenticated identity, as JSON.
type heldView struct {
	Role    string           `json:"role"`
	Binding string           `json:"binding"`
	Subject resource.Subject `json:"subject"`
	Missing bool             `json:"missing,omitempty"`
}

func (a *app) whoAmI(ctx context.Context, f print.Format) error {
	me, err := call(ctx, a, (*client.Client).WhoAmI, &meridianv1.WhoAmIRequest{})
	if err != nil {
		return err
	}
	held := make([]heldView, len(me.GetRoles()))
	for i, r := range me.GetRoles() {
		held[i] = heldView{r.GetRole(), r.GetBinding(), subjectOf(r.GetSubject()), r.GetMissing()}
	}
	if f.Structured() {
		return a.WriteValue(f, struct {
			Name   string     `json:"name"`
			Groups []string   `json:"groups"`
			Source string     `json:"source"`
			Roles  []heldView `json:"roles"`
			Open   bool       `json:"open"`
		}{me.GetName(), me.GetGroups(), me.GetSource(), held, me.GetOpen()})
	}
	if me.GetOpen() {
		a.Warn("every caller is an administrator of this control plane, without credentials: bind the role admin to your administrators")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "User:   %s\nGroups: %s\nKnown:  %s\n", me.GetName(), strings.Join(me.GetGroups(), ", "), sourceText(me.GetSource()))
	if len(held) == 0 {
		b.WriteString("Roles:  none: you can write nothing\n")
		return a.Output([]byte(b.String()))
	}
	b.WriteString("Roles:\n")
	for _, h := range held {
		fmt.Fprintf(&b, "  %s\n", h)
	}
	return a.Output([]byte(b.String()))
}

// String prints the role and how it was given.
func (h heldView) String() string {
	text := fmt.Sprintf("%s, through AccessRoleBinding %s to %s %s", h.Role, h.Binding, strings.ToLower(string(h.Subject.Type)), h.Subject.Name)
	if h.Missing {
		text += " (there is no such role: it grants nothing)"
	}
	return text
}

func subjectOf(s *meridianv1.AccessSubject) resource.Subject {
	return resource.Subject{Type: resource.SubjectType(s.GetType()), Name: s.GetName()}
}

func sourceText(source string) string {
	switch authn.Source(source) {
	case authn.FromToken:
		return "by a token"
	case authn.FromLoopback:
		return "by calling from the control plane's own host without credentials"
	default:
		return "not at all: no credentials were sent"
	}
}

func newWhoCanCommand(a *app) *cobra.Command {
	var (
		roles  rolesFlags
		mesh   *meshFlag
		output *print.FormatFlag
	)
	cmd := &cobra.Command{
		Use:   "who-can ACCESS [TYPE[/NAME]]",
		Short: "List the users and groups that have an access",
		Long: `List the users and groups that have an access, each with the rule that grants it.
Without a name: those who have it whatever the name. A rule that covers something
"depending on the content" looks at what the resource contains; ask can-i with -f
about a particular one.`,
		Example: `  meridian auth who-can UPDATE TrafficPermission/web-to-backend
  meridian auth who-can GENERATE_USER_TOKEN`,
		Args:              between(1, "ACCESS", "TYPE", "NAME"),
		ValidArgsFunction: completeAccesses,
		RunE: func(cmd *cobra.Command, args []string) error {
			access, err := accessNamed(args[0])
			if err != nil {
				return err
			}
			if err := mesh.check(); err != nil {
				return err
			}
			if err := roles.check(); err != nil {
				return err
			}
			if rbac.OnResources(access) && len(args) < 2 {
				return exit.Usagef("missing TYPE: %s is about a resource", access)
			}
			key, err := resourceNamed(access, args[1:], mesh.name)
			if err != nil {
				return err
			}
			return a.whoCan(cmd.Context(), &roles, access, key, output.Value)
		},
	}
	mesh = bindMesh(cmd)
	roles.bind(cmd)
	output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	return cmd
}

// holderView is a user or group that has an access, as JSON.
type holderView struct {
	Subject     resource.Subject `json:"subject"`
	Role        string           `json:"role"`
	Rule        uint32           `json:"rule"`
	Binding     string           `json:"binding"`
	Scope       string           `json:"scope"`
	Conditional bool             `json:"conditional"`
}

func (a *app) whoCan(ctx context.Context, roles *rolesFlags, access resource.Access, key resource.Key, f print.Format) error {
	var (
		holders []holderView
		err     error
	)
	if roles.offline {
		holders, err = a.whoCanOffline(roles, access, key)
	} else {
		holders, err = a.askWhoCan(ctx, access, key)
	}
	if err != nil {
		return err
	}
	if f.Structured() {
		return a.WriteValue(f, struct {
			Items []holderView `json:"items"`
		}{holders})
	}
	if len(holders) == 0 {
		a.Message("No user or group has this access.")
		return nil
	}
	t := &print.Table{Header: []string{"TYPE", "NAME", "ROLE", "RULE", "BINDING", "COVERS"}}
	for _, h := range holders {
		rule := fmt.Sprintf("rules[%d]", h.Rule)
		if h.Role == "" {
			rule = "" // by a setting of the server
		}
		t.Add(string(h.Subject.Type), h.Subject.Name, h.Role, rule, h.Binding, h.Scope)
	}
	return a.Table(t)
}

func (a *app) whoCanOffline(roles *rolesFlags, access resource.Access, key resource.Key) ([]holderView, error) {
	rules, err := a.rules(&roles.from)
	if err != nil {
		return nil, err
	}
	holders := []holderView{}
	for _, h := range rbac.Compile(rules).WhoCan(access, key) {
		holders = append(holders, holderView{
			h.Subject, h.Grant.Role, uint32(h.Grant.Index), h.Grant.Binding, h.Grant.Scope(), h.Grant.Conditional(),
		})
	}
	return holders, nil
}

func (a *app) askWhoCan(ctx context.Context, access resource.Access, key resource.Key) ([]holderView, error) {
	response, err := call(ctx, a, (*client.Client).WhoCan, &meridianv1.WhoCanRequest{Access: string(access), Key: messageKey(key)})
	holders := []holderView{}
	for _, h := range response.GetHolders() {
		holders = append(holders, holderView{
			subjectOf(h.GetSubject()), h.GetRole(), h.GetRule(), h.GetBinding(), h.GetScope(), h.GetConditional(),
		})
	}
	return holders, err
}

// holdersOf lists, for a page about a role, who has it.
func (a *app) holdersOf(ctx context.Context, role string) (string, error) {
	c, err := a.connect()
	if err != nil {
		return "", err
	}
	defer c.Close()
	bindings, _, err := c.Resources(ctx, &meridianv1.ListRequest{Kinds: []string{string(resource.KindAccessRoleBinding)}})
	if err != nil {
		return "", err
	}
	var loaded documents
	for _, b := range bindings {
		// A binding that this release cannot read may give the role to others.
		built, _, err := resource.Build(resource.Meta{Key: b.Key()}, b.Canonical())
		if err != nil {
			return "", fmt.Errorf("read %s: %w", b.Key(), err)
		}
		loaded = append(loaded, resource.Document{Resource: built})
	}
	holders := rbac.Compile(loaded).Holders(role)
	if len(holders) == 0 {
		return "Held by:    no user or group: no AccessRoleBinding grants it\n", nil
	}
	var b strings.Builder
	b.WriteString("Held by:\n")
	for _, h := range holders {
		fmt.Fprintf(&b, "  %s %s, through AccessRoleBinding %s\n", strings.ToLower(string(h.Subject.Type)), h.Subject.Name, h.Binding)
	}
	return b.String(), nil
}
