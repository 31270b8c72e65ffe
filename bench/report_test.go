package bench

import (
	"slices"
	"testing"
	"time"
)

// system skips a benchmark under -short.
func system(b *testing.B) {
	b.Helper()
	if testing.Short() {
		b.Skip("starts whole processes")
	}
}

// report reports a figure. Call it after the loop, which forgets what was
// reported before it. The time per operation is hidden: these benchmarks take
// their own times.
func report(b *testing.B, unit string, got float64) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(got, unit)
}

// target reports a figure, and says so when it is above its target.
func target(b *testing.B, unit string, got, limit float64) {
	b.Helper()
	report(b, unit, got)
	if got > limit {
		b.Logf("MISSED: %s is %.4g, target is %.4g", unit, got, limit)
	}
}

// samples are measured times.
type samples []time.Duration

func (s *samples) add(d time.Duration) { *s = append(*s, max(d, 0)) }

// at is the time that a part of the samples, from 0 to 1, does not exceed.
func (s samples) at(part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// p50 and p99 are in milliseconds.
func (s samples) p50() float64 { return milliseconds(s.at(0.50)) }
func (s samples) p99() float64 { return milliseconds(s.at(0.99)) }

// worst is in milliseconds.
func (s samples) worst() float64 { return milliseconds(slices.Max(s)) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
