package limits

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

// Turns lets a bounded amount of work run at a time, in turn between the owners that
// wait: an owner with much work delays another by one piece of it at most. It is
// safe for concurrent use.
type Turns struct {
	limit string
	cfg   TurnsConfig

	mu               sync.Mutex // guards all below
	running, waiting int
	owners           map[string]*turnOwner
	// line are the owners with work that waits, the next one first.
	line list.List
}

// TurnsConfig bounds work. Every number must be positive.
type TurnsConfig struct {
	// Running is how much work runs at a time, RunningEach how much of one owner.
	Running, RunningEach int
	// Waiting is how much work waits, WaitingEach how much of one owner.
	Waiting, WaitingEach int
}

type turnOwner struct {
	running int
	waiting list.List     // of *turn
	place   *list.Element // in Turns.line; nil while nothing waits
}

// turn is work that waits.
type turn struct {
	granted chan struct{}
	place   *list.Element // in its owner's list; nil once granted
}

// NewTurns returns turns of which none is taken. limit is their name as in metrics.
func NewTurns(limit string, cfg TurnsConfig) *Turns {
	return &Turns{limit: limit, cfg: cfg, owners: map[string]*turnOwner{}}
}

// Wait waits until work of an owner may run; done says that it has ended, once. The
// error is *Exceeded where too much waits already, or the cause of ctx.
func (t *Turns) Wait(ctx context.Context, owner string) (done func(), err error) {
	t.mu.Lock()
	o := t.owners[owner]
	if o == nil {
		o = &turnOwner{}
		t.owners[owner] = o
	}
	if t.waiting >= t.cfg.Waiting || o.waiting.Len() >= t.cfg.WaitingEach {
		t.forgetLocked(owner, o)
		t.mu.Unlock()
		return nil, &Exceeded{Limit: t.limit, What: fmt.Sprintf("requests that wait for their turn (%d of one client, %d in all)", t.cfg.WaitingEach, t.cfg.Waiting)}
	}
	mine := &turn{granted: make(chan struct{})}
	mine.place = o.waiting.PushBack(mine)
	t.waiting++
	if o.place == nil {
		o.place = t.line.PushBack(owner)
	}
	t.grantLocked()
	t.mu.Unlock()
	ended := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running--
		o.running--
		t.forgetLocked(owner, o)
		t.grantLocked()
	}
	select {
	case <-mine.granted:
		return ended, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	if mine.place != nil {
		t.leaveLocked(o, mine)
		t.forgetLocked(owner, o)
		t.mu.Unlock()
		return nil, context.Cause(ctx)
	}
	t.mu.Unlock()
	ended() // it was granted at the same moment
	return nil, context.Cause(ctx)
}

// grantLocked lets work run as far as the limits allow, of one owner after the other.
func (t *Turns) grantLocked() {
	for place := t.line.Front(); place != nil && t.running < t.cfg.Running; {
		next := place.Next()
		if o := t.owners[place.Value.(string)]; o.running < t.cfg.RunningEach {
			mine := o.waiting.Front().Value.(*turn)
			t.running++
			o.running++
			t.line.MoveToBack(place)
			t.leaveLocked(o, mine)
			close(mine.granted)
			next = t.line.Front() // an owner that was passed over may have a free place in the next round
		}
		place = next
	}
}

// leaveLocked takes work off those that wait.
func (t *Turns) leaveLocked(o *turnOwner, mine *turn) {
	o.waiting.Remove(mine.place)
	mine.place = nil
	t.waiting--
	if o.waiting.Len() == 0 {
		t.line.Remove(o.place)
		o.place = nil
	}
}

func (t *Turns) forgetLocked(owner string, o *turnOwner) {
	if o.running == 0 && o.waiting.Len() == 0 {
		delete(t.owners, owner)
	}
}
