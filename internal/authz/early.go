package authz

import (
	"context"

	"meridian/internal/authn"
	"meridian/internal/doctree"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Early refuses a batch of which only the identities are known, before anything
// of its content is looked at: where no rule of the caller could grant the change
// of one of them, whatever the content. Kinds may be spelled as users do; a kind
// that does not exist is left to those who may write anything at all. Early grants
// nothing: Write decides.
//
// The error is an *rpcerr.Error of code Denied, by the state that this server has
// applied: it is final on the newest state only.
func (a *Authorizer) Early(ctx context.Context, deletion bool, keys ...resource.Key) error {
	view := a.view()
	rules := a.Rules(view)
	who, subject := caller(ctx)
	var denials []*rbac.Denial
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		access, known := earlyAccess(view, key, deletion)
		if rules.Could(subject, access, known) {
			continue
		}
		unseen := !deletion && known.Key.Kind != "" && a.unseen(ctx, view, known.Key)
		if unseen {
			// Whether it is created or updated is decided with the content.
			if access = resource.AccessCreate; rules.Could(subject, access, known) {
				continue
			}
		}
		if len(denials) == maxDenials {
			denials = append(denials, nil) // counted only
			continue
		}
		d := rules.Refusal(subject, access, known)
		d.Unseen = unseen
		if known.Key.Kind == "" {
			d.Object = key
		}
		d.Object = clipped(d.Object)
		denials = append(denials, d)
	}
	if len(denials) == 0 {
		return nil
	}
	return denied(who, denials...)
}

// clipped shortens what cannot be part of an identity.
func clipped(key resource.Key) resource.Key {
	clip := func(text string) string {
		if resource.CheckName(text) == nil {
			return text
		}
		return doctree.Clip(text)
	}
	return resource.Key{Kind: resource.Kind(doctree.Clip(string(key.Kind))), Mesh: resource.MeshName(clip(string(key.Mesh))), Name: clip(key.Name)}
}

// earlyAccess returns the access that a change of a resource takes, and what is
// known of it.
func earlyAccess(view *store.View, key resource.Key, deletion bool) (resource.Access, rbac.Known) {
	access := resource.AccessCreate
	if deletion {
		access = resource.AccessDelete
	}
	d, ok := resource.Lookup(string(key.Kind))
	if !ok {
		return access, rbac.Known{}
	}
	key.Kind = d.Kind
	if d.Scope == resource.GlobalScoped {
		key.Mesh = ""
	}
	if _, exists := view.Get(key); exists && !deletion {
		access = resource.AccessUpdate
	}
	return access, rbac.Known{Key: key}
}

// EarlyToken is Early for a request for a token; mesh is that of a dataplane
// token.
func (a *Authorizer) EarlyToken(ctx context.Context, access resource.Access, mesh resource.MeshName) error {
	who, subject := caller(ctx)
	rules := a.Rules(a.view())
	known := rbac.Known{Key: resource.Key{Mesh: mesh}}
	if rules.Could(subject, access, known) {
		return nil
	}
	return denied(who, rules.Refusal(subject, access, known))
}

// EarlyReview is Early for an object of Kubernetes: of its resource the kind is
// known. The name may come to include a namespace, and the mesh stands in the
// object; the name that the key has is for the message.
func (a *Authorizer) EarlyReview(ctx context.Context, access resource.Access, key resource.Key) error {
	who, subject := caller(ctx)
	rules := a.Rules(a.view())
	known := rbac.Known{Key: resource.Key{Kind: key.Kind}, AnyMesh: true}
	if rules.Could(subject, access, known) {
		return nil
	}
	d := rules.Refusal(subject, access, known)
	d.Object = clipped(key)
	return denied(who, d)
}

// Unauthenticated refuses callers without credentials where no role is bound to
// them. They are told so before anything that they send is read.
//
// The error is an *rpcerr.Error of code Denied, as that of Early.
func (a *Authorizer) Unauthenticated(p authn.Principal) error {
	if p.Source != authn.FromNothing || a.UnauthenticatedCanWrite() {
		return nil
	}
	return deniedBecause(p, "no role is bound to callers without credentials: present a token")
}
