package consensus

import (
	"slices"
	"sync"
	"time"
)

// portions serves what waits at the same time together, in portions. Nothing waits in
// order to be served together: as long as few are being served, the next is served at
// once. Where many are, what comes meanwhile waits for them and is one portion.
type portions[T comparable] struct {
	// atOnce returns how many of those that wait are served at once before others wait for
	// them.
	atOnce func() int
	// size is how many bytes one takes of a portion, which has maxSharedBytes and maxShared
	// at most, or one that is larger.
	size func(T) int
	// serve serves a portion.
	serve func(portion []T)
	// run runs a function on a goroutine of its own.
	run func(func())

	mu       sync.Mutex
	waiting  []T // guarded by mu, as all below
	underway int // portions that are being served
	served   int // what they have
}

// add has one served, and returns before that.
func (p *portions[T]) add(one T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, one)
	if portion := p.nextLocked(); len(portion) > 0 {
		p.run(func() { p.serveAll(portion) })
	}
}

// remove takes one back that waits, and reports whether it does.
func (p *portions[T]) remove(one T) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, one)
	if i < 0 {
		return false
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return true
}

// empty reports whether nothing waits or is being served.
func (p *portions[T]) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) == 0 && p.underway == 0
}

// fittingLocked is how many of those that wait longest are one portion: one at least.
func (p *portions[T]) fittingLocked() int {
	bytes := 0
	for i, one := range p.waiting {
		if bytes += p.size(one); i == maxShared || i > 0 && bytes > maxSharedBytes {
			return i
		}
	}
	return len(p.waiting)
}

// nextLocked returns the next portion, if it is to be served now.
func (p *portions[T]) nextLocked() (portion []T) {
	if len(p.waiting) == 0 || p.underway > 0 && p.served >= p.atOnce() {
		return nil
	}
	n := p.fittingLocked()
	portion, p.waiting = p.waiting[:n:n], p.waiting[n:]
	p.underway++
	p.served += len(portion)
	return portion
}

// serveAll serves a portion, and then what is to be served after it.
func (p *portions[T]) serveAll(portion []T) {
	for len(portion) > 0 {
		p.serve(portion)
		p.mu.Lock()
		p.underway--
		p.served -= len(portion)
		portion = p.nextLocked()
		p.mu.Unlock()
	}
}

const (
	// soon is how long a portion takes at most that it is no loss to wait for: what waits
	// then shares the work of an entry sooner.
	soon = 2 * time.Millisecond
	// atOnceWhenSoon is how many are served at once there.
	atOnceWhenSoon = 2
	// paceWindow is how many portions the quickest is looked for in.
	paceWindow = 64
)

// pace measures how long portions take: the quickest of the last ones, since others wait
// for the processor. The zero value has measured nothing.
type pace struct {
	mu sync.Mutex
	// count, quickest and before are guarded by mu: the portions of this window, the
	// quickest of them, and that of the window before. Zero: there was none.
	count            int
	quickest, before time.Duration
}

// took notes how long a portion took that was written.
func (p *pace) took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == paceWindow {
		p.count, p.before, p.quickest = 0, p.quickest, 0
	}
	if p.count++; p.count == 1 || d < p.quickest {
		p.quickest = d
	}
}

// atOnce is how many are to be served at once, at most so many.
func (p *pace) atOnce(most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	quickest := p.before
	if p.count > 0 && (quickest == 0 || p.quickest < quickest) {
		quickest = p.quickest
	}
	if p.count == 0 && p.before == 0 || quickest > soon {
		return most
	}
	return min(most, atOnceWhenSoon)
}
