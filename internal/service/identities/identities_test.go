package identities

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/commit/committest"
	"meridian/internal/identity"
	"meridian/internal/meshca"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

var web = policy.DataplaneKey("default", "web-1")

// zone is a zone with a mesh and the dataplane web-1, and those who have identities there.
type zone struct {
	t       *testing.T
	replica *store.Store
	local   *committest.Log
	now     time.Time
	log     bytes.Buffer
	key     *ecdsa.PublicKey
	token   token.Token

	// trusted is the stamp that every proxy has acknowledged; the others are away.
	trusted string
	// elsewhere is Config.Elsewhere.
	elsewhere func(context.Context, resource.MeshName, string) (Waiting, time.Time, bool)
	// undenied is how many certificates of revoked tokens servers accept.
	undenied int
	// changed counts how often proxies were told of other identities.
	changed int
}

func newZone(t *testing.T) *zone {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	z := &zone{
		t: t, replica: store.New(store.DefaultOptions()), now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), key: &key.PublicKey,
		local: committest.New(store.New(store.Options{ExternalMeshes: true, History: store.DefaultOptions().History})),
	}
	z.dataplane(`"version":"v1"`)
	return z
}

func (z *zone) IdentitiesChanged(resource.MeshName) { z.changed++ }

func (z *zone) Unacknowledged(_ resource.MeshName, stamp string) Waiting {
	if stamp == z.trusted {
		return Waiting{}
	}
	return Waiting{Connected: 2, Away: 1}
}

// keeper returns a keeper of the zone, as it is after a start.
func (z *zone) keeper() *Keeper {
	return New(Config{
		Zone: "east", View: func() store.Reader { return store.Union(z.replica.View(), z.local.View()) }, Stores: []*store.Store{z.replica, z.local.Store},
		Local: z.local.Store, Writer: z.local, Elsewhere: z.elsewhere, Undenied: func(resource.MeshName) int { return z.undenied }, Now: func() time.Time { return z.now }, Log: slog.New(slog.NewTextHandler(&z.log, nil)),
	})
}

// mesh writes the mesh; a mesh without a backend has no mutual TLS.
func (z *zone) mesh(backend, kind, lifetime string) {
	z.t.Helper()
	spec := "{}"
	if backend != "" {
		spec = fmt.Sprintf(`{"mtls":{"enabledBackend":%q,"backends":[{"name":%q,"type":%q,"dpCert":{"rotation":{"expiration":%q}}}]}}`, backend, backend, kind, lifetime)
	}
	z.write(z.replica, resourcetest.Build(z.t, resource.KindMesh, "", "default", spec))
}

func (z *zone) dataplane(tag string) {
	z.t.Helper()
	z.write(z.local.Store, resourcetest.Build(z.t, resource.KindDataplane, "default", "web-1",
		`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"web","kuma.io/zone":"east",`+tag+`}}]}}`))
}

func (z *zone) write(s *store.Store, r *resource.Resource) {
	z.t.Helper()
	require.NoError(z.t, s.Apply(s.Revision()+1, store.Txn{Ops: []store.Op{store.Put(r)}}).Err)
}

// issue has the keeper issue an identity with a certificate, which it returns too.
func (z *zone) issue(k *Keeper) (Identity, *x509.Certificate) {
	z.t.Helper()
	got, err := k.Issue(z.t.Context(), web, z.key, z.token)
	require.NoError(z.t, err)
	require.Empty(z.t, got.Refused)
	block, _ := pem.Decode(got.Certificate)
	require.NotNil(z.t, block)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(z.t, err)
	require.True(z.t, z.key.Equal(leaf.PublicKey))
	require.NoError(z.t, verify(got.Roots, leaf, z.now))
	return got, leaf
}

func verify(roots []byte, leaf *x509.Certificate, now time.Time) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// stored is the mesh's authority as the zone stores it.
func (z *zone) stored() (*resource.Resource, bool) {
	return z.local.View().Get(token.MeshAuthorityKey("default"))
}

