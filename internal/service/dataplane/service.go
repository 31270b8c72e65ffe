package dataplane

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/commit"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
	"meridian/internal/service/identities"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// DefaultGrace is how long a dataplane stays registered after its proxy has
// gone, unless configured otherwise.
const DefaultGrace = 30 * time.Second

// Config is what a Service needs. All fields are required unless they say otherwise; Grace may
// be zero.
type Config struct {
	// Matching decides what is effective; it reads Local, among others.
	Matching *livematch.Matching
	// Local is where dataplanes are kept, and Writer commits to it.
	Local  *store.Store
	Writer commit.Log
	// Zone is the zone, whose tag dataplanes get.
	Zone resource.ZoneName
	// Prepare refuses a dataplane that the zone cannot have: with ReasonNoMesh if that is
	// for want of its mesh, which may come yet. It may complete it.
	Prepare func(r *resource.Resource) (*resource.Resource, error)
	// Turns are those in which registrations are decoded and decided, among other
	// requests. Refused counts what a limit has refused, by its name in metrics.
	Turns   *turns.Turns
	Refused func(limit string)
	// Identities issues the certificates of dataplanes.
	Identities Identities
	// Certified is told, whenever a proxy acknowledges its newest identity, whether that
	// has a certificate. It is quick, and calls nothing of the Service but what follows
	// Matching.
	Certified func(dataplane resource.Key, has bool)
	// Unattended is told of a dataplane that an operator applied and that no agent has come
	// for within the grace period: since it was applied, or the zone started. It is like
	// Certified.
	Unattended func(dataplane resource.Key)
	// Grace is how long a dataplane stays registered without its proxy.
	Grace time.Duration
	// Server is the name of this server in a zone of several, which share Local; empty in a
	// zone of one. Absent reports whether this server looks after what was registered at
	// another one, empty where that is not known; required with Server. It is called with
	// the service locked, and Adopt after its answer has changed.
	Server string
	Absent func(server string) bool
	// Changed, unless nil, is told of every dataplane of whose proxy the State may be another
	// one. It is quick, and calls nothing of the Service.
	Changed func(dataplane resource.Key)
	Now     func() time.Time
	Log     *slog.Logger
}

// Identities issues certificates, as identities.Keeper does.
type Identities interface {
	// Issue makes the identity of a stored dataplane for the public half of its key.
	Issue(ctx context.Context, dataplane resource.Key, key *ecdsa.PublicKey, on token.Token) (identities.Identity, error)
	// Acknowledged is called when a proxy says that it has one.
	Acknowledged()
}

// Service is a zone's DataplaneService. Register it with
// meridianv1.RegisterDataplaneServiceServer and run it with Run: streams wait
// until then. Its methods are safe for concurrent use.
type Service struct {
	meridianv1.UnimplementedDataplaneServiceServer

	cfg             Config
	builder         builder
	sent            atomic.Uint64
	lines           *limits.Lines // of the log about proxies that come and go
	running         chan struct{} // closed when Run has taken over
	expiriesChanged chan struct{} // capacity 1: the departures have changed
	wake            chan struct{} // capacity 1: there are sessions to work on
	withdraw        chan struct{} // capacity 1: the zone drains, and something is registered
	applied         chan struct{} // capacity 1: an operator has applied a dataplane
	// registering gives the registrations their turn, hellos bounds those that wait.
	registering *limits.Turns
	hellos      *limits.Pool

	// signing is full while as many certificates are being made as may be at a time.
	signing chan struct{}

	streams sync.WaitGroup // goroutines that serve streams

	mu     sync.Mutex // guards everything below
	closed bool
	// draining: no proxies are taken. suspended: neither are they, and nothing is removed.
	draining, suspended bool
	// sessions are all streams, also those that are in no proxy's place yet.
	sessions map[*session]struct{}
	proxies  map[resource.Key]*proxy
	// holders are the dataplanes that may have a valid certificate.
	holders holders
	// elsewhere are the dataplanes that an operator applied and that have an identity from
	// another server.
	elsewhere map[resource.Key]struct{}
	// unattended are the dataplanes that an operator applied and that no agent has come for
	// since the zone started, with the end of the time that it has; zero once that is over.
	unattended map[resource.Key]time.Time
	// doneLocked are the departures in order of their deadlines. One that has come
	// back since, or left again, is stale: its proxy says another deadline.
	expiries []expiry
	// plaintext counts the connections without TLS by mesh.
	plaintext map[resource.MeshName]float64
	// queue are the sessions whose configuration may have changed, each once.
	queue []*session
}

