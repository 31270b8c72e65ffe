package global

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/access"
	"meridian/internal/admin"
	"meridian/internal/audit"
	"meridian/internal/auth"
	"meridian/internal/consensus"
	"meridian/internal/keyring"
	"meridian/internal/matching"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/inherit"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/internal/tokens"
	"meridian/internal/webhook"
)

// startTimeout bounds how long a server waits for its own cluster at its start.
const startTimeout = 60 * time.Second

// global is a running server.
type global struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	addresses server.Addresses
	pki       *auth.PKI
	store     *store.Store
	node      *consensus.Node
	gossip    *consensus.Gossip
	// audit records what writer writes, and who was refused.
	audit  *audit.Log
	writer *audit.Writer
	ring   *keyring.Ring
	access *access.Authorizer
	tokens *tokens.Service
	// callers knows who makes each request, and ends the streams of those whose
	// token is revoked.
	callers *auth.Authenticator
	sync    *zonesync.Server
	// conditions compiles the conditions of policies.
	conditions *condition.Compiler
	matching   *matching.Matching
	grpc       *server.GRPC
	metrics    *prometheus.Registry
	// webhook is nil where it is off.
	webhook *webhook.Server
}

// Run runs a server of the global until ctx ends. A *server.UsageError means
// that it could not have started with this configuration; any other error, that
// it failed. hangups makes it read its certificates again.
//
// It stops in this order: it is no longer ready; streams of zones are ended,
// since they would not end by themselves, while running calls finish; then
// health and metrics; then gossip and the log, when nobody can write to it any
// more; and last the record of what was written.
func Run(ctx context.Context, cfg Config, log *slog.Logger, hangups <-chan os.Signal) (err error) {
	// These two are bound below, once the data directory is open; a start that
	// fails for want of a port leaves no trace in it.
	if err := errors.Join(server.CheckFree("raft-addr", cfg.RaftAddr), server.CheckFree("gossip-addr", cfg.GossipAddr)); err != nil {
		return err
	}
	listeners, err := server.OpenListeners(cfg.Options)
	if err != nil {
		return err
	}
	cfg.Name = cfg.serverName()
	g := &global{cfg: cfg, log: log, now: time.Now, metrics: server.NewMetrics()}
	g.addresses = listeners.Addresses()
	if err := g.open(ctx); err != nil {
		return errors.Join(err, listeners.Close())
	}
	defer func() { err = errors.Join(err, g.gossip.Close(), g.node.Close(), g.audit.Close()) }()
	return g.serve(ctx, listeners, hangups)
}

// open opens the data directory and everything in it.
func (g *global) open(ctx context.Context) error {
	if err := server.PrepareDataDir(g.cfg.DataDir); err != nil {
		return err
	}
	var err error
	if g.pki, err = server.OpenPKI(g.cfg.Options, g.cfg.Name, g.addresses, g.now, g.log); err != nil {
		return err
	}
	g.store = store.New(store.DefaultOptions())
	nodeConfig := consensus.DefaultConfig(g.cfg.DataDir)
	nodeConfig.NodeID = g.cfg.Name
	nodeConfig.Role = consensus.RoleGlobal
	nodeConfig.Logger = g.log
	peers, err := g.peerPKI()
	if err != nil {
		return err
	}
	nodeConfig.Transport = consensus.TransportConfig{Addr: g.cfg.RaftAddr, TLS: peerTLS(peers)}
	nodeConfig.Events.Stalled = func(file string, since time.Duration) {
		g.log.Error("the disk hangs: a write to the log does not finish", "file", file, "since", since)
	}
	if g.node, err = consensus.Open(ctx, nodeConfig, g.store); err != nil {
		return startError(err)
	}
	g.addresses.Raft = g.node.RaftAddr()
	if err := server.RemoveAddresses(g.cfg.DataDir); err != nil {
		return errors.Join(err, g.node.Close())
	}
	g.ring = keyring.New(keyring.Config{Local: g.store.View, Now: g.now})
	g.access = access.New(g.store.View)
	if g.audit, err = server.OpenAudit(g.cfg.Options, g.metrics, g.now, g.log); err != nil {
		return errors.Join(err, g.node.Close())
	}
	g.writer = audit.NewWriter(g.node, g.audit, consensus.ErrUnknownOutcome)
	if err := g.openGossip(); err != nil {
		return errors.Join(err, g.node.Close(), g.audit.Close())
	}
	return nil
}

