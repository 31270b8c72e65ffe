package token

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/commit/committest"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// put writes resources.
func put(t *testing.T, p *committest.Log, batch ...*resource.Resource) {
	t.Helper()
	txn := store.Txn{Time: now()}
	for _, r := range batch {
		txn.Ops = append(txn.Ops, store.Put(r))
	}
	_, err := p.Propose(t.Context(), txn)
	require.NoError(t, err)
}

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// newGlobal returns the ring of a global.
func newGlobal() (*Ring, *committest.Log) {
	p := committest.New(store.New(store.DefaultOptions()))
	return NewRing(RingConfig{Local: p.View, Now: now}), p
}

// newZone returns the ring of a zone of the global that p writes.
func newZone(name string, global *committest.Log) (*Ring, *committest.Log) {
	options := store.DefaultOptions()
	options.ExternalMeshes = true
	p := committest.New(store.New(options))
	return NewRing(RingConfig{Local: p.View, Global: global.View, Zone: name, Now: now}), p
}

func TestKeysAndTokenAreMadeOnce(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForUser, ForZone))
	token, revision := r.AdminToken(), p.Revision()
	require.NotEmpty(t, token)
	require.NoError(t, r.Ensure(t.Context(), p, ForUser, ForZone))
	require.Equal(t, token, r.AdminToken())
	require.Equal(t, revision, p.Revision(), "nothing is written the second time")

	admin, err := r.Verifier().User(token)
	require.NoError(t, err)
	require.Equal(t, AdminUser, admin.Name)
	require.Equal(t, []string{rbac.AdminGroup}, admin.Groups)
	issued := r.Issued("")
	require.Len(t, issued, 1)
	require.Equal(t, admin.ID, issued[0].ID)
	require.Equal(t, "2035-12-", issued[0].Expires[:8])
}

// An interrupted first start is completed by the next one, with keys that fit.
func TestInterruptedStartIsCompleted(t *testing.T) {
	for stop := 1; stop <= 3; stop++ {
		r, p := newGlobal()
		left := stop
		p.Before(func(store.Txn) error {
			if left--; left == 0 {
				return errors.New("stopped")
			}
			return nil
		})
		require.Error(t, r.Ensure(t.Context(), p, ForUser, ForZone))
		require.NoError(t, r.Ensure(t.Context(), p, ForUser, ForZone))
		_, err := r.Verifier().User(r.AdminToken())
		require.NoError(t, err, "stopped at write %d", stop)
	}
}

// §6.8: only public halves are published.
func TestPublishedKeysArePublicHalves(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForZone, ForUser))
	token, _, err := r.Issuer().Zone("east", []string{ScopeControlPlane}, time.Hour)
	require.NoError(t, err)
	var public []PublicKey
	for k := range p.View().List(resource.KindSigningKey, "") {
		d, ok := resource.Describe(k.Key().Kind)
		require.True(t, ok)
		require.True(t, d.Synced, "zones verify with it")
		id, err := ParseKeyID(k.Key().Name)
		require.NoError(t, err)
		der, err := base64.StdEncoding.DecodeString(k.Spec().(*resource.SigningKey).PublicKey)
		require.NoError(t, err)
		key, err := ParsePublicKey(id, der)
		require.NoError(t, err)
		public = append(public, key)
	}
	_, err = NewVerifier(now, public...).Zone(token, "east", ScopeControlPlane)
	require.NoError(t, err, "the published half verifies what the private one signed")
	for _, kind := range []resource.Kind{resource.KindGlobalSecret, resource.KindIssuedToken} {
		d, _ := resource.Describe(kind)
		require.False(t, d.Synced, "private halves and records never leave")
	}
}

// §6.8: a rotated key signs the next token, and all verify.
func TestRotation(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForUser))
	old := r.AdminToken()
	id, batch, err := r.Rotation(ForUser)
	require.NoError(t, err)
	require.Equal(t, "user-token-signing-key-2", id.String())
	require.Len(t, batch, 2, "both halves")
	put(t, p, batch...)
	fresh, issued, err := r.Issuer().User("bob", nil, time.Hour)
	require.NoError(t, err)
	require.Equal(t, uint64(2), issued.Key.Serial, "the highest serial signs")
	for _, raw := range []string{old, fresh} {
		_, err = r.Verifier().User(raw)
		require.NoError(t, err, "all verify")
	}
	_, err = p.Propose(t.Context(), store.Txn{Time: now(), Ops: []store.Op{
		store.Delete(resource.Key{Kind: resource.KindGlobalSecret, Name: "user-token-signing-key-1"}),
	}})
	require.NoError(t, err)
	_, err = r.Verifier().User(old)
	require.ErrorIs(t, err, ErrUnknownKey, "a key that is deleted takes its tokens with it")
}

