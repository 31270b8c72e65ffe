package discovery

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"

	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/serve"
)

// Reasons of the refusals, for programs. Those about dataplanes and their tokens are
// those of package dataplane.
const (
	ReasonBadNode     = "BAD_NODE"
	ReasonNoRequest   = "REQUEST_MISSING"
	ReasonBadRequest  = "BAD_DISCOVERY_REQUEST"
	ReasonTooMany     = "TOO_MANY_STREAMS"
	ReasonLimit       = "LIMIT_REACHED"
	ReasonUnsupported = "PROXY_NOT_SUPPORTED"
	ReasonNoDataplane = "DATAPLANE_DELETED"
	ReasonStopping    = "ZONE_STOPPING"
	ReasonInternal    = "ZONE_BROKEN"
)

const (
	// Drain is how long a cluster stays after the last reference to it has gone: calls
	// that are under way may take that long.
	Drain = 30 * time.Second
	// Absence is how long the zone keeps what a client of gRPC had whose stream has ended:
	// such clients connect again after 2 minutes at most.
	Absence = 3 * time.Minute
	// maxStreams bounds the streams of one dataplane: gRPC opens one for each target.
	maxStreams = 128
	// firstRequest is how long a stream may stay silent at its beginning.
	firstRequest = 10 * time.Second
)

// Dataplanes are the registered dataplanes, as dataplane.Service has them.
type Dataplanes interface {
	// Check decides whether the holder of a token may act for a dataplane's proxy.
	Check(token token.Token, key resource.Key) error
	// Hold keeps a registration until it is released.
	Hold(key resource.Key) (release func(), err error)
}

// Config is what a Service needs. All fields are required unless they say otherwise.
type Config struct {
	Source     xds.Source
	Dataplanes Dataplanes
	// Budget bounds what is held for streams, in all and by the ids of tokens. Refused
	// counts what a limit has refused, by its name in metrics.
	Budget  *limits.Pool
	Refused func(limit string)
	// Changed, unless nil, is told of every dataplane of whose streams the Status may be
	// another one. It is quick, and calls nothing of the Service.
	Changed func(dataplane resource.Key)
	Now     func() time.Time
	Log     *slog.Logger
}

// Service is a zone's xDS service. Register it with
// discoveryv3.RegisterAggregatedDiscoveryServiceServer and run it with Run: streams
// wait until then. Its methods are safe for concurrent use.
type Service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	cfg     Config
	running chan struct{} // closed when Run has begun
	wake    chan struct{} // capacity 1: there are streams to work on
	streams sync.WaitGroup
	// handling gives requests their turn, fairly between tokens: one can cost as much
	// as all names that its stream has.
	handling *limits.Turns

	sent, rejected atomic.Uint64
	// lines are those of the log about streams that are opened and closed.
	lines *limits.Lines

	reporting sync.Mutex // taken before mu and those of streams

	mu      sync.Mutex // guards everything below, and what streams say of it
	closed  bool
	all     map[*stream]struct{}
	proxies map[resource.Key]*proxy
	queue   queue // each stream once
}

// proxy is one dataplane with streams.
type proxy struct {
	key     resource.Key
	streams map[*stream]struct{}
	// memories are what its instances have rejected, which outlives its streams until its
	// resources change, and what they had, which outlives them for Absence.
	memories map[string]*memory
}

// New returns a service. It is notified of changes from now on; call it before the
// zone serves.
func New(cfg Config) *Service {
	d := &Service{
		lines: limits.NewLines(),
		cfg:   cfg, running: make(chan struct{}), wake: make(chan struct{}, 1),
		all: map[*stream]struct{}{}, proxies: map[resource.Key]*proxy{},
	}
	running := runtime.GOMAXPROCS(0)
	d.handling = limits.NewTurns("xds_requests", limits.TurnsConfig{
		Running: running, RunningEach: max(1, running/2), Waiting: math.MaxInt, WaitingEach: math.MaxInt, // one of each stream
	})
	d.queue.streams = map[string][]*stream{}
	cfg.Source.OnTouch(d.touched)
	return d
}

// Run serves until ctx ends, then ends every stream and waits for them. Call it when
// the zone holds everything that it stored.
func (d *Service) Run(ctx context.Context) error {
	close(d.running)
	group, ctx := errgroup.WithContext(ctx)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error { return d.work(ctx) })
	}
	err := group.Wait()
	d.Close()
	d.streams.Wait()
	return err
}

