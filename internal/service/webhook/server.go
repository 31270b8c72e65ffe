package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/audit"
	"meridian/internal/authz"
	"meridian/internal/resource"
	"meridian/internal/server/limits"
)

// Path is where reviews are answered.
const Path = "/validate"

// MaxBodyBytes bounds one review: an object and what it replaces, each several
// times what Kubernetes stores.
const MaxBodyBytes = 8 << 20

// Limits on the memory of reviews that have not been answered.
const (
	totalBytes = 8 * MaxBodyBytes
	// clientBytes is the part of one client, where every client may ask.
	clientBytes = totalBytes / 4
	// firstRead is the first size of the buffer for a review, which doubles as it
	// fills.
	firstRead = 64 << 10
)

// Time limits. The API server waits for 10 s by default and 30 s at most.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	decideTimeout = 5 * time.Second
	writeTimeout  = 20 * time.Second // from the end of the header
	idleTimeout   = 90 * time.Second
	maxHeader     = 16 << 10
)

// Access decides changes. *authz.Authorizer implements it.
type Access interface {
	// EarlyReview refuses a change of which only the kind and maybe the name are
	// known, where Admit would whatever the content. The error is that of Admit.
	EarlyReview(ctx context.Context, access resource.Access, key resource.Key) error
	// Admit decides whether the principal of ctx may make a change. The error is
	// an *rpcerr.Error; of code Denied it is an answer, of any other code none.
	Admit(ctx context.Context, c authz.Change) (authz.Admission, error)
}

// Recorder keeps the record of denials. *audit.Log implements it.
type Recorder interface {
	Write(r audit.Record)
}

// Config is what a Server needs. Every field is required unless marked
// otherwise.
type Config struct {
	Access Access
	// Read waits until the rules that Access decides by hold every write
	// acknowledged before the call.
	Read func(ctx context.Context) (resource.Revision, error)
	// Review returns what the author of a resource should know, or, as a
	// *resource.DocumentError, why it can never be used. Optional.
	Review func(ctx context.Context, r *resource.Resource) (warnings []string, err error)
	// Audit is given every denial before it is answered. Optional.
	Audit Recorder
	// Certificate returns the current certificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Clients returns the authorities of the moment whose clients alone may ask.
	// Optional: without it every client may.
	Clients func() (*x509.CertPool, error)
	// Refused is called with the name of each limit that refuses a review. It must
	// not block. Optional.
	Refused func(limit string)
	Log     *slog.Logger
}

// Server answers reviews. It is safe for concurrent use.
type Server struct {
	cfg     Config
	http    *http.Server
	reviews *prometheus.CounterVec
	limit   *limits.Pool
	// small and large are the turns of reviews, by the size of their objects.
	small, large *limits.Turns
}

// New returns a server that is not serving yet.
func New(cfg Config) *Server {
	share := int64(totalBytes) // of an API server, which asks for everyone
	if cfg.Clients == nil {
		share = clientBytes
	}
	s := &Server{cfg: cfg, limit: limits.New(totalBytes, share), reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meridian_webhook_reviews_total",
		Help: "Requests to the admission webhook, by operation and outcome (allowed, denied, invalid, ignored, refused, failed).",
	}, []string{"operation", "outcome"})}
	s.small, s.large = newTurns(perProcessor*runtime.GOMAXPROCS(0)), newTurns(1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+Path, s.serve)
	s.http = &http.Server{
		Handler:           mux,
		TLSConfig:         serverTLS(cfg),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// serverTLS returns the TLS configuration. API servers may be limited to TLS 1.2.
func serverTLS(cfg Config) *tls.Config {
	open := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cfg.Certificate}
	if cfg.Clients == nil {
		return open
	}
	closed := open.Clone()
	closed.NextProtos = []string{"h2", "http/1.1"} // as the HTTP server has it for the other
	closed.ClientAuth = tls.RequireAndVerifyClientCert
	closed.SessionTicketsDisabled = true // a session would outlive its authority
	open.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		authorities, err := cfg.Clients()
		if err != nil {
			cfg.Log.Error("no client can call the admission webhook: the CA of its clients cannot be read", "error", err)
			return nil, err
		}
		now := closed.Clone()
		now.ClientCAs = authorities
		return now, nil
	}
	return open
}

// Handler returns the HTTP handler, for use without a listener.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Collector returns the metrics of the server.
func (s *Server) Collector() prometheus.Collector { return s.reviews }

