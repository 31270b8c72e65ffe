package limits

import (
	"container/list"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// ConnectionConfig bounds the connections of one listener. Every number must be
// positive.
type ConnectionConfig struct {
	// Total bounds all connections, PerAddress those of one address.
	Total, PerAddress int
	// Unauthenticated bounds the connections, of one address, on which no caller
	// has been authenticated; of all addresses together there are
	// UnauthenticatedTotal.
	Unauthenticated, UnauthenticatedTotal int
}

// What unauthenticated clients may do each second, beside holding connections.
// Connections that turn out to be those of authenticated callers are given back.
const (
	// connectRate and connectBurst bound how often one address connects: a
	// handshake takes about a millisecond of CPU.
	connectRate, connectBurst = 64, 1024
	// callRate and callBurst bound the calls that one address makes on connections
	// without an authenticated caller; allRate and allBurst those of all addresses,
	// for calls with credentials and calls without them each, so that a flood of one
	// sort does not keep out the first call of a caller of the other.
	callRate, callBurst = 500, 1000
	allRate, allBurst   = 1000, 2000
	// abortRate and abortBurst bound the calls of one connection that its client
	// gave up, or that were refused: a connection that exceeds them is closed. One that
	// was refused counts as refusedWeight: the client was told to wait, and what it has
	// sent meanwhile is held for as long as the connection is not read.
	abortRate, abortBurst, refusedWeight = 50, 1000, 10
	// refusedPause is how long nothing is read from an unauthenticated connection for
	// each of its calls that was refused, at most maxPause at a time: a client is told to
	// retry after a second or more.
	refusedPause, maxPause = time.Second / 10, time.Second
	// trial is for how long the server waits for the client of an unauthenticated
	// connection before that makes way for another of its address. At connectRate the
	// places of an address last for longer.
	trial = 2 * time.Second
	// forgetAbove is the number of addresses from which on those are forgotten of
	// which nothing is known.
	forgetAbove = 1024
)

// Connections counts the connections of a listener. It is safe for concurrent use.
type Connections struct {
	cfg ConnectionConfig
	now func() time.Time
	// refused is told the limit of every refusal, holding no lock.
	refused func(limit string)

	mu sync.Mutex // guards all below
	// total counts connections, unauthenticated those that are not known yet.
	total, unauthenticated int
	sources                map[netip.Prefix]*source
	forgetAt               int
	// anonymous and claiming are the calls of unauthenticated connections, without
	// and with credentials.
	anonymous, claiming Bucket
}

// source is one address, or a network of IPv6 that has one owner.
type source struct {
	total           int
	unauthenticated list.List // of *Connection, oldest first
	connects, calls Bucket
}

// Connection is one connection.
type Connection struct {
	all    *Connections
	from   netip.Prefix
	source *source
	close  func()
	begun  time.Time
	known  atomic.Bool
	// resume is when the connection is read again, in nanoseconds since begun.
	resume atomic.Int64
	// serving is since when the server has something to do for it that its client waits
	// for, in nanoseconds since begun, plus one; 0 while the server waits for the client.
	// served is how long it had before that, in nanoseconds.
	serving, served atomic.Int64
	// The following are guarded by all.mu.
	place  *list.Element // in source.unauthenticated; nil once known or ended
	aborts Bucket
	ended  bool
}

// NewConnections returns the limits of a listener. refused may be called by any
// goroutine and must not block.
func NewConnections(cfg ConnectionConfig, now func() time.Time, refused func(limit string)) *Connections {
	return &Connections{
		cfg: cfg, now: now, refused: refused, sources: map[netip.Prefix]*source{}, forgetAt: forgetAbove,
		anonymous: NewBucket(allRate, allBurst), claiming: NewBucket(allRate, allBurst),
	}
}

// Origin is what counts as one address: of IPv6 the network of 64 bits, since one
// host can have all of its addresses.
func Origin(addr net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := at.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

// Begin takes in a connection, before anything is read from it. closing closes it:
// it is called at most once, by any goroutine, when another connection needs the
// place or the limits of this one are exceeded. The error is *Exceeded.
func (c *Connections) Begin(addr net.Addr, closing func()) (*Connection, error) {
	now := c.now()
	made := &Connection{all: c, from: Origin(addr), close: closing, begun: now, aborts: NewBucket(abortRate, abortBurst)}
	c.mu.Lock()
	s := c.sourceLocked(made.from, now)
	evicted, err := c.acceptLocked(s, now)
	if err == nil {
		made.source = s
		made.place = s.unauthenticated.PushBack(made)
		s.total++
		c.total++
		c.unauthenticated++
	}
	c.mu.Unlock()
	if evicted != nil {
		c.refused(LimitUnauthenticated)
		evicted.close()
	}
	if err != nil {
		c.refused(err.Limit)
		return nil, err
	}
	return made, nil
}

// The names of limits, as in metrics.
const (
	LimitConnections     = "connections"
	LimitAddress         = "connections_per_address"
	LimitUnauthenticated = "unauthenticated_connections"
	LimitConnects        = "new_connections"
	LimitCalls           = "unauthenticated_calls"
	LimitAborts          = "aborted_calls"
)

func (c *Connections) acceptLocked(s *source, now time.Time) (evicted *Connection, _ *Exceeded) {
	switch {
	case c.total >= c.cfg.Total:
		return nil, &Exceeded{Limit: LimitConnections, What: fmt.Sprintf("connections (%d)", c.cfg.Total)}
	case s.total >= c.cfg.PerAddress:
		return nil, &Exceeded{Limit: LimitAddress, What: fmt.Sprintf("connections of one address (%d)", c.cfg.PerAddress)}
	case !s.connects.Take(now, 1):
		return nil, &Exceeded{Limit: LimitConnects, What: "new connections of one address", Retry: s.connects.Wait(now, 1)}
	}
	full := &Exceeded{Limit: LimitUnauthenticated, What: fmt.Sprintf("connections of one address without an authenticated caller (%d)", c.cfg.Unauthenticated)}
	switch {
	case s.unauthenticated.Len() >= c.cfg.Unauthenticated:
		if evicted = s.silent(now); evicted == nil {
			// Thousands of clients of one address that come together are refused here
			// again and again, until those before them are authenticated: that costs
			// nothing, and must not use up what they may do.
			s.connects.Return(1)
			return nil, full
		}
	case c.unauthenticated >= c.cfg.UnauthenticatedTotal:
		heaviest := s
		for _, other := range c.sources {
			if other.unauthenticated.Len() > heaviest.unauthenticated.Len() {
				heaviest = other
			}
		}
		// The address with most makes way, so that many connections of some do not
		// keep out those of others.
		if heaviest.unauthenticated.Len() <= s.unauthenticated.Len()+1 {
			s.connects.Return(1)
			return nil, full
		}
		evicted = heaviest.unauthenticated.Front().Value.(*Connection)
	}
	if evicted != nil {
		evicted.leaveLocked()
	}
	return evicted, nil
}

// silent returns the oldest unauthenticated connection whose client the server has
// waited for as long as it may take; nil for none. What waits for the server stays: with
// more clients than it can serve at once, the ones that have waited for longest would
// lose their places, and none would ever be authenticated.
func (s *source) silent(now time.Time) *Connection {
	for e := s.unauthenticated.Front(); e != nil; e = e.Next() {
		if n := e.Value.(*Connection); n.serving.Load() == 0 && now.Sub(n.begun)-time.Duration(n.served.Load()) >= trial {
			return n
		}
	}
	return nil
}

// Serving says that the server has something to do for the connection that its client
// waits for, until Served. Both are for the goroutine that serves it.
func (n *Connection) Serving() { n.serving.Store(int64(n.all.now().Sub(n.begun)) + 1) }

// Served says that the server waits for the client again. It may be called again.
func (n *Connection) Served() {
	if since := n.serving.Swap(0); since != 0 {
		n.served.Add(int64(n.all.now().Sub(n.begun)) + 1 - since)
	}
}

// sourceLocked returns what is known of an address.
func (c *Connections) sourceLocked(from netip.Prefix, now time.Time) *source {
	if s := c.sources[from]; s != nil {
		return s
	}
	if len(c.sources) >= c.forgetAt {
		for other, s := range c.sources {
			if s.total == 0 && s.connects.Full(now) && s.calls.Full(now) {
				delete(c.sources, other)
			}
		}
		c.forgetAt = max(forgetAbove, 2*len(c.sources))
	}
	s := &source{connects: NewBucket(connectRate, connectBurst), calls: NewBucket(callRate, callBurst)}
	c.sources[from] = s
	return s
}

// Counts returns how many connections there are, and how many of them have no
// authenticated caller.
func (c *Connections) Counts() (total, unauthenticated int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total, c.unauthenticated
}

// Known says that a caller was authenticated on the connection.
func (n *Connection) Known() {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	n.known.Store(true)
	if n.place != nil {
		n.leaveLocked()
		n.source.connects.Return(1)
		n.source.calls.Return(1)
	}
}

// leaveLocked takes a connection off those without an authenticated caller.
func (n *Connection) leaveLocked() {
	if n.place != nil {
		n.source.unauthenticated.Remove(n.place)
		n.all.unauthenticated--
		n.place = nil
	}
}

// Call begins a call on the connection; credentials says whether it brings any.
// The error is *Exceeded.
func (n *Connection) Call(credentials bool) error {
	now := n.all.now()
	n.all.mu.Lock()
	err := n.callLocked(now, credentials)
	n.all.mu.Unlock()
	if err != nil {
		n.all.refused(err.Limit)
		n.refrain(now)
		n.aborted(refusedWeight)
		return err
	}
	return nil
}

// refrain puts off the next read for a call that was refused, since a flood of
// them takes processor time to read and answer.
func (n *Connection) refrain(now time.Time) {
	since := now.Sub(n.begun)
	for {
		old := n.resume.Load()
		if n.resume.CompareAndSwap(old, int64(min(max(since, time.Duration(old))+refusedPause, since+maxPause))) {
			return
		}
	}
}

// IsKnown reports whether a caller was authenticated on the connection.
func (n *Connection) IsKnown() bool { return n.known.Load() }

// Pause returns how long the connection is not to be read, after calls on it were
// refused. It is zero where a caller was authenticated, and at most a second.
func (n *Connection) Pause() time.Duration {
	resume := n.resume.Load()
	if resume == 0 || n.IsKnown() {
		return 0
	}
	return max(0, time.Duration(resume)-n.all.now().Sub(n.begun))
}

func (n *Connection) callLocked(now time.Time, credentials bool) *Exceeded {
	if n.place == nil {
		return nil // known
	}
	all := &n.all.anonymous
	if credentials {
		all = &n.all.claiming
	}
	if wait := max(n.source.calls.Wait(now, 1), all.Wait(now, 1)); wait > 0 {
		return &Exceeded{Limit: LimitCalls, What: "calls of unauthenticated clients", Retry: wait}
	}
	n.source.calls.Take(now, 1)
	all.Take(now, 1)
	return nil
}

// Aborted says that the client gave up a call. A connection on which that happens
// often is closed.
func (n *Connection) Aborted() { n.aborted(1) }

func (n *Connection) aborted(weight float64) {
	now := n.all.now()
	n.all.mu.Lock()
	over := !n.ended && !n.aborts.Take(now, weight)
	if over {
		n.endLocked()
	}
	n.all.mu.Unlock()
	if over {
		n.all.refused(LimitAborts)
		n.close()
	}
}

// End gives back the place of a connection that is closed. It may be called again.
func (n *Connection) End() {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	n.endLocked()
}

func (n *Connection) endLocked() {
	if n.ended {
		return
	}
	n.ended = true
	n.leaveLocked()
	n.source.total--
	n.all.total--
}
