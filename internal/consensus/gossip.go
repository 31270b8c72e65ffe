package consensus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// GossipKeyBytes is the length of the key that gossip is encrypted with
// (AES-256).
const GossipKeyBytes = 32

// GossipConfig is how a server makes itself known to the others of its cluster.
type GossipConfig struct {
	// Addr is the host:port to listen on, TCP and UDP; port 0 is any free one.
	Addr string
	// Self is what the others learn about this server.
	Self Member
	// ClusterID keeps the gossip of several clusters apart.
	ClusterID string
	// Key encrypts everything, GossipKeyBytes long. Who does not have it is not
	// heard; that it has the key proves nothing more.
	Key []byte
	// Logger gets memberlist's messages at debug level.
	Logger *slog.Logger
}

// Member is a server of the cluster as gossip knows it.
type Member struct {
	Name string `json:"-"`
	// GRPC and Raft are the addresses at which it serves.
	GRPC string `json:"grpc"`
	Raft string `json:"raft"`
}

// Gossip spreads the addresses of a cluster's servers and notices their
// failures. What it says are hints: membership itself is decided in the log.
// It is safe for concurrent use.
type Gossip struct {
	list *memberlist.Memberlist
	addr string
}

// leaveTimeout bounds how long a server waits for others to hear that it leaves
// on purpose.
const leaveTimeout = time.Second

// OpenGossip begins to listen. Error: ErrAddrInUse, or what is wrong with the
// configuration.
func OpenGossip(cfg GossipConfig) (*Gossip, error) {
	if len(cfg.Key) != GossipKeyBytes {
		return nil, fmt.Errorf("consensus: a gossip key has %d bytes, not %d", GossipKeyBytes, len(cfg.Key))
	}
	host, port, err := splitAddr(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("consensus: gossip address: %w", err)
	}
	meta, err := json.Marshal(cfg.Self)
	if err != nil {
		return nil, fmt.Errorf("consensus: encode gossip: %w", err)
	}
	if len(meta) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("consensus: the addresses of this server take %d bytes, gossip carries %d", len(meta), memberlist.MetaMaxSize)
	}
	mc := memberlist.DefaultLANConfig()
	mc.Name = cfg.Self.Name
	mc.BindAddr, mc.BindPort, mc.AdvertisePort = host, port, port
	mc.Label = cfg.ClusterID
	mc.SecretKey = cfg.Key
	mc.GossipVerifyIncoming, mc.GossipVerifyOutgoing = true, true
	mc.Delegate = announcement(meta)
	mc.Logger = log.New(debugLog{cfg.Logger}, "", 0)
	list, err := memberlist.Create(mc)
	if errors.Is(err, syscall.EADDRINUSE) || (err != nil && strings.Contains(err.Error(), "address already in use")) {
		return nil, fmt.Errorf("%w: gossip on %s", ErrAddrInUse, cfg.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("consensus: start gossip on %s: %w", cfg.Addr, err)
	}
	local := list.LocalNode()
	return &Gossip{list: list, addr: net.JoinHostPort(host, strconv.Itoa(int(local.Port)))}, nil
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

// Members returns the servers that are believed to be alive, this one among
// them, by name.
func (g *Gossip) Members() []Member {
	var members []Member
	for _, n := range g.list.Members() {
		m := Member{Name: n.Name}
		if json.Unmarshal(n.Meta, &m) == nil { // a later release may say more, or otherwise
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

// Close says goodbye to the others and stops listening.
func (g *Gossip) Close() error {
	if err := errors.Join(g.list.Leave(leaveTimeout), g.list.Shutdown()); err != nil {
		return fmt.Errorf("consensus: stop gossip: %w", err)
	}
	return nil
}

// announcement is what memberlist asks of us: what to say about this server.
// The rest of its interface is about messages and state, which we do not send
// this way.
type announcement []byte

func (a announcement) NodeMeta(int) []byte             { return a }
func (announcement) NotifyMsg([]byte)                  {}
func (announcement) GetBroadcasts(int, int) [][]byte   { return nil }
func (announcement) LocalState(bool) []byte            { return nil }
func (announcement) MergeRemoteState(_ []byte, _ bool) {}

// debugLog writes lines of memberlist's log as debug events.
type debugLog struct{ log *slog.Logger }

var _ io.Writer = debugLog{}

// Write implements io.Writer; p is one line.
func (d debugLog) Write(p []byte) (int, error) {
	d.log.Debug("gossip", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}
