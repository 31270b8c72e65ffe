package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// memberFaults change who the servers are.
var memberFaults = []fault{
	{"add a server", 4, addServer},
	{"remove a server", 3, removeServer},
	{"replace a server", 3, replaceServer},
	{"lose a disk", 2, diskLost},
	{"transfer the leadership", 2, transfer},
	{"crash a server", 2, crashOne},
	{"isolate a server", 2, isolate},
}

// addServer lets another server join.
func addServer(w *world, _ *rand.Rand) (func(), bool) {
	if len(w.members()) >= 5 {
		return nil, false
	}
	w.mu.Lock()
	w.machines++
	name := fmt.Sprintf("g%d", w.machines)
	w.mu.Unlock()
	w.rec.Note("%s joins", name)
	w.add(name)
	return nil, true
}

// removeServer takes a server out for good.
func removeServer(w *world, rng *rand.Rand) (func(), bool) {
	if len(w.members()) <= 3 || !w.disksAreGood() {
		return nil, false
	}
	s := w.any(rng)
	through := w.any(rng).process()
	if through == nil {
		return nil, false
	}
	w.rec.Note("%s is to be removed through %s", s, through.s)
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(through.ctx, w.plan.times(10*time.Second))
		defer cancel()
		err := through.node.Remove(ctx, s.name, true)
		w.rec.Note("%s is removed: %v", s, err)
		if err == nil {
			w.drop(s)
		}
	})
	return nil, true
}

// drop switches a machine off for good.
func (w *world) drop(s *server) {
	w.mu.Lock()
	w.servers = slices.DeleteFunc(w.servers, func(o *server) bool { return o == s })
	w.mu.Unlock()
	s.mu.Lock()
	s.dropped = true
	s.mu.Unlock()
	s.crash(false)
}

// replaceServer removes a server, which finds out, and comes back empty.
func replaceServer(w *world, rng *rand.Rand) (func(), bool) {
	if !w.disksAreGood() {
		return nil, false
	}
	s := w.any(rng)
	through := w.any(rng).process()
	if through == nil {
		return nil, false
	}
	w.rec.Note("%s is to be replaced through %s", s, through.s)
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(through.ctx, w.plan.times(10*time.Second))
		defer cancel()
		w.rec.Note("%s is removed, to come back empty: %v", s, through.node.Remove(ctx, s.name, true))
	})
	return nil, true
}
