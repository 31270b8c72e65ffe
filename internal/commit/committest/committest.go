// Package committest has the log that tests write to: it applies each batch to a
// store at once, as a log of one server does.
//
// It guarantees what commit.Log does, for concurrent use too. Non-goals:
// elections, disks and networks, for which there is a simulated cluster.
package committest

import (
	"context"
	"sync"

	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Log is a commit.Log around a store.
type Log struct {
	*store.Store
	applying sync.Mutex // makes batches take effect one after the other

	mu      sync.Mutex // guards all below
	before  func(store.Txn) error
	answer  func(store.Result) error
	reading func() error
	fails   error
}

var _ commit.Log = (*Log)(nil)

// New returns a Log around a store.
func New(s *store.Store) *Log { return &Log{Store: s} }

// Before has f called ahead of each proposal from now on; nil ends that. Its error
// is the proposal's, and nothing is written. It may write to the log itself.
func (l *Log) Before(f func(store.Txn) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = f
}

// Once has f called ahead of the next proposal.
func (l *Log) Once(f func()) {
	l.Before(func(store.Txn) error {
		l.Before(nil)
		f()
		return nil
	})
}

// Answer has f decide what proposers are told from now on about a batch that was
// applied; nil ends that.
func (l *Log) Answer(f func(store.Result) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = f
}

// Reading has f called by each Read from now on. Its error is the Read's.
func (l *Log) Reading(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reading = f
}

// Fail makes every proposal and every Read fail from now on; nil ends that.
func (l *Log) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails = err
}

// Propose implements commit.Log.
func (l *Log) Propose(ctx context.Context, txn store.Txn) (store.Result, error) {
	if err := context.Cause(ctx); err != nil {
		return store.Result{}, err
	}
	l.mu.Lock()
	before, answer, fails := l.before, l.answer, l.fails
	l.mu.Unlock()
	if fails != nil {
		return store.Result{}, fails
	}
	if before != nil {
		if err := before(txn); err != nil {
			return store.Result{}, err
		}
	}
	result := l.Write(txn)
	if answer != nil {
		return store.Result{}, answer(result)
	}
	return result, result.Err
}

// Write applies a batch, whatever the log was told to do with proposals.
func (l *Log) Write(txn store.Txn) store.Result {
	l.applying.Lock()
	defer l.applying.Unlock()
	return l.Apply(l.Revision()+1, txn)
}

// Read implements commit.Log.
func (l *Log) Read(context.Context) (resource.Revision, error) {
	l.mu.Lock()
	reading, fails := l.reading, l.fails
	l.mu.Unlock()
	if reading != nil && fails == nil {
		fails = reading()
	}
	return l.Revision(), fails
}
