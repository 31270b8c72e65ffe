package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/consensus/consensustest"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/history"
)

// fault is one thing that can go wrong. begin returns what ends it, nil when it
// ends by itself; ok is false when it cannot happen now.
type fault struct {
	name   string
	weight int
	begin  func(w *world, rng *rand.Rand) (end func(), ok bool)
}

// networkFaults disturb the links between servers.
var networkFaults = []fault{
	{"isolate a server", 6, isolate},
	{"isolate the leader", 4, isolateLeader},
	{"cut in two", 3, split},
	{"cut one way", 4, cutOneWay},
	{"leave only a bridge", 3, bridge},
	{"flapping link", 3, flap},
	{"slow links", 3, slowLinks},
	{"transfer the leadership", 4, transfer},
}

// machineFaults stop servers.
var machineFaults = []fault{
	{"crash a server", 5, crashOne},
	{"crash the leader", 5, crashLeader},
	{"crash all", 2, crashAll},
	{"restart a server", 3, restart},
	{"pause a server", 4, pauseOne},
	{"turn a clock", 2, turnClock},
	{"take a snapshot", 4, takeSnapshot},
}

// diskFaults befall the disks of servers.
var diskFaults = []fault{
	{"disk hangs", 4, diskHangs},
	{"disk is full", 4, diskFull},
	{"disk fails", 3, diskFails},
	{"disk is slow", 3, diskSlow},
	{"bit flips", 3, bitFlips},
	{"disk is lost", 2, diskLost},
	{"take a snapshot", 4, takeSnapshot},
	{"crash a server", 2, crashOne},
}

// zoneFaults befall zones and their links.
var zoneFaults = []fault{
	{"crash a zone", 3, zoneCrash},
	{"crash a zone between persisting and acknowledging", 4, zoneCrashUnacknowledged},
	{"cut a zone off", 4, zoneCut},
	{"a zone that is not read from", 3, zoneStalls},
	{"a slow zone", 2, zoneSlow},
	{"a zone's disk is full", 2, zoneDiskFull},
	{"a zone's disk hangs", 2, zoneDiskHangs},
	{"a bit of a zone's disk flips", 3, zoneBitFlips},
	{"a zone gets a new disk", 1, zoneNewDisk},
}

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

// historyFaults replace the global's state.
var historyFaults = []fault{
	{"restore a backup", 3, restoreBackup},
}

// event is the beginning or the end of a fault.
type event struct {
	at time.Duration
	do func()
}

// disturb runs episodes of one to three overlapping faults until the time is
// over, heals after each and holds what must then happen in time. It returns the
// number of faults.
func (w *world) disturb(total time.Duration, faults []fault) int {
	rng := w.random("faults")
	count := 0
	for w.rec.Now() < total {
		w.pause(time.Duration(1+rng.IntN(6)) * time.Second)
		var events []event
		for range 1 + rng.IntN(3) {
			f := choose(rng, faults)
			from := time.Duration(rng.IntN(4000)) * time.Millisecond
			until := from + time.Duration(200+rng.IntN(12000))*time.Millisecond
			var end func()
			events = append(events, event{from, func() {
				var ok bool
				if end, ok = f.begin(w, rng); ok {
					count++
				}
			}}, event{until, func() {
				if end != nil {
					end()
				}
			}})
		}
		w.play(events)
		if w.heal() {
			w.rec.Note("all is healed")
			w.liveness()
		} else {
			w.violate("L1", "no majority of the servers runs a minute after the healing")
		}
	}
	return count
}

// play runs events in the order of their times.
func (w *world) play(events []event) {
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	began := time.Now()
	for _, e := range events {
		if wait := e.at - time.Since(began); wait > 0 {
			w.pause(wait)
		}
		e.do()
	}
}

func choose(rng *rand.Rand, faults []fault) fault {
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	roll := rng.IntN(sum)
	for _, f := range faults {
		if roll -= f.weight; roll < 0 {
			return f
		}
	}
	return faults[0]
}

// any returns a member.
func (w *world) any(rng *rand.Rand) *server {
	members := w.members()
	return members[rng.IntN(len(members))]
}

