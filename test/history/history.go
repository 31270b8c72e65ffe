package history

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Time is how long after the beginning of the history something happened.
type Time = time.Duration

// Never is a time that does not come.
const Never Time = math.MaxInt64

// State is an observed resource; the zero State is its absence.
type State struct {
	Version  uint64
	Revision resource.Revision
	// Value is the content, unique to the write that made it.
	Value string
}

func (s State) String() string {
	if s.Version == 0 {
		return "absent"
	}
	return fmt.Sprintf("%s (version %d, revision %d)", s.Value, s.Version, s.Revision)
}

// Kind is what an operation does.
type Kind string

// The operations of clients.
const (
	Put    Kind = "put"
	Delete Kind = "delete"
	// Read is linearizable.
	Read Kind = "read"
	// Restore replaces every key by what Op.Restored says.
	Restore Kind = "restore"
	// Rollback makes the contents of synced kinds those of revision Op.To of Op.ToEpoch.
	Rollback Kind = "rollback"
	// Rollout begins a rollout, or carries on or ends the one that is stored.
	Rollout Kind = "rollout"
)

// Outcome is what the client knows about its operation.
type Outcome string

// The outcomes of operations.
const (
	// Done: it took effect as Op.State says.
	Done Outcome = "done"
	// Conflict: it had no effect, because the key was not at Op.If.
	Conflict Outcome = "conflict"
	// Refused: it had no effect, and says nothing about the key.
	Refused Outcome = "refused"
	// Unknown: it may have taken effect, or may yet.
	Unknown Outcome = "unknown"
)

// Op is one operation of a client, with all its attempts.
type Op struct {
	Client int
	// Server is the one that answered last.
	Server string
	Kind   Kind
	Key    resource.Key
	// Request is the request id of a write, the same for every attempt.
	Request string
	// Value is what a Put writes, and of a Rollout what is made of which.
	Value string
	// If is the version that the write required, 0 for absence; nil for any.
	If *uint64
	// Restored is the whole state that a Restore makes; what is not in it is
	// absent.
	Restored map[resource.Key]State
	// To and ToEpoch are what a Rollback goes back to.
	To      resource.Revision
	ToEpoch store.Epoch

	Call, Return Time
	Outcome      Outcome
	// State is what was read, or what the write made of the key.
	State State
	// Revision is the one that a write was told, zero if none.
	Revision resource.Revision
	Err      string
}

func (o *Op) String() string {
	what := fmt.Sprintf("%s %s", o.Kind, o.Key)
	switch {
	case o.Kind == Restore:
		what = fmt.Sprintf("restore of %d resources", len(o.Restored))
	case o.Kind == Rollback:
		what = fmt.Sprintf("rollback to revision %d", o.To)
	case o.Kind == Put, o.Kind == Rollout:
		what += " " + o.Value
	}
	if o.If != nil {
		what += fmt.Sprintf(" if version %d", *o.If)
	}
	if o.Request != "" {
		what += " as " + o.Request
	}
	answer := string(o.Outcome)
	switch {
	case o.Outcome == Done && (o.Kind == Delete || o.Kind == Rollback || o.Kind == Rollout):
		answer = fmt.Sprintf("revision %d", o.Revision)
	case o.Outcome == Done && o.Kind != Restore:
		answer = o.State.String()
	}
	if o.Err != "" {
		answer += ": " + o.Err
	}
	until := "never"
	if o.Return != Never {
		until = o.Return.String()
	}
	return fmt.Sprintf("%v to %s client %d at %s: %s -> %s", o.Call, until, o.Client, o.Server, what, answer)
}

// Change is what a commit made of a key.
type Change struct {
	Key   resource.Key
	State State
}

// Commit is one batch of the global's history.
type Commit struct {
	Epoch          store.Epoch
	Revision, Prev resource.Revision
	// Seen is when it was first observed anywhere.
	Seen Time
	// Requests are the ids under which it was asked for, as far as they are known: several
	// that wrote different resources at the same time share a revision.
	Requests []string
	Changes  []Change
	// Whole says that Changes are the whole state, found so and not told step by
	// step.
	Whole bool
	// Base is the whole state after it, where that was found as well.
	Base *Commit
	// All and Synced are images of the state after it: of everything, and of what
	// zones are sent. Sum is the product's own digest of the latter.
	All, Synced Image
	Sum         store.Digest
	// Content is what Synced is without versions, revisions, times and rollouts.
	Content Image
	// Rollouts are those that it wrote, as it left them; where it is Whole, all there are.
	Rollouts []RolloutState
	// Shown is what the zones show that have the change of a rollout. The others show
	// Synced.
	Shown map[string]Shown
}

