package gossip

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
)

// gossipKeyOf returns a key that differs for every number.
func gossipKeyOf(number byte) []byte {
	key := make([]byte, KeyBytes)
	key[0] = number
	return key
}

// gossipConfig is a server on loopback that notices failures quickly and looks
// for lost peers often.
func gossipConfig(name string) Config {
	return Config{
		Addr:   "127.0.0.1:0",
		Self:   Peer{Name: name, GRPC: name + ":1", Raft: name + ":2", Cluster: "cluster", Version: "v1"},
		Keys:   [][]byte{gossipKeyOf(1)},
		Logger: slog.New(slog.DiscardHandler),
		rejoin: 50 * time.Millisecond,
		tune: func(mc *memberlist.Config) {
			mc.ProbeInterval, mc.ProbeTimeout = 100*time.Millisecond, 50*time.Millisecond
			mc.SuspicionMult, mc.SuspicionMaxTimeoutMult = 1, 1
			mc.GossipInterval, mc.PushPullInterval = 20*time.Millisecond, time.Second
		},
	}
}

func openGossip(t *testing.T, cfg Config) *Gossip {
	t.Helper()
	g, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// crash makes a server silent without a goodbye.
func (g *Gossip) crash(t *testing.T) {
	t.Helper()
	g.closeOnce.Do(func() { g.closeErr = g.close(false) })
	require.NoError(t, g.closeErr)
}

// sees waits until a server's members are the given ones.
func sees(t *testing.T, g *Gossip, names ...string) {
	t.Helper()
	waitGossip(t, g, func() bool {
		var have []string
		for _, m := range g.Members() {
			have = append(have, m.Name)
		}
		return slices.Equal(have, names)
	})
}

func waitGossip(t *testing.T, g *Gossip, cond func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := g.Changed()
		if cond() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(t, "gossip did not get there", "peers: %+v", g.Peers())
		}
	}
}

// stateOf returns the state of another server as a server sees it.
func stateOf(g *Gossip, name string) State {
	for _, p := range g.Peers() {
		if p.Name == name {
			return p.State
		}
	}
	return Unseen
}

// TestGossipSpreadsAddresses: a server that knows one learns of all.
func TestGossipSpreadsAddresses(t *testing.T) {
	a, b, c := openGossip(t, gossipConfig("a")), openGossip(t, gossipConfig("b")), openGossip(t, gossipConfig("c"))
	require.Len(t, a.Members(), 1)
	require.Equal(t, "a", a.Members()[0].Name)
	_, err := b.Join(t.Context(), []string{a.Addr()})
	require.NoError(t, err)
	reached, err := c.Join(t.Context(), []string{"127.0.0.1:1", b.Addr()})
	require.NoError(t, err, "one that answers is enough")
	require.Equal(t, 1, reached)
	for _, g := range []*Gossip{a, b, c} {
		sees(t, g, "a", "b", "c")
	}
	for _, p := range a.Peers() {
		require.False(t, p.Since.IsZero())
		require.Equal(t, Peer{
			Name: p.Name, GRPC: p.Name + ":1", Raft: p.Name + ":2", Cluster: "cluster", Version: "v1",
			Gossip: map[string]string{"b": b.Addr(), "c": c.Addr()}[p.Name], State: Alive, Since: p.Since,
		}, p)
	}
	_, err = a.Join(t.Context(), []string{"127.0.0.1:1", "nonsense"})
	require.ErrorContains(t, err, "no server answers")
}

// TestGossipNoticesWhoIsGone: after a crash and after a goodbye; and a server that
// comes back, even elsewhere, is heard again.
func TestGossipNoticesWhoIsGone(t *testing.T) {
	news := make(chan Peer, 64)
	cfg := gossipConfig("a")
	cfg.Changed = func(p Peer) { news <- p }
	a, b, c := openGossip(t, cfg), openGossip(t, gossipConfig("b")), openGossip(t, gossipConfig("c"))
	for _, g := range []*Gossip{b, c} {
		_, err := g.Join(t.Context(), []string{a.Addr()})
		require.NoError(t, err)
	}
	sees(t, a, "a", "b", "c")
	require.NoError(t, b.Close())
	waitGossip(t, a, func() bool { return stateOf(a, "b") == Dead })
	c.crash(t)
	waitGossip(t, a, func() bool { return stateOf(a, "c") == Dead })
	sees(t, a, "a")

	again := openGossip(t, gossipConfig("c"))
	_, err := again.Join(t.Context(), []string{a.Addr()})
	require.NoError(t, err)
	waitGossip(t, a, func() bool { return stateOf(a, "c") == Alive })

	a.Forget("c")
	a.Forget("b")
	require.Len(t, a.Peers(), 1, "who is alive cannot be forgotten")
	require.NoError(t, a.Close())
	close(news)
	states := map[string][]State{}
	for p := range news {
		if had := states[p.Name]; len(had) == 0 || had[len(had)-1] != p.State {
			states[p.Name] = append(had, p.State)
		}
	}
	require.Equal(t, []State{Alive, Dead}, states["b"])
	require.Subset(t, states["c"], []State{Alive, Dead})
}

