package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
)

// noon is the moment that most tests take place at.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func testPKI(t *testing.T, dir string, now time.Time, hosts ...string) Config {
	t.Helper()
	return Config{
		DataDir: dir, Name: "node-1", Hosts: ServerHosts("box", hosts, nil),
		Now: at(now), Log: slog.New(slog.DiscardHandler),
	}
}

func openPKI(t *testing.T, config Config) *PKI {
	t.Helper()
	p, err := Open(config)
	require.NoError(t, err)
	return p
}

// handshake connects a client to a server and returns what was negotiated, or
// the client's error.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		conn := tls.Server(raw, server)
		// An error here is the client's as well, which is the one looked at.
		if conn.Handshake() == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
		_ = raw.Close()
	}()
	raw, err := listener.DialContext(t.Context())
	require.NoError(t, err)
	conn := tls.Client(raw, client)
	err = conn.HandshakeContext(t.Context())
	state := conn.ConnectionState()
	require.NoError(t, errors.Join(raw.Close(), listener.Close()))
	<-done
	return state, err
}

func clientFor(t *testing.T, caPEM []byte, name string, now time.Time) *tls.Config {
	t.Helper()
	config, err := ClientTLS(ClientTLSConfig{CAPEM: caPEM, Source: "admin.yaml"})
	require.NoError(t, err)
	config.ServerName = name
	config.Time = at(now)
	return config
}

func TestAGeneratedPKIServesItsHosts(t *testing.T) {
	p := openPKI(t, testPKI(t, t.TempDir(), noon, "10.1.2.3:5685", "cp.example.org:5685", "[::1]:0"))
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "box", "10.1.2.3", "cp.example.org"} {
		state, err := handshake(t, p.ServerTLS(), clientFor(t, p.CAPEM(), host, noon))
		require.NoError(t, err, host)
		require.Equal(t, uint16(tls.VersionTLS13), state.Version)
	}
	_, err := handshake(t, p.ServerTLS(), clientFor(t, p.CAPEM(), "elsewhere.example.org", noon))
	require.EqualError(t, ExplainHandshake(err, "elsewhere", "admin.yaml"),
		"connecting to elsewhere: the server's certificate does not name it: "+
			"x509: certificate is valid for box, cp.example.org, localhost, not elsewhere.example.org")
	_, err = handshake(t, p.ServerTLS(), clientFor(t, p.CAPEM(), "localhost", noon.Add(2*serverValidity)))
	require.EqualError(t, ExplainHandshake(err, "localhost", "admin.yaml"),
		"connecting to localhost: the server's certificate has expired or is not valid yet")
}

func TestAWrongCAIsExplained(t *testing.T) {
	ours, theirs := openPKI(t, testPKI(t, t.TempDir(), noon)), openPKI(t, testPKI(t, t.TempDir(), noon))
	_, err := handshake(t, ours.ServerTLS(), clientFor(t, theirs.CAPEM(), "localhost", noon))
	explained := ExplainHandshake(err, "localhost", "admin.yaml")
	require.EqualError(t, explained, "connecting to localhost: the server's certificate is not signed by the CA in admin.yaml")
	var authority x509.UnknownAuthorityError
	require.ErrorAs(t, explained, &authority)

	require.NoError(t, ExplainHandshake(nil, "", ""))
	require.Equal(t, io.EOF, ExplainHandshake(io.EOF, "localhost", ""))
	_, err = ClientTLS(ClientTLSConfig{CAPEM: []byte("no PEM"), Source: "ca.pem"})
	require.EqualError(t, err, "there is no CA certificate in ca.pem")
}

func TestOnlyTLS13IsSpoken(t *testing.T) {
	p := openPKI(t, testPKI(t, t.TempDir(), noon))
	client := clientFor(t, p.CAPEM(), "localhost", noon)
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, err := handshake(t, p.ServerTLS(), client)
	require.ErrorContains(t, err, "protocol version")
}

func TestPrivateFilesAreTheirOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	openPKI(t, testPKI(t, dir, noon))
	for name, perm := range map[string]fs.FileMode{
		"ca.pem": 0o644, "ca-key.pem": 0o600, "server.pem": 0o644, "server-key.pem": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, "pki", name))
		require.NoError(t, err)
		require.Equal(t, perm, info.Mode().Perm(), name)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "pki"))
	require.NoError(t, err)
	require.Len(t, entries, 4, "no temporary files are left")
}

func TestAPKIOutlivesRestartsAndRenewsWhatRunsOut(t *testing.T) {
	dir := t.TempDir()
	first := openPKI(t, testPKI(t, dir, noon))
	firstLeaf, err := first.GetCertificate(nil)
	require.NoError(t, err)

	again, err := openPKI(t, testPKI(t, dir, noon.Add(24*time.Hour))).GetCertificate(nil)
	require.NoError(t, err)
	require.Equal(t, firstLeaf.Leaf.Raw, again.Leaf.Raw, "nothing changed, nothing is made anew")

	late := noon.Add(serverValidity - renewBefore + time.Minute)
	renewed := openPKI(t, testPKI(t, dir, late))
	require.Equal(t, late.Add(serverValidity), renewed.Expires())
	require.Equal(t, first.CAPEM(), renewed.CAPEM(), "the authority stays")

	moved := openPKI(t, testPKI(t, dir, late, "10.9.9.9:5685"))
	_, err = handshake(t, moved.ServerTLS(), clientFor(t, first.CAPEM(), "10.9.9.9", late))
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "pki", "server.pem"), []byte("scribble"), 0o600))
	repaired := openPKI(t, testPKI(t, dir, late))
	_, err = handshake(t, repaired.ServerTLS(), clientFor(t, first.CAPEM(), "localhost", late))
	require.NoError(t, err)

	// Near the authority's own end a certificate is short, and not made anew at
	// every start for that.
	end := noon.Add(caValidity - 24*time.Hour)
	last := openPKI(t, testPKI(t, dir, end))
	lastLeaf, err := last.GetCertificate(nil)
	require.NoError(t, err)
	require.NoError(t, last.Reload())
	same, err := last.GetCertificate(nil)
	require.NoError(t, err)
	require.Equal(t, lastLeaf.Leaf.Raw, same.Leaf.Raw)
	require.Equal(t, noon.Add(caValidity), last.Expires())
}

func TestAnInterruptedFirstStartIsTakenUp(t *testing.T) {
	dir := t.TempDir()
	openPKI(t, testPKI(t, dir, noon))
	for _, lost := range []string{"server.pem", "server-key.pem", "ca.pem"} {
		require.NoError(t, os.Remove(filepath.Join(dir, "pki", lost)))
		openLost, err := Open(testPKI(t, dir, noon))
		if lost == "ca.pem" {
			// The server's pair was made again by then: this authority has signed.
			require.ErrorIs(t, err, ErrPartial)
			continue
		}
		require.NoError(t, err)
		_, err = handshake(t, openLost.ServerTLS(), clientFor(t, openLost.CAPEM(), "localhost", noon))
		require.NoError(t, err)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "server.pem")))
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "server-key.pem")))
	openPKI(t, testPKI(t, dir, noon))
}

func TestALostCAKeyIsNotPaperedOver(t *testing.T) {
	dir := t.TempDir()
	openPKI(t, testPKI(t, dir, noon))
	require.NoError(t, os.Remove(filepath.Join(dir, "pki", "ca-key.pem")))
	_, err := Open(testPKI(t, dir, noon))
	require.ErrorIs(t, err, ErrPartial)
	require.ErrorContains(t, err, "ca-key.pem is missing beside")
}