// whole is the state after a commit where that was found as a whole, else nil.
func (c *Commit) whole() *Commit {
	if c.Whole {
		return c
	}
	return c.Base
}

// Shown is what one zone shows of a state.
type Shown struct {
	Synced Image
	// Hidden are the keys that are in the state and not shown.
	Hidden []resource.Key
}

// RolloutState is a rollout as it is stored.
type RolloutState struct {
	Name string
	// Stage is the current one of Stages, from 1.
	Stage, Stages int
	// Completed and Aborted end it.
	Completed, Aborted bool
	// Zones have the change, and All says that all have.
	Zones   []string
	All     bool
	Changes []RolloutChange
}

// RolloutChange is what a rollout is to make of a key.
type RolloutChange struct {
	Key resource.Key
	// Replaces is the version that it was decided on, 0 for absence.
	Replaces uint64
	// Value is the content, empty where the key is deleted.
	Value string
}

func (r *RolloutState) finished() bool { return r.Completed || r.Aborted }

// Observation is that a server held a state.
type Observation struct {
	Server   string
	At       Time
	Epoch    store.Epoch
	Revision resource.Revision
	All      Image
}

// Recall is that a server was asked for a state of the past.
type Recall struct {
	Server string
	At     Time
	// Epoch and Revision are those of the state that was read, Synced its image.
	Epoch    store.Epoch
	Revision resource.Revision
	Synced   Image
	// Applied is how far the server had applied the log, in the epoch Now. Oldest is the
	// first revision that it could read by then, 0 where no contents are kept.
	Now             store.Epoch
	Applied, Oldest resource.Revision
}

// Lead is that a server began to lead, having applied what it had to.
type Lead struct {
	Server   string
	At       Time
	Epoch    store.Epoch
	Revision resource.Revision
}

// Delivery is one step of a watcher of the global.
type Delivery struct {
	Watcher string
	Server  string
	At      Time
	Epoch   store.Epoch
	// Prev is the revision that the watcher had before; Revision the one it has
	// now.
	Prev, Revision resource.Revision
	Changes        []Change
	// Whole says that the watcher was too far behind, or moved to another epoch,
	// and took the state as a whole: All is its image.
	Whole bool
	All   Image
}

// Sighting is what a reader in a zone saw.
type Sighting struct {
	Zone string
	// Boot counts the starts of the zone; Disk the disks it had: on a new one it
	// begins anew.
	Boot, Disk int
	At         Time
	Epoch      store.Epoch
	Revision   resource.Revision
	Synced     Image
	// Gone are the keys that were there in the sighting before and are not now.
	Gone []resource.Key
	// Damaged says that the zone reported that part of its disk was lost: the
	// image is incomplete until the global has repaired it.
	Damaged bool
}

// FrameKind is what a frame of a zone's stream is.
type FrameKind string

// The frames that promises are about.
const (
	HelloFrame    FrameKind = "hello"
	WelcomeFrame  FrameKind = "welcome"
	BatchFrame    FrameKind = "batch"
	ChunkFrame    FrameKind = "chunk"
	BookmarkFrame FrameKind = "bookmark"
	AckFrame      FrameKind = "ack"
)

// Frame is one message between a zone and the server it is connected to, as it
// passed the zone.
type Frame struct {
	Zone string
	// Instance names the zone's disk, Stream its connection.
	Instance string
	Stream   int
	Server   string
	At       Time
	Kind     FrameKind
	Epoch    store.Epoch
	// Revision is the frame's own; of a Hello or an Ack what the zone has.
	Revision, Prev resource.Revision
	// Resume says that a Welcome continues at the zone's revision.
	Resume bool
	// Part of Parts: of a batch. Last: of chunks.
	Part, Parts uint32
	Last        bool
	// Coalesced says that a batch stands for several.
	Coalesced bool
	Sum       store.Digest
	// Lease is a Hello's.
	Lease uint64
	// Kinds are those of the resources in it.
	Kinds []resource.Kind
}

// Note is anything else worth knowing, such as a fault.
type Note struct {
	At   Time
	Text string
}

// Wait is how long something took that is promised to take no longer than
// Limit.
type Wait struct {
	// Promise is the one that sets the limit: "L1".
	Promise     string
	What        string
	At          Time
	Took, Limit time.Duration
}

