package zonesync

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// turn calls one function on a goroutine that lasts as long as there is something to do:
// what waits is not a goroutine with a stack, and a call that blocks holds up no other
// turn. The function is not called concurrently. The zero value with group and run set is
// ready to use.
type turn struct {
	// group counts the goroutine. The caller of ask is counted in it, too, unless the turn
	// is over.
	group *sync.WaitGroup
	// run returns true when it is not to be called again.
	run func() (over bool)

	mu                   sync.Mutex
	running, again, over bool
}

// ask has run called, after this, once at least.
func (t *turn) ask() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
	case t.running:
		t.again = true
	default:
		t.running = true
		t.group.Add(1)
		go t.loop()
	}
}

// end has run not called again. A call that has begun continues.
func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

func (t *turn) loop() {
	defer t.group.Done()
	for t.proceed(t.run()) {
	}
}

// proceed reports whether run is to be called again.
func (t *turn) proceed(over bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = t.over || over
	t.running = t.again && !t.over
	t.again = false
	return t.running
}

// dispatcher wakes the streams of a server: all of them when the feed changes, and each
// when something of its own is due, with one timer for all.
type dispatcher struct {
	mu     sync.Mutex
	conns  map[*conn]struct{}
	all    []*conn // conns as a list, nil when they have changed since it was made
	times  dueTimes
	sooner chan struct{} // capacity 1: the first time has changed
}

func newDispatcher() *dispatcher {
	return &dispatcher{conns: map[*conn]struct{}{}, sooner: make(chan struct{}, 1)}
}

// due is when a stream is to be woken. The dispatcher guards it.
type due struct {
	at    time.Time
	index int // in dueTimes, from 1; 0: not in it
}

// add takes a stream in.
func (d *dispatcher) add(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[c], d.all = struct{}{}, nil
}

// remove has a stream woken no more.
func (d *dispatcher) remove(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
	d.all = nil
	if c.due.index > 0 {
		heap.Remove(&d.times, c.due.index-1)
	}
}

// streams returns all streams. The result is shared and must not be modified.
func (d *dispatcher) streams() []*conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = make([]*conn, 0, len(d.conns))
		for c := range d.conns {
			d.all = append(d.all, c)
		}
	}
	return d.all
}

// schedule has a stream woken at a time, in place of that of before; zero means never.
func (d *dispatcher) schedule(c *conn, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, present := d.conns[c]; !present {
		return // it has ended
	}
	in := c.due.index > 0
	switch {
	case in && c.due.at.Equal(at):
		return
	case at.IsZero():
		if in {
			heap.Remove(&d.times, c.due.index-1)
		}
		return
	}
	if c.due.at = at; in {
		heap.Fix(&d.times, c.due.index-1)
	} else {
		heap.Push(&d.times, c)
	}
	if c.due.index == 1 {
		select {
		case d.sooner <- struct{}{}:
		default:
		}
	}
}

// wakeDue wakes the streams whose time has come, and returns how long it is to the next
// one's; ok is false when there is none.
func (d *dispatcher) wakeDue(now time.Time) (wait time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.times) > 0 {
		first := d.times[0]
		if wait := first.due.at.Sub(now); wait > 0 {
			return wait, true
		}
		heap.Pop(&d.times)
		first.wake()
	}
	return 0, false
}

// wakeAll wakes every stream after each change of a feed, until ctx is done.
func (d *dispatcher) wakeAll(ctx context.Context, f *feed) {
	for {
		changed := f.changed()
		for _, c := range d.streams() {
			c.wake()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// wakeOnTime wakes streams when they are due, until ctx is done.
func (d *dispatcher) wakeOnTime(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-d.sooner:
		case <-ctx.Done():
			return
		}
		if wait, ok := d.wakeDue(time.Now()); ok {
			timer.Reset(wait)
		}
	}
}

// dueTimes are streams with the first to wake at the front; container/heap orders them.
type dueTimes []*conn

func (t dueTimes) Len() int           { return len(t) }
func (t dueTimes) Less(i, j int) bool { return t[i].due.at.Before(t[j].due.at) }

func (t dueTimes) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].due.index, t[j].due.index = i+1, j+1
}

// Push implements heap.Interface.
func (t *dueTimes) Push(x any) {
	c := x.(*conn)
	*t = append(*t, c)
	c.due.index = len(*t)
}

// Pop implements heap.Interface.
func (t *dueTimes) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	c.due.index = 0
	return c
}