// Run serves HTTPS on l until ctx ends, then lets running reviews finish for at
// most grace before it cuts them off. It closes l.
func (s *Server) Run(ctx context.Context, l net.Listener, grace time.Duration) error {
	served := make(chan error, 1)
	go func() { served <- s.http.ServeTLS(l, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the admission webhook: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := s.http.Shutdown(stopping); err != nil {
		_ = s.http.Close() // what is left had its time
	}
	if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the admission webhook: %w", err)
	}
	return nil
}

// serve answers one review.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	reading := &reading{w: w}
	defer reading.end()
	client := clientOf(r)
	arriving, err := s.limit.Begin(client, firstRead, reading.stop)
	if err != nil {
		s.exceeded(limitBytes)
		s.refuse(w, "", http.StatusServiceUnavailable, err)
		return
	}
	defer arriving.Done()
	body, code, err := readBody(w, r, arriving)
	if err != nil {
		s.refuse(w, "", code, err)
		return
	}
	req, err := decodeReview(body)
	if err != nil {
		s.refuse(w, "", http.StatusBadRequest, err)
		return
	}
	req.from, req.client = r.RemoteAddr, client
	ctx, cancel := context.WithTimeout(r.Context(), decideTimeout)
	defer cancel()
	answer, err := s.decide(ctx, req)
	if errors.Is(err, errMalformed) {
		s.refuse(w, req.Operation, http.StatusBadRequest, err)
		return
	}
	var full *limits.Exceeded
	if errors.As(err, &full) {
		s.exceeded(full.Limit)
		w.Header().Set("Retry-After", "1")
		s.refuse(w, req.Operation, http.StatusTooManyRequests, full)
		return
	}
	if err != nil {
		s.cfg.Log.Error("no decision on a review", "uid", req.UID, "operation", req.Operation, "error", err)
		s.refuse(w, req.Operation, http.StatusServiceUnavailable, err)
		return
	}
	s.report(req, answer)
	s.answer(w, answer)
}

// limitBytes is the name of the limit on the bytes of reviews, as in metrics.
const limitBytes = "webhook_bytes"

// exceeded reports a review that a limit refuses.
func (s *Server) exceeded(limit string) {
	if s.cfg.Refused != nil {
		s.cfg.Refused(limit)
	}
}

// clientOf is what counts as one client.
func clientOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return limits.Origin(net.TCPAddrFromAddrPort(at)).String()
}

// reading is a request whose body is being read.
type reading struct {
	mu sync.Mutex
	w  http.ResponseWriter // guarded by mu; nil once its handler returns, when it is another's
}

// stop ends a read that waits. The request can still be answered.
func (r *reading) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.w != nil {
		_ = http.NewResponseController(r.w).SetReadDeadline(time.Unix(1, 0))
	}
}

func (r *reading) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.w = nil
}

// readBody reads a request's body; code is the HTTP status of an error.
func readBody(w http.ResponseWriter, r *http.Request, arriving *limits.Request) (body []byte, code int, err error) {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("the Content-Type is %q; expected application/json", r.Header.Get("Content-Type"))
	}
	body, err = readAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes), arriving)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the review is larger than %d MiB", MaxBodyBytes>>20)
	case arriving.Aborted():
		return nil, http.StatusServiceUnavailable, limits.ErrAborted
	case errors.Is(err, limits.ErrFull):
		return nil, http.StatusServiceUnavailable, err
	case err != nil:
		return nil, http.StatusBadRequest, fmt.Errorf("the body could not be read: %w", err)
	}
	return body, http.StatusOK, nil
}

// readAll reads a body; firstRead of its bytes are accounted for.
func readAll(r io.Reader, arriving *limits.Request) ([]byte, error) {
	data := make([]byte, 0, firstRead)
	for {
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case errors.Is(err, io.EOF):
			return data, arriving.Received(int64(cap(data)))
		case err != nil:
			return nil, err
		case len(data) < cap(data):
			continue
		}
		if err := arriving.Grow(int64(cap(data))); err != nil {
			return nil, err
		}
		data = append(make([]byte, 0, 2*cap(data)), data...)
	}
}

// refuse answers what cannot be decided. An API server passes on what a Status of
// Kubernetes says, and nothing else.
func (s *Server) refuse(w http.ResponseWriter, op operation, code int, err error) {
	outcome := "refused"
	if code >= http.StatusInternalServerError {
		outcome = "failed"
	}
	s.reviews.WithLabelValues(string(op), outcome).Inc()
	reason := strings.ReplaceAll(http.StatusText(code), " ", "") // as Kubernetes spells them
	body, _ := json.Marshal(failure{                             // two texts and a number: it cannot fail
		APIVersion: "v1", Kind: "Status", status: status{Status: statusFailure, Message: err.Error(), Reason: reason, Code: code},
	})
	send(w, code, body)
}

// report counts a decision and logs a refusal.
func (s *Server) report(r *request, answer *response) {
	outcome := "allowed"
	switch {
	case !answer.Allowed && answer.Status.Code == http.StatusForbidden:
		outcome = "denied"
	case !answer.Allowed:
		outcome = "invalid"
	case !r.ours() || r.Operation == opConnect:
		outcome = "ignored"
	}
	s.reviews.WithLabelValues(string(r.Operation), outcome).Inc()
	if !answer.Allowed {
		s.cfg.Log.Info("refused a change in Kubernetes", "outcome", outcome, "uid", r.UID, "user", r.UserInfo.Username, "operation", r.Operation,
			"kind", r.Kind.Kind, "name", r.Name, "dry_run", r.DryRun, "message", answer.Status.Message)
	}
}

// answer sends a decision.
func (s *Server) answer(w http.ResponseWriter, answer *response) {
	body, err := encodeReview(answer)
	if err != nil {
		s.cfg.Log.Error("cannot encode the answer to a review", "uid", answer.UID, "error", err)
		http.Error(w, "the server failed on this review; its log says more", http.StatusInternalServerError)
		return
	}
	send(w, http.StatusOK, body)
}

func send(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails only when the caller has disconnected
}
