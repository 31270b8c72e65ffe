package global

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/consensus"
	"meridian/internal/controlplane"
	"meridian/internal/gossip"
	"meridian/internal/livematch"
	"meridian/internal/pki"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/inherit"
	"meridian/internal/resource"
	"meridian/internal/rollout"
	"meridian/internal/server"
	"meridian/internal/service/admin"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// global is a running server: what it shares with a zone, and what belongs to a
// cluster that zones connect to.
type global struct {
	*controlplane.Base
	cfg     Config
	hangups <-chan os.Signal

	// joinState is how far this server has come with joining a cluster; nil once it
	// has caught up, and for a server that joins none.
	joinState *joinState
	// known are addresses of other servers that this one was told.
	known knownAddresses
	// advertisedGRPC is where clients, zones and servers reach Addresses.GRPC.
	advertisedGRPC string
	// peers is the certificate that other servers see, mostly that of clients.
	peers *pki.PKI
	// gossip is empty until it was opened, which is after the node.
	gossip atomic.Pointer[gossip.Gossip]
	// leadershipGained is told, without waiting, that this server has become leader.
	leadershipGained chan struct{}

	sync *zonesync.Server
	// fleet knows the zones of all servers; peerService tells the other servers
	// about those connected here.
	fleet       *fleet
	proxyRounds *rounds[proxyVerdict]
	// rolloutConditions compiles the conditions that halt rollouts.
	rolloutConditions *rollout.Conditions
	peerService       *peerService
	// stale: this server cannot tell whether it is up to date. leaders counts
	// changes of the leader.
	stale atomic.Bool
	// servers are what is registered of this server and the others. opened says that this
	// server can write; membersChanged and gossipChanged are told, without waiting, of
	// changes of membership.
	servers                       servers
	opened                        atomic.Bool
	membersChanged, gossipChanged chan struct{}
	// gossipUsed identifies the gossip keys that this server has. The others belong to
	// keepRegister: the step of a replacement that it waits for, since when, and who has
	// not followed.
	gossipUsed    atomic.Pointer[string]
	gossipStep    string
	gossipSince   time.Time
	gossipMissing []string
	// warnedFor is the removed server on whose account the log asks for another gossip
	// key; it belongs to followRegister.
	warnedFor string
	// unencrypted are the servers that do not encrypt although others do, as last asked.
	unencrypted atomic.Pointer[[]string]
	// rotated: the log tells of a rotation of the authority, finished or not.
	rotated atomic.Bool
	leaders atomic.Uint64
}

// Run runs a server of the global until ctx ends. A *server.UsageError means
// that it could not have started with this configuration; any other error, that
// it failed. hangups makes it read its certificates again.
//
// It starts and stops in the order of package controlplane. Between no longer
// being ready and ending its calls it transfers leadership, so that the calls
// finish through the next leader; streams of zones are ended, since they would
// last; gossip closes before the node.
func Run(ctx context.Context, cfg Config, log *slog.Logger, hangups <-chan os.Signal) error {
	// These two are bound later, once the data directory is open; a start that
	// fails for want of a port leaves no trace in it.
	if err := errors.Join(server.CheckFree("raft-addr", cfg.RaftAddr), server.CheckFree("gossip-addr", cfg.GossipAddr)); err != nil {
		return err
	}
	cfg.Name = cfg.serverName()
	base, err := controlplane.Open(cfg.Options, cfg.Name, log)
	if err != nil {
		return err
	}
	base.Reaches = append(base.Reaches, cfg.reaches()...)
	base.Secrets = append(base.Secrets, filepath.Join(cfg.DataDir, gossipKeyFile))
	g := &global{
		Base: base, cfg: cfg, hangups: hangups,
		advertisedGRPC: cfg.Advertised(base.Addresses.GRPC), leadershipGained: make(chan struct{}, 1),
		membersChanged: make(chan struct{}, 1), gossipChanged: make(chan struct{}, 1),
	}
	g.servers.global = g
	err = base.Run(ctx, g)
	if errors.Is(err, consensus.ErrRemoved) {
		err = fmt.Errorf("%w (its data directory is %s; the bundle to join with comes from `meridian generate server-token --valid-for 1h --bundle` on another server)", err, cfg.DataDir)
	}
	return err
}

