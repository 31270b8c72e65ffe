package zone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/clientconfig"
	"meridian/internal/consensus"
	"meridian/internal/livematch"
	"meridian/internal/pki"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/service/access"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/tokens"
	"meridian/internal/service/webhook"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/internal/version"
)

const (
	// startTimeout bounds how long a zone waits for its own store at its start.
	startTimeout = 60 * time.Second
	// localHistory bounds the past of what a federated zone owns, in bytes: mostly
	// that of dataplanes that came and went, about a thousand of them. Ten thousand
	// that come at once would leave ten times as much behind.
	localHistory = 4 << 20
	// firstSync is how long a zone that has never heard from its global waits
	// for it before it calls itself ready all the same.
	firstSync = 5 * time.Second
)

// zone is a running zone.
type zone struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	addresses server.Addresses
	pki       *pki.PKI
	ring      *token.Ring
	access    *authz.Authorizer
	// callers knows who makes each request, and ends the streams of those whose
	// token is revoked.
	callers *authn.Authenticator
	// local is what the zone owns, kept by node.
	local *store.Store
	node  *consensus.Node
	// failed is told why the zone's own log cannot go on.
	failed chan error
	// audit records what writer writes, and who was refused.
	audit  *audit.Log
	writer *audit.Writer
	// globalStore shows what the global owns; copy keeps it on disk and client up to
	// date. All nil in a standalone zone.
	globalStore *store.Store
	replica     *zonesync.Replica
	client      *zonesync.Client

	// conditions compiles the conditions of policies.
	conditions *condition.Compiler
	matching   *livematch.Matching
	inspect    *inspectService
	dataplanes *dataplane.Service
	grpc       *server.GRPC
	metrics    *prometheus.Registry
	// webhook is nil where it is off.
	webhook *webhook.Server
}

// Run runs a zone until ctx ends. A *server.UsageError means that it could not
// have started with this configuration; any other error, that it failed. hangups
// makes it read its certificates again.
//
// It stops in this order: it is no longer ready; running calls finish while the
// stream to the global and the matcher end; then health and metrics; then the
// globalStore and the zone's own log, when nobody can write to them any more; and
// last the record of what was written.
func Run(ctx context.Context, cfg Config, log *slog.Logger, hangups <-chan os.Signal) (err error) {
	var bundle clientconfig.ZoneBundle
	if cfg.federated() {
		if bundle, err = cfg.bundle(); err != nil {
			return err
		}
	}
	listeners, err := server.OpenListeners(cfg.Options)
	if err != nil {
		return err
	}
	z := &zone{cfg: cfg, log: log.With("zone", cfg.Name), now: time.Now, metrics: server.NewMetrics(), failed: make(chan error, 1)}
	z.addresses = listeners.Addresses()
	defer func() { err = errors.Join(err, z.close()) }()
	if err := z.open(ctx, bundle); err != nil {
		return errors.Join(err, listeners.Close())
	}
	return z.serve(ctx, listeners, hangups)
}

// localOptions are those of the store of what a zone owns.
func localOptions(federated bool) store.Options {
	options := store.DefaultOptions()
	if federated {
		options.ExternalMeshes = true
		options.History.MaxBytes = localHistory
	}
	return options
}

// establish opens the data directory and everything in it.
func (z *zone) open(ctx context.Context, bundle clientconfig.ZoneBundle) error {
	if err := server.PrepareDataDir(z.cfg.DataDir); err != nil {
		return err
	}
	z.local = store.New(localOptions(z.cfg.federated()))
	nodeConfig := consensus.DefaultConfig(z.cfg.DataDir)
	nodeConfig.NodeID = z.cfg.Name
	nodeConfig.Role = consensus.RoleZone
	nodeConfig.Logger = z.log
	z.writer = audit.NewWriter(z.cfg.Name, z.now, consensus.ErrUnknownOutcome)
	nodeConfig.Events.Applied, nodeConfig.Events.Snapshotting = z.writer.Applied, z.writer.Settle
	nodeConfig.Events.Stalled = func(file string, since time.Duration) {
		z.log.Error("the disk hangs: a write to the log does not finish", "file", file, "since", since)
	}
	nodeConfig.Events.Fatal = func(err error) {
		select {
		case z.failed <- err:
		default: // one reason is enough
		}
	}
	var err error
	if z.node, err = consensus.Open(ctx, nodeConfig, z.local); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := server.RemoveAddresses(z.cfg.DataDir); err != nil {
		return err
	}
	if err := server.RememberPorts(z.cfg.DataDir, z.addresses); err != nil {
		return err
	}
	if err := checkMode(z.cfg.DataDir, mode{FormatVersion: 1, Name: z.cfg.Name, Federated: z.cfg.federated()}); err != nil {
		return err
	}
	if z.pki, err = server.OpenPKI(z.cfg.Options, z.cfg.Name, z.addresses, z.now, z.log); err != nil {
		return err
	}
	if z.audit, err = server.OpenAudit(z.cfg.Options, z.metrics, z.now, z.log); err != nil {
		return err
	}
	z.writer.Open(z.node, z.audit)
	keys := token.RingConfig{Local: z.local.View, Zone: z.cfg.Name, Now: z.now}
	if z.cfg.federated() {
		// The replica is opened below, before anything is verified.
		keys.Global = func() *store.View { return z.globalStore.View() }
	}
	z.ring = token.NewRing(keys)
	z.access = authz.New(z.local.View)
	if z.cfg.federated() {
		return z.openReplica(bundle)
	}
	return nil
}