// Close ends every stream, because the zone stops, and refuses new ones.
func (d *Service) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for s := range d.all {
		s.end(errStopping)
	}
}

var errStopping = rpcerr.New(rpcerr.Unavailable, ReasonStopping, "the zone is stopping: connect again")

// touched wakes the streams of proxies whose resources may have changed.
func (d *Service) touched(keys []resource.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		p := d.proxies[key]
		if p == nil {
			continue
		}
		for s := range p.streams {
			s.stale = true
			s.scheduleLocked()
		}
		if len(p.streams) == 0 {
			d.forgetLocked(p, (*serve.Memory).ForgetRejected)
		}
	}
}

// forgetLocked forgets something of all instances of a dataplane, and those without
// streams of which nothing is left.
func (d *Service) forgetLocked(p *proxy, forget func(*serve.Memory)) {
	for instance, m := range p.memories {
		forget(m.Memory)
		switch {
		case m.streams > 0: // it is charged with the stream's next request
		case m.Empty():
			m.held.Done()
			delete(p.memories, instance)
		default:
			_ = m.held.Received(memoryBytes + m.Bytes()) // it gives back what is forgotten
		}
	}
	if len(p.streams) == 0 && len(p.memories) == 0 && d.proxies[p.key] == p {
		delete(d.proxies, p.key)
	}
}

// forgetLeft forgets what clients of a dataplane had that have not come back.
func (d *Service) forgetLeft(p *proxy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	until := d.cfg.Now().Add(-Absence)
	d.forgetLocked(p, func(m *serve.Memory) { m.ForgetLeft(until) })
}

// clearMemories forgets what is known of instances. Streams keep theirs.
func (p *proxy) clearMemories() {
	for _, m := range p.memories {
		if m.streams == 0 {
			m.held.Done()
		}
	}
	clear(p.memories)
}

// Streams returns how many streams are open.
func (d *Service) Streams() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all)
}

// Sent counts the responses that were sent, Rejected those that proxies rejected.
func (d *Service) Sent() uint64 { return d.sent.Load() }

// Rejected counts the responses that proxies rejected.
func (d *Service) Rejected() uint64 { return d.rejected.Load() }

// StreamStatus is where one stream stands.
type StreamStatus struct {
	// Instance is the process that the proxy says it is; empty when it says nothing.
	Instance string
	// Client is what the proxy calls itself, with its version.
	Client  string
	Dialect xds.Dialect
	Since   time.Time
	// Withheld says why the proxy is sent nothing; empty when it is not so.
	Withheld string
	Types    []serve.TypeStatus
}

// Status returns where the streams of a dataplane stand, the oldest first; nil when
// it has none.
func (d *Service) Status(key resource.Key) []StreamStatus {
	open := d.streamsOf(key)
	out := make([]StreamStatus, 0, len(open))
	for _, s := range open {
		out = append(out, s.status())
	}
	slices.SortFunc(out, func(a, b StreamStatus) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Client, b.Client))
	})
	return out
}

// Dialects returns the kinds of proxies that have streams of a dataplane, in order; nil
// when it has none.
func (d *Service) Dialects(key resource.Key) []xds.Dialect {
	d.mu.Lock()
	defer d.mu.Unlock()
	var dialects []xds.Dialect
	if p := d.proxies[key]; p != nil {
		for s := range p.streams {
			dialects = append(dialects, s.dialect)
		}
	}
	slices.Sort(dialects)
	return slices.Compact(dialects)
}

// Follows reports whether a dataplane has a proxy of a kind that is connected, and why
// nothing is sent to it; withheld is empty when something is.
func (d *Service) Follows(key resource.Key, dialect xds.Dialect) (withheld string, ok bool) {
	for _, s := range d.streamsOf(key) {
		if s.dialect == dialect {
			s.mu.Lock()
			withheld, ok = s.withheld, true
			s.mu.Unlock()
		}
	}
	return withheld, ok
}

