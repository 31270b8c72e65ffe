package store

import (
	"context"
	"sync"
	"sync/atomic"

	"meridian/internal/resource"
)

// Store holds the state. One goroutine writes (Apply, Replicate, Advance,
// Reset; calls are serialised, but their order is the caller's affair); any
// number read. Readers never lock: they load what the writer last published.
type Store struct {
	opts Options
	now  atomic.Pointer[published]

	mu         sync.Mutex // serialises writers, guards what follows
	tree       *tree      // the newest state; published only as copies
	index      *index     // its terms, likewise
	generation uint64     // of the last draft
	history    history
	requests   requests
	past       *past      // contents of old revisions; nil where none are kept
	restoring  *restoring // parts of a state that is not in effect yet
	awaiting   map[*awaiting]struct{}
	held       *holds // of a view that was applied to or previewed on; nil before
}

// published is everything that readers see, replaced as one.
type published struct {
	view  *View
	past  []*record // retained batches, oldest first
	base  *View     // the state before past[0]
	woken chan struct{}
}

// New returns an empty store at revision 0. It panics if opts are invalid (see
// Options.Validate).
func New(opts Options) *Store {
	if err := opts.Validate(); err != nil {
		panic(err)
	}
	s := &Store{opts: opts, tree: newTree(), index: newIndex(opts.Terms), awaiting: map[*awaiting]struct{}{}}
	empty := &View{tree: s.tree.Copy(), index: s.index.copy()}
	s.history = history{bounds: opts.History, base: empty}
	s.requests = requests{bounds: opts.Requests}
	s.publishLocked(empty)
	return s
}

// View returns the newest state.
func (s *Store) View() *View { return s.now.Load().view }

// Revision returns the newest revision applied, whether or not it changed
// anything.
func (s *Store) Revision() resource.Revision { return s.View().revision }

// Oldest returns the first revision that ViewAt and Next still accept.
func (s *Store) Oldest() resource.Revision { return s.now.Load().base.changed }

// ViewAt returns the state at a revision; one that brought no change is the
// state of the last batch before it. Errors: ErrCompacted, take View and start
// over; ErrFuture, Wait first.
func (s *Store) ViewAt(rev resource.Revision) (*View, error) {
	p := s.now.Load()
	if err := p.check(rev); err != nil {
		return nil, err
	}
	return p.at(rev), nil
}

// at returns the state at a revision that is retained.
func (p *published) at(rev resource.Revision) *View {
	if rev == p.view.revision {
		return p.view
	}
	v := p.base
	if i := firstAfter(p.past, rev); i > 0 {
		v = p.past[i-1].view
	}
	if v.revision != rev {
		at := *v
		at.revision = rev
		v = &at
	}
	return v
}

// Wait returns when a revision has been applied, or with the context's cause.
func (s *Store) Wait(ctx context.Context, rev resource.Revision) error {
	for {
		p := s.now.Load()
		if p.view.revision >= rev {
			return nil
		}
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
}

// Await returns the newest state once it is another than seen, or with the
// context's cause. Unlike Wait for the next revision it also notices a store
// that was rewound to an older snapshot.
func (s *Store) Await(ctx context.Context, seen *View) (*View, error) {
	for {
		p := s.now.Load()
		if v := p.view; v.revision != seen.revision || v.timeline != seen.timeline || v.epoch != seen.epoch {
			return v, nil
		}
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// awaiting is a reader that waits until what it has seen of the store changes. It keeps
// no view, whose state would be held in memory for as long as it waits.
type awaiting struct {
	timeline uint64
	epoch    Epoch
	kinds    []resource.Kind
	digests  []Digest // of each of the kinds
	woken    chan struct{}
}

// concerned reports whether v is another state than the one seen, in what is awaited.
func (a *awaiting) concerned(v *View) bool {
	if v.timeline != a.timeline || v.epoch != a.epoch {
		return true
	}
	for i, kind := range a.kinds {
		if v.Digest(kind) != a.digests[i] {
			return true
		}
	}
	return false
}

// AwaitKinds returns the newest state once it has other resources of the kinds than seen,
// or was replaced by a backup or an older snapshot; without kinds, for the latter only.
// Unlike Await it is not woken by writes of other kinds. It returns the context's cause
// when ctx ends first.
func (s *Store) AwaitKinds(ctx context.Context, seen *View, kinds ...resource.Kind) (*View, error) {
	a := &awaiting{timeline: seen.timeline, epoch: seen.epoch, kinds: kinds, woken: make(chan struct{})}
	for _, kind := range kinds {
		a.digests = append(a.digests, seen.Digest(kind))
	}
	s.mu.Lock()
	v := s.View()
	concerned := a.concerned(v)
	if !concerned {
		s.awaiting[a] = struct{}{}
	}
	s.mu.Unlock()
	if concerned {
		return v, nil
	}
	select {
	case <-a.woken:
		return s.View(), nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.awaiting, a)
		return nil, context.Cause(ctx)
	}
}

// wait returns when p has been replaced.
func (p *published) wait(ctx context.Context) error {
	select {
	case <-p.woken:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// check says whether the state at a revision is retained.
func (p *published) check(rev resource.Revision) error {
	switch {
	case rev < p.base.changed:
		return ErrCompacted
	case rev > p.view.revision:
		return ErrFuture
	}
	return nil
}

// publishLocked makes v the newest state and wakes who waits.
func (s *Store) publishLocked(v *View) {
	newest := *v
	newest.tail = s.opts.History.SnapshotBytes
	newest.requests, newest.forgotten = s.requests.window.slice(), s.requests.forgotten
	newest.history, newest.base = s.history.window.slice(), s.history.base
	newest.past = s.past.view()
	before := s.now.Swap(&published{
		view:  &newest,
		past:  newest.history,
		base:  newest.base,
		woken: make(chan struct{}),
	})
	if before != nil {
		close(before.woken)
	}
	for a := range s.awaiting {
		if a.concerned(v) {
			delete(s.awaiting, a)
			close(a.woken)
		}
	}
}

// draftLocked begins the next state.
func (s *Store) draftLocked(from *View) *draft {
	s.generation++
	return &draft{
		generation: s.generation,
		tree:       s.tree.Copy(),
		index:      s.index.copy(),
		tallies:    append([]*tally(nil), from.tallies...),
	}
}

// Advance raises the revision without a change: everything up to rev is in. For
// a replica that is told so, and for log entries that are not batches. A rev
// that is not ahead is ignored.
func (s *Store) Advance(rev resource.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advanceLocked(rev)
}

func (s *Store) advanceLocked(rev resource.Revision) {
	v := *s.View()
	if rev <= v.revision {
		return
	}
	v.revision = rev
	s.publishLocked(&v)
}
