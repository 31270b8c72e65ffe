package global

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/audit"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/livematch"
	"meridian/internal/pki"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/inherit"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/service/access"
	"meridian/internal/service/admin"
	"meridian/internal/service/tokens"
	"meridian/internal/service/webhook"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// global is a running server.
type global struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	// readiness opens when the server is ready; health tells.
	readiness server.Readiness
	health    *server.Health
	// leadershipGained is told, without waiting, that this server has come to lead.
	leadershipGained chan struct{}
	// ports are those of the last run.
	ports server.Ports
	// joinState says how this server comes to a global that exists, as long as it has
	// not arrived there; nil otherwise.
	joinState *joinState
	addresses server.Addresses
	// advertisedGRPC is where clients, zones and servers reach addresses.GRPC.
	advertisedGRPC string
	known          knownAddresses
	// pki is what clients see, peers what the other servers see; mostly the same.
	pki, peers *pki.PKI
	store      *store.Store
	node       *consensus.Node
	// gossip is empty until it was opened, which is after the node.
	gossip atomic.Pointer[gossip.Gossip]
	// failed is told what the process has to end over at once.
	failed chan error
	// audit records what writer writes, and who was refused.
	audit  *audit.Log
	writer *audit.Writer
	ring   *token.Ring
	access *authz.Authorizer
	tokens *tokens.Service
	// callers knows who makes each request, and ends the streams of those whose
	// token is revoked.
	callers *authn.Authenticator
	sync    *zonesync.Server
	// fleet knows the zones of all servers; peerZones tells the others about
	// those connected here.
	fleet       *fleet
	peerService *peerService
	// stale: this server cannot tell whether it is up to date; leaders counts how
	// often the leader changed.
	stale   atomic.Bool
	leaders atomic.Uint64
	// conditions compiles the conditions of policies.
	conditions *condition.Compiler
	matching   *livematch.Matching
	grpc       *server.GRPC
	metrics    *prometheus.Registry
	// webhook is nil where it is off.
	webhook *webhook.Server
}

// Run runs a server of the global until ctx ends. A *server.UsageError means
// that it could not have started with this configuration; any other error, that
// it failed. hangups makes it read its certificates again.
//
// It stops in this order: it is no longer ready, and hands over the lead; streams
// contextFor zones are ended, since they would not end by themselves, while running calls
// finish, through the next leader; then health and metrics; then gossip and the
// log, when nobody can write to it any more; and last the record of what was
// written.
func Run(ctx context.Context, cfg Config, log *slog.Logger, hangups <-chan os.Signal) error {
	// These two are bound later, once the data directory is open; a start that
	// fails for want of a port leaves no trace in it.
	if err := errors.Join(server.CheckFree("raft-addr", cfg.RaftAddr), server.CheckFree("gossip-addr", cfg.GossipAddr)); err != nil {
		return err
	}
	listeners, err := server.OpenListeners(cfg.Options)
	if err != nil {
		return err
	}
	cfg.Name = cfg.serverName()
	g := &global{
		cfg: cfg, log: log, now: time.Now, metrics: server.NewMetrics(),
		leadershipGained: make(chan struct{}, 1), failed: make(chan error, 1), ports: server.LastPorts(cfg.DataDir), addresses: listeners.Addresses(),
	}
	g.advertisedGRPC = cfg.Advertised(g.addresses.GRPC)
	g.health = server.NewHealth(log, g.metrics, server.Check{Name: "state", Ready: g.readiness.Check})
	done := make(chan error, 1)
	go func() { done <- g.run(ctx, listeners, hangups) }() // ends before this function, unless it cannot be waited for
	select {
	case err := <-done:
		return err
	case err := <-g.failed:
		// Whatever hangs or would be wrong is left as it is: the process ends, and
		// the other servers go on. The node has logged why.
		if errors.Is(err, consensus.ErrRemoved) {
			err = fmt.Errorf("%w (its data directory is %s; the bundle to join with comes from `meridian generate server-token --valid-for 1h --bundle` on another server)", err, cfg.DataDir)
		}
		return err
	}
}

// run opens the server and runs it until ctx ends.
func (g *global) run(ctx context.Context, listeners server.Listeners, hangups <-chan os.Signal) (err error) {
	// Health outlives the services, so that a stop can be watched, and the log
	// outlives both.
	defer func() { err = errors.Join(err, g.close()) }()
	health, stopHealth := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.health.Serve(health, listeners.HTTP) })
	group.Go(func() error {
		defer stopHealth()
		if err := g.open(ctx); err != nil {
			if ctx.Err() != nil {
				err = nil // it was asked to stop before it had started
			}
			return errors.Join(err, listeners.CloseServices())
		}
		return g.serve(ctx, listeners, hangups)
	})
	return group.Wait()
}

