// Package sink passes the records of an audit log on: to a second file, or to a
// syslog server.
//
// Guarantees. Send never waits: records wait in a queue that is bounded in bytes, and
// those that it has no space for are dropped and counted. Within a sink records keep
// their order. A target that fails is tried again until it works.
//
// Non-goals: to record. The audit log itself does, and says what a sink lacks: the
// numbers of records have no gaps.
package sink

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"meridian/internal/audit"
)

const (
	// maxQueue bounds the lines that wait, in bytes.
	maxQueue = 16 << 20
	// retryAfter is how long a target that failed is left alone, and drainTimeout how
	// long the end of the process waits for what is queued.
	retryAfter   = time.Second
	drainTimeout = 2 * time.Second
)

// Sink is where records are passed on to. It is safe for concurrent use.
type Sink struct {
	// Name says what it is, for metrics: "file" or "syslog".
	Name   string
	target target
	log    *slog.Logger
	wake   chan struct{} // of capacity 1: there is something in the queue

	mu      sync.Mutex // guards all below
	queue   []entry
	bytes   int
	dropped uint64
}

// entry is a record and its line.
type entry struct {
	record audit.Record
	line   []byte
}

// target is what records are written to. Only Run calls it.
type target interface {
	// write writes some of the records in their order, and returns how many are done:
	// written, or such that they can never be. Of the second kind there are lost.
	write(ctx context.Context, entries []entry) (done, lost int, err error)
	close() error
}

func newSink(name string, to target, log *slog.Logger) *Sink {
	return &Sink{Name: name, target: to, log: log, wake: make(chan struct{}, 1)}
}

// Send queues a record, or drops it where there is no space.
func (s *Sink) Send(r audit.Record, line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+len(line) > maxQueue {
		s.dropped++
		return
	}
	s.queue = append(s.queue, entry{r, line})
	s.bytes += len(line)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Dropped is how many records were dropped.
func (s *Sink) Dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// Run passes records on until ctx ends, and then for a moment what is queued.
func (s *Sink) Run(ctx context.Context) error {
	failing := false
	for {
		err := s.deliver(ctx)
		switch {
		case ctx.Err() != nil:
			return s.drain(ctx)
		case err != nil && !failing:
			s.log.Error("audit records cannot be passed on", "to", s.Name, "error", err)
		case err == nil && failing:
			s.log.Info("audit records are passed on again", "to", s.Name, "dropped", s.Dropped())
		}
		failing = err != nil
		var again <-chan time.Time
		wake := s.wake
		if failing {
			again, wake = time.After(retryAfter), nil
		}
		select {
		case <-again:
		case <-wake:
		case <-ctx.Done():
			return s.drain(ctx)
		}
	}
}

func (s *Sink) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.deliver(ctx); err != nil {
		s.log.Error("audit records were not passed on before the end", "to", s.Name, "records", s.waiting(), "error", err)
	}
	if err := s.target.close(); err != nil {
		return fmt.Errorf("close the %s that audit records are passed on to: %w", s.Name, err)
	}
	return nil
}

func (s *Sink) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// deliver writes what is queued.
func (s *Sink) deliver(ctx context.Context) error {
	for {
		s.mu.Lock()
		batch := s.queue
		s.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		done, lost, err := s.target.write(ctx, batch)
		s.mu.Lock()
		for _, e := range batch[:done] {
			s.bytes -= len(e.line)
		}
		clear(batch[:done])
		s.queue = s.queue[done:]
		s.dropped += uint64(lost) //nolint:gosec // a count
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}