func TestWhoGetsNoCertificate(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(*zone)
		refused string
	}{
		"a mesh that does not exist":  {func(*zone) {}, ""},
		"a mesh without mutual TLS":   {func(z *zone) { z.mesh("", "", "") }, ""},
		"a backend of another type":   {func(z *zone) { z.mesh("ca", "vault", "1h") }, "zones issue certificates of types builtin and provided only"},
		"a dataplane that is deleted": {func(z *zone) { z.mesh("ca", "builtin", "1h"); z.deleteDataplane() }, "the dataplane was deleted"},
		"a dataplane without a zone": {func(z *zone) {
			z.mesh("ca", "builtin", "1h")
			z.write(z.local.Store, resourcetest.Build(z.t, resource.KindDataplane, "default", "web-1",
				`{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"web"}}]}}`))
		}, "kuma.io/zone"},
	} {
		z := newZone(t)
		c.prepare(z)
		got, err := z.keeper().Issue(t.Context(), web, z.key, z.token)
		require.NoError(t, err, what)
		require.Empty(t, got.Certificate, what)
		require.Empty(t, got.Roots, what)
		require.Contains(t, got.Refused, c.refused, what)
		require.Equal(t, c.refused == "", got.Refused == "", what)
		_, made := z.stored()
		require.False(t, made, what)
	}
}

func (z *zone) deleteDataplane() {
	z.t.Helper()
	require.NoError(z.t, z.local.Apply(z.local.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(web)}}).Err)
}

// A certificate names the dataplane as it is stored, by an authority that is made once and
// outlasts the keeper.
// An identity says whether the mesh accepts plaintext, also one without a certificate, and
// proxies are told when that changes.
func TestWherePlaintextIsAccepted(t *testing.T) {
	z := newZone(t)
	z.dataplane(`"kuma.io/protocol":"http"`)
	k := z.keeper()
	for i, c := range []struct {
		kind, mode string
		plaintext  bool
	}{{"builtin", "PERMISSIVE", true}, {"builtin", "STRICT", false}, {"vault", "PERMISSIVE", true}, {"vault", "STRICT", false}} {
		z.write(z.replica, resourcetest.Build(t, resource.KindMesh, "", "default",
			fmt.Sprintf(`{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":%q,"mode":%q}]}}`, c.kind, c.mode)))
		got, err := k.Issue(t.Context(), web, z.key, z.token)
		require.NoError(t, err)
		require.Equal(t, c.plaintext, got.Plaintext)
		require.Equal(t, c.kind == "builtin", got.Refused == "")
		k.review(t.Context(), z)
		require.Equal(t, i+1, z.changed)
		k.review(t.Context(), z)
		require.Equal(t, i+1, z.changed, "nothing is new")
	}
	z.mesh("", "", "")
	got, err := k.Issue(t.Context(), web, z.key, z.token)
	require.NoError(t, err)
	require.False(t, got.Plaintext)
}

func TestACertificateNamesWhatIsStored(t *testing.T) {
	z := newZone(t)
	z.mesh("ca", "builtin", "1h")
	first, leaf := z.issue(z.keeper())
	credential := identity.Credential(z.token.ID)
	require.Equal(t, "spiffe://east.default/dp/web-1/by/"+credential+"/_/kuma.io_2Fservice/web/version/v1", leaf.URIs[0].String())
	require.Equal(t, z.now.Add(time.Hour), leaf.NotAfter)
	z.dataplane(`"version":"v2"`)
	second, leaf := z.issue(z.keeper())
	require.Equal(t, "spiffe://east.default/dp/web-1/by/"+credential+"/_/kuma.io_2Fservice/web/version/v2", leaf.URIs[0].String())
	require.Equal(t, first.Roots, second.Roots)
	require.Equal(t, first.Stamp, second.Stamp)

	// A longer lifetime is stored before anything is signed for it: how long the next root
	// is waited for depends on it.
	z.mesh("ca", "builtin", "48h")
	third, leaf := z.issue(z.keeper())
	require.Equal(t, z.now.Add(48*time.Hour), leaf.NotAfter)
	require.Equal(t, first.Roots, third.Roots)
	require.NotEqual(t, first.Stamp, third.Stamp)
	r, ok := z.stored()
	require.True(t, ok)
	authority, err := meshca.Parse("east", "default", r.Spec().(*resource.Secret).Bytes())
	require.NoError(t, err)
	require.Equal(t, 48*time.Hour, authority.Status()[0].Longest)
	require.NotContains(t, z.log.String(), "PRIVATE")
}

