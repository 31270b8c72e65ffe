package bench

import (
	"testing"
	"time"
)

// window is how long processes are watched doing nothing. /proc counts in
// hundredths of a second: a tick in it is 0.05 % of a core.
const window = 20 * time.Second

// BenchmarkIdle is what a global and a zone use without requests to
// them: of the processor over a window, as a part of one core, and of memory
// after it. Beside them, over the same window, stand a global and a zone with a
// tenth of the policies.
func BenchmarkIdle(b *testing.B) {
	system(b)
	procfs(b)
	large, small := newPair(b, many), newPair(b, few)
	for b.Loop() {
		<-time.After(rest)
		large.begin(b)
		small.begin(b)
		<-time.After(window)
		large.end(b)
		small.end(b)
	}
	target(b, "global-cpu-%", large.global.percent, 0.5)
	target(b, "zone-cpu-%", large.zone.percent, 0.5)
	report(b, "global-1k-cpu-%", small.global.percent)
	report(b, "zone-1k-cpu-%", small.zone.percent)
	target(b, "global-MB", large.global.resident, 150)
	report(b, "zone-MB", large.zone.resident)
	report(b, "global-1k-MB", small.global.resident)
	target(b, "global-peak-MB", large.global.peak, 150)
}

// pair is a global and its zone, watched.
type pair struct{ global, zone usage }

// usage is what one process uses while watched.
type usage struct {
	process *process
	since   time.Time
	before  time.Duration

	percent        float64 // of one core
	resident, peak float64 // MB
}

func newPair(b *testing.B, size int) *pair {
	b.Helper()
	g := newGlobal(b, size)
	z := newZone(b, g, g.grpcAddr)
	z.api.holds(b, size)
	return &pair{usage{process: g.process}, usage{process: z.process}}
}

func (p *pair) begin(b *testing.B) {
	b.Helper()
	p.global.begin(b)
	p.zone.begin(b)
}

func (p *pair) end(b *testing.B) {
	b.Helper()
	p.global.end(b)
	p.zone.end(b)
}

func (u *usage) begin(b *testing.B) {
	b.Helper()
	u.since, u.before = time.Now(), u.process.processor(b)
}

func (u *usage) end(b *testing.B) {
	b.Helper()
	used := u.process.processor(b) - u.before
	u.percent = 100 * float64(used) / float64(time.Since(u.since))
	u.resident, u.peak = u.process.memory(b, "VmRSS"), u.process.memory(b, "VmHWM")
}