// TestGossipFindsPeersAgain: a server that restarts alone finds the others by
// what it remembers, whichever was restarted meanwhile.
func TestGossipFindsPeersAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "peers.json")
	b := openGossip(t, gossipConfig("b"))
	cfg := gossipConfig("a")
	cfg.PeersFile = file
	a := openGossip(t, cfg)
	_, err := a.Join(t.Context(), []string{b.Addr()})
	require.NoError(t, err)
	sees(t, a, "a", "b")
	a.crash(t)
	// The file is written behind the change; what is missing then is missing
	// after a crash, too.
	a.save()
	known, err := ReadPeers(file)
	require.NoError(t, err)
	require.Equal(t, []Peer{{Name: "b", GRPC: "b:1", Raft: "b:2", Gossip: b.Addr(), Cluster: "cluster", Version: "v1"}}, known)

	b.crash(t)
	a = openGossip(t, cfg)
	require.Equal(t, known, a.Peers(), "remembered, not alive")
	moved := gossipConfig("b")
	moved.Addr = b.Addr() // b restarts later, and knows no other
	openGossip(t, moved)
	sees(t, a, "a", "b")
}

// TestGossipDamagedPeersFile: hints are not worth a failed start.
func TestGossipDamagedPeersFile(t *testing.T) {
	cfg := gossipConfig("a")
	cfg.PeersFile = filepath.Join(t.TempDir(), "peers.json")
	require.NoError(t, os.WriteFile(cfg.PeersFile, []byte("{"), 0o600))
	a := openGossip(t, cfg)
	require.Empty(t, a.Peers())
	_, err := ReadPeers(cfg.PeersFile)
	require.Error(t, err)
}

func TestGossipRemembersABoundedNumber(t *testing.T) {
	cfg := gossipConfig("a")
	cfg.PeersFile = filepath.Join(t.TempDir(), "peers.json")
	a := openGossip(t, cfg)
	a.mu.Lock()
	for i := range maxRememberedPeers + 10 {
		name := "old" + string(rune('A'+i))
		a.peers[name] = Peer{Name: name}
	}
	a.peers["z"] = Peer{Name: "z", Since: time.Unix(1, 0)}
	a.mu.Unlock()
	a.save()
	known, err := ReadPeers(cfg.PeersFile)
	require.NoError(t, err)
	require.Len(t, known, maxRememberedPeers)
	require.Equal(t, "z", known[len(known)-1].Name, "who was seen last is kept")
}

// TestGossipIgnoresOtherClusters: neither without the key, nor of another cluster
// that was given the same key.
func TestGossipIgnoresOtherClusters(t *testing.T) {
	a := openGossip(t, gossipConfig("a"))
	otherKey, otherCluster := gossipConfig("b"), gossipConfig("c")
	otherKey.Keys = [][]byte{gossipKeyOf(2)}
	otherCluster.Self.Cluster = "elsewhere"
	for name, cfg := range map[string]Config{"other key": otherKey, "other cluster": otherCluster} {
		_, err := openGossip(t, cfg).Join(t.Context(), []string{a.Addr()})
		require.Error(t, err, name)
		require.Len(t, a.Members(), 1, name)
	}
}

