package livematch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Matching keeps a matcher up to date with the stores that it reads. It is safe
// for concurrent use.
type Matching struct {
	matcher *policy.Matcher
	stores  []*store.Store

	mu   sync.RWMutex  // held for reading while an answer is worked out
	seen []*store.View // what the matcher has taken in, per store; guarded by mu
	// touched is told what every change touched; guarded by mu.
	touched func([]policy.Touch)
	// updated is told of every change; guarded by mu.
	updated []func([]policy.Touch)
}

// New returns a matcher over the union of stores, of which the first is the one
// whose revision answers hold for.
func New(matcher *policy.Matcher, stores ...*store.Store) *Matching {
	m := &Matching{matcher: matcher, stores: stores, seen: make([]*store.View, len(stores))}
	for i, s := range stores {
		m.seen[i] = s.View()
	}
	matcher.Reset(unionOf(m.seen))
	return m
}

// unionOf reads several views as one.
func unionOf(views []*store.View) store.Reader {
	var all store.Reader = views[0]
	for _, v := range views[1:] {
		all = store.Union(all, v)
	}
	return all
}

// current brings the matcher up to everything applied so far.
func (m *Matching) current() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make([]*store.View, len(m.stores))
	var changed []resource.Key
	for i, s := range m.stores {
		now[i] = s.View()
		changed = append(changed, changedBetween(s, m.seen[i], now[i])...)
	}
	m.seen = now
	if len(changed) == 0 {
		return
	}
	touched := m.matcher.Update(unionOf(now), changed)
	if m.touched != nil && len(touched) > 0 {
		m.touched(touched)
	}
	for _, f := range m.updated {
		f(touched)
	}
}

// OnTouch has f called with the dataplanes that each change from now on touched,
// change by change. f must be quick and must not call the Matching: readers wait
// meanwhile. ReadCached, called after f, sees the change.
func (m *Matching) OnTouch(f func([]policy.Touch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touched = f
}

// OnUpdate is OnTouch for those that follow more than matching: f is called for every
// change, also one that touched no dataplane, and beside the function of OnTouch. It
// may be called several times, for several functions.
func (m *Matching) OnUpdate(f func([]policy.Touch)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.updated = append(m.updated, f)
}

// Read calls ask with a matcher that has every change applied so far and
// does not change meanwhile, and its revision.
func (m *Matching) Read(ask func(matcher *policy.Matcher, asOf resource.Revision) error) error {
	m.current()
	return m.ReadCached(ask)
}

// ReadCached is Read without an update first: the changes that OnTouch reported are
// in the matcher, newer ones may not be. Readers do not block each other.
func (m *Matching) ReadCached(ask func(matcher *policy.Matcher, asOf resource.Revision) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return ask(m.matcher, m.seen[0].Revision())
}

// Computed counts how often the rules of one kind on one attachment were worked
// out.
func (m *Matching) Computed() uint64 { return m.matcher.Computed() }

// changedBetween returns the keys that differ between two views of a store,
// from its feed where that still reaches back.
func changedBetween(s *store.Store, from, to *store.View) []resource.Key {
	if from.Changed() == to.Changed() && from.Epoch() == to.Epoch() {
		return nil
	}
	var keys []resource.Key
	diff := func() []resource.Key {
		keys = keys[:0]
		for _, c := range store.Diff(from, to) {
			keys = append(keys, c.Key())
		}
		return keys
	}
	if to.Changed() <= from.Revision() {
		return diff() // the store was rewound to a snapshot
	}
	feed := s.Follow(from)
	for feed.Revision() < to.Changed() {
		batches, err := feed.Next(context.Background()) // there is one: it does not block
		if errors.Is(err, store.ErrCompacted) {
			return diff()
		}
		if err != nil {
			panic(fmt.Sprintf("matching: a store's feed contradicts its view: %v", err))
		}
		for _, b := range batches {
			for _, c := range b.Changes {
				keys = append(keys, c.Key())
			}
		}
	}
	return keys
}

// Run follows the stores until ctx ends, so that a question finds little left to
// do.
func (m *Matching) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range m.stores {
		group.Go(func() error {
			for {
				at := s.View()
				m.current()
				if _, err := s.Await(ctx, at); err != nil {
					return nil // ctx has ended
				}
			}
		})
	}
	return group.Wait()
}
