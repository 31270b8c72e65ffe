package zonesync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/deepstack"
	"meridian/internal/resource"
)

// conn is one zone's stream on the global: a reader, and a writer that runs while there
// is something to send. Neither waits for the other.
//
// gRPC's handler is the reader: another goroutine would cost a stack for each zone. It is
// inside Recv almost always, and returns from there when the stream's context ends.
type conn struct {
	server  *Server
	stream  syncv1.SyncService_StreamServer
	cancel  context.CancelFunc // ends the stream's context
	token   string
	writer  turn // sends what there is
	checker turn // asks whether the zone may still be connected
	began   time.Time
	checked time.Time // when authorization was last asked again; the patrol's
	due     due       // the dispatcher's

	mu     sync.Mutex // guards what follows
	pub    *publisher
	joined bool // the registry has the stream as one of its zone's
	zone   resource.ZoneName
	id     string    // instance
	until  time.Time // when authorization is to be asked again; zero for never
	err    error     // why the stream ends
	asks   askQueue
	// heard is when the zone last said anything, and ignored that it has left a
	// question without an answer since.
	heard   time.Time
	ignored bool
	// announced is what the zone was last told of the global's servers.
	announced *announcement
	// drains says that the zone can be told to drain, toldDraining whether it was told
	// to; nil before it was told anything.
	drains       bool
	toldDraining *bool
}

func newConn(s *Server, stream syncv1.SyncService_StreamServer, cancel context.CancelFunc) *conn {
	now := time.Now()
	c := &conn{
		server: s, stream: stream, cancel: cancel, token: bearer(stream.Context()), began: now, checked: now,
		pub: newPublisher(s.pacing, s.feed, s.cfg.Store.View),
	}
	c.writer = turn{group: &s.streams, run: c.write}
	c.checker = turn{group: &s.streams, run: c.check}
	return c
}

// finish ends a stream that is read no more. It is apart from what waits, and so is
// Server.open: what they need of the stack is not kept for as long as the stream lasts.
func (c *conn) finish() error {
	<-c.stream.Context().Done() // the zone knows why, or does not read
	c.checker.end()
	c.server.dispatcher.remove(c)
	c.leave()
	return statusOf(c.reason())
}

// check ends the stream if it is not to be served any more.
func (c *conn) check() (over bool) {
	_, err := c.server.rechecked()
	if err == nil {
		err = c.reauthorize()
	}
	if err != nil {
		c.end(err)
	}
	return err != nil
}

// patrol looks after a stream whose writer may be inside Send, and cannot see for itself
// that the zone does not even read; and asks for its authorization from time to time.
func (c *conn) patrol(now time.Time) {
	if err := c.stalled(now); err != nil {
		c.end(err)
		return
	}
	if now.Sub(c.checked) >= recheckEvery {
		c.checked = now
		c.checker.ask()
	}
}

func (c *conn) greeted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.joined
}

func (c *conn) stalled(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pub.stalled(now)
}

// reauthorize asks whether the zone may still be connected.
func (c *conn) reauthorize() error {
	c.mu.Lock()
	zone, joined := c.zone, c.joined
	c.mu.Unlock()
	if !joined {
		return nil // hello sees that it has to ask again
	}
	if err := c.authorize(zone); err != nil {
		return fencef(syncv1.FenceReason_FENCE_REASON_NOT_ADMITTED, "zone %s is no longer authorized: %v", zone, err)
	}
	return nil
}

func (c *conn) authorize(zone resource.ZoneName) error {
	until, err := c.server.cfg.Authorize(c.stream.Context(), c.token, zone)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = until
	return err
}

// end has the stream end, with the first reason given. A zone that is sent the reason ends
// the stream itself. If the server ended the context before that, gRPC would answer that
// the call was cancelled.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		time.AfterFunc(fenceTimeout, c.cancel)
		c.wake() // to send why
	}
}

func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *conn) leave() {
	c.mu.Lock()
	c.pub.close()
	c.asks.fail(fmt.Errorf("%w: %s", ErrZoneOffline, oneLine(c.err)))
	zone, id, joined, err := c.zone, c.id, c.joined, c.err
	c.joined = false
	c.mu.Unlock()
	if joined {
		err = c.server.registry.leave(zone, c, err, c.server.cfg.Store.View().Epoch(), time.Now())
		if refused := (*fenceError)(nil); errors.As(err, &refused) && refused.reason == syncv1.FenceReason_FENCE_REASON_NOT_ADMITTED {
			c.server.forgetDeleted(zone) // which may have been the reason
		}
		c.server.cfg.Logger.Info("zone disconnected", "zone", zone, "instance", id, "reason", err)
	}
}

// wake has the writer look whether there is anything to send.
func (c *conn) wake() { c.writer.ask() }

// want has the zone acknowledge a revision at once.
func (c *conn) want(r resource.Revision) {
	c.mu.Lock()
	send := c.pub.want(r)
	c.mu.Unlock()
	if send {
		c.wake()
	}
}

// read takes the zone's frames until the stream ends.
func (c *conn) read() {
	var message received
	for {
		send := false
		err := c.stream.RecvMsg(&message)
		if err == nil {
			send, err = c.receive(&message)
		}
		if err != nil {
			if ended := c.stream.Context(); ended.Err() != nil {
				err = context.Cause(ended)
			}
			c.end(err)
			return
		}
		if send {
			c.wake()
		}
	}
}

// receive takes what has arrived.
func (c *conn) receive(message *received) (send bool, err error) {
	f, err := message.frame()
	if err != nil {
		return false, err
	}
	return c.take(f, time.Now())
}

