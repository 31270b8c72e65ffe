package bench

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/batch"
)

const (
	// largeBatches of about largeBatch bytes each are written: 2 GB.
	largeBatches = 136
	largeBatch   = 15_600_000
	// largeParts is how many resources one of them has.
	largeParts = 15
	// missedWrites is how many small writes follow, by missedClients at a time: more
	// entries than the log keeps.
	missedWrites, missedClients = 20_000, 64
)

// BenchmarkCatchingUp writes 2 GB in batches of 15.6 MB and then many small ones, while
// one server of three is down. That one returns, and a fourth joins, while clients
// continue to write.
func BenchmarkCatchingUp(b *testing.B) {
	if os.Getenv("BENCH_LARGE") == "" {
		b.Skip("writes 2 GB on each of three servers: BENCH_LARGE=1 has it run")
	}
	procfs(b)
	for b.Loop() {
		c := startCluster(b, 3)
		leader := c.leader(b)
		var away *global
		for _, s := range c.servers {
			if s != leader {
				away = s
			}
		}
		response, err := leader.api.cluster.GenerateServerToken(b.Context(), &meridianv1.GenerateServerTokenRequest{ValidForSeconds: 36_000, Bundle: true})
		require.NoError(b, err)
		bundle := filepath.Join(b.TempDir(), "server.bundle")
		require.NoError(b, os.WriteFile(bundle, response.GetBundle(), 0o600))

		away.kill()
		began := time.Now()
		repeated := 0.0
		for i := range largeBatches {
			repeated += leader.applyLarge(b, largeSecrets(i))
		}
		report(b, "large-repeated", repeated)
		large := time.Since(began)
		leader.api.apply(b, policies(missedClients))
		began = time.Now()
		leader.busy(b, 1, missedWrites/missedClients)
		report(b, "small-writes/s", missedWrites/time.Since(began).Seconds())
		report(b, "large-MB/s", largeBatches*largeBatch/1e6/large.Seconds())
		report(b, "log-MB", megabytesBelow(b, leader.dir))
		report(b, "writing-peak-MB", leader.memory(b, "VmHWM"))
		// From here on VmHWM is the peak since now (proc(5)).
		require.NoError(b, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", leader.cmd.Process.Pid), []byte("5"), 0))

		var writing sync.WaitGroup
		writing.Go(func() { leader.busy(b, 2, missedWrites/missedClients) })
		began = time.Now()
		c.revive(b, away)
		c.awaitApplied(b, leader)
		report(b, "return-s", time.Since(began).Seconds())
		began = time.Now()
		c.servers = append(c.servers, startGlobal(b, b.TempDir(), "--name", "fourth", "--join-bundle", bundle))
		c.awaitApplied(b, leader)
		target(b, "join-s", time.Since(began).Seconds(), 60)
		target(b, "leader-peak-MB", leader.memory(b, "VmHWM"), 1000)
		writing.Wait()
	}
}

// BenchmarkFollowerBehind has clients write as fast as they can for BENCH_BEHIND, an
// hour for instance, while one server of three is down. It returns while they continue.
func BenchmarkFollowerBehind(b *testing.B) {
	away, err := time.ParseDuration(cmp.Or(os.Getenv("BENCH_BEHIND"), "0s"))
	require.NoError(b, err)
	if away == 0 {
		b.Skip("takes as long as BENCH_BEHIND says: BENCH_BEHIND=1h has it run")
	}
	procfs(b)
	for b.Loop() {
		c := startCluster(b, 3)
		leader := c.leader(b)
		i := slices.IndexFunc(c.servers, func(s *global) bool { return s != leader })
		behind := c.servers[i]
		behind.kill()

		ctx, stop := context.WithCancel(b.Context())
		var writing sync.WaitGroup
		var written, failed atomic.Int64
		for n := range missedClients {
			writing.Go(func() {
				write := ourWrite(b, leader, n)
				for ctx.Err() == nil {
					if err := write(ctx); err == nil {
						written.Add(1)
					} else {
						failed.Add(1)
					}
				}
			})
		}
		began := time.Now()
		<-time.After(away)
		missed := written.Load()
		report(b, "missed-writes", float64(missed))
		report(b, "writes/s", float64(missed)/time.Since(began).Seconds())
		report(b, "log-MB", megabytesBelow(b, leader.dir))

		began = time.Now()
		c.revive(b, behind)
		behind = c.servers[i]
		c.awaitApplied(b, leader)
		report(b, "return-s", time.Since(began).Seconds())
		report(b, "meanwhile-writes/s", float64(written.Load()-missed)/time.Since(began).Seconds())
		// It keeps up from then on: what the leader has now, it has soon, each time.
		var lag samples
		for range 100 {
			began := time.Now()
			c.awaitApplied(b, leader)
			lag = append(lag, time.Since(began))
			<-time.After(100 * time.Millisecond)
		}
		report(b, "lag-p50-ms", lag.p50())
		report(b, "lag-p99-ms", lag.p99())
		report(b, "leader-peak-MB", leader.memory(b, "VmHWM"))
		report(b, "follower-peak-MB", behind.memory(b, "VmHWM"))
		report(b, "failed-writes", float64(failed.Load()))
		stop()
		writing.Wait()
	}
}

// largeSecrets is a batch of resources of a megabyte each. Every edition of it differs
// from every other and replaces it.
func largeSecrets(edition int) []*meridianv1.Resource {
	all := make([]*meridianv1.Resource, largeParts)
	random := rand.New(rand.NewPCG(uint64(edition), 0))
	for i := range all {
		data := make([]byte, largeBatch/largeParts*3/4)
		for at := range data {
			data[at] = byte(random.Uint32())
		}
		all[i] = &meridianv1.Resource{
			Kind: "GlobalSecret", Name: fmt.Sprintf("large-%d", i),
			Spec: fmt.Appendf(nil, `{"data":%q}`, base64.StdEncoding.EncodeToString(data)),
		}
	}
	return all
}

// applyLarge writes a batch, again after each failure, and returns how many there were.
func (g *global) applyLarge(b *testing.B, all []*meridianv1.Resource) (failures float64) {
	b.Helper()
	for ; ; failures++ {
		_, err := batch.Apply(b.Context(), g.api, &meridianv1.ApplyRequest{Resources: all, RequestId: g.api.requestID()})
		if err == nil {
			return failures
		}
		require.Less(b, failures, 10.0, "%v", err)
	}
}

// busy has clients write at a time, each so often its own policy.
func (g *global) busy(b *testing.B, round, each int) {
	b.Helper()
	var all sync.WaitGroup
	for n := range missedClients {
		all.Go(func() {
			for i := range each {
				if _, err := g.api.put(b.Context(), policy(n, round*1_000_000+i), false); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// awaitApplied waits until the last server has applied what the leader has now.
func (c *cluster) awaitApplied(b *testing.B, leader *global) {
	b.Helper()
	applied := func(s *global) map[string]uint64 {
		m, err := s.api.cluster.Members(b.Context(), &meridianv1.MembersRequest{})
		require.NoError(b, err)
		out := map[string]uint64{}
		for _, member := range m.GetMembers() {
			out[member.GetGrpc()] = member.GetAppliedRevision()
		}
		return out
	}
	head := applied(leader)[leader.grpcAddr]
	require.Eventually(b, func() bool {
		all := applied(leader)
		for _, s := range c.servers {
			if all[s.grpcAddr] < head {
				return false
			}
		}
		return true
	}, 10*time.Minute, 20*time.Millisecond)
}

// megabytesBelow is the size of all files below a directory.
func megabytesBelow(b *testing.B, dir string) float64 {
	b.Helper()
	size := int64(0)
	require.NoError(b, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			size += info.Size()
		}
		return nil
	}))
	return float64(size) / 1e6
}
