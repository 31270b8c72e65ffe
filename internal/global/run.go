package global

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/controlplane"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/livematch"
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

// global is a running server: what it shares with a zone, what makes it one of several
// servers, and what zones connect to.
type global struct {
	*cluster.Server
	cfg     Config
	hangups <-chan os.Signal

	sync *zonesync.Server
	// fleet knows the zones of all servers; peerService tells the other servers
	// about those connected here.
	fleet       *fleet
	proxyRounds *rounds[proxyVerdict]
	// rolloutConditions compiles the conditions that halt rollouts.
	rolloutConditions *rollout.Conditions
	peerService       *peerService
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
	if err := cfg.CheckPorts(); err != nil {
		return err
	}
	cfg.Name = cfg.ServerName()
	base, err := controlplane.Open(cfg.Options, cfg.Name, log)
	if err != nil {
		return err
	}
	g := &global{cfg: cfg, hangups: hangups, peerService: &peerService{name: cfg.Name}}
	g.Server = cluster.New(base, cfg.Config, cluster.Hooks{
		Bootstrap:    g.bootstrap,
		PeerServices: func(r grpc.ServiceRegistrar) { peerv1.RegisterZoneServiceServer(r, g.peerService) },
		Suspend:      func(reason string) { g.sync.Suspend(reason) },
		Resume:       func() { g.sync.Resume() },
		Unreachable:  func() int { return len(g.fleet.unreachable()) },
		Differing:    func() int { return len(g.fleet.diverged()) },
		Authorities: func(ctx context.Context, p cluster.Peer) (*peerv1.AuthoritiesResponse, error) {
			return peerv1.NewZoneServiceClient(p.Conn).Authorities(ctx, &peerv1.AuthoritiesRequest{})
		},
		Unconfirmed:     g.unconfirmed,
		WayToGlobal:     func() (*meridianv1.GlobalAccess, error) { return nil, nil },
		KeepWayToGlobal: func(*meridianv1.GlobalAccess) error { return nil },
	})
	return g.Explain(base.Run(ctx, g))
}

// Open implements controlplane.Server.
func (g *global) Open(ctx context.Context) error {
	if err := server.PrepareDataDir(g.cfg.DataDir); err != nil {
		return err
	}
	options := store.DefaultOptions()
	options.Terms = engines.Terms
	if err := g.OpenLog(ctx, store.New(options)); err != nil {
		return err
	}
	if err := g.OpenRecords(token.RingConfig{}); err != nil {
		return err
	}
	return g.assemble()
}

// Close implements controlplane.Server.
func (g *global) Close() error { return g.CloseGossip() }

// Serve implements controlplane.Server. The API answers from the beginning; what
// it cannot answer yet, it refuses.
func (g *global) Serve(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	g.ServeEarly(ctx, parts, g.hangups)
	parts.Go(func() error {
		err := g.AwaitStart(ctx)
		if err == nil && ctx.Err() == nil {
			err = g.CheckOpen()
		}
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, g.Listeners.CloseWebhook())
		}
		g.ServeStarted(ctx, parts)
		for _, run := range []func(context.Context) error{
			g.sync.Run, g.fleet.Run, g.Matching.Run, g.followKeys, g.FollowAdminToken, g.rollouts().run,
		} {
			parts.Go(func() error { return run(ctx) })
		}
		g.ServeWebhook(ctx, parts)
		if err := errors.Join(g.ReissueAdminToken(ctx), g.WriteAdminContext()); err != nil {
			return err
		}
		return g.Announce(ctx, "role", "global", "name", g.Name, "cluster", g.ClusterID(), "raft", g.Addresses.Raft, "revision", g.Store.Revision())
	})
	return parts.Wait()
}

// followKeys ends the streams of callers whose token is revoked.
func (g *global) followKeys(ctx context.Context) error {
	return g.Keys.Follow(ctx, g.Callers.Recheck, g.Store)
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
		Address:     g.cfg.Advertised(g.Addresses.GRPC),
		Store:       g.Store,
		Synced:      zonesync.SyncedKinds,
		Authorize:   g.authorizeZone,
		Reauthorize: changesAuthorization,
		Logger:      g.Log,
		Servers:     g.ServerAddresses,

		Authorities: g.zoneAuthorities,
		Draining:    g.draining,
	})
	g.peerService.authorities.Store(&authoritiesOf{g.Authorities})
	g.peerService.zones.Store(g.sync)
	g.fleet = newFleet(g.sync, g.otherServers, g.Log)
	g.proxyRounds = newProxyRounds()
	resources := g.admin()
	g.Assemble(g.API(controlplane.API{
		Authorize: authz.AuthorizeMethods(map[string]token.Use{
			syncv1.SyncService_ServiceDesc.ServiceName:     token.ForZone,
			meridianv1.JoinService_ServiceDesc.ServiceName: token.ForServer,
		}),
		View:  func() store.Reader { return g.Store.View() },
		Uses:  tokenUses(),
		Codec: zonesync.Codec(),
		Tap:   zonesync.Tap,
	}), resources)
	meridianv1.RegisterRolloutServiceServer(g.GRPC, &admin.Rollouts{Service: resources})
	meridianv1.RegisterControlServiceServer(g.GRPC, &controlService{global: g})
	g.RegisterServices()
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
		Preview:      admin.PreviewOf(g.Store),
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
	usage := func(of func(zonesync.Usage) float64) func() float64 {
		return func() float64 { return of(g.sync.Usage()) }
	}
	g.Gauge("meridian_zone_streams", "Open streams of zones on this server.", usage(func(u zonesync.Usage) float64 { return float64(u.Streams) }))
	g.Gauge("meridian_feed_bytes", "Changes kept for zones to resume from, in bytes.", usage(func(u zonesync.Usage) float64 { return float64(u.FeedBytes) }))
	g.Gauge("meridian_feed_limit_bytes", "The bound of meridian_feed_bytes.", usage(func(u zonesync.Usage) float64 { return float64(u.FeedLimit) }))
	g.Gauge("meridian_unacknowledged_bytes", "What zones were sent and have not acknowledged, in bytes.", usage(func(u zonesync.Usage) float64 { return float64(u.UnacknowledgedBytes) }))
	g.Counter("meridian_zones_moved_total", "Zones that this server sent to servers with fewer of them.", func() float64 { return float64(g.sync.Moved()) })
	g.Metrics.MustRegister(newZoneCollector(g.zonesHere), newRolloutCollector(g.Store.View))
	g.RegisterMetrics()
}
