// Package gossip finds the addresses of a cluster's servers and detects their
// failures, with memberlist.
//
// Guarantees. Messages are encrypted with the cluster's gossip keys, and servers
// of another cluster are ignored, even with the same key. The servers that were
// seen are remembered in a file, and Gossip keeps trying to reach those that do
// not answer, so that a restarted server finds the others although every address
// has changed.
//
// Non-goals. It decides nothing: members are what the log says (package
// consensus), and a key does not authenticate a server.
package gossip

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// ErrAddrInUse means that another process listens on the gossip address. Choose
// another address, or port 0 for any free one.
var ErrAddrInUse = errors.New("gossip address is in use")

// KeyBytes is the length of a key that gossip is encrypted with (AES-256).
const KeyBytes = 32

const (
	// gossipLabel stands before every message in the clear, so that whatever else
	// arrives at the port is dropped before it is decrypted. It is the same for
	// every cluster: the key keeps clusters apart, and must be enough for a
	// server that does not know its cluster yet and while keys are rotated.
	gossipLabel = "meridian-gossip/1"
	// gossipTimeout bounds one exchange with a peer, and so how long Close waits
	// for one.
	gossipTimeout = 2 * time.Second
	// leaveTimeout bounds how long a server waits for others to hear that it
	// leaves on purpose, or that it has moved.
	leaveTimeout = time.Second
	// rejoinEvery is how often peers that are out of sight are looked for. Gossip
	// itself stops doing that half a minute after they were lost.
	rejoinEvery = 15 * time.Second
)

// Config is how a server makes itself known to the others of its cluster.
type Config struct {
	// Addr is the host:port to listen on, TCP and UDP; port 0 is any free one.
	Addr string
	// Advertise is the host that others reach this server at, Addr's when empty.
	// It is resolved once.
	Advertise string
	// Self is what the others learn about this server.
	Self Peer
	// Keys encrypt everything, KeyBytes each: the first is used for what is
	// sent, any for what is received. Who has none is not heard; that it has one
	// proves nothing more.
	Keys [][]byte
	// PeersFile keeps what is known of the others for the next start; empty: it
	// is forgotten.
	PeersFile string
	// Member, unless nil, decides whether a server may take part, by its name and what
	// the log knows it by ("" from a release that does not say). What others say of
	// servers that may not is not taken over. It is called while memberlist holds its
	// locks, so it must be quick and call nothing here; Recheck has it asked again.
	Member func(name, server string) bool
	// Changed, unless nil, is told of every other server that appears, changes
	// or is lost, in order. It must not call Close.
	Changed func(Peer)
	// Clock gives the time of changes.
	Clock func() time.Time
	// Logger gets memberlist's messages at debug level, and warnings.
	Logger *slog.Logger

	// tune changes memberlist's settings, in tests; rejoin replaces rejoinEvery.
	tune   func(*memberlist.Config)
	rejoin time.Duration
}

// State is the state of a server according to gossip.
type State string

// The states of a server according to gossip.
const (
	// Unseen is a server that is known from an earlier run only.
	Unseen State = ""
	Alive  State = "alive"
	// Dead is a server that stopped answering or said goodbye; memberlist does
	// not let its listeners tell the two apart.
	Dead State = "dead"
)

// Peer is a server as gossip knows it.
type Peer struct {
	Name string `json:"name"`
	// Server is what the log knows it by, empty from a release that does not say.
	Server string `json:"server,omitempty"`
	// GRPC and Raft are the addresses at which it serves, Gossip the one at which
	// it was heard.
	GRPC   string `json:"grpc,omitempty"`
	Raft   string `json:"raft,omitempty"`
	Gossip string `json:"gossip,omitempty"`
	// Cluster is the id of its cluster, empty while it does not know.
	Cluster string `json:"cluster,omitempty"`
	// Version is the release that it runs.
	Version string `json:"version,omitempty"`
	// State is the current state, Since its beginning.
	State State     `json:"-"`
	Since time.Time `json:"-"`
}

