package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"meridian/internal/pki"
)

// certified is a running server with certificates, on a clock that a test sets. It
// belongs to a bubble of synctest.
type certified struct {
	t       *testing.T
	pki     *pki.PKI
	log     bytes.Buffer // read while the server waits
	ahead   atomic.Int64 // of the clock
	hangups chan os.Signal
	metrics *prometheus.Registry
	health  *Health
	network *bufconn.Listener
}

// certify runs a server in the bubble of a test, as its options say.
func certify(t *testing.T, o Options) *certified {
	t.Helper()
	s := &certified{t: t, hangups: make(chan os.Signal), metrics: prometheus.NewRegistry(), network: bufconn.Listen(64 << 10)}
	log := slog.New(slog.NewTextHandler(&s.log, nil))
	var err error
	s.pki, err = OpenPKI(o, nil, "one", "", Addresses{GRPC: "127.0.0.1:5685"}, s.now, log)
	require.NoError(t, err)
	certificates := NewCertificates(s.now, log, map[string]*pki.PKI{"api": s.pki})
	s.metrics.MustRegister(certificates)
	s.health = NewHealth(log, s.metrics, certificates.Check())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- certificates.Run(ctx, s.hangups, nil) }()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(s.pki.ServerTLS())))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { ended <- server.Serve(s.network) }()
	t.Cleanup(func() {
		stop()
		server.Stop()
		require.NoError(t, errors.Join(<-ended, <-ended))
	})
	return s
}

func (s *certified) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// pass sets the clock ahead, and lets the server read its certificates again.
func (s *certified) pass(d time.Duration) {
	s.ahead.Add(int64(d))
	<-time.After(certificateInterval)
	synctest.Wait()
}

// dial connects a client that trusts some authorities. It returns a call.
func (s *certified) dial(authorities []byte) (call func() error) {
	config, err := pki.ClientTLS(pki.ClientTLSConfig{CAPEM: authorities, Source: "a test"})
	require.NoError(s.t, err)
	config.Time, config.ServerName = s.now, "localhost"
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.network.DialContext(ctx) }))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close()) })
	return func() error {
		_, err := healthv1.NewHealthClient(conn).Check(context.Background(), &healthv1.HealthCheckRequest{})
		return err
	}
}

// figures are the metrics, by name and labels.
func (s *certified) figures() map[string]float64 {
	families, err := s.metrics.Gather()
	require.NoError(s.t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := make([]string, 0, 2)
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.TrimPrefix(f.GetName(), "meridian_certificate_")+"/"+strings.Join(labels, "/")] = m.GetGauge().GetValue()
		}
	}
	return out
}

func (s *certified) readyz() string {
	w := httptest.NewRecorder()
	s.health.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz?verbose", nil))
	require.Equal(s.t, http.StatusOK, w.Code, "it is ready all the time")
	return w.Body.String()
}

const day = 24 * time.Hour

// A generated certificate is renewed while the server runs: neither a call on an open
// connection nor one on a new connection fails, until long after the first one's end.
func TestACertificateIsRenewedWithoutAFailedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := certify(t, Options{DataDir: t.TempDir()})
		first, open := s.pki.Expires(), s.dial(s.pki.CAPEM())
		require.InDelta(t, float64(first.Unix()), s.figures()["expires_timestamp_seconds/server/api"], 0)
		require.Greater(t, s.figures()["expires_timestamp_seconds/authority/api"], s.figures()["expires_timestamp_seconds/server/api"])
		for range 25 {
			require.NoError(t, open())
			require.NoError(t, s.dial(s.pki.CAPEM())())
			s.pass(20 * day)
			require.Greater(t, s.pki.Expires().Sub(s.now()), 100*day)
			require.Contains(t, s.readyz(), "[+] certificates\n")
		}
		require.True(t, first.Before(s.now().Add(-100*day)))
		require.Contains(t, s.log.String(), "the certificates have changed")
	})
}

