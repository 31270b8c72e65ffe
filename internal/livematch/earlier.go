package livematch

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Matchers of earlier states are kept for the questions that follow: few, since each may
// take as much memory as the indexes of the newest one, and for a while.
const (
	keptStates = 2
	keptFor    = time.Minute
)

// State is an earlier state to answer from. It is told as states of stores and what is
// otherwise, so that a matcher of one state becomes that of another by what differs.
type State struct {
	View policy.View
	// AsOf is the revision that answers have.
	AsOf resource.Revision
	// Bases are where the stores stand that View is made of, in the order of the Matching's.
	Bases []Base
	// Otherwise are resources that View has in place of those of the stores, and keys that it
	// does not have.
	Otherwise []*resource.Resource
	Without   []resource.Key
	// Name, unless empty, names AsOf, Otherwise and Without: two states with one name have
	// them in common.
	Name string
}

// Base is where a store stands.
type Base struct {
	Store *store.Store
	// History is that of the store's newest state: the random part of its epoch.
	History  uint64
	Revision resource.Revision
}

// Of adds what a store had to a state, or has.
func (s *State) Of(from *store.Store, view store.Reader, history uint64) {
	s.Bases = append(s.Bases, Base{Store: from, History: history, Revision: view.Revision()})
	if s.View == nil {
		s.View, s.AsOf = view, view.Revision()
	} else {
		s.View = store.Union(s.View, view)
	}
}

// equal reports whether both are the same state, as far as that is known without looking
// at all of it.
func (s *State) equal(other *State) bool {
	sameKeys := func(a, b *resource.Resource) bool {
		return a.Key() == b.Key() && unchanged(a, b)
	}
	if s.AsOf != other.AsOf || !slices.Equal(s.Bases, other.Bases) {
		return false
	}
	return s.Name != "" && s.Name == other.Name ||
		slices.EqualFunc(s.Otherwise, other.Otherwise, sameKeys) && slices.Equal(s.Without, other.Without)
}

// unchanged reports whether two resources of one key are equal in all that is stored.
func unchanged(a, b *resource.Resource) bool {
	if a == b {
		return true
	}
	m, n := a.Meta(), b.Meta()
	return m.Version == n.Version && m.Revision == n.Revision &&
		m.CreationTime.Equal(n.CreationTime) && m.ModificationTime.Equal(n.ModificationTime) &&
		maps.Equal(m.Labels, n.Labels) && bytes.Equal(a.Canonical(), b.Canonical())
}

// differing returns the keys in which the views of two states differ. False: that is not
// known.
func (s *State) differing(other *State) ([]resource.Key, bool) {
	if len(s.Bases) != len(other.Bases) {
		return nil, false
	}
	candidates := map[resource.Key]struct{}{}
	for i, a := range s.Bases {
		b := other.Bases[i]
		if a.Store != b.Store || a.History != b.History {
			return nil, false
		}
		if a.Revision == b.Revision {
			continue
		}
		keys, known := a.Store.ChangedBetween(a.Revision, b.Revision)
		if !known {
			return nil, false
		}
		for _, key := range keys {
			candidates[key] = struct{}{}
		}
	}
	for _, state := range []*State{s, other} {
		for _, r := range state.Otherwise {
			candidates[r.Key()] = struct{}{}
		}
		for _, key := range state.Without {
			candidates[key] = struct{}{}
		}
	}
	var keys []resource.Key
	for key := range candidates {
		a, had := s.View.Get(key)
		b, has := other.View.Get(key)
		if had != has || has && !unchanged(a, b) {
			keys = append(keys, key)
		}
	}
	return keys, true
}

// Fork returns a matcher of its own, with followers of its own (see policy.Matcher.Fork),
// and the state that it has.
func (m *Matching) Fork(followers ...policy.Follower) (*policy.Matcher, State) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var state State
	for i, s := range m.stores {
		state.Of(s, m.seen[i], m.seen[i].Epoch().Random)
	}
	return m.matcher.Fork(followers...), state
}

// Earlier matches earlier states. It is safe for concurrent use. A matcher that was made
// for one state is kept for a minute after its last question: it answers further questions
// about that state, and is brought to another by what differs.
type Earlier struct {
	// fork returns a matcher and the state that it has.
	fork func() (*policy.Matcher, State)

	mu sync.Mutex // guards everything below, and of every slot all but the matcher
	// idle is closed, and replaced, when a slot has no readers any more.
	idle  chan struct{}
	slots []*slot
	moved uint64
}

// slot is one matcher.
type slot struct {
	matcher *policy.Matcher
	state   State
	// ready is closed once matcher is that of state, or broken.
	ready   chan struct{}
	broken  bool
	readers int
	used    time.Time
	// dropping drops the slot when it was not used for long.
	dropping *time.Timer
}