func (z *zone) openReplica(bundle clientconfig.ZoneBundle) error {
	z.globalStore = store.New(store.DefaultOptions())
	var err error
	z.replica, err = zonesync.OpenReplica(zonesync.ReplicaConfig{
		Dir: z.cfg.DataDir, Zone: resource.ZoneName(z.cfg.Name), Store: z.globalStore, AcceptWipe: z.cfg.AcceptWipe, Version: version.String(),
		Decode: func(meta resource.Meta, spec []byte) (*resource.Resource, error) {
			r, _, err := resource.Build(meta, spec)
			return r, err
		},
	})
	if err != nil {
		return fmt.Errorf("--data-dir %s: %w", z.cfg.DataDir, err)
	}
	for _, damage := range z.replica.Status().Damage {
		z.log.Error("a record of the replica is damaged: it is not served until the global repairs it", "record", damage)
	}
	credentials, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(bundle.CA), Source: z.bundleSource()})
	if err != nil {
		return &server.UsageError{Err: err}
	}
	z.inspect = &inspectService{zone: resource.ZoneName(z.cfg.Name)}
	client := zonesync.ClientConfig{
		Replica: z.replica, Addresses: bundle.Addresses, Credentials: credentials, Logger: z.log,
		Token:  tokenSource(z.cfg, bundle.Token, z.log),
		Answer: z.inspect.answerRelayed,
	}
	if z.cfg.LearnGlobalAddrs {
		client.Known = loadServers(z.cfg.DataDir, bundle.Addresses, z.log)
		client.Learn = func(learned []string) error { return saveServers(z.cfg.DataDir, bundle.Addresses, learned) }
	}
	z.client, err = zonesync.NewClient(client)
	return err
}

// bundleSource names the file that the global's CA came from, for error
// messages.
func (z *zone) bundleSource() string {
	if z.cfg.JoinBundle != "" {
		return z.cfg.JoinBundle
	}
	return z.cfg.GlobalCA
}

// close closes what open opened, as far as it came.
func (z *zone) close() error {
	var errs []error
	if z.replica != nil {
		errs = append(errs, z.replica.Close())
	}
	if z.node != nil {
		errs = append(errs, z.node.Close())
	}
	if z.audit != nil {
		errs = append(errs, z.audit.Close())
	}
	return errors.Join(errs...)
}

// serve makes the zone ready and runs it until ctx ends or a part fails.
func (z *zone) serve(ctx context.Context, listeners server.Listeners, hangups <-chan os.Signal) error {
	var ready server.Readiness
	health := server.NewHealth(z.log, z.metrics, server.Check{Name: "state", Ready: ready.Check}, server.Check{Name: "replica", Ready: z.replicaReady, Note: z.replicaNote}, server.Check{Name: "audit", Ready: z.audit.Err}, server.DiskCheck(z.node.Disk))
	group, ctx := errgroup.WithContext(ctx)
	// Health and metrics outlive the rest, so that a stop can be watched.
	healthContext, stopHealth := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return health.Serve(healthContext, listeners.HTTP) })
	group.Go(func() error {
		select {
		case err := <-z.failed:
			z.log.Error("this zone cannot go on and ends", "error", err)
			return err
		case <-ctx.Done():
			return nil
		}
	})
	group.Go(func() error {
		defer stopHealth()
		if err := z.start(ctx); err != nil {
			return errors.Join(err, listeners.CloseServices())
		}
		parts, ctx := errgroup.WithContext(ctx)
		if z.client != nil {
			parts.Go(func() error { return z.client.Run(ctx) })
		}
		parts.Go(func() error { return z.matching.Run(ctx) })
		parts.Go(func() error { return z.dataplanes.Run(ctx) })
		parts.Go(func() error { return z.audit.Run(ctx) })
		parts.Go(func() error { return z.ring.Follow(ctx, z.callers.Recheck, z.stores()...) })
		parts.Go(func() error { return z.grpc.Run(ctx, listeners.GRPC, server.StopTimeout) })
		if z.webhook != nil {
			parts.Go(func() error { return z.webhook.Run(ctx, listeners.Webhook, server.StopTimeout) })
		}
		parts.Go(func() error { return server.ReloadPKI(ctx, hangups, z.log, nil, z.pki) })
		parts.Go(func() error { return z.announce(ctx, &ready) })
		return parts.Wait()
	})
	return group.Wait()
}