// Open implements controlplane.Server.
func (g *global) Open(ctx context.Context) error {
	if err := server.PrepareDataDir(g.cfg.DataDir); err != nil {
		return err
	}
	if err := g.join(ctx); err != nil {
		return err
	}
	if err := g.openPKI(); err != nil {
		return err
	}
	if err := g.openNode(ctx); err != nil {
		return err
	}
	if err := g.OpenRecords(token.RingConfig{}); err != nil {
		return err
	}
	if err := g.openGossip(); err != nil {
		return err
	}
	g.opened.Store(true)
	g.Health.Add(server.Check{Name: "leader", Ready: g.checkLeader}, server.Check{Name: "current", Ready: g.checkFresh}, g.encryptionCheck())
	return g.assemble()
}

// Close implements controlplane.Server.
func (g *global) Close() error {
	if gossip := g.gossip.Load(); gossip != nil {
		return gossip.Close()
	}
	return nil
}

// Serve implements controlplane.Server. The API answers from the beginning; what
// it cannot answer yet, it refuses (see earlyMethods).
func (g *global) Serve(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	g.Base.Serve(ctx, parts, g.hangups, g.reloadGossipKeys)
	parts.Go(func() error { return g.discover(ctx) })
	parts.Go(func() error { return g.followAuthority(ctx) })
	parts.Go(func() error { return g.followRegister(ctx) })
	parts.Go(func() error { return g.followMembers(ctx) })
	parts.Go(func() error { return g.keepRegister(ctx) })
	parts.Go(func() error { return g.transferLeadership(ctx) })
	parts.Go(func() error {
		err := g.awaitStart(ctx)
		if err == nil && ctx.Err() == nil {
			err = g.CheckOpen()
		}
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, g.Listeners.CloseWebhook())
		}
		for _, run := range []func(context.Context) error{
			g.sync.Run, g.fleet.Run, g.Matching.Run, g.watchFreshness, g.watchLeaders, g.bootstrapOnLeadership, g.followReplacements, g.followKeys, g.FollowAdminToken, g.FollowServers, g.watchEncryption, g.rollouts().run,
		} {
			parts.Go(func() error { return run(ctx) })
		}
		g.ServeWebhook(ctx, parts)
		if err := errors.Join(g.ReissueAdminToken(ctx), g.WriteAdminContext()); err != nil {
			return err
		}
		return g.Announce(ctx, "role", "global", "name", g.Name, "cluster", g.clusterID(), "raft", g.Addresses.Raft, "revision", g.Store.Revision())
	})
	return parts.Wait()
}

// followKeys ends the streams of callers whose token is revoked.
func (g *global) followKeys(ctx context.Context) error {
	return g.Keys.Follow(ctx, g.Callers.Recheck, g.Store)
}

// transferLeadership transfers leadership as soon as the server is to stop, so that the calls
// which are running finish through the next leader.
func (g *global) transferLeadership(ctx context.Context) error {
	<-ctx.Done()
	g.Node.Leave()
	if !g.Node.IsLeader() {
		return nil
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), transferTimeout)
	defer cancel()
	if next, err := g.Node.TransferLeadership(stopping, ""); err != nil {
		g.Log.Debug("there is no server to transfer leadership to", "error", err)
	} else {
		g.Log.Info("transferred leadership", "to", next)
	}
	return nil
}

// transferTimeout bounds the transfer of leadership, of the ten seconds that a stop
// takes at most.
const transferTimeout = 2 * time.Second

// checkLeader is the readiness of the log: without a leader nothing can be written.
func (g *global) checkLeader() error {
	if id, _ := g.Node.Leader(); id == "" {
		return fmt.Errorf("no leader is known: waiting for %s", g.Node.Waiting())
	}
	return nil
}

// earlyMethods are answered before the server is ready: without credentials,
// since it may not know its keys yet.
func earlyMethods() []string {
	return []string{meridianv1.ClusterService_Members_FullMethodName}
}

