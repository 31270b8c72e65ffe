package access_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/past"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/access"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// TestCanIThen: a question about an earlier state is decided by its roles and bindings,
// and who may ask it by those of now.
func TestCanIThen(t *testing.T) {
	p := authztest.New(t, &authz.Defaults{Restricted: true})
	p.Seed(`type: AccessRole
name: writers
rules: [{types: [Timeout], access: [UPDATE]}]
---
type: AccessRoleBinding
name: bob
subjects: [{type: User, name: bob}]
roles: [writers]
`)
	then := p.Store.Revision()
	p.Remove(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "bob"})
	s := access.New(p.Authorizer, p.Log.Read, turns.NewServer())
	ask := func(ctx context.Context, at resource.Revision) (*meridianv1.CanIResponse, error) {
		req := &meridianv1.CanIRequest{Access: "UPDATE", Key: &meridianv1.ResourceKey{Kind: "Timeout", Mesh: "default", Name: "web"}, AsUser: "bob"}
		if at != 0 {
			req.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(at)}}
		}
		return s.Decide(ctx, req)
	}
	_, err := ask(authztest.Admin(), then)
	require.Equal(t, rpcerr.Unsupported, rpcerr.CodeOf(err))
	s.ReadPast(func(ctx context.Context, at *meridianv1.PointInTime) (*store.Past, error) {
		return past.Read(ctx, p.Store, at, p.Now())
	})
	now, err := ask(authztest.Admin(), 0)
	require.NoError(t, err)
	require.False(t, now.GetAllowed())
	require.Zero(t, now.GetAtRevision())
	before, err := ask(authztest.Admin(), then)
	require.NoError(t, err)
	require.True(t, before.GetAllowed())
	require.Equal(t, uint64(then), before.GetAtRevision())
	_, err = ask(authztest.Anonymous(), then)
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
}
