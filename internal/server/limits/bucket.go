package limits

import (
	"time"
)

// Bucket bounds a rate: it holds at most Burst units and gains Rate of them each
// second. It is not safe for concurrent use.
type Bucket struct {
	rate, burst float64
	level       float64
	at          time.Time
}

// NewBucket returns a full bucket.
func NewBucket(rate, burst float64) Bucket { return Bucket{rate: rate, burst: burst, level: burst} }

func (b *Bucket) fill(now time.Time) {
	if !b.at.IsZero() && now.After(b.at) {
		b.level = min(b.burst, b.level+b.rate*now.Sub(b.at).Seconds())
	}
	b.at = now
}

// Wait returns how long it takes until n units are there, 0 if they are. A request
// of more than the burst needs a full bucket.
func (b *Bucket) Wait(now time.Time, n float64) time.Duration {
	b.fill(now)
	missing := min(n, b.burst) - b.level
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / b.rate * float64(time.Second))
}

// Take takes n units, if they are there. What is larger than the burst leaves the
// bucket with a debt, so that the rate holds in the long run.
func (b *Bucket) Take(now time.Time, n float64) bool {
	if b.Wait(now, n) > 0 {
		return false
	}
	b.level -= n
	return true
}

// Return gives n units back.
func (b *Bucket) Return(n float64) { b.level = min(b.burst, b.level+n) }

// Full reports whether the bucket says nothing about the past.
func (b *Bucket) Full(now time.Time) bool {
	b.fill(now)
	return b.level >= b.burst
}

// Exceeded means that a request, or a connection, would exceed a limit.
type Exceeded struct {
	// Limit names the limit, as in metrics.
	Limit string
	// What says in words what is limited, and to how much.
	What string
	// Retry is after how long the same may succeed; zero where nothing tells.
	Retry time.Duration
}

// Error implements error.
func (e *Exceeded) Error() string { return "the limit on " + e.What + " is reached" }
