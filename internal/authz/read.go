package authz

import (
	"context"

	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ReadsAll reports whether the caller may read everything but secret material
// without having an access to it: an authenticated one may, unless reading is
// granted by roles alone (§6.1).
func (a *Authorizer) ReadsAll(ctx context.Context) bool {
	return !a.readGranted && authn.PrincipalFrom(ctx).Source != authn.FromNothing
}

// Read decides whether the caller may read a resource (§6.1). The error is an
// *rpcerr.Error of code Denied; it tells nothing of the content, nor whether there
// is such a resource.
func (a *Authorizer) Read(ctx context.Context, r *resource.Resource) error {
	return a.read(ctx, rbac.ObjectOf(r))
}

// ReadKey decides whether the caller may read a resource of which only the identity
// is known, whatever its content; without a name, every one of its kind and mesh.
func (a *Authorizer) ReadKey(ctx context.Context, key resource.Key) error {
	return a.read(ctx, rbac.Object{Key: key})
}

func (a *Authorizer) read(ctx context.Context, object rbac.Object) error {
	if object.Key == token.AdminTokenKey {
		return a.RequireAdmin(ctx)
	}
	sensitive := true
	if d, ok := resource.Describe(object.Key.Kind); ok {
		sensitive = d.Sensitive
	}
	if !sensitive && a.ReadsAll(ctx) {
		return nil
	}
	who, subject := caller(ctx)
	rules := a.Rules(a.view())
	if rules.Check(rbac.Request{Subject: subject, Access: resource.AccessRead, New: object}).Allowed {
		return nil
	}
	return deniedRead(who, rules, subject, object.Key, sensitive)
}

// CouldRead refuses callers who have no rule by which they could read any resource
// of a kind in a mesh, empty for any.
func (a *Authorizer) CouldRead(ctx context.Context, kind resource.Kind, mesh resource.MeshName) error {
	d, ok := resource.Describe(kind)
	if ok && !d.Sensitive && a.ReadsAll(ctx) {
		return nil
	}
	who, subject := caller(ctx)
	rules := a.Rules(a.view())
	if rules.CouldRead(subject, kind, mesh) {
		return nil
	}
	return deniedRead(who, rules, subject, resource.Key{Kind: kind, Mesh: mesh}, d != nil && d.Sensitive)
}

// ReadsMesh reports whether the caller may read everything in a mesh but secret
// material; for an empty mesh, everything in all of them and outside.
func (a *Authorizer) ReadsMesh(ctx context.Context, mesh resource.MeshName) bool {
	_, subject := caller(ctx)
	return a.ReadsAll(ctx) || a.Rules(a.view()).ReadsMesh(subject, mesh)
}

// deniedRead says what is missing and which rule came nearest, judged by the
// identity alone.
func deniedRead(who authn.Principal, rules *rbac.Set, subject rbac.Subject, key resource.Key, sensitive bool) error {
	request := rbac.Request{Subject: subject, Access: resource.AccessRead, New: rbac.Object{Key: key}}
	lines := []string(nil)
	if sensitive {
		request.Access, request.Old = resource.AccessUpdate, request.New
		lines = append(lines, "reading secret material takes write access to it")
	}
	if d := rules.Check(request).Denial; d != nil {
		d.Stored = false
		lines = append(lines, missingLines(d)...)
	}
	return deniedBecause(who, lines...)
}

// unseen reports whether the caller may not know whether there is a resource: there
// is one that it may not read, or none that it could read whatever its content.
func (a *Authorizer) unseen(ctx context.Context, view *store.View, key resource.Key) bool {
	if stored, there := view.Get(key); there {
		return a.Read(ctx, stored) != nil
	}
	return a.ReadKey(ctx, key) != nil
}

// hideStored takes from a denial what it tells of stored content that the caller
// may not read, and whether there is any: it is judged again by the identity alone,
// an update as if it created the resource.
func (a *Authorizer) hideStored(ctx context.Context, rules *rbac.Set, view *store.View, request rbac.Request, d *rbac.Denial) *rbac.Denial {
	key, deletion := request.New.Key, request.Access == resource.AccessDelete
	if deletion {
		key = request.Old.Key
	}
	if !a.unseen(ctx, view, key) {
		return d
	}
	if !deletion {
		creation := request
		creation.Access, creation.Old = resource.AccessCreate, rbac.Object{}
		if again := rules.Check(creation).Denial; again != nil {
			again.Unseen = true
			return again
		}
		// Who could create it learns that it exists, and nothing else of it.
	}
	request.Old = rbac.Object{Key: request.Old.Key}
	if again := rules.Check(request).Denial; again != nil {
		return again
	}
	return d
}