// §6.8: a zone verifies the dataplane tokens of its global and its own,
// and nothing else of either.
func TestZonesVerifyTheGlobalsDataplaneTokens(t *testing.T) {
	global, written := newGlobal()
	require.NoError(t, global.Ensure(t.Context(), written, ForUser, ForZone, ForDataplane))
	east, eastWritten := newZone("east", written)
	require.NoError(t, east.Ensure(t.Context(), eastWritten, ForUser, ForDataplane))
	west, westWritten := newZone("west", written)
	require.NoError(t, west.Ensure(t.Context(), westWritten, ForUser, ForDataplane))
	require.Zero(t, eastWritten.View().Count(resource.KindSigningKey), "a zone publishes nothing")

	fromGlobal, token, err := global.Issuer().Dataplane("default", "web-1", nil, time.Hour)
	require.NoError(t, err)
	fromEast, _, err := east.Issuer().Dataplane("default", "web-1", nil, time.Hour)
	require.NoError(t, err)
	for _, r := range []*Ring{global, east, west} {
		_, err = r.Verifier().Verify(fromGlobal)
		require.NoError(t, err)
	}
	_, err = east.Verifier().Verify(fromEast)
	require.NoError(t, err)
	for _, r := range []*Ring{global, west} {
		_, err = r.Verifier().Verify(fromEast)
		require.ErrorIs(t, err, ErrUnknownKey, "a token of one zone is not valid elsewhere")
	}
	_, err = east.Verifier().Verify(global.AdminToken())
	require.ErrorIs(t, err, ErrUnknownKey, "the global's users are not the zone's")
	_, err = global.Verifier().Verify(east.AdminToken())
	require.ErrorIs(t, err, ErrUnknownKey)

	// The global's revocations hold in every zone.
	record, err := Record(token, "bob")
	require.NoError(t, err)
	revocation, err := global.Revocation(record.Spec().(*resource.IssuedToken), "lost")
	require.NoError(t, err)
	require.Equal(t, resource.KindTokenRevocation, revocation.Key().Kind)
	put(t, written, revocation)
	for _, r := range []*Ring{global, east, west} {
		_, err = r.Verifier().Verify(fromGlobal)
		require.ErrorIs(t, err, ErrRevoked)
	}
}

// A zone of a global owns no TokenRevocation (§1.3): it marks the
// record of its own token.
func TestAZoneRevokesItsOwnTokens(t *testing.T) {
	_, written := newGlobal()
	east, p := newZone("east", written)
	require.NoError(t, east.Ensure(t.Context(), p, ForUser, ForDataplane))
	raw, token, err := east.Issuer().Dataplane("default", "", map[string][]string{"kuma.io/service": {"web"}}, time.Hour)
	require.NoError(t, err)
	record, err := Record(token, "bob")
	require.NoError(t, err)
	put(t, p, record)
	verifier := east.Verifier()
	_, err = verifier.Verify(raw)
	require.NoError(t, err)

	_, spec, ok := east.Find(strings.ToUpper(token.ID))
	require.True(t, ok)
	marked, err := east.Revocation(spec, "lost")
	require.NoError(t, err)
	require.Equal(t, record.Key(), marked.Key())
	put(t, p, marked)
	_, err = verifier.Verify(raw)
	require.ErrorIs(t, err, ErrRevoked, "also with a verifier from before")
	issued := east.Issued(ForDataplane)
	require.Len(t, issued, 1)
	require.True(t, issued[0].RevokedNow)
	require.Equal(t, "default/*", issued[0].Subject)
	require.Equal(t, "bob", issued[0].Issuer)
	_, _, ok = east.Find("unknown")
	require.False(t, ok)
}

// The admin token of a release that kept no records is recorded, so that it can
// be revoked.
func TestOldAdminTokenIsRecorded(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForUser))
	issued := r.Issued("")
	_, err := p.Propose(t.Context(), store.Txn{Time: now(), Ops: []store.Op{store.Delete(issued[0].Resource.Key())}})
	require.NoError(t, err)
	require.NoError(t, r.Ensure(t.Context(), p, ForUser))
	again := r.Issued("")
	require.Len(t, again, 1)
	require.Equal(t, issued[0].ID, again[0].ID)
}

// One published key that is damaged refuses its own tokens only.
func TestDamagedPublishedKeyIsLeftOut(t *testing.T) {
	global, written := newGlobal()
	require.NoError(t, global.Ensure(t.Context(), written, ForUser, ForDataplane))
	raw, _, err := global.Issuer().Dataplane("default", "", nil, time.Hour)
	require.NoError(t, err)
	_, batch, err := global.Rotation(ForDataplane)
	require.NoError(t, err)
	renamed, err := build(resource.KindSigningKey, "dataplane-token-signing-key-9", *batch[1].Spec().(*resource.SigningKey))
	require.NoError(t, err)
	put(t, written, renamed)
	east, _ := newZone("east", written)
	_, err = east.Verifier().Verify(raw)
	require.NoError(t, err)
}