// openGossip makes this server's addresses known to others of its cluster.
func (g *global) openGossip() error {
	key, err := gossipKey(g.cfg)
	if err != nil {
		return err
	}
	g.gossip, err = consensus.OpenGossip(consensus.GossipConfig{
		Addr: g.cfg.GossipAddr, ClusterID: g.node.ClusterID(), Key: key, Logger: g.log,
		Self: consensus.Member{Name: g.cfg.Name, GRPC: g.cfg.Advertised(g.addresses.GRPC), Raft: g.addresses.Raft},
	})
	if errors.Is(err, consensus.ErrAddrInUse) {
		return fmt.Errorf("--gossip-addr %s: the port is in use by another process; choose another, or 0 for any free one", g.cfg.GossipAddr)
	}
	if err != nil {
		return fmt.Errorf("--gossip-addr: %w", err)
	}
	g.addresses.Gossip = g.gossip.Addr()
	return nil
}

// startError names the flag that an error of the node is about.
func startError(err error) error {
	switch {
	case errors.Is(err, consensus.ErrAddrInUse):
		return fmt.Errorf("--raft-addr: the port is in use by another process; choose another, or 0 for any free one (%w)", err)
	case errors.Is(err, consensus.ErrDataDirInUse), errors.Is(err, consensus.ErrDataDirReadOnly), errors.Is(err, consensus.ErrForeignDataDir):
		return fmt.Errorf("--data-dir: %w", err)
	default:
		return err
	}
}

// peerPKI returns the certificates by which servers of this global know each
// other. A given certificate serves for that only with its authority; without
// it clients may trust it, but nobody could check a peer's.
func (g *global) peerPKI() (*auth.PKI, error) {
	if g.cfg.CertFile == "" || g.cfg.CAFile != "" {
		return g.pki, nil
	}
	own := g.cfg.Options
	own.CertFile, own.KeyFile = "", ""
	return server.OpenPKI(own, g.cfg.Name, g.addresses, g.now, g.log)
}

// peerTLS is how servers of one global know each other: both sides show the
// server's certificate, signed by the global's CA.
func peerTLS(pki *auth.PKI) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pki.CAPEM())
	config := pki.ServerTLS()
	config.RootCAs, config.ClientCAs = pool, pool
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return pki.GetCertificate(nil)
	}
	return config
}

// serve makes the server ready and runs it until ctx ends or a part fails.
func (g *global) serve(ctx context.Context, listeners server.Listeners, hangups <-chan os.Signal) error {
	var ready server.Gate
	health := server.NewHealth(g.log, g.metrics, server.Check{Name: "state", Ready: ready.Check}, server.Check{Name: "leader", Ready: g.leads}, server.Check{Name: "audit", Ready: g.audit.Err})
	group, ctx := errgroup.WithContext(ctx)
	// Health and metrics outlive the rest, so that a stop can be watched.
	healthContext, stopHealth := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return health.Serve(healthContext, listeners.HTTP) })
	group.Go(func() error {
		defer stopHealth()
		if err := g.start(ctx); err != nil {
			return errors.Join(err, listeners.CloseServices())
		}
		parts, ctx := errgroup.WithContext(ctx)
		parts.Go(func() error { return g.sync.Run(ctx) })
		parts.Go(func() error { return g.matching.Run(ctx) })
		parts.Go(func() error { return g.audit.Run(ctx) })
		parts.Go(func() error { return g.ring.Follow(ctx, g.callers.Recheck, g.store) })
		parts.Go(func() error { return g.grpc.Run(ctx, listeners.GRPC, server.StopTimeout) })
		if g.webhook != nil {
			parts.Go(func() error { return g.webhook.Run(ctx, listeners.Webhook, server.StopTimeout) })
		}
		parts.Go(func() error { return server.ReloadPKI(ctx, g.pki, hangups, g.log) })
		parts.Go(func() error { return g.announce(ctx, &ready) })
		return parts.Wait()
	})
	return group.Wait()
}

// leads is the readiness of the log: without a leader nothing can be written.
func (g *global) leads() error {
	if id, _ := g.node.Leader(); id == "" {
		return errors.New("no leader is known")
	}
	return nil
}

