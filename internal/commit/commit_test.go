package commit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/commit"
	"meridian/internal/commit/committest"
	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

func mesh(t *testing.T, name string) *resource.Resource {
	t.Helper()
	return resourcetest.Build(t, "Mesh", "", name, "{}")
}

// creating decides to create a mesh that must not be there.
func creating(r *resource.Resource) func() (commit.Batch, error) {
	return func() (commit.Batch, error) {
		return commit.Batch{Txn: store.Txn{Ops: []store.Op{store.Put(r)}, Preconditions: []store.Precondition{{Key: r.Key()}}}}, nil
	}
}

// A write that lost to another one is decided again on the newest state, and so
// often only.
func TestDecidedAgain(t *testing.T) {
	log := committest.New(store.New(store.DefaultOptions()))
	reads, decisions := 0, 0
	log.Reading(func() error { reads++; return nil })
	log.Once(func() { log.Write(store.Txn{Ops: []store.Op{store.Put(mesh(t, "a"))}}) })
	result, err := commit.Write(t.Context(), log, func() (commit.Batch, error) {
		decisions++
		if _, exists := log.View().Get(mesh(t, "a").Key()); exists {
			return commit.Batch{}, nil
		}
		return creating(mesh(t, "a"))()
	})
	require.NoError(t, err)
	require.Empty(t, result.Results, "there was nothing left to write")
	require.Equal(t, []int{2, 1}, []int{decisions, reads})

	decisions = 0
	_, err = commit.Write(t.Context(), log, func() (commit.Batch, error) {
		decisions++
		return creating(mesh(t, "a"))()
	})
	require.True(t, rpcerr.HasReason(err, commit.ReasonContention), "%v", err)
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
	require.Equal(t, commit.MaxDecisions, decisions)
}

// The caller's own condition decides; what else has changed does not matter.
func TestTheCallersOwnCondition(t *testing.T) {
	log := committest.New(store.New(store.DefaultOptions()))
	require.NoError(t, commit.CreateMissing(t.Context(), log, time.Time{}, mesh(t, "a")))
	on := func(version uint64) []commit.Condition {
		return []commit.Condition{{Precondition: store.Precondition{Key: mesh(t, "a").Key(), Version: version}}}
	}
	for version, code := range map[uint64]rpcerr.Code{0: rpcerr.Conflict, 7: rpcerr.Conflict} {
		decisions := 0
		_, err := commit.Write(t.Context(), log, func() (commit.Batch, error) {
			decisions++
			return commit.Batch{Txn: store.Txn{Ops: []store.Op{store.Put(mesh(t, "a"))}}, Conditions: on(version)}, nil
		})
		require.Equal(t, code, rpcerr.CodeOf(err), "%v", err)
		require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
		require.Equal(t, 1, decisions)
	}
	_, err := commit.Write(t.Context(), log, func() (commit.Batch, error) {
		return commit.Batch{Txn: store.Txn{Ops: []store.Op{store.Put(mesh(t, "a"))}}, Conditions: on(1)}, nil
	})
	require.NoError(t, err)
}

// A condition on a revision that fails is final, although the version is the one
// that it names; a decision of the batch itself on that version is made again.
func TestAConditionOnARevision(t *testing.T) {
	state := store.New(store.DefaultOptions())
	log := committest.New(state)
	key := mesh(t, "a").Key()
	require.NoError(t, commit.CreateMissing(t.Context(), log, time.Time{}, mesh(t, "a")))
	first, _ := state.View().Get(key)
	for _, op := range []store.Op{store.Delete(key), store.Put(mesh(t, "a"))} {
		_, err := log.Propose(t.Context(), store.Txn{Ops: []store.Op{op}})
		require.NoError(t, err)
	}
	second, _ := state.View().Get(key)
	require.Equal(t, first.Meta().Version, second.Meta().Version)
	for _, tc := range []struct {
		revision resource.Revision
		code     rpcerr.Code
	}{{first.Meta().Revision, rpcerr.Conflict}, {second.Meta().Revision, 0}} {
		decisions := 0
		_, err := commit.Write(t.Context(), log, func() (commit.Batch, error) {
			decisions++
			return commit.Batch{
				Txn:        store.Txn{Ops: []store.Op{store.Put(mesh(t, "a"))}},
				Conditions: []commit.Condition{{Precondition: store.Precondition{Key: key, Version: 1, Revision: tc.revision}}},
			}, nil
		})
		if tc.code == 0 {
			require.NoError(t, err)
		} else {
			require.Equal(t, tc.code, rpcerr.CodeOf(err), "%v", err)
		}
		require.Equal(t, 1, decisions)
	}
}

