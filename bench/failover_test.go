package bench

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
)

// BenchmarkFailover takes the leader away again and again, by kill -9 and by a
// clean stop in turn, and measures the longest time in which a client that knows
// every server got no write through.
func BenchmarkFailover(b *testing.B) {
	system(b)
	ours := startCluster(b, 3)
	var killed, transferred, handed samples
	for b.Loop() {
		for range failovers {
			handed.add(ours.gap(b, func(leader *global) { ours.handOver(b, leader) }))
			killed.add(ours.gap(b, func(leader *global) { leader.kill(); ours.revive(b, leader) }))
			transferred.add(ours.gap(b, func(leader *global) { leader.stop(); ours.revive(b, leader) }))
		}
	}
	target(b, "kill-gap-p50-ms", killed.p50(), 400)
	target(b, "kill-gap-p99-ms", killed.p99(), 800)
	target(b, "transfer-gap-p50-ms", handed.p50(), 100)
	target(b, "transfer-gap-max-ms", handed.worst(), 100)
	target(b, "stop-gap-p50-ms", transferred.p50(), 100)
	target(b, "stop-gap-max-ms", transferred.worst(), 100)
}

// failovers is how often each way of losing the leader is tried in one run.
const failovers = 30

// revive starts a server again where it was.
func (c *cluster) revive(b *testing.B, s *global) {
	b.Helper()
	again := startGlobal(b, s.dir, s.args...)
	for i := range c.servers {
		if c.servers[i] == s {
			c.servers[i] = again
		}
	}
}

// handOver makes another server the leader.
func (c *cluster) handOver(b *testing.B, leader *global) {
	b.Helper()
	_, err := leader.api.cluster.TransferLeadership(b.Context(), &meridianv1.TransferLeadershipRequest{})
	require.NoError(b, err)
}

// gap has a client of all servers write without a pause while the leader is
// taken away, and returns the longest time between two acknowledged writes.
func (c *cluster) gap(b *testing.B, takeAway func(leader *global)) time.Duration {
	b.Helper()
	leader := c.leader(b)
	var addresses []string
	for _, i := range rand.Perm(len(c.servers)) {
		addresses = append(addresses, c.servers[i].grpcAddr)
	}
	api := dialAll(b, leader.dir, addresses)
	ctx, stop := context.WithCancel(b.Context())
	var (
		worst   time.Duration
		steady  = make(chan struct{})
		writing sync.WaitGroup
	)
	writing.Go(func() {
		last, n := time.Now(), 0
		for ctx.Err() == nil {
			n++
			once, cancel := context.WithTimeout(ctx, patience)
			_, err := api.put(once, policyForGap(n), false)
			cancel()
			if err != nil {
				continue // another server, with the next request
			}
			if n > 20 {
				worst = max(worst, time.Since(last))
			}
			if n == 40 {
				close(steady)
			}
			last = time.Now()
		}
	})
	<-steady
	takeAway(leader)
	c.leader(b)
	before := time.Now()
	require.Eventually(b, func() bool { return time.Since(before) > 300*time.Millisecond }, patience, 10*time.Millisecond)
	stop()
	writing.Wait()
	return worst
}

func policyForGap(edition int) *meridianv1.Resource {
	return &meridianv1.Resource{Kind: "Mesh", Name: "gap", Spec: kilobyte(int64(edition) + editions.Add(1))}
}

// dialAll connects to the first of several servers that answers, and to another
// when that one is gone, with the admin token of the server that keeps its data
// in dir.
func dialAll(b *testing.B, dir string, addresses []string) *client {
	b.Helper()
	contexts, err := clientconfig.LoadContexts(filepath.Join(dir, "admin.yaml"))
	require.NoError(b, err)
	server, err := contexts.Get("")
	require.NoError(b, err)
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: []byte(server.CA), Source: dir})
	require.NoError(b, err)
	servers := manual.NewBuilderWithScheme("servers")
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address, ServerName: "127.0.0.1"})
	}
	servers.InitialState(state)
	quick := grpc.ConnectParams{MinConnectTimeout: time.Second}
	quick.Backoff.BaseDelay, quick.Backoff.Multiplier, quick.Backoff.MaxDelay = 10*time.Millisecond, 1.5, 100*time.Millisecond
	conn, err := grpc.NewClient("servers:///all", grpc.WithTransportCredentials(transport), grpc.WithResolvers(servers),
		grpc.WithConnectParams(quick), grpc.WithPerRPCCredentials(token.Credentials(server.Token, false)))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return newClient(conn)
}
