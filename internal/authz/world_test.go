package authz

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// plane is a control plane without a log: a store that is written to directly.
type plane struct {
	t *testing.T
	*store.Store
	*Authorizer
	log *committest.Log
}

func newPlane(t *testing.T, d *Defaults) *plane {
	t.Helper()
	s := store.New(store.DefaultOptions())
	p := &plane{t: t, Store: s, Authorizer: New(s.View), log: committest.New(s)}
	p.write("type: Mesh\nname: default\n---\ntype: Mesh\nname: demo\n")
	if d != nil {
		require.NoError(t, d.Ensure(t.Context(), s.View, p.log, p.now))
	}
	return p
}

func (p *plane) now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func documentsOf(t *testing.T, text string) []store.Op {
	t.Helper()
	documents, err := resource.Decode("test.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(t, err)
	var ops []store.Op
	for _, d := range documents {
		ops = append(ops, store.Put(d.Resource))
	}
	return ops
}

// write stores documents without asking anybody.
func (p *plane) write(text string) {
	p.t.Helper()
	require.NoError(p.t, p.Apply(p.Store.Revision()+1, store.Txn{Ops: documentsOf(p.t, text)}).Err)
}

func (p *plane) remove(keys ...resource.Key) {
	p.t.Helper()
	var ops []store.Op
	for _, k := range keys {
		ops = append(ops, store.Delete(k))
	}
	require.NoError(p.t, p.Apply(p.Store.Revision()+1, store.Txn{Ops: ops}).Err)
}

// as is a request's context.
func as(name string, groups ...string) context.Context {
	return authn.WithPrincipal(context.Background(), authn.UserPrincipal(name, groups))
}

func anonymous() context.Context { return authn.WithPrincipal(context.Background(), authn.Anonymous()) }

func admin() context.Context {
	return authn.WithPrincipal(context.Background(), authn.LoopbackAdmin())
}

// may decides a batch and returns why not.
func (p *plane) may(ctx context.Context, text string, force ...bool) error {
	p.t.Helper()
	_, err := p.Write(ctx, documentsOf(p.t, text), len(force) > 0)
	return err
}

func requireDenied(t *testing.T, err error, reason string, contains ...string) {
	t.Helper()
	var e *rpcerr.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, rpcerr.Denied, e.Code)
	require.Equal(t, reason, e.Reason, e.Message)
	for _, text := range contains {
		require.Contains(t, e.Message, text)
	}
}

var (
	roleAdmin      = resource.Key{Kind: "AccessRole", Name: "admin"}
	bindingDefault = resource.Key{Kind: "AccessRoleBinding", Name: "default"}
)

const restricted = `
type: AccessRoleBinding
name: default
subjects: [{type: Group, name: "mesh-system:admin"}]
roles: [admin]
`

const backendOwner = `
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

// permission is the policy of the walk-through, to some destination.
func permission(destination string) string {
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
