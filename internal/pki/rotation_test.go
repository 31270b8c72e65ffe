package pki

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A rotation takes servers and clients from one authority to another. In every
// phase servers of that phase and of the one before trust each other, and so do
// clients that know the old authority, the new one or both, until it is finished.
func TestARotationLeavesNoGap(t *testing.T) {
	oneDir, twoDir := t.TempDir(), t.TempDir()
	one := openPKI(t, testPKI(t, oneDir, noon))
	old := one.CAPEM()
	key, err := one.CA().KeyPEM()
	require.NoError(t, err)
	require.NoError(t, ImportCA(twoDir, nil, old, key))
	two := openPKI(t, testPKI(t, twoDir, noon))

	r, err := NewRotation(one.CA(), noon)
	require.NoError(t, err)
	require.True(t, one.CA().MayCross())
	fresh := []byte(r.New)
	each := func() {
		t.Helper()
		for _, server := range []*PKI{one, two} {
			for _, client := range []*PKI{one, two} {
				_, err := handshake(t, server.ServerTLS(), clientFor(t, client.CAPEM(), "localhost", noon))
				require.NoError(t, err)
			}
		}
	}
	trusts := func(client []byte) {
		t.Helper()
		for _, server := range []*PKI{one, two} {
			_, err := handshake(t, server.ServerTLS(), clientFor(t, client, "localhost", noon))
			require.NoError(t, err)
		}
	}
	for range 3 {
		data, err := r.Encode()
		require.NoError(t, err)
		r, err = DecodeRotation(data)
		require.NoError(t, err)
		for _, p := range []*PKI{one, two} {
			changed, err := p.Follow(r)
			require.NoError(t, err)
			require.True(t, changed)
			each()
			changed, err = p.Follow(r)
			require.NoError(t, err)
			require.False(t, changed, "once")
			require.Equal(t, Digest(r.Trusted()), Digest(p.CAPEM()))
			require.Equal(t, string(r.Signer()), string(p.CA().CertificatePEM()))
		}
		if r.Phase != PhaseFinish {
			trusts(old)
			one, two = openPKI(t, testPKI(t, oneDir, noon)), openPKI(t, testPKI(t, twoDir, noon)) // restarted
			each()
		}
		if r.Phase == PhaseSwitch {
			trusts(fresh)
		}
		r = r.Next()
	}
	trusts(fresh)
	_, err = handshake(t, one.ServerTLS(), clientFor(t, old, "localhost", noon))
	require.Error(t, err, "the old one is trusted no more")
	require.Nil(t, one.Rotation())
	require.NoFileExists(t, filepath.Join(oneDir, "pki", rotationFile))
	require.Equal(t, string(fresh), string(openPKI(t, testPKI(t, oneDir, noon)).CAPEM()))

	// A restored state that holds an earlier phase takes no server back.
	r.Phase = PhaseTrust
	changed, err := one.Follow(r)
	require.NoError(t, err)
	require.False(t, changed)
	other, err := NewCA(noon)
	require.NoError(t, err)
	foreign, err := NewRotation(other, noon)
	require.NoError(t, err)
	_, err = one.Follow(foreign)
	require.ErrorIs(t, err, ErrOtherRotation)
}

// Whatever file of a phase a crash leaves behind, the next start continues from it.
func TestARotationOutlivesACrash(t *testing.T) {
	for name, crash := range map[string]func(t *testing.T, dir string, r Rotation){
		"the key was replaced": func(t *testing.T, dir string, r Rotation) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, caKeyFile), []byte(r.NewKey), 0o600))
		},
		"both were replaced": func(t *testing.T, dir string, r Rotation) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, caKeyFile), []byte(r.NewKey), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, caFile), []byte(r.New), 0o600))
		},
		"nothing was replaced": func(*testing.T, string, Rotation) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := openPKI(t, testPKI(t, dir, noon))
			r, err := NewRotation(p.CA(), noon)
			require.NoError(t, err)
			for _, next := range []Rotation{r, r.Next()} {
				_, err = p.Follow(next)
				require.NoError(t, err)
			}
			finished := r.Next()
			finished.Phase = PhaseFinish // with its key, as a server keeps it
			require.NoError(t, writeRotation(filepath.Join(dir, pkiDir), nil, finished))
			crash(t, filepath.Join(dir, pkiDir), r)
			p = openPKI(t, testPKI(t, dir, noon))
			require.Equal(t, r.New, string(p.CAPEM()))
			require.Nil(t, p.Rotation())
			_, err = handshake(t, p.ServerTLS(), clientFor(t, []byte(r.New), "localhost", noon))
			require.NoError(t, err)
		})
	}
}

// A certificate names its server, and is made anew for another one.
func TestACertificateNamesItsServer(t *testing.T) {
	dir := t.TempDir()
	config := testPKI(t, dir, noon)
	config.Identity = "node-1#a b/ü"
	p := openPKI(t, config)
	state, err := handshake(t, p.ServerTLS(), clientFor(t, p.CAPEM(), "localhost", noon))
	require.NoError(t, err)
	require.Equal(t, config.Identity, ServerIdentity(state))
	config.Identity = "node-1#other"
	state, err = handshake(t, openPKI(t, config).ServerTLS(), clientFor(t, p.CAPEM(), "localhost", noon))
	require.NoError(t, err)
	require.Equal(t, config.Identity, ServerIdentity(state))
}

// An operator's authority signs for others too: only a certificate that names the
// cluster is that of a server.
func TestCertificatesMustNameTheCluster(t *testing.T) {
	ca, err := NewCA(noon)
	require.NoError(t, err)
	leaf := func(hosts ...string) *x509.Certificate {
		certPEM, _, err := ca.IssueServer("meridian-global", hosts, noon)
		require.NoError(t, err)
		block, _ := pem.Decode(certPEM)
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		return c
	}
	names := []string{"meridian-global", "10.0.0.7"}
	for _, host := range []string{"meridian-global", "Meridian-Global", "10.0.0.7"} {
		require.NoError(t, VerifyNamed(leaf("db.example.org", host), names), host)
	}
	for _, host := range []string{"db.example.org", "*", "*.example.org", "10.0.0.8", "meridian-global.evil.org"} {
		require.ErrorIs(t, VerifyNamed(leaf(host), names), ErrNotNamed, host)
	}
}

func TestDigestOfAuthorities(t *testing.T) {
	a, err := NewCA(noon)
	require.NoError(t, err)
	b, err := NewCA(noon.Add(time.Hour))
	require.NoError(t, err)
	ab := append(a.CertificatePEM(), b.CertificatePEM()...)
	ba := append(b.CertificatePEM(), a.CertificatePEM()...)
	require.Equal(t, Digest(ab), Digest(ba))
	require.NotEqual(t, Digest(ab), Digest(a.CertificatePEM()))
	require.Empty(t, Digest(nil))
}