// lines is a log that several may write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestGossipTellsOfAnotherKey: an operator learns why two servers do not hear each
// other, once in a while, however much arrives.
func TestGossipTellsOfAnotherKey(t *testing.T) {
	heard, foreign := gossipConfig("a"), gossipConfig("b")
	var log lines
	heard.Logger = slog.New(slog.NewTextHandler(&log, nil))
	foreign.Keys = [][]byte{gossipKeyOf(2)}
	a, b := openGossip(t, heard), openGossip(t, foreign)
	for range 3 {
		_, err := b.Join(t.Context(), []string{a.Addr()})
		require.Error(t, err)
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	require.Contains(t, log.String(), "another --gossip-key-file than this one")
	require.Contains(t, log.String(), "from=127.0.0.1:")
}

// TestGossipOfAServerThatJoins: it need not know its cluster beforehand, and
// says so once it does.
func TestGossipOfAServerThatJoins(t *testing.T) {
	a := openGossip(t, gossipConfig("a"))
	cfg := gossipConfig("b")
	cfg.Self.Cluster, cfg.Self.Raft = "", ""
	b := openGossip(t, cfg)
	_, err := b.Join(t.Context(), []string{a.Addr()})
	require.NoError(t, err)
	sees(t, a, "a", "b")
	self := b.Members()[1]
	self.Cluster, self.Raft = "cluster", "b:2"
	require.NoError(t, b.SetSelf(self))
	waitGossip(t, a, func() bool { return a.Members()[1].Raft == "b:2" && a.Members()[1].Cluster == "cluster" })
	self.Raft = string(make([]byte, 600))
	require.ErrorContains(t, b.SetSelf(self), "gossip carries")
}

// TestGossipKeyRotation: with the steps that SetKeys names, servers hear each
// other throughout; the old key is worth nothing afterwards.
func TestGossipKeyRotation(t *testing.T) {
	old, fresh := gossipKeyOf(1), gossipKeyOf(2)
	a, b := openGossip(t, gossipConfig("a")), openGossip(t, gossipConfig("b"))
	_, err := b.Join(t.Context(), []string{a.Addr()})
	require.NoError(t, err)
	for _, step := range [][][]byte{{old, fresh}, {fresh, old}, {fresh}} {
		for _, g := range []*Gossip{a, b} {
			require.NoError(t, g.SetKeys(step))
			_, err := b.Join(t.Context(), []string{a.Addr()})
			require.NoError(t, err)
			_, err = a.Join(t.Context(), []string{b.Addr()})
			require.NoError(t, err)
		}
	}
	sees(t, a, "a", "b")
	_, err = openGossip(t, gossipConfig("c")).Join(t.Context(), []string{a.Addr()})
	require.Error(t, err)
	cfg := gossipConfig("d")
	cfg.Keys = [][]byte{old, fresh}
	_, err = openGossip(t, cfg).Join(t.Context(), []string{a.Addr()})
	require.Error(t, err, "what it sends is under the old key")
	require.Error(t, a.SetKeys(nil))
	require.ErrorContains(t, a.SetKeys([][]byte{[]byte("short")}), "32 bytes")
}

func TestGossipRefusals(t *testing.T) {
	a := openGossip(t, gossipConfig("a"))
	cfg := gossipConfig("b")
	cfg.Addr = a.Addr()
	_, err := Open(cfg)
	require.ErrorIs(t, err, ErrAddrInUse)
	cfg.Addr = "nonsense"
	_, err = Open(cfg)
	require.ErrorContains(t, err, "gossip address")
	cfg = gossipConfig("b")
	cfg.Keys = [][]byte{[]byte("short")}
	_, err = Open(cfg)
	require.ErrorContains(t, err, "32 bytes")
	cfg.Keys = nil
	_, err = Open(cfg)
	require.ErrorContains(t, err, "needs a key")
	cfg = gossipConfig("b")
	cfg.Self.GRPC = string(make([]byte, 600))
	_, err = Open(cfg)
	require.ErrorContains(t, err, "gossip carries")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = a.Join(ctx, []string{a.Addr()})
	require.ErrorIs(t, err, context.Canceled)
}

// A server that has the key and is no member is not taken over, neither from itself nor from
// others, also not when it was one before; it is found when it becomes one.
func TestGossipIsOfMembers(t *testing.T) {
	var mu sync.Mutex
	members := map[string]string{"a": "a#1", "b": "b#1"}
	change := func(name, server string) {
		mu.Lock()
		defer mu.Unlock()
		if server == "" {
			delete(members, name)
		} else {
			members[name] = server
		}
	}
	config := func(name, server string) Config {
		cfg := gossipConfig(name)
		cfg.Self.Server = server
		return cfg
	}
	checked := func(name, server string) *Gossip {
		cfg := config(name, server)
		cfg.Member = func(name, server string) bool {
			mu.Lock()
			defer mu.Unlock()
			return members[name] != "" && (server == "" || members[name] == server)
		}
		return openGossip(t, cfg)
	}
	a, b := checked("a", "a#1"), checked("b", "b#1")
	_, err := b.Join(t.Context(), []string{a.Addr()})
	require.NoError(t, err)
	sees(t, a, "a", "b")

	// It learns of the others, and they do not take it over.
	c := openGossip(t, config("c", "c#1"))
	_, err = c.Join(t.Context(), []string{a.Addr(), b.Addr()})
	require.NoError(t, err)
	sees(t, c, "a", "b", "c")
	impostor := openGossip(t, config("b", "b#0"))
	_, _ = impostor.Join(t.Context(), []string{a.Addr()})
	d := openGossip(t, config("d", "d#1"))
	_, err = d.Join(t.Context(), []string{a.Addr()})
	require.NoError(t, err)
	sees(t, a, "a", "b")
	require.Equal(t, b.Addr(), a.Peers()[0].Gossip)
	for _, g := range []*Gossip{a, b} {
		for _, n := range g.list.Members() { // what is spread to others
			require.Contains(t, []string{"a", "b"}, n.Name)
		}
	}

	change("c", "c#1")
	a.Recheck(t.Context())
	sees(t, a, "a", "b", "c")
	change("c", "")
	a.Recheck(t.Context())
	sees(t, a, "a", "b")
}