// proxy is what is known of a dataplane that is, or was until lately, connected.
type proxy struct {
	key resource.Key
	// session is the stream; nil while the proxy is away, which it has been since
	// deadline - Grace.
	session  *session
	deadline time.Time
	// removing is set while its registration is being removed, and closed after.
	removing chan struct{}
	// held counts the streams that keep its registration beside the session, unless
	// leaving is set: the proxy said that it leaves for good.
	held    int
	leaving bool

	// changed counts the changes of the configuration, from 1 for the first one;
	// settled is how many of them the proxy has.
	changed, settled uint64
	acked            resource.Revision
	// lastError is why it refused a configuration, refused the change that this was.
	// They stay until it accepts one.
	lastError string
	refused   uint64
	// plaintext is what its inbounds take without TLS; nil where it is not known.
	plaintext *Plaintext
	// trial is what it has counted of permissions that are tried; nil for nothing.
	trial *meridianv1.DataplaneTrial
}

// kept reports whether streams beside the session keep the registration.
func (p *proxy) kept() bool { return p.held > 0 && !p.leaving }

// expiry is a proxy that went away.
type expiry struct {
	key      resource.Key
	deadline time.Time
}

// New returns a service. It is notified of changes from now on; call it before
// the zone serves.
func New(cfg Config) *Service {
	d := &Service{
		lines: limits.NewLines(),
		cfg:   cfg, running: make(chan struct{}), expiriesChanged: make(chan struct{}, 1), wake: make(chan struct{}, 1), withdraw: make(chan struct{}, 1), applied: make(chan struct{}, 1), unattended: map[resource.Key]time.Time{},
		registering: limits.NewTurns("registrations", limits.TurnsConfig{
			Running: maxRegistering, RunningEach: maxRegistering / 2, Waiting: math.MaxInt, WaitingEach: math.MaxInt, // as many as there are streams
		}),
		hellos:   limits.New(maxHelloBytes, maxCallerHelloBytes),
		signing:  make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
		sessions: map[*session]struct{}{}, proxies: map[resource.Key]*proxy{}, holders: holders{}, elsewhere: map[resource.Key]struct{}{}, plaintext: map[resource.MeshName]float64{},
	}
	cfg.Matching.OnTouch(d.markChanged)
	return d
}

// Run serves until ctx ends: it takes over the registrations of the time
// before, lets proxies in, and in the end ends every stream and waits for them.
func (d *Service) Run(ctx context.Context) error {
	d.adoptRegistrations()
	close(d.running)
	group, parts := errgroup.WithContext(ctx)
	group.Go(func() error { return d.watchStore(parts) })
	group.Go(func() error { return d.removeExpired(parts) })
	group.Go(func() error { return d.drainRegistrations(parts) })
	group.Go(func() error { return d.watchApplied(parts) })
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error { return d.work(parts) })
	}
	err := group.Wait()
	d.endAll()
	d.streams.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// adoptRegistrations starts the grace period of everything that proxies had registered
// here when the zone stopped.
func (d *Service) adoptRegistrations() { d.Adopt() }

// endAll ends every stream because the zone stops.
func (d *Service) endAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for s := range d.sessions {
		s.end(errStopping)
	}
}

var errStopping = rpcerr.New(rpcerr.Unavailable, ReasonStopping, "the zone is stopping: connect again")

// markChanged notes which proxies a change concerns and wakes them. It is called with
// the matcher unchanged.
func (d *Service) markChanged(touched []policy.Touch) {
	d.builder.reset()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range touched {
		p := d.proxies[t.Dataplane]
		if p == nil {
			continue
		}
		p.changed++
		if p.session != nil {
			p.session.markChangedLocked()
		}
		d.changedLocked(p)
	}
}

// changedLocked tells that the state of a proxy may be another one.
func (d *Service) changedLocked(p *proxy) {
	if d.cfg.Changed != nil {
		d.cfg.Changed(p.key)
	}
}

