package history

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"meridian/internal/resource"
)

// Counts is how much a history holds.
type Counts struct {
	// Acknowledged counts writes and Reads linearizable reads; Unknown the writes
	// whose client never learnt their outcome; Refused those surely without
	// effect.
	Acknowledged, Reads, Unknown, Refused int
	Commits, Epochs                       int
	Deliveries, Sightings, Frames         int
	// Rollbacks are the acknowledged ones, Recalls the states of the past that were read.
	Rollbacks, Recalls int
	// Begun are the rollouts that were stored, Completed and Aborted those that ended, and
	// Shown the sightings of what rollouts change.
	Begun, Completed, Aborted, Shown int
}

// Count counts.
func (h *History) Count() Counts {
	c := Counts{Deliveries: len(h.Deliveries), Sightings: len(h.Sightings), Frames: len(h.Frames), Recalls: len(h.Recalls)}
	for _, op := range h.Ops {
		if op.Kind == Rollback && op.Outcome == Done {
			c.Rollbacks++
		}
		switch {
		case op.Outcome == Unknown && op.Kind != Read:
			c.Unknown++
		case op.Outcome == Done && op.Kind == Read:
			c.Reads++
		case op.Outcome == Done:
			c.Acknowledged++
		default:
			c.Refused++
		}
	}
	for _, e := range h.Source.Epochs() {
		c.Epochs++
		c.Commits += len(h.Source.Of(e))
		for _, commit := range h.Source.Of(e) {
			c.countRollouts(commit)
		}
	}
	for _, s := range h.Sightings {
		if commit := h.Source.At(s.Epoch, s.Revision); commit != nil && commit.in(s.Zone).Synced != commit.Synced {
			c.Shown++
		}
	}
	return c
}

// countRollouts counts what a commit makes of rollouts.
func (c *Counts) countRollouts(of *Commit) {
	if of.Whole {
		return // says nothing of when
	}
	for i := range of.Rollouts {
		switch r := &of.Rollouts[i]; {
		case r.Completed:
			c.Completed++
		case r.Aborted:
			c.Aborted++
		case slices.ContainsFunc(of.Changes, func(ch Change) bool {
			return ch.Key.Kind == resource.KindRollout && ch.Key.Name == r.Name && ch.State.Version == 1
		}):
			c.Begun++
		}
	}
}

// Report writes what was broken, the faults, and what happened shortly before
// the first violation: at most tail lines of each.
func Report(w io.Writer, h *History, violations []Violation, tail int) {
	until := Never
	for i, v := range violations {
		until = min(until, v.At)
		if i < tail {
			_, _ = fmt.Fprintln(w, v)
		}
	}
	if more := len(violations) - tail; more > 0 {
		_, _ = fmt.Fprintf(w, "and %d more\n", more)
	}
	type line struct {
		at   Time
		text string
	}
	var faults, events []line
	for _, n := range h.Notes {
		faults = append(faults, line{n.At, n.Text})
	}
	for _, op := range h.Ops {
		events = append(events, line{op.Call, op.String()})
	}
	for _, l := range h.Leads {
		events = append(events, line{l.At, fmt.Sprintf("%v %s leads from revision %d on", l.At, l.Server, l.Revision)})
	}
	print := func(title string, lines []line) {
		slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
		end, _ := slices.BinarySearchFunc(lines, until, func(l line, at Time) int { return cmp.Compare(l.at, at) })
		// A little of what came after helps too.
		end = min(len(lines), end+tail/4)
		_, _ = fmt.Fprintln(w, title)
		for _, l := range lines[max(0, end-tail):end] {
			_, _ = fmt.Fprintln(w, "  "+l.text)
		}
	}
	for i := range faults {
		faults[i].text = fmt.Sprintf("%v %s", faults[i].at, faults[i].text)
	}
	print("faults:", faults)
	print("operations:", events)
}
