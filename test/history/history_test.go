package history_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/test/history"
)

const (
	synced = resource.Kind("Retry")
	secret = resource.Kind("GlobalSecret")
)

func isSynced(k resource.Kind) bool { return k == synced }

var (
	first  = store.Epoch{ClusterID: "c", Incarnation: 1, Random: 1}
	second = store.Epoch{ClusterID: "c", Incarnation: 2, Random: 2}
)

func key(n int) resource.Key {
	return resource.Key{Kind: synced, Mesh: "default", Name: fmt.Sprintf("k-%d", n)}
}

func image(n int) history.Image { return history.Image{byte(n)} }

func at(n int) history.Time { return time.Duration(n) * time.Second }

func state(version uint64, rev resource.Revision, value string) history.State {
	return history.State{Version: version, Revision: rev, Value: value}
}

// sound is a history in which everything is as promised: four commits in two
// epochs, two servers, a watcher that changes servers, a zone that follows.
func sound() *history.History {
	h := &history.History{Synced: isSynced, Complete: true}
	marker := func(id string) history.Change {
		return history.Change{Key: resource.Key{Kind: secret, Name: "client-1"}, State: state(1, 0, id)}
	}
	commits := []*history.Commit{
		{Epoch: first, Revision: 2, Whole: true, Seen: at(1), All: image(2), Synced: image(102), Sum: store.Digest{Lo: 2}},
		{
			Epoch: first, Revision: 4, Prev: 2, Seen: at(2), Requests: []string{"r1"}, All: image(4), Synced: image(104), Sum: store.Digest{Lo: 4},
			Changes: []history.Change{marker("r1"), {Key: key(1), State: state(1, 4, "a")}},
		},
		{
			Epoch: first, Revision: 5, Prev: 4, Seen: at(4), Requests: []string{"r2"}, All: image(5), Synced: image(105), Sum: store.Digest{Lo: 5},
			Changes: []history.Change{marker("r2"), {Key: key(1), State: state(2, 5, "b")}},
		},
		{
			Epoch: first, Revision: 7, Prev: 5, Seen: at(6), Requests: []string{"r3"}, All: image(7), Synced: image(107), Sum: store.Digest{Lo: 7},
			Changes: []history.Change{marker("r3"), {Key: key(1)}},
		},
		{
			Epoch: first, Revision: 8, Prev: 7, Seen: at(7), Requests: []string{"r4"}, All: image(8), Synced: image(107), Sum: store.Digest{Lo: 7},
			Changes: []history.Change{marker("r4")},
		},
		{
			Epoch: second, Revision: 12, Whole: true, Seen: at(10), All: image(12), Synced: image(105), Sum: store.Digest{Lo: 5},
			Changes: []history.Change{marker("r2"), {Key: key(1), State: state(2, 5, "b")}},
		},
	}
	for _, c := range commits {
		h.Source.Add(c)
		for i, server := range []string{"g1", "g2"} {
			h.Observations = append(h.Observations, history.Observation{
				Server: server, At: c.Seen + at(i), Epoch: c.Epoch, Revision: c.Revision, All: c.All,
			})
		}
	}
	zero := uint64(0)
	rolledBack := &history.Commit{
		Epoch: second, Revision: 14, Prev: 12, Seen: at(13), Requests: []string{"r10"}, All: image(14), Synced: image(114), Content: image(204), Sum: store.Digest{Lo: 14},
		Changes: []history.Change{marker("r10"), {Key: key(1), State: state(3, 14, "a")}},
	}
	commits[1].Content = image(204)
	h.Source.Add(rolledBack)
	h.Recalls = []history.Recall{
		{Server: "g1", At: at(8), Epoch: first, Revision: 5, Synced: image(105), Now: first, Applied: 9, Oldest: 4},
		{Server: "g2", At: at(9), Epoch: first, Revision: 6, Synced: image(105), Now: first, Applied: 9, Oldest: 4},
		{Server: "g2", At: at(12), Epoch: first, Revision: 7, Synced: image(107), Now: second, Applied: 12},
	}
	h.Ops = []*history.Op{
		{
			Client: 1, Server: "g1", Kind: history.Put, Key: key(1), Request: "r1", Value: "a", If: &zero, Call: at(1), Return: at(2),
			Outcome: history.Done, State: state(1, 4, "a"), Revision: 4,
		},
		{Client: 2, Server: "g2", Kind: history.Read, Key: key(1), Call: at(1), Return: at(3), Outcome: history.Done, State: state(1, 4, "a")},
		{Client: 1, Server: "g1", Kind: history.Put, Key: key(1), Request: "r2", Value: "b", Call: at(3), Return: history.Never, Outcome: history.Unknown},
		{Client: 2, Server: "g2", Kind: history.Put, Key: key(1), Value: "c", Request: "r9", If: &zero, Call: at(4), Return: at(5), Outcome: history.Conflict},
		{Client: 2, Server: "g2", Kind: history.Delete, Key: key(1), Request: "r3", Call: at(5), Return: at(6), Outcome: history.Done, Revision: 7},
		{Client: 3, Server: "g2", Kind: history.Read, Key: key(1), Call: at(7), Return: at(8), Outcome: history.Done},
		{Client: 1, Server: "g2", Kind: history.Put, Key: key(1), Request: "r8", Value: "x", Call: at(7), Return: at(8), Outcome: history.Refused},
		{
			Client: 0, Server: "g1", Kind: history.Restore, Call: at(9), Return: at(10), Outcome: history.Done,
			Restored: map[resource.Key]history.State{key(1): state(2, 5, "b")},
		},
		{Client: 3, Server: "g1", Kind: history.Read, Key: key(1), Call: at(11), Return: at(12), Outcome: history.Done, State: state(2, 5, "b")},
		{Client: 1, Server: "g1", Kind: history.Rollback, Request: "r10", To: 4, ToEpoch: first, Call: at(12), Return: at(13), Outcome: history.Done, Revision: 14},
		{Client: 3, Server: "g1", Kind: history.Read, Key: key(1), Call: at(14), Return: at(15), Outcome: history.Done, State: state(3, 14, "a")},
	}
	rollOut(h, marker)
	h.Leads = []history.Lead{{Server: "g1", At: at(1), Epoch: first, Revision: 2}, {Server: "g2", At: at(9), Epoch: first, Revision: 8}}
	h.Deliveries = []history.Delivery{
		{Watcher: "w", Server: "g1", At: at(3), Epoch: first, Prev: 2, Revision: 4, Changes: commits[1].Changes},
		{Watcher: "w", Server: "g2", At: at(5), Epoch: first, Prev: 4, Revision: 5, Changes: commits[2].Changes},
		{Watcher: "w", Server: "g2", At: at(11), Epoch: second, Revision: 12, Whole: true, All: image(12)},
	}
	h.Sightings = []history.Sighting{
		{Zone: "z", Boot: 1, Disk: 1, At: at(2), Epoch: first, Revision: 2, Synced: image(102)},
		{Zone: "z", Boot: 1, Disk: 1, At: at(5), Epoch: first, Revision: 5, Synced: image(105)},
		{Zone: "z", Boot: 2, Disk: 1, At: at(7), Epoch: first, Revision: 7, Synced: image(107), Gone: []resource.Key{key(1)}},
		{Zone: "z", Boot: 2, Disk: 1, At: at(11), Epoch: second, Revision: 12, Synced: image(105)},
		{Zone: "z", Boot: 2, Disk: 1, At: at(17), Epoch: second, Revision: 16, Synced: image(216)},
		{Zone: "y", Boot: 1, Disk: 1, At: at(17), Epoch: second, Revision: 16, Synced: image(116)},
		{Zone: "z", Boot: 2, Disk: 1, At: at(21), Epoch: second, Revision: 19, Synced: image(219), Gone: []resource.Key{key(2)}},
		{Zone: "z", Boot: 2, Disk: 1, At: at(22), Epoch: second, Revision: 20, Synced: image(118)},
	}
	frame := func(n int, stream int, kind history.FrameKind, rev, prev resource.Revision) history.Frame {
		return history.Frame{
			Zone: "z", Instance: "i", Stream: stream, Server: "g1", At: at(n), Kind: kind, Epoch: first,
			Revision: rev, Prev: prev, Part: 1, Parts: 1, Lease: uint64(stream), Sum: store.Digest{Lo: uint64(rev)}, Kinds: []resource.Kind{synced},
		}
	}
	h.Frames = []history.Frame{
		frame(2, 1, history.HelloFrame, 2, 0), frame(2, 1, history.WelcomeFrame, 4, 0),
		frame(3, 1, history.BatchFrame, 4, 2), frame(4, 1, history.BookmarkFrame, 4, 0),
		frame(5, 1, history.BatchFrame, 5, 4),
		frame(6, 2, history.HelloFrame, 5, 0), frame(6, 2, history.WelcomeFrame, 8, 0),
		frame(7, 2, history.BatchFrame, 7, 5), frame(8, 2, history.BookmarkFrame, 8, 0),
	}
	for _, i := range []int{1, 6} {
		h.Frames[i].Resume = true
	}
	h.Frames[8].Sum = store.Digest{Lo: 7}
	h.Waits = []history.Wait{{Promise: "L1", What: "a write after the healing", At: at(5), Took: time.Second, Limit: 3 * time.Second}}
	return h
}

