package authz

import (
	"context"
	"sync/atomic"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Authorizer decides by the access rules of one store. It is safe for
// concurrent use.
type Authorizer struct {
	view  func() *store.View
	rules atomic.Pointer[compiled]
	// refuseOpen is why no write may make every caller an administrator; empty
	// where one may.
	refuseOpen string
	// readGranted makes every caller need an access to what it reads.
	readGranted bool
}

// New returns the authorizer of a control plane. view returns the newest state
// of the store that holds its roles and bindings, which is the one that its
// writes go to.
func New(view func() *store.View) *Authorizer { return &Authorizer{view: view} }

// Newest returns the newest state of the store that holds the access rules.
func (a *Authorizer) Newest() *store.View { return a.view() }

// RefuseOpen makes the authorizer refuse writes that would make every caller an
// administrator (§6.5), for a reason that the refusal gives. Call it before the
// first decision.
func (a *Authorizer) RefuseOpen(reason string) { a.refuseOpen = reason }

// ReadGranted makes reading take READ or another access to the resource, for every
// caller (§6.1). Call it before the first decision.
func (a *Authorizer) ReadGranted() { a.readGranted = true }

// Open reports whether callers without credentials may write everything.
func (a *Authorizer) Open() bool { return isOpen(a.Rules(a.view())) }

func isOpen(rules *rbac.Set) bool { return rules.WritesEverything(SubjectOf(authn.Anonymous())) }

// compiled is a set together with what it was compiled from.
type compiled struct {
	of  identity
	set *rbac.Set
}

// identity tells the access rules of two views apart. The revision alone would
// not do: a restored backup may have other rules at the same revision.
type identity struct {
	revision        resource.Revision
	roles, bindings store.Digest
}

// Rules returns the compiled rules of a view. Views with equal rules share one
// set.
func (a *Authorizer) Rules(view *store.View) *rbac.Set {
	of := identity{view.AccessRevision(), view.Digest(resource.KindAccessRole), view.Digest(resource.KindAccessRoleBinding)}
	if c := a.rules.Load(); c != nil && c.of == of {
		return c.set
	}
	c := &compiled{of: of, set: rbac.Compile(view)}
	a.rules.Store(c)
	return c.set
}

// SubjectOf returns a principal as the subject of access rules.
func SubjectOf(p authn.Principal) rbac.Subject { return rbac.Subject{Name: p.Name, Groups: p.Groups} }

// caller returns the principal of a request, also as a subject.
func caller(ctx context.Context) (authn.Principal, rbac.Subject) {
	p := authn.PrincipalFrom(ctx)
	return p, SubjectOf(p)
}

// UnauthenticatedCanWrite reports whether any role is bound to clients without
// credentials.
func (a *Authorizer) UnauthenticatedCanWrite() bool {
	return len(a.Rules(a.view()).Held(SubjectOf(authn.Anonymous()))) > 0
}

// Permit is the state that a batch was decided on. The transaction that writes the
// batch carries it, and is refused when any of it has changed (§6.4).
type Permit struct {
	AccessRevision resource.Revision
	Preconditions  []store.Precondition
	// Warnings are for the author.
	Warnings []string
}

// Write decides whether the caller may make a batch of changes, on the current
// state. With force, an admin skips the privilege-escalation and last-admin checks,
// the one for foreign trust, and the one for a rotation that is under way.
//
// The error is an *rpcerr.Error: of code Denied with every access that is
// missing, of code NotFound for a deletion of a resource that does not exist, of
// code Invalid for a signing key that cannot be parsed. To choose the
// times of a resource, which decide ties, takes the right to write AccessRoles
// (§1.1).
func (a *Authorizer) Write(ctx context.Context, ops []store.Op, force bool) (Permit, error) {
	if err := checkKeys(ops); err != nil {
		return Permit{}, err
	}
	return a.decide(ctx, ops, func(who authn.Principal, rules *rbac.Set, view *store.View) error {
		if err := guardTimes(who, rules, ops); err != nil {
			return err
		}
		if err := a.checkOpen(who, rules, view, ops); err != nil {
			return err
		}
		if err := guard(who, rules, view, ops, force); err != nil {
			return err
		}
		if err := guardServers(who, view, ops, force); err != nil {
			return err
		}
		return guardTrust(who, view, ops, force)
	})
}

// WriteOwn decides whether the caller may store keys, tokens' records or
// revocations that this control plane has just made. No client knows the private
// halves of such keys, so they grant nothing.
func (a *Authorizer) WriteOwn(ctx context.Context, ops []store.Op) (Permit, error) {
	return a.decide(ctx, ops, func(authn.Principal, *rbac.Set, *store.View) error { return nil })
}

// decide checks the access to each change of a batch and then, where a change can
// grant rights, calls guard for the batch.
func (a *Authorizer) decide(ctx context.Context, ops []store.Op, guard func(authn.Principal, *rbac.Set, *store.View) error) (Permit, error) {
	view := a.view()
	rules := a.Rules(view)
	who, subject := caller(ctx)
	permit := Permit{AccessRevision: view.AccessRevision()}
	var denials []*rbac.Denial
	guarded := false
	for _, op := range ops {
		key := op.Key
		if op.Resource != nil {
			key = op.Resource.Key()
		}
		guarded = guarded || op.KeepTimes || rbac.Guarded(key) || carriesTrust(key)
		request, precondition, exists := requestFor(view, subject, key, op.Resource)
		if !exists && op.Resource == nil && a.ReadKey(ctx, key) == nil {
			return Permit{}, notThere(key)
		}
		permit.Preconditions = append(permit.Preconditions, precondition)
		d := rules.Check(request)
		if !d.Allowed {
			denials = append(denials, a.hideStored(ctx, rules, view, request, d.Denial))
			continue
		}
		if !exists && op.Resource == nil {
			return Permit{}, notThere(key)
		}
		authn.AddReason(ctx, d.By)
		if d.ByOld != nil {
			authn.AddReason(ctx, d.ByOld)
		}
	}
	if len(denials) > 0 {
		return Permit{}, denied(who, denials...)
	}
	if guarded {
		if err := guard(who, rules, view); err != nil {
			return Permit{}, err
		}
	}
	permit.Warnings = danglingRoles(view, ops)
	return permit, nil
}

// requestFor returns the access that a change needs, by what is stored, the
// precondition that this is still stored when it is written, and whether anything
// is.
func requestFor(view *store.View, subject rbac.Subject, key resource.Key, r *resource.Resource) (rbac.Request, store.Precondition, bool) {
	request := rbac.Request{Subject: subject, Access: resource.AccessCreate}
	precondition := store.Precondition{Key: key}
	stored, exists := view.Get(key)
	if exists {
		meta := stored.Meta()
		precondition.Version, precondition.Revision = meta.Version, meta.Revision
		request.Access, request.Old = resource.AccessUpdate, rbac.ObjectOf(stored)
	}
	if r != nil {
		request.New = rbac.ObjectOf(r)
		return request, precondition, exists
	}
	request.Access = resource.AccessDelete
	if !exists {
		request.Old = rbac.Object{Key: key}
	}
	return request, precondition, exists
}

// GenerateUserToken decides whether the caller may issue a token for a user of
// that name and groups: it takes the access, and all rights that the user would
// have.
func (a *Authorizer) GenerateUserToken(ctx context.Context, name string, groups []string, force bool) error {
	if err := a.generate(ctx, rbac.Request{Access: resource.AccessGenerateUserToken}); err != nil {
		return err
	}
	who, subject := caller(ctx)
	rules := a.Rules(a.view())
	user := authn.UserPrincipal(name, groups)
	return guardToken(who, rules.Excess(subject, rules.Entitled(SubjectOf(user))), user, force)
}

// GenerateDataplaneToken decides whether the caller may issue a token for
// dataplanes of a mesh with these tags.
func (a *Authorizer) GenerateDataplaneToken(ctx context.Context, token rbac.Token) error {
	return a.generate(ctx, rbac.Request{Access: resource.AccessGenerateDataplaneToken, Token: token})
}

// GenerateZoneToken decides whether the caller may issue a token by which a zone
// connects or, with a scope of its ingress or egress, one for those
// (§6.2).
func (a *Authorizer) GenerateZoneToken(ctx context.Context, scope ...string) error {
	for _, s := range scope {
		access := resource.AccessGenerateZoneToken
		if s == token.ScopeControlPlane {
			access = resource.AccessGenerateZoneCPToken
		}
		if err := a.generate(ctx, rbac.Request{Access: access}); err != nil {
			return err
		}
	}
	return nil
}

func (a *Authorizer) generate(ctx context.Context, request rbac.Request) error {
	var who authn.Principal
	who, request.Subject = caller(ctx)
	d := a.Rules(a.view()).Check(request)
	if !d.Allowed {
		return denied(who, d.Denial)
	}
	authn.AddReason(ctx, d.By)
	return nil
}

// RequireAdmin refuses callers who are not members of mesh-system:admin, for
// operations that no role grants (§6.2).
func (a *Authorizer) RequireAdmin(ctx context.Context) error {
	who, _ := caller(ctx)
	if who.In(authn.AdminGroup) {
		return nil
	}
	return deniedBecause(who, "missing: membership of group "+authn.AdminGroup)
}
