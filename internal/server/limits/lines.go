package limits

import (
	"log/slog"
	"sync"
	"time"
)

// Log lines about clients that come and go, in lines a second and at once.
const (
	lineRate  = 100
	lineBurst = 1000
)

// Lines bounds the log lines that clients cause by coming and going: who has a token may do
// so thousands of times a second. Safe for concurrent use.
type Lines struct {
	mu      sync.Mutex
	bucket  Bucket // guarded by mu
	leftOut int    // since the last line; guarded by mu
}

// NewLines returns a full bound: 1,000 lines at once and 100 a second.
func NewLines() *Lines { return &Lines{bucket: NewBucket(lineRate, lineBurst)} }

// Info logs a line at level INFO, or leaves it out. The line after some that were left out
// says in left_out how many they are.
func (l *Lines) Info(now time.Time, log *slog.Logger, msg string, args ...any) {
	l.mu.Lock()
	leftOut := l.leftOut
	ok := l.bucket.Take(now, 1)
	if l.leftOut++; ok {
		l.leftOut = 0
	}
	l.mu.Unlock()
	if !ok {
		return
	}
	if leftOut > 0 {
		log = log.With("left_out", leftOut)
	}
	log.Info(msg, args...) //nolint:sloglint // the callers' messages are constant
}
