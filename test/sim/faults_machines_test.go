package sim

import (
	"math/rand/v2"
	"sync"
	"time"

	"meridian/test/simnet"
)

// machineFaults stop servers.
var machineFaults = []fault{
	{"crash a server", 5, crashOne},
	{"crash the leader", 5, crashLeader},
	{"crash all", 2, crashAll},
	{"restart a server", 3, restart},
	{"pause a server", 4, pauseOne},
	{"pause all servers", 2, pauseAll},
	{"turn a clock", 2, turnClock},
	{"take a snapshot", 4, takeSnapshot},
}

func crashOne(w *world, rng *rand.Rand) (func(), bool) {
	return w.crash(w.any(rng), rng.IntN(2) == 0), true
}

func crashLeader(w *world, rng *rand.Rand) (func(), bool) {
	return w.crash(w.leader(rng), rng.IntN(2) == 0), true
}

// crash ends a server, at most tearing the write in progress. A torn write is not
// distinguished from corruption, and costs the disk: not while another one is
// damaged.
func (w *world) crash(s *server, torn bool) func() {
	torn = torn && w.disksAreGood()
	w.rec.Note("%s crashes (torn: %t)", s, torn)
	s.crash(torn)
	return func() {
		w.rec.Note("%s starts", s)
		s.start()
	}
}

func crashAll(w *world, rng *rand.Rand) (func(), bool) {
	w.rec.Note("all servers crash")
	for _, s := range w.members() {
		w.crash(s, rng.IntN(2) == 0)
	}
	return func() {
		w.rec.Note("all servers start")
		for _, s := range w.members() {
			s.start()
		}
	}, true
}

func restart(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	w.rec.Note("%s stops in good order", s)
	stopped := make(chan struct{})
	w.running.Go(func() {
		defer close(stopped)
		s.stop()
	})
	return func() {
		<-stopped
		w.rec.Note("%s starts", s)
		s.start()
	}, true
}

// pauseOne is as near to SIGSTOP as a goroutine's world comes: nothing that the
// server sends or writes gets anywhere until it resumes, and then all of it does.
func pauseOne(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	if rng.IntN(2) == 0 {
		s = w.leader(rng)
	}
	return w.pauseServer(s), true
}

func (w *world) pauseServer(s *server) (end func()) {
	w.rec.Note("%s pauses", s)
	w.net.Isolate(s.name, w.names()...)
	for _, z := range w.followers() {
		w.zoneNet.CutBoth(s.name, z.name)
	}
	disk := s.currentDisk()
	disk.Hang(simnet.Writes)
	return func() {
		w.rec.Note("%s resumes", s)
		disk.Resume()
		for _, o := range w.others(s) {
			w.net.Heal(s.name, o.name)
		}
		for _, z := range w.followers() {
			w.zoneNet.Heal(s.name, z.name)
		}
	}
}

// pauseAll pauses every server. Their clocks run, so it ends before a disk counts as
// one that hangs; the torture stops real processes for longer.
func pauseAll(w *world, rng *rand.Rand) (func(), bool) {
	var ends []func()
	for _, s := range w.members() {
		ends = append(ends, w.pauseServer(s))
	}
	last := w.plan.times(time.Duration(200+rng.IntN(4300)) * time.Millisecond)
	var once sync.Once
	end := func() {
		once.Do(func() {
			for _, end := range ends {
				end()
			}
		})
	}
	w.running.Go(func() {
		w.pause(last)
		end()
	})
	return end, true
}

func (s *server) currentDisk() *simnet.Disk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk
}

func turnClock(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	by := time.Hour
	if rng.IntN(2) == 0 {
		by = -by
	}
	w.rec.Note("the clock of %s is turned by %s", s, by)
	s.setSkew(by)
	return func() {
		w.rec.Note("the clock of %s is right again", s)
		s.setSkew(0)
	}, true
}

func (s *server) setSkew(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = by
}

func takeSnapshot(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	p := s.process()
	if p == nil {
		return nil, false
	}
	w.running.Go(func() {
		err := p.node.Snapshot()
		w.rec.Note("%s takes a snapshot: %v", s, err)
	})
	return nil, true
}
