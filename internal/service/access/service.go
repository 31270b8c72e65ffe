package access

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/batch"
	"meridian/internal/doctree"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// Service implements meridianv1.AccessServiceServer.
type Service struct {
	meridianv1.UnimplementedAccessServiceServer
	authorizer *authz.Authorizer
	read       func(ctx context.Context) (resource.Revision, error)
	turns      *turns.Turns
	past       func(ctx context.Context, at *meridianv1.PointInTime) (*store.Past, error)
}

// ReadPast has questions about earlier states answered from what read returns. Call it
// before the first question.
func (s *Service) ReadPast(read func(ctx context.Context, at *meridianv1.PointInTime) (*store.Past, error)) *Service {
	s.past = read
	return s
}

// state is what a question is decided on.
type state struct {
	store.Reader
	rules *rbac.Set
	// at is the revision of an earlier state, 0 of the newest.
	at resource.Revision
}

// stateOf returns the newest state, or the earlier one that a question is about.
func (s *Service) stateOf(ctx context.Context, req *meridianv1.CanIRequest) (state, error) {
	view, rules, err := s.newest(ctx)
	if err != nil || req.GetAt() == nil {
		return state{Reader: view, rules: rules}, err
	}
	if err := s.mayReadRules(ctx); err != nil {
		return state{}, err // the answer names roles and bindings, which may be gone
	}
	if s.past == nil {
		return state{}, rpcerr.New(rpcerr.Unsupported, "NO_PAST", "this server cannot read earlier states")
	}
	then, err := s.past(ctx, req.GetAt())
	if err != nil {
		return state{}, err
	}
	return state{then, rbac.Compile(then), then.Revision()}, nil
}

// New returns the service that answers by an authorizer. read waits until
// the authorizer's store holds every write acknowledged before the call. Questions
// are decoded and decided in turn.
func New(a *authz.Authorizer, read func(ctx context.Context) (resource.Revision, error), t *turns.Turns) *Service {
	return &Service{authorizer: a, read: read, turns: t}
}

// newest returns the newest state and its rules.
func (s *Service) newest(ctx context.Context) (*store.View, *rbac.Set, error) {
	if _, err := s.read(ctx); err != nil {
		return nil, nil, rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "cannot read the newest state: %w", err)
	}
	view := s.authorizer.Newest()
	return view, s.authorizer.Rules(view), nil
}

// WhoAmI says who the caller is and which roles the caller has.
func (s *Service) WhoAmI(ctx context.Context, _ *meridianv1.WhoAmIRequest) (*meridianv1.WhoAmIResponse, error) {
	view, rules, err := s.newest(ctx)
	if err != nil {
		return nil, err
	}
	who := authn.PrincipalFrom(ctx)
	response := &meridianv1.WhoAmIResponse{
		Name: who.Name, Groups: who.Groups, Source: string(who.Source), Revision: uint64(view.Revision()),
		Open: s.authorizer.Open(),
	}
	for _, r := range rules.RolesOf(authz.SubjectOf(who)) {
		response.Roles = append(response.Roles, &meridianv1.HeldRole{
			Role: r.Role, Binding: r.Binding, Subject: encodeSubject(r.Subject), Missing: r.Missing,
		})
	}
	return response, nil
}

