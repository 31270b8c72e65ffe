package store_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// §1.1: version counts from 1, creation time stays, modification
// time, version and revision move with each write.
func TestApplyAssignsTheEnvelope(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	first := puts(retry("a", 1))
	first.Time = clock(5)
	result := s.Apply(7, first)
	require.NoError(t, result.Err)
	require.Equal(t, resource.Revision(7), result.Revision)
	require.Equal(t, []store.OpResult{{Key: retryKey("default", "a"), Outcome: store.Created, Version: 1}}, result.Results)

	second := puts(retry("a", 2))
	second.Time = clock(9)
	result = s.Apply(9, second)
	require.Equal(t, store.Updated, result.Results[0].Outcome)
	require.Equal(t, uint64(2), result.Results[0].Version)

	m := get(t, s.View(), retryKey("default", "a")).Meta()
	require.Equal(t, clock(5), m.CreationTime)
	require.Equal(t, clock(9), m.ModificationTime)
	require.Equal(t, uint64(2), m.Version)
	require.Equal(t, resource.Revision(9), m.Revision)

	require.Equal(t, store.Deleted, s.Apply(11, deletes(m.Key)).Results[0].Outcome)
	result = s.Apply(12, puts(retry("a", 3)))
	require.Equal(t, store.OpResult{Key: m.Key, Outcome: store.Created, Version: 1}, result.Results[0])
}

// The envelope that a writer brings is ignored.
func TestApplyIgnoresTheWritersEnvelope(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	forged := retry("a", 1).WithMeta(resource.Meta{
		Key: retryKey("default", "a"), Version: 40, Revision: 90, CreationTime: clock(-100), ModificationTime: clock(900),
	})
	txn := puts(forged)
	txn.Time = clock(1)
	require.NoError(t, s.Apply(2, txn).Err)
	m := get(t, s.View(), forged.Key()).Meta()
	require.Equal(t, resource.Meta{
		Key: forged.Key(), Version: 1, Revision: 2, CreationTime: clock(1), ModificationTime: clock(1),
	}, m)
}

// §1.1: a batch has one time, raised to the last batch's + 1 ns.
func TestApplyRaisesTime(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	for i, c := range []struct {
		name     string
		proposed time.Time
		want     time.Time
	}{
		{"later", clock(10), clock(10)},
		{"equal", clock(10), clock(10).Add(1)},
		{"earlier", clock(2), clock(10).Add(2)},
		{"absent", time.Time{}, clock(10).Add(3)},
		{"another time zone", clock(11).In(time.FixedZone("x", 3600)), clock(11)},
	} {
		txn := puts(retry("a", i))
		txn.Time = c.proposed
		require.NoError(t, s.Apply(resource.Revision(10+i), txn).Err, c.name)
		require.Equal(t, c.want, get(t, s.View(), retryKey("default", "a")).Meta().ModificationTime, c.name)
		require.Equal(t, c.want, s.View().Time(), c.name)
	}
}

// Equal canonical bytes and labels are no change: the envelope stays, the feed
// is silent, and the revision moves all the same.
func TestApplyUnchanged(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.NoError(t, s.Apply(3, puts(retry("a", 1))).Err)
	before := get(t, s.View(), retryKey("default", "a"))

	again := retry("a", 1)
	again = again.WithMeta(resource.Meta{Key: again.Key(), Labels: map[string]string{}})
	result := s.Apply(5, puts(again))
	require.NoError(t, result.Err)
	require.Equal(t, []store.OpResult{{Key: before.Key(), Outcome: store.Unchanged, Version: 1}}, result.Results)
	require.Equal(t, resource.Revision(3), result.Revision)
	require.Same(t, before, get(t, s.View(), before.Key()))
	require.Equal(t, resource.Revision(5), s.Revision())
	require.Equal(t, resource.Revision(3), s.View().Changed())
	require.NoError(t, s.Wait(t.Context(), 5))

	labelled := again.WithMeta(resource.Meta{Key: again.Key(), Labels: map[string]string{"team": "x"}})
	require.Equal(t, store.Updated, s.Apply(6, puts(labelled)).Results[0].Outcome)
	batches, err := s.Next(t.Context(), 3)
	require.NoError(t, err)
	require.Len(t, batches, 1)
	require.Equal(t, resource.Revision(6), batches[0].Revision)
	require.Equal(t, resource.Revision(3), batches[0].Prev)
}