// leader returns the member that leads, any one if none does.
func (w *world) leader(rng *rand.Rand) *server {
	for _, s := range w.members() {
		if p := s.process(); p != nil && p.node.IsLeader() {
			return s
		}
	}
	return w.any(rng)
}

// others are the members but one.
func (w *world) others(s *server) []*server {
	return slices.DeleteFunc(w.members(), func(o *server) bool { return o == s })
}

func isolate(w *world, rng *rand.Rand) (func(), bool) { return w.isolate(w.any(rng)), true }

func isolateLeader(w *world, rng *rand.Rand) (func(), bool) { return w.isolate(w.leader(rng)), true }

func (w *world) isolate(s *server) func() {
	w.rec.Note("%s is isolated", s)
	w.net.Isolate(s.name, w.names()...)
	return func() {
		w.rec.Note("%s is back", s)
		for _, o := range w.others(s) {
			w.net.Heal(s.name, o.name)
		}
	}
}

func split(w *world, rng *rand.Rand) (func(), bool) {
	members := w.members()
	rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	n := 1 + rng.IntN(len(members)-1)
	w.rec.Note("%v are cut from %v", members[:n], members[n:])
	for _, a := range members[:n] {
		for _, b := range members[n:] {
			w.net.CutBoth(a.name, b.name)
		}
	}
	return func() {
		w.rec.Note("the two parts are together again")
		for _, a := range members[:n] {
			for _, b := range members[n:] {
				w.net.Heal(a.name, b.name)
			}
		}
	}, true
}

func cutOneWay(w *world, rng *rand.Rand) (func(), bool) {
	from := w.any(rng)
	others := w.others(from)
	to := others[rng.IntN(len(others))]
	w.rec.Note("what %s says does not reach %s", from, to)
	w.net.Cut(from.name, to.name)
	return func() {
		w.rec.Note("%s is heard by %s again", from, to)
		w.net.Heal(from.name, to.name)
	}, true
}

// bridge cuts the servers in two, except for one that reaches both parts.
func bridge(w *world, rng *rand.Rand) (func(), bool) {
	members := w.members()
	if len(members) < 3 {
		return nil, false
	}
	rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	middle := len(members) / 2
	w.rec.Note("%v reach %v over %s only", members[:middle], members[middle+1:], members[middle])
	each := func(do func(a, b string)) {
		for _, a := range members[:middle] {
			for _, b := range members[middle+1:] {
				do(a.name, b.name)
			}
		}
	}
	each(w.net.CutBoth)
	return func() {
		w.rec.Note("the bridge is not needed any more")
		each(w.net.Heal)
	}, true
}

