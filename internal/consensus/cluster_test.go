package consensus_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"sync"
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
	t       testing.TB
	network *simnet.Network
	servers map[string]*server
}

// server is one of them, with what outlives its node.
type server struct {
	name, addr string
	disk       *simnet.Disk
	node       *consensus.Node
	store      *store.Store

	mu    sync.Mutex
	fatal error
}

// bubble runs a test with a virtual clock on a cluster without servers.
func bubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: simnet.NewNetwork(), servers: map[string]*server{}}
		defer c.close()
		test(t, c)
	})
}

func (c *cluster) close() {
	c.network.HealAll()
	for _, s := range c.servers {
		if s.node != nil {
			require.NoError(c.t, s.node.Close(), s.name)
		}
	}
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
	cfg.Storage = s.disk
	cfg.Network = c.network.NodeAt(s.name, s.addr)
	cfg.Logger = logger().With("self", s.name)
	cfg.Autopilot.Stabilization = 2 * time.Second
	cfg.Events.Fatal = func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fatal = err
	}
	return cfg
}

// died returns what a server said before it would have ended.
func (s *server) died() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fatal
}

// start opens a server's node. Servers that are new join those given.
func (c *cluster) start(name string, change func(*consensus.Config)) *server {
	s := c.servers[name]
	if s == nil {
		s = &server{name: name, addr: name, disk: simnet.NewDisk(name)}
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
	b, d = c.start("b", joining("a")), c.start("c", joining("a"))
	c.ready(b, d)
	c.voters("a", "b", "c")
	return a, b, d
}

func (c *cluster) ready(servers ...*server) {
	c.t.Helper()
	for _, s := range servers {
		select {
		case <-s.node.Ready():
		case <-time.After(time.Minute):
			require.FailNow(c.t, "not ready", "%s waits for %s: %+v %v", s.name, s.node.Waiting(), s.node.Status(), s.died())
		}
	}
}

// pass lets virtual time go by.
func (c *cluster) pass(d time.Duration) { <-time.After(d) }

// eventually waits for a condition, in virtual time.
func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	for range 6000 {
		if condition() {
			return
		}
		c.pass(10 * time.Millisecond)
	}
	require.FailNow(c.t, "it never came about", what)
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
