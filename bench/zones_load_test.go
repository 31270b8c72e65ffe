package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

// BenchmarkZonesStalled compares how long a change takes to the last of 1,000 zones while
// all of them read with how long it takes to the others while one reads nothing, in turns.
// What the one does not read is more than its connection holds.
func BenchmarkZonesStalled(b *testing.B) {
	system(b)
	enoughFiles(b)
	const (
		n       = 1000
		rounds  = 5
		changes = 20
		backlog = 16 // of 64 KiB
	)
	g := newGlobal(b, few)
	g.api.apply(b, []*meridianv1.Resource{large(0)})
	f := newSimulatedZones(b, g, n)
	stalling, others := f.zones[0], f.zones[1:]
	var reading, stalled samples
	edition := 1
	for b.Loop() {
		for range rounds {
			for range changes {
				edition++
				reading.add(f.change(b, g, edition, n).at(1))
			}
			resume := make(chan struct{})
			stalling.stalled.Store(&resume)
			f.counts.Store(false)
			for range backlog {
				edition++
				f.await(b, others, g.api.write(b, large(edition), false))
			}
			f.counts.Store(true)
			for range changes {
				edition++
				stalled.add(f.change(b, g, edition, n-1).at(1))
			}
			f.counts.Store(false)
			stalling.stalled.Store(nil)
			close(resume)
			edition++
			f.await(b, f.zones, g.api.write(b, policy(0, edition), false))
			f.counts.Store(true)
		}
	}
	report(b, "all-p99-ms", reading.p99())
	report(b, "others-p99-ms", stalled.p99())
	target(b, "stalled/reading-p99", stalled.p99()/reading.p99(), 1.2)
	report(b, "stalled/reading-p50", stalled.p50()/reading.p50())
}

// large is a resource with a spec of 64 KiB.
func large(edition int) *meridianv1.Resource {
	return &meridianv1.Resource{Kind: "Mesh", Name: "large", Spec: fmt.Appendf(nil, `{"logging":{"backends":[{"name":"%064000d","type":"file","conf":{"path":"/dev/stdout"}}]}}`, edition)}
}

// BenchmarkZonesUnderWrites writes 1,000 changes a second to one global for a minute, or as
// many as it takes, and asks time and again how long an acknowledged one takes to the last
// of 100 zones. A lag that grows shows in the ratio of the last third to the first.
func BenchmarkZonesUnderWrites(b *testing.B) {
	system(b)
	procfs(b)
	enoughFiles(b)
	const (
		n       = 100
		clients = 64
		rate    = 1000 // a second
		runs    = time.Minute
	)
	g := newGlobal(b, few)
	f := newSimulatedZones(b, g, n)
	f.counts.Store(false)
	var lag samples
	var edition, writes atomic.Int64
	var spent, cpu time.Duration
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), runs)
		before, began := g.processor(b), time.Now()
		var acknowledged atomic.Uint64
		var writing sync.WaitGroup
		for c := range clients {
			writing.Go(func() {
				due := time.NewTicker(clients * time.Second / rate)
				defer due.Stop()
				for {
					select {
					case <-due.C:
					case <-ctx.Done():
						return
					}
					revision, err := g.api.put(b.Context(), policy(c, int(edition.Add(1))), false)
					assert(b, err)
					if err != nil {
						cancel()
						return
					}
					writes.Add(1)
					for {
						if newest := acknowledged.Load(); newest >= revision || acknowledged.CompareAndSwap(newest, revision) {
							break
						}
					}
				}
			})
		}
		for ctx.Err() == nil {
			at := time.Now()
			f.await(b, f.zones, acknowledged.Load())
			lag.add(time.Since(at))
			<-time.After(50 * time.Millisecond)
		}
		writing.Wait()
		spent += time.Since(began)
		cpu += g.processor(b) - before
		cancel()
	}
	require.False(b, b.Failed())
	third := len(lag) / 3
	report(b, "writes/s", float64(writes.Load())/spent.Seconds())
	report(b, "lag-p50-ms", lag.p50())
	report(b, "lag-p99-ms", lag.p99())
	report(b, "lag-max-ms", lag.worst())
	target(b, "lag-last/first-third", lag[2*third:].p50()/lag[:third].p50(), 2)
	report(b, "cpu-%", 100*cpu.Seconds()/spent.Seconds())
}