// errNeverSynced means that the zone holds nothing of its global yet.
var errNeverSynced = errors.New("nothing has been received from the global yet")

// replicaReady is the readiness of what the global owns. A zone that has once
// been in sync is ready with the global away.
func (z *zone) replicaReady() error {
	if z.replica == nil || z.replica.Status().Revision > 0 {
		return nil
	}
	if last := z.client.Status().LastError; last != "" {
		return fmt.Errorf("%w: %s", errNeverSynced, last)
	}
	return errNeverSynced
}

// replicaNote tells who looks at a zone that is ready why it gets no changes.
func (z *zone) replicaNote() string {
	if z.replica == nil {
		return ""
	}
	return disconnectedNote(z.client.Status())
}

func disconnectedNote(s zonesync.ClientStatus) string {
	if s.Connected || s.LastError == "" {
		return ""
	}
	return "what is here is served, and no changes arrive: not connected to the global: " + s.Address + ": " + s.LastError
}

// start waits until the zone's own store has everything committed, and assembles
// the services.
func (z *zone) start(ctx context.Context) error {
	startContext, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-z.node.Ready():
	case <-startContext.Done():
		return errors.Join(fmt.Errorf("not ready: the zone's own log has no leader: %w", startContext.Err()), z.node.Disk().Err())
	}
	err := z.bootstrap(startContext)
	if err != nil {
		return err
	}
	if z.conditions, err = condition.NewCompiler(condition.DefaultOptions()); err != nil {
		return err
	}
	matcher := engines.NewMatcher(z.conditions)
	if z.globalStore != nil {
		z.matching = livematch.New(matcher, z.globalStore, z.local)
	} else {
		z.inspect = &inspectService{zone: resource.ZoneName(z.cfg.Name)}
		z.matching = livematch.New(matcher, z.local)
	}
	z.dataplanes = z.newDataplaneService()
	z.inspect.matching, z.inspect.quarantined, z.inspect.proxies = z.matching, z.quarantined, z.dataplanes
	z.callers = &authn.Authenticator{
		Verifier: z.verifier, LocalhostIsAdmin: z.cfg.LocalhostIsAdmin, Admit: dataplane.Authorize(authz.Doors(nil)), Refused: z.audit.Refused,
	}
	z.grpc = server.NewGRPC(z.log, z.pki.ServerTLS(), server.Calls{
		Enter:          []grpc.UnaryServerInterceptor{z.callers.Unary},
		Unary:          []grpc.UnaryServerInterceptor{z.audit.Unary},
		Stream:         []grpc.StreamServerInterceptor{z.callers.Stream, z.audit.Stream},
		StrangersWrite: z.access.StrangersWrite,
	})
	resources := z.admin()
	meridianv1.RegisterAdminServiceServer(z.grpc, resources)
	meridianv1.RegisterControlServiceServer(z.grpc, &controlService{zone: z})
	meridianv1.RegisterInspectServiceServer(z.grpc, z.inspect)
	meridianv1.RegisterDataplaneServiceServer(z.grpc, z.dataplanes)
	meridianv1.RegisterTokenServiceServer(z.grpc, tokens.New(tokens.Config{
		Ring: z.ring, Writer: z.writer, Access: z.access, Local: z.local.View, View: z.view, Uses: tokenUses(), Now: z.now,
	}))
	meridianv1.RegisterAccessServiceServer(z.grpc, access.New(z.access, z.node.Read))
	if z.cfg.WebhookAddr != "" {
		z.webhook = webhook.New(webhook.Config{
			Access: z.access, Read: z.node.Read, Review: resources.Review, Audit: z.audit,
			Certificate: z.pki.GetCertificate, Clients: z.cfg.WebhookClients(), Log: z.log,
		})
		z.metrics.MustRegister(z.webhook.Collector())
	}
	z.registerMetrics()
	return nil
}

