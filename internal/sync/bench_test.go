package zonesync

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// The benchmarks of the figures in docs/figures.md, which has the targets, too:
// cold sync, a reconnect with nothing changed, and from apply to durable and
// visible in the zone with 10,000 policies present. All over TCP on loopback,
// replicas synced to disk.

const manyPolicies = 10_000

func policySpec(i int) string {
	return fmt.Sprintf(`{"conf":{"http":{"numRetries":5,"perTryTimeout":"%dms"}},"destinations":[{"match":{"kuma.io/service":"service-%d"}}],"sources":[{"match":{"kuma.io/service":"*"}}]}`, i, i%200)
}

// overTCP makes a cluster serve real sockets and returns its address.
func overTCP(b *testing.B, c *cluster) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = c.grpc.Serve(lis) })
	b.Cleanup(func() {
		c.stop()
		serving.Wait()
	})
	return lis.Addr().String()
}

func atAddress(a string) zoneOption {
	return func(rc *ReplicaConfig, cc *ClientConfig) {
		rc.Decode = decodeNew
		cc.Addresses, cc.DialOptions = []string{a}, nil
	}
}

// fill writes the many policies, in batches, without the simulation's history.
func fill(b *testing.B, c *cluster) {
	for i := 0; i < manyPolicies; i += 500 {
		var ops []store.Op
		for j := i; j < i+500; j++ {
			ops = append(ops, put(policyKey(fmt.Sprintf("policy-%05d", j)), policySpec(j)))
		}
		benchWrite(b, c, ops...)
	}
}

func benchWrite(b *testing.B, c *cluster, ops ...store.Op) resource.Revision {
	c.global.applied++
	res := c.global.store.Apply(c.global.applied, store.Txn{Time: time.Now(), Ops: ops})
	require.NoError(b, res.Err)
	return c.global.applied
}

func BenchmarkColdSync(b *testing.B) {
	c := newCluster(b)
	address := overTCP(b, c)
	fill(b, c)
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		b.StartTimer()
		z := c.zone("east", dir, atAddress(address))
		require.NoError(b, z.store.Wait(context.Background(), c.global.applied))
		b.StopTimer()
		z.stop()
		b.StartTimer()
	}
}

func BenchmarkColdStart(b *testing.B) {
	c := newCluster(b)
	address := overTCP(b, c)
	fill(b, c)
	dir := b.TempDir()
	z := c.zone("east", dir, atAddress(address))
	require.NoError(b, z.store.Wait(context.Background(), c.global.applied))
	z.stop()
	for b.Loop() {
		r, err := OpenReplica(ReplicaConfig{Dir: dir, Zone: "east", Decode: decodeNew, Store: store.New(memory())})
		require.NoError(b, err)
		require.Equal(b, manyPolicies, r.Status().Resources)
		require.NoError(b, r.Close())
	}
}

func BenchmarkReconnectUnchanged(b *testing.B) {
	c := newCluster(b)
	address := overTCP(b, c)
	fill(b, c)
	dir := b.TempDir()
	z := c.zone("east", dir, atAddress(address))
	require.NoError(b, z.store.Wait(context.Background(), c.global.applied))
	for b.Loop() {
		b.StopTimer()
		z.stop()
		s := store.New(memory())
		r, err := OpenReplica(ReplicaConfig{Dir: dir, Zone: "east", Decode: decodeNew, Store: s})
		require.NoError(b, err)
		for c.state("east").State != ZoneOffline {
			<-c.server.registry.changed()
		}
		b.StartTimer()
		z = c.attach(r, s, address)
		for c.state("east").State != ZoneInSync {
			<-c.server.registry.changed()
		}
	}
	z.stop()
}

// BenchmarkPublishToDurable is from the store's commit to the zone's
// acknowledgement, one change at a time.
func BenchmarkPublishToDurable(b *testing.B) {
	c := newCluster(b)
	address := overTCP(b, c)
	fill(b, c)
	z := c.zone("east", b.TempDir(), atAddress(address))
	ctx := context.Background()
	require.NoError(b, z.store.Wait(ctx, c.global.applied))
	require.NoError(b, c.applied(ctx, c.global.applied))
	var visible, acked []time.Duration
	i := 0
	for b.Loop() {
		i++
		began := time.Now()
		rev := benchWrite(b, c, put(policyKey(fmt.Sprintf("policy-%05d", i*7919%manyPolicies)), policySpec(i+manyPolicies)))
		require.NoError(b, z.store.Wait(ctx, rev))
		visible = append(visible, time.Since(began))
		require.NoError(b, c.applied(ctx, rev))
		acked = append(acked, time.Since(began))
	}
	report(b, "durable", visible)
	report(b, "acked", acked)
	z.stop()
}

func report(b *testing.B, name string, d []time.Duration) {
	slices.Sort(d)
	b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, name+"-p50-ms")
	b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, name+"-p99-ms")
}

// BenchmarkFanOut is the cost per zone of one more batch of 1 KiB: it is encoded
// once, whatever the number of zones.
func BenchmarkFanOut(b *testing.B) {
	for _, zones := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("zones=%d", zones), func(b *testing.B) {
			g := newGlobalSim(b, 64<<20)
			pubs := make([]*publisher, zones)
			at := g.feed.position()
			for i := range pubs {
				pubs[i] = newPublisher(defaultPacing(), g.feed, g.store.View)
				pubs[i].pacing.window = 1 << 62
				require.NoError(b, pubs[i].greet(&syncv1.Hello{Protocol: 1, Epoch: epochTo(at.epoch), FromRevision: uint64(at.head)}, g.now))
			}
			content := fmt.Sprintf(`"%01000d"`, 0)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				b.StopTimer()
				g.applied++
				rev := g.applied
				r := resource.New(resource.Meta{Key: policyKey("a"), Version: uint64(n), Revision: rev}, nil, []byte(content))
				b.StartTimer()
				require.NoError(b, g.feed.append(store.Batch{Revision: rev, Prev: rev - 1, Changes: []store.Change{{After: r}}}, time.Time{}))
				for _, p := range pubs {
					for {
						f, err := p.next(g.now)
						if err != nil {
							b.Fatal(err)
						}
						if f == nil {
							break
						}
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*zones), "ns/delivery")
		})
	}
}

// BenchmarkZonesThatDoNotRead is what a thousand zones that open a stream and never
// read hold of their server's heap and stacks, in KiB for each (I12: 100 MiB for all).
func BenchmarkZonesThatDoNotRead(b *testing.B) {
	const zones = 1000
	for _, mode := range []string{"resume", "snapshot"} {
		b.Run(mode, func(b *testing.B) {
			for b.Loop() {
				var before int64
				_, _, stop := zonesThatDoNotRead(b, zones, mode, func() { before = heapBytes() })
				b.ReportMetric(float64((heapBytes()-before)/zones)/1024, "KiB/zone")
				stop()
			}
		})
	}
}

// heapBytes is the memory in use, in bytes.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