// rollOut adds two rollouts to a sound history: one that is completed in its second
// stage, and one that is aborted.
func rollOut(h *history.History, marker func(string) history.Change) {
	written := func(name string, version uint64, rev resource.Revision) history.Change {
		return history.Change{Key: resource.Key{Kind: resource.KindRollout, Name: name}, State: state(version, rev, fmt.Sprint(name, version))}
	}
	full := history.RolloutState{
		Name: "full", Stage: 1, Stages: 2, Zones: []string{"z"},
		Changes: []history.RolloutChange{{Key: key(1), Replaces: 3, Value: "n"}, {Key: key(2), Value: "m"}},
	}
	last, done := full, full
	last.Stage, last.All = 2, true
	done.Stage, done.Zones, done.Completed = 2, nil, true
	back := history.RolloutState{Name: "back", Stage: 1, Stages: 2, Zones: []string{"z"}, Changes: []history.RolloutChange{{Key: key(2), Replaces: 1}}}
	aborted := back
	aborted.Zones, aborted.Aborted = nil, true
	for _, c := range []*history.Commit{
		{
			Revision: 16, Prev: 14, Requests: []string{"r16"}, Synced: image(116), Shown: map[string]history.Shown{"z": {Synced: image(216)}},
			Changes: []history.Change{marker("r16"), written("full", 1, 16)}, Rollouts: []history.RolloutState{full},
		},
		{
			Revision: 17, Prev: 16, Requests: []string{"r17"}, Synced: image(117), Shown: map[string]history.Shown{"z": {Synced: image(217)}, "y": {Synced: image(217)}},
			Changes: []history.Change{marker("r17"), written("full", 2, 17)}, Rollouts: []history.RolloutState{last},
		},
		{
			Revision: 18, Prev: 17, Requests: []string{"r18"}, Synced: image(118), Rollouts: []history.RolloutState{done},
			Changes: []history.Change{marker("r18"), {Key: key(1), State: state(4, 18, "n")}, {Key: key(2), State: state(1, 18, "m")}, written("full", 3, 18)},
		},
		{
			Revision: 19, Prev: 18, Requests: []string{"r19"}, Synced: image(119), Shown: map[string]history.Shown{"z": {Synced: image(219), Hidden: []resource.Key{key(2)}}},
			Changes: []history.Change{marker("r19"), written("back", 1, 19)}, Rollouts: []history.RolloutState{back},
		},
		{
			Revision: 20, Prev: 19, Requests: []string{"r20"}, Synced: image(118), Rollouts: []history.RolloutState{aborted},
			Changes: []history.Change{marker("r20"), written("back", 2, 20)},
		},
	} {
		c.Epoch, c.Seen, c.All, c.Sum = second, at(int(c.Revision)), image(int(c.Revision)), store.Digest{Lo: uint64(c.Revision)}
		h.Source.Add(c)
	}
	h.Ops = append(
		h.Ops,
		&history.Op{Client: 1, Server: "g1", Kind: history.Rollout, Value: "full", Request: "r18", Call: at(17), Return: at(19), Outcome: history.Done, Revision: 18},
		&history.Op{Client: 3, Server: "g1", Kind: history.Read, Key: key(1), Call: at(20), Return: at(21), Outcome: history.Done, State: state(4, 18, "n")},
	)
}

