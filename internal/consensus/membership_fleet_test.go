package consensus_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// fleet is a number of servers in one process, inside a synctest bubble: on a
// network and disks that tests can break, and without gossip unless a test says
// what it hears.
type fleet struct {
	t   *testing.T
	net *simnet.Network
	// first is the server that began the cluster; all others join.
	first string
	// tune changes a server's settings before it starts; gossip is what it hears.
	tune   func(name string, cfg *consensus.Config)
	gossip func(name string) []gossip.Peer
	// cluster is the one that servers are told to belong to, as those that join by
	// a bundle are; empty: they find out.
	cluster string
	// network is how a server reaches the others.
	network func(name string) raftnet.Network

	servers map[string]*serverUnderTest
	// acked is the last value that was acknowledged, by name.
	acked map[string]int
}

// serverUnderTest is one server, whether it runs or not.
type serverUnderTest struct {
	name  string
	disk  *simnet.Disk
	node  *consensus.Node // nil while it does not run
	store *store.Store
	fate  *fate
}

// fate is what a node says before its process would have ended.
type fate struct {
	mu  sync.Mutex
	err error
}

// inBubble runs a test with a cluster of one server called a.
func inBubble(t *testing.T, tune func(name string, cfg *consensus.Config), run func(t *testing.T, c *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &fleet{
			t: t, net: simnet.NewNetwork(), first: "a", tune: tune,
			servers: map[string]*serverUnderTest{}, acked: map[string]int{},
		}
		c.network = c.net.Node
		defer c.close()
		c.start("a")
		c.ready("a")
		run(t, c)
	})
}

func (c *fleet) close() {
	for _, name := range slices.Sorted(maps.Keys(c.servers)) {
		c.stop(name)
	}
}

// start starts a server, for the first time or on the disk that it has.
func (c *fleet) start(name string) *serverUnderTest {
	c.t.Helper()
	s := c.servers[name]
	if s == nil {
		s = &serverUnderTest{name: name, disk: simnet.NewDisk(name)}
		c.servers[name] = s
	}
	cfg := consensus.DefaultConfig("")
	cfg.NodeID, cfg.Role = name, consensus.RoleGlobal
	cfg.Logger = c.logger(name)
	cfg.Network, cfg.Storage = c.network(name), s.disk
	cfg.Join = consensus.JoinConfig{Fresh: name != c.first, Addrs: func() []string { return []string{"a", "b", "c", "d", "e"} }}
	cfg.ClusterID = c.cluster
	cfg.Addresses = func() consensus.Addresses { return consensus.Addresses{GRPC: name + ":grpc", Gossip: name + ":gossip"} }
	end := &fate{}
	cfg.Events.Fatal = func(err error) {
		end.mu.Lock()
		defer end.mu.Unlock()
		end.err = err
	}
	if c.gossip != nil {
		cfg.Peers = func() []gossip.Peer { return c.gossip(name) }
	}
	if c.tune != nil {
		c.tune(name, &cfg)
	}
	s.store = store.New(store.DefaultOptions())
	node, err := consensus.Open(c.t.Context(), cfg, s.store)
	require.NoError(c.t, err, name)
	s.node, s.fate = node, end
	return s
}

