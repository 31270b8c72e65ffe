package consensus_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// cluster is several servers in one process.
type cluster struct {
	t *testing.T
	// network connects the servers, and gives each a simulated disk; nil: they use
	// sockets and files.
	network *simnet.Network
	servers map[string]*server
	// tune changes a server's settings each time before it is opened.
	tune func(s *server, cfg *consensus.Config)
	// acked is the last value that each name was set to by write.
	acked map[string]int
}

// server is one of them, with what outlives its node.
type server struct {
	name, addr string
	disk       *simnet.Disk
	node       *consensus.Node // nil while it does not run
	store      *store.Store
	fatal      *atomic.Pointer[error] // of the node
}

// bubble runs a test with a virtual clock on a cluster without servers.
func bubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: simnet.NewNetwork(), servers: map[string]*server{}, acked: map[string]int{}}
		defer c.close()
		test(t, c)
	})
}

func (c *cluster) close() {
	if c.network != nil {
		c.network.HealAll()
	}
	for _, s := range c.running() {
		require.NoError(c.t, s.node.Close(), s.name)
	}
}

// running returns the servers that run, by name.
func (c *cluster) running() []*server {
	var running []*server
	for _, name := range slices.Sorted(maps.Keys(c.servers)) {
		if c.servers[name].node != nil {
			running = append(running, c.servers[name])
		}
	}
	return running
}

// logger writes to the test's output when asked to.
func logger() *slog.Logger {
	if os.Getenv("RAFT_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *cluster) config(s *server) consensus.Config {
	cfg := consensus.DefaultConfig("")
	cfg.NodeID, cfg.Role = s.name, consensus.RoleGlobal
	cfg.Logger = logger().With("self", s.name)
	cfg.Autopilot.Stabilization = 2 * time.Second
	if c.network != nil {
		cfg.Storage = s.disk.Mount()
	}
	fatal := &atomic.Pointer[error]{}
	s.fatal = fatal
	cfg.Events.Fatal = func(err error) { fatal.Store(&err) }
	if c.tune != nil {
		c.tune(s, &cfg)
	}
	if c.network != nil && cfg.Network == nil {
		cfg.Network = c.network.NodeAt(s.name, s.addr)
	}
	return cfg
}

// died returns what a server said before it would have ended.
func (s *server) died() error {
	if err := s.fatal.Load(); err != nil {
		return *err
	}
	return nil
}

// start opens a server's node. Servers that are new join those given.
func (c *cluster) start(name string, change func(*consensus.Config)) *server {
	c.t.Helper()
	s := c.servers[name]
	if s == nil {
		s = &server{name: name, addr: "127.0.0.1:0"}
		if c.network != nil {
			s.addr, s.disk = name, simnet.NewDisk(name)
		}
		c.servers[name] = s
	}
	c.open(s, change)
	return s
}

func (c *cluster) open(s *server, change func(*consensus.Config)) {
	c.t.Helper()
	cfg := c.config(s)
	if change != nil {
		change(&cfg)
	}
	s.store = store.New(store.DefaultOptions())
	var err error
	s.node, err = consensus.Open(context.Background(), cfg, s.store)
	require.NoError(c.t, err)
	consensus.CutFinely(s.node)
}

// stop ends a server in good order.
func (c *cluster) stop(s *server) {
	c.t.Helper()
	require.NoError(c.t, s.node.Close())
	if c.network != nil {
		c.network.Stop(s.name)
	}
	s.node = nil
}

// crash ends a server as a power cut does: nothing it says arrives any more, and
// what was not synced is gone.
func (c *cluster) crash(s *server) {
	c.t.Helper()
	c.network.Stop(s.name)
	s.disk.Crash()
	_ = s.node.Close() // it finds its disk gone
	s.node = nil
}

// loseDisk gives a server that does not run an empty disk, and returns the old
// one.
func (s *server) loseDisk() *simnet.Disk {
	old := s.disk
	s.disk = simnet.NewDisk(s.name)
	return old
}

func joining(addrs ...string) func(*consensus.Config) {
	return func(cfg *consensus.Config) {
		cfg.Join = consensus.JoinConfig{Fresh: true, Addrs: func() []string { return addrs }}
	}
}

// three starts servers a, b and c, all of them voters.
func (c *cluster) three() (a, b, d *server) {
	c.t.Helper()
	a = c.start("a", nil)
	c.ready(a)
	b, d = c.start("b", joining(a.node.RaftAddr())), c.start("c", joining(a.node.RaftAddr()))
	c.ready(b, d)
	c.voters("a", "b", "c")
	return a, b, d
}

func (c *cluster) ready(servers ...*server) {
	c.t.Helper()
	for _, s := range servers {
		c.eventually(s.name+" is ready", func() bool {
			select {
			case <-s.node.Ready():
				return true
			default:
				return false
			}
		})
	}
}

// pass lets virtual time go by.
func (c *cluster) pass(d time.Duration) { <-time.After(d) }

// eventually waits for a condition.
func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			require.FailNow(c.t, "timeout: "+what, "%s", c.describe())
		}
		c.pass(10 * time.Millisecond)
	}
}

func (c *cluster) describe() string {
	var text string
	for _, s := range c.running() {
		text += fmt.Sprintf("%s: %+v, waits for %q, error %v\n", s.name, s.node.Status(), s.node.Waiting(), s.died())
	}
	for _, s := range c.running()[:min(1, len(c.running()))] {
		text += fmt.Sprintf("%s lists %+v\n", s.name, s.node.Members(context.Background()))
	}
	return text
}

func (c *cluster) voters(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.eventually(fmt.Sprint(names, " are voters"), func() bool {
			voters := 0
			for _, s := range c.servers[name].node.Servers() {
				if s.Voter {
					voters++
				}
			}
			return voters == len(names)
		})
	}
}

// leader returns the server that leads, once all running ones agree.
func (c *cluster) leader(among ...*server) *server {
	c.t.Helper()
	var leader *server
	c.eventually("one leader", func() bool {
		leader = nil
		for _, s := range among {
			id, _ := s.node.Leader()
			l := c.servers[id]
			if l == nil || l.node == nil || !l.node.IsLeader() || leader != nil && leader != l {
				return false
			}
			leader = l
		}
		return leader != nil
	})
	return leader
}

func key(name string) resource.Key { return resource.Key{Kind: "GlobalSecret", Name: name} }

func put(name, value string) store.Op {
	value = base64.StdEncoding.EncodeToString([]byte(value))
	return store.Put(resource.New(resource.Meta{Key: key(name)}, &resource.Secret{Data: value}, fmt.Appendf(nil, `{"data":%q}`, value)))
}

// write writes through a server, until the outcome is known.
func (s *server) write(t testing.TB, name, value string) store.Result {
	t.Helper()
	result, err := s.node.Propose(context.Background(), store.Txn{RequestID: rand.Text(), Ops: []store.Op{put(name, value)}})
	require.NoError(t, err)
	return result
}

// read reads through a server, linearizably.
func (s *server) read(t testing.TB, name string) string {
	t.Helper()
	_, err := s.node.Read(context.Background())
	require.NoError(t, err)
	return value(s.store, name)
}

func value(st *store.Store, name string) string {
	r, ok := st.View().Get(key(name))
	if !ok {
		return ""
	}
	data, _ := base64.StdEncoding.DecodeString(r.Spec().(*resource.Secret).Data)
	return string(data)
}