// A certificate ends while a revocation of the token that it was issued on is still known.
func TestACertificateEndsAfterItsToken(t *testing.T) {
	z := newZone(t)
	z.mesh("ca", "builtin", "240h")
	z.token = token.Token{ID: "one", Expires: z.now.Add(time.Hour)}
	_, leaf := z.issue(z.keeper())
	require.Equal(t, z.now.Add(time.Hour+identity.KeptFor), leaf.NotAfter)
	z.token = token.Token{ID: "two", Expires: z.now.Add(1000 * time.Hour)}
	_, leaf = z.issue(z.keeper())
	require.Equal(t, z.now.Add(240*time.Hour), leaf.NotAfter)
}

// Who keeps the identities of a mesh tells of revoked ones that are accepted, once.
func TestRevokedIdentitiesThatAreAcceptedAreLogged(t *testing.T) {
	z := newZone(t)
	z.mesh("ca", "builtin", "1h")
	k := z.keeper()
	const line = "more tokens of a mesh are revoked than its servers deny"
	for i, left := range []int{0, 3, 3, 2, 3} {
		z.undenied = left
		k.review(t.Context(), z)
		require.Equal(t, []int{0, 1, 1, 1, 2}[i], strings.Count(z.log.String(), line))
	}
	require.Contains(t, z.log.String(), "mesh=default denied=2000 accepted=3")
}

// An authority that could not be stored signs nothing, and one that another zone made is
// not used, nor replaced.
func TestAnAuthorityThatCannotBeUsed(t *testing.T) {
	z := newZone(t)
	z.mesh("ca", "builtin", "1h")
	k := z.keeper()
	broken := errors.New("the disk is full")
	z.local.Fail(broken)
	got, err := k.Issue(t.Context(), web, z.key, z.token)
	require.ErrorIs(t, err, broken)
	require.Empty(t, got)
	z.local.Fail(nil)
	first, _ := z.issue(k)

	foreign, err := meshca.New("west", "default", "ca", z.now)
	require.NoError(t, err)
	data, err := foreign.WithLongest(time.Hour).Marshal()
	require.NoError(t, err)
	secret := resourcetest.Build(t, resource.KindGlobalSecret, "", token.MeshAuthorityKey("default").Name, fmt.Sprintf(`{"data":%q}`, base64.StdEncoding.EncodeToString(data)))
	z.write(z.local.Store, secret)
	got, err = k.Issue(t.Context(), web, z.key, z.token)
	require.NoError(t, err, "the agent is told, and stays registered")
	require.Contains(t, got.Refused, "another zone or mesh")
	require.Empty(t, got.Certificate)
	require.Empty(t, got.Roots)
	k.review(t.Context(), z)
	require.Contains(t, z.log.String(), "a certificate authority cannot be used")
	r, _ := z.stored()
	require.Equal(t, secret.Spec(), r.Spec())
	require.NotEmpty(t, first.Roots)
	require.NotContains(t, z.log.String(), "PRIVATE")
}

// The next root is published first, signs once every proxy has acknowledged it, and what
// the last one signed is trusted until it has expired; proxies are told of each step.
func TestAnAuthorityIsReplacedInSteps(t *testing.T) {
	z := newZone(t)
	z.mesh("one", "builtin", "1h")
	k := z.keeper()
	before, old := z.issue(k)
	z.trusted = before.Stamp
	ctx := context.Background()
	k.review(ctx, z)
	told := z.changed
	k.review(ctx, z)
	require.Equal(t, told, z.changed, "nothing has changed")

	z.mesh("two", "builtin", "1h")
	k.review(ctx, z)
	require.Greater(t, z.changed, told)
	published, leaf := z.issue(k)
	require.Greater(t, len(published.Roots), len(before.Roots))
	require.NoError(t, verify(before.Roots, leaf, z.now), "the last one signs")

	for range 3 { // not every proxy has it
		k.review(ctx, z)
		_, leaf = z.issue(k)
		require.NoError(t, verify(before.Roots, leaf, z.now))
	}
	told = z.changed
	z.trusted = published.Stamp
	k.review(ctx, z)
	require.Greater(t, z.changed, told)
	signing, leaf := z.issue(k)
	require.Error(t, verify(before.Roots, leaf, z.now), "the next one signs")
	require.NoError(t, verify(published.Roots, leaf, z.now))
	require.NoError(t, verify(signing.Roots, old, z.now))

	z.now = z.now.Add(time.Hour)
	k.review(ctx, z)
	done, _ := z.issue(k)
	require.Less(t, len(done.Roots), len(signing.Roots))
	require.Error(t, verify(done.Roots, old, z.now.Add(-time.Minute)))
}