// open opens the data directory and everything in it, and assembles the services
// that read it.
func (g *global) open(ctx context.Context) error {
	if err := server.PrepareDataDir(g.cfg.DataDir); err != nil {
		return err
	}
	if err := g.join(ctx); err != nil {
		return err
	}
	if err := g.openPKI(); err != nil {
		return err
	}
	g.store = store.New(store.DefaultOptions())
	if err := g.openNode(ctx); err != nil {
		return err
	}
	if err := server.RemoveAddresses(g.cfg.DataDir); err != nil {
		return err
	}
	g.ring = token.NewRing(token.RingConfig{Local: g.store.View, Now: g.now})
	g.access = authz.New(g.store.View)
	var err error
	if g.audit, err = server.OpenAudit(g.cfg.Options, g.metrics, g.now, g.log); err != nil {
		return err
	}
	g.writer.Open(g.node, g.audit)
	if err := g.openGossip(); err != nil {
		return err
	}
	if err := server.RememberPorts(g.cfg.DataDir, g.addresses); err != nil {
		return err
	}
	g.health.Add(
		server.Check{Name: "leader", Ready: g.checkLeader}, server.Check{Name: "current", Ready: g.checkFresh},
		server.Check{Name: "audit", Ready: g.audit.Err}, server.DiskCheck(g.node.Disk),
	)
	return g.assemble()
}

// close closes what open opened, as far as it came.
func (g *global) close() error {
	var errs []error
	if gossip := g.gossip.Load(); gossip != nil {
		errs = append(errs, gossip.Close())
	}
	if g.node != nil {
		errs = append(errs, g.node.Close())
	}
	if g.audit != nil {
		errs = append(errs, g.audit.Close())
	}
	return errors.Join(errs...)
}

// serve runs the server until ctx ends or a part fails. The API answers from the
// beginning; what it cannot answer yet, it refuses (see answersAlways).
func (g *global) serve(ctx context.Context, listeners server.Listeners, hangups <-chan os.Signal) error {
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return g.grpc.Run(ctx, listeners.GRPC, server.StopTimeout) })
	parts.Go(func() error { return g.audit.Run(ctx) })
	parts.Go(func() error { return g.discover(ctx) })
	parts.Go(func() error { return g.transferLeadership(ctx) })
	parts.Go(func() error { return server.ReloadPKI(ctx, hangups, g.log, g.reloadGossipKeys, g.pki, g.peers) })
	parts.Go(func() error {
		err := g.awaitStart(ctx)
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, listeners.CloseWebhook())
		}
		parts.Go(func() error { return g.sync.Run(ctx) })
		parts.Go(func() error { return g.fleet.Run(ctx) })
		parts.Go(func() error { return g.watchFreshness(ctx) })
		parts.Go(func() error { return g.watchLeaders(ctx) })
		parts.Go(func() error { return g.matching.Run(ctx) })
		parts.Go(func() error { return g.ring.Follow(ctx, g.callers.Recheck, g.store) })
		parts.Go(func() error { return g.bootstrapOnLeadership(ctx) })
		parts.Go(func() error { return g.followReplacements(ctx) })
		if g.webhook != nil {
			parts.Go(func() error { return g.webhook.Run(ctx, listeners.Webhook, server.StopTimeout) })
		}
		return g.announce(ctx)
	})
	return parts.Wait()
}

// transferLeadership passes the lead on as soon as the server is to stop, so that the calls
// which are running finish through the next leader.
func (g *global) transferLeadership(ctx context.Context) error {
	<-ctx.Done()
	if !g.node.IsLeader() {
		return nil
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), transferTimeout)
	defer cancel()
	if next, err := g.node.TransferLeadership(stopping, ""); err != nil {
		g.log.Debug("there is nobody to hand the lead to", "error", err)
	} else {
		g.log.Info("handed the lead over", "to", next)
	}
	return nil
}

// transferTimeout bounds handing over the lead, of the ten seconds that a stop
// takes at most.
const transferTimeout = 2 * time.Second

// checkLeader is the readiness of the log: without a leader nothing can be written.
func (g *global) checkLeader() error {
	if id, _ := g.node.Leader(); id == "" {
		return fmt.Errorf("no leader is known: waiting for %s", g.node.Waiting())
	}
	return nil
}

// unauthenticatedMethods are the methods that a server answers before it is ready, when
// it may not even know its keys: to everybody, and as somebody who is not known.
func unauthenticatedMethods() []string {
	return []string{meridianv1.ClusterService_Members_FullMethodName}
}

