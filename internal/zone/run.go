package zone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/controlplane"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/livematch"
	"meridian/internal/pki"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/service/admin"
	"meridian/internal/service/auditlog"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/discovery"
	"meridian/internal/service/identities"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/internal/version"
	"meridian/internal/xds/feed"
	"meridian/internal/xds/world"
)

const (
	// startTimeout bounds how long a zone waits for its own store at its start.
	startTimeout = 60 * time.Second
	// localHistory bounds the past of what a federated zone owns, in bytes: mostly
	// that of dataplanes that came and went, about a thousand of them. Ten thousand
	// that come at once would leave ten times as much behind.
	localHistory = 4 << 20
	// firstSync is how long a zone that has never received from its global waits
	// for it before it calls itself ready all the same.
	firstSync = 5 * time.Second
)

// zone is a running zone: what it shares with a server of the global, and what
// belongs to its dataplanes. The store of the Base holds what the zone owns.
type zone struct {
	*controlplane.Base
	cfg Config
	// cluster is what makes this server one of several, and others what it knows of the
	// proxies of the others; nil where it is the only one.
	cluster *cluster.Server
	others  *otherServers
	hangups <-chan os.Signal

	// bundle says how to reach the global. The fields below it are nil in a
	// standalone zone: authorities verify the global, globalStore holds what it owns,
	// replica keeps that on disk, and client keeps it up to date.
	bundle      clientconfig.ZoneBundle
	authorities *authorities
	globalStore *store.Store
	replica     *zonesync.Replica
	client      *zonesync.Client
	// drainKeeper is nil without a global, as client is.
	drainKeeper *drainKeeper

	inspect    *inspectService
	dataplanes *dataplane.Service
	identities *identities.Keeper

	// matcher is that of Matching, and there before it: it compiles what is read of the
	// replica. world is what matching leaves out of the configuration of proxies, and
	// resources what proxies are sent over xDS.
	matcher   *policy.Matcher
	world     *world.World
	resources *feed.Feed
	// discovery serves them.
	discovery *discovery.Service
}

// Run runs a zone until ctx ends. A *server.UsageError means that it could not
// have started with this configuration; any other error, that it failed. hangups
// makes it read its certificates again.
//
// It starts and stops in the order of package controlplane. The stream to the
// global and the matcher end beside the calls; the replica closes before the
// node, when no part can write to it any more.
func Run(ctx context.Context, cfg Config, log *slog.Logger, hangups <-chan os.Signal) error {
	var bundle clientconfig.ZoneBundle
	if cfg.inherited = cfg.inherits(); cfg.federated() && !cfg.inherited {
		var err error
		if bundle, err = cfg.bundle(); err != nil {
			return err
		}
	}
	name, servers := cfg.Name, cfg.servers()
	if cfg.several() {
		if err := servers.CheckPorts(); err != nil {
			return err
		}
		name = servers.ServerName()
	}
	base, err := controlplane.Open(cfg.Options, name, log.With("zone", cfg.Name))
	if err != nil {
		return err
	}
	z := &zone{Base: base, cfg: cfg, hangups: hangups, bundle: bundle}
	if !cfg.several() {
		return base.Run(ctx, z)
	}
	z.openCluster(servers)
	return z.cluster.Explain(base.Run(ctx, z))
}

// localOptions are those of the store of what a zone owns.
func localOptions(federated bool) store.Options {
	options := store.DefaultOptions()
	if federated {
		options.ExternalMeshes = true
		options.History.MaxBytes = localHistory
		return options
	}
	options.Terms = engines.Terms
	return options
}

