package zonesync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/deepstack"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// errClosed means that the server is going away.
var errClosed = errors.New("the server is shutting down")

// Authorizer decides whether a token authorizes a zone (§7.7), and until when: it is asked
// again at that time; zero for never. The error is the reason why not. A gRPC status
// error reaches the zone as it is; any other one as PERMISSION_DENIED.
type Authorizer func(ctx context.Context, token string, zone resource.ZoneName) (until time.Time, err error)

// ServerConfig is what a Server needs. All fields without a remark are required.
type ServerConfig struct {
	// Name is this server's among those of the global. Optional where there is
	// one.
	Name string
	// Address is where zones reach this server, host:port. Optional: without it the others
	// send it no zones.
	Address string
	// Store is the global's state.
	Store *store.Store
	// Synced says which kinds flow to zones.
	Synced func(resource.Kind) bool
	// Authorize decides about a zone. It is asked again for every stream when a resource
	// of a kind that Reauthorize accepts changes, when its answer runs out, and once a
	// minute.
	Authorize   Authorizer
	Reauthorize func(resource.Kind) bool
	Logger      *slog.Logger
	// Servers returns the host:port of every server of the global, which zones
	// are informed of. It is called often. Optional.
	Servers func() []string
	// Authorities returns the authorities, in PEM, that zones are to verify servers
	// by; none where they are not the global's to replace. It is called often, with
	// Servers. Optional.
	Authorities func() []byte
	// Draining reports whether a zone is to drain. It is called for every frame.
	// Optional: without it no zone is told anything.
	Draining func(resource.ZoneName) bool
}

// SyncedKinds is the Synced of the table of kinds.
func SyncedKinds(k resource.Kind) bool {
	d, ok := resource.Describe(k)
	return ok && d.Synced
}

const (
	// feedBytes bounds what the feed remembers: some 20,000 small changes. Who
	// was away for longer gets the buckets that differ, which costs little more,
	// and a small global is not made large by its past.
	feedBytes = 16 << 20
	// helloTimeout is how long a connection may stay without a valid Hello.
	helloTimeout = 10 * time.Second
	// recheckEvery is how often authorization is asked again though nothing is known to
	// have changed.
	recheckEvery = time.Minute
	// fenceTimeout is how long ending a stream waits for the zone to be notified why and to
	// end it.
	fenceTimeout = time.Second
)

// Server is the global's end of every zone's stream. Register it with
// syncv1.RegisterSyncServiceServer, at a gRPC server that encodes with Codec and has Tap, and
// run it with Run. Its methods are safe for concurrent use.
type Server struct {
	syncv1.UnimplementedSyncServiceServer

	cfg      ServerConfig
	pacing   pacing
	feed     *feed
	registry *registry
	// dispatcher knows the open streams.
	dispatcher *dispatcher
	balance    balance
	ready      chan struct{} // closed when the feed has begun
	// announced is what zones are told of the global's servers; nil before there is any.
	announced atomic.Pointer[announcement]

	mu        sync.Mutex
	closed    bool
	suspended string        // why no zone is served, empty when they are
	recheck   chan struct{} // closed and replaced when authorization may have changed
	ending    chan struct{} // closed when Run returns
	streams   sync.WaitGroup
}

// NewServer returns a server that serves once Run is called.
func NewServer(cfg ServerConfig) *Server {
	return &Server{
		cfg: cfg, pacing: defaultPacing(), feed: newFeed(cfg.Synced, feedBytes),
		registry: newRegistry(), dispatcher: newDispatcher(), ready: make(chan struct{}),
		recheck: make(chan struct{}), ending: make(chan struct{}),
	}
}

