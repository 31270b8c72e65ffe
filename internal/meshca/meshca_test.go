package meshca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/identity"
	"meridian/internal/resource"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func request(t *testing.T, template x509.CertificateRequest) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	require.NoError(t, err)
	return der, key
}

func authority(t *testing.T, zone resource.ZoneName, mesh resource.MeshName) *Authority {
	t.Helper()
	a, err := New(zone, mesh, "ca", now)
	require.NoError(t, err)
	return a.WithLongest(DefaultLifetime)
}

func name(t *testing.T, zone resource.ZoneName, mesh resource.MeshName) string {
	t.Helper()
	uri, err := identity.Of(zone, mesh, "web-1", []resource.Tags{{"kuma.io/service": "web", "kuma.io/zone": string(zone)}})
	require.NoError(t, err)
	return uri
}

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(text)
	require.NotNil(t, block)
	require.Empty(t, rest)
	c, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return c
}

func verify(a *Authority, c *x509.Certificate, at time.Time, use x509.ExtKeyUsage) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Roots())
	_, err := c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

// What a request says of names, uses and time does not count.
func TestACertificateNamesTheDataplaneWhateverTheRequestSays(t *testing.T) {
	der, key := request(t, x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "admin"}, DNSNames: []string{"global"}, IPAddresses: []net.IP{net.IPv4(1, 2, 3, 4)},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "west.m", Path: "/dp/other/_/kuma.io_2Fservice/db"}}, EmailAddresses: []string{"a@b.c"},
	})
	public, err := ParseRequest(der)
	require.NoError(t, err)
	a := authority(t, "east", "m")
	got, err := a.Sign(public, name(t, "east", "m"), time.Hour, now)
	require.NoError(t, err)
	c := parse(t, got.PEM)
	require.Empty(t, c.Subject.Names)
	require.Empty(t, c.DNSNames)
	require.Empty(t, c.IPAddresses)
	require.Empty(t, c.EmailAddresses)
	require.Len(t, c.URIs, 1)
	require.Equal(t, name(t, "east", "m"), c.URIs[0].String())
	require.True(t, key.PublicKey.Equal(c.PublicKey))
	require.False(t, c.IsCA)
	require.Equal(t, now.Add(time.Hour), c.NotAfter)
	require.Equal(t, c.NotAfter, got.NotAfter)
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		require.NoError(t, verify(a, c, now, use))
	}
	require.Error(t, verify(a, c, now, x509.ExtKeyUsageCodeSigning))
	require.ErrorContains(t, verify(a, c, now.Add(2*time.Hour), x509.ExtKeyUsageClientAuth), "expired")
	require.Error(t, verify(authority(t, "east", "m"), c, now, x509.ExtKeyUsageClientAuth), "another authority of the same name")
}

func TestRequestsThatAreRefused(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ofRSA, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, rsaKey)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	ofP384, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, p384)
	require.NoError(t, err)
	forged, _ := request(t, x509.CertificateRequest{})
	forged[len(forged)-1] ^= 1
	for reason, der := range map[string][]byte{
		"cannot be read":               []byte("x"),
		"at most 4096":                 make([]byte, MaxRequestBytes+1),
		"not for a P-256 key":          ofRSA,
		"is not for a P-256 key":       ofP384,
		"not signed with its own key:": forged,
	} {
		_, err := ParseRequest(der)
		require.ErrorContains(t, err, reason)
	}
}

func TestAnAuthoritySignsForItsMeshAndZoneOnly(t *testing.T) {
	der, _ := request(t, x509.CertificateRequest{})
	key, err := ParseRequest(der)
	require.NoError(t, err)
	a := authority(t, "east", "m")
	for _, other := range []string{name(t, "west", "m"), name(t, "east", "n"), "spiffe://east.m/dp/web-1", "spiffe://east.m/dp/web-1/_/a/b?c"} {
		_, err := a.Sign(key, other, time.Hour, now)
		require.Error(t, err, other)
	}
	_, err = a.Sign(key, name(t, "east", "m"), 48*time.Hour, now)
	require.ErrorContains(t, err, "at most 24h")
	_, err = a.Sign(key, name(t, "east", "m"), time.Hour, now.Add(RootLifetime+time.Hour))
	require.ErrorContains(t, err, "expired")
	_, err = New("e.ast", "m", "ca", now)
	require.ErrorContains(t, err, "not one label")
}