func flap(w *world, rng *rand.Rand) (func(), bool) {
	a := w.any(rng)
	others := w.others(a)
	b := others[rng.IntN(len(others))]
	up, down := time.Duration(50+rng.IntN(900))*time.Millisecond, time.Duration(50+rng.IntN(900))*time.Millisecond
	w.rec.Note("the link between %s and %s is up for %s, down for %s", a, b, up, down)
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan struct{})
	w.running.Go(func() {
		defer close(done)
		for cut := false; ctx.Err() == nil; {
			wait := up
			if cut = !cut; cut {
				w.net.CutBoth(a.name, b.name)
				wait = down
			} else {
				w.net.Heal(a.name, b.name)
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		w.net.Heal(a.name, b.name)
	})
	return func() {
		stop()
		<-done
		w.rec.Note("the link between %s and %s is steady", a, b)
	}, true
}

func slowLinks(w *world, rng *rand.Rand) (func(), bool) {
	by := time.Duration(5+rng.IntN(295)) * time.Millisecond
	w.rec.Note("every link is %s slower", by)
	set := func(by time.Duration) {
		for _, a := range w.members() {
			for _, b := range w.others(a) {
				w.net.Delay(a.name, b.name, by)
			}
		}
	}
	set(by)
	return func() {
		w.rec.Note("the links are fast again")
		set(0)
	}, true
}

func transfer(w *world, rng *rand.Rand) (func(), bool) {
	s := w.leader(rng)
	p := s.process()
	if p == nil {
		return nil, false
	}
	to := ""
	if rng.IntN(2) == 0 {
		to = w.any(rng).name
	}
	w.running.Go(func() {
		got, err := p.node.TransferLeadership(p.ctx, to)
		w.rec.Note("%s hands over to %q: %q, %v", s, to, got, err)
	})
	return nil, true
}

func crashOne(w *world, rng *rand.Rand) (func(), bool) {
	return w.crash(w.any(rng), rng.IntN(2) == 0), true
}

func crashLeader(w *world, rng *rand.Rand) (func(), bool) {
	return w.crash(w.leader(rng), rng.IntN(2) == 0), true
}

func (w *world) crash(s *server, torn bool) func() {
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
		s.crash(rng.IntN(2) == 0)
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
// server sends or writes gets anywhere until it goes on, and then all of it does.
func pauseOne(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	if rng.IntN(2) == 0 {
		s = w.leader(rng)
	}
	w.rec.Note("%s pauses", s)
	w.net.Isolate(s.name, w.names()...)
	for _, z := range w.followers() {
		w.zoneNet.CutBoth(s.name, z.name)
	}
	disk := s.currentDisk()
	disk.Hang(consensustest.Writes)
	return func() {
		w.rec.Note("%s goes on", s)
		disk.Resume()
		for _, o := range w.others(s) {
			w.net.Heal(s.name, o.name)
		}
		for _, z := range w.followers() {
			w.zoneNet.Heal(s.name, z.name)
		}
	}, true
}

func (s *server) currentDisk() *consensustest.Disk {
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

func diskHangs(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	w.rec.Note("the disk of %s hangs", s)
	disk := s.currentDisk()
	disk.Hang([]consensustest.Op{consensustest.Writes, consensustest.SyncLog, consensustest.WriteLog}[rng.IntN(3)])
	return func() {
		w.rec.Note("the disk of %s goes on", s)
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
		w.rec.Note("the disk of %s has room", s)
		disk.Full(false)
	}, true
}

func diskFails(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	ops := []consensustest.Op{consensustest.WriteLog, consensustest.SyncLog, consensustest.WriteValue, consensustest.WriteSnapshot, consensustest.Writes}[rng.IntN(5)]
	times := 1 + rng.IntN(3)
	w.rec.Note("the disk of %s fails %d times", s, times)
	disk := s.currentDisk()
	disk.Fail(consensustest.EIO("write"), times, ops)
	return func() { disk.Fail(nil, 0, 0) }, true
}

func diskSlow(w *world, rng *rand.Rand) (func(), bool) {
	s := w.any(rng)
	by := time.Duration(1+rng.IntN(200)) * time.Millisecond
	w.rec.Note("every sync of %s takes %s", s, by)
	disk := s.currentDisk()
	disk.Slow(by, consensustest.SyncLog)
	return func() {
		w.rec.Note("the disk of %s is fast again", s)
		disk.Slow(0, 0)
	}, true
}

// bitFlips damages the disk of one server: it has to notice, when it reads what
// was damaged or at its next start, which comes at the latest with the healing,
// and comes back empty. Not while another disk is not whole: two of three are
// more than is survived.
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
// was lost.
func (w *world) disksAreGood() bool {
	voters := w.voters()
	for _, s := range w.members() {
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
		ctx, cancel := context.WithTimeout(through.ctx, 10*time.Second)
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
		ctx, cancel := context.WithTimeout(through.ctx, 10*time.Second)
		defer cancel()
		w.rec.Note("%s is removed, to come back empty: %v", s, through.node.Remove(ctx, s.name, true))
	})
	return nil, true
}

// anyZone returns a zone, nil if there is none.
func (w *world) anyZone(rng *rand.Rand) *zone {
	zones := w.followers()
	if len(zones) == 0 {
		return nil
	}
	return zones[rng.IntN(len(zones))]
}

// onZone makes a fault of a zone.
func onZone(w *world, rng *rand.Rand, what string, begin func(*zone), end func(*zone)) (func(), bool) {
	z := w.anyZone(rng)
	if z == nil {
		return nil, false
	}
	w.rec.Note("zone %s: %s", z.name, what)
	begin(z)
	return func() {
		w.rec.Note("zone %s: no more: %s", z.name, what)
		end(z)
	}, true
}

func zoneCrash(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "crashed", (*zone).crash, (*zone).start)
}

func zoneCrashUnacknowledged(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "crashes after its next write", func(z *zone) {
		z.disk.crashAfterWrite(func() { w.running.Go(z.crash) })
	}, func(z *zone) {
		z.disk.crashAfterWrite(nil)
		z.start()
	})
}