// Open implements controlplane.Server.
func (z *zone) Open(ctx context.Context) error {
	if err := server.PrepareDataDir(z.cfg.DataDir); err != nil {
		return err
	}
	if err := z.openLog(ctx, store.New(localOptions(z.cfg.federated()))); err != nil {
		return err
	}
	if err := checkMode(z.cfg.DataDir, mode{FormatVersion: 1, Name: z.cfg.Name, Federated: z.cfg.federated()}); err != nil {
		return err
	}
	keys := token.RingConfig{Zone: z.cfg.Name}
	if z.cfg.federated() {
		// Without terms: what ties with a policy is told on the global, where it is written.
		z.globalStore = store.New(store.DefaultOptions())
		keys.Global = z.globalStore.View
	}
	if err := z.openRecords(keys); err != nil {
		return err
	}
	var err error
	if z.Conditions, err = condition.NewCompiler(condition.DefaultOptions()); err != nil {
		return err
	}
	z.world = world.New(resource.ZoneName(z.cfg.Name))
	z.matcher = engines.NewMatcher(z.Conditions).Following(z.world)
	z.inspect = &inspectService{zone: resource.ZoneName(z.cfg.Name), quarantined: z.quarantined, turns: z.Turns}
	if z.cfg.federated() {
		if err := z.openReplica(); err != nil {
			return err
		}
	}
	z.Health.Add(server.Check{Name: "replica", Ready: z.replicaReady, Note: z.replicaNote})
	return z.assemble()
}

// openReplica opens the replica and prepares the connection that keeps it up to
// date.
func (z *zone) openReplica() error {
	accepted, err := z.cfg.acceptedWipe()
	if err != nil {
		return &server.UsageError{Err: err}
	}
	if err := z.openWay(); err != nil {
		return err
	}
	z.matcher.Expect() // it is reset with what is read here
	z.replica, err = zonesync.OpenReplica(zonesync.ReplicaConfig{
		Dir: z.cfg.DataDir, Zone: resource.ZoneName(z.cfg.Name), Store: z.globalStore, AcceptWipe: accepted, Version: version.String(),
		Decode: func(meta resource.Meta, spec []byte) (*resource.Resource, error) {
			r, err := resource.BuildStored(meta, spec)
			if err == nil {
				z.matcher.Prepare(r)
			}
			return r, err
		},
	})
	if err != nil {
		return fmt.Errorf("--data-dir %s: %w", z.cfg.DataDir, err)
	}
	for _, damage := range z.replica.Status().Damage {
		z.Log.Error("a record of the replica is damaged: it is not served until the global repairs it", "record", damage)
	}
	z.authorities = openAuthorities(z.cfg.DataDir, z.bundle.CA, z.bundleSource(), z.Log)
	credentials, err := pki.FollowingTransport(z.authorities.tls)
	if err != nil {
		return &server.UsageError{Err: err}
	}
	client := zonesync.ClientConfig{
		Replica: z.replica, Addresses: z.bundle.Addresses, Credentials: credentials, Logger: z.Log,
		Token:  tokenSource(z.newestWay, z.bundle.Token, z.Log),
		Answer: z.inspect.answerRelayed, Authorities: z.authorities.digest,
		AnswerAudit: z.auditAnswer(),
		Drain:       z.drain, Draining: z.drained,
	}
	if z.cluster != nil {
		client.ServersOfZone = func() int { return len(z.Node.Servers()) }
	}
	if z.bundle.CA != "" {
		client.Trust = z.authorities.trust
	}
	if z.cfg.LearnGlobalAddrs {
		client.Known = loadServers(z.cfg.DataDir, z.bundle.Addresses, z.Log)
		client.Learn = func(learned []string) error { return saveServers(z.cfg.DataDir, z.bundle.Addresses, learned) }
	}
	z.client, err = zonesync.NewClient(client)
	return err
}

// bundleSource names the file that the global's CA came from, for error
// messages.
func (z *zone) bundleSource() string {
	switch {
	case z.cfg.JoinBundle != "":
		return z.cfg.JoinBundle
	case z.cfg.inherited:
		return filepath.Join(z.cfg.DataDir, wayFile)
	}
	return z.cfg.GlobalCA
}

// Close implements controlplane.Server.
func (z *zone) Close() error {
	var errs []error
	if z.replica != nil {
		errs = append(errs, z.replica.Close())
	}
	if z.cluster != nil {
		errs = append(errs, z.cluster.CloseGossip())
	}
	return errors.Join(errs...)
}