// Who steals the key of a zone can sign anything with it, and only names of the zone's
// own dataplanes of the mesh are accepted by those who verify.
func TestAStolenKeySpeaksForNoOtherZoneAndMesh(t *testing.T) {
	a := authority(t, "east", "m")
	forge := func(change func(*x509.Certificate)) *x509.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		change(template)
		der, err := x509.CreateCertificate(rand.Reader, template, a.roots[0].Certificate, key.Public(), a.roots[0].key)
		require.NoError(t, err)
		c, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return c
	}
	of := func(host string) *url.URL {
		return &url.URL{Scheme: "spiffe", Host: host, Path: "/dp/web-1/_/kuma.io_2Fservice/web"}
	}
	require.NoError(t, verify(a, forge(func(c *x509.Certificate) { c.URIs = []*url.URL{of("east.m")} }), now, x509.ExtKeyUsageClientAuth))
	for what, change := range map[string]func(*x509.Certificate){
		"another zone":    func(c *x509.Certificate) { c.URIs = []*url.URL{of("west.m")} },
		"another mesh":    func(c *x509.Certificate) { c.URIs = []*url.URL{of("east.n")} },
		"both":            func(c *x509.Certificate) { c.URIs = []*url.URL{of("east.m"), of("west.m")} },
		"a DNS name":      func(c *x509.Certificate) { c.DNSNames = []string{"east.m"} },
		"a URI as DNS":    func(c *x509.Certificate) { c.DNSNames = []string{of("west.m").String()} },
		"an e-mail":       func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b.c"} },
		"a URI as e-mail": func(c *x509.Certificate) { c.EmailAddresses = []string{of("east.m").String()} },
		"an address":      func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} },
		"another address": func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv6loopback} },
	} {
		require.Error(t, verify(a, forge(change), now, x509.ExtKeyUsageClientAuth), what)
	}
	require.NoError(t, CheckRoot(a.roots[0].Certificate, "east.m"))
	require.Error(t, CheckRoot(a.roots[0].Certificate, "west.m"))
	require.Error(t, CheckRoot(forge(func(*x509.Certificate) {}), "east.m"))
	free := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: now}
	der, err := x509.CreateCertificate(rand.Reader, free, free, a.roots[0].key.Public(), a.roots[0].key)
	require.NoError(t, err)
	unconstrained, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	require.ErrorContains(t, CheckRoot(unconstrained, "east.m"), "not constrained")
}

func states(a *Authority) string {
	var b strings.Builder
	for _, r := range a.Status() {
		fmt.Fprintf(&b, "%s:%s ", r.Backend, r.State)
	}
	return strings.TrimSpace(b.String())
}

// The steps of a rotation, and that what was signed before and after each is trusted by
// who has the roots of the step before it.
func TestARotationLosesNoCertificate(t *testing.T) {
	a := authority(t, "east", "m").For(now.Add(-time.Nanosecond))
	der, _ := request(t, x509.CertificateRequest{})
	key, err := ParseRequest(der)
	require.NoError(t, err)
	sign := func(a *Authority, at time.Time) *x509.Certificate {
		got, err := a.WithLongest(DefaultLifetime).Sign(key, name(t, "east", "m"), DefaultLifetime, at)
		require.NoError(t, err)
		return parse(t, got.PEM)
	}
	step := func(a *Authority, acked bool, at time.Time, want string) *Authority {
		t.Helper()
		next, err := a.Step("new", nil, acked, at)
		require.NoError(t, err)
		require.Equal(t, want, states(next))
		stored, err := next.Marshal()
		require.NoError(t, err)
		read, err := Parse("east", "m", stored)
		require.NoError(t, err)
		require.Equal(t, next.Status(), read.Status())
		require.Equal(t, next.Created(), read.Created())
		return read
	}
	same, err := a.Step("ca", nil, true, now)
	require.NoError(t, err)
	require.Same(t, a, same, "nothing is due")
	before := sign(a, now)

	published := step(a, true, now, "ca:signing new:next")
	waiting := step(published, false, now.Add(time.Hour), "ca:signing new:next")
	inBetween := sign(waiting, now.Add(time.Hour))
	signing := step(waiting, true, now.Add(2*time.Hour), "new:signing ca:retired")
	after := sign(signing, now.Add(2*time.Hour))
	for at, c := range map[time.Duration]*x509.Certificate{0: before, time.Hour: inBetween, 2 * time.Hour: after} {
		require.NoError(t, verify(published, c, now.Add(at), x509.ExtKeyUsageClientAuth))
		require.NoError(t, verify(signing, c, now.Add(at), x509.ExtKeyUsageClientAuth))
	}
	stored, err := signing.Marshal()
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(stored), "PRIVATE KEY-----\\n\""), "the retired key is gone")

	step(signing.WithLongest(DefaultLifetime), true, now.Add(2*time.Hour+DefaultLifetime-time.Second), "new:signing ca:retired")
	done := step(signing, true, now.Add(2*time.Hour+DefaultLifetime), "new:signing")
	require.Error(t, verify(done, inBetween, now.Add(2*time.Hour), x509.ExtKeyUsageClientAuth))
	require.NoError(t, verify(done, after, now.Add(2*time.Hour), x509.ExtKeyUsageClientAuth))

	// Who never acknowledges does not hold it up for ever.
	step(published, false, now.Add(DefaultLifetime), "new:signing ca:retired")
	// Without another backend, a root is replaced half-way.
	old, err := a.Step("ca", nil, false, now.Add(RootLifetime/2))
	require.NoError(t, err)
	require.Equal(t, "ca:signing ca:next", states(old))
}