// A certificate that cannot be renewed is reported by the metrics, by readiness and in
// the log months before its end, and daily, until it can be.
func TestARenewalThatFailsIsReportedBeforeTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := certify(t, Options{DataDir: dir})
		first := s.pki.Expires()
		// What is not empty cannot be replaced by a file.
		inTheWay := filepath.Join(dir, "pki", "server-key.pem")
		require.NoError(t, os.Remove(inTheWay))
		require.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "full"), 0o700))
		s.pass(300 * day)
		for range 5 {
			s.pass(0)
		}
		require.NoError(t, s.dial(s.pki.CAPEM())())
		require.Equal(t, first, s.pki.Expires())
		require.InDelta(t, 1, s.figures()["failing/api"], 0)
		require.Contains(t, s.readyz(), "[!] certificates: the certificate for api cannot be read again or renewed: ")
		require.Contains(t, s.readyz(), "the one in use expires on "+first.UTC().Format(time.DateTime))
		require.Equal(t, 1, strings.Count(s.log.String(), "cannot read the certificate again or renew it"))
		s.pass(day)
		require.Equal(t, 2, strings.Count(s.log.String(), "cannot read the certificate again or renew it"))

		require.NoError(t, os.RemoveAll(inTheWay))
		s.pass(0)
		require.InDelta(t, 0, s.figures()["failing/api"], 0)
		require.Contains(t, s.readyz(), "[+] certificates\n")
		require.True(t, s.pki.Expires().After(first))
	})
}

// An operator's files are read again when they change, without a restart, and at once
// on SIGHUP. Files that do not fit together change nothing, and are reported.
func TestReplacedCertificateFilesAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := Options{DataDir: t.TempDir(), CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), CAFile: filepath.Join(dir, "ca.crt")}
		newAuthority := func() *pki.CA {
			ca, err := pki.NewCA(time.Now())
			require.NoError(t, err)
			return ca
		}
		old, next := newAuthority(), newAuthority()
		write := func(path string, content []byte) { require.NoError(t, os.WriteFile(path, content, 0o600)) }
		issue := func(ca *pki.CA) (cert, key []byte) {
			cert, key, err := ca.IssueServer("one", []string{"localhost"}, time.Now())
			require.NoError(t, err)
			return cert, key
		}
		cert, key := issue(old)
		write(o.CertFile, cert)
		write(o.KeyFile, key)
		write(o.CAFile, old.CertificatePEM())
		s := certify(t, o)
		open := s.dial(old.CertificatePEM())
		require.NoError(t, open())

		cert, key = issue(next)
		write(o.CertFile, cert) // and the key follows later
		s.pass(0)
		require.InDelta(t, 1, s.figures()["failing/api"], 0)
		require.Contains(t, s.readyz(), "private key does not match")
		require.NoError(t, s.dial(old.CertificatePEM())(), "what was in use stays")
		write(o.KeyFile, key)
		write(o.CAFile, append(next.CertificatePEM(), old.CertificatePEM()...))
		s.pass(0)
		require.InDelta(t, 0, s.figures()["failing/api"], 0)
		require.NoError(t, s.dial(next.CertificatePEM())())
		require.Error(t, s.dial(old.CertificatePEM())(), "the certificate is that of the new authority")
		require.NoError(t, open())

		write(o.CAFile, next.CertificatePEM())
		s.hangups <- os.Interrupt // any signal
		synctest.Wait()
		require.Equal(t, string(next.CertificatePEM()), string(s.pki.CAPEM()))

		// It is not replaced in time.
		s.pass(s.pki.Expires().Sub(s.now()) - 10*day)
		require.Contains(t, s.readyz(), "[!] certificates: the certificate for api expires on "+s.pki.Expires().UTC().Format(time.DateTime)+" UTC\n")
		require.NoError(t, s.dial(next.CertificatePEM())())
		s.pass(10 * day)
		require.Contains(t, s.readyz(), "expired on")
		require.InDelta(t, 1, s.figures()["failing/api"], 0)
	})
}

// An authority near its end is reported, too.
func TestAnAuthorityThatEndsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := certify(t, Options{DataDir: t.TempDir()})
		s.pass(firstExpiry(s.pki.CAPEM()).Sub(s.now()) - 10*day)
		require.Contains(t, s.readyz(), "the authority of the certificate for api expires on")
		require.True(t, firstExpiry([]byte("nothing")).IsZero())
	})
}
