package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/rbac"
	"meridian/internal/resource"
)

// canIFlags are the flags of can-i.
type canIFlags struct {
	roles  rolesFlags
	mesh   *meshFlag
	output *print.FormatFlag
	files  *sources
	old    string
	tags   []string
	as     string
	groups []string
	at     atFlag
}

func newCanICommand(a *app) *cobra.Command {
	var o canIFlags
	cmd := &cobra.Command{
		Use:   "can-i ACCESS [TYPE/NAME | -f FILE]",
		Short: "Check whether an access is granted, and by which rule",
		Long: `Say whether an access is granted: CREATE, UPDATE or DELETE on a resource, or a
GENERATE_… access to tokens. Prints yes or no and the reason; the exit code is 0
or 1.

Rules may look at what a resource contains: give it with -f. Without -f, KIND/NAME
is the stored resource. An UPDATE is decided on the stored resource (or
--old) and on the new content.

For a role or binding that grants more than its author has, the answer is no: the
write would be refused.

With --offline the answer comes from the roles and bindings of --roles alone.`,
		Example: `  meridian auth can-i UPDATE -f new.yaml
  meridian auth can-i CREATE traffic-permission/web --as bob --as-group team-a
  meridian auth can-i GENERATE_DATAPLANE_TOKEN -m default --tag kuma.io/service=web
  meridian auth can-i UPDATE -f new.yaml --old old.yaml --as bob --offline --roles roles.yaml`,
		Args:              between(1, "ACCESS", "TYPE", "NAME"),
		ValidArgsFunction: completeAccesses,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("as") && o.as == "" || slices.Contains(o.groups, "") {
				return exit.Usagef("--as and --as-group require a name")
			}
			return a.canI(cmd.Context(), args, &o)
		},
	}
	o.mesh = bindMesh(cmd)
	o.roles.bind(cmd)
	o.files = bindSources(cmd)
	cmd.Flags().StringVar(&o.old, "old", "", "with UPDATE: file that holds what is replaced, in place of what is stored")
	cmd.Flags().StringArrayVar(&o.tags, "tag", nil, "with GENERATE_DATAPLANE_TOKEN: TAG=VALUE that the token would carry; repeatable")
	cmd.Flags().StringVar(&o.as, "as", "", "ask for this user, as authenticated; mesh-system:anonymous is a client without credentials")
	cmd.Flags().StringArrayVar(&o.groups, "as-group", nil, "with --as: a group of the user; repeatable")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	o.at.bind(cmd)
	return cmd
}

func (a *app) canI(ctx context.Context, args []string, o *canIFlags) error {
	granted, err := accessNamed(args[0])
	if err != nil {
		return err
	}
	if err := o.check(granted, args[1:]); err != nil {
		return err
	}
	questions, err := a.questions(granted, args[1:], o)
	if err != nil {
		return err
	}
	ask, stop, err := a.asker(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	verdict := verdictView{Allowed: true}
	for _, q := range questions {
		answer, err := ask(q)
		if err != nil {
			return err
		}
		verdict.add(q, answer, len(questions) > 1)
	}
	return a.printVerdict(o.output.Value, verdict)
}

func (o *canIFlags) check(granted resource.Access, args []string) error {
	onResources := rbac.OnResources(granted)
	switch {
	case !onResources && o.files.given():
		return exit.Usagef("%s is about no resource: leave -f out", granted)
	case onResources && len(args) == 0 && !o.files.given():
		return exit.Usagef("missing TYPE/NAME, or -f: %s is about a resource", granted)
	case len(args) > 0 && o.files.given():
		return exit.Usagef("name one resource, or give documents with -f, not both")
	case o.old != "" && (granted != resource.AccessUpdate || !o.files.given()):
		return exit.Usagef("--old goes with UPDATE and -f: it is what the update replaces")
	case len(o.tags) > 0 && granted != resource.AccessGenerateDataplaneToken:
		return exit.Usagef("--tag goes with %s", resource.AccessGenerateDataplaneToken)
	case len(o.groups) > 0 && o.as == "":
		return exit.Usagef("--as-group goes with --as: the user who is in the group")
	case len(o.groups) > 0 && o.as == authn.AnonymousUser:
		return exit.Usagef("--as-group requires a named user: %s is a member of %s only", authn.AnonymousUser, authn.UnauthenticatedGroup)
	case o.roles.offline && o.at.given():
		return exit.Usagef("--at asks a control plane: leave --offline out")
	case o.roles.offline && o.as == "":
		return exit.Usagef("--as is required with --offline: the user to ask for")
	}
	if err := o.mesh.check(); err != nil {
		return err
	}
	return o.roles.check()
}

// questions are what is asked: one, or one for each document.
func (a *app) questions(granted resource.Access, args []string, o *canIFlags) ([]rbac.Question, error) {
	if !o.files.given() {
		key, err := resourceNamed(granted, args, o.mesh.name)
		if err != nil {
			return nil, err
		}
		token, err := o.token()
		return []rbac.Question{{Access: granted, Key: key, Token: token}}, err
	}
	loaded, err := a.load(o.files, o.mesh)
	if err != nil {
		return nil, err
	}
	questions := make([]rbac.Question, len(loaded))
	for i, d := range loaded {
		questions[i] = rbac.Question{Access: granted, Key: d.Resource.Key(), New: d.Resource}
	}
	if o.old != "" {
		questions[0].Old, err = a.replaced(loaded, o)
	}
	return questions, err
}

// replaced reads what an update replaces.
func (a *app) replaced(loaded []resource.Document, o *canIFlags) (*resource.Resource, error) {
	replaced, err := a.load(&sources{files: []string{o.old}, cmd: o.files.cmd}, o.mesh)
	switch {
	case err != nil:
		return nil, err
	case len(loaded) != 1 || len(replaced) != 1:
		return nil, exit.Usagef("--old is about one resource: -f and --old hold one document each")
	case loaded[0].Resource.Key() != replaced[0].Resource.Key():
		return nil, exit.Usagef("--old holds %s, and -f %s: an update replaces a resource by itself", replaced[0].Resource.Key(), loaded[0].Resource.Key())
	}
	return replaced[0].Resource, nil
}

func (o *canIFlags) token() (rbac.Token, error) {
	token := rbac.Token{Mesh: resource.MeshName(o.mesh.name)}
	for _, entry := range o.tags {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" || value == "" {
			return token, exit.Usagef("--tag %q: write TAG=VALUE", entry)
		}
		if token.Tags == nil {
			token.Tags = map[string][]string{}
		}
		token.Tags[name] = append(token.Tags[name], value)
	}
	return token, nil
}

