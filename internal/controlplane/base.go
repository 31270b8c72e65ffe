package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"meridian/internal/atomicfile"
	"meridian/internal/atrest"
	"meridian/internal/clientconfig"
	"meridian/internal/livematch"
	"meridian/internal/pki"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/service/webhook"
	"meridian/internal/turns"
)

// Base is a running server, as far as the global and a zone share it. Fields are
// set by the step of the start that is named beside them, and not changed later.
type Base struct {
	Options server.Options
	Name    string
	Log     *slog.Logger
	Now     func() time.Time

	// Encryption are the keys of what is on disk, from before Open on.
	Encryption *atrest.Keys
	// Secrets are the files of the data directory, beside the log and its snapshots,
	// that are encrypted with these keys. A server adds its own before Run.
	Secrets []string

	// By Open.
	Listeners server.Listeners
	Limits    *server.Limits
	Addresses server.Addresses
	// Reaches are the addresses that others reach this server by. A server adds its
	// own before it opens anything.
	Reaches   []server.Reach
	Metrics   *prometheus.Registry
	Readiness server.Readiness
	Health    *server.Health
	Turns     *turns.Turns
	failed    chan error

	PKI          *pki.PKI             // by the server, before it opens the node
	certificates *server.Certificates // by UseCertificates, before Serve
	Storage
	Access

	// Conditions compiles the conditions of policies, and Matching follows the
	// stores: by the server, before Assemble.
	Conditions *condition.Compiler
	Matching   *livematch.Matching

	GRPC    *server.GRPC    // by Assemble
	servers func() []string // by Assemble: the addresses of all; nil where there is one
	Webhook *webhook.Server // by Assemble; nil where it is off

	// writingContext is held while the client context is written.
	writingContext sync.Mutex
}

// Open binds the listeners. Nothing is written yet. Run closes them.
func Open(o server.Options, name string, log *slog.Logger) (*Base, error) {
	listeners, err := server.OpenListeners(o)
	if err != nil {
		return nil, err
	}
	limits := server.NewLimits(o.Limits)
	listeners = limits.Bound(listeners)
	b := &Base{
		Limits: limits, Options: o, Name: name, Log: log, Now: time.Now,
		Listeners: listeners, Addresses: listeners.Addresses(), Metrics: server.NewMetrics(), Turns: turns.NewServer(), failed: make(chan error, 1),
	}
	b.Reaches, b.Secrets = o.Reaches(b.Addresses), pki.SecretFiles(o.DataDir)
	b.Health = server.NewHealth(log, b.Metrics, server.Check{Name: "state", Ready: b.Readiness.Check})
	return b, nil
}

// Server is what the global and a zone add to a Base.
type Server interface {
	// Open opens the data directory and what is in it. When ctx ends meanwhile, its
	// error is ignored.
	Open(ctx context.Context) error
	// Serve runs the server until ctx ends or a part fails.
	Serve(ctx context.Context) error
	// Close closes what Open opened beside the Base, as far as it came.
	Close() error
}

// Run runs a server until ctx ends or a part of it fails.
func (b *Base) Run(ctx context.Context, s Server) error {
	done := make(chan error, 1)
	go func() { done <- b.run(ctx, s) }() // ends before this function, unless it cannot be waited for
	select {
	case err := <-done:
		return err
	case err := <-b.failed:
		// What hangs or would be wrong is left as it is: the process ends. Nothing is
		// lost, since every acknowledged write is on disk.
		// The node has logged why.
		return err
	}
}

func (b *Base) run(ctx context.Context, s Server) (err error) {
	defer func() { err = errors.Join(err, s.Close(), b.close()) }()
	health, stopHealth := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.Health.Serve(health, b.Listeners.HTTP) })
	group.Go(func() error {
		server.AdjustGC(ctx, b.Readiness.Started)
		return nil
	})
	group.Go(func() error {
		defer stopHealth()
		err := b.loadKeys()
		if err == nil {
			err = s.Open(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				err = nil // it was asked to stop before it had started
			}
			return errors.Join(err, b.Listeners.CloseServices())
		}
		return s.Serve(ctx)
	})
	return group.Wait()
}

