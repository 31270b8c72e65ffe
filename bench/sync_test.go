package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkColdSync starts a zone with nothing on its disk and stops the clock
// when it is ready and serves every policy: process start, keys, connection,
// transfer and disk are all in it.
func BenchmarkColdSync(b *testing.B) { coldSync(b, many, 5) }

// BenchmarkColdSyncLarge is the same for 100,000 policies.
func BenchmarkColdSyncLarge(b *testing.B) { coldSync(b, 10*many, 3) }

func coldSync(b *testing.B, size, rounds int) {
	system(b)
	g := newGlobal(b, size)
	relay := newProxy(b, g.grpcAddr)
	bundle := g.bundle(b, "east", relay.address())
	var all, transfer samples
	var bytes int64
	for b.Loop() {
		for range rounds {
			z := startZone(b, bundle, b.TempDir())
			bytes = relay.bytes.Load()
			ready, welcomed := z.ready(b), z.await(b, connected, 0)
			require.Equal(b, "MODE_SNAPSHOT", welcomed.Mode)
			z.api.holds(b, size)
			all.add(ready.at.Sub(z.started))
			transfer.add(ready.at.Sub(welcomed.at))
			z.stop()
		}
	}
	target(b, "synced-p50-ms", all.p50(), 2000)
	target(b, "synced-max-ms", all.worst(), 2000)
	report(b, "transfer-p50-ms", transfer.p50())
	report(b, "bytes/policy", float64(bytes)/float64(size))
}

// BenchmarkReconnect cuts the connection between a global and a zone that are
// equal, from the moment the zone reaches the global again to its being
// followed. What passes is counted on the socket, encryption included, up to the
// confirmation of a first change, which proves that the zone is following.
func BenchmarkReconnect(b *testing.B) {
	system(b)
	const rounds = 10
	large, small := newReconnection(b, many), newReconnection(b, few)
	for b.Loop() {
		for range rounds {
			large.once(b)
			small.once(b)
		}
	}
	target(b, "reconnect-p50-ms", large.times.p50(), 50)
	target(b, "reconnect-max-ms", large.times.worst(), 50)
	report(b, "confirmed-p50-ms", large.confirmed.p50())
	report(b, "bytes", mean(large.bytes))
	report(b, "bytes-10k/1k", mean(large.bytes)/mean(small.bytes))
}

// reconnection is a global and a zone with a proxy between them.
type reconnection struct {
	global  *global
	zone    *zone
	relay   *proxy
	edition int

	times, confirmed samples
	bytes            []float64
}

func newReconnection(b *testing.B, size int) *reconnection {
	b.Helper()
	r := &reconnection{global: newGlobal(b, size), edition: 1}
	r.relay = newProxy(b, r.global.grpcAddr)
	r.zone = newZone(b, r.global, r.relay.address())
	r.zone.api.holds(b, size)
	return r
}

func (r *reconnection) once(b *testing.B) {
	b.Helper()
	before := r.zone.seen()
	r.relay.cut()
	var reached time.Time
	select {
	case reached = <-r.relay.accepted:
	case <-time.After(patience):
		require.Fail(b, "timeout", "the zone does not connect again")
	}
	welcomed := r.zone.await(b, connected, before)
	require.Equal(b, "MODE_RESUME", welcomed.Mode, "nothing has changed")
	r.times.add(welcomed.at.Sub(reached))
	r.edition++
	r.global.api.write(b, policy(0, r.edition), true)
	r.confirmed.add(time.Since(reached))
	r.bytes = append(r.bytes, float64(r.relay.bytes.Load()))
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