// asker returns what answers a question: the roles of files, or a control plane.
func (a *app) asker(ctx context.Context, o *canIFlags) (ask func(rbac.Question) (rbac.Answer, error), stop func(), err error) {
	if o.roles.offline {
		rules, err := a.rules(&o.roles.from)
		if err != nil {
			return nil, nil, err
		}
		set, user := rbac.Compile(rules), authn.Named(o.as, o.groups)
		subject := rbac.Subject{Name: user.Name, Groups: user.Groups}
		return func(q rbac.Question) (rbac.Answer, error) {
			q.Stored, q.Rules = rules.get, rules
			return set.Ask(subject, q), nil
		}, func() {}, nil
	}
	c, err := a.connect()
	if err != nil {
		return nil, nil, err
	}
	return func(q rbac.Question) (rbac.Answer, error) {
		var response *meridianv1.CanIResponse
		err := c.Call(ctx, func(ctx context.Context) (err error) {
			response, err = batch.CanI(ctx, c, encodeQuestion(q, o))
			return err
		})
		if err == nil && o.at.given() && response.GetAtRevision() == 0 {
			err = client.ErrNoPast
		}
		return rbac.Answer{Allowed: response.GetAllowed(), Reasons: response.GetReasons()}, err
	}, c.Close, nil
}

func encodeQuestion(q rbac.Question, o *canIFlags) *meridianv1.CanIRequest {
	request := &meridianv1.CanIRequest{
		Access: string(q.Access), Mesh: string(q.Token.Mesh), AsUser: o.as, AsGroups: o.groups, At: o.at.point,
	}
	if q.New != nil {
		request.Resource = client.Encode(q.New)
	}
	if q.Old != nil {
		request.Old = client.Encode(q.Old)
	}
	if rbac.OnResources(q.Access) {
		request.Key = messageKey(q.Key)
	}
	for name, values := range q.Token.Tags {
		for _, value := range values {
			request.Tags = append(request.Tags, &meridianv1.TokenTag{Name: name, Value: value})
		}
	}
	return request
}

// verdictView is the answer to can-i, as JSON.
type verdictView struct {
	Allowed bool     `json:"allowed"`
	Reasons []string `json:"reasons"`
}

// add takes one more answer in: all must be yes, and the reasons of those that
// are not come alone.
func (v *verdictView) add(q rbac.Question, answer rbac.Answer, named bool) {
	if v.Allowed && !answer.Allowed {
		v.Allowed, v.Reasons = false, nil
	}
	if v.Allowed != answer.Allowed {
		return
	}
	for _, reason := range answer.Reasons {
		if named {
			reason = q.Key.String() + ": " + reason
		}
		v.Reasons = append(v.Reasons, reason)
	}
}

func (a *app) printVerdict(f print.Format, v verdictView) error {
	var err error
	if f.Structured() {
		err = a.WriteValue(f, v)
	} else {
		word := "no"
		if v.Allowed {
			word = "yes"
		}
		err = a.Println(strings.Join(append([]string{word}, v.Reasons...), "\n  "))
	}
	if err == nil && !v.Allowed {
		return exit.ErrNo
	}
	return err
}