// watchStore looks at what changes in the zone's own store until ctx ends.
func (d *Service) watchStore(ctx context.Context) error {
	s := d.cfg.Local
	feed := s.Follow(s.View())
	d.checkAll() // what happened before the feed began
	for {
		batches, err := feed.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, store.ErrCompacted):
			feed = s.Follow(s.View())
			d.checkAll()
			continue
		case err != nil:
			return fmt.Errorf("follow the changes of the store: %w", err)
		}
		d.checkBatches(batches)
	}
}

func (d *Service) checkBatches(batches []store.Batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	view := d.cfg.Local.View()
	for _, b := range batches {
		for _, c := range b.Changes {
			if key := c.Key(); key.Kind == resource.KindDataplane {
				if c.After == nil {
					delete(d.unattended, key)
				}
				d.checkLocked(view, key)
				if r := c.After; d.draining && r != nil && byProxy(r) && !draining(r) {
					d.wakeWithdrawal() // it was being registered when that began
				}
			}
		}
	}
}

func (d *Service) checkAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	view := d.cfg.Local.View()
	for key := range d.proxies {
		d.checkLocked(view, key)
	}
	for r := range view.List(resource.KindDataplane, "") {
		d.checkLocked(view, r.Key())
	}
}

// checkLocked compares what is stored under a key with the connected proxy.
func (d *Service) checkLocked(view *store.View, key resource.Key) {
	p := d.proxies[key]
	r, stored := view.Get(key)
	d.attendLocked(key, stored && !byProxy(r))
	switch {
	case p != nil && p.session != nil:
		if p.session.registered {
			p.session.check(r)
		}
	case p != nil && (p.removing != nil || p.kept() && stored):
		// Its removal is in progress, or another stream looks after it.
	case !stored || !d.looksAfter(r):
		delete(d.proxies, key)
	case p == nil:
		// Brought in with its label, by a restored backup for one: it stays if
		// its proxy comes.
		d.startGraceLocked(key)
	}
}

// State is the state of a dataplane's proxy in its zone.
type State struct {
	// Connected: the proxy is there.
	Connected bool
	// Registered: the dataplane was registered by a proxy, not by an operator.
	Registered bool
	// Acked is the revision of the last configuration that the proxy took on;
	// zero if none.
	Acked resource.Revision
	// Lag is how many changes of its configuration the proxy has yet to take on.
	Lag uint64
	// LastError is why it refused the last configuration; empty if it did not.
	LastError string
	// Refused: that was the newest change. It is false while the proxy has yet to answer
	// a later one.
	Refused bool
	// Draining: others are to send it no requests.
	Draining bool
	// Plaintext is what its inbounds take without TLS, where the mesh accepts that beside
	// TLS and its proxy counts it; else nil.
	Plaintext *Plaintext
}

// State returns the state of a dataplane's proxy.
func (d *Service) State(key resource.Key) State {
	r, stored := d.cfg.Local.View().Get(key)
	d.mu.Lock()
	defer d.mu.Unlock()
	state := State{Registered: stored && byProxy(r), Draining: stored && draining(r)}
	if p := d.proxies[key]; p != nil {
		state.Connected = p.session != nil && p.session.registered || p.kept()
		state.Plaintext = p.plaintext
		state.Acked, state.Lag, state.LastError = p.acked, p.changed-p.settled, p.lastError
		state.Refused = p.lastError != "" && p.refused == p.changed && (p.session == nil || p.session.unacked == nil)
	}
	return state
}

// Changes counts the changes of the configuration of a dataplane's proxy, and up to which
// of them the proxy has taken them on. Both begin anew with some connections.
func (d *Service) Changes(key resource.Key) (made, taken uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.proxies[key]; p != nil {
		made, taken = p.changed, p.settled
	}
	return made, taken
}

// Connected returns how many proxies are connected.
func (d *Service) Connected() int { return d.count(func(*proxy) bool { return true }) }

// Behind returns how many of them have changes of their configuration to take on.
func (d *Service) Behind() int {
	return d.count(func(p *proxy) bool { return p.session != nil && p.changed != p.settled })
}

// count counts the connected proxies of which something holds.
func (d *Service) count(holds func(*proxy) bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, p := range d.proxies {
		if (p.session != nil || p.kept()) && holds(p) {
			n++
		}
	}
	return n
}

// Sent counts the configurations that were sent.
func (d *Service) Sent() uint64 { return d.sent.Load() }
