package simnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftnet"
)

// Timeout is how long a message between servers waits for its answer, as long
// as in the product.
const Timeout = 2 * time.Second

// Latency is how long everything takes that one server says to another, on a
// good link. Without it no time would pass inside a bubble while servers are
// busy.
const Latency = 100 * time.Microsecond

// Network joins the nodes of one process. Servers are known by name; every link
// from one to another is good until it is cut or delayed. It is safe for
// concurrent use.
type Network struct {
	mu sync.Mutex
	// at are the servers that are up, by raft address.
	at map[string]*endpoint
	// names are those of the servers that were last at an address.
	names map[string]string
	links map[link]fault
	// changed is closed and replaced when links or servers change.
	changed chan struct{}
}

// link is one direction between two servers.
type link struct{ from, to string }

// fault is what is wrong with a link.
type fault struct {
	cut   bool
	delay time.Duration
}

// NewNetwork returns a network without servers.
func NewNetwork() *Network {
	return &Network{at: map[string]*endpoint{}, names: map[string]string{}, links: map[link]fault{}, changed: make(chan struct{})}
}

// Node returns the way of a server to the others, for one consensus.Config. Its
// raft address is its name. A server that was there under the address is gone.
func (n *Network) Node(name string) raftnet.Network { return n.NodeAt(name, name) }

// NodeAt is Node for a server with another raft address than its name. Links are
// between names all the same.
func (n *Network) NodeAt(name, addr string) raftnet.Network {
	e := newEndpoint(n, name, addr)
	n.mu.Lock()
	before := n.at[addr]
	n.at[addr] = e
	n.names[addr] = name
	n.changedLocked()
	n.mu.Unlock()
	if before != nil {
		before.detach()
	}
	return e
}

// Stop makes a server unreachable for good, as when its process dies: nothing
// it says arrives any more and its connections break. Its node has to be closed
// all the same.
func (n *Network) Stop(name string) {
	n.mu.Lock()
	var gone []*endpoint
	for _, e := range n.at {
		if e.name == name {
			gone = append(gone, e)
		}
	}
	n.mu.Unlock()
	for _, e := range gone {
		e.detach()
	}
}

// Cut stops what one server says from reaching another. The other direction
// stays as it is.
func (n *Network) Cut(from, to string) {
	n.set(link{from, to}, func(f *fault) { f.cut = true })
}

// CutBoth stops two servers from talking.
func (n *Network) CutBoth(a, b string) {
	n.Cut(a, b)
	n.Cut(b, a)
}

// Isolate cuts a server off from the others named.
func (n *Network) Isolate(name string, others ...string) {
	for _, other := range others {
		if other != name {
			n.CutBoth(name, other)
		}
	}
}

// Heal restores both directions between two servers. Delays stay.
func (n *Network) Heal(a, b string) {
	n.set(link{a, b}, func(f *fault) { f.cut = false })
	n.set(link{b, a}, func(f *fault) { f.cut = false })
}

// HealAll restores every link and removes every delay.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
	n.changedLocked()
}

// Delay makes everything that one server says to another arrive that much later.
func (n *Network) Delay(from, to string, by time.Duration) {
	n.set(link{from, to}, func(f *fault) { f.delay = by })
}

func (n *Network) set(l link, change func(*fault)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.links[l]
	change(&f)
	n.links[l] = f
	n.changedLocked()
}

func (n *Network) changedLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// look returns a link's fault and a channel that is closed when something
// changes.
func (n *Network) look(l link) (fault, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links[l], n.changed
}

