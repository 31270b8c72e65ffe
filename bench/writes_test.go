package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
)

// cluster is a global of several servers.
type cluster struct {
	servers []*global
}

// startCluster starts a global of n servers and waits until all of them vote.
func startCluster(b *testing.B, n int) *cluster {
	b.Helper()
	c := &cluster{servers: []*global{startGlobal(b, b.TempDir())}}
	first := c.servers[0]
	for i := 1; i < n; i++ {
		response, err := first.api.cluster.GenerateServerToken(b.Context(), &meridianv1.GenerateServerTokenRequest{ValidForSeconds: 3600, Bundle: true})
		require.NoError(b, err)
		bundle := filepath.Join(b.TempDir(), "server.bundle")
		require.NoError(b, os.WriteFile(bundle, response.GetBundle(), 0o600))
		c.servers = append(c.servers, startGlobal(b, b.TempDir(), "--name", fmt.Sprintf("server-%d", i), "--join-bundle", bundle))
	}
	c.await(b, func(m *meridianv1.MembersResponse) bool {
		voters := 0
		for _, member := range m.GetMembers() {
			if member.GetVoter() {
				voters++
			}
		}
		return voters == n
	})
	return c
}

// await waits until the members, as the last server knows them, are as wanted.
func (c *cluster) await(b *testing.B, holds func(*meridianv1.MembersResponse) bool) {
	b.Helper()
	require.Eventually(b, func() bool {
		for _, s := range c.servers {
			ctx, cancel := context.WithTimeout(b.Context(), time.Second)
			m, err := s.api.cluster.Members(ctx, &meridianv1.MembersRequest{})
			cancel()
			if err == nil {
				return holds(m)
			}
		}
		return false
	}, patience, 20*time.Millisecond)
}

// leader returns the server that leads, waiting until one does.
func (c *cluster) leader(b *testing.B) *global {
	b.Helper()
	var leader string
	c.await(b, func(m *meridianv1.MembersResponse) bool {
		for _, member := range m.GetMembers() {
			if member.GetName() == m.GetLeader() {
				leader = member.GetGrpc()
			}
		}
		return leader != ""
	})
	for _, s := range c.servers {
		if s.grpcAddr == leader {
			return s
		}
	}
	require.Fail(b, "no such server", leader)
	return nil
}

// kilobyte is a spec of about 1 KiB, different for every edition.
func kilobyte(edition int64) []byte {
	return fmt.Appendf(nil, `{"logging":{"backends":[{"name":"%0900d","type":"file","conf":{"path":"/dev/stdout"}}]}}`, edition)
}

// BenchmarkWritesAgainstEtcd compares writes of 1 KiB to a global of three
// servers with writes to an etcd of three, both on loopback with TLS, their data
// on one disk, in turns within one run. A write to the global is a checked,
// authorized and audited resource; one to etcd is bytes under a key.
func BenchmarkWritesAgainstEtcd(b *testing.B) {
	system(b)
	other := startEtcd(b, 3)
	ours := startCluster(b, 3)
	leader := ours.leader(b)
	for _, clients := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			toLeader, spread, toEtcd := newTurns(), newTurns(), newTurns()
			for b.Loop() {
				for range rounds {
					toEtcd.run(b, clients, func(i int) func(context.Context) error { return etcdWrite(other.writer(b, i%3), i) })
					toLeader.run(b, clients, func(i int) func(context.Context) error { return ourWrite(b, leader, i) })
					spread.run(b, clients, func(i int) func(context.Context) error { return ourWrite(b, ours.servers[i%3], i) })
				}
			}
			report(b, "writes/s", toLeader.rate())
			report(b, "spread-writes/s", spread.rate())
			report(b, "etcd-writes/s", toEtcd.rate())
			report(b, "ratio", toLeader.rate()/toEtcd.rate())
			report(b, "spread-ratio", spread.rate()/toEtcd.rate())
			report(b, "p50-ms", toLeader.times.p50())
			report(b, "p99-ms", toLeader.times.p99())
			report(b, "etcd-p50-ms", toEtcd.times.p50())
			report(b, "etcd-p99-ms", toEtcd.times.p99())
		})
	}
}

const (
	// rounds is how many turns each contender gets, turn the length of one.
	rounds = 3
	turn   = 3 * time.Second
)

// turns are the times in which one contender was written to.
type turns struct {
	times   samples
	elapsed time.Duration
}

func newTurns() *turns { return &turns{} }

func (t *turns) rate() float64 { return float64(len(t.times)) / t.elapsed.Seconds() }

// run has a number of clients write one after the other, each for itself.
func (t *turns) run(b *testing.B, clients int, newClient func(i int) func(context.Context) error) {
	b.Helper()
	ready := make([]func(context.Context) error, clients)
	for i := range ready {
		ready[i] = newClient(i)
		require.NoError(b, ready[i](b.Context())) // connect
	}
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		fail atomic.Pointer[error]
	)
	began := time.Now()
	for _, write := range ready {
		all.Go(func() {
			var own samples
			for time.Since(began) < turn {
				at := time.Now()
				if err := write(b.Context()); err != nil {
					fail.Store(&err)
					break
				}
				own.add(time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			t.times = append(t.times, own...)
		})
	}
	all.Wait()
	t.elapsed += time.Since(began)
	if err := fail.Load(); err != nil {
		require.NoError(b, *err)
	}
}

var editions atomic.Int64

func etcdWrite(put func(ctx context.Context, key, value []byte) error, i int) func(context.Context) error {
	key := fmt.Appendf(nil, "mesh-%03d", i)
	return func(ctx context.Context) error { return put(ctx, key, kilobyte(editions.Add(1))) }
}

// ourWrite writes to a resource of its own over a connection of its own.
func ourWrite(b *testing.B, server *global, i int) func(context.Context) error {
	b.Helper()
	api := dial(b, server.dir)
	id := rand.Uint64()
	n := 0
	return func(ctx context.Context) error {
		n++
		_, err := batch.Apply(ctx, api, &meridianv1.ApplyRequest{
			RequestId: fmt.Sprintf("%x-%d", id, n),
			Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: fmt.Sprintf("mesh-%03d", i), Spec: kilobyte(editions.Add(1))}},
		})
		return err
	}
}
