package identities

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

const provided = resource.ProvidedAuthorityPrefix + "ours"

// provides has the mesh take the authority of a Secret.
func (z *zone) provides(secret string) {
	z.t.Helper()
	z.write(z.replica, resourcetest.Build(z.t, resource.KindMesh, "", "default", fmt.Sprintf(
		`{"mtls":{"enabledBackend":"ours","backends":[{"name":"ours","type":"provided","conf":{"cert":{"secret":%q},"key":{"secret":%q}},"dpCert":{"rotation":{"expiration":"1h"}}}]}}`, secret, secret)))
}

// secret stores what an operator has made, and returns it.
func (z *zone) secret(h *meshcatest.Holder) {
	z.t.Helper()
	z.write(z.local.Store, resourcetest.Build(z.t, resource.KindSecret, "default", provided,
		fmt.Sprintf(`{"data":%q}`, base64.StdEncoding.EncodeToString(append(h.KeyPEM(z.t), h.Certificate...)))))
}

// refused has the keeper issue nothing, and returns why.
func (z *zone) refused(k *Keeper) string {
	z.t.Helper()
	got, err := k.Issue(z.t.Context(), web, z.key, z.token)
	require.NoError(z.t, err)
	require.Empty(z.t, got.Certificate)
	require.Empty(z.t, got.Roots)
	_, made := z.stored()
	require.False(z.t, made)
	return got.Refused
}

// Certificates are those of the authority that a Secret of the zone holds; without one that
// can be used there are none, and the status and the agents are told why.
func TestAnAuthorityIsProvided(t *testing.T) {
	z := newZone(t)
	z.now = time.Now()
	k := z.keeper()
	z.provides("ours")
	require.Contains(t, z.refused(k), "whose name begins with certificate-authority.")
	z.provides(provided)
	require.Contains(t, z.refused(k), "there is no Secret certificate-authority.ours of mesh default in zone east: apply it on the zone")
	z.secret(meshcatest.Made(t, "other", nil))
	require.Contains(t, z.refused(k), "not constrained to the URIs of east.default")
	k.review(t.Context(), z)
	require.ErrorContains(t, k.Status()[0].Err, "not constrained")

	told := z.changed
	made := meshcatest.Made(t, "default", nil)
	z.secret(made)
	k.review(t.Context(), z)
	require.Greater(t, z.changed, told, "agents ask again")
	got, leaf := z.issue(k)
	require.Equal(t, made.Certificate, got.Roots)
	require.NoError(t, verify(made.Certificate, leaf, z.now))
	k.review(t.Context(), z)
	require.NoError(t, k.Status()[0].Err)
	require.Equal(t, made.Parsed(t).NotAfter, k.Status()[0].Expires)
	require.NotContains(t, z.log.String(), "PRIVATE")

	// It continues without the Secret, which is told.
	require.NoError(t, z.local.Apply(z.local.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(resource.Key{Kind: resource.KindSecret, Mesh: "default", Name: provided})}}).Err)
	k.review(t.Context(), z)
	require.ErrorContains(t, k.Status()[0].Err, "there is no Secret")
	_, leaf = z.issue(k)
	require.NoError(t, verify(made.Certificate, leaf, z.now))

	// An authority that has expired signs nothing.
	z.now = made.Parsed(t).NotAfter
	expired, err := k.Issue(t.Context(), web, z.key, z.token)
	require.NoError(t, err)
	require.Contains(t, expired.Refused, "expired")
}

// From the zone's own authority to one that is provided, to another one and back: each is
// published before it signs, and that of before is trusted until what it signed has ended.
func TestAProvidedAuthorityIsReplacedInSteps(t *testing.T) {
	z := newZone(t)
	z.now = time.Now()
	z.mesh("ours", "builtin", "1h")
	k := z.keeper()
	before, old := z.issue(k)
	for what, change := range []func(){
		func() { z.secret(meshcatest.Made(t, "default", nil)); z.provides(provided) },
		func() { z.secret(meshcatest.Made(t, "default", nil)) },
		func() { z.mesh("ours", "builtin", "1h") },
	} {
		z.trusted = before.Stamp
		change()
		k.review(context.Background(), z)
		published, leaf := z.issue(k)
		require.True(t, bytes.HasPrefix(published.Roots, before.Roots), what)
		require.Greater(t, len(published.Roots), len(before.Roots), what)
		require.NoError(t, verify(before.Roots, leaf, z.now), "%d: the last one signs", what)
		k.review(context.Background(), z)
		_, leaf = z.issue(k)
		require.NoError(t, verify(before.Roots, leaf, z.now), "%d: the next one is not acknowledged", what)
		z.trusted = published.Stamp
		k.review(context.Background(), z)
		signing, leaf := z.issue(k)
		require.Error(t, verify(before.Roots, leaf, z.now), "%d: the next one signs", what)
		require.NoError(t, verify(published.Roots, leaf, z.now), what)
		require.NoError(t, verify(signing.Roots, old, z.now), what)
		z.now = z.now.Add(time.Hour)
		k.review(context.Background(), z)
		before, old = z.issue(k)
		require.Less(t, len(before.Roots), len(signing.Roots), what)
	}
}