// take takes a frame, unless the stream has ended, and reports whether there may be
// something to send because of it: to wake the writer for every Ack costs more than to
// take it.
func (c *conn) take(f *syncv1.ZoneFrame, now time.Time) (send bool, err error) {
	c.mu.Lock()
	c.heard, c.ignored = now, false
	ended := c.err
	c.mu.Unlock()
	if ended != nil {
		return false, ended
	}
	switch b := f.GetBody().(type) {
	case *syncv1.ZoneFrame_Hello:
		deepstack.Run(func() { err = c.hello(b.Hello, now) }) // it authorizes, once
		return true, err
	case *syncv1.ZoneFrame_Ack:
		c.mu.Lock()
		send = c.pub.full() || len(b.Ack.GetNacks()) > 0
		err := c.pub.acknowledge(b.Ack, now)
		c.mu.Unlock()
		if err == nil {
			c.server.registry.acknowledge(c.zone, c, b.Ack, now)
		}
		return send, err
	case *syncv1.ZoneFrame_Answer:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asks.answer(b.Answer)
	}
	return false, nil // or from a later protocol
}

// hello authorizes the zone and begins, or begins again. Only the reader calls it.
func (c *conn) hello(h *syncv1.Hello, now time.Time) error {
	zone := resource.ZoneName(h.Zone)
	if h.Zone == "" || h.Instance == "" {
		return fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "a Hello without zone or instance")
	}
	if err := checkInstance(h.Instance); err != nil {
		return fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "%v", err)
	}
	if c.greeted() {
		if zone != c.zone || h.Instance != c.id {
			return fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "a stream cannot change its zone")
		}
	} else if err := c.enter(zone, h, now); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pub.greet(h, now)
}

// enter authorizes the zone and joins. What changed while it was being authorized
// was not decided about, so that is asked again.
func (c *conn) enter(zone resource.ZoneName, h *syncv1.Hello, now time.Time) error {
	decided, err := c.server.rechecked()
	if err != nil {
		return err
	}
	if err := c.authorize(zone); err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return fencef(syncv1.FenceReason_FENCE_REASON_NOT_ADMITTED, "zone %s is not authorized: %v", zone, err)
	}
	older, err := c.join(zone, h, now)
	if err != nil {
		return err
	}
	if older != nil {
		older.end(fencef(syncv1.FenceReason_FENCE_REASON_REPLACED, "a newer connection of this instance took over"))
	}
	select {
	case <-decided:
		return c.reauthorize()
	default:
		return nil
	}
}

// join has the registry take the stream in.
func (c *conn) join(zone resource.ZoneName, h *syncv1.Hello, now time.Time) (older *conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if older, err = c.server.registry.join(zone, c, h, now); err != nil {
		return nil, err
	}
	c.zone, c.id, c.joined, c.drains = zone, h.Instance, true, canDrain(h)
	c.server.cfg.Logger.Info("zone connected", "zone", zone, "instance", h.Instance, "revision", h.FromRevision, "version", claim(h.Version, maxVersion))
	return older, nil
}

// write sends what there is, and, once the stream has ended, why it did.
func (c *conn) write() (over bool) {
	for {
		if c.reason() != nil {
			if !c.sendFence() {
				c.cancel()
			}
			return true
		}
		f, deadline, err := c.nextFrame(time.Now())
		if f != nil && err == nil {
			err = c.stream.Send(f)
		}
		switch {
		case err != nil:
			c.end(err)
		case f == nil:
			c.server.dispatcher.schedule(c, deadline)
			return false
		}
	}
}

func (c *conn) nextFrame(now time.Time) (*syncv1.GlobalFrame, time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ask := c.asks.next(); ask != nil {
		return &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Ask{Ask: ask}}, time.Time{}, nil
	}
	if f := c.noticeLocked(); f != nil {
		c.pub.tell(now) // the acknowledgement of a bookmark says what came of it
		return f, time.Time{}, nil
	}
	c.pub.awaited = len(c.asks.pending) > 0 || c.toldDraining != nil && *c.toldDraining
	f, err := c.pub.next(now)
	deadline := c.pub.deadline()
	if left := c.until.Sub(now); !c.until.IsZero() && left <= 0 {
		c.until = time.Time{}
		c.checker.ask()
	} else if !c.until.IsZero() && (deadline.IsZero() || left < deadline.Sub(now)) {
		deadline = now.Add(left) // by the monotonic clock, as the others
	}
	if !c.joined {
		if deadline = c.began.Add(helloTimeout); !now.Before(deadline) {
			err = fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "no Hello within %s", helloTimeout)
		}
	}
	return f, deadline, err
}

// noticeLocked tells a zone that was welcomed what it does not know beside the state:
// whether it is to drain, and where the global's servers are.
func (c *conn) noticeLocked() *syncv1.GlobalFrame {
	welcomed := c.pub.phase == phaseChunks || c.pub.phase == phaseFeed
	if !welcomed {
		return nil
	}
	if f := c.drainLocked(); f != nil {
		return f
	}
	a := c.server.announced.Load()
	if a == nil || a == c.announced {
		return nil
	}
	c.announced = a
	return &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Servers{Servers: &syncv1.Servers{Addresses: a.servers, Authorities: a.authorities}}}
}

// sendFence sends the zone why the stream ends, and reports whether it did.
func (c *conn) sendFence() bool {
	var fence *fenceError
	return errors.As(c.reason(), &fence) && c.stream.Send(&syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Fence{
		Fence: &syncv1.Fence{Reason: fence.reason, Message: fence.message, Address: fence.address},
	}}) == nil
}
