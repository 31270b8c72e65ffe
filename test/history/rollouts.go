package history

import (
	"maps"
	"slices"

	"meridian/internal/resource"
)

// RolloutsAreStaged holds what rollouts promise of the state of the global: a rollout is
// decided on what is stored, and no two have a key in common; until it is over, no commit
// writes what it is to change; its stages follow each other one by one, under all leaders,
// and no zone loses the change before the end; its completion, after the last stage, is
// one commit with the whole change, once; an abort writes nothing else; and what is over
// stays so.
//
// Commits before the first whole state of an epoch are not checked.
func RolloutsAreStaged(h *History) []Violation {
	f := findings{promise: "rollout"}
	requests := map[string]bool{}
	for _, op := range h.Ops {
		if op.Kind == Rollout {
			requests[op.Request] = true
		}
	}
	for _, e := range h.Source.Epochs() {
		s := staging{findings: &f, synced: h.Synced, requests: requests, base: map[resource.Key]State{}, rollouts: map[string]*RolloutState{}}
		for _, c := range h.Source.Of(e) {
			if s.known && !c.Whole {
				s.check(c)
			}
			if whole := c.whole(); whole != nil {
				clear(s.base)
				clear(s.rollouts)
				c, s.known = whole, true
			}
			s.pass(c)
		}
	}
	return f.list
}

// staging is the state of the global while its commits are read.
type staging struct {
	*findings
	synced func(resource.Kind) bool
	// requests are those about rollouts.
	requests map[string]bool
	// known: the state as a whole was found at some commit before.
	known    bool
	base     map[resource.Key]State
	rollouts map[string]*RolloutState
}

// pass moves on by a commit.
func (s *staging) pass(c *Commit) {
	for _, ch := range c.Changes {
		if ch.State.Version != 0 {
			s.base[ch.Key] = ch.State
			continue
		}
		delete(s.base, ch.Key)
		if ch.Key.Kind == resource.KindRollout {
			delete(s.rollouts, ch.Key.Name)
		}
	}
	for i := range c.Rollouts {
		s.rollouts[c.Rollouts[i].Name] = &c.Rollouts[i]
	}
}

// check compares a commit with the state before it.
func (s *staging) check(c *Commit) {
	written := map[resource.Key]State{}
	for _, ch := range c.Changes {
		written[ch.Key] = ch.State
		if r := s.rollouts[ch.Key.Name]; ch.Key.Kind == resource.KindRollout && ch.State.Version == 0 && r != nil && !r.finished() {
			s.add(c.Seen, "commit %d removes rollout %s, which is not over", c.Revision, r.Name)
		}
	}
	after := map[string]*RolloutState{}
	completed := map[resource.Key]bool{}
	for i := range c.Rollouts {
		r := &c.Rollouts[i]
		after[r.Name] = r
		if before := s.rollouts[r.Name]; before == nil {
			s.begins(c, r)
		} else {
			s.carriesOn(c, before, r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.rollouts)) {
		r := s.rollouts[name]
		if r.finished() {
			continue
		}
		if next := after[name]; next != nil && next.Completed {
			s.completes(c, r, written)
			for _, change := range r.Changes {
				completed[change.Key] = true
			}
			continue
		}
		for _, change := range r.Changes {
			if _, ok := written[change.Key]; ok {
				s.add(c.Seen, "commit %d writes %s, which rollout %s is to change", c.Revision, change.Key, name)
			}
		}
	}
	for _, ch := range c.Changes {
		if slices.ContainsFunc(c.Requests, func(r string) bool { return s.requests[r] }) && s.synced(ch.Key.Kind) && ch.Key.Kind != resource.KindRollout && !completed[ch.Key] {
			s.add(c.Seen, "commit %d is about rollouts and writes %s, which it completes no rollout of", c.Revision, ch.Key)
		}
	}
}

func (s *staging) begins(c *Commit, r *RolloutState) {
	if r.Stage != 1 || r.finished() {
		s.add(c.Seen, "commit %d begins rollout %s in stage %d of %d", c.Revision, r.Name, r.Stage, r.Stages)
	}
	for _, change := range r.Changes {
		if at := s.base[change.Key]; at.Version != change.Replaces {
			s.add(c.Seen, "commit %d begins rollout %s, which is to replace version %d of %s: it is %s", c.Revision, r.Name, change.Replaces, change.Key, at)
		}
		for _, name := range slices.Sorted(maps.Keys(s.rollouts)) {
			if other := s.rollouts[name]; !other.finished() && slices.ContainsFunc(other.Changes, func(o RolloutChange) bool { return o.Key == change.Key }) {
				s.add(c.Seen, "commit %d begins rollout %s of %s, which rollout %s is to change", c.Revision, r.Name, change.Key, name)
			}
		}
	}
}

// carriesOn compares a rollout with what it was before a commit.
func (s *staging) carriesOn(c *Commit, before, r *RolloutState) {
	switch {
	case before.finished():
		s.add(c.Seen, "commit %d writes rollout %s, which was over", c.Revision, r.Name)
	case r.Stages != before.Stages || !slices.Equal(r.Changes, before.Changes):
		s.add(c.Seen, "commit %d makes another rollout of %s", c.Revision, r.Name)
	case r.Completed && before.Stage != before.Stages:
		s.add(c.Seen, "commit %d completes rollout %s in stage %d of %d", c.Revision, r.Name, before.Stage, before.Stages)
	case r.finished():
	case r.Stage != before.Stage && r.Stage != before.Stage+1:
		s.add(c.Seen, "commit %d moves rollout %s from stage %d to %d", c.Revision, r.Name, before.Stage, r.Stage)
	case before.All && !r.All || slices.ContainsFunc(before.Zones, func(zone string) bool { return !slices.Contains(r.Zones, zone) }):
		s.add(c.Seen, "commit %d takes rollout %s from zones: %v before, %v after", c.Revision, r.Name, before.Zones, r.Zones)
	}
}

// completes holds that a commit writes all that a rollout is to change.
func (s *staging) completes(c *Commit, r *RolloutState, written map[resource.Key]State) {
	for _, change := range r.Changes {
		made, ok := written[change.Key]
		want := State{Version: change.Replaces + 1, Revision: c.Revision, Value: change.Value}
		if change.Value == "" {
			want = State{}
		}
		if !ok || made != want {
			s.add(c.Seen, "commit %d completes rollout %s and leaves %s %s, and not %s", c.Revision, r.Name, change.Key, made, want)
		}
	}
}