func zoneCut(w *world, rng *rand.Rand) (func(), bool) {
	each := func(z *zone, do func(a, b string)) {
		for _, s := range w.members() {
			do(s.name, z.name)
		}
	}
	return onZone(w, rng, "cut off",
		func(z *zone) { each(z, w.zoneNet.CutBoth) },
		func(z *zone) { each(z, w.zoneNet.Heal) })
}

// zoneStalls lets nothing through to a zone, which goes on talking.
func zoneStalls(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "hears nothing", func(z *zone) {
		for _, s := range w.members() {
			w.zoneNet.Cut(s.name, z.name)
		}
	}, func(z *zone) {
		for _, s := range w.members() {
			w.zoneNet.Heal(s.name, z.name)
		}
	})
}

func zoneSlow(w *world, rng *rand.Rand) (func(), bool) {
	by := time.Duration(10+rng.IntN(2000)) * time.Millisecond
	set := func(by time.Duration) func(*zone) {
		return func(z *zone) {
			for _, s := range w.members() {
				w.zoneNet.Delay(s.name, z.name, by)
				w.zoneNet.Delay(z.name, s.name, by)
			}
		}
	}
	return onZone(w, rng, "slower by "+by.String(), set(by), set(0))
}

func zoneDiskFull(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "disk full", func(z *zone) { z.disk.setFull(true) }, func(z *zone) { z.disk.setFull(false) })
}

func zoneDiskHangs(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "disk hangs", func(z *zone) { z.disk.hang() }, func(z *zone) { z.disk.resume() })
}

func zoneBitFlips(w *world, rng *rand.Rand) (func(), bool) {
	n, bit := rng.IntN(1000), rng.IntN(1<<16)
	return onZone(w, rng, "a bit flips", func(z *zone) {
		z.crash()
		z.disk.flip(n, bit)
	}, (*zone).start)
}

func zoneNewDisk(w *world, rng *rand.Rand) (func(), bool) {
	return onZone(w, rng, "a new disk", func(z *zone) {
		z.crash()
		z.mu.Lock()
		z.disk = newMedium()
		z.disks++
		z.mu.Unlock()
	}, (*zone).start)
}

// restoreBackup saves a backup, lets some time pass and restores it, while
// everything goes on.
func restoreBackup(w *world, rng *rand.Rand) (func(), bool) {
	p := w.any(rng).process()
	if p == nil {
		return nil, false
	}
	var backup bytes.Buffer
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	if _, err := p.node.SaveBackup(ctx, &backup, rng.IntN(2) == 0); err != nil {
		return nil, false
	}
	snap, err := store.ReadSnapshot(bytes.NewReader(backup.Bytes()))
	if err != nil {
		w.violate("backup", "%s wrote a backup that cannot be read: %v", p.s, err)
		return nil, false
	}
	w.rec.Note("%s saves a backup at revision %d", p.s, snap.Revision)
	return func() { w.restore(w.leader(rng), backup.Bytes(), snap) }, true
}

// restore restores a backup through a server.
func (w *world) restore(s *server, backup []byte, snap *store.Snapshot) {
	p := s.process()
	if p == nil {
		return
	}
	states := map[resource.Key]history.State{}
	for _, r := range snap.Resources {
		states[r.Key()] = stateOf(r)
	}
	record := w.rec.Call(history.Op{Server: s.name, Kind: history.Restore, Restored: states})
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	restored, err := p.node.Restore(ctx, bytes.NewReader(backup))
	if p.ctx.Err() != nil {
		err = consensus.ErrUnknownOutcome
	}
	w.rec.Note("the backup of revision %d is restored through %s: %d, %v", snap.Revision, s, restored.Revision, err)
	w.rec.Return(record, func(op *history.Op) {
		switch {
		case err == nil:
			op.Outcome, op.Revision = history.Done, restored.Revision
		case errors.Is(err, consensus.ErrUnknownOutcome):
			op.Err = err.Error()
		default:
			op.Outcome, op.Err = history.Refused, err.Error()
		}
	})
}