// assemble makes the services.
func (g *global) assemble() error {
	var err error
	if g.conditions, err = condition.NewCompiler(condition.DefaultOptions()); err != nil {
		return err
	}
	// Dataplanes are the zones' to match; the paths of routes are known here.
	g.matching = livematch.New(policy.NewMatcher().Following(inherit.New(g.conditions)), g.store)
	g.sync = zonesync.NewServer(zonesync.ServerConfig{
		Name:      g.cfg.Name,
		Store:     g.store,
		Synced:    zonesync.SyncedKinds,
		Authorize: g.authorizeZone,
		Admission: decidesAdmission,
		Logger:    g.log,
		Servers:   g.serverAddresses,
	})
	g.peerService.zones.Store(g.sync)
	g.fleet = newFleet(g.sync, g.otherServers, g.log)
	g.tokens = tokens.New(tokens.Config{
		Ring: g.ring, Writer: g.writer, Access: g.access, Local: g.store.View, Now: g.now,
		View: func() store.Reader { return g.store.View() },
		Uses: tokenUses(),
	})
	g.callers = &authn.Authenticator{
		Verifier:         g.verifier,
		LocalhostIsAdmin: g.cfg.LocalhostIsAdmin,
		Admit: authz.Doors(map[string]token.Use{
			syncv1.SyncService_ServiceDesc.ServiceName:     token.ForZone,
			meridianv1.JoinService_ServiceDesc.ServiceName: token.ForServer,
		}),
		Refused: g.audit.Refused,
		Open: func(method string) bool {
			return !g.readiness.Started() && slices.Contains(unauthenticatedMethods(), method)
		},
	}
	g.grpc = server.NewGRPC(g.log, g.pki.ServerTLS(), server.Calls{
		Enter:          []grpc.UnaryServerInterceptor{g.readiness.Unary(unauthenticatedMethods()...), g.callers.Unary},
		Unary:          []grpc.UnaryServerInterceptor{g.audit.Unary},
		Stream:         []grpc.StreamServerInterceptor{g.readiness.Stream(), g.callers.Stream, g.audit.Stream},
		StrangersWrite: g.access.StrangersWrite,
	})
	resources := g.admin()
	g.register(resources)
	if g.cfg.WebhookAddr != "" {
		g.webhook = webhook.New(webhook.Config{
			Access: g.access, Read: g.node.Read, Review: resources.Review, Audit: g.audit,
			Certificate: g.pki.GetCertificate, Clients: g.cfg.WebhookClients(), Log: g.log,
		})
		g.metrics.MustRegister(g.webhook.Collector())
	}
	g.registerMetrics()
	return nil
}

// register adds the services to the API.
func (g *global) register(resources *admin.Service) {
	meridianv1.RegisterAdminServiceServer(g.grpc, resources)
	meridianv1.RegisterControlServiceServer(g.grpc, &controlService{global: g})
	meridianv1.RegisterClusterServiceServer(g.grpc, &clusterService{global: g})
	meridianv1.RegisterJoinServiceServer(g.grpc, &joinService{global: g})
	meridianv1.RegisterInspectServiceServer(g.grpc, &inspectService{
		matching: g.matching, zones: g.zonesEverywhere, asking: g.fleet.Ask,
	})
	meridianv1.RegisterTokenServiceServer(g.grpc, g.tokens)
	meridianv1.RegisterAccessServiceServer(g.grpc, access.New(g.access, g.node.Read))
	syncv1.RegisterSyncServiceServer(g.grpc, g.sync)
}

// verifier returns the keys of the moment.
func (g *global) verifier() *token.Verifier { return g.ring.CurrentVerifier(g.log) }

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
		WaitForZones: g.fleet.WaitApplied,
		Now:          g.now,
	})
}

// owns refuses what only zones own (§1.3).
func owns(d *resource.Descriptor) error {
	if d.Owner == resource.OwnedByZone {
		return fmt.Errorf("%s resources belong to a zone: apply them on the zone's control plane", d.Kind)
	}
	return nil
}

// writeAdminContext writes the client context by which an operator on this host
// reaches the server.
func (g *global) writeAdminContext() error {
	return server.WriteAdminContext(g.cfg.DataDir, g.cfg.Name, g.addresses.GRPC, g.pki.CAPEM(), g.ring.AdminToken())
}

// announce tells the outside that the server is ready, and that it no longer is.
func (g *global) announce(ctx context.Context) error {
	if err := g.writeAdminContext(); err != nil {
		return err
	}
	g.readiness.SetReady()
	g.grpc.Ready(true)
	if err := server.WriteAddresses(g.cfg.DataDir, g.addresses); err != nil {
		return err
	}
	g.log.Info("ready", "role", "global", "name", g.cfg.Name, "cluster", g.clusterID(), "grpc", g.addresses.GRPC,
		"http", g.addresses.HTTP, "raft", g.addresses.Raft, "revision", g.store.Revision())
	<-ctx.Done()
	g.readiness.SetStopping()
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
	server.RegisterDisk(g.metrics, g.node.Disk)
	g.metrics.MustRegister(newZoneCollector(g.zonesHere))
	gauge("meridian_gossip_members", "Servers of this global that gossip believes alive.", func() float64 { return float64(len(g.gossip.Load().Members())) })
	g.metrics.MustRegister(g.matching.Collector(), newClusterCollector(g.clusterFigures))
	certificates := map[string]*pki.PKI{"api": g.pki}
	if g.peers != g.pki {
		certificates["peers"] = g.peers
	}
	server.CertificateMetrics(g.metrics, certificates)
}