func TestApplyDeletesWhatIsMissing(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	result := s.Apply(2, store.Txn{Ops: []store.Op{store.Delete(retryKey("default", "gone")), store.Put(retry("a", 1))}})
	require.NoError(t, result.Err)
	require.Equal(t, store.Missing, result.Results[0].Outcome)
	require.Equal(t, store.Created, result.Results[1].Outcome)
}

// §1.2: a batch is applied whole or not at all; §1.4 and §6.4 name
// the reasons. Each refusal leaves state and feed alone and uses its revision.
func TestApplyRefuses(t *testing.T) {
	rev := func(r resource.Revision) *resource.Revision { return &r }
	a := retryKey("default", "a")
	for _, c := range []struct {
		name string
		txn  store.Txn
		want error
	}{
		{
			"precondition: another version",
			store.Txn{Preconditions: []store.Precondition{{Key: a, Version: 2}}},
			&store.ConflictError{Key: a, Want: 2, Have: 1, HaveRevision: 2},
		},
		{
			"precondition: must not exist",
			store.Txn{Preconditions: []store.Precondition{{Key: a}}},
			&store.ConflictError{Key: a, Have: 1, HaveRevision: 2},
		},
		{
			"precondition: must exist",
			store.Txn{Preconditions: []store.Precondition{{Key: retryKey("default", "b"), Version: 1}}},
			&store.ConflictError{Key: retryKey("default", "b"), Want: 1},
		},
		{
			"precondition: created anew",
			store.Txn{Preconditions: []store.Precondition{{Key: a, Version: 1, Revision: 1}}},
			&store.ConflictError{Key: a, Want: 1, Have: 1, WantRevision: 1, HaveRevision: 2},
		},
		{
			"§6.4: access rules changed",
			store.Txn{AccessRevision: rev(2)},
			&store.AccessChangedError{Decided: 2, Current: 3},
		},
		{
			"§1.4: no such mesh",
			puts(thing(retryKey("demo", "x"), 1)),
			&store.MeshMissingError{Key: retryKey("demo", "x")},
		},
		{
			"§1.4: mesh has resources",
			deletes(meshKey("default")),
			&store.MeshNotEmptyError{Mesh: "default", Count: 2, Example: a},
		},
		{
			"§1.4: write into a mesh deleted with it",
			store.Txn{Ops: []store.Op{store.Delete(meshKey("default")), store.Delete(a), store.Put(retry("b", 1))}},
			&store.MeshNotEmptyError{Mesh: "default", Count: 2, Example: retryKey("default", "b")},
		},
		{
			"two operations on a key",
			store.Txn{Ops: []store.Op{store.Put(retry("b", 1)), store.Delete(retryKey("default", "b"))}},
			&store.InvalidOpError{Key: retryKey("default", "b"), Reason: "more than one operation on this key in a batch"},
		},
		{
			"key of another resource",
			store.Txn{Ops: []store.Op{{Key: a, Resource: retry("b", 1)}}},
			&store.InvalidOpError{Key: a, Reason: "its resource is Retry/default/b"},
		},
		{
			"no key",
			store.Txn{Ops: []store.Op{{}}},
			&store.InvalidOpError{Reason: "kind and name are required"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := opened(t, store.DefaultOptions())
			require.NoError(t, s.Apply(2, puts(retry("a", 1))).Err)
			require.NoError(t, s.Apply(3, puts(role("admin", 1))).Err)
			before := s.View()

			c.txn.RequestID = "refused"
			c.txn.Ops = append([]store.Op{store.Put(retry("new", 1))}, c.txn.Ops...)
			result := s.Apply(4, c.txn)
			require.Equal(t, c.want, result.Err)
			require.NotEmpty(t, result.Err.Error())
			require.Empty(t, result.Results)
			require.Equal(t, resource.Revision(3), result.Revision)

			require.Equal(t, resource.Revision(4), s.Revision())
			require.Equal(t, dump(before.All()), dump(s.View().All()))
			require.Equal(t, before.DigestOf(nil), s.View().DigestOf(nil))
			require.Equal(t, before.Buckets(nil), s.View().Buckets(nil))
			require.Equal(t, 1, s.View().Count("Retry"))

			retried := puts(retry("new", 1))
			retried.RequestID = "refused"
			require.False(t, s.Apply(5, retried).Duplicate, "a refused request had no effect and may be tried again")
		})
	}
}