// Run follows the store until ctx is done, then ends every stream, waits for
// them and returns nil. Call it once. An error means that the store's feed
// contradicts itself; the streams have been ended all the same.
func (s *Server) Run(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	s.announce()
	s.streams.Go(func() { s.announceChanges(following) })
	s.streams.Go(func() { s.dispatcher.wakeAll(following, s.feed) })
	s.streams.Go(func() { s.dispatcher.wakeOnTime(following) })
	s.streams.Go(func() { s.patrol(following) })
	err := s.follow(ctx)
	stop()
	s.mu.Lock()
	s.closed = true
	close(s.ending)
	s.mu.Unlock()
	s.reauthorize()
	s.streams.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// patrol looks after the streams of zones that do not read, and at authorizations that
// have run out.
func (s *Server) patrol(ctx context.Context) {
	tick := time.NewTicker(s.pacing.stallAfter / 4)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for _, c := range s.dispatcher.streams() {
				c.patrol(now)
			}
		case <-ctx.Done():
			return
		}
	}
}

// announcement is where the global's servers are, and by which authorities, in PEM, they
// are verified. It is shared by all streams and not changed.
type announcement struct {
	servers     []string
	authorities []byte
}

// announceChanges looks every second, for all streams, whether there is anything else to
// announce.
func (s *Server) announceChanges(ctx context.Context) {
	if s.cfg.Servers == nil {
		return
	}
	tick := time.NewTicker(s.pacing.bookmarkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.announce()
		case <-ctx.Done():
			return
		}
	}
}

// announce has every zone told where the servers are, if that is not what it was told.
func (s *Server) announce() {
	if s.cfg.Servers == nil {
		return
	}
	a := &announcement{servers: s.cfg.Servers()}
	if s.cfg.Authorities != nil {
		a.authorities = s.cfg.Authorities()
	}
	last := s.announced.Load()
	if len(a.servers) == 0 || last != nil && slices.Equal(a.servers, last.servers) && bytes.Equal(a.authorities, last.authorities) {
		return
	}
	s.announced.Store(a)
	s.feed.rouse()
}

func (s *Server) follow(ctx context.Context) error {
	// From the oldest revision retained, so that zones resume over a restart.
	v, err := s.cfg.Store.ViewAt(s.cfg.Store.Oldest())
	if err != nil {
		v = s.cfg.Store.View()
	}
	s.feed.reset(v)
	at := s.cfg.Store.Follow(v)
	// Zones are greeted once the feed has reached what the store holds: before that
	// it stands in the past, and may in an earlier epoch.
	begin := s.cfg.Store.View().Changed()
	for greeting := false; ; {
		if !greeting && s.feed.position().head >= begin {
			greeting = true
			close(s.ready)
		}
		batches, err := at.Next(ctx)
		if errors.Is(err, store.ErrCompacted) {
			// The store was replaced by a snapshot, or has run away from here.
			v = s.cfg.Store.View()
			s.feed.reset(v)
			at = s.cfg.Store.Follow(v)
			s.reauthorize()
			s.forget(s.deleted)
			continue
		}
		if err != nil {
			return err
		}
		if err := s.take(batches); err != nil {
			return err
		}
	}
}

func (s *Server) take(batches []store.Batch) error {
	reauthorize := false
	for _, b := range batches {
		if err := s.feed.append(b, time.Now()); err != nil {
			return err
		}
		for _, c := range b.Changes {
			reauthorize = reauthorize || s.cfg.Reauthorize(c.Key().Kind)
			if c.Key().Kind == resource.KindZone && c.After == nil {
				s.forgetDeleted(resource.ZoneName(c.Key().Name))
			}
		}
	}
	if reauthorize {
		s.reauthorize()
	}
	at := s.feed.position()
	if v := s.cfg.Store.View(); v.Changed() == at.head && v.Epoch() == at.epoch && v.DigestOf(s.cfg.Synced) != at.digest {
		return fmt.Errorf("the feed's digest at revision %d is not the store's", at.head)
	}
	return nil
}

// deleted reports whether there is no such zone any more.
func (s *Server) deleted(zone resource.ZoneName) bool {
	_, ok := s.cfg.Store.View().Get(resource.Key{Kind: resource.KindZone, Name: string(zone)})
	return !ok
}

// forgetDeleted forgets what is known of a zone that was deleted.
func (s *Server) forgetDeleted(zone resource.ZoneName) {
	s.forget(func(name resource.ZoneName) bool { return name == zone && s.deleted(zone) })
}

