package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/authn/token"
	"meridian/internal/consensus"
	"meridian/internal/controlplane"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/store"
	"meridian/test/simnet"
)

// uses are the tokens that the servers of a test issue.
var uses = []token.Use{token.ForUser, token.ForZone, token.ForDataplane, token.ForServer}

// nth calls a function ahead of a proposal.
type nth struct {
	audit.Node
	n      int
	before func()

	mu   sync.Mutex
	seen int // guarded by mu
}

func (p *nth) Propose(ctx context.Context, txn store.Txn) (store.Result, error) {
	p.mu.Lock()
	p.seen++
	now := p.seen == p.n
	p.mu.Unlock()
	if now {
		p.before()
	}
	return p.Node.Propose(ctx, txn)
}

// startable is as much of a server as it takes to write what a global begins
// with. at and before are given to nth.
func startable(t *testing.T, network *simnet.Network, name string, join []string, at int, before func()) *Server {
	t.Helper()
	c := &Server{
		Base: &controlplane.Base{Name: name, Log: slog.New(slog.DiscardHandler), Now: time.Now},
		cfg:  Config{Name: name, Kind: Global}, leadershipGained: make(chan struct{}, 1),
		hooks: Hooks{
			Bootstrap:   func() controlplane.Bootstrap { return controlplane.Bootstrap{Mesh: true, Uses: uses} },
			Unconfirmed: func(context.Context, string) []*meridianv1.RotateCAMissing { return nil },
		},
	}
	config := c.NodeConfig(consensus.RoleGlobal, store.New(store.DefaultOptions()))
	config.Storage, config.Network = simnet.NewDisk(name).Mount(), network.Node(name)
	config.Autopilot.Stabilization = 2 * time.Second
	config.Join = consensus.JoinConfig{Fresh: len(join) > 0, Addrs: func() []string { return join }}
	config.Events.LeaderChanged = func(leading bool) {
		if leading {
			c.notifyLeadership()
		}
	}
	require.NoError(t, c.OpenNode(context.Background(), config))
	c.Keys = token.NewRing(token.RingConfig{Local: c.Store.View, Now: c.Now})
	log, err := audit.Open(audit.Config{Dir: filepath.Join(t.TempDir(), name), Now: c.Now, Logger: c.Log})
	require.NoError(t, err)
	c.Audit = &server.Audit{Log: log}
	c.Writer.Open(&nth{Node: c.Node, n: at, before: before}, log)
	return c
}

// begunOnce checks that a state has everything that a global begins with, once.
func begunOnce(t *testing.T, c *Server) {
	t.Helper()
	require.Empty(t, c.missing())
	view := c.Store.View()
	require.Equal(t, len(uses)+1, view.Count(resource.KindGlobalSecret), "a key for each use and the admin token")
	require.Equal(t, len(uses), view.Count(resource.KindSigningKey))
	require.Equal(t, 1, view.Count(resource.KindIssuedToken))
	require.Equal(t, 1, view.Count(controlplane.DefaultMesh.Kind))
	require.Equal(t, 1, view.Count(resource.KindAccessRole))
	require.Equal(t, 1, view.Count(resource.KindAccessRoleBinding))
	_, err := c.Keys.Verifier().User(c.Keys.AdminToken())
	require.NoError(t, err, "the admin token is signed by the key that is kept")
}

// Three servers that start at once have what a global begins with, and have it
// once, also when the one that writes it is cut off after any of its writes.
func TestThreeServersBeginOnce(t *testing.T) {
	for at := range 8 { // 0: no server is cut off
		t.Run(fmt.Sprintf("cut off before write %d", at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { beginOnce(t, at) })
		})
	}
}

func beginOnce(t *testing.T, at int) {
	network := simnet.NewNetwork()
	a := startable(t, network, "a", nil, at, func() { network.Isolate("a", "b", "c") })
	<-a.Node.Ready()
	b, c := startable(t, network, "b", []string{"a"}, 0, nil), startable(t, network, "c", []string{"a"}, 0, nil)
	servers := []*Server{a, b, c}
	defer func() {
		network.HealAll()
		for _, c := range servers {
			require.NoError(t, c.Node.Close())
			require.NoError(t, c.Audit.Log.Close())
		}
	}()
	for _, c := range []*Server{b, c} {
		<-c.Node.Ready()
	}
	for voters := 0; voters < 3; {
		voters = 0
		for _, s := range a.Node.Servers() {
			if s.Voter {
				voters++
			}
		}
		<-time.After(time.Second)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	done := make([]chan error, len(servers))
	for i, c := range servers {
		done[i] = make(chan error, 1)
		go func() { done[i] <- c.awaitBootstrap(ctx) }()
	}
	require.NoError(t, <-done[1])
	require.NoError(t, <-done[2])
	network.HealAll()
	require.NoError(t, <-done[0])
	require.NoError(t, ctx.Err())
	revision := resource.Revision(0)
	for _, c := range servers {
		_, err := c.Node.Read(ctx)
		require.NoError(t, err)
		begunOnce(t, c)
		revision = max(revision, c.Store.Revision())
	}

	// Coming to lead again writes nothing.
	for _, c := range servers {
		require.NoError(t, c.Bootstrap(ctx, c.hooks.Bootstrap()))
		begunOnce(t, c)
		require.Equal(t, a.Store.View().Changed(), c.Store.View().Changed())
	}
}

// Who comes to lead makes good what is missing.
func TestWhoComesToLeadWritesWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startable(t, simnet.NewNetwork(), "a", nil, 0, nil)
		defer func() {
			require.NoError(t, c.Node.Close())
			require.NoError(t, c.Audit.Log.Close())
		}()
		<-c.Node.Ready()
		require.NoError(t, c.awaitBootstrap(t.Context()))
		<-c.leadershipGained // it has come to lead at its start
		_, err := c.Node.Propose(t.Context(), store.Txn{Ops: []store.Op{
			store.Delete(resource.Key{Kind: resource.KindGlobalSecret, Name: token.AdminTokenName}),
			store.Delete(resource.Key{Kind: resource.KindAccessRole, Name: rbac.AdminRole}),
		}})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.bootstrapOnLeadership(ctx) }()
		synctest.Wait()
		require.NotEmpty(t, c.missing(), "as long as it leads, what was deleted stays deleted")
		c.notifyLeadership()
		synctest.Wait()
		require.Empty(t, c.missing())
		stop()
		require.NoError(t, <-ended)
	})
}
