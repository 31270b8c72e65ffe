package webhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authz"
	"meridian/internal/pki"
	"meridian/internal/resource"
)

// certify writes a certificate of its own authority and returns what trusts it.
func certify(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	now := time.Now()
	ca, err := pki.NewCA(now)
	require.NoError(t, err)
	cert, key, err := ca.IssueServer("webhook", []string{"127.0.0.1", "meridian-webhook.meridian-system.svc"}, now)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca.CertificatePEM()))
	return pool
}

// serveTLS serves reviews over TLS. renew replaces the certificate files.
func serveTLS(t *testing.T, adapt func(c *Config, dir string)) (renew func() *x509.CertPool, pool *x509.CertPool, p *pki.PKI, addr string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool = certify(t, certFile, keyFile)
	p, err := pki.Open(pki.Config{DataDir: dir, CertFile: certFile, KeyFile: keyFile, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c := config(t, world(t))
	c.Certificate = p.GetCertificate
	adapt(&c, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(start(t, New(c), l))
	return func() *x509.CertPool { return certify(t, certFile, keyFile) }, pool, p, l.Addr().String()
}

// start runs a server on l, and returns what stops it and waits for it.
func start(t *testing.T, s *Server, l net.Listener) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l, time.Minute) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// client is an API server: it trusts pool and asks for a name of the service.
func client(pool *x509.CertPool, version uint16) *http.Client {
	return &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool, ServerName: "meridian-webhook.meridian-system.svc", MaxVersion: version},
	}}
}

func ask(t *testing.T, c *http.Client, addr string, body []byte) (*response, *http.Response) {
	t.Helper()
	r, err := c.Post("https://"+addr+Path+"?timeout=10s", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	var answer review
	require.NoError(t, json.NewDecoder(r.Body).Decode(&answer))
	return answer.Response, r
}

func TestReviewsOverHTTPS(t *testing.T) {
	renew, first, p, addr := serveTLS(t, func(*Config, string) {})
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			answer, r := ask(t, client(first, version), addr, recorded(t, "create"))
			require.True(t, answer.Allowed)
			require.Equal(t, version, r.TLS.Version)
			require.Equal(t, 2, r.ProtoMajor, "API servers speak HTTP/2 to a url, and HTTP/1.1 to a service")
		})
	}
	t.Run("older TLS", func(t *testing.T) {
		_, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: first, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
		require.ErrorContains(t, err, "protocol version")
	})
	t.Run("plaintext", func(t *testing.T) {
		r, err := http.Post("http://"+addr+Path, "application/json", bytes.NewReader(recorded(t, "create")))
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, http.StatusBadRequest, r.StatusCode)
	})
	t.Run("a new certificate", func(t *testing.T) {
		standing := client(first, tls.VersionTLS13)
		ask(t, standing, addr, recorded(t, "create"))
		second := renew()
		_, err := client(second, tls.VersionTLS13).Get("https://" + addr + Path)
		require.ErrorContains(t, err, "certificate", "the files are read on Reload only")
		require.NoError(t, p.Reload())
		answer, _ := ask(t, client(second, tls.VersionTLS13), addr, recorded(t, "create"))
		require.True(t, answer.Allowed)
		_, err = client(first, tls.VersionTLS13).Get("https://" + addr + Path)
		require.ErrorContains(t, err, "certificate", "new connections get the new one")
		answer, _ = ask(t, standing, addr, recorded(t, "create"))
		require.True(t, answer.Allowed, "an established connection is not affected")
	})
}

// With a client CA only its clients are answered, and a change of the CA takes
// effect on the next connection.
func TestOnlyClientsOfTheAuthorityAsk(t *testing.T) {
	authorities := ""
	_, pool, _, addr := serveTLS(t, func(c *Config, dir string) {
		authorities = filepath.Join(dir, "clients.pem")
		c.Clients = func() (*x509.CertPool, error) { return pki.ReadAuthorities(authorities) }
	})
	apiServer := func() *http.Client {
		ca, err := pki.NewCA(time.Now())
		require.NoError(t, err)
		cert, key, err := ca.IssueServer("kube-apiserver", nil, time.Now())
		require.NoError(t, err)
		own, err := tls.X509KeyPair(cert, key)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(authorities, ca.CertificatePEM(), 0o600))
		c := client(pool, tls.VersionTLS13)
		c.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &own, nil // whichever CA the server names
		}
		return c
	}
	refused := func(c *http.Client, why string) {
		t.Helper()
		conn, err := tls.Dial("tcp", addr, c.Transport.(*http.Transport).TLSClientConfig)
		if err == nil { // with TLS 1.3 it is the server that finishes last
			defer conn.Close()
			_, err = conn.Read(make([]byte, 1))
		}
		require.ErrorContains(t, err, "remote error: tls: "+why)
	}

	first := apiServer()
	answer, r := ask(t, first, addr, recorded(t, "create"))
	require.True(t, answer.Allowed)
	require.Equal(t, 2, r.ProtoMajor)
	refused(client(pool, tls.VersionTLS13), "certificate required")
	refused(client(pool, tls.VersionTLS12), "handshake failure")
	second := apiServer()
	answer, _ = ask(t, second, addr, recorded(t, "create"))
	require.True(t, answer.Allowed)
	answer, _ = ask(t, first, addr, recorded(t, "create"))
	require.True(t, answer.Allowed, "an established connection is not affected")
	refused(first, "unknown certificate authority")
	require.NoError(t, os.WriteFile(authorities, nil, 0o600))
	refused(second, "internal error")
}