// §1.2: the order of documents does not matter, so a mesh and what
// lives in it come and go together.
func TestApplyMeshWithItsResources(t *testing.T) {
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(1, puts(thing(retryKey("demo", "x"), 1), mesh("demo"))).Err)
	require.NoError(t, s.Apply(2, deletes(meshKey("demo"), retryKey("demo", "x"))).Err)
	require.Zero(t, s.View().Len())
	require.Empty(t, s.View().Kinds())
}

func TestApplyExternalMeshes(t *testing.T) {
	opts := store.DefaultOptions()
	opts.ExternalMeshes = true
	s := store.New(opts)
	require.NoError(t, s.Apply(1, puts(thing(retryKey("elsewhere", "x"), 1))).Err)
}

// §6.4: the access revision follows roles and bindings and nothing
// else.
func TestAccessRevision(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.Zero(t, s.View().AccessRevision())
	require.NoError(t, s.Apply(2, puts(role("a", 1))).Err)
	require.NoError(t, s.Apply(3, puts(retry("a", 1))).Err)
	require.NoError(t, s.Apply(4, puts(role("a", 1))).Err, "unchanged")
	require.Equal(t, resource.Revision(2), s.View().AccessRevision())
	decided := s.View().AccessRevision()
	binding := resource.Key{Kind: "AccessRoleBinding", Name: "b"}
	require.NoError(t, s.Apply(5, store.Txn{Ops: []store.Op{store.Put(thing(binding, 1))}, AccessRevision: &decided}).Err)
	require.Equal(t, resource.Revision(5), s.View().AccessRevision())
	require.NoError(t, s.Apply(6, deletes(binding)).Err)
	require.Equal(t, resource.Revision(6), s.View().AccessRevision())
}

// I9: a request id takes effect at most once.
func TestRequestIDs(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	txn := puts(retry("a", 1))
	txn.RequestID = "r1"
	first := s.Apply(2, txn)
	require.NoError(t, s.Apply(3, puts(retry("a", 2))).Err)

	again := s.Apply(4, txn)
	require.True(t, again.Duplicate)
	require.Equal(t, first.Revision, again.Revision)
	require.Equal(t, first.Results, again.Results)
	require.Equal(t, []byte(`{"n":2}`), get(t, s.View(), retryKey("default", "a")).Canonical())
	require.Equal(t, resource.Revision(4), s.Revision())

	idle := puts(retry("a", 2))
	idle.RequestID = "idle"
	require.Equal(t, store.Unchanged, s.Apply(5, idle).Results[0].Outcome)
	require.NoError(t, s.Apply(6, puts(retry("a", 3))).Err)
	require.Equal(t, store.Unchanged, s.Apply(7, idle).Results[0].Outcome, "what changed nothing is remembered too")
}

// TestRequestIDsAreForgottenInOrder: an id is remembered for a time, and as long
// as it is among the last few, and at most as many as have space; across a
// snapshot too. What may have been forgotten is known.
func TestRequestIDsAreForgottenInOrder(t *testing.T) {
	opts := store.DefaultOptions()
	opts.Requests = store.Requests{Min: 3, MaxAge: 10 * time.Minute, MaxBytes: 4000}
	s := opened(t, opts)
	start := clock(100)
	rev := s.Revision()
	do := func(at time.Duration, id string, resources ...*resource.Resource) store.Result {
		rev++
		txn := puts(resources...)
		txn.RequestID, txn.Time = id, start.Add(at)
		return s.Apply(rev, txn)
	}
	through := func() {
		var file bytes.Buffer
		require.NoError(t, s.WriteSnapshot(&file))
		snap, err := store.ReadSnapshot(&file)
		require.NoError(t, err)
		s = opened(t, opts)
		require.NoError(t, s.Reset(snap))
	}
	for i := range 6 {
		do(time.Duration(i)*time.Minute, fmt.Sprint(i), retry("a", i))
	}
	require.True(t, s.Remembers("new", start, time.Hour), "nothing is forgotten")
	do(9*time.Minute, "mid", retry("a", 6))
	do(12*time.Minute, "late", retry("a", 7))
	for round := range 2 {
		for i, kept := range []bool{false, false, true, true, true, true} {
			_, ok := s.Applied(fmt.Sprint(i))
			require.Equal(t, kept, ok, "round %d: %d", round, i)
		}
		now := start.Add(12 * time.Minute)
		require.True(t, s.Remembers("5", now, 12*time.Minute), "it is there")
		require.False(t, s.Remembers("1", now, 11*time.Minute), "whether it was applied is not known")
		require.True(t, s.Remembers("1", now, 11*time.Minute-1), "what is younger is all there")
		require.False(t, s.Remembers("1", now.Add(time.Hour), 11*time.Minute), "the leaders' clocks may be behind")
		require.False(t, s.Remembers("1", now.Add(-time.Hour), 0), "and so may this server's")
		through()
	}
	do(time.Hour, "hour", retry("a", 8))
	for i, kept := range []bool{false, false, false, false, false, true} {
		_, ok := s.Applied(fmt.Sprint(i))
		require.Equal(t, kept, ok, "an hour counts as a third of the age: %d", i)
	}
	require.True(t, do(time.Hour, "hour").Duplicate)
	var many []*resource.Resource
	for i := range 60 {
		many = append(many, retry(fmt.Sprint("m", i), 1))
	}
	do(time.Hour, "big", many...)
	require.True(t, do(time.Hour, "big").Duplicate, "the newest stays, however big")
	require.False(t, s.Remembers("hour", start.Add(time.Hour), 0), "and leaves no space for others")
}