// stores are those that the zone reads.
func (z *zone) stores() []*store.Store {
	if z.globalStore == nil {
		return []*store.Store{z.local}
	}
	return []*store.Store{z.local, z.globalStore}
}

// quarantined says why a received resource cannot be used here (§7.4),
// or nothing when it can.
func (z *zone) quarantined(key resource.Key) (policy.Condition, bool) {
	if z.replica == nil {
		return policy.Condition{}, false
	}
	for _, q := range z.replica.Status().Quarantined {
		if q.Key == key {
			return answer.Quarantined(resource.ZoneName(z.cfg.Name), q.Version, q.Message), true
		}
	}
	return policy.Condition{}, false
}

// verifier returns the keys of the moment.
func (z *zone) verifier() *token.Verifier { return z.ring.CurrentVerifier(z.log) }

// announce tells the outside that the zone is ready, and that it no longer is.
func (z *zone) announce(ctx context.Context, ready *server.Readiness) error {
	if err := server.WriteAdminContext(z.cfg.DataDir, z.cfg.Name, z.addresses.GRPC, z.pki.CAPEM(), z.ring.AdminToken()); err != nil {
		return err
	}
	z.awaitFirstSync(ctx)
	ready.SetReady()
	z.grpc.Ready(true)
	if err := server.WriteAddresses(z.cfg.DataDir, z.addresses); err != nil {
		return err
	}
	z.log.Info("ready", "role", z.role(), "grpc", z.addresses.GRPC, "http", z.addresses.HTTP, "revision", z.revision())
	<-ctx.Done()
	ready.SetStopping()
	z.log.Info("stopping", "reason", context.Cause(ctx))
	return server.RemoveAddresses(z.cfg.DataDir)
}

// awaitFirstSync gives a new zone the time to fetch what the global has, so that
// it does not refuse its first dataplanes for want of a mesh.
func (z *zone) awaitFirstSync(ctx context.Context) {
	if z.globalStore == nil || z.globalStore.Revision() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstSync)
	defer cancel()
	if err := z.globalStore.Wait(ctx, 1); err != nil && z.globalStore.Revision() == 0 {
		z.log.Warn("nothing received from the global yet: going on without", "error", z.client.Status().LastError)
	}
}

// revision is the one that answers hold for.
func (z *zone) revision() resource.Revision {
	if z.globalStore != nil {
		return z.globalStore.Revision()
	}
	return z.local.Revision()
}

func (z *zone) role() string {
	if z.globalStore != nil {
		return "zone"
	}
	return "standalone"
}

// registerMetrics adds what only a zone can tell.
func (z *zone) registerMetrics() {
	gauge := func(name, help string, value func() float64) {
		z.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	server.CertificateMetrics(z.metrics, map[string]*pki.PKI{"api": z.pki})
	server.RegisterDisk(z.metrics, z.node.Disk)
	gauge("meridian_revision", "The newest revision applied.", func() float64 { return float64(z.revision()) })
	gauge("meridian_dataplanes_connected", "Proxies that are connected.", func() float64 { return float64(z.dataplanes.Connected()) })
	gauge("meridian_dataplanes_behind", "Proxies that are connected and have changes of their configuration to take on.", func() float64 { return float64(z.dataplanes.Behind()) })
	z.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "meridian_configurations_sent_total", Help: "Configurations sent to proxies, full ones and changes.",
	}, func() float64 { return float64(z.dataplanes.Sent()) }))
	gauge("meridian_local_resources", "Resources that the zone owns.", func() float64 { return float64(z.local.View().Len()) })
	z.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "meridian_matcher_computed_total", Help: "How often the rules of one kind on one attachment were worked out.",
	}, func() float64 { return float64(z.matching.Computed()) }))
	z.metrics.MustRegister(z.matching.Collector())
	if z.replica == nil {
		return
	}
	gauge("meridian_replica_resources", "Resources received from the global.", func() float64 { return float64(z.replica.Status().Resources) })
	gauge("meridian_replica_damaged", "1 while part of the replica on disk is damaged and not repaired yet.", func() float64 {
		if len(z.replica.Status().Damage) > 0 {
			return 1
		}
		return 0
	})
	z.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "meridian_replica_repairs_total", Help: "How often the replica differed from the global at the same revision and was sent the difference.",
	}, func() float64 { return float64(z.replica.Status().Repairs) }))
	gauge("meridian_replica_quarantined", "Received resources that this zone cannot use.", func() float64 { return float64(len(z.replica.Status().Quarantined)) })
	gauge("meridian_connected", "1 while the zone follows the global.", func() float64 {
		if z.client.Status().Connected {
			return 1
		}
		return 0
	})
}