// logger writes to stderr when MERIDIAN_TEST_LOG is set.
func (c *fleet) logger(name string) *slog.Logger {
	if os.Getenv("MERIDIAN_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("on", name)
}

// stop stops a server as an operator does.
func (c *fleet) stop(name string) {
	c.t.Helper()
	if s := c.servers[name]; s.node != nil {
		require.NoError(c.t, s.node.Close(), name)
		s.node = nil
	}
}

// crash stops a server as a power cut does: nothing it says arrives any more,
// and what was not synced is gone.
func (c *fleet) crash(name string) {
	c.t.Helper()
	c.net.Stop(name)
	c.servers[name].disk.Crash()
	_ = c.servers[name].node.Close() // it may complain
	c.servers[name].node = nil
}

// loseDisk gives a server that does not run an empty disk, and returns the old
// one.
func (c *fleet) loseDisk(name string) *simnet.Disk {
	old := c.servers[name].disk
	c.servers[name].disk = simnet.NewDisk(name)
	return old
}

func (s *serverUnderTest) fatalError() error {
	s.fate.mu.Lock()
	defer s.fate.mu.Unlock()
	return s.fate.err
}

// waits is how long a test waits for something to happen, on the bubble's clock.
const waits = 3 * time.Minute

// until waits for a condition.
func (c *fleet) until(what string, cond func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(waits)
	for !cond() {
		if time.Now().After(deadline) {
			require.FailNow(c.t, what, "%s", c.describe())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// during checks a condition for a while.
func (c *fleet) during(d time.Duration, what string, cond func() bool) {
	c.t.Helper()
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		require.True(c.t, cond(), "%s\n%s", what, c.describe())
		<-time.After(100 * time.Millisecond)
	}
}

func (c *fleet) describe() string {
	var text string
	for _, s := range c.running() {
		text += fmt.Sprintf("%s: %+v, waits for %q\n", s.name, s.node.Status(), s.node.Waiting())
	}
	for _, s := range c.running()[:min(1, len(c.running()))] {
		text += fmt.Sprintf("%s lists %+v\n", s.name, s.node.Members(context.Background()))
	}
	return text
}

// running returns the servers that run, by name.
func (c *fleet) running() []*serverUnderTest {
	var running []*serverUnderTest
	for _, name := range slices.Sorted(maps.Keys(c.servers)) {
		if c.servers[name].node != nil {
			running = append(running, c.servers[name])
		}
	}
	return running
}

// ready waits until servers are ready.
func (c *fleet) ready(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.until(name+" is not ready", func() bool {
			select {
			case <-c.servers[name].node.Ready():
				return true
			default:
				return false
			}
		})
	}
}

// leader waits for a server that leads and is ready to serve.
func (c *fleet) leader() *serverUnderTest {
	c.t.Helper()
	var leader *serverUnderTest
	c.until("nobody leads", func() bool {
		for _, s := range c.running() {
			if s.node.IsLeader() {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

// members returns the members as the server with the longest log knows them,
// without asking anybody: those with a vote, and the others.
func (c *fleet) members() (voters, joiners []string) {
	var best *serverUnderTest
	for _, s := range c.running() {
		if best == nil || s.node.Status().Last > best.node.Status().Last {
			best = s
		}
	}
	if best == nil {
		return nil, nil
	}
	for _, m := range best.node.Members(canceled) {
		if m.Voter {
			voters = append(voters, m.Name)
		} else {
			joiners = append(joiners, m.Name)
		}
	}
	return voters, joiners
}

// canceled asks for what is known here.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// voting waits until exactly the given servers have a vote.
func (c *fleet) voting(names ...string) {
	c.t.Helper()
	c.until(fmt.Sprintf("%v do not have the votes", names), func() bool {
		voters, joiners := c.members()
		return slices.Equal(voters, names) && len(joiners) == 0
	})
}

// grow starts servers and waits until they have votes.
func (c *fleet) grow(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.start(name)
	}
	c.until(fmt.Sprintf("%v do not get votes", names), func() bool {
		voters, _ := c.members()
		return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(voters, name) })
	})
	c.ready(names...)
}

// write writes through a server until it is acknowledged.
func (c *fleet) write(by, name string) {
	c.t.Helper()
	value := c.acked[name] + 1
	c.until(fmt.Sprintf("%s cannot write", by), func() bool {
		_, err := c.servers[by].node.Propose(c.t.Context(), store.Txn{
			RequestID: fmt.Sprintf("%s/%d", name, value), Ops: []store.Op{putNumber(name, value)},
		})
		return err == nil
	})
	c.acked[name] = value
}

// check reads every acknowledged value from every given server.
func (c *fleet) check(names ...string) {
	c.t.Helper()
	for _, by := range names {
		s := c.servers[by]
		c.until(by+" cannot read", func() bool {
			_, err := s.node.Read(c.t.Context())
			return err == nil
		})
		for name, want := range c.acked {
			require.Equal(c.t, want, numberAt(c.t, s.store.View(), name), "%s at %s", name, by)
		}
	}
	c.until("the servers differ", func() bool {
		for _, by := range names {
			one, other := c.servers[names[0]].store.View(), c.servers[by].store.View()
			if one.Revision() != other.Revision() || one.DigestOf(nil) != other.DigestOf(nil) {
				return false
			}
		}
		return true
	})
}

func numberKey(name string) resource.Key { return resource.Key{Kind: "GlobalSecret", Name: name} }

func putNumber(name string, value int) store.Op {
	data := base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(value)))
	return store.Put(resource.New(resource.Meta{Key: numberKey(name)}, &resource.Secret{Data: data}, fmt.Appendf(nil, `{"data":%q}`, data)))
}

func numberAt(t *testing.T, view *store.View, name string) int {
	t.Helper()
	res, ok := view.Get(numberKey(name))
	if !ok {
		return 0
	}
	raw, err := base64.StdEncoding.DecodeString(res.Spec().(*resource.Secret).Data)
	require.NoError(t, err)
	value, err := strconv.Atoi(string(raw))
	require.NoError(t, err)
	return value
}
