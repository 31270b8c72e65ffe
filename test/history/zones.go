package history

import (
	"slices"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// ZonesHoldSourceStates is I3 and I5: what a zone shows under a revision is what
// the global had at that revision, never something between two of its states; with the
// changes of the rollouts that it has then, and no others.
func ZonesHoldSourceStates(h *History) []Violation {
	f := findings{promise: "I3"}
	for _, s := range h.Sightings {
		if s.Damaged || s.Epoch == (store.Epoch{}) {
			continue // repaired later, or nothing received yet
		}
		c := h.Source.At(s.Epoch, s.Revision)
		switch {
		case c == nil:
			f.add(s.At, "zone %s names revision %d of incarnation %d, which the global never had", s.Zone, s.Revision, s.Epoch.Incarnation)
		case c.in(s.Zone).Synced != s.Synced:
			f.add(s.At, "zone %s shows %s at revision %d, the global had %s and it is to show %s", s.Zone, s.Synced, s.Revision, c.Synced, c.in(s.Zone).Synced)
		case s.Revision > h.newest(s.Epoch):
			f.add(s.At, "zone %s names revision %d, the global got to %d", s.Zone, s.Revision, h.newest(s.Epoch))
		}
	}
	return f.list
}

// in is what a zone is to show of the state after a commit.
func (c *Commit) in(zone string) Shown {
	if shown, ok := c.Shown[zone]; ok {
		return shown
	}
	return Shown{Synced: c.Synced}
}

// newest is the newest revision that any server had in an epoch.
func (h *History) newest(e store.Epoch) resource.Revision {
	commits := h.Source.Of(e)
	if len(commits) == 0 {
		return 0
	}
	return commits[len(commits)-1].Revision
}

// ZonesNeverGoBack is I4, over the restarts of a zone: only a new disk begins
// anew.
func ZonesNeverGoBack(h *History) []Violation {
	f := findings{promise: "I4"}
	last := map[string]Sighting{}
	for _, s := range h.Sightings {
		before, seen := last[s.Zone]
		last[s.Zone] = s
		switch {
		case !seen || before.Disk != s.Disk || before.Epoch == (store.Epoch{}) || s.Damaged:
		case before.Epoch == s.Epoch && s.Revision < before.Revision:
			f.add(s.At, "zone %s went from revision %d back to %d", s.Zone, before.Revision, s.Revision)
		case before.Epoch != s.Epoch && (s.Epoch.ClusterID != before.Epoch.ClusterID || s.Epoch.Incarnation <= before.Epoch.Incarnation):
			f.add(s.At, "zone %s went from epoch %v to %v", s.Zone, before.Epoch, s.Epoch)
		}
	}
	return f.list
}

// DeletionsAreReal is I10: a key that a zone no longer shows was absent from
// some state of the global that the zone passed, up to the one it is at, or is deleted
// there by a rollout that the zone has.
func DeletionsAreReal(h *History) []Violation {
	f := findings{promise: "I10"}
	last := map[string]Sighting{}
	for _, s := range h.Sightings {
		before := last[s.Zone]
		last[s.Zone] = s
		if s.Damaged || before.Damaged || before.Disk != s.Disk {
			continue
		}
		for _, key := range s.Gone {
			if c := h.Source.At(s.Epoch, s.Revision); c != nil && slices.Contains(c.in(s.Zone).Hidden, key) {
				continue
			}
			if h.Source.StateAt(s.Epoch, s.Revision, key).Version != 0 {
				f.add(s.At, "zone %s lost %s on its way from revision %d to %d, where the global has it", s.Zone, key, before.Revision, s.Revision)
			}
		}
	}
	return f.list
}

// stream is a zone's connection while its frames are read.
type stream struct {
	epoch   store.Epoch
	at      resource.Revision // everything in scope up to here was sent
	loading bool
	open    bool
	parts   uint32
}

// streams reads the frames of every stream in order.
func streams(h *History, visit func(*stream, Frame)) {
	type id struct {
		zone string
		n    int
	}
	all := map[id]*stream{}
	for _, fr := range h.Frames {
		key := id{fr.Zone, fr.Stream}
		s := all[key]
		if s == nil {
			s = &stream{}
			all[key] = s
		}
		visit(s, fr)
		s.pass(fr)
	}
}

// pass moves the stream on by a frame.
func (s *stream) pass(fr Frame) {
	switch fr.Kind {
	case HelloFrame:
		*s = stream{at: fr.Revision} // what still comes for the Hello before is void
	case WelcomeFrame:
		s.epoch, s.open, s.loading, s.parts = fr.Epoch, true, !fr.Resume, 0
	case ChunkFrame:
		if fr.Last {
			s.at, s.loading = fr.Revision, false
		}
	case BatchFrame:
		s.parts = fr.Part
		if fr.Part == fr.Parts {
			s.at, s.parts = fr.Revision, 0
		}
	case BookmarkFrame:
		s.at = max(s.at, fr.Revision)
	}
}

// StreamsAreChained is I6: a batch follows on what was sent, ends after it, and
// skips no commit that the zone should be told of, unless it stands for it.
func StreamsAreChained(h *History) []Violation {
	f := findings{promise: "I6"}
	streams(h, func(s *stream, fr Frame) {
		if fr.Kind != BatchFrame || !s.open {
			return
		}
		switch {
		case s.loading:
			f.add(fr.At, "%s sent zone %s batch %d among chunks", fr.Server, fr.Zone, fr.Revision)
		case fr.Part != s.parts+1:
			f.add(fr.At, "%s sent zone %s part %d of batch %d after part %d", fr.Server, fr.Zone, fr.Part, fr.Revision, s.parts)
		case fr.Prev > s.at:
			f.add(fr.At, "%s sent zone %s batch %d, which follows %d, when it had sent up to %d", fr.Server, fr.Zone, fr.Revision, fr.Prev, s.at)
		case fr.Revision <= s.at:
			f.add(fr.At, "%s sent zone %s batch %d again, when it had sent up to %d", fr.Server, fr.Zone, fr.Revision, s.at)
		}
		if fr.Part != fr.Parts {
			return
		}
		skipped := h.syncedBetween(s.epoch, s.at, fr.Revision)
		switch {
		case len(skipped) == 0 || skipped[len(skipped)-1] != fr.Revision:
			f.add(fr.At, "%s sent zone %s batch %d, which is no commit that it is to be sent", fr.Server, fr.Zone, fr.Revision)
		case len(skipped) > 1 && !fr.Coalesced:
			f.add(fr.At, "%s sent zone %s batch %d without batch %d", fr.Server, fr.Zone, fr.Revision, skipped[0])
		}
	})
	return f.list
}

// syncedBetween lists the commits after one revision up to another that changed
// something zones are sent.
func (h *History) syncedBetween(e store.Epoch, from, to resource.Revision) []resource.Revision {
	var out []resource.Revision
	for _, c := range h.Source.Between(e, from, to) {
		if c.Whole || slices.ContainsFunc(c.Changes, func(ch Change) bool { return h.Synced(ch.Key.Kind) }) {
			out = append(out, c.Revision)
		}
	}
	return out
}

// BookmarksAreTrue is I7.
func BookmarksAreTrue(h *History) []Violation {
	f := findings{promise: "I7"}
	streams(h, func(s *stream, fr Frame) {
		if !s.open || fr.Kind != BookmarkFrame && (fr.Kind != ChunkFrame || !fr.Last) {
			return
		}
		c := h.Source.At(s.epoch, fr.Revision)
		if c == nil {
			f.add(fr.At, "%s named revision %d to zone %s, which the global never had", fr.Server, fr.Revision, fr.Zone)
			return
		}
		if c.Sum != fr.Sum {
			f.add(fr.At, "%s told zone %s digest %v at revision %d, the global had %v", fr.Server, fr.Zone, fr.Sum, fr.Revision, c.Sum)
		}
		if fr.Kind == ChunkFrame {
			return
		}
		if left := h.syncedBetween(s.epoch, s.at, fr.Revision); len(left) > 0 {
			f.add(fr.At, "%s sent zone %s bookmark %d before batch %d", fr.Server, fr.Zone, fr.Revision, left[0])
		}
	})
	return f.list
}

// LeasesRise is what is left of I8 while zones write nothing to the global's
// log: each stream of a disk has a higher lease than all before it, so that of
// two streams the older one can be told.
func LeasesRise(h *History) []Violation {
	f := findings{promise: "I8"}
	type holder struct {
		lease  uint64
		stream int
	}
	last := map[string]holder{}
	for _, fr := range h.Frames {
		if fr.Kind != HelloFrame {
			continue
		}
		before := last[fr.Instance]
		if fr.Lease < before.lease || fr.Lease == before.lease && fr.Stream != before.stream {
			f.add(fr.At, "zone %s opened a stream under lease %d after lease %d", fr.Zone, fr.Lease, before.lease)
		}
		last[fr.Instance] = holder{fr.Lease, fr.Stream}
	}
	return f.list
}

// OnlySyncedIsSent is I11.
func OnlySyncedIsSent(h *History) []Violation {
	f := findings{promise: "I11"}
	for _, fr := range h.Frames {
		for _, kind := range fr.Kinds {
			if !h.Synced(kind) {
				f.add(fr.At, "%s sent zone %s a %s at revision %d", fr.Server, fr.Zone, kind, fr.Revision)
			}
		}
	}
	return f.list
}