// Serve implements controlplane.Server.
func (z *zone) Serve(ctx context.Context) error {
	parts, ctx := errgroup.WithContext(ctx)
	z.serveEarly(ctx, parts)
	parts.Go(func() error {
		err := z.awaitStart(ctx)
		if err == nil && ctx.Err() == nil {
			err = z.CheckOpen()
		}
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, z.Listeners.CloseWebhook())
		}
		if z.client != nil {
			parts.Go(func() error { return z.client.Run(ctx) })
			parts.Go(func() error { return z.drainKeeper.run(ctx) })
		}
		z.serveCluster(ctx, parts)
		parts.Go(func() error { return z.Matching.Run(ctx) })
		parts.Go(func() error { return z.dataplanes.Run(ctx) })
		parts.Go(func() error { return z.identities.Run(ctx, z.dataplanes) })
		parts.Go(func() error { return z.serveDiscovery(ctx) })
		parts.Go(func() error { return z.FollowAdminToken(ctx) })
		parts.Go(func() error { return z.Keys.Follow(ctx, z.Callers.Recheck, z.stores()...) })
		z.ServeWebhook(ctx, parts)
		if err := errors.Join(z.ReissueAdminToken(ctx), z.WriteAdminContext()); err != nil {
			return err
		}
		z.awaitFirstSync(ctx)
		return z.Announce(ctx, "role", z.role(), "revision", z.revision())
	})
	return parts.Wait()
}

