//go:build multizone

package multizone

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
)

// globals are the servers of one global.
type globals struct {
	t       *testing.T
	servers []*process
	// prepare, unless nil, is called with each server before it starts.
	prepare func(*process)
}

// freePort returns an address of loopback that is free, and stays so while the
// server that has it is down: the system gives ports of this range to no process that
// does not ask for them, and no test is given one a second time.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		addr := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		if _, given := givenPorts.LoadOrStore(addr, true); given {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		require.NoError(t, l.Close())
		return addr
	}
}

var givenPorts sync.Map

// grow adds one server to the global, or makes the first.
func (c *globals) grow(name string, args ...string) *process {
	c.t.Helper()
	args = append([]string{
		"--name", name, "--grpc-addr", freePort(c.t), "--http-addr", freePort(c.t), "--raft-addr", freePort(c.t), "--gossip-addr", freePort(c.t),
	}, args...)
	if len(c.servers) > 0 {
		args = append(args, "--join-bundle", c.any().serverBundle())
	}
	p := newProcess(c.t, "meridian-global", name, args...)
	if c.prepare != nil {
		c.prepare(p)
	}
	p.start().ready()
	c.servers = append(c.servers, p)
	return p
}

// any returns a server that runs.
func (c *globals) any() *process {
	c.t.Helper()
	for _, p := range c.servers {
		if p.running() {
			return p
		}
	}
	require.Fail(c.t, "no server runs")
	return nil
}

// awaitVoters waits until there are n members and all of them vote and are
// reached.
func (c *globals) awaitVoters(n int) {
	c.t.Helper()
	c.any().await(fmt.Sprintf("%d voters", n), func() bool {
		list := c.any().members()
		voters := 0
		for _, m := range list {
			if m.Voter && m.State != "unreachable" && m.State != "candidate" {
				voters++
			}
		}
		return len(list) == n && voters == n
	})
}

// api is a connection to one server, as admin.
type api struct {
	meridianv1.AdminServiceClient
	meridianv1.ControlServiceClient
	server string
}

// connect returns a connection to a server that outlives its restarts.
func (p *process) connect() *api {
	p.t.Helper()
	contexts, err := clientconfig.LoadContexts(filepath.Join(p.dir, "admin.yaml"))
	require.NoError(p.t, err)
	server, err := contexts.Get("")
	require.NoError(p.t, err)
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(server.CA), Source: p.dir})
	require.NoError(p.t, err)
	conn, err := grpc.NewClient(p.addresses()["grpc"], grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(token.Credentials(server.Token, false)), quickReconnect())
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	return &api{meridianv1.NewAdminServiceClient(conn), meridianv1.NewControlServiceClient(conn), p.name}
}

// quickReconnect has a connection look for its server several times a second.
func quickReconnect() grpc.DialOption {
	params := grpc.ConnectParams{MinConnectTimeout: 2 * time.Second}
	params.Backoff.BaseDelay, params.Backoff.Multiplier, params.Backoff.MaxDelay = 50*time.Millisecond, 1.5, 500*time.Millisecond
	return grpc.WithConnectParams(params)
}