// find returns the server at an address.
func (n *Network) find(addr string) (*endpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.at[addr]
	if !ok {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	return e, nil
}

// forget removes a server, unless another took its address.
func (n *Network) forget(e *endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at[e.addr] == e {
		delete(n.at, e.addr)
	}
	for _, other := range n.at {
		if !n.links[link{e.name, other.name}].cut { // else it does not learn of it
			other.ended.Wake()
		}
	}
	close(e.detached)
	n.changedLocked()
}

var errGone = errors.New("connection reset by peer")

// travel returns when something sent at a moment has arrived, or fails when
// either end is gone or stop says so.
func (n *Network) travel(from, to *endpoint, sent time.Time, stop <-chan struct{}) error {
	for {
		f, changed := n.look(link{from.name, to.name})
		var arrived <-chan time.Time
		if !f.cut {
			wait := time.Until(sent.Add(Latency + f.delay))
			if wait <= 0 {
				return gone(from, to)
			}
			timer := time.NewTimer(wait)
			defer timer.Stop()
			arrived = timer.C
		}
		select {
		case <-arrived:
			if now, _ := n.look(link{from.name, to.name}); !now.cut {
				return gone(from, to)
			}
		case <-changed:
		case <-from.detached:
			return errGone
		case <-to.detached:
			return errGone
		case <-stop:
			return errTimeout
		}
	}
}

func gone(ends ...*endpoint) error {
	for _, e := range ends {
		select {
		case <-e.detached:
			return errGone
		default:
		}
	}
	return nil
}

// endpoint is one server's way to the others.
type endpoint struct {
	network    *Network
	name, addr string
	consumer   chan raft.RPC
	// self says who the node is, once it has asked for its transport.
	self  atomic.Pointer[func() raftnet.Identity]
	calls *listener
	// ended wakes when another server is gone.
	ended raftnet.Signal
	// detached is closed when the server is gone or its node closed; users are
	// the goroutines that move its connections' bytes.
	detached chan struct{}
	once     sync.Once
	users    sync.WaitGroup
}

var _ raftnet.Network = (*endpoint)(nil)

func newEndpoint(n *Network, name, addr string) *endpoint {
	e := &endpoint{network: n, name: name, addr: addr, consumer: make(chan raft.RPC), detached: make(chan struct{})}
	e.calls = &listener{addr: address(addr), conns: make(chan net.Conn), closed: make(chan struct{}), gone: e.detached}
	return e
}

func (e *endpoint) detach() {
	e.once.Do(func() { e.network.forget(e) })
}

// use runs f on a goroutine that Close waits for.
func (e *endpoint) use(f func()) error {
	e.network.mu.Lock()
	defer e.network.mu.Unlock()
	if err := gone(e); err != nil {
		return err
	}
	e.users.Go(f)
	return nil
}

// Meet proves nothing, since there are no certificates. It is refused where no server
// is, and takes as long as one message each way.
func (e *endpoint) Meet(ctx context.Context, _ raft.ServerID, addr string) error {
	for _, outward := range []bool{true, false} {
		sent := time.Now()
		for waiting := true; waiting; {
			e.network.mu.Lock()
			l, changed := link{e.name, e.network.names[addr]}, e.network.changed
			if !outward {
				l = link{l.to, l.from}
			}
			f := e.network.links[l]
			e.network.mu.Unlock()
			wait := time.Until(sent.Add(Latency + f.delay))
			if waiting = f.cut || wait > 0; !waiting {
				break
			}
			timer := time.NewTimer(max(wait, 0))
			arrived := timer.C
			if f.cut {
				arrived = nil
			}
			select {
			case <-arrived:
			case <-changed:
			case <-e.detached:
				timer.Stop()
				return errGone
			case <-ctx.Done():
				timer.Stop()
				return fmt.Errorf("meet %s: %w", addr, context.Cause(ctx))
			}
			timer.Stop()
		}
	}
	_, err := e.network.find(addr)
	return err
}

// Ended tells that another server is gone.
func (e *endpoint) Ended() <-chan struct{} { return e.ended.Wait() }

// Transport carries raft's messages.
func (e *endpoint) Transport(self func() raftnet.Identity) raftnet.Transport {
	e.self.Store(&self)
	return transport{e}
}

// identity returns which node it is, none before it has asked for its
// transport.
func (e *endpoint) identity() raftnet.Identity {
	if self := e.self.Load(); self != nil {
		return (*self)()
	}
	return raftnet.Identity{}
}

// Listener accepts calls.
func (e *endpoint) Listener() net.Listener { return e.calls }

// Recheck does nothing: connections have no certificates here.
func (e *endpoint) Recheck() {}

// Close makes the server unreachable.
func (e *endpoint) Close() error {
	e.detach()
	e.users.Wait()
	return e.calls.Close()
}

// Dial connects to the listener of the server at an address. What the two say
// is subject to the links between them.
func (e *endpoint) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := gone(e); err != nil {
		return nil, err
	}
	to, err := e.network.find(addr)
	if err != nil {
		return nil, err
	}
	// As in a TCP handshake, one message each way before a connection stands.
	for _, hop := range [][2]*endpoint{{e, to}, {to, e}} {
		if err := e.network.travel(hop[0], hop[1], time.Now(), ctx.Done()); err != nil {
			return nil, fmt.Errorf("dial %s: %w", addr, err)
		}
	}
	near, far, err := connect(e, to)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	select {
	case to.calls.conns <- far:
		return near, nil
	case <-to.calls.closed:
	case <-to.detached:
	case <-ctx.Done():
	}
	_, _ = near.Close(), far.Close()
	return nil, fmt.Errorf("dial %s: connection refused", addr)
}

// address is a server's raft address.
type address string

func (address) Network() string  { return "simnet" }
func (a address) String() string { return string(a) }

// listener accepts the connections that Dial made.
type listener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	gone   <-chan struct{}
	once   sync.Once
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
	case <-l.gone:
	}
	return nil, net.ErrClosed
}

// Addr is the address that peers dial.
func (l *listener) Addr() net.Addr { return l.addr }

// Close stops Accept.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}