// TestAClockThatJumpsForgetsLittle: a leader whose clock jumps ahead by any time, and
// the one after it whose clock is right, cost a third of the age: what was applied
// within the other two thirds is remembered, on servers that started from a
// snapshot as well.
func TestAClockThatJumpsForgetsLittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := store.DefaultOptions()
		opts.Requests = store.Requests{MaxAge: 15 * time.Minute, MaxBytes: 64 << 20}
		one, two := store.New(opts), store.New(opts)
		at, rev := clock(0), resource.Revision(0)
		applied := map[string]time.Time{} // by the clock that is right
		jump := time.Duration(rapid.Int64Range(int64(time.Second), int64(10_000*time.Hour)).Draw(t, "jump"))
		when, jumped := rapid.IntRange(1, 60).Draw(t, "when"), time.Duration(0)
		for i := range 80 {
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "pause")))
			if i == when {
				jumped = jump
			} else if i > when && rapid.Bool().Draw(t, "right again") {
				jumped = 0
			}
			rev++
			id := fmt.Sprint(i)
			txn := puts(mesh(fmt.Sprint("m-", i)))
			txn.RequestID, txn.Time = id, at.Add(jumped)
			require.Equal(t, one.Apply(rev, txn), two.Apply(rev, txn))
			applied[id] = at
			if rapid.IntRange(0, 9).Draw(t, "snapshot") == 0 {
				var file bytes.Buffer
				require.NoError(t, two.WriteSnapshot(&file))
				snap, err := store.ReadSnapshot(&file)
				require.NoError(t, err)
				two = store.New(opts)
				require.NoError(t, two.Reset(snap))
			}
			if jumped != 0 && i > when {
				jump, jumped = 0, 0 // one jump
			}
		}
		for id, when := range applied {
			_, kept := one.Applied(id)
			_, other := two.Applied(id)
			require.Equal(t, kept, other, "servers agree about %s", id)
			if at.Sub(when) < 10*time.Minute {
				require.True(t, kept, "%s was applied %s ago", id, at.Sub(when))
			}
		}
	})
}

// TestManyRequestsWithinOneRetry: at several thousand writes in a second, a request
// whose answer took minutes is still remembered.
func TestManyRequestsWithinOneRetry(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	rev := s.Revision()
	do := func(id string, at time.Duration) store.Result {
		rev++
		txn := puts(retry("a", int(rev)))
		txn.RequestID, txn.Time = id, clock(0).Add(at)
		return s.Apply(rev, txn)
	}
	first := do("first", 0)
	const many = 40_000
	for i := range many {
		require.False(t, do(fmt.Sprintf("0123456789012345678901234567-%d", i), time.Duration(i)*5*time.Minute/many).Duplicate)
	}
	again := do("first", 5*time.Minute)
	require.True(t, again.Duplicate)
	require.Equal(t, first.Revision, again.Revision)
}