// held keeps a decision back until it is let go.
type held struct {
	Access
	asked, release chan struct{}
}

func (h held) Admit(ctx context.Context, c authz.Change) (authz.Admission, error) {
	close(h.asked)
	<-h.release
	return h.Access.Admit(ctx, c)
}

func TestAStopLetsRunningReviewsFinish(t *testing.T) {
	dir := t.TempDir()
	pool := certify(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	c := config(t, world(t))
	c.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
	h := held{c.Access, make(chan struct{}), make(chan struct{})}
	c.Access = h
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := New(c)
	go func() { ended <- s.Run(ctx, l, time.Minute) }()
	stopping := make(chan struct{})
	s.http.RegisterOnShutdown(func() { close(stopping) })
	go func() {
		<-h.asked
		cancel()
		<-stopping
		close(h.release)
	}()
	answer, _ := ask(t, client(pool, tls.VersionTLS13), l.Addr().String(), recorded(t, "create"))
	require.True(t, answer.Allowed)
	require.NoError(t, <-ended)
}

// pipes is a listener whose connections are made in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// A caller that says little, slowly, is cut off: before the handshake, in the
// middle of the header, and in the middle of the body. Time is simulated.
func TestSlowCallersAreCutOff(t *testing.T) {
	const header = "POST " + Path + " HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"
	tests := map[string]struct {
		handshake bool
		send      []string // one piece a second
		within    time.Duration
	}{
		"silence":                  {within: headerTimeout},
		"silence after handshake":  {handshake: true, within: headerTimeout},
		"a header without end":     {handshake: true, send: []string{"POST " + Path, " HTTP/1.1\r\n", "Host: w\r\n", "X: ", "a", "a", "a", "a", "a", "a", "a"}, within: headerTimeout},
		"a body that never starts": {handshake: true, send: []string{header + "Content-Length: 100\r\n\r\n"}, within: readTimeout},
		"a body that never ends": {
			handshake: true, within: readTimeout,
			send: []string{header + "Content-Length: 100\r\n\r\n", "{", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " ", " "},
		},
	}
	dir := t.TempDir()
	pool := certify(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := config(t, world(t))
				c.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
				l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				defer start(t, New(c), l)()
				clientTLS := &tls.Config{
					RootCAs: pool, ServerName: "127.0.0.1",
					// The simulated clock stands before the certificate.
					Time: func() time.Time { return leaf.NotBefore.Add(time.Hour) },
				}

				began := time.Now()
				slow := l.dial()
				defer slow.Close()
				if tt.handshake {
					conn := tls.Client(slow, clientTLS)
					require.NoError(t, conn.Handshake())
					slow = conn
				}
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for _, piece := range tt.send {
						if _, err := io.WriteString(slow, piece); err != nil {
							return // cut off, as it should be
						}
						<-time.After(time.Second)
					}
				}()
				_, _ = io.Copy(io.Discard, slow) // until the server hangs up, in whatever way
				require.InDelta(t, tt.within.Seconds(), time.Since(began).Seconds(), 1)
				_ = slow.Close()
				<-sent

				// The server is as well as before.
				conn := tls.Client(l.dial(), clientTLS)
				defer conn.Close()
				request, err := http.NewRequest(http.MethodPost, "https://webhook"+Path, bytes.NewReader(recorded(t, "create")))
				require.NoError(t, err)
				request.Header.Set("Content-Type", "application/json")
				request.Close = true
				require.NoError(t, request.Write(conn))
				answer, err := http.ReadResponse(bufio.NewReader(conn), request)
				require.NoError(t, err)
				defer answer.Body.Close()
				require.Equal(t, http.StatusOK, answer.StatusCode)
			})
		})
	}
}

// A decision that does not come in time is none.
func TestAnEndlessReadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(t, world(t))
		c.Read = func(ctx context.Context) (resource.Revision, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}
		began := time.Now()
		w := post(New(c), recorded(t, "create"))
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Equal(t, decideTimeout, time.Since(began))
	})
}

// Large, slow reviews are aborted in favor of later ones.
func TestLargeReviewsArePreempted(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := certify(t, certFile, keyFile)
	pki, err := pki.Open(pki.Config{DataDir: dir, CertFile: certFile, KeyFile: keyFile, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c := config(t, world(t))
	c.Certificate = pki.GetCertificate
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := New(c)
	defer start(t, server, l)()

	body := bytes.Repeat([]byte(" "), MaxBodyBytes-1)
	for _, version := range []string{"http/1.1", "h2"} {
		const burst = totalBytes/MaxBodyBytes + 2 // two more than fit
		answers := make(chan string, burst)
		for range burst {
			sent, slow := io.Pipe()
			transport := &http.Transport{ForceAttemptHTTP2: version == "h2", TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}}
			defer transport.CloseIdleConnections()
			defer func() { _ = slow.Close() }()
			go func() {
				r, err := (&http.Client{Transport: transport}).Post("https://"+l.Addr().String()+Path, "application/json", sent)
				if err != nil {
					answers <- err.Error()
					return
				}
				defer r.Body.Close()
				text, _ := io.ReadAll(r.Body)
				answers <- string(text)
			}()
			_, _ = slow.Write(body) // or it is given up while it sends
			answer, _ := ask(t, client(pool, tls.VersionTLS13), l.Addr().String(), recorded(t, "create"))
			require.True(t, answer.Allowed, "a fast review is answered")
		}
		for range 2 {
			require.Contains(t, <-answers, `"message":"the request took long to arrive, and the server needed the memory for others","reason":"ServiceUnavailable","code":503`)
		}
	}
}