// The next root signs at the latest when everything has ended that was signed before it
// was published, by any root: also by one that was retired before with a longer lifetime.
func TestTheNextRootSignsAtTheLatest(t *testing.T) {
	step := func(a *Authority, backend string, acked bool, at time.Duration) *Authority {
		t.Helper()
		next, err := a.Step(backend, nil, acked, now.Add(at))
		require.NoError(t, err)
		return next
	}
	a := authority(t, "east", "m").WithLongest(48 * time.Hour)
	require.Equal(t, Stable, a.Phase())
	require.Zero(t, a.SignsBy())
	a = step(a, "two", false, time.Hour)
	require.Equal(t, Publishing, a.Phase())
	require.Equal(t, now.Add(49*time.Hour), a.SignsBy())
	a = step(a, "two", true, 2*time.Hour)
	require.Equal(t, Retiring, a.Phase())
	a = step(a.WithLongest(time.Hour), "three", true, 3*time.Hour)
	require.Equal(t, Publishing, a.Phase())
	require.Equal(t, now.Add(50*time.Hour), a.SignsBy(), "the first one signed until the second hour, for 48 hours")
	require.Same(t, a, step(a, "three", false, 50*time.Hour-time.Second))
	a = step(a, "three", false, 50*time.Hour)
	require.Equal(t, "three:signing two:retired", states(a))

	// Nothing is valid for longer than the root that signed it.
	long := step(authority(t, "east", "m").WithLongest(10*RootLifetime), "two", false, time.Hour)
	require.Equal(t, long.Status()[0].Certificate.NotAfter, long.SignsBy())
}

// What may be left of the time before a moment.
func TestOutstandingCertificates(t *testing.T) {
	a := authority(t, "east", "m")
	for _, c := range []struct {
		before, at time.Duration
		want       bool
	}{
		{0, 0, false},
		{900 * time.Millisecond, time.Second, false}, // the authority was made after that
		{time.Second, time.Second, true},
		{time.Hour, DefaultLifetime, true},
		{time.Hour, DefaultLifetime + time.Hour - time.Second, true},
		{time.Hour, DefaultLifetime + time.Hour, false},
	} {
		require.Equal(t, c.want, a.Outstanding(now.Add(c.before), now.Add(c.at)), c)
	}
	// Of a root that was retired before, what it signed until then.
	published, err := a.Step("two", nil, true, now.Add(time.Hour))
	require.NoError(t, err)
	require.True(t, published.Outstanding(now.Add(2*time.Hour), now.Add(3*time.Hour)))
	retired, err := published.Step("two", nil, true, now.Add(time.Hour))
	require.NoError(t, err)
	require.True(t, retired.Outstanding(now.Add(10*time.Hour), now.Add(DefaultLifetime)))
	require.False(t, retired.Outstanding(now.Add(10*time.Hour), now.Add(DefaultLifetime+time.Hour)))
}

func TestStoredAuthoritiesThatAreRefused(t *testing.T) {
	a := authority(t, "east", "m")
	good, err := a.Marshal()
	require.NoError(t, err)
	other, err := authority(t, "east", "m").Marshal()
	require.NoError(t, err)
	keyOf := func(data []byte) string {
		_, rest, _ := strings.Cut(string(data), `"key":"`)
		key, _, _ := strings.Cut(rest, `"`)
		return key
	}
	for what, data := range map[string]string{
		"nothing":          "",
		"no roots":         `{"zone":"east","mesh":"m"}`,
		"another zone":     strings.Replace(string(good), `"zone":"east"`, `"zone":"west"`, 1),
		"another key":      strings.Replace(string(good), keyOf(good), keyOf(other), 1),
		"no key":           strings.Replace(string(good), keyOf(good), "", 1),
		"none that signs":  strings.Replace(string(good), `"signing"`, `"next"`, 1),
		"not a state":      strings.Replace(string(good), `"signing"`, `"x"`, 1),
		"no certificate":   strings.Replace(string(good), "BEGIN CERTIFICATE", "BEGIN", 1),
		"broken in base64": strings.Replace(string(good), "CERTIFICATE-----\\nMII", "CERTIFICATE-----\\nAAA", 1),
	} {
		_, err := Parse("east", "m", []byte(data))
		require.Error(t, err, what)
		require.NotContains(t, err.Error(), "PRIVATE", what)
	}
	_, err = Parse("west", "m", good)
	require.Error(t, err)
	_, err = Parse("east", "n", good)
	require.Error(t, err)
	require.NotContains(t, fmt.Sprintf("%v %#v %s %+v", a, a, a, a), "PRIVATE")
}

func TestLifetimes(t *testing.T) {
	require.Equal(t, 24*time.Hour, Lifetime(nil))
	require.Equal(t, 24*time.Hour, Lifetime(&resource.DPCert{}))
	of := func(text string) *resource.DPCert {
		d, err := resource.ParseDuration(text)
		require.NoError(t, err)
		return &resource.DPCert{Rotation: &resource.CertRotation{Expiration: &d}}
	}
	require.Equal(t, 10*time.Hour, Lifetime(of("10h")))
	require.Equal(t, time.Minute, Lifetime(of("1s")))
	require.Equal(t, RootLifetime/4, Lifetime(of("100000h")))
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, der []byte) {
		key, err := ParseRequest(der)
		if err == nil {
			require.Equal(t, elliptic.P256(), key.Curve)
		}
	})
}
