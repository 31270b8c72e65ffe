package server

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// streamWorkers is how many goroutines gRPC keeps for calls, and maxIdleWorkers how many
	// wait for handlers. More calls at once have goroutines of their own.
	streamWorkers, maxIdleWorkers = 64, 64
	// workerPatience is how long a worker waits for the next handler.
	workerPatience = 10 * time.Second
)

// workers are goroutines that run one handler after the other. What a write calls needs a
// deep stack, and the stack of a new goroutine grows to that in several steps, in each of
// which it is copied: the same goroutine has it for the next write.
type workers struct {
	// work has no buffer: it is taken by a worker that waits, or by none.
	work chan func()
	idle atomic.Int32
	// ended is closed by end.
	ended chan struct{}
	once  sync.Once
}

func newWorkers() *workers { return &workers{work: make(chan func()), ended: make(chan struct{})} }

// end has the workers end that wait, and the others after what they run: handlers end with
// the calls of their server.
func (w *workers) end() { w.once.Do(func() { close(w.ended) }) }

// do runs a function on another goroutine. It does not wait for it.
func (w *workers) do(f func()) {
	select {
	case w.work <- f:
	default:
		go w.run(f)
	}
}

// run is a worker with its first function. It ends when nothing has come for a while, or
// when there are enough others.
func (w *workers) run(f func()) {
	f()
	var patience *time.Timer
	for w.idle.Add(1) <= maxIdleWorkers {
		if patience == nil {
			patience = time.NewTimer(workerPatience)
			defer patience.Stop()
		} else {
			patience.Reset(workerPatience)
		}
		select {
		case f = <-w.work:
			w.idle.Add(-1)
			f()
		case <-patience.C:
			w.idle.Add(-1)
			return
		case <-w.ended:
			w.idle.Add(-1)
			return
		}
	}
	w.idle.Add(-1)
}