// readableByOthers is the permission of a file that neither its owner nor its group need.
const readableByOthers fs.FileMode = 0o004

// loadKeys reads the file of encryption keys, before anything else of the server's
// is read, and makes sure that they can read the server's secrets.
func (b *Base) loadKeys() (err error) {
	if b.Encryption, err = atrest.Load(b.Options.EncryptionKeyFile); err != nil {
		return fmt.Errorf("--encryption-key-file: %w", err)
	}
	if info, err := os.Stat(b.Options.EncryptionKeyFile); err == nil && info.Mode().Perm()&readableByOthers != 0 {
		b.Log.Warn("every user of this host can read the encryption keys: restrict the file to the user of the server", "file", b.Options.EncryptionKeyFile)
	}
	if err := b.Encryption.CheckFiles(b.Secrets...); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return nil
}

// Encrypts reports whether the server encrypts what it keeps on disk.
func (b *Base) Encrypts() bool {
	_, ok := b.Encryption.First()
	return ok
}

// encryptSecrets brings the secrets beside the log to the state that the keys ask
// for, once the log has been. The client context is written again at the end of the
// start; one with a token that is not to be there goes now, in case the start fails.
func (b *Base) encryptSecrets() error {
	if err := b.Encryption.RewriteFiles(pki.MaxSecretBytes, b.Secrets...); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if b.keepsToken() {
		return nil
	}
	context := b.adminContext()
	if err := atomicfile.RemoveLeftovers(context); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if contexts, err := clientconfig.LoadContexts(context); err == nil && !slices.ContainsFunc(contexts.ControlPlanes, func(c clientconfig.ControlPlane) bool { return c.Token != "" }) {
		return nil
	}
	if err := os.Remove(context); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data-dir: remove the admin token from the data directory: %w", err)
	}
	return nil
}

// adminContext is the client context in the data directory.
func (b *Base) adminContext() string {
	return filepath.Join(b.Options.DataDir, server.AdminContextFile)
}

// keepsToken reports whether the client context in the data directory has the admin
// token.
func (b *Base) keepsToken() bool { return b.Options.AdminContextFile == "" && !b.Encrypts() }

// UseCertificates reports on the certificates of the server, by what they are for, and
// has Serve keep them up to date.
func (b *Base) UseCertificates(certificates map[string]*pki.PKI) {
	b.certificates = server.NewCertificates(b.Now, b.Log, certificates)
	b.Metrics.MustRegister(b.certificates)
	b.Health.Add(b.certificates.Check())
}

// Serve adds to parts what every server runs: the API, the audit log and the
// certificates, which are read again at each of hangups. reloaded, unless nil, is
// called after that.
func (b *Base) Serve(ctx context.Context, parts *errgroup.Group, hangups <-chan os.Signal, reloaded func()) {
	parts.Go(func() error { return b.GRPC.Run(ctx, b.Listeners.GRPC, server.StopTimeout) })
	parts.Go(func() error { return b.Audit.Run(ctx) })
	parts.Go(func() error { return server.RememberPorts(b.Options.DataDir, b.Addresses) })
	parts.Go(func() error { return b.certificates.Run(ctx, hangups, reloaded) })
}

// ServeWebhook adds the webhook to parts, where it is on.
func (b *Base) ServeWebhook(ctx context.Context, parts *errgroup.Group) {
	if b.Webhook != nil {
		parts.Go(func() error { return b.Webhook.Run(ctx, b.Listeners.Webhook, server.StopTimeout) })
	}
}

// Announce tells the outside that the server is ready, and, when ctx ends, that
// it no longer is. about is added to the line of the log.
func (b *Base) Announce(ctx context.Context, about ...any) error {
	b.Readiness.SetReady()
	b.GRPC.Ready(true)
	if err := server.WriteAddresses(b.Options.DataDir, b.Addresses); err != nil {
		return err
	}
	b.Log.Info("ready", append(about, "grpc", b.Addresses.GRPC, "http", b.Addresses.HTTP)...)
	<-ctx.Done()
	b.Readiness.SetStopping()
	b.Log.Info("stopping", "reason", context.Cause(ctx))
	return server.RemoveAddresses(b.Options.DataDir)
}