func TestSoundHistory(t *testing.T) {
	h := sound()
	require.Empty(t, history.Check(h))
	require.Empty(t, history.Linearizable(h, time.Minute))
	require.Equal(t, history.Counts{
		Acknowledged: 5, Reads: 5, Unknown: 1, Refused: 2, Commits: 12, Epochs: 2, Deliveries: 3, Sightings: 8, Frames: 9, Rollbacks: 1, Recalls: 3,
		Begun: 2, Completed: 1, Aborted: 1, Shown: 2,
	}, h.Count())
}

// TestEveryPromiseCanFail doctors a sound history in every way that a promise
// forbids, and expects that promise to be named.
func TestEveryPromiseCanFail(t *testing.T) {
	cases := []struct {
		promise, lie string
		doctor       func(*history.History)
	}{
		{"I1", "an acknowledged write was never committed", func(h *history.History) {
			h.Ops[0].Request = "r7"
		}},
		{"I1", "a write was told another revision than it has", func(h *history.History) {
			h.Ops[0].Revision = 5
		}},
		{"I1", "a server leads without an acknowledged write", func(h *history.History) {
			h.Leads[1].Revision = 5
		}},
		{"I2", "two servers hold different states", func(h *history.History) {
			h.Observations[3].All = image(99)
		}},
		{"I2", "a server comes back from its log with another state", func(h *history.History) {
			o := h.Observations[2]
			o.At, o.All = at(20), image(99)
			h.Observations = append(h.Observations, o)
		}},
		{"I3", "a zone shows another state than the global had", func(h *history.History) {
			h.Sightings[1].Synced = image(99)
		}},
		{"I3", "a zone shows a state between two commits", func(h *history.History) {
			h.Sightings[1].Revision = 4
		}},
		{"I3", "a zone names a revision that was never reached", func(h *history.History) {
			h.Sightings[3].Revision = 99
		}},
		{"I3", "a zone names an epoch that never was", func(h *history.History) {
			h.Sightings[3].Epoch.Random++
		}},
		{"I3", "a zone does not show the rollout that it has", func(h *history.History) {
			h.Sightings[4].Synced = image(116)
		}},
		{"I3", "a zone shows a rollout that it does not have", func(h *history.History) {
			h.Sightings[5].Synced = image(216)
		}},
		{"I3", "a zone still shows a rollout that was aborted", func(h *history.History) {
			h.Sightings[7].Synced = image(219)
		}},
		{"I4", "a zone goes back", func(h *history.History) {
			h.Sightings = append(h.Sightings[:3], h.Sightings[1])
		}},
		{"I4", "a zone returns to an earlier incarnation", func(h *history.History) {
			h.Sightings = append(h.Sightings, h.Sightings[2])
		}},
		{"I4", "a zone follows another cluster", func(h *history.History) {
			h.Sightings[3].Epoch.ClusterID = "other"
		}},
		{"I6", "a stream leaves a batch out", func(h *history.History) {
			h.Frames[2], h.Frames[4].Prev = history.Frame{}, 2
			h.Frames[3].Revision, h.Frames[3].Sum = 2, store.Digest{Lo: 2}
		}},
		{"I6", "a stream sends a batch twice", func(h *history.History) {
			h.Frames[4] = h.Frames[2]
		}},
		{"I6", "a batch follows what was not sent", func(h *history.History) {
			h.Frames[2].Prev = 3
		}},
		{"I6", "a batch is no commit", func(h *history.History) {
			h.Frames[4].Revision = 6
		}},
		{"I6", "a batch that changes nothing in scope", func(h *history.History) {
			h.Frames = append(h.Frames, h.Frames[7])
			h.Frames[9].Revision, h.Frames[9].Prev = 8, 7
		}},
		{"I6", "a part is missing", func(h *history.History) {
			h.Frames[2].Part, h.Frames[2].Parts = 2, 2
		}},
		{"I7", "a bookmark with the digest of another state", func(h *history.History) {
			h.Frames[3].Sum.Lo++
		}},
		{"I7", "a bookmark before a batch", func(h *history.History) {
			h.Frames[3].Revision, h.Frames[3].Sum = 5, store.Digest{Lo: 5}
		}},
		{"I7", "a bookmark of another epoch", func(h *history.History) {
			h.Frames[1].Epoch.Random++
		}},
		{"I8", "a stream with a lease from before", func(h *history.History) {
			h.Frames[5].Lease = 1
		}},
		{"I9", "a request took effect twice", func(h *history.History) {
			c := *h.Source.Of(first)[4]
			c.Revision, c.Prev = 9, 8
			h.Source.Add(&c)
		}},
		{"I10", "a zone lost what the global has", func(h *history.History) {
			h.Sightings[1].Gone = []resource.Key{key(1)}
		}},
		{"I10", "a zone lost what a rollout does not delete", func(h *history.History) {
			h.Sightings[6].Gone = []resource.Key{key(1)}
		}},
		{"I11", "a zone is sent a secret", func(h *history.History) {
			h.Frames[4].Kinds = []resource.Kind{synced, secret}
		}},
		{"L1", "writes did not resume in time", func(h *history.History) {
			h.Waits[0].Took = 4 * time.Second
		}},
		{"history", "a commit is missing", func(h *history.History) {
			h.Source.Of(first)[3].Prev = 6
		}},
		{"past", "a server reads another state than the global held", func(h *history.History) {
			h.Recalls[0].Synced = image(99)
		}},
		{"past", "a server reads the state of another revision", func(h *history.History) {
			h.Recalls[2].Revision = 5
		}},
		{"past", "a server reads a state before there was one", func(h *history.History) {
			h.Recalls[0].Revision = 1
		}},
		{"past", "a server has forgotten more than another", func(h *history.History) {
			h.Recalls[1].Oldest = 5
		}},
		{"rollback", "a rollback leaves a resource out", func(h *history.History) {
			h.Source.Of(second)[1].Content = image(99)
		}},
		{"rollback", "a rollback goes back to another revision", func(h *history.History) {
			h.Ops[9].To = 5
		}},
		{"I1", "an acknowledged rollback was never committed", func(h *history.History) {
			h.Ops[9].Request = "r11"
		}},
		{"linearizable", "a read misses a rollback", func(h *history.History) {
			h.Ops[10].State = state(2, 5, "b")
		}},
		{"linearizable", "a rollback writes what it does not change", func(h *history.History) {
			h.Source.Of(second)[1].Changes[1].State = state(2, 14, "a")
			h.Ops[10].State = state(2, 14, "a")
		}},
		{"rollout", "a rollout writes what it changes before the end", func(h *history.History) {
			c := h.Source.Of(second)[2]
			c.Changes = append(c.Changes, history.Change{Key: key(1), State: state(4, 16, "n")})
			h.Source.Of(second)[3].Changes = append(h.Source.Of(second)[3].Changes, history.Change{Key: key(1), State: state(4, 17, "n")})
		}},
		{"rollout", "another client writes what a rollout is to change", func(h *history.History) {
			h.Source.Of(second)[3].Rollouts = nil
			h.Source.Of(second)[3].Changes = []history.Change{{Key: key(2), State: state(1, 17, "other")}}
		}},
		{"rollout", "a rollout that was found with an epoch's state is forgotten", func(h *history.History) {
			third := store.Epoch{ClusterID: first.ClusterID, Incarnation: 3, Random: 3}
			open := h.Source.Of(second)[2]
			whole := &history.Commit{Epoch: third, Revision: 21, Whole: true, Rollouts: open.Rollouts, Changes: []history.Change{{Key: key(1), State: state(3, 14, "a")}}}
			h.Source.Add(whole)
			h.Source.Add(&history.Commit{Epoch: third, Revision: 21, Prev: 20})
			h.Source.Add(&history.Commit{Epoch: third, Revision: 22, Prev: 21, Changes: []history.Change{{Key: key(1), State: state(4, 22, "x")}}})
		}},
		{"rollout", "a completion leaves a resource out", func(h *history.History) {
			c := h.Source.Of(second)[4]
			c.Changes = append(c.Changes[:2:2], c.Changes[3])
		}},
		{"rollout", "a completion writes something else", func(h *history.History) {
			h.Source.Of(second)[4].Changes[2].State.Value = "other"
		}},
		{"rollout", "a completion of another version", func(h *history.History) {
			h.Source.Of(second)[4].Changes[1].State.Version = 5
		}},
		{"rollout", "a rollout is completed before its last stage", func(h *history.History) {
			h.Source.Of(second)[3].Rollouts[0].Stage = 1
		}},
		{"rollout", "a stage is skipped", func(h *history.History) {
			for _, c := range h.Source.Of(second)[2:5] {
				c.Rollouts[0].Stages = 3
			}
			h.Source.Of(second)[3].Rollouts[0].Stage = 3
		}},
		{"rollout", "a stage is repeated", func(h *history.History) {
			again, c := h.Source.Of(second)[2].Rollouts[0], h.Source.Of(second)[4]
			again.All = true
			c.Rollouts, c.Changes = []history.RolloutState{again}, nil
		}},
		{"rollout", "a rollout begins in its second stage", func(h *history.History) {
			h.Source.Of(second)[5].Rollouts[0].Stage = 2
		}},
		{"rollout", "a rollout of what is not stored", func(h *history.History) {
			h.Source.Of(second)[5].Rollouts[0].Changes[0].Replaces = 2
		}},
		{"rollout", "two rollouts of one key", func(h *history.History) {
			other := h.Source.Of(second)[2].Rollouts[0]
			other.Name = "other"
			h.Source.Of(second)[3].Rollouts = append(h.Source.Of(second)[3].Rollouts, other)
		}},
		{"rollout", "a rollout becomes another", func(h *history.History) {
			h.Source.Of(second)[3].Rollouts[0].Changes = []history.RolloutChange{{Key: key(1), Replaces: 3, Value: "x"}}
		}},
		{"rollout", "a zone loses a rollout that continues", func(h *history.History) {
			h.Source.Of(second)[3].Rollouts[0].Zones = []string{"y"}
		}},
		{"rollout", "an abort writes what was to be deleted", func(h *history.History) {
			c := h.Source.Of(second)[6]
			c.Changes = append(c.Changes, history.Change{Key: key(2)})
		}},
		{"rollout", "a completion is repeated", func(h *history.History) {
			h.Source.Add(&history.Commit{
				Epoch: second, Revision: 21, Prev: 20, Requests: []string{"r21"}, Changes: []history.Change{{Key: key(1), State: state(5, 21, "n")}},
			})
			h.Ops = append(h.Ops, &history.Op{Client: 1, Server: "g1", Kind: history.Rollout, Request: "r21", Call: at(21), Return: history.Never, Outcome: history.Unknown})
		}},
		{"rollout", "a rollout continues after its end", func(h *history.History) {
			c := *h.Source.Of(second)[3]
			c.Revision, c.Prev = 21, 20
			h.Source.Add(&c)
		}},
		{"rollout", "a rollout is removed before its end", func(h *history.History) {
			c := h.Source.Of(second)[6]
			c.Rollouts, c.Changes[1].State = nil, history.State{}
		}},
		{"I1", "an acknowledged completion was never committed", func(h *history.History) {
			h.Ops[11].Request = "r11"
		}},
		{"linearizable", "a read misses a completion", func(h *history.History) {
			h.Ops[12].State = state(3, 14, "a")
		}},
		{"linearizable", "a key is written on its way to the end of a rollout", func(h *history.History) {
			h.Source.Of(second)[4].Changes[1].State.Version = 5
			h.Ops[12].State = state(5, 18, "n")
		}},
		{"watch", "a commit is delivered twice", func(h *history.History) {
			h.Deliveries[1] = h.Deliveries[0]
			h.Deliveries[1].Prev = 4
		}},
		{"watch", "a commit is left out over a resume", func(h *history.History) {
			d := h.Deliveries[1]
			d.Prev, d.Revision, d.Changes = 5, 8, h.Source.Of(first)[4].Changes
			h.Deliveries = append(h.Deliveries, d)
		}},
		{"watch", "half a commit is delivered", func(h *history.History) {
			h.Deliveries[1].Changes = h.Deliveries[1].Changes[:1]
		}},
		{"watch", "what is delivered was not committed", func(h *history.History) {
			h.Deliveries[1].Revision = 6
		}},
		{"watch", "a state as a whole that never was", func(h *history.History) {
			h.Deliveries[2].All = image(99)
		}},
		{"linearizable", "a read misses a write that was acknowledged", func(h *history.History) {
			h.Ops[8].State = history.State{}
		}},
		{"linearizable", "a read returns what was overwritten", func(h *history.History) {
			h.Ops[5].State = state(1, 4, "a")
		}},
		{"linearizable", "a write whose condition did not hold", func(h *history.History) {
			one := uint64(1)
			h.Ops[0].If = &one
		}},
		{"linearizable", "a conflict where there was none", func(h *history.History) {
			h.Ops[3].If = nil
		}},
		{"linearizable", "a value that was never written", func(h *history.History) {
			h.Ops[1].State.Value = "z"
		}},
		{"linearizable", "a write that never took effect is read", func(h *history.History) {
			h.Ops[2].Request = "r7"
			h.Ops[1].State = state(2, 5, "b")
		}},
	}
	covered := map[string]bool{}
	for _, c := range cases {
		covered[c.promise] = true
		t.Run(c.promise+" "+c.lie, func(t *testing.T) {
			h := sound()
			c.doctor(h)
			broken := map[string]bool{}
			for _, v := range append(history.Check(h), history.Linearizable(h, time.Minute)...) {
				broken[v.Promise] = true
			}
			require.True(t, broken[c.promise], "found %v", broken)
		})
	}
	for _, p := range history.Promises() {
		require.True(t, covered[p.Name] || p.Name == "liveness", "no lie shows that %s can fail", p.Name)
	}
}