func TestExpiredRecordsArePruned(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForUser))
	past := NewIssuer(func() time.Time { return now().Add(-50 * time.Hour) }, mustKeys(t, p)...)
	var gone []resource.Key
	for _, validFor := range []time.Duration{time.Hour, 48 * time.Hour} {
		_, token, err := past.User("bob", nil, validFor)
		require.NoError(t, err)
		record, err := Record(token, "")
		require.NoError(t, err)
		revocation, err := r.Revocation(record.Spec().(*resource.IssuedToken), "")
		require.NoError(t, err)
		put(t, p, record, revocation)
		if validFor == time.Hour {
			gone = append(gone, record.Key(), revocation.Key())
		}
	}
	require.ElementsMatch(t, gone, r.Expired(), "a day after the token has expired")
}

// Revocations of dataplanes that proxies hold stay until a later one of their mesh takes
// their place: what proxies hold, and their connections with it, does not change by itself.
func TestRevocationsThatProxiesHoldAreKept(t *testing.T) {
	_, p := newGlobal()
	clock := now()
	r := NewRing(RingConfig{Local: p.View, Now: func() time.Time { return clock }})
	require.NoError(t, r.Ensure(t.Context(), p, ForUser, ForDataplane))
	revoke := func(mesh string) []resource.Key {
		_, token, err := r.Issuer().Dataplane(mesh, "web-1", nil, time.Hour)
		require.NoError(t, err)
		record, err := Record(token, "")
		require.NoError(t, err)
		revocation, err := r.Revocation(record.Spec().(*resource.IssuedToken), "")
		require.NoError(t, err)
		require.Equal(t, mesh, revocation.Meta().Labels[resource.TokenMeshLabel])
		_, err = p.Propose(t.Context(), store.Txn{Time: clock, Ops: []store.Op{store.Put(record), store.Put(revocation)}})
		require.NoError(t, err)
		return []resource.Key{record.Key(), revocation.Key()}
	}
	later := func() { clock = clock.Add(26 * time.Hour) }
	first := revoke("m")
	later()
	require.Equal(t, first[:1], r.Expired(), "the record of the token is of no use")
	other := revoke("n")
	require.Equal(t, first[:1], r.Expired(), "that is another mesh")
	next := revoke("m")
	require.ElementsMatch(t, first, r.Expired())
	later()
	require.ElementsMatch(t, []resource.Key{first[0], first[1], other[0], next[0]}, r.Expired())
}

func mustKeys(t *testing.T, p *committest.Log) []SigningKey {
	t.Helper()
	keys, err := privateKeys(p.View())
	require.NoError(t, err)
	return keys
}

func TestFollowersHearOfKeysAndRevocations(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForUser))
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan struct{}, 16)
	following := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		close(ready)
		following <- r.Follow(ctx, func() { heard <- struct{}{} }, p.Store)
	}()
	<-ready
	// The follower may have begun before or after any one write, so writes continue
	// until it has received one.
	for serial := 0; ; serial++ {
		_, batch, err := r.Rotation(ForUser)
		require.NoError(t, err)
		put(t, p, batch...)
		select {
		case <-heard:
		case <-time.After(10 * time.Millisecond):
			require.Less(t, serial, 1000)
			continue
		}
		break
	}
	cancel()
	require.NoError(t, <-following)
}

// A revocation that comes with a restored history ends streams at once, also
// where that history stands at a lower revision than the one before.
func TestFollowersHearOfARewoundStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		global, written := newGlobal()
		require.NoError(t, global.Ensure(t.Context(), written, ForUser, ForDataplane))
		replica := store.New(store.DefaultOptions())
		replica.Advance(5000)
		east, _ := newZone("east", committest.New(replica))
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan struct{}, 16)
		stopped := make(chan error)
		go func() { stopped <- east.Follow(ctx, func() { heard <- struct{}{} }, replica) }()
		synctest.Wait()
		var keys []*resource.Resource
		for k := range written.View().List(resource.KindSigningKey, "") {
			keys = append(keys, k)
		}
		require.NoError(t, replica.Reset(&store.Snapshot{Revision: 7, Resources: keys}))
		synctest.Wait()
		require.Len(t, heard, 1)
		cancel()
		require.NoError(t, <-stopped)
	})
}

// A secret that has the name of a key and cannot be parsed is reported, and refuses
// no token of another key.
func TestASecretThatIsNoKeyIsLeftOut(t *testing.T) {
	r, p := newGlobal()
	require.NoError(t, r.Ensure(t.Context(), p, ForUser))
	garbage, err := build(resource.KindGlobalSecret, "user-token-signing-key-9", resource.Secret{Data: "Z2FyYmFnZQ=="})
	require.NoError(t, err)
	put(t, p, garbage)
	_, err = r.Verifier().Verify(r.AdminToken())
	require.NoError(t, err)
	_, issued, err := r.Issuer().User("bob", nil, time.Hour)
	require.NoError(t, err)
	require.Equal(t, uint64(1), issued.Key.Serial, "the newest that there is signs")

	var log bytes.Buffer
	for range 3 {
		r.CurrentVerifier(slog.New(slog.NewTextHandler(&log, nil)))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "once is enough: %s", &log)
	require.Contains(t, log.String(), `GlobalSecret \"user-token-signing-key-9\" does not hold a signing key`)
}
