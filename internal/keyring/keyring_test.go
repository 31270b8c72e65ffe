package keyring

import (
	"context"
	"encoding/base64"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/auth"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// proposer applies to a store without a log.
type proposer struct {
	store *store.Store
	n     int
	// failAt makes one proposal fail as if the server had stopped there.
	failAt int
}

func (p *proposer) Propose(_ context.Context, txn store.Txn) (store.Result, error) {
	if p.n++; p.n == p.failAt {
		return store.Result{}, errors.New("stopped")
	}
	r := p.store.Apply(p.store.Revision()+1, txn)
	return r, r.Err
}

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func TestKeysAndTokenAreMadeOnce(t *testing.T) {
	p := &proposer{store: store.New(store.DefaultOptions())}
	r := New(p.store.View, now)
	require.NoError(t, r.Ensure(t.Context(), p, true, auth.UserToken, auth.ZoneToken))
	token, revision := r.AdminToken(), p.store.Revision()
	require.NotEmpty(t, token)
	require.NoError(t, r.Ensure(t.Context(), p, true, auth.UserToken, auth.ZoneToken))
	require.Equal(t, token, r.AdminToken())
	require.Equal(t, revision, p.store.Revision(), "nothing is written the second time")

	verifier, err := r.Verifier()
	require.NoError(t, err)
	admin, err := verifier.User(token)
	require.NoError(t, err)
	require.Equal(t, auth.AdminUser, admin.Name)
	require.Equal(t, []string{auth.AdminGroup}, admin.Groups)
}

// An interrupted first start is completed by the next one, with keys that fit.
func TestInterruptedStartIsCompleted(t *testing.T) {
	for stop := 1; stop <= 3; stop++ {
		p := &proposer{store: store.New(store.DefaultOptions()), failAt: stop}
		r := New(p.store.View, now)
		require.Error(t, r.Ensure(t.Context(), p, true, auth.UserToken, auth.ZoneToken))
		require.NoError(t, r.Ensure(t.Context(), p, true, auth.UserToken, auth.ZoneToken))
		verifier, err := r.Verifier()
		require.NoError(t, err)
		_, err = verifier.User(r.AdminToken())
		require.NoError(t, err, "stopped at write %d", stop)
	}
}

// SEMANTICS §6.8: only public halves are published.
func TestPublishedKeysArePublicHalves(t *testing.T) {
	p := &proposer{store: store.New(store.DefaultOptions())}
	r := New(p.store.View, now)
	require.NoError(t, r.Ensure(t.Context(), p, true, auth.ZoneToken, auth.UserToken))
	issuer, err := r.Issuer()
	require.NoError(t, err)
	token, _, err := issuer.Zone("east", []string{auth.ScopeControlPlane}, time.Hour)
	require.NoError(t, err)
	var public []auth.PublicKey
	for k := range p.store.View().List(kindSigningKey, "") {
		d, ok := resource.Describe(k.Key().Kind)
		require.True(t, ok)
		require.True(t, d.Synced, "zones verify with it")
		id, err := auth.ParseKeyID(k.Key().Name)
		require.NoError(t, err)
		der, err := base64.StdEncoding.DecodeString(k.Spec().(*resource.SigningKey).PublicKey)
		require.NoError(t, err)
		key, err := auth.ParsePublicKey(id, der)
		require.NoError(t, err)
		public = append(public, key)
	}
	_, err = auth.NewVerifier(now, public...).Zone(token, "east", auth.ScopeControlPlane)
	require.NoError(t, err, "the published half verifies what the private one signed")
	secret, _ := resource.Describe(kindSecret)
	require.False(t, secret.Synced, "private halves never leave")
}

// A key that is added takes effect on the next token.
func TestRingFollowsTheStore(t *testing.T) {
	p := &proposer{store: store.New(store.DefaultOptions())}
	r := New(p.store.View, now)
	require.NoError(t, r.Ensure(t.Context(), p, false, auth.UserToken))
	old := r.AdminToken()
	require.NoError(t, r.addKey(t.Context(), p, false, auth.KeyID{Use: auth.UserToken, Serial: 2}))
	issuer, err := r.Issuer()
	require.NoError(t, err)
	_, issued, err := issuer.User("bob", nil, time.Hour)
	require.NoError(t, err)
	require.Equal(t, uint64(2), issued.Key.Serial, "the highest serial signs")
	verifier, err := r.Verifier()
	require.NoError(t, err)
	_, err = verifier.User(old)
	require.NoError(t, err, "all verify")
}