// ReissueAdminToken replaces the bootstrap admin token where the options ask for
// it. It is for the end of a start, once the log takes writes.
func (b *Base) ReissueAdminToken(ctx context.Context) error {
	if !b.Options.ReissueAdminToken {
		return nil
	}
	if !b.keepsToken() && b.Options.AdminContextFile == "" {
		b.Log.Warn("the admin token is stored encrypted, and in no client context: to get it, name a file outside of the data directory with --admin-context-file")
	}
	if err := b.Keys.ReissueAdmin(ctx, b.Writer); err != nil {
		return fmt.Errorf("--reissue-admin-token: %w", err)
	}
	var where []any
	if b.keepsToken() || b.Options.AdminContextFile != "" {
		where = []any{"context", cmp.Or(b.Options.AdminContextFile, b.adminContext())}
	}
	b.Log.Warn("the admin token was replaced, and the one before is revoked: start without --reissue-admin-token from now on", where...)
	return nil
}

// FollowAdminToken writes the client context again whenever the admin token has
// changed, until ctx ends.
func (b *Base) FollowAdminToken(ctx context.Context) error {
	written := b.Keys.AdminToken()
	for v := b.Store.View(); ; {
		next, err := b.Store.AwaitKinds(ctx, v, resource.KindGlobalSecret)
		if err != nil {
			return nil // ctx has ended
		}
		if now := b.Keys.AdminToken(); now != written && now != "" {
			if err := b.WriteAdminContext(); err != nil {
				b.Log.Error("cannot write the client context with the new admin token", "error", err)
			}
			written = now
		}
		v = next
	}
}

// followServersEvery is how often a server looks whether the others have changed.
const followServersEvery = 5 * time.Second

// FollowServers writes the client context again whenever the servers have changed,
// until ctx ends.
func (b *Base) FollowServers(ctx context.Context) error {
	var written []string
	tick := time.NewTicker(followServersEvery)
	defer tick.Stop()
	for {
		if now := b.servers(); len(now) > 0 && !slices.Equal(now, written) && b.Keys.AdminToken() != "" {
			if err := b.WriteAdminContext(); err != nil {
				b.Log.Error("cannot write the client context with the servers of the global: trying again", "error", err)
			} else {
				written = now
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// WriteAdminContext writes the client context by which an operator on this host
// reaches the server, and the one with the admin token where that is another file.
func (b *Base) WriteAdminContext() error {
	b.writingContext.Lock()
	defer b.writingContext.Unlock()
	token := b.Keys.AdminToken()
	write := func(path, token string) error {
		c := server.AdminContext{
			Path: path, Operators: path == b.Options.AdminContextFile,
			Name: b.Name, Address: b.Addresses.GRPC, CA: b.PKI.CAPEM(), Token: token, Alone: b.servers == nil,
		}
		if b.servers != nil {
			c.Servers = b.servers()
		}
		return c.Write()
	}
	if b.keepsToken() {
		return write(b.adminContext(), token)
	}
	if err := write(b.adminContext(), ""); err != nil {
		return err
	}
	if path := b.Options.AdminContextFile; path != "" {
		if err := write(path, token); err != nil {
			return fmt.Errorf("--admin-context-file: %w", err)
		}
	}
	return nil
}

// fail ends the process: see Run.
func (b *Base) fail(err error) {
	select {
	case b.failed <- err:
	default: // one reason is enough
	}
}

// Gauge adds a metric without labels.
func (b *Base) Gauge(name, help string, value func() float64) {
	b.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// Counter adds a counter without labels.
func (b *Base) Counter(name, help string, value func() float64) {
	b.Metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value))
}

// registerMetrics adds what every server reports.
func (b *Base) registerMetrics() {
	server.RegisterDisk(b.Metrics, b.Node.Disk)
	b.Metrics.MustRegister(b.Limits, b.Matching.Collector(), b.Turns.Collector(), b.GRPC.Collector(), newFindings(b.Matching, time.Now))
	if b.Webhook != nil {
		b.Metrics.MustRegister(b.Webhook.Collector())
	}
}
