package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"meridian/internal/consensus"
)

// memberFaults change who the servers are.
var memberFaults = []fault{
	{"add a server", 4, addServer},
	{"remove a server", 3, removeServer},
	{"replace a server", 3, replaceServer},
	{"lose a disk", 2, diskLost},
	{"recover from one server", 1, recoverOne},
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
	forgotten := rng.IntN(2) == 0
	w.rec.Note("%s is to be removed through %s", s, through.s)
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(through.ctx, w.plan.times(10*time.Second))
		defer cancel()
		err := through.node.Remove(ctx, s.name, true)
		w.rec.Note("%s is removed: %v", s, err)
		switch {
		case err != nil:
		case forgotten:
			w.leaveRunning(s)
		default:
			w.drop(s)
		}
	})
	return nil, true
}

// maxFormer is how many servers run at most that are no members.
const maxFormer = 3

// leaveRunning lets a server run on, and start again whenever it ends, that is no member any
// more: no operator has stopped it.
func (w *world) leaveRunning(s *server) {
	w.rec.Note("%s is no member, and still started again and again", s)
	w.mu.Lock()
	w.servers = slices.DeleteFunc(w.servers, func(o *server) bool { return o == s })
	w.former = append(w.former, s)
	var last *server
	if len(w.former) > maxFormer {
		last, w.former = w.former[0], w.former[1:]
	}
	w.mu.Unlock()
	s.mu.Lock()
	s.former = true
	s.mu.Unlock()
	w.zoneNet.Stop(s.name)
	s.start()
	if last != nil {
		w.drop(last)
	}
}

// recoverOne loses all servers but one, recovers that one, and lets new ones join.
// The others were not lost after all: they come back with their disks. The one that
// is recovered holds what any other does, so that no acknowledged write is lost.
func recoverOne(w *world, _ *rand.Rand) (func(), bool) {
	if !w.disksAreGood() || len(w.members()) > 3 {
		return nil, false
	}
	members := w.members()
	w.rec.Note("%v are lost, but for one", members)
	for _, s := range members {
		s.crash(false)
	}
	var best *server
	var term, last uint64
	for _, s := range members {
		s.repair()
		r, err := consensus.OpenRecovery(s.currentDisk().Mount(), nil)
		if err != nil {
			w.violate("recovery", "the disk of %s cannot be read: %v", s, err)
			return func() { w.startAll(members) }, true
		}
		if r.LastTerm > term || r.LastTerm == term && r.LastEntry > last {
			best, term, last = s, r.LastTerm, r.LastEntry
		}
		_ = r.Close()
	}
	r, err := consensus.OpenRecovery(best.currentDisk().Mount(), nil)
	if err == nil {
		err = errors.Join(r.Recover(time.Now()), r.Close())
	}
	if err != nil {
		w.violate("recovery", "%s cannot be recovered: %v", best, err)
		return func() { w.startAll(members) }, true
	}
	w.rec.Note("%s is recovered", best)
	for _, s := range members {
		if s != best {
			w.leaveRunning(s)
		}
	}
	best.start()
	return func() {
		for range 2 {
			addServer(w, nil)
		}
	}, true
}

func (w *world) startAll(servers []*server) {
	for _, s := range servers {
		s.start()
	}
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