// start waits until everything committed has been applied and assembles the
// services.
func (g *global) start(ctx context.Context) error {
	startContext, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-g.node.Ready():
	case <-startContext.Done():
		return fmt.Errorf("not ready: the log has no leader: %w", startContext.Err())
	}
	err := g.bootstrap(startContext)
	if err != nil {
		return err
	}
	if g.conditions, err = condition.NewCompiler(condition.DefaultOptions()); err != nil {
		return err
	}
	// Dataplanes are the zones' to match; the paths of routes are known here.
	g.matching = matching.New(policy.NewMatcher().Following(inherit.New(g.conditions)), g.store)
	g.sync = zonesync.NewServer(zonesync.ServerConfig{
		Store:     g.store,
		Synced:    zonesync.SyncedKinds,
		Authorize: g.authorizeZone,
		Admission: decidesAdmission,
		Logger:    g.log,
	})
	g.tokens = tokens.New(tokens.Config{
		Ring: g.ring, Writer: g.writer, Access: g.access, Local: g.store.View, Now: g.now,
		View: func() store.Reader { return g.store.View() },
		Uses: tokenUses(),
	})
	g.callers = &auth.Authenticator{
		Verifier:         g.verifier,
		LocalhostIsAdmin: g.cfg.LocalhostIsAdmin,
		Admit:            access.Doors(syncv1.SyncService_ServiceDesc.ServiceName),
		Refused:          g.audit.Refused,
	}
	g.grpc = server.NewGRPC(g.log, g.pki.ServerTLS(),
		[]grpc.UnaryServerInterceptor{g.callers.Unary, g.audit.Unary}, []grpc.StreamServerInterceptor{g.callers.Stream, g.audit.Stream})
	resources := g.admin()
	meridianv1.RegisterAdminServiceServer(g.grpc, resources)
	meridianv1.RegisterControlServiceServer(g.grpc, &controlService{global: g})
	meridianv1.RegisterClusterServiceServer(g.grpc, &clusterService{global: g})
	meridianv1.RegisterInspectServiceServer(g.grpc, &inspectService{
		matching: g.matching, zones: g.zoneStatuses, connected: g.connectedZones, asking: g.sync.Ask,
	})
	meridianv1.RegisterTokenServiceServer(g.grpc, g.tokens)
	meridianv1.RegisterAccessServiceServer(g.grpc, access.NewService(g.access, g.node.Read))
	syncv1.RegisterSyncServiceServer(g.grpc, g.sync)
	if g.cfg.WebhookAddr != "" {
		g.webhook = webhook.New(webhook.Config{
			Access: g.access, Read: g.node.Read, Review: resources.Review, Audit: g.audit,
			Certificate: g.pki.GetCertificate, Log: g.log,
		})
		g.metrics.MustRegister(g.webhook.Collector())
	}
	g.registerMetrics()
	return nil
}

// verifier returns the keys of the moment.
func (g *global) verifier() *auth.Verifier { return g.ring.CurrentVerifier(g.log) }

// admin returns the service by which the global's resources are written.
func (g *global) admin() *admin.Service {
	return admin.New(admin.Config{
		Writer:       g.writer,
		Access:       g.access,
		Applied:      g.store.Applied,
		Preview:      func(txn store.Txn) (store.Result, store.Reader) { return g.store.Preview(txn) },
		View:         func() store.Reader { return g.store.View() },
		Source:       func(*resource.Descriptor) admin.Source { return g.store },
		Owns:         owns,
		Check:        g.conditions.Check,
		Surveyors:    engines.Surveyors(),
		WaitForZones: g.sync.WaitApplied,
		Now:          g.now,
	})
}

// owns refuses what only zones own (SEMANTICS §1.3).
func owns(d *resource.Descriptor) error {
	if d.Owner == resource.OwnedByZone {
		return fmt.Errorf("%s resources belong to a zone: apply them on the zone's control plane", d.Kind)
	}
	return nil
}

// announce tells the outside that the server is ready, and that it no longer is.
func (g *global) announce(ctx context.Context, ready *server.Gate) error {
	if err := server.WriteAdminContext(g.cfg.DataDir, g.cfg.Name, g.addresses.GRPC, g.pki.CAPEM(), g.ring.AdminToken()); err != nil {
		return err
	}
	ready.Open()
	g.grpc.Ready(true)
	if err := server.WriteAddresses(g.cfg.DataDir, g.addresses); err != nil {
		return err
	}
	g.log.Info("ready", "role", "global", "name", g.cfg.Name, "cluster", g.node.ClusterID(), "grpc", g.addresses.GRPC,
		"http", g.addresses.HTTP, "raft", g.addresses.Raft, "revision", g.store.Revision())
	<-ctx.Done()
	ready.Close()
	g.log.Info("stopping", "reason", context.Cause(ctx))
	return server.RemoveAddresses(g.cfg.DataDir)
}

// registerMetrics adds what only a global can tell.
func (g *global) registerMetrics() {
	gauge := func(name, help string, value func() float64) {
		g.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("meridian_revision", "The newest revision applied.", func() float64 { return float64(g.store.Revision()) })
	gauge("meridian_resources", "Resources stored.", func() float64 { return float64(g.store.View().Len()) })
	g.metrics.MustRegister(newZoneCollector(g.zoneStatuses))
	gauge("meridian_gossip_members", "Servers of this global that gossip believes alive.", func() float64 { return float64(len(g.gossip.Members())) })
	g.metrics.MustRegister(g.matching.Collector())
	gauge("meridian_leader", "1 on the server that leads.", func() float64 {
		if g.node.IsLeader() {
			return 1
		}
		return 0
	})
}