// NewEarlier returns one that begins with what fork returns, such as Matching.Fork.
func NewEarlier(fork func() (*policy.Matcher, State)) *Earlier {
	return &Earlier{fork: fork, idle: make(chan struct{})}
}

// Moved counts how often a matcher was brought to a state, which the questions after it
// about that state share: a measure of work.
func (e *Earlier) Moved() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.moved
}

// Kept returns how many matchers are kept.
func (e *Earlier) Kept() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.slots)
}

// At returns a state as a source of answers to one question, which waits for others as long
// as ctx lasts.
func (e *Earlier) At(ctx context.Context, state State) At { return At{ctx, e, state} }

// At is one state, for one question.
type At struct {
	ctx     context.Context //nolint:containedctx // of the question that it is made for
	earlier *Earlier
	state   State
}

// Read calls ask with a matcher of the state, which does not change meanwhile, and its
// revision, and returns the error of ask. It may wait for other questions to end; where the
// context of the question ends first, it returns the cause of that without calling ask.
func (a At) Read(ask func(m *policy.Matcher, asOf resource.Revision) error) error {
	s, err := a.earlier.take(a.ctx, a.state)
	if err != nil {
		return err
	}
	defer a.earlier.release(s)
	return ask(s.matcher, a.state.AsOf)
}

// Told returns resources that kept states have in place of those of stores.
func (e *Earlier) Told() map[resource.Key]*resource.Resource {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := map[resource.Key]*resource.Resource{}
	for _, s := range e.slots {
		for _, r := range s.state.Otherwise {
			told[r.Key()] = r
		}
	}
	return told
}

// Named returns the kept state of a name, or false.
func (e *Earlier) Named(name string) (State, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.slots {
		if name != "" && s.state.Name == name {
			return s.state, true
		}
	}
	return State{}, false
}

// take returns a slot that has a state, with one more reader, or the cause of the end of ctx.
func (e *Earlier) take(ctx context.Context, state State) (*slot, error) {
	e.mu.Lock()
	var own *slot
	for own == nil {
		if i := slices.IndexFunc(e.slots, func(s *slot) bool { return s.state.equal(&state) }); i >= 0 {
			s := e.slots[i]
			s.readers++
			ready := s.ready
			e.mu.Unlock()
			select {
			case <-ready:
			case <-ctx.Done():
				e.release(s)
				return nil, context.Cause(ctx)
			}
			if !s.broken {
				return s, nil
			}
			e.mu.Lock() // it is not among the slots any more
			continue
		}
		if own = e.unusedLocked(); own == nil {
			idle := e.idle
			e.mu.Unlock()
			select {
			case <-idle:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			e.mu.Lock()
		}
	}
	own.readers++
	own.ready = make(chan struct{})
	from := own.state
	own.state = state
	e.moved++
	e.mu.Unlock()
	moved := false
	defer func() {
		if !moved { // a panic, after which the server may continue
			e.mu.Lock()
			own.broken = true
			e.removeLocked(own)
			e.mu.Unlock()
		}
		close(own.ready)
	}()
	own.move(from, e.fork)
	moved = true
	return own, nil
}

func (e *Earlier) removeLocked(s *slot) {
	e.slots = slices.DeleteFunc(e.slots, func(other *slot) bool { return other == s })
	e.wakeLocked()
}

// wakeLocked wakes everyone who waits for a slot.
func (e *Earlier) wakeLocked() {
	close(e.idle)
	e.idle = make(chan struct{})
}

// unusedLocked returns a slot without readers, the one that was not used for longest, or a
// new one; nil when all have readers.
func (e *Earlier) unusedLocked() *slot {
	var unused *slot
	for _, s := range e.slots {
		if s.readers == 0 && (unused == nil || s.used.Before(unused.used)) {
			unused = s
		}
	}
	if unused == nil && len(e.slots) < keptStates {
		unused = &slot{}
		e.slots = append(e.slots, unused)
	}
	return unused
}

// move brings the slot's matcher from a state to its own.
func (s *slot) move(from State, fork func() (*policy.Matcher, State)) {
	if s.matcher == nil {
		s.matcher, from = fork()
	}
	if keys, known := from.differing(&s.state); known {
		s.matcher.Replace(s.state.View, keys)
	} else {
		s.matcher.Reset(s.state.View)
	}
}

func (e *Earlier) release(s *slot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.readers--
	s.used = time.Now()
	if s.readers == 0 {
		e.wakeLocked()
		if s.dropping == nil {
			s.dropping = time.AfterFunc(keptFor, func() { e.drop(s) })
		} else {
			s.dropping.Reset(keptFor)
		}
	}
}

// drop forgets a slot that was not used for as long as one is kept.
func (e *Earlier) drop(s *slot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.readers == 0 && time.Since(s.used) >= keptFor {
		e.removeLocked(s)
	}
}