// TestUnknownOutcome: without the whole history of the global a write of unknown
// outcome may have taken effect at any time after its call, or never.
func TestUnknownOutcome(t *testing.T) {
	read := func(call int, s history.State) *history.Op {
		return &history.Op{Kind: history.Read, Key: key(1), Call: at(call), Return: at(call + 1), Outcome: history.Done, State: s}
	}
	lost := &history.Op{Kind: history.Put, Key: key(1), Value: "a", Request: "r", Call: at(1), Return: history.Never, Outcome: history.Unknown}
	a := state(1, 7, "a")
	for name, c := range map[string]struct {
		ops  []*history.Op
		good bool
	}{
		"never":       {[]*history.Op{lost, read(2, history.State{}), read(9, history.State{})}, true},
		"late":        {[]*history.Op{lost, read(2, history.State{}), read(9, a)}, true},
		"taken back":  {[]*history.Op{lost, read(2, a), read(9, history.State{})}, false},
		"too early":   {[]*history.Op{read(-2, a), lost}, false},
		"at another":  {[]*history.Op{lost, read(2, a), read(4, state(1, 8, "a"))}, false},
		"twice":       {[]*history.Op{lost, read(2, a), read(4, state(2, 8, "a"))}, false},
		"known twice": {[]*history.Op{lost, read(2, a), read(4, a)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &history.History{Ops: c.ops, Synced: isSynced}
			require.Equal(t, c.good, len(history.Linearizable(h, time.Minute)) == 0)
		})
	}
}

