package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"meridian/internal/store"
	"meridian/test/simnet"
)

// diskFaults are faults of the disks of servers.
var diskFaults = []fault{
	{"disk hangs", 4, diskHangs},
	{"disk is full", 4, diskFull},
	{"disk fails", 3, diskFails},
	{"disk is slow", 3, diskSlow},
	{"all disks are slow", 3, allDisksSlow},
	{"a slow snapshot", 3, slowSnapshot},
	{"large batches", 1, largeBatches},
	{"bit flips", 3, bitFlips},
	{"disk is lost", 2, diskLost},
	{"take a snapshot", 4, takeSnapshot},
	{"crash a server", 2, crashOne},
}

func diskHangs(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	w.rec.Note("the disk of %s hangs", s)
	disk := s.currentDisk()
	disk.Hang([]simnet.Op{simnet.Writes, simnet.SyncLog, simnet.WriteLog}[rng.IntN(3)])
	return func() {
		w.rec.Note("the disk of %s resumes", s)
		disk.Resume()
	}, true
}

func diskFull(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	left := uint64(rng.IntN(20_000))
	w.rec.Note("the disk of %s has %d bytes left", s, left)
	disk := s.currentDisk()
	disk.SetFree(left)
	return func() {
		w.rec.Note("the disk of %s has space", s)
		disk.Full(false)
	}, true
}

func diskFails(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	ops := []simnet.Op{simnet.WriteLog, simnet.SyncLog, simnet.WriteValue, simnet.WriteSnapshot, simnet.Writes}[rng.IntN(5)]
	times := 1 + rng.IntN(3)
	w.rec.Note("the disk of %s fails %d times", s, times)
	disk := s.currentDisk()
	disk.Fail(simnet.EIO("write"), times, ops)
	return func() { disk.Fail(nil, 0, 0) }, true
}

func diskSlow(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	by := time.Duration(1+rng.IntN(200)) * time.Millisecond
	w.rec.Note("every sync of %s takes %s", s, by)
	disk := s.currentDisk()
	disk.Slow(by, simnet.SyncLog)
	return func() {
		w.rec.Note("the disk of %s is fast again", s)
		disk.Slow(0, 0)
	}, true
}

// allDisksSlow slows every disk down at once, so that no server is quicker than
// another and a change of the leader does not help.
func allDisksSlow(w *world, rng *rand.Rand) (func(), bool) {
	by := time.Duration(50+rng.IntN(1951)) * time.Millisecond
	w.rec.Note("every sync of every server takes %s", by)
	members := w.members()
	w.elections = max(w.elections, electionLimit(by))
	for _, s := range members {
		s.currentDisk().Slow(by, simnet.SyncLog)
	}
	return func() {
		w.rec.Note("all disks are fast again")
		for _, s := range members {
			s.currentDisk().Slow(0, 0)
		}
	}, true
}

// slowSnapshot lets a server write a snapshot slowly, and cuts it off meanwhile for so
// long that it needs one of the leader's when it is back: that one is newer.
func slowSnapshot(w *world, rng *rand.Rand) (func(), bool) {
	_, others := w.leading(rng)
	if len(others) == 0 {
		return nil, false
	}
	s := others[rng.IntN(len(others))]
	p := s.process()
	if p == nil {
		return nil, false
	}
	by := time.Duration(500+rng.IntN(5000)) * time.Millisecond
	w.rec.Note("%s writes a snapshot slowly: %s for each part", s, by)
	disk := s.currentDisk()
	disk.Slow(by, simnet.WriteSnapshot)
	w.running.Go(func() { w.rec.Note("%s has taken a slow snapshot: %v", s, p.node.Snapshot()) })
	w.net.Isolate(s.name, w.names()...)
	w.running.Go(func() {
		for i := range 60 { // more than the log keeps
			if _, err := w.probe(w.ctx, w.plan.times(time.Second), store.Put(content(dataKey(dataKeys), fmt.Sprintf("beside-%d", i)))); err != nil {
				break
			}
		}
		if p := w.leader(rng).process(); p != nil {
			_ = p.node.Snapshot()
		}
		for _, o := range w.others(s) {
			w.net.Heal(s.name, o.name)
		}
	})
	return func() { disk.Slow(0, 0) }, true
}

// largeBatch is about the largest that a server takes.
const largeBatch = 15 << 20

// largeBatches writes some as large as they may be, of which the last leaves little.
func largeBatches(w *world, rng *rand.Rand) (func(), bool) {
	n := 1 + rng.IntN(4)
	w.rec.Note("%d batches of %d bytes", n, largeBatch)
	w.running.Go(func() {
		for i := range n {
			value := strings.Repeat(string(rune('a'+i)), largeBatch)
			_, err := w.probe(w.ctx, w.plan.times(10*time.Second), store.Put(content(dataKey(dataKeys+1), value)))
			w.rec.Note("large batch %d: %v", i, err)
		}
		_, _ = w.probe(w.ctx, w.plan.times(10*time.Second), store.Put(content(dataKey(dataKeys+1), "small")))
	})
	return nil, true
}

// bitFlips damages the disk of one server. It has to detect the damage when it reads
// it, and restarts empty; until then it may continue, such as from an older
// snapshot, and is replaced at the latest when the faults end. Not while another
// disk is damaged: two of three would lose acknowledged writes.
func bitFlips(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	if !w.disksAreGood() {
		return nil, false
	}
	disk := s.currentDisk()
	first, last := disk.Entries()
	what, ok := "", false
	switch rng.IntN(4) {
	case 0, 1:
		index := first + rng.Uint64N(last-first+1)
		what, ok = fmt.Sprintf("entry %d", index), disk.FlipEntry(index, rng.IntN(1<<20))
	case 2:
		what, ok = "the newest snapshot", disk.FlipSnapshot(0, rng.IntN(1<<20))
	case 3:
		what, ok = "the term", disk.FlipValue("CurrentTerm", rng.IntN(1<<20))
	}
	if !ok {
		return nil, false
	}
	w.rec.Note("a bit flips on %s in %s", s, what)
	s.mu.Lock()
	s.damaged = true
	s.mu.Unlock()
	if rng.IntN(2) == 0 {
		return nil, true
	}
	return w.crash(s, false), true
}

// disksAreGood says whether every server has a vote and a disk of which nothing
// was lost, and there are enough of them that one may be lost: a server that was just
// recovered is the only one.
func (w *world) disksAreGood() bool {
	voters, members := w.voters(), w.members()
	if len(members) < 3 {
		return false
	}
	for _, s := range members {
		s.mu.Lock()
		damaged := s.damaged
		s.mu.Unlock()
		if damaged || !s.up() || !slices.Contains(voters, s.name) {
			return false
		}
	}
	return true
}

func diskLost(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	if !w.disksAreGood() {
		return nil, false
	}
	w.rec.Note("%s loses its disk", s)
	s.crash(false)
	s.mu.Lock()
	s.exchangeLocked()
	s.mu.Unlock()
	return func() {
		w.rec.Note("%s starts", s)
		s.start()
	}, true
}
