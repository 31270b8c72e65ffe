package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is one named condition of readiness. Ready returns nil when it holds,
// and otherwise an error that says what is awaited. Note, unless nil, returns
// what should be known while it holds, "" for nothing.
type Check struct {
	Name  string
	Ready func() error
	Note  func() string
}

func (c Check) note() string {
	if c.Note == nil {
		return ""
	}
	return c.Note()
}

// Health serves /livez, /readyz (with ?verbose) and /metrics over plain HTTP,
// and nothing else.
type Health struct {
	server *http.Server
	log    *slog.Logger

	mu     sync.Mutex
	checks []Check // guarded by mu; appended to, never changed in place
}

// NewHealth returns the handler of the health endpoints. Checks run in order on
// every request and must not block.
func NewHealth(log *slog.Logger, metrics prometheus.Gatherer, checks ...Check) *Health {
	h := &Health{log: log, checks: checks}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { serveReady(w, r, h.current()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	h.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return h
}

// Add adds checks to a server that may be serving already: those of parts that
// have only now come to be.
func (h *Health) Add(checks ...Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(slices.Clone(h.checks), checks...)
}

func (h *Health) current() []Check {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checks
}

// Handler returns the HTTP handler, for use without a listener.
func (h *Health) Handler() http.Handler { return h.server.Handler }

// Serve answers on l until ctx ends. It closes l.
func (h *Health) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = h.server.Close() })
	defer stop()
	if err := h.server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}

func serveReady(w http.ResponseWriter, r *http.Request, checks []Check) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, verbose := r.URL.Query()["verbose"]
	results := make([]error, len(checks))
	code := http.StatusOK
	for i, c := range checks {
		if results[i] = c.Ready(); results[i] != nil {
			code = http.StatusServiceUnavailable
		}
	}
	w.WriteHeader(code)
	for i, c := range checks {
		switch {
		case results[i] != nil:
			_, _ = fmt.Fprintf(w, "[-] %s: %v\n", c.Name, results[i])
		case c.note() != "":
			_, _ = fmt.Fprintf(w, "[!] %s: %s\n", c.Name, c.note())
		case verbose:
			_, _ = fmt.Fprintf(w, "[+] %s\n", c.Name)
		}
	}
	if code == http.StatusOK {
		_, _ = fmt.Fprintln(w, "ok")
	}
}
