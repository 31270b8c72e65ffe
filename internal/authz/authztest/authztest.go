// Package authztest is a control plane without a log for tests: a store that is
// written to directly, and the authorizer that decides by it.
package authztest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// Plane is a control plane without a log: a store that is written to directly.
type Plane struct {
	t *testing.T
	*store.Store
	*authz.Authorizer
	// Log writes to the store.
	Log *committest.Log
}

// New returns a plane with two meshes and, unless d is nil, the default roles
// and bindings.
func New(t *testing.T, d *authz.Defaults) *Plane {
	t.Helper()
	s := store.New(store.DefaultOptions())
	p := &Plane{t: t, Store: s, Authorizer: authz.New(s.View), Log: committest.New(s)}
	p.Seed("type: Mesh\nname: default\n---\ntype: Mesh\nname: demo\n")
	if d != nil {
		require.NoError(t, d.Ensure(t.Context(), s.View, p.Log, p.Now))
	}
	return p
}

// Now is a fixed time.
func (p *Plane) Now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// Ops returns the operations that store documents.
func Ops(t *testing.T, text string) []store.Op {
	t.Helper()
	documents, err := resource.Decode("test.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(t, err)
	var ops []store.Op
	for _, d := range documents {
		ops = append(ops, store.Put(d.Resource))
	}
	return ops
}

// Seed stores documents without authorization.
func (p *Plane) Seed(text string) {
	p.t.Helper()
	require.NoError(p.t, p.Apply(p.Store.Revision()+1, store.Txn{Ops: Ops(p.t, text)}).Err)
}

// Remove deletes resources without authorization.
func (p *Plane) Remove(keys ...resource.Key) {
	p.t.Helper()
	var ops []store.Op
	for _, k := range keys {
		ops = append(ops, store.Delete(k))
	}
	require.NoError(p.t, p.Apply(p.Store.Revision()+1, store.Txn{Ops: ops}).Err)
}

// As returns the context of a request by a user.
func As(name string, groups ...string) context.Context {
	return authn.WithPrincipal(context.Background(), authn.UserPrincipal(name, groups))
}

// Anonymous returns the context of a request without credentials.
func Anonymous() context.Context { return authn.WithPrincipal(context.Background(), authn.Anonymous()) }

// Admin returns the context of a request by the local administrator.
func Admin() context.Context {
	return authn.WithPrincipal(context.Background(), authn.LoopbackAdmin())
}

// May authorizes a batch and returns the reason of a denial.
func (p *Plane) May(ctx context.Context, text string, force ...bool) error {
	p.t.Helper()
	_, err := p.Write(ctx, Ops(p.t, text), len(force) > 0)
	return err
}

// RequireDenied fails the test unless err is a denial with the given reason whose
// message contains the given texts.
func RequireDenied(t *testing.T, err error, reason string, contains ...string) {
	t.Helper()
	var e *rpcerr.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, rpcerr.Denied, e.Code)
	require.Equal(t, reason, e.Reason, e.Message)
	for _, text := range contains {
		require.Contains(t, e.Message, text)
	}
}

// The resources that authz.Defaults creates.
var (
	RoleAdmin      = resource.Key{Kind: resource.KindAccessRole, Name: "admin"}
	BindingDefault = resource.Key{Kind: resource.KindAccessRoleBinding, Name: "default"}
)

// RestrictedBinding limits the default binding to administrators.
const RestrictedBinding = `
type: AccessRoleBinding
name: default
subjects: [{type: Group, name: "mesh-system:admin"}]
roles: [admin]
`

// BackendOwner is a role whose members may permit traffic to the backend service,
// and its binding.
const BackendOwner = `
type: AccessRole
name: backend-owner
rules:
- types: ["TrafficPermission"]
  mesh: default
  access: ["CREATE", "UPDATE", "DELETE"]
  when:
  - destinations:
      match:
        kuma.io/service: backend
---
type: AccessRoleBinding
name: backend-owners
subjects:
- type: User
  name: backend-owner
roles:
- backend-owner
`

// Permission returns a TrafficPermission from web to a destination.
func Permission(destination string) string {
	return fmt.Sprintf(`
type: TrafficPermission
mesh: default
name: web-to-backend
sources:
- match:
    kuma.io/service: web
destinations:
- match:
    kuma.io/service: %s
`, destination)
}

// Delegates may write rules, and little else that they could give.
const Delegates = `
type: AccessRole
name: delegate
rules: [{types: [AccessRole, AccessRoleBinding], access: [CREATE, UPDATE, DELETE]}, {mesh: demo, access: [CREATE, UPDATE]}]
---
type: AccessRoleBinding
name: delegates
subjects: [{type: User, name: ann}]
roles: [delegate]
`
