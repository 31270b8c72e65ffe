package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

func TestNextBlocksUntilThereIsSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, store.DefaultOptions())
		got := make(chan []store.Batch, 1)
		go func() {
			batches, err := s.Next(t.Context(), 1)
			if err == nil {
				got <- batches
			}
		}()
		synctest.Wait()
		require.NoError(t, s.Apply(2, puts(mesh("default"))).Err, "unchanged")
		s.Advance(3)
		synctest.Wait()
		require.Empty(t, got, "revisions without a change are no event")
		require.NoError(t, s.Apply(5, puts(retry("b", 1), retry("a", 1))).Err)
		batches := <-got
		require.Len(t, batches, 1)
		require.Equal(t, resource.Revision(5), batches[0].Revision)
		require.Equal(t, resource.Revision(1), batches[0].Prev)
		require.Equal(t, s.View().Time(), batches[0].Time)
		require.Len(t, batches[0].Changes, 2)
		require.Equal(t, "Retry/default/a", batches[0].Changes[0].Key().String(), "in key order")
	})
}

func TestWaitingEndsWithTheContextsCause(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	cause := errors.New("stopping")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err := s.Next(ctx, 1)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, s.Wait(ctx, 2), cause)
	require.NoError(t, s.Wait(ctx, 1), "what is there already needs no waiting")
}

func TestWaitWakesOnEveryRevision(t *testing.T) {
	for name, raise := range map[string]func(*store.Store){
		"a change":          func(s *store.Store) { s.Apply(4, puts(retry("a", 1))) },
		"an unchanged one":  func(s *store.Store) { s.Apply(4, puts(mesh("default"))) },
		"a refused one":     func(s *store.Store) { s.Apply(4, deletes(meshKey("default"), resource.Key{})) },
		"no batch at all":   func(s *store.Store) { s.Advance(4) },
		"one further ahead": func(s *store.Store) { s.Advance(9) },
		"a snapshot":        func(s *store.Store) { _ = s.Reset(&store.Snapshot{Revision: 4}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := opened(t, store.DefaultOptions())
				done := make(chan error, 1)
				go func() { done <- s.Wait(t.Context(), 4) }()
				synctest.Wait()
				s.Advance(3)
				synctest.Wait()
				require.Empty(t, done)
				raise(s)
				require.NoError(t, <-done)
			})
		})
	}
}

// History is bounded by count; a reader gets ErrCompacted exactly when a batch
// it has not seen is gone.
func TestCompactionByCount(t *testing.T) {
	opts := store.DefaultOptions()
	opts.History.MaxBatches = 3
	s := store.New(opts)
	require.Zero(t, s.Oldest())
	require.NoError(t, s.Apply(10, puts(mesh("default"))).Err)
	for _, rev := range []resource.Revision{20, 30, 40, 50} {
		require.NoError(t, s.Apply(rev, puts(retry("a", int(rev)))).Err)
	}
	s.Advance(55)
	require.Equal(t, resource.Revision(20), s.Oldest())
	for after, want := range map[resource.Revision][]resource.Revision{
		20: {30, 40, 50}, 25: {30, 40, 50}, 30: {40, 50}, 49: {50},
	} {
		batches, err := s.Next(t.Context(), after)
		require.NoError(t, err)
		require.Equal(t, want, revisions(batches), "after %d", after)
		at, err := s.ViewAt(after)
		require.NoError(t, err)
		require.Equal(t, after, at.Revision())
		require.Equal(t, after/10*10, at.Changed())
	}
	for _, after := range []resource.Revision{0, 1, 10, 19} {
		_, err := s.Next(t.Context(), after)
		require.ErrorIs(t, err, store.ErrCompacted, "after %d", after)
		_, err = s.ViewAt(after)
		require.ErrorIs(t, err, store.ErrCompacted, "at %d", after)
	}
	_, err := s.Next(t.Context(), 56)
	require.ErrorIs(t, err, store.ErrFuture)
	_, err = s.ViewAt(56)
	require.ErrorIs(t, err, store.ErrFuture)
	latest, err := s.ViewAt(55)
	require.NoError(t, err)
	require.Same(t, s.View(), latest)
}