// forget forgets what is known of zones and ends their connections: a zone that is
// created again connects again.
func (s *Server) forget(gone func(resource.ZoneName) bool) {
	for _, c := range s.registry.forget(gone) {
		c.end(fencef(syncv1.FenceReason_FENCE_REASON_NOT_ADMITTED, "the zone is no longer authorized: its Zone was deleted"))
	}
}

// reauthorize has every stream ask whether it may continue.
func (s *Server) reauthorize() {
	s.mu.Lock()
	close(s.recheck)
	s.recheck = make(chan struct{})
	s.mu.Unlock()
	for _, c := range s.dispatcher.streams() {
		c.checker.ask()
	}
}

// rechecked is closed when authorization may have changed; the error says that no
// zone is served now.
func (s *Server) rechecked() (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.recheck, fencef(syncv1.FenceReason_FENCE_REASON_SHUTDOWN, "the server is shutting down")
	}
	if s.suspended != "" {
		return s.recheck, fencef(syncv1.FenceReason_FENCE_REASON_SUSPENDED, "this server does not serve zones now: %s", s.suspended)
	}
	return s.recheck, nil
}

// Suspend ends every stream and refuses new ones, with the reason, until Resume
// is called: what this server would send may be out of date, and zones are to
// move to another one. The reports of zones are kept.
func (s *Server) Suspend(reason string) {
	s.mu.Lock()
	s.suspended = reason
	s.mu.Unlock()
	s.reauthorize()
}

// Resume serves zones again.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspended = ""
}

// enter counts a stream in, unless the server is going away.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.streams.Add(1)
	return true
}

// Stream serves one zone's connection. It is called by gRPC.
func (s *Server) Stream(stream syncv1.SyncService_StreamServer) error {
	if !s.enter() {
		return status.Error(codes.Unavailable, errClosed.Error())
	}
	defer s.streams.Done()
	select {
	case <-s.ready:
	case <-s.ending:
		return status.Error(codes.Unavailable, errClosed.Error())
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	if _, err := s.rechecked(); err != nil {
		return statusOf(err)
	}
	cancel, ok := stream.Context().Value(cancelKey{}).(context.CancelFunc)
	if !ok {
		return status.Error(codes.Internal, "the gRPC server of zones has no zonesync.Tap")
	}
	var c *conn
	deepstack.Run(func() { c = s.open(stream, cancel) })
	c.read()
	return c.finish()
}

// open has a stream looked after.
func (s *Server) open(stream syncv1.SyncService_StreamServer, cancel context.CancelFunc) *conn {
	c := newConn(s, stream, cancel)
	s.dispatcher.add(c)
	c.checker.ask() // of what happened before, the stream was not told
	c.wake()
	return c
}

// cancelKey is the key of the function that ends a stream's context.
type cancelKey struct{}

// Tap is a tap handle for the gRPC server that a Server is registered with
// (grpc.InTapHandle): it gives streams of zones a context that the Server can end. It
// returns no error.
func Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != syncv1.SyncService_Stream_FullMethodName {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, cancelKey{}, cancel), nil
}

// bearer is the token of a call.
func bearer(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "bearer") {
			return strings.TrimSpace(token)
		}
	}
	return ""
}

// statusOf is an error as the zone's gRPC client sees it.
func statusOf(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	var fence *fenceError
	switch {
	case errors.Is(err, errNoCommonProtocol):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.As(err, &fence):
		switch fence.reason {
		case syncv1.FenceReason_FENCE_REASON_NOT_ADMITTED:
			return status.Error(codes.PermissionDenied, err.Error())
		case syncv1.FenceReason_FENCE_REASON_PROTOCOL:
			return status.Error(codes.InvalidArgument, err.Error())
		case syncv1.FenceReason_FENCE_REASON_SUSPENDED, syncv1.FenceReason_FENCE_REASON_MOVED:
			return status.Error(codes.Unavailable, err.Error())
		}
		return status.Error(codes.Aborted, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}