// History is what happened.
type History struct {
	Ops          []*Op
	Observations []Observation
	Recalls      []Recall
	Leads        []Lead
	Deliveries   []Delivery
	Sightings    []Sighting
	Frames       []Frame
	Waits        []Wait
	Notes        []Note
	// Source is the global's history, one line of commits per epoch.
	Source Source
	// Complete says that Source holds every commit that there was, so that a
	// write that is not in it had no effect.
	Complete bool
	// Synced says which kinds zones are sent.
	Synced func(resource.Kind) bool
}

// Source is the global's history: per epoch, the commits in order.
type Source struct {
	epochs map[store.Epoch]*line
	byID   map[string][]*Commit
}

// line is the history of one epoch.
type line struct {
	commits map[resource.Revision]*Commit
	sorted  []*Commit // nil when out of date
}

// Add takes a commit, or a second look at one that is known. It returns the one
// that counts: the first, unless that was found whole and this one is told.
func (s *Source) Add(c *Commit) *Commit {
	if s.epochs == nil {
		s.epochs, s.byID = map[store.Epoch]*line{}, map[string][]*Commit{}
	}
	l := s.epochs[c.Epoch]
	if l == nil {
		l = &line{commits: map[resource.Revision]*Commit{}}
		s.epochs[c.Epoch] = l
	}
	known := l.commits[c.Revision]
	switch {
	case known != nil && !known.Whole && c.Whole && known.Base == nil:
		known.Base = c
		return known
	case known != nil && (!known.Whole || c.Whole):
		return known
	case known != nil:
		c.Base, c.Seen = known, min(c.Seen, known.Seen)
	}
	l.commits[c.Revision], l.sorted = c, nil
	if !c.Whole {
		for _, request := range c.Requests {
			s.byID[request] = append(s.byID[request], c)
		}
	}
	return c
}

// Epochs returns the epochs there were, oldest first.
func (s *Source) Epochs() []store.Epoch {
	return slices.SortedFunc(maps.Keys(s.epochs), func(a, b store.Epoch) int {
		return int(a.Incarnation) - int(b.Incarnation) //nolint:gosec // counts from one
	})
}

// Of returns the commits of an epoch in order.
func (s *Source) Of(e store.Epoch) []*Commit {
	l := s.epochs[e]
	if l == nil {
		return nil
	}
	if l.sorted == nil {
		l.sorted = slices.SortedFunc(maps.Values(l.commits), func(a, b *Commit) int {
			return int(a.Revision) - int(b.Revision) //nolint:gosec // small
		})
	}
	return l.sorted
}

// At returns the commit that made the state at a revision, nil if the epoch has
// none so early.
func (s *Source) At(e store.Epoch, r resource.Revision) *Commit {
	commits := s.Of(e)
	if i := after(commits, r); i > 0 {
		return commits[i-1]
	}
	return nil
}

// Between returns the commits after one revision up to another.
func (s *Source) Between(e store.Epoch, from, to resource.Revision) []*Commit {
	commits := s.Of(e)
	return commits[after(commits, from):max(after(commits, from), after(commits, to))]
}

// Made returns the commits that were asked for under a request id: at most one
// in each epoch, if all is well.
func (s *Source) Made(request string) []*Commit { return s.byID[request] }

// StateAt returns a key at a revision.
func (s *Source) StateAt(e store.Epoch, r resource.Revision, key resource.Key) State {
	commits := s.Of(e)
	for _, c := range slices.Backward(commits[:after(commits, r)]) {
		whole := c.whole()
		if whole != nil {
			c = whole
		}
		for _, ch := range c.Changes {
			if ch.Key == key {
				return ch.State
			}
		}
		if whole != nil {
			break
		}
	}
	return State{}
}

// Whole returns everything there was at a revision.
func (s *Source) Whole(e store.Epoch, r resource.Revision) map[resource.Key]State {
	out := map[resource.Key]State{}
	commits := s.Of(e)
	for _, c := range commits[:after(commits, r)] {
		if whole := c.whole(); whole != nil {
			clear(out)
			c = whole
		}
		for _, ch := range c.Changes {
			if ch.State.Version == 0 {
				delete(out, ch.Key)
			} else {
				out[ch.Key] = ch.State
			}
		}
	}
	return out
}

// after is the index of the first commit after a revision.
func after(commits []*Commit, r resource.Revision) int {
	i, found := slices.BinarySearchFunc(commits, r, func(c *Commit, r resource.Revision) int {
		switch {
		case c.Revision < r:
			return -1
		case c.Revision > r:
			return 1
		}
		return 0
	})
	if found {
		i++
	}
	return i
}