func TestEpoch(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.Zero(t, s.View().Epoch())
	e := store.Epoch{ClusterID: "c", Incarnation: 1, Random: 77}
	result := s.Apply(2, store.Txn{SetEpoch: &e})
	require.NoError(t, result.Err)
	require.Equal(t, resource.Revision(2), result.Revision)
	require.Equal(t, e, s.View().Epoch())
	batches, err := s.Next(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, &e, batches[0].Epoch)
	require.Empty(t, batches[0].Changes)

	require.Equal(t, resource.Revision(2), s.Apply(3, store.Txn{SetEpoch: &e}).Revision, "the same epoch is no change")
	past, err := s.ViewAt(1)
	require.NoError(t, err)
	require.Zero(t, past.Epoch())
}

func TestApplyPanicsOnAnOldRevision(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.Panics(t, func() { s.Apply(1, store.Txn{}) })
	s.Advance(9)
	require.Panics(t, func() { s.Apply(9, store.Txn{}) })
	s.Advance(4)
	require.Equal(t, resource.Revision(9), s.Revision())
}

func TestOptionsValidate(t *testing.T) {
	require.NoError(t, store.DefaultOptions().Validate())
	require.NoError(t, store.Options{}.Validate())
	require.Error(t, store.Options{History: store.History{MaxAge: -1}}.Validate())
	require.Error(t, store.Options{Requests: store.Requests{Min: -1}}.Validate())
	require.Panics(t, func() { store.New(store.Options{History: store.History{MaxBytes: -1}}) })
}

func TestOutcomesAreTheWordsOfApply(t *testing.T) {
	for outcome, word := range map[store.Outcome]string{
		store.Unchanged: "unchanged", store.Created: "created", store.Updated: "updated",
		store.Deleted: "deleted", store.Missing: "missing", 42: "outcome(42)",
	} {
		require.Equal(t, word, outcome.String())
	}
}

// A batch that was decided on a part of the state is refused where that is not as it was:
// where one of its resources was created, changed, deleted or created anew. Other meshes
// and kinds do not matter.
func TestApplyOnAPartOfTheState(t *testing.T) {
	timeouts := []resource.Kind{resource.KindTimeout, resource.KindRetry}
	put := func(kind resource.Kind, mesh, name, spec string) store.Op {
		meta := resource.Meta{Key: resource.Key{Kind: kind, Mesh: resource.MeshName(mesh), Name: name}}
		return store.Put(resource.New(meta, nil, []byte(spec)))
	}
	mine := resource.Key{Kind: resource.KindTimeout, Mesh: "a", Name: "mine"}
	for name, tt := range map[string]struct {
		meanwhile []store.Op
		refused   bool
	}{
		"nothing":            {},
		"another mesh":       {meanwhile: []store.Op{put(resource.KindTimeout, "b", "x", "{}")}},
		"another kind":       {meanwhile: []store.Op{put(resource.KindTrafficLog, "a", "x", "{}")}},
		"written as it is":   {meanwhile: []store.Op{put(resource.KindTimeout, "a", "mine", "{}")}},
		"created":            {meanwhile: []store.Op{put(resource.KindRetry, "a", "x", "{}")}, refused: true},
		"changed":            {meanwhile: []store.Op{put(resource.KindTimeout, "a", "mine", `{"conf":{}}`)}, refused: true},
		"deleted":            {meanwhile: []store.Op{store.Delete(mine)}, refused: true},
		"deleted and create": {meanwhile: []store.Op{store.Delete(mine), put(resource.KindTimeout, "a", "mine", "{}")}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := store.New(store.DefaultOptions())
			write := func(txn store.Txn) error { return s.Apply(s.Revision()+1, txn).Err }
			require.NoError(t, write(store.Txn{Ops: []store.Op{put(resource.KindMesh, "", "a", "{}"), put(resource.KindMesh, "", "b", "{}"), put(resource.KindTimeout, "a", "mine", "{}")}}))
			parts := []store.Part{{Mesh: "a", Kinds: timeouts, Digest: s.View().PartDigest("a", timeouts)}}
			for _, op := range tt.meanwhile {
				require.NoError(t, write(store.Txn{Ops: []store.Op{op}}))
			}
			err := write(store.Txn{Ops: []store.Op{put(resource.KindTimeout, "a", "late", "{}")}, Parts: parts})
			if !tt.refused {
				require.NoError(t, err)
				return
			}
			var changed *store.PartChangedError
			require.ErrorAs(t, err, &changed)
			require.EqualError(t, err, `mesh "a" changed since the write was decided`)
		})
	}
}
