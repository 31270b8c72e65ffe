package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// issue makes a certificate for 127.0.0.1 with the given uses, as an operator's
// own authority would.
func issue(t *testing.T, ca *CA, uses ...x509.ExtKeyUsage) (certPEM, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := newSerial()
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "own"}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: uses, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, ca.certificate, private.Public(), ca.key)
	require.NoError(t, err)
	key, err = keyPEM(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), key
}

// given opens a PKI on files as flags name them.
func given(t *testing.T, caPEM, certPEM, key []byte) *PKI {
	t.Helper()
	dir := t.TempDir()
	path := func(name string, data []byte) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, data, 0o600))
		return p
	}
	return openPKI(t, Config{
		DataDir: dir, CAFile: path("ca", caPEM), CertFile: path("cert", certPEM), KeyFile: path("key", key), Now: at(noon),
	})
}

// A certificate makes a server only when it is for use in both directions and
// signed by the servers' authority.
func TestWhoIsAServer(t *testing.T) {
	ca, err := NewCA(noon)
	require.NoError(t, err)
	other, err := NewCA(noon)
	require.NoError(t, err)
	const server, client = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for name, tc := range map[string]struct {
		signer *CA
		uses   []x509.ExtKeyUsage
		host   string
		want   string
	}{
		"both":             {ca, []x509.ExtKeyUsage{server, client}, "127.0.0.1", ""},
		"any":              {ca, []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, "127.0.0.1", ""},
		"not restricted":   {ca, nil, "127.0.0.1", ""},
		"for servers only": {ca, []x509.ExtKeyUsage{server}, "127.0.0.1", "clientAuth is missing"},
		"for clients only": {ca, []x509.ExtKeyUsage{client}, "127.0.0.1", "serverAuth is missing"},
		"other use":        {ca, []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, "127.0.0.1", "serverAuth is missing"},
		"other host":       {ca, []x509.ExtKeyUsage{server, client}, "10.0.0.1", "the certificate does not name 10.0.0.1"},
		"other authority":  {other, []x509.ExtKeyUsage{server, client}, "127.0.0.1", "the certificate is not signed by the given authority"},
	} {
		certPEM, key := issue(t, tc.signer, tc.uses...)
		pki := given(t, ca.CertificatePEM(), certPEM, key)
		err := pki.CheckServer(tc.host)
		if tc.want == "" {
			require.NoError(t, err, name)
			require.NoError(t, VerifyServer(tls.ConnectionState{PeerCertificates: []*x509.Certificate{pki.current.Load().server.Leaf}}), name)
			continue
		}
		require.ErrorContains(t, err, tc.want, name)
	}
	certPEM, key := issue(t, ca, client)
	leaf := given(t, ca.CertificatePEM(), certPEM, key).current.Load().server.Leaf
	require.ErrorIs(t, VerifyServer(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}), ErrNotServer)
	require.Error(t, VerifyServer(tls.ConnectionState{}))
	generated := openPKI(t, testPKI(t, t.TempDir(), noon))
	require.NoError(t, generated.CheckServer("127.0.0.1"))
}

// An authority that was handed over signs for its server as if it had been made
// there; one that is there already is never replaced.
func TestImportedCA(t *testing.T) {
	ca, err := NewCA(noon)
	require.NoError(t, err)
	key, err := ca.KeyPEM()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, ImportCA(dir, nil, ca.CertificatePEM(), key))
	require.NoError(t, ImportCA(dir, nil, ca.CertificatePEM(), key), "a retry")
	info, err := os.Stat(filepath.Join(dir, pkiDir, caKeyFile))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	p := openPKI(t, testPKI(t, dir, noon))
	require.Equal(t, ca.CertificatePEM(), p.CAPEM())
	require.NoError(t, p.CheckServer("127.0.0.1"))

	other, err := NewCA(noon)
	require.NoError(t, err)
	otherKey, err := other.KeyPEM()
	require.NoError(t, err)
	require.ErrorIs(t, ImportCA(dir, nil, other.CertificatePEM(), otherKey), ErrOtherCA)
	require.Error(t, ImportCA(t.TempDir(), nil, ca.CertificatePEM(), otherKey), "a key that does not fit")

	// Cut off between the two files, it is done again.
	cut := t.TempDir()
	require.NoError(t, ImportCA(cut, nil, ca.CertificatePEM(), key))
	require.NoError(t, os.Remove(filepath.Join(cut, pkiDir, caFile)))
	require.NoError(t, ImportCA(cut, nil, ca.CertificatePEM(), key))
	_, err = os.Stat(filepath.Join(cut, pkiDir, caFile))
	require.NotErrorIs(t, err, fs.ErrNotExist)
}