func TestCompactionByAgeAndBytes(t *testing.T) {
	t.Run("age, by the times of batches", func(t *testing.T) {
		s := opened(t, store.Options{History: store.History{MaxAge: time.Minute}})
		for i, at := range []int{1, 30, 61, 200} {
			txn := puts(retry("a", i))
			txn.Time = clock(at)
			require.NoError(t, s.Apply(resource.Revision(i+2), txn).Err)
			require.Equal(t, []resource.Revision{0, 0, 1, 4}[i], s.Oldest(), "at %d s", at)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		s := opened(t, store.Options{History: store.History{MaxBytes: 100 << 10}})
		big := make([]byte, 60<<10)
		for i := range 4 {
			big[0] = byte(i)
			r := resource.New(resource.Meta{Key: retryKey("default", string(rune('a'+i)))}, nil, append([]byte(nil), big...))
			require.NoError(t, s.Apply(resource.Revision(i+2), puts(r)).Err)
		}
		require.Equal(t, resource.Revision(4), s.Oldest(), "only the newest fits")
	})
	t.Run("bytes of labels, of deleted resources too", func(t *testing.T) {
		s := opened(t, store.Options{History: store.History{MaxBytes: 100 << 10}})
		labels := map[string]string{"note": strings.Repeat("v", 60<<10)}
		r := resource.New(resource.Meta{Key: retryKey("default", "a"), Labels: labels}, nil, []byte("{}"))
		require.NoError(t, s.Apply(2, puts(r)).Err)
		require.NoError(t, s.Apply(3, deletes(r.Key())).Err)
		require.Equal(t, resource.Revision(2), s.Oldest(), "the creation and the deletion do not fit together")
		require.NoError(t, s.Apply(4, puts(thing(retryKey("default", "b"), 1))).Err)
		require.Equal(t, resource.Revision(2), s.Oldest())
		r = r.WithMeta(resource.Meta{Key: retryKey("default", "c"), Labels: labels})
		require.NoError(t, s.Apply(5, puts(r)).Err)
		require.Equal(t, resource.Revision(3), s.Oldest(), "what was deleted is forgotten")
	})
}

func TestNextIsBounded(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	for i := range 2000 {
		require.NoError(t, s.Apply(resource.Revision(i+2), puts(retry("a", i))).Err)
	}
	at, calls := resource.Revision(0), 0
	for at < s.Revision() {
		batches, err := s.Next(t.Context(), at)
		require.NoError(t, err)
		for _, b := range batches {
			require.Equal(t, at, b.Prev)
			at = b.Revision
		}
		calls++
	}
	require.Equal(t, 4, calls)
}

// A view never changes, whatever is written after it (§7.3).
func TestViewsNeverChange(t *testing.T) {
	s := opened(t, store.DefaultOptions())
	require.NoError(t, s.Apply(2, puts(retry("a", 1), retry("b", 1))).Err)
	v := s.View()
	before, digest, buckets := dump(v.All()), v.DigestOf(nil), v.Buckets(nil)
	require.NoError(t, s.Apply(3, store.Txn{Ops: []store.Op{
		store.Put(retry("a", 2)), store.Delete(retryKey("default", "b")), store.Put(retry("c", 1)),
	}}).Err)
	require.NoError(t, s.Reset(&store.Snapshot{Revision: 10}))
	require.Equal(t, before, dump(v.All()))
	require.Equal(t, digest, v.DigestOf(nil))
	require.Equal(t, buckets, v.Buckets(nil))
	require.Equal(t, 2, v.Count("Retry"))
	require.Equal(t, []resource.Kind{"Mesh", "Retry"}, v.Kinds())
	require.Equal(t, resource.Revision(2), v.Revision())
}

func TestListIsOneRange(t *testing.T) {
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(1, puts(mesh("a"), mesh("ab"), mesh("b"),
		thing(retryKey("a", "z"), 1), thing(retryKey("ab", "y"), 1), thing(retryKey("b", "x"), 1), thing(retryKey("a", "w"), 1),
		thing(resource.Key{Kind: "RetryX", Mesh: "a", Name: "v"}, 1), thing(resource.Key{Kind: "Ret", Mesh: "a", Name: "v"}, 1),
	)).Err)
	v := s.View()
	require.Equal(t, []string{"Retry/a/w", "Retry/a/z"}, names(v.List("Retry", "a")))
	require.Equal(t, []string{"Retry/a/w", "Retry/a/z", "Retry/ab/y", "Retry/b/x"}, names(v.List("Retry", "")))
	require.Equal(t, []string{"Mesh/a", "Mesh/ab", "Mesh/b"}, names(v.List("Mesh", "")))
	require.Empty(t, names(v.List("Retry", "none")))
	for r := range v.List("Retry", "") {
		require.Equal(t, "Retry/a/w", r.Key().String())
		break
	}
}

