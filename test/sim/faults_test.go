package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// fault is one thing that can go wrong. begin returns what ends it, nil when it
// ends by itself; ok is false when it cannot happen now.
type fault struct {
	name   string
	weight int
	begin  func(w *world, rng *rand.Rand) (end func(), ok bool)
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
		w.pause(w.plan.times(time.Duration(1+rng.IntN(6)) * time.Second))
		var events []event
		for range 1 + rng.IntN(3) {
			f := choose(rng, faults)
			from := w.plan.times(time.Duration(rng.IntN(4000)) * time.Millisecond)
			until := from + w.plan.times(time.Duration(200+rng.IntN(12000))*time.Millisecond)
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

// leading returns the leader, any one if there is none, and the others.
func (w *world) leading(rng *rand.Rand) (leader *server, others []*server) {
	leader = w.leader(rng)
	return leader, w.others(leader)
}

// others are the members but one.
func (w *world) others(s *server) []*server {
	return slices.DeleteFunc(w.members(), func(o *server) bool { return o == s })
}
