package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	// restarts is how often a server is killed and started again.
	restarts = 5
	// writers is how many clients write at a time to fill a log.
	writers = 32
)

// rest is how long a server has nothing to do before its memory is looked at: it
// gives back what it took while it was busy.
const rest = 5 * time.Second

// BenchmarkRestartGlobal kills a global and starts it on what its disk holds,
// until it is ready: everything that was acknowledged is there. First its
// policies came in one batch, then each was changed by a write of its own, so
// that as many entries of the log are to be gone through.
func BenchmarkRestartGlobal(b *testing.B) {
	system(b)
	procfs(b)
	g := newGlobal(b, many)
	var batch, single samples
	var filling time.Duration
	var written, rested float64
	for b.Loop() {
		batch = append(batch, g.restart(b)...)
		filling = g.rewrite(b)
		written = g.memory(b, "VmHWM")
		<-time.After(rest)
		rested = g.memory(b, "VmRSS")
		single = append(single, g.restart(b)...)
	}
	report(b, "ready-p50-ms", batch.p50())
	report(b, "ready-max-ms", batch.worst())
	report(b, "10k-entries-ready-p50-ms", single.p50())
	report(b, "10k-entries-ready-max-ms", single.worst())
	report(b, "writes/s", many/filling.Seconds())
	report(b, "written-peak-MB", written)
	target(b, "written-MB", rested, 150)
	<-time.After(rest)
	target(b, "restarted-MB", g.memory(b, "VmRSS"), 150)
}

// restart kills a global and starts it again, several times.
func (g *global) restart(b *testing.B) samples {
	b.Helper()
	var times samples
	for range restarts {
		g.kill()
		*g = *startGlobal(b, g.dir)
		times.add(g.ready(b).at.Sub(g.started))
		g.api.holds(b, many)
	}
	return times
}

// rewrite changes every policy in a write of its own, many at a time, and
// returns how long that took.
func (g *global) rewrite(b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	edition := int(began.UnixMilli() % 1e6) // another one every time
	var group errgroup.Group
	for w := range writers {
		group.Go(func() error {
			for i := w; i < many; i += writers {
				if _, err := g.api.put(b.Context(), policy(i, edition), false); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(b, group.Wait())
	return time.Since(began)
}

// BenchmarkRestartZone kills a zone and starts it on its replica while its
// global is away, until it serves every policy again.
func BenchmarkRestartZone(b *testing.B) {
	system(b)
	procfs(b)
	g := newGlobal(b, many)
	bundle := g.bundle(b, "east", g.grpcAddr)
	dir := b.TempDir()
	z := startZone(b, bundle, dir)
	z.api.apply(b, proxies())
	g.kill()
	var times samples
	for b.Loop() {
		for range restarts {
			z.kill()
			z = startZone(b, bundle, dir)
			times.add(z.ready(b).at.Sub(z.started))
			z.api.holds(b, many)
		}
	}
	report(b, "ready-p50-ms", times.p50())
	report(b, "ready-max-ms", times.worst())
	report(b, "MB", z.memory(b, "VmRSS"))
}
