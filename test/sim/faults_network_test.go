package sim

import (
	"context"
	"math/rand/v2"
	"time"
)

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
	up, down := w.plan.times(time.Duration(50+rng.IntN(900))*time.Millisecond), w.plan.times(time.Duration(50+rng.IntN(900))*time.Millisecond)
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