// In a zone of several servers the next root signs once the proxies of all have it: not while
// one of them has not, a server does not answer, or one of them does not remember yet who has
// a certificate.
func TestAReplacementWaitsForTheProxiesOfAllServers(t *testing.T) {
	z := newZone(t)
	z.mesh("one", "builtin", "1h")
	var waiting Waiting
	var since time.Time
	complete := true
	z.elsewhere = func(_ context.Context, mesh resource.MeshName, stamp string) (Waiting, time.Time, bool) {
		require.Equal(t, resource.MeshName("default"), mesh)
		require.NotEmpty(t, stamp)
		return waiting, since, complete
	}
	k := z.keeper()
	before, _ := z.issue(k)
	z.mesh("two", "builtin", "1h")
	k.review(t.Context(), z)
	published, _ := z.issue(k)
	z.trusted = published.Stamp
	signsByTheLast := func(why string) {
		t.Helper()
		k.review(t.Context(), z)
		_, leaf := z.issue(k)
		require.NoError(t, verify(before.Roots, leaf, z.now), why)
	}
	waiting = Waiting{Connected: 1}
	signsByTheLast("a proxy of another server has yet to acknowledge it")
	require.Equal(t, waiting, k.Status()[0].Waiting)
	waiting, complete = Waiting{}, false
	signsByTheLast("a server does not answer")
	complete, since = true, z.now.Add(time.Second)
	signsByTheLast("another server has started since, and does not remember whom it gave certificates")
	since = time.Time{}
	k.review(t.Context(), z)
	_, leaf := z.issue(k)
	require.Error(t, verify(before.Roots, leaf, z.now), "the next one signs")
}

// A zone that has just started does not know whom it gave certificates before, so that a
// replacement waits until these have ended. What it gave since, proxies acknowledge.
func TestAReplacementAfterARestartWaitsForAllCertificates(t *testing.T) {
	z := newZone(t)
	z.mesh("one", "builtin", "1h")
	before, _ := z.issue(z.keeper())
	z.now = z.now.Add(30 * time.Minute)
	k := z.keeper()
	z.now = z.now.Add(time.Minute)
	z.mesh("two", "builtin", "1h")
	k.review(t.Context(), z)
	published, _ := z.issue(k)
	z.trusted = published.Stamp
	z.now = z.now.Add(58 * time.Minute)
	k.review(t.Context(), z)
	_, leaf := z.issue(k)
	require.NoError(t, verify(before.Roots, leaf, z.now), "the last one signs")
	z.now = z.now.Add(time.Minute)
	k.review(t.Context(), z)
	_, leaf = z.issue(k)
	require.Error(t, verify(before.Roots, leaf, z.now), "the next one signs")
}