// announcement is what a server says about itself, as JSON. A later release may
// say more, so unknown fields are passed over.
type announcement struct {
	Server  string `json:"server,omitempty"`
	GRPC    string `json:"grpc,omitempty"`
	Raft    string `json:"raft,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Version string `json:"version,omitempty"`
}

func announce(p Peer) ([]byte, error) {
	said := announcement{Server: p.Server, GRPC: p.GRPC, Raft: p.Raft, Cluster: p.Cluster, Version: p.Version}
	meta, err := json.Marshal(said)
	if err == nil && len(meta) > memberlist.MetaMaxSize {
		said.Server = "" // its name is enough
		meta, err = json.Marshal(said)
	}
	if err != nil {
		return nil, fmt.Errorf("encode gossip: %w", err)
	}
	if len(meta) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("the addresses of this server take %d bytes, gossip carries %d", len(meta), memberlist.MetaMaxSize)
	}
	return meta, nil
}

// Gossip spreads the addresses of a cluster's servers and notices their
// failures. What it says are hints: membership itself is decided in the log. It
// remembers whom it has met and keeps looking for those that are out of sight,
// so that a server which restarts alone finds the others, and two halves of a
// cluster find each other after a long separation.
//
// It is safe for concurrent use.
type Gossip struct {
	cfg  Config
	list *memberlist.Memberlist
	keys *memberlist.Keyring
	addr string

	mu sync.Mutex
	// self and meta are what is said about this server.
	self Peer
	meta []byte
	// peers are the others, by name.
	peers map[string]Peer
	// refused are the addresses of servers that may not take part, by name.
	refused map[string]string
	// news are changes that have not been reported yet.
	news []Peer
	// changed is closed and replaced when peers change.
	changed chan struct{}

	// wake tells keep that there is something to save or report.
	wake chan struct{}
	stop context.CancelFunc
	work sync.WaitGroup

	closeOnce sync.Once
	closeErr  error
}

// available listens on an address for a moment, over TCP and UDP as memberlist does:
// its error has the cause, which memberlist returns as text only.
func available(host string, port int) error {
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	listen, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	_ = listen.Close()
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	return packets.Close()
}

// Open begins to listen and to look for the peers that are remembered.
// Error: ErrAddrInUse, or what is wrong with the configuration.
func Open(cfg Config) (*Gossip, error) {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	meta, err := announce(cfg.Self)
	if err != nil {
		return nil, err
	}
	g := &Gossip{
		cfg: cfg, self: cfg.Self, meta: meta,
		changed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	if g.keys, err = keyring(cfg.Keys); err != nil {
		return nil, err
	}
	g.peers = g.remembered()
	mc, err := g.listConfig()
	if err != nil {
		return nil, err
	}
	if err = available(mc.BindAddr, mc.BindPort); err == nil {
		g.list, err = memberlist.Create(mc)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %s", ErrAddrInUse, cfg.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("start gossip on %s: %w", cfg.Addr, err)
	}
	g.addr = net.JoinHostPort(mc.BindAddr, strconv.Itoa(int(g.list.LocalNode().Port)))
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.work.Go(func() { g.keep(ctx) })
	return g, nil
}

func (g *Gossip) listConfig() (*memberlist.Config, error) {
	host, port, err := splitAddr(g.cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("gossip address: %w", err)
	}
	mc := memberlist.DefaultLANConfig()
	mc.Name = g.cfg.Self.Name
	mc.BindAddr, mc.BindPort, mc.AdvertisePort = host, port, port
	if g.cfg.Advertise != "" {
		ip, err := net.ResolveIPAddr("ip", g.cfg.Advertise)
		if err != nil {
			return nil, fmt.Errorf("advertised gossip address: %w", err)
		}
		mc.AdvertiseAddr = ip.String()
	}
	mc.Label = gossipLabel
	mc.Keyring = g.keys
	mc.GossipVerifyIncoming, mc.GossipVerifyOutgoing = true, true
	mc.TCPTimeout = gossipTimeout
	// A server that comes back elsewhere under its name is heard as soon as it
	// was noticed to be gone from where it was.
	mc.DeadNodeReclaimTime = time.Millisecond
	hooks := gossipHooks{g}
	mc.Delegate, mc.Events, mc.Conflict, mc.Merge, mc.Alive = hooks, hooks, hooks, hooks, hooks
	mc.Logger = log.New(&gossipLog{log: g.cfg.Logger}, "", 0)
	if g.cfg.tune != nil {
		g.cfg.tune(mc)
	}
	return mc, nil
}

func keyring(keys [][]byte) (*memberlist.Keyring, error) {
	if len(keys) == 0 {
		return nil, errors.New("gossip needs a key")
	}
	for _, key := range keys {
		if len(key) != KeyBytes {
			return nil, fmt.Errorf("a gossip key has %d bytes, not %d", KeyBytes, len(key))
		}
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("gossip keys: %w", err)
	}
	return ring, nil
}

func splitAddr(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%s: %q is not a port", addr, text)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, port, nil
}

// Addr is the address listened on.
func (g *Gossip) Addr() string { return g.addr }

// Join gets in touch with the servers at the given gossip addresses, all at
// once, and returns how many answered. One is enough to hear of all the others.
// It fails when none did.
func (g *Gossip) Join(ctx context.Context, addrs []string) (int, error) {
	errs := make([]error, len(addrs))
	var contacts sync.WaitGroup
	for i, addr := range addrs {
		contacts.Go(func() { errs[i] = g.contact(ctx, addr) })
	}
	contacts.Wait()
	reached := 0
	for _, err := range errs {
		if err == nil {
			reached++
		}
	}
	if reached > 0 || len(addrs) == 0 {
		return reached, nil
	}
	return 0, fmt.Errorf("no server answers gossip: %w", errors.Join(errs...))
}

// contact exchanges everything known with the server at addr. Names are resolved
// here, because memberlist would do it without regard to ctx.
func (g *Gossip) contact(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("gossip address: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, gossipTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return err
	}
	err = nil
	for _, ip := range ips {
		if err = context.Cause(ctx); err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		if _, err = g.list.Join([]string{net.JoinHostPort(ip, port)}); err == nil {
			return nil
		}
	}
	return err
}

// Members returns the servers that gossip considers alive, this one among
// them, by name.
func (g *Gossip) Members() []Peer {
	g.mu.Lock()
	defer g.mu.Unlock()
	members := []Peer{g.selfLocked()}
	for _, p := range g.peers {
		if p.State == Alive {
			members = append(members, p)
		}
	}
	slices.SortFunc(members, byName)
	return members
}

// Peers returns every other server that is known or remembered, by name.
func (g *Gossip) Peers() []Peer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.peers), byName)
}

// Changed returns a channel that is closed when Members or Peers change.
func (g *Gossip) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func byName(a, b Peer) int { return cmp.Compare(a.Name, b.Name) }

func (g *Gossip) selfLocked() Peer {
	self := g.self
	self.State, self.Gossip = Alive, g.addr
	return self
}

// SetSelf changes what the others learn about this server: its addresses,
// cluster and release. Its name stays.
func (g *Gossip) SetSelf(self Peer) error {
	meta, err := announce(self)
	if err != nil {
		return err
	}
	g.mu.Lock()
	same := string(g.meta) == string(meta)
	self.Name, self.Server = g.self.Name, g.self.Server
	g.self, g.meta = self, meta
	g.mu.Unlock()
	if same {
		return nil
	}
	if err := g.list.UpdateNode(leaveTimeout); err != nil {
		// A server that did not receive it now does in the next exchange.
		g.cfg.Logger.Debug("gossip", "message", err.Error())
	}
	return nil
}

// SetKeys replaces the keys. To change keys without losing sight of anyone, give
// every server the new key as its second one, then as its first, then alone.
func (g *Gossip) SetKeys(keys [][]byte) error {
	if _, err := keyring(keys); err != nil {
		return err
	}
	for _, key := range keys {
		if err := g.keys.AddKey(key); err != nil {
			return fmt.Errorf("gossip keys: %w", err)
		}
	}
	err := g.keys.UseKey(keys[0])
	for _, old := range g.keys.GetKeys() {
		if !slices.ContainsFunc(keys, func(key []byte) bool { return string(key) == string(old) }) {
			err = errors.Join(err, g.keys.RemoveKey(old))
		}
	}
	if err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	return nil
}

// Recheck has Config.Member asked again about all: those that may not take part are
// forgotten, and those that were refused and may now are looked for.
func (g *Gossip) Recheck(ctx context.Context) {
	if g.cfg.Member == nil {
		return
	}
	var looked []string
	g.mu.Lock()
	peers, refused := maps.Clone(g.peers), maps.Clone(g.refused)
	g.mu.Unlock()
	for name, p := range peers {
		if !g.cfg.Member(name, p.Server) {
			g.mu.Lock()
			delete(g.peers, name)
			g.changedLocked()
			g.mu.Unlock()
		}
	}
	for name, addr := range refused {
		if g.cfg.Member(name, "") {
			g.mu.Lock()
			delete(g.refused, name)
			g.mu.Unlock()
			looked = append(looked, addr)
		}
	}
	if _, err := g.Join(ctx, looked); err != nil {
		g.cfg.Logger.Debug("gossip", "message", err.Error())
	}
}

// Forget drops a server that is not a member any more, unless it is reached
// again.
func (g *Gossip) Forget(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p, ok := g.peers[name]; ok && p.State != Alive {
		delete(g.peers, name)
		g.changedLocked()
	}
}

// Close says goodbye to the others and stops listening. Calls after the first
// return what it returned.
func (g *Gossip) Close() error {
	g.closeOnce.Do(func() { g.closeErr = g.close(true) })
	return g.closeErr
}

func (g *Gossip) close(politely bool) error {
	g.stop()
	g.work.Wait()
	if politely {
		if err := g.list.Leave(leaveTimeout); err != nil {
			// They notice all the same, only later.
			g.cfg.Logger.Debug("gossip", "message", err.Error())
		}
	}
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("stop gossip: %w", err)
	}
	return nil
}

// gossipLog writes lines of memberlist's log as debug events, but for what an
// operator has to know.
type gossipLog struct {
	log *slog.Logger

	mu     sync.Mutex
	warned time.Time // when another key was told of last
}

var _ io.Writer = (*gossipLog)(nil)

// otherKey is how memberlist says that a message was encrypted with a key that is
// not ours, and keyWarnings how often that is logged: any host can send such.
const (
	otherKey    = "no installed keys could decrypt the message"
	keyWarnings = time.Minute
)

// Write implements io.Writer; p is one line.
func (l *gossipLog) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	if what, from, _ := strings.Cut(line, " from="); strings.HasSuffix(what, otherKey) && l.mayWarn(time.Now()) {
		l.log.Warn("gossip arrives that is encrypted with another key: a server has another --gossip-key-file than this one, or an unknown host sends to the gossip port", "from", from)
	}
	l.log.Debug("gossip", "message", line)
	return len(p), nil
}

func (l *gossipLog) mayWarn(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.warned) < keyWarnings {
		return false
	}
	l.warned = now
	return true
}
