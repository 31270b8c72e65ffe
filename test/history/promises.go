package history

import (
	"cmp"
	"fmt"
	"slices"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Violation is a promise that was not kept.
type Violation struct {
	// Promise names it: "I3".
	Promise string
	// At is when it showed, Never if that cannot be told.
	At Time
	// What happened, in one sentence.
	What string
}

func (v Violation) String() string {
	at := "at an unknown time"
	if v.At != Never {
		at = "at " + v.At.String()
	}
	return fmt.Sprintf("%s broken %s: %s", v.Promise, at, v.What)
}

// Promise is a named check.
type Promise struct {
	Name string
	// Says is the promise in words.
	Says  string
	Check func(*History) []Violation
}

// Promises are all checks but the search for an order (see Linearizable).
func Promises() []Promise {
	return []Promise{
		{"I1", "an acknowledged write is in every later leader's state of its epoch", AcknowledgedSurvive},
		{"I2", "two servers never hold different states under one revision", ServersAgree},
		{"I3", "a zone that names a revision holds exactly what the global had there, and so do its readers (I5)", ZonesHoldSourceStates},
		{"I4", "within an epoch a zone never goes back, and it moves to later epochs only", ZonesNeverGoBack},
		{"I6", "the batches of a stream are chained: no gap, no repetition, no reordering", StreamsAreChained},
		{"I7", "a bookmark comes after everything up to it, with the digest of that state", BookmarksAreTrue},
		{"I8", "the leases of a zone's disk only rise", LeasesRise},
		{"I9", "a request takes effect at most once", RequestsTakeEffectOnce},
		{"I10", "what is deleted in a zone was deleted in a committed state of the global", DeletionsAreReal},
		{"I11", "a zone is sent synced kinds only", OnlySyncedIsSent},
		{"history", "the global's history is one line without a gap", SourceIsOneLine},
		{"past", "a state of the past is on every server what the global held then, and after one entry all servers can read the same ones", PastIsTheSame},
		{"rollback", "a rollback makes the contents those of an earlier revision, in one commit", RollbacksAreWhole},
		{"rollout", "what a rollout is to change is written by its completion alone, as one commit, after every stage once", RolloutsAreStaged},
		{"watch", "a watcher receives every commit once, in order, completely, and resumes where it was", WatchersMissNothing},
		{"liveness", "what is promised within a time (L1 to L6) happens within it", InTime},
	}
}

// Check checks every promise and sorts what it finds by time. The search for an
// order is not part of it.
func Check(h *History) []Violation {
	var out []Violation
	for _, p := range Promises() {
		out = append(out, p.Check(h)...)
	}
	slices.SortStableFunc(out, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return out
}

// findings collects violations of one promise.
type findings struct {
	promise string
	list    []Violation
}

func (f *findings) add(at Time, format string, args ...any) {
	f.list = append(f.list, Violation{Promise: f.promise, At: at, What: fmt.Sprintf(format, args...)})
}

// AcknowledgedSurvive is I1: every write that a client was told of is a commit
// at the revision that it was told, and every later leader in that epoch has
// applied it.
func AcknowledgedSurvive(h *History) []Violation {
	f := findings{promise: "I1"}
	type acked struct {
		at  Time
		rev resource.Revision
	}
	newest := map[store.Epoch][]acked{} // rising in both
	ops := slices.SortedFunc(slices.Values(h.Ops), func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	for _, op := range ops {
		if op.Outcome != Done || op.Request == "" || op.Kind != Put && op.Kind != Delete && op.Kind != Rollback && op.Kind != Rollout {
			continue
		}
		made := h.made(op)
		if made == nil {
			f.add(op.Return, "acknowledged, but in no state of the global: %s", op)
			continue
		}
		line := newest[made.Epoch]
		if len(line) == 0 || line[len(line)-1].rev < made.Revision {
			newest[made.Epoch] = append(line, acked{op.Return, made.Revision})
		}
	}
	for _, l := range h.Leads {
		line := newest[l.Epoch]
		// The newest of those acknowledged before this leadership began.
		i, _ := slices.BinarySearchFunc(line, l.At, func(a acked, at Time) int { return cmp.Compare(a.at, at) })
		if i > 0 && line[i-1].rev > l.Revision {
			f.add(l.At, "%s leads from revision %d on, although revision %d was acknowledged at %v", l.Server, l.Revision, line[i-1].rev, line[i-1].at)
		}
	}
	return f.list
}

// made is the commit that an acknowledged write was told, nil if there is none.
func (h *History) made(op *Op) *Commit {
	for _, c := range h.Source.Made(op.Request) {
		if op.Revision == 0 || c.Revision == op.Revision {
			return c
		}
	}
	return nil
}

// ServersAgree is I2: every server that held a revision of an epoch, at any time, held
// the same state.
func ServersAgree(h *History) []Violation {
	f := findings{promise: "I2"}
	type point struct {
		epoch store.Epoch
		rev   resource.Revision
	}
	first := map[point]*Observation{}
	for i := range h.Observations {
		o := &h.Observations[i]
		at := point{o.Epoch, o.Revision}
		switch known := first[at]; {
		case known == nil:
			first[at] = o
		case known.All != o.All:
			f.add(o.At, "at revision %d %s holds %s, and %s held %s at %v", o.Revision, o.Server, o.All, known.Server, known.All, known.At)
		}
	}
	return f.list
}

// SourceIsOneLine holds that in each epoch every commit names the one before it.
func SourceIsOneLine(h *History) []Violation {
	f := findings{promise: "history"}
	for _, e := range h.Source.Epochs() {
		commits := h.Source.Of(e)
		for i, c := range commits {
			if i > 0 && !c.Whole && c.Prev != commits[i-1].Revision {
				f.add(c.Seen, "commit %d names %d as the one before it, which is %d", c.Revision, c.Prev, commits[i-1].Revision)
			}
		}
	}
	return f.list
}

// RequestsTakeEffectOnce is I9: no two commits of an epoch were asked for under
// one id. (A restored backup does not know the requests of the time after it,
// so an id may be in two epochs.)
func RequestsTakeEffectOnce(h *History) []Violation {
	f := findings{promise: "I9"}
	for _, e := range h.Source.Epochs() {
		first := map[string]*Commit{}
		for _, c := range h.Source.Of(e) {
			if c.Whole {
				continue
			}
			for _, request := range c.Requests {
				if known := first[request]; known != nil {
					f.add(c.Seen, "request %s took effect at revision %d and again at %d", request, known.Revision, c.Revision)
				}
				first[request] = c
			}
		}
	}
	return f.list
}

// PastIsTheSame holds that a server reads of an earlier revision what the global held
// there, and that the oldest revision that can be read depends on the log alone.
func PastIsTheSame(h *History) []Violation {
	f := findings{promise: "past"}
	type point struct {
		epoch store.Epoch
		rev   resource.Revision
	}
	first := map[point]*Recall{}
	for i := range h.Recalls {
		r := &h.Recalls[i]
		if c := h.Source.At(r.Epoch, r.Revision); c == nil || c.Synced != r.Synced {
			f.add(r.At, "%s reads at revision %d, having applied %d, what the global did not hold there", r.Server, r.Revision, r.Applied)
		}
		if r.Oldest == 0 {
			continue
		}
		at := point{r.Now, r.Applied}
		switch known := first[at]; {
		case known == nil:
			first[at] = r
		case known.Oldest != r.Oldest:
			f.add(r.At, "having applied revision %d, %s reads back to %d, and %s read back to %d at %v", r.Applied, r.Server, r.Oldest, known.Server, known.Oldest, known.At)
		}
	}
	return f.list
}

// RollbacksAreWhole holds that the state after the commit of a rollback has the contents
// that it goes back to: nothing is left out, and nothing that was written while it was
// decided stays.
func RollbacksAreWhole(h *History) []Violation {
	f := findings{promise: "rollback"}
	for _, op := range h.Ops {
		if op.Kind != Rollback {
			continue
		}
		then := h.Source.At(op.ToEpoch, op.To)
		for _, c := range h.Source.Made(op.Request) {
			if then == nil || then.Content != c.Content {
				f.add(c.Seen, "the contents after commit %d are not those of revision %d: %s", c.Revision, op.To, op)
			}
		}
	}
	return f.list
}

// WatchersMissNothing holds the laws of a watch: ordered and unique (revisions
// rise), reliable (every commit is delivered), atomic (as a whole), resumable (a
// watcher that moves to another server resumes where it was, and receives the
// state as a whole only when that is no longer known).
func WatchersMissNothing(h *History) []Violation {
	f := findings{promise: "watch"}
	for _, d := range h.Deliveries {
		if d.Whole {
			if c := h.Source.At(d.Epoch, d.Revision); c == nil || c.All != d.All {
				f.add(d.At, "%s was given a state at revision %d by %s that the global never had", d.Watcher, d.Revision, d.Server)
			}
			continue
		}
		if d.Revision <= d.Prev {
			f.add(d.At, "ordered: %s was told revision %d by %s after %d", d.Watcher, d.Revision, d.Server, d.Prev)
			continue
		}
		missed := h.Source.Between(d.Epoch, d.Prev, d.Revision)
		switch {
		case len(missed) == 0 || missed[len(missed)-1].Revision != d.Revision:
			f.add(d.At, "%s was told revision %d by %s, which is no commit", d.Watcher, d.Revision, d.Server)
		case len(missed) > 1:
			f.add(d.At, "reliable: %s was told revision %d by %s after %d, without revision %d", d.Watcher, d.Revision, d.Server, d.Prev, missed[0].Revision)
		case !missed[0].Whole && !slices.Equal(missed[0].Changes, d.Changes):
			f.add(d.At, "atomic: %s was told %v of revision %d by %s, which is %v", d.Watcher, d.Changes, d.Revision, d.Server, missed[0].Changes)
		}
	}
	return f.list
}

// InTime holds what is promised within a time.
func InTime(h *History) []Violation {
	var out []Violation
	for _, w := range h.Waits {
		if w.Took > w.Limit {
			f := findings{promise: w.Promise}
			f.add(w.At, "%s took %v, the limit is %v", w.What, w.Took, w.Limit)
			out = append(out, f.list...)
		}
	}
	return out
}