func TestGivenFilesReplaceTheGeneratedAndReload(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, caPath := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	ca, err := NewCA(noon)
	require.NoError(t, err)
	install := func(host string) {
		cert, key, err := ca.IssueServer("given", []string{host}, noon)
		require.NoError(t, err)
		require.NoError(t, errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600),
			os.WriteFile(caPath, ca.CertificatePEM(), 0o600)))
	}
	install("one.example.org")
	config := testPKI(t, dir, noon)
	config.CertFile, config.KeyFile, config.CAFile = certFile, keyFile, caPath
	p := openPKI(t, config)
	require.Nil(t, p.CA())
	require.NoDirExists(t, filepath.Join(dir, "pki"))
	server := p.ServerTLS()
	_, err = handshake(t, server, clientFor(t, p.CAPEM(), "one.example.org", noon))
	require.NoError(t, err)

	install("two.example.org")
	require.NoError(t, p.Reload())
	_, err = handshake(t, server, clientFor(t, p.CAPEM(), "two.example.org", noon))
	require.NoError(t, err, "the same listener serves the new certificate")

	require.NoError(t, os.WriteFile(certFile, []byte("half a fi"), 0o600))
	require.ErrorContains(t, p.Reload(), certFile)
	_, err = handshake(t, server, clientFor(t, p.CAPEM(), "two.example.org", noon))
	require.NoError(t, err, "a reload that fails changes nothing")
}

func TestGivenFilesMustFit(t *testing.T) {
	dir := t.TempDir()
	p := openPKI(t, testPKI(t, dir, noon))
	other := t.TempDir()
	openPKI(t, testPKI(t, other, noon))
	require.NotNil(t, p.CA())
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no key":       {func(c *Config) { c.KeyFile = "" }, "must be given together"},
		"missing":      {func(c *Config) { c.CertFile = filepath.Join(dir, "absent.pem") }, "absent.pem"},
		"other key":    {func(c *Config) { c.KeyFile = filepath.Join(other, "pki", "server-key.pem") }, "private key does not match"},
		"expired":      {func(c *Config) { c.Now = at(noon.Add(2 * serverValidity)) }, "expired on 2027-03-01 12:00:00"},
		"no CA in it":  {func(c *Config) { c.CAFile = c.KeyFile }, "no certificate in"},
		"not PEM size": {func(c *Config) { c.CertFile = "/dev/zero" }, "belong in such a file"},
	} {
		t.Run(name, func(t *testing.T) {
			config := testPKI(t, t.TempDir(), noon)
			config.CertFile, config.KeyFile = filepath.Join(dir, "pki", "server.pem"), filepath.Join(dir, "pki", "server-key.pem")
			tc.change(&config)
			_, err := Open(config)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestParseCARefusesAnOrdinaryCertificate(t *testing.T) {
	ca, err := NewCA(noon)
	require.NoError(t, err)
	cert, key, err := ca.IssueServer("node-1", []string{"localhost"}, noon)
	require.NoError(t, err)
	_, err = ParseCA(cert, key)
	require.EqualError(t, err, "reading the CA: the certificate is not that of a CA")

	caKey, err := ca.KeyPEM()
	require.NoError(t, err)
	back, err := ParseCA(ca.CertificatePEM(), caKey)
	require.NoError(t, err)
	require.True(t, bytes.Equal(ca.CertificatePEM(), back.CertificatePEM()))
	block, _ := pem.Decode(back.CertificatePEM())
	require.Equal(t, pemCertificate, block.Type)
}

func TestServerHosts(t *testing.T) {
	interfaces := []net.Addr{
		&net.IPNet{IP: net.ParseIP("192.168.7.7")}, &net.IPNet{IP: net.ParseIP("fe80::1")}, &net.UnixAddr{},
	}
	require.Equal(t, []string{"127.0.0.1", "192.168.7.7", "::1", "box", "localhost"},
		ServerHosts("Box", []string{"0.0.0.0:5685", "127.0.0.1:5690", ":80", "köln:1"}, interfaces))
}