// awaitStart waits until the zone's own store holds everything committed, and
// writes what a zone needs before its first use.
func (z *zone) awaitStart(ctx context.Context) error {
	if z.cluster != nil {
		return z.cluster.AwaitStart(ctx)
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-z.Node.Ready():
	case <-ctx.Done():
		return nil
	case <-starting.Done():
		return errors.Join(fmt.Errorf("not ready: the zone's own log has no leader after %s", startTimeout), z.Node.Disk().Err())
	}
	if err := z.Bootstrap(starting, z.bootstrap()); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
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

// assemble makes the services.
func (z *zone) assemble() error {
	z.Matching = livematch.New(z.matcher, z.stores()...)
	z.resources = feed.New(z.Matching, z.world)
	if z.others != nil {
		z.Matching.OnUpdate(z.others.touched)
	}
	z.identities = z.newIdentities()
	z.dataplanes = z.newDataplaneService()
	if z.cfg.federated() {
		draining, err := loadDrain(z.cfg.DataDir)
		if err != nil {
			return err
		}
		z.dataplanes.Drain(draining)
		z.drainKeeper = newDrainKeeper(z.cfg.DataDir, z.dataplanes.Draining, z.Log)
	}
	z.discovery = z.newDiscovery()
	z.inspect.matching, z.inspect.proxies, z.inspect.xds = z.Matching, z.dataplanes, z.discovery
	z.inspect.resources, z.inspect.world = z.resources, z.world
	z.inspect.others = z.others
	z.inspect.past = &pastStates{
		stores: z.stores(), now: z.Now,
		earlier: livematch.NewEarlier(func() (*policy.Matcher, livematch.State) {
			return z.Matching.Fork(engines.Followers(z.Conditions)...) // no question about the past needs the world
		}),
	}
	z.Assemble(z.api(), z.admin())
	meridianv1.RegisterControlServiceServer(z.GRPC, &controlService{zone: z})
	meridianv1.RegisterInspectServiceServer(z.GRPC, &admin.Inspect{Answers: z.inspect, Readers: z.Authorizer, View: z.view, Past: z.inspect.past.read})
	meridianv1.RegisterDataplaneServiceServer(z.GRPC, z.dataplanes)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(z.GRPC, z.discovery)
	meridianv1.RegisterAuditServiceServer(z.GRPC, &auditlog.Service{
		Authorize: z.Authorizer.RequireAdmin,
		Sources:   z.auditSources,
	})
	if z.cluster != nil {
		z.cluster.RegisterServices()
		z.cluster.RegisterMetrics()
	}
	z.registerMetrics()
	return nil
}

// stores are those that the zone reads. Answers hold at the revision of the first.
func (z *zone) stores() []*store.Store {
	if z.globalStore == nil {
		return []*store.Store{z.Store}
	}
	return []*store.Store{z.globalStore, z.Store}
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

// awaitFirstSync gives a new zone the time to fetch what the global has, so that
// it does not refuse its first dataplanes for want of a mesh.
func (z *zone) awaitFirstSync(ctx context.Context) {
	if z.globalStore == nil || z.globalStore.Revision() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstSync)
	defer cancel()
	if err := z.globalStore.Wait(ctx, 1); err != nil && z.globalStore.Revision() == 0 {
		z.Log.Warn("nothing received from the global yet: continuing without", "error", z.client.Status().LastError)
	}
}

// revision is the one that answers hold for.
func (z *zone) revision() resource.Revision {
	if z.globalStore != nil {
		return z.globalStore.Revision()
	}
	return z.Store.Revision()
}

func (z *zone) role() string {
	if z.globalStore != nil {
		return "zone"
	}
	return "standalone"
}

// registerMetrics adds what only a zone reports.
func (z *zone) registerMetrics() {
	if z.cluster == nil {
		z.UseCertificates(map[string]*pki.PKI{"api": z.PKI})
	}
	z.Gauge("meridian_revision", "The newest revision applied.", func() float64 { return float64(z.revision()) })
	z.Gauge("meridian_dataplanes_connected", "Proxies that are connected.", func() float64 { return float64(z.dataplanes.Connected()) })
	z.Gauge("meridian_dataplanes_behind", "Proxies that are connected and have changes of their configuration to take on.", func() float64 { return float64(z.dataplanes.Behind()) })
	z.Counter("meridian_configurations_sent_total", "Configurations sent to proxies, full ones and changes.", func() float64 { return float64(z.dataplanes.Sent()) })
	z.Gauge("meridian_xds_streams", "Open xDS streams of proxies.", func() float64 { return float64(z.discovery.Streams()) })
	z.Counter("meridian_xds_responses_total", "Responses sent to proxies over xDS.", func() float64 { return float64(z.discovery.Sent()) })
	z.Metrics.MustRegister(newMeshAuthorities(z.identities.Status), newMeshPlaintext(z.dataplanes.Plaintext))
	z.Gauge("meridian_revoked_identities", "Revoked tokens of dataplanes whose certificates are denied, summed over meshes.", func() float64 { return float64(revoked(z.world).denied) })
	z.Gauge("meridian_revoked_identities_left", "Revoked tokens of dataplanes beyond those, whose certificates are accepted until they expire, summed over meshes.", func() float64 { return float64(revoked(z.world).left) })
	z.Metrics.MustRegister(trialMetrics{z.dataplanes.Trials})
	z.Counter("meridian_xds_rejected_total", "Responses over xDS that proxies rejected.", func() float64 { return float64(z.discovery.Rejected()) })
	z.Gauge("meridian_local_resources", "Resources that the zone owns.", func() float64 { return float64(z.Store.View().Len()) })
	z.Counter("meridian_matcher_computed_total", "How often the rules of one kind on one attachment were computed.", func() float64 { return float64(z.Matching.Computed()) })
	if z.replica == nil {
		return
	}
	z.Gauge("meridian_replica_resources", "Resources received from the global.", func() float64 { return float64(z.replica.Status().Resources) })
	z.Gauge("meridian_replica_damaged", "1 while part of the replica on disk is damaged and not repaired yet.", func() float64 { return bit(len(z.replica.Status().Damage) > 0) })
	z.Counter("meridian_replica_repairs_total", "How often the replica differed from the global at the same revision and was sent the difference.", func() float64 { return float64(z.replica.Status().Repairs) })
	z.Gauge("meridian_replica_quarantined", "Received resources that this zone cannot use.", func() float64 { return float64(len(z.replica.Status().Quarantined)) })
	z.Gauge("meridian_draining", "1 while the zone drains: it takes no dataplanes.", func() float64 { return bit(z.dataplanes.Draining()) })
	z.Gauge("meridian_connected", "1 while the zone follows the global.", func() float64 { return bit(z.client.Status().Connected) })
}

// revocations counts revoked tokens of dataplanes, by mesh.
type revocations struct{ denied, left int }

func revoked(w *world.World) revocations {
	var all revocations
	for _, r := range w.Revoked() {
		if r != nil {
			all.denied += len(r.Credentials)
			all.left += r.Left
		}
	}
	return all
}

// bit is a condition as a metric.
func bit(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
