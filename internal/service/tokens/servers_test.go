package tokens

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

func newServerFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, nil)
	require.NoError(t, f.ring.Ensure(t.Context(), f.writer, token.ForServer))
	f.cfg.Uses = append(f.cfg.Uses, token.ForServer)
	return f
}

func (f *fixture) serverToken() token.Token {
	f.t.Helper()
	raw, err := f.Server(admin(f.t), hour)
	require.NoError(f.t, err)
	issued, err := f.verify(raw)
	require.NoError(f.t, err)
	require.Equal(f.t, token.ForServer, issued.Key.Use)
	require.Equal(f.t, "server", issued.Subject())
	return issued
}

// §6.2: a server token takes membership of mesh-system:admin, which no
// role gives.
func TestServerTokensAreForAdmins(t *testing.T) {
	f := newServerFixture(t)
	f.grant("bob", `{"access": ["CREATE", "UPDATE", "DELETE", "GENERATE_USER_TOKEN", "GENERATE_DATAPLANE_TOKEN", "GENERATE_ZONE_CP_TOKEN", "GENERATE_ZONE_TOKEN"]}`)
	_, err := f.Server(as(t, "bob"), hour)
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
	require.ErrorContains(t, err, "missing: membership of group mesh-system:admin")
	require.Empty(t, f.list("server-token"))
	_, err = f.Server(admin(t), 0)
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
	issued := f.serverToken()
	listed := f.list("server-token")
	require.Len(t, listed, 1)
	require.Equal(t, issued.ID, listed[0].GetId())
	require.Equal(t, "server", listed[0].GetSubject())
	require.Equal(t, "active", listed[0].GetState())
	require.Equal(t, "admin", listed[0].GetIssuer())
}

// One server joins by a server token. The same attempt may be repeated; no other
// attempt succeeds, not even of the same server.
func TestServerTokenIsGoodOnce(t *testing.T) {
	f := newServerFixture(t)
	issued := f.serverToken()
	require.NoError(t, f.UseUp(t.Context(), issued, "r1", "second"))
	revision := f.store.Revision()
	require.NoError(t, f.UseUp(t.Context(), issued, "r1", "second"), "an answer can be lost")
	require.Equal(t, revision, f.store.Revision())
	for _, other := range [][2]string{{"r2", "second"}, {"r1", "third"}, {"r2", "third"}} {
		err := f.UseUp(t.Context(), issued, other[0], other[1])
		require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
		require.True(t, rpcerr.HasReason(err, ReasonTokenUsed))
		require.ErrorContains(t, err, `was used up by server "second" on 2026-01-01T00:00:0`)
	}
	listed := f.list("server-token")
	require.Equal(t, "used", listed[0].GetState())
	require.Equal(t, "second", listed[0].GetUsedBy())
	require.NoError(t, f.UseUp(t.Context(), f.serverToken(), "r2", "third"), "another token lets another server in")
}

// Of two servers with one token, the first to write joins.
func TestServerTokenLetsOneOfTwoIn(t *testing.T) {
	f := newServerFixture(t)
	issued := f.serverToken()
	f.writer.Once(func() { require.NoError(t, f.UseUp(t.Context(), issued, "r2", "third")) })
	err := f.UseUp(t.Context(), issued, "r1", "second")
	require.True(t, rpcerr.HasReason(err, ReasonTokenUsed))
	require.ErrorContains(t, err, `"third"`)
}

// A token that was revoked, whose key is gone, that has expired or that is not on
// record is refused, although it verified at first.
func TestServerTokenIsLookedAtAgain(t *testing.T) {
	f := newServerFixture(t)
	issued := f.serverToken()
	_, err := f.RevokeToken(admin(t), &meridianv1.RevokeTokenRequest{Id: issued.ID, RequestId: "revoke"})
	require.NoError(t, err)
	err = f.UseUp(t.Context(), issued, "r1", "second")
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(err))
	require.ErrorIs(t, err, token.ErrRevoked)

	issued = f.serverToken()
	f.clock = f.clock.Add(time.Hour)
	require.ErrorIs(t, f.UseUp(t.Context(), issued, "r1", "second"), token.ErrExpired)
	f.clock = f.clock.Add(-time.Hour)

	record := resource.Key{Kind: resource.KindIssuedToken, Name: issued.ID}
	require.NoError(t, f.store.Apply(f.store.Revision()+1, store.Txn{Time: f.clock, Ops: []store.Op{store.Delete(record)}}).Err)
	err = f.UseUp(t.Context(), issued, "r1", "second")
	require.True(t, rpcerr.HasReason(err, ReasonTokenUnrecorded))

	// The record of a token of another kind is none.
	user, err := f.GenerateUserToken(admin(t), &meridianv1.GenerateUserTokenRequest{Name: "bob", ValidForSeconds: hour})
	require.NoError(t, err)
	issued.ID = user.GetId()
	require.True(t, rpcerr.HasReason(f.UseUp(t.Context(), issued, "r1", "second"), ReasonTokenUnrecorded))
}

// A write whose outcome is unknown has let the server in or not; asking again by
// the same attempt tells.
func TestServerTokenWithAnUnknownOutcome(t *testing.T) {
	f := newServerFixture(t)
	issued := f.serverToken()
	f.writer.Answer(func(r store.Result) error { return errors.Join(r.Err, consensus.ErrUnknownOutcome) })
	err := f.UseUp(t.Context(), issued, "r1", "second")
	require.True(t, rpcerr.HasReason(err, "OUTCOME_UNKNOWN"))
	require.Equal(t, rpcerr.EffectUnknown, rpcerr.EffectOf(err))
	f.writer.Answer(nil)
	require.NoError(t, f.UseUp(t.Context(), issued, "r1", "second"))
	require.True(t, rpcerr.HasReason(f.UseUp(t.Context(), issued, "r2", "third"), ReasonTokenUsed))
}