func TestFollowNoticesARewind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, store.DefaultOptions())
		require.NoError(t, s.Apply(50, puts(retry("a", 1))).Err)
		idle := s.Follow(s.View())
		blocked := make(chan error, 1)
		go func() {
			_, err := s.Next(t.Context(), 50)
			blocked <- err
		}()
		synctest.Wait()
		seen := s.View()

		require.NoError(t, s.Reset(&store.Snapshot{Revision: 40, Resources: []*resource.Resource{mesh("default")}}))
		require.ErrorIs(t, <-blocked, store.ErrCompacted)
		require.Equal(t, resource.Revision(40), s.Revision())
		require.NoError(t, s.Apply(60, puts(retry("b", 1))).Err)
		_, err := idle.Next(t.Context())
		require.ErrorIs(t, err, store.ErrCompacted, "50 is in range, but of another history")

		missed := store.Diff(seen, s.View())
		require.Len(t, missed, 3)
		again := s.Follow(s.View())
		require.NoError(t, s.Apply(61, puts(retry("b", 2))).Err)
		batches, err := again.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, []resource.Revision{61}, revisions(batches))
		require.Equal(t, resource.Revision(61), again.Revision())
	})
}

// The queue behind feed and history moves to a new array now and then; neither
// those who read on nor those who hold an old part of it notice.
func TestLongHistoryInASmallWindow(t *testing.T) {
	opts := store.DefaultOptions()
	opts.History.MaxBatches = 5
	s := opened(t, opts)
	feed := s.Follow(s.View())
	held := s.View()
	before := written(t, held)
	for i := range 1000 {
		rev := resource.Revision(i + 2)
		require.NoError(t, s.Apply(rev, puts(retry("a", i))).Err)
		batches, err := feed.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, []resource.Revision{rev}, revisions(batches))
		if i >= 5 {
			require.Equal(t, rev-5, s.Oldest())
			tail, err := s.Next(t.Context(), rev-5)
			require.NoError(t, err)
			require.Equal(t, []resource.Revision{rev - 4, rev - 3, rev - 2, rev - 1, rev}, revisions(tail))
		}
	}
	require.Equal(t, before, written(t, held))
}

// AwaitKinds returns for a change of its kinds and for another state in place of this one,
// not for other writes.
func TestAwaitKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, store.DefaultOptions())
		ctx, cancel := context.WithCancelCause(t.Context())
		await := func(ctx context.Context, seen *store.View, kinds ...resource.Kind) <-chan *store.View {
			woken := make(chan *store.View, 1)
			go func() {
				if v, err := s.AwaitKinds(ctx, seen, kinds...); err == nil {
					woken <- v
				}
			}()
			synctest.Wait()
			return woken
		}
		first := s.View()
		retries, roles, replaced := await(ctx, first, "Retry"), await(ctx, first, "AccessRole", "Timeout"), await(ctx, first)
		require.NoError(t, s.Apply(2, puts(thing(resource.Key{Kind: "Other", Name: "a"}, 1))).Err)
		s.Advance(3)
		synctest.Wait()
		require.Empty(t, retries, "of another kind")
		require.NoError(t, s.Apply(4, puts(retry("a", 1))).Err)
		synctest.Wait()
		require.Equal(t, resource.Revision(4), (<-retries).Revision())
		require.Empty(t, roles)
		require.Equal(t, resource.Revision(4), (<-await(ctx, first, "Retry")).Revision(), "it had changed before")
		require.NoError(t, s.Apply(5, puts(role("a", 1))).Err)
		require.Equal(t, resource.Revision(5), (<-roles).Revision())
		require.Empty(t, replaced, "written, not replaced")
		gone := await(ctx, s.View(), "Retry")
		cause := errors.New("stopping")
		other, stop := context.WithCancelCause(ctx)
		stop(cause)
		_, err := s.AwaitKinds(other, s.View(), "Retry")
		require.ErrorIs(t, err, cause)
		require.NoError(t, s.Reset(&store.Snapshot{Revision: 4}))
		require.Equal(t, resource.Revision(4), (<-replaced).Revision(), "replaced by an older snapshot")
		require.Equal(t, resource.Revision(4), (<-gone).Revision())
		cancel(cause)
	})
}