// assemble makes the services.
func (g *global) assemble() error {
	var err error
	if g.Conditions, err = condition.NewCompiler(condition.DefaultOptions()); err != nil {
		return err
	}
	// Dataplanes are the zones' to match; the paths of routes are known here.
	g.Matching = livematch.New(policy.NewMatcher().Following(inherit.New(g.Conditions)), g.Store)
	if g.rolloutConditions, err = rollout.NewConditions(); err != nil {
		return err
	}
	g.sync = zonesync.NewServer(zonesync.ServerConfig{
		Name:        g.Name,
		Store:       g.Store,
		Synced:      zonesync.SyncedKinds,
		Authorize:   g.authorizeZone,
		Reauthorize: changesAuthorization,
		Logger:      g.Log,
		Servers:     g.serverAddresses,

		Authorities: g.zoneAuthorities,
		Draining:    g.draining,
	})
	g.peerService.authorities.Store(&authoritiesOf{g.authorities})
	g.peerService.zones.Store(g.sync)
	g.fleet = newFleet(g.sync, g.otherServers, g.Log)
	g.proxyRounds = newProxyRounds()
	resources := g.admin()
	g.Assemble(controlplane.API{
		Authorize: authz.AuthorizeMethods(map[string]token.Use{
			syncv1.SyncService_ServiceDesc.ServiceName:     token.ForZone,
			meridianv1.JoinService_ServiceDesc.ServiceName: token.ForServer,
		}),
		Early: earlyMethods(),

		Authorities: g.announcedAuthorities,
		Servers:     g.announcedServers,
		View:        func() store.Reader { return g.Store.View() },
		Uses:        tokenUses(),
	}, resources)
	meridianv1.RegisterRolloutServiceServer(g.GRPC, &admin.Rollouts{Service: resources})
	meridianv1.RegisterControlServiceServer(g.GRPC, &controlService{global: g})
	meridianv1.RegisterClusterServiceServer(g.GRPC, &clusterService{global: g})
	meridianv1.RegisterJoinServiceServer(g.GRPC, &joinService{global: g})
	questions := g.questions()
	meridianv1.RegisterInspectServiceServer(g.GRPC, &admin.Inspect{
		Answers: questions,
		Readers: g.Authorizer, View: func() store.Reader { return g.Store.View() }, Past: questions.past.read,
	})
	syncv1.RegisterSyncServiceServer(g.GRPC, g.sync)
	g.registerAudit()
	g.registerMetrics()
	return nil
}

// admin returns the service by which the global's resources are written.
func (g *global) admin() *admin.Service {
	return admin.New(admin.Config{
		Writer:       g.Writer,
		Access:       g.Authorizer,
		Applied:      g.Store.Applied,
		Remembers:    g.Store.Remembers,
		Preview:      func(txn store.Txn) (store.Result, store.Reader) { return g.Store.Preview(txn) },
		View:         func() store.Reader { return g.Store.View() },
		Stores:       func() []*store.Store { return []*store.Store{g.Store} },
		Source:       func(*resource.Descriptor) admin.Source { return g.Store },
		Owns:         owns,
		Check:        g.Conditions.Check,
		Surveyors:    engines.Surveyors(),
		WaitForZones: g.waitForZones,
		Plan: func(ctx context.Context, batch *plan.Batch) (*plan.Plan, error) {
			return g.questions().plan(ctx, batch)
		},
		Rollouts: g.rolloutConfig(),
		Now:      g.Now,
		Turns:    g.Turns,
	})
}

// questions returns what answers questions here, from this server and from zones.
func (g *global) questions() *inspectService {
	states := &pastStates{store: g.Store, now: g.Now, earlier: livematch.NewEarlier(func() (*policy.Matcher, livematch.State) {
		return g.Matching.Fork(inherit.New(g.Conditions))
	})}
	return &inspectService{past: states, matching: g.Matching, zones: g.zonesEverywhere, asking: g.fleet.Ask, turns: g.Turns, proxies: g.proxyRounds}
}

// owns refuses what only zones own (§1.3).
func owns(d *resource.Descriptor) error {
	if d.Owner == resource.OwnedByZone {
		return fmt.Errorf("%s resources belong to a zone: apply them on the zone's control plane", d.Kind)
	}
	return nil
}

// registerMetrics adds what only a global reports.
func (g *global) registerMetrics() {
	g.Gauge("meridian_revision", "The newest revision applied.", func() float64 { return float64(g.Store.Revision()) })
	g.Gauge("meridian_resources", "Resources stored.", func() float64 { return float64(g.Store.View().Len()) })
	g.Gauge("meridian_gossip_members", "Servers of this global that gossip considers alive.", func() float64 { return float64(len(g.gossip.Load().Members())) })
	g.Metrics.MustRegister(newZoneCollector(g.zonesHere), newRolloutCollector(g.Store.View), newClusterCollector(g.clusterFigures))
	certificates := map[string]*pki.PKI{"api": g.PKI}
	if g.peers != g.PKI {
		certificates["peers"] = g.peers
	}
	g.UseCertificates(certificates)
}