// Deliveries returns how far each of some resources has come to the proxies of a
// dataplane that speak a dialect: of several streams that subscribe to it, on the one
// that has the most to be looked at.
func (d *Service) Deliveries(key resource.Key, dialect xds.Dialect, resources []*xds.Resource) []serve.Delivery {
	out := make([]serve.Delivery, len(resources))
	for _, s := range d.streamsOf(key) {
		if s.dialect == dialect {
			s.deliveries(resources, out)
		}
	}
	return out
}

// Behind returns the dataplanes with streams that a change of a revision, or a later one,
// touched and that have not accepted everything of it, each with enforce.Pending or
// enforce.Rejected. The caller has applied the revision.
func (d *Service) Behind(revision resource.Revision) map[resource.Key]enforce.State {
	behind := map[resource.Key]enforce.State{}
	for s, busy := range d.open() {
		if state := s.behind(revision, busy); state != "" {
			behind[s.key] = enforce.Worse(behind[s.key], state)
		}
	}
	return behind
}

// streamsOf returns the streams of a dataplane.
func (d *Service) streamsOf(key resource.Key) []*stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	var open []*stream
	if p := d.proxies[key]; p != nil {
		for s := range p.streams {
			open = append(open, s)
		}
	}
	return open
}

// Proxies returns the dataplanes that have streams, in order.
func (d *Service) Proxies() []resource.Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := make([]resource.Key, 0, len(d.proxies))
	for key, p := range d.proxies {
		if len(p.streams) > 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, resource.Key.Compare)
	return keys
}

// join puts a stream among those of its dataplane. A stream that was left never joins:
// nothing would take it out again.
func (d *Service) join(s *stream, key resource.Key, instance string) error {
	unregister, err := d.cfg.Dataplanes.Hold(key)
	if err != nil {
		return err
	}
	unfollow := d.cfg.Source.Follow(key)
	release := func() {
		unfollow()
		unregister()
	}
	if err := d.place(s, key, instance, release); err != nil {
		release()
		return err
	}
	if s.dialect != xds.Envoy {
		d.report(key) // there may be an application in the place of an Envoy
	}
	return nil
}

// place is join with what the stream releases when it leaves.
func (d *Service) place(s *stream, key resource.Key, instance string, release func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.ended {
		return context.Cause(s.ctx)
	}
	p := d.proxies[key]
	if p == nil {
		p = &proxy{key: key, streams: map[*stream]struct{}{}, memories: map[string]*memory{}}
	}
	if len(p.streams) >= maxStreams {
		return rpcerr.New(rpcerr.TooLarge, ReasonTooMany, "dataplane %q in mesh %q has %d streams already, as many as it may have", key.Name, key.Mesh, len(p.streams))
	}
	m := p.memories[instance]
	if m == nil {
		var err error
		if m, err = d.newMemory(s.token.ID); err != nil {
			return err
		}
		if len(p.memories) >= maxStreams {
			p.clearMemories()
		}
		p.memories[instance] = m
	}
	d.proxies[key] = p
	p.streams[s] = struct{}{}
	m.streams++
	s.proxy, s.release, s.memory = p, release, m
	return nil
}

// changed tells that the status of a dataplane's streams may be another one.
func (d *Service) changed(key resource.Key) {
	if d.cfg.Changed != nil {
		d.cfg.Changed(key)
	}
}

// leave takes a stream out of the tables and reports whether it was in its proxy's.
func (d *Service) leave(s *stream) bool {
	s.mu.Lock()
	if s.machine != nil {
		s.machine.Leave(d.cfg.Now())
	}
	s.mu.Unlock()
	d.mu.Lock()
	delete(d.all, s)
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	p := s.proxy
	if p != nil {
		delete(p.streams, s)
		if err := s.memory.held.Received(memoryBytes + s.memory.Bytes()); err != nil {
			s.memory.ForgetLeft(d.cfg.Now()) // there is no space for it
		}
		s.memory.streams--
		if s.memory.streams == 0 && p.memories[s.instance] != s.memory {
			s.memory.held.Done()
		}
		d.forgetLocked(p, func(*serve.Memory) {})
		if !s.delta && !d.closed && len(p.memories) > 0 {
			time.AfterFunc(Absence, func() { d.forgetLeft(p) })
		}
	}
	d.mu.Unlock()
	if p != nil {
		d.changed(p.key)
		d.report(p.key)
		s.release()
	}
	return p != nil
}