// A mesh that was deleted and created again has another authority, whether or not the zone
// has seen it deleted, and what the last one signed is trusted no longer. A mesh that is
// gone from the zone for a time, and comes back as it was, has the one that it had.
func TestAMeshThatIsCreatedAgainHasAnotherAuthority(t *testing.T) {
	create := func(z *zone, at time.Time) {
		r := resourcetest.Build(t, resource.KindMesh, "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`)
		meta := r.Meta()
		meta.CreationTime, meta.ModificationTime = at, at
		put := store.Put(r.WithMeta(meta))
		put.KeepTimes = true
		require.NoError(t, z.replica.Apply(z.replica.Revision()+1, store.Txn{Ops: []store.Op{put}}).Err)
	}
	remove := func(z *zone) {
		require.NoError(t, z.replica.Apply(z.replica.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(resource.Key{Kind: resource.KindMesh, Name: "default"})}}).Err)
	}
	for what, asked := range map[string]bool{"the keeper looks first": false, "a dataplane asks first": true} {
		z := newZone(t)
		k := z.keeper()
		create(z, z.now)
		before, old := z.issue(k)
		k.review(t.Context(), z)

		remove(z)
		k.review(t.Context(), z)
		require.Empty(t, k.Status(), what)
		create(z, z.now)
		k.review(t.Context(), z)
		same, _ := z.issue(z.keeper())
		require.Equal(t, before.Roots, same.Roots, what)

		remove(z)
		create(z, z.now.Add(time.Nanosecond))
		told := z.changed
		if !asked {
			k.review(t.Context(), z)
			require.Greater(t, z.changed, told, what)
		}
		after, leaf := z.issue(k)
		require.Error(t, verify(before.Roots, leaf, z.now), what)
		require.Error(t, verify(after.Roots, old, z.now), what)
		k.review(t.Context(), z)
		again, _ := z.issue(z.keeper())
		require.Equal(t, after.Roots, again.Roots, what)
		require.Contains(t, z.log.String(), "replaces_deleted_mesh=true", what)
	}
}

// What an earlier release stored does not say which mesh it is for: it is that of the mesh
// of now.
func TestAnAuthorityOfAnEarlierReleaseIsKept(t *testing.T) {
	z := newZone(t)
	old, err := meshca.New("east", "default", "ca", z.now)
	require.NoError(t, err)
	data, err := old.WithLongest(time.Hour).Marshal()
	require.NoError(t, err)
	require.NotContains(t, string(data), "created")
	z.write(z.local.Store, resourcetest.Build(t, resource.KindGlobalSecret, "", token.MeshAuthorityKey("default").Name, fmt.Sprintf(`{"data":%q}`, base64.StdEncoding.EncodeToString(data))))
	r := resourcetest.Build(t, resource.KindMesh, "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","dpCert":{"rotation":{"expiration":"1h"}}}]}}`)
	require.NoError(t, z.replica.Apply(1, store.Txn{Time: z.now, Ops: []store.Op{store.Put(r)}}).Err)
	k := z.keeper()
	k.review(t.Context(), z)
	got, _ := z.issue(k)
	require.Equal(t, old.Roots(), got.Roots)
	stored, _ := z.stored()
	read, err := meshca.Parse("east", "default", stored.Spec().(*resource.Secret).Bytes())
	require.NoError(t, err)
	require.True(t, z.now.Equal(read.Created()))
}

// What the metrics of a zone say of a replacement.
func TestTheStatusOfAReplacement(t *testing.T) {
	z := newZone(t)
	k := z.keeper()
	z.mesh("one", "builtin", "1h")
	k.review(t.Context(), z)
	require.Empty(t, k.Status(), "no dataplane has asked")
	z.issue(k)
	expires := z.now.Add(meshca.RootLifetime)
	want := Status{Mesh: "default", Expires: expires, Phase: meshca.Stable}
	k.review(t.Context(), z)
	require.Equal(t, []Status{want}, k.Status())

	z.now = z.now.Add(time.Minute)
	z.mesh("two", "builtin", "1h")
	k.review(t.Context(), z)
	k.review(t.Context(), z)
	want.Phase, want.Waiting = meshca.Publishing, Waiting{Connected: 2, Away: 1}
	require.Equal(t, []Status{want}, k.Status())
	require.Contains(t, z.log.String(), "signs_by=")

	published, _ := z.issue(k)
	z.trusted = published.Stamp
	k.review(t.Context(), z)
	want = Status{Mesh: "default", Expires: expires.Add(time.Minute), Phase: meshca.Retiring}
	require.Equal(t, []Status{want}, k.Status())
	z.now = z.now.Add(time.Hour)
	k.review(t.Context(), z)
	want.Phase = meshca.Stable
	require.Equal(t, []Status{want}, k.Status())

	z.write(z.local.Store, resourcetest.Build(t, resource.KindGlobalSecret, "", token.MeshAuthorityKey("default").Name, `{"data":"eA=="}`))
	k.review(t.Context(), z)
	require.Len(t, k.Status(), 1)
	require.Error(t, k.Status()[0].Err)
	z.mesh("", "", "")
	k.review(t.Context(), z)
	require.Empty(t, k.Status())
}