// CanI decides one access, for the caller or for another user.
func (s *Service) CanI(stream grpc.ClientStreamingServer[meridianv1.CanIRequest, meridianv1.CanIResponse]) error {
	req, err := batch.ReceiveCanI(stream)
	if err != nil {
		return err
	}
	response, err := s.Decide(stream.Context(), req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// Decide is CanI for a question that has been received.
func (s *Service) Decide(ctx context.Context, req *meridianv1.CanIRequest) (response *meridianv1.CanIResponse, err error) {
	view, err := s.stateOf(ctx, req)
	if err != nil {
		return nil, err
	}
	rules := view.rules
	who := authn.PrincipalFrom(ctx)
	switch {
	case req.GetAsUser() != "":
		if who = authn.Named(req.GetAsUser(), req.GetAsGroups()); who.String() != authn.PrincipalFrom(ctx).String() {
			if err := s.mayReadRules(ctx); err != nil {
				return nil, err
			}
		}
	case len(req.GetAsGroups()) > 0:
		return nil, rpcerr.New(rpcerr.Invalid, "USER_MISSING", "groups are asked about with the user who is in them")
	}
	if err := checkWho(req.GetAsUser(), req.GetAsGroups()); err != nil {
		return nil, err
	}
	if err := checkAccess(req.GetAccess()); err != nil {
		return nil, err
	}
	answer := func(a rbac.Answer) *meridianv1.CanIResponse {
		return &meridianv1.CanIResponse{Allowed: a.Allowed, Reasons: a.Reasons, Subject: who.String(), Revision: uint64(view.Revision()), AtRevision: uint64(view.at)}
	}
	subject := authz.SubjectOf(who)
	if known, ok := knownOf(req); ok && req.GetAccess() != string(resource.AccessRead) && !rules.Could(subject, resource.Access(req.GetAccess()), known) {
		return answer(rbac.No(rules.Refusal(subject, resource.Access(req.GetAccess()), known))), nil
	}
	size := int64(proto.Size(req))
	err = s.turns.Hold(ctx, size, func() error {
		return s.turns.Work(ctx, size, func() error {
			question, err := readQuestion(req)
			if err != nil {
				return err
			}
			question.Stored, question.Rules = view.Get, view
			question.Hidden = func(key resource.Key, stored *resource.Resource) bool {
				if stored == nil {
					return s.authorizer.ReadKey(ctx, key) != nil
				}
				return s.authorizer.Read(ctx, stored) != nil
			}
			told := rules.Ask(subject, question)
			if question.Access == resource.AccessRead && !told.Allowed && s.authorizer.ReadsAll(authn.WithPrincipal(ctx, who)) && !sensitive(question) {
				told = rbac.Answer{Allowed: true, Reasons: []string{readsAll}}
			}
			response = answer(told)
			return nil
		})
	})
	return response, err
}

const (
	// maxText bounds the name of a user or group that is asked about, in bytes, and
	// maxGroups how many groups: a token has no more.
	maxText, maxGroups = 253, 64
)

func checkWho(user string, groups []string) error {
	if len(user) > maxText || slices.ContainsFunc(groups, func(g string) bool { return len(g) > maxText }) {
		return rpcerr.New(rpcerr.Invalid, "NAME_TOO_LONG", "the name of a user or group has at most %d bytes", maxText)
	}
	if len(groups) > maxGroups {
		return rpcerr.New(rpcerr.Invalid, "TOO_MANY_GROUPS", "a user is in at most %d groups, not %d", maxGroups, len(groups))
	}
	return nil
}

// knownOf returns what a question about a resource says without its content; false
// where it is about another thing, or not complete.
func knownOf(req *meridianv1.CanIRequest) (rbac.Known, bool) {
	if !rbac.OnResources(resource.Access(req.GetAccess())) {
		return rbac.Known{}, false
	}
	kind, mesh, name := req.GetKey().GetKind(), req.GetKey().GetMesh(), req.GetKey().GetName()
	if r := req.GetResource(); r != nil {
		kind, mesh, name = r.GetKind(), r.GetMesh(), r.GetName()
	}
	key, err := readKey(&meridianv1.ResourceKey{Kind: kind, Mesh: mesh, Name: name})
	return rbac.Known{Key: key}, err == nil && key.Kind != ""
}

// readsAll is why an authenticated user may read what no role grants.
const readsAll = "--read-access is all: every authenticated user reads everything but secret material"

func sensitive(q rbac.Question) bool {
	key := q.Key
	if q.New != nil {
		key = q.New.Key()
	}
	d, ok := resource.Describe(key.Kind)
	return !ok || d.Sensitive
}

// mayReadRules refuses callers who may not read all roles and bindings: they are
// told nothing of the rights of others.
func (s *Service) mayReadRules(ctx context.Context) error {
	for _, kind := range []resource.Kind{resource.KindAccessRole, resource.KindAccessRoleBinding} {
		if err := s.authorizer.ReadKey(ctx, resource.Key{Kind: kind}); err != nil {
			return err
		}
	}
	return nil
}

func readQuestion(req *meridianv1.CanIRequest) (rbac.Question, error) {
	question := rbac.Question{Access: resource.Access(req.GetAccess()), Token: rbac.Token{Mesh: resource.MeshName(req.GetMesh()), Name: req.GetKey().GetName()}}
	for _, tag := range req.GetTags() {
		if question.Token.Tags == nil {
			question.Token.Tags = map[string][]string{}
		}
		question.Token.Tags[tag.GetName()] = append(question.Token.Tags[tag.GetName()], tag.GetValue())
	}
	if !rbac.OnResources(question.Access) {
		return question, nil
	}
	var err error
	if question.Key, err = readKey(req.GetKey()); err != nil {
		return question, err
	}
	if question.New, err = readResource(req.GetResource()); err != nil {
		return question, err
	}
	question.Old, err = readResource(req.GetOld())
	if err == nil && question.Key.Kind == "" && question.New == nil {
		err = rpcerr.New(rpcerr.Invalid, "RESOURCE_MISSING", "%s is about a resource: name its kind, or give the resource", question.Access)
	}
	return question, err
}

func checkAccess(name string) error {
	if slices.Contains(rbac.Accesses(), resource.Access(name)) {
		return nil
	}
	return rpcerr.New(rpcerr.Invalid, "UNKNOWN_ACCESS", "unknown access %q", doctree.Clip(name))
}

func readKey(k *meridianv1.ResourceKey) (resource.Key, error) {
	if k.GetKind() == "" {
		return resource.Key{}, nil
	}
	d, ok := resource.Lookup(k.GetKind())
	if !ok {
		return resource.Key{}, rpcerr.New(rpcerr.Invalid, "UNKNOWN_KIND", "unknown kind %q", doctree.Clip(k.GetKind()))
	}
	key := resource.Key{Kind: d.Kind, Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
	if d.Scope == resource.GlobalScoped {
		key.Mesh = ""
	}
	return key, nil
}

func readResource(m *meridianv1.Resource) (*resource.Resource, error) {
	if m == nil {
		return nil, nil
	}
	key := resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}
	report := &resource.Report{}
	if resource.CheckLabels(key, m.GetLabels(), "labels", report); report.Failed() {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCE", "%w", &resource.DocumentError{Key: key, Problems: report.Problems})
	}
	r, _, err := resource.Build(resource.Meta{Key: key, Labels: m.GetLabels()}, m.GetSpec())
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCE", "%s: %w", key, err)
	}
	return r, nil
}

// WhoCan lists who has an access.
func (s *Service) WhoCan(ctx context.Context, req *meridianv1.WhoCanRequest) (*meridianv1.WhoCanResponse, error) {
	view, rules, err := s.newest(ctx)
	if err != nil {
		return nil, err
	}
	access := resource.Access(req.GetAccess())
	if err := checkAccess(req.GetAccess()); err != nil {
		return nil, err
	}
	key, err := readKey(req.GetKey())
	if err != nil {
		return nil, err
	}
	if rbac.OnResources(access) && key.Kind == "" {
		return nil, rpcerr.New(rpcerr.Invalid, "RESOURCE_MISSING", "%s is about a resource: name its kind", access)
	}
	if err := s.mayReadRules(ctx); err != nil {
		return nil, err
	}
	response := &meridianv1.WhoCanResponse{Revision: uint64(view.Revision())}
	if access == resource.AccessRead && s.authorizer.ReadsAll(authn.WithPrincipal(ctx, authn.UserPrincipal("", nil))) && !sensitive(rbac.Question{Key: key}) {
		response.Holders = append(response.Holders, &meridianv1.AccessHolder{
			Subject: &meridianv1.AccessSubject{Type: string(resource.SubjectGroup), Name: authn.AuthenticatedGroup}, Scope: "everything, by --read-access=all",
		})
	}
	for _, h := range rules.WhoCan(access, key) {
		response.Holders = append(response.Holders, &meridianv1.AccessHolder{
			Subject: encodeSubject(h.Subject), Role: h.Grant.Role, Rule: uint32(h.Grant.Index),
			Binding: h.Grant.Binding, Conditional: h.Grant.Conditional(), Scope: h.Grant.Scope(),
		})
	}
	return response, nil
}

func encodeSubject(s resource.Subject) *meridianv1.AccessSubject {
	return &meridianv1.AccessSubject{Type: string(s.Type), Name: s.Name}
}