// TestReport: a failure shows what was broken, the faults and the operations
// before it, and a page with the impossible operations.
func TestReport(t *testing.T) {
	h := sound()
	h.Notes = []history.Note{{At: at(6), Text: "g1 crashes"}, {At: at(9), Text: "the global is restored"}}
	h.Ops[5].State = state(1, 4, "a")
	violations := history.Linearizable(h, time.Minute)
	require.Len(t, violations, 1)
	require.Equal(t, at(8), violations[0].At, "when the answer was given that nothing explains")
	var out strings.Builder
	history.Report(&out, h, violations, 20)
	require.Contains(t, out.String(), "linearizable broken at 8s")
	require.Contains(t, out.String(), "g1 crashes")
	require.Contains(t, out.String(), "client 3 at g2: read Retry/default/k-1")
	pages, err := history.Visualize(h, t.TempDir())
	require.NoError(t, err)
	require.Len(t, pages, 1)
	page, err := os.ReadFile(pages[0])
	require.NoError(t, err)
	require.Contains(t, string(page), "k-1")
}

// TestSource: a complete state is superseded by one that is reported step by step.
func TestSource(t *testing.T) {
	h := sound()
	require.Equal(t, map[resource.Key]history.State{key(1): state(2, 5, "b")}, without(h.Source.Whole(first, 6)))
	require.Empty(t, without(h.Source.Whole(first, 7)))
	require.Equal(t, state(2, 5, "b"), h.Source.StateAt(second, 12, key(1)))
	whole := &history.Commit{Epoch: first, Revision: 30, Whole: true, Seen: at(30)}
	told := &history.Commit{Epoch: first, Revision: 30, Prev: 8, Seen: at(31), Requests: []string{"r30"}}
	require.Same(t, whole, h.Source.Add(whole))
	require.Same(t, told, h.Source.Add(told))
	require.Equal(t, at(30), told.Seen)
	require.Same(t, whole, told.Base)
	require.Same(t, told, h.Source.Add(&history.Commit{Epoch: first, Revision: 30, Whole: true}))
	require.Equal(t, []*history.Commit{told}, h.Source.Made("r30"))

	// What a state holds is known from there on, whichever was seen first.
	held := []history.Change{{Key: key(7), State: state(1, 20, "held")}}
	for _, wholeFirst := range []bool{true, false} {
		both := []*history.Commit{{Epoch: first, Revision: 40, Prev: 30}, {Epoch: first, Revision: 40, Whole: true, Changes: held}}
		if wholeFirst {
			slices.Reverse(both)
		}
		var source history.Source
		source.Add(both[0])
		source.Add(both[1])
		source.Add(&history.Commit{Epoch: first, Revision: 41, Prev: 40})
		require.Equal(t, state(1, 20, "held"), source.StateAt(first, 41, key(7)))
		require.Equal(t, map[resource.Key]history.State{key(7): state(1, 20, "held")}, source.Whole(first, 41))
	}
}

func without(m map[resource.Key]history.State) map[resource.Key]history.State {
	maps.DeleteFunc(m, func(k resource.Key, _ history.State) bool { return k.Kind == secret })
	return m
}