// A condition that also holds for a missing resource is judged again when the
// resource is deleted or created while the batch is decided.
func TestAConditionThatHoldsForAMissingResource(t *testing.T) {
	for _, tc := range []struct {
		name      string
		version   uint64 // of the condition
		before    bool   // whether the resource exists at first
		interfere store.Op
		decisions int
		code      rpcerr.Code
	}{
		{"deleted meanwhile", 1, true, store.Delete(mesh(t, "a").Key()), 2, 0},
		{"created meanwhile, at another version", 7, false, store.Put(mesh(t, "a")), 1, rpcerr.Conflict},
		{"created meanwhile, at the version", 1, false, store.Put(mesh(t, "a")), 2, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state := store.New(store.DefaultOptions())
			log := committest.New(state)
			if tc.before {
				require.NoError(t, commit.CreateMissing(t.Context(), log, time.Time{}, mesh(t, "a")))
			}
			decisions := 0
			_, err := commit.Write(t.Context(), log, func() (commit.Batch, error) {
				decisions++
				own := store.Precondition{Key: mesh(t, "a").Key()}
				if r, ok := state.View().Get(own.Key); ok {
					own.Version = r.Meta().Version
				}
				if decisions == 1 {
					_, err := log.Propose(t.Context(), store.Txn{Ops: []store.Op{tc.interfere}})
					require.NoError(t, err)
				}
				return commit.Batch{
					Txn:        store.Txn{Ops: []store.Op{store.Put(mesh(t, "a"))}, Preconditions: []store.Precondition{own}},
					Conditions: []commit.Condition{{Precondition: store.Precondition{Key: own.Key, Version: tc.version}, OrMissing: true}},
				}, nil
			})
			if tc.code == 0 {
				require.NoError(t, err)
			} else {
				require.Equal(t, tc.code, rpcerr.CodeOf(err), "%v", err)
			}
			require.Equal(t, tc.decisions, decisions)
		})
	}
}

// Every error says what became of the write, whatever is put around it.
func TestEffects(t *testing.T) {
	for _, tc := range []struct {
		err    error
		code   rpcerr.Code
		effect rpcerr.Effect
	}{
		{consensus.ErrUnknownOutcome, rpcerr.Unavailable, rpcerr.EffectUnknown},
		{consensus.ErrNotLeader, rpcerr.Unavailable, rpcerr.EffectNone},
		{consensus.ErrUnavailable, rpcerr.Unavailable, rpcerr.EffectNone},
		{raftlog.ErrDiskFull, rpcerr.Unavailable, rpcerr.EffectNone},
		{consensus.ErrClosed, rpcerr.Unavailable, rpcerr.EffectNone},
		{&store.MeshMissingError{Key: resource.Key{Kind: "Timeout", Mesh: "m", Name: "t"}}, rpcerr.Invalid, rpcerr.EffectNone},
		{&store.MeshNotEmptyError{Mesh: "m", Count: 2}, rpcerr.Conflict, rpcerr.EffectNone},
	} {
		log := committest.New(store.New(store.DefaultOptions()))
		log.Before(func(store.Txn) error { return fmt.Errorf("one: %w", tc.err) })
		for name, write := range map[string]func() error{
			"write": func() error {
				_, err := commit.WriteNewest(t.Context(), log, creating(mesh(t, "a")))
				return err
			},
			"create missing": func() error { return commit.CreateMissing(t.Context(), log, time.Time{}, mesh(t, "a")) },
		} {
			err := rpcerr.FromStatus(rpcerr.ToStatus(write()).Err())
			require.Equal(t, tc.code, rpcerr.CodeOf(err), "%s: %v", name, err)
			require.Equal(t, tc.effect, rpcerr.EffectOf(err), "%s: %v", name, err)
		}
		require.ErrorIs(t, func() error { _, err := commit.Write(t.Context(), log, creating(mesh(t, "a"))); return err }(), tc.err)
	}
	log := committest.New(store.New(store.DefaultOptions()))
	log.Fail(consensus.ErrUnavailable)
	_, err := commit.WriteNewest(t.Context(), log, creating(mesh(t, "a")))
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err), "a state that cannot be read is not written on")
	denied := rpcerr.New(rpcerr.Denied, "NO", "no")
	_, err = commit.Write(t.Context(), log, func() (commit.Batch, error) { return commit.Batch{}, fmt.Errorf("x: %w", denied) })
	require.Equal(t, rpcerr.EffectNone, rpcerr.EffectOf(err))
	require.ErrorIs(t, err, denied)
	require.EqualError(t, err, "x: no")
}

func TestCreateMissing(t *testing.T) {
	log := committest.New(store.New(store.DefaultOptions()))
	require.NoError(t, commit.CreateMissing(t.Context(), log, time.Time{}, mesh(t, "a"), mesh(t, "b")))
	require.Equal(t, 2, log.View().Len())
	before := log.View().Changed()
	require.NoError(t, commit.CreateMissing(t.Context(), log, time.Time{}, mesh(t, "a"), mesh(t, "c")), "another server was first")
	require.Equal(t, before, log.View().Changed(), "and nothing is written")
	fails := errors.New("no leader")
	log.Fail(fails)
	require.ErrorIs(t, commit.CreateMissing(context.Background(), log, time.Time{}, mesh(t, "d")), fails)
}
