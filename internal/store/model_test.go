package store_test

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// genOps draws a batch over a small world, so that keys meet often.
func genOps(t *rapid.T) []store.Op {
	keys := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) resource.Key {
		kind := rapid.SampledFrom([]resource.Kind{"AccessRole", "Mesh", "Retry", "Timeout"}).Draw(t, "kind")
		key := resource.Key{Kind: kind, Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")}
		if kind == "Retry" || kind == "Timeout" {
			key.Mesh = resource.MeshName(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "mesh"))
		}
		return key
	}), 0, 6, func(k resource.Key) resource.Key { return k }).Draw(t, "keys")
	var ops []store.Op
	for _, key := range keys {
		if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
			ops = append(ops, store.Delete(key))
			continue
		}
		r := thing(key, rapid.IntRange(0, 2).Draw(t, "content"))
		if rapid.Bool().Draw(t, "labelled") {
			r = r.WithMeta(resource.Meta{Key: key, Labels: map[string]string{"x": "1", "y": "2", "z": "3"}})
		}
		ops = append(ops, store.Put(r))
	}
	return ops
}

func genTxn(t *rapid.T) store.Txn {
	txn := store.Txn{Ops: genOps(t), Time: clock(rapid.IntRange(0, 5).Draw(t, "time"))}
	if rapid.IntRange(0, 2).Draw(t, "named") == 0 {
		txn.RequestID = rapid.SampledFrom([]string{"r1", "r2", "r3", "r4"}).Draw(t, "id")
	}
	if rapid.IntRange(0, 9).Draw(t, "epoch") == 0 {
		txn.SetEpoch = &store.Epoch{ClusterID: "c", Incarnation: rapid.Uint64Range(1, 3).Draw(t, "incarnation")}
	}
	return txn
}

// model is the store as one would write it without a second thought: one map,
// copied for every batch.
type model struct {
	resources map[resource.Key]*resource.Resource
	time      time.Time
	epoch     store.Epoch
	requests  map[string][]store.OpResult
}

func (m *model) apply(rev resource.Revision, txn store.Txn) (results []store.OpResult, changed bool, ok bool) {
	if done, twice := m.requests[txn.RequestID]; twice && txn.RequestID != "" {
		return done, false, true
	}
	next := maps.Clone(m.resources)
	at := txn.Time
	if !at.After(m.time) {
		at = m.time.Add(1)
	}
	for _, op := range txn.Ops {
		old, had := next[op.Key]
		switch {
		case op.Resource == nil && !had:
			results = append(results, store.OpResult{Key: op.Key, Outcome: store.Missing})
		case op.Resource == nil:
			delete(next, op.Key)
			changed = true
			results = append(results, store.OpResult{Key: op.Key, Outcome: store.Deleted})
		case had && string(old.Canonical()) == string(op.Resource.Canonical()) && maps.Equal(old.Meta().Labels, op.Resource.Meta().Labels):
			results = append(results, store.OpResult{Key: op.Key, Outcome: store.Unchanged, Version: old.Meta().Version})
		default:
			meta := resource.Meta{
				Key: op.Key, Labels: op.Resource.Meta().Labels, Version: 1, Revision: rev, CreationTime: at, ModificationTime: at,
			}
			outcome := store.Created
			if had {
				outcome, meta.Version, meta.CreationTime = store.Updated, old.Meta().Version+1, old.Meta().CreationTime
			}
			next[op.Key] = op.Resource.WithMeta(meta)
			changed = true
			results = append(results, store.OpResult{Key: op.Key, Outcome: outcome, Version: meta.Version})
		}
	}
	for key := range next {
		if _, there := next[meshKey(string(key.Mesh))]; key.Mesh != "" && !there {
			return nil, false, false
		}
	}
	if txn.SetEpoch != nil && *txn.SetEpoch != m.epoch {
		m.epoch, changed = *txn.SetEpoch, true
	}
	m.resources = next
	if changed {
		m.time = at
	}
	if txn.RequestID != "" {
		m.requests[txn.RequestID] = results
	}
	return results, changed, true
}

func (m *model) sorted() []*resource.Resource {
	return slices.SortedFunc(maps.Values(m.resources), func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
}

// The store does what the naive map does, at every revision and in every
// retained one.
func TestStoreEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := store.DefaultOptions()
		opts.History.MaxBatches = 4
		opts.Terms = termsOf
		s := store.New(opts)
		m := &model{resources: map[resource.Key]*resource.Resource{}, requests: map[string][]store.OpResult{}}
		states := map[resource.Revision][]string{0: nil}
		batches := []resource.Revision{0}
		rev := resource.Revision(0)
		for range rapid.IntRange(1, 15).Draw(t, "batches") {
			rev += resource.Revision(rapid.Uint64Range(1, 3).Draw(t, "gap"))
			txn := genTxn(t)
			want, changed, ok := m.apply(rev, txn)
			got := s.Apply(rev, txn)
			require.Equal(t, ok, got.Err == nil, "%v", got.Err)
			if ok {
				require.ElementsMatch(t, want, got.Results)
			}
			if changed {
				batches = append(batches, rev)
			}
			states[rev] = dump(slices.Values(m.sorted()))
			require.Equal(t, states[rev], dump(s.View().All()))
			require.Equal(t, m.epoch, s.View().Epoch())
			checkDigests(t, s.View())
			checkTerms(t, s.View())
			_, preview := s.Preview(genTxn(t))
			checkTerms(t, preview)
		}
		oldest := batches[max(0, len(batches)-1-opts.History.MaxBatches)]
		require.Equal(t, oldest, s.Oldest())
		var last []string
		for at := resource.Revision(0); at <= rev; at++ {
			if state, ok := states[at]; ok {
				last = state
			}
			v, err := s.ViewAt(at)
			if at < oldest {
				require.ErrorIs(t, err, store.ErrCompacted)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, last, dump(v.All()))
			checkDigests(t, v)
			checkTerms(t, v)
		}
		var snapshot bytes.Buffer
		require.NoError(t, s.WriteSnapshot(&snapshot))
		again := store.New(opts)
		restored, err := store.ReadSnapshot(&snapshot)
		require.NoError(t, err)
		require.NoError(t, again.Reset(restored))
		checkTerms(t, again.View())
	})
}

// termsOf are two terms of each content, and one of all that are not the first.
func termsOf(r *resource.Resource) []string {
	terms := []string{"is " + string(r.Canonical()), "has " + string(r.Canonical())}
	if string(r.Canonical()) != `{"n":0}` {
		terms = append(terms, "has more")
	}
	return terms
}

// checkTerms compares what is found by terms with what has them.
func checkTerms(t *rapid.T, v *store.View) {
	type found struct{ term, name string }
	want := map[resource.Key][]found{}
	for r := range v.All() {
		of := resource.Key{Kind: r.Key().Kind, Mesh: r.Key().Mesh}
		for _, term := range termsOf(r) {
			want[of] = append(want[of], found{term, r.Key().Name})
		}
	}
	for _, kind := range []resource.Kind{"AccessRole", "Mesh", "Retry", "Timeout"} {
		for _, mesh := range []resource.MeshName{"", "a", "b"} {
			all := want[resource.Key{Kind: kind, Mesh: mesh}]
			slices.SortFunc(all, func(a, b found) int {
				return cmp.Or(strings.Compare(a.term, b.term), strings.Compare(a.name, b.name))
			})
			for _, prefix := range []string{"is ", "has m", `has {"n":1}`} {
				var names, got []string
				for _, f := range all {
					if strings.HasPrefix(f.term, prefix) {
						names = append(names, f.name)
					}
				}
				list, ok := v.ListBy(kind, mesh, prefix)
				require.True(t, ok)
				for r := range list {
					stored, _ := v.Get(r.Key())
					require.Same(t, stored, r)
					got = append(got, r.Key().Name)
				}
				require.Equal(t, names, got)
			}
		}
	}
}

// checkDigests compares every incremental figure with one made from scratch.
func checkDigests(t *rapid.T, v *store.View) {
	var all store.Digest
	var buckets [store.BucketCount]store.Digest
	kinds := map[resource.Kind]store.Digest{}
	counts := map[resource.Kind]int{}
	for r := range v.All() {
		sum, i := store.Sum(r), store.BucketOf(r.Key())
		all = all.Add(sum)
		buckets[i] = buckets[i].Add(sum)
		kinds[r.Key().Kind] = kinds[r.Key().Kind].Add(sum)
		counts[r.Key().Kind]++
	}
	require.Equal(t, all, v.DigestOf(nil))
	require.Equal(t, buckets, v.Buckets(nil))
	require.Equal(t, slices.Sorted(maps.Keys(counts)), v.Kinds())
	for kind, sum := range kinds {
		require.Equal(t, sum, v.Digest(kind))
		require.Equal(t, counts[kind], v.Count(kind))
		only := func(k resource.Kind) bool { return k == kind }
		require.Equal(t, sum, v.DigestOf(only))
		found := 0
		for r := range v.Bucket(func(i int) bool { return i%2 == 0 }, only) {
			require.Zero(t, store.BucketOf(r.Key())%2)
			found++
		}
		for range v.Bucket(func(i int) bool { return i%2 == 1 }, only) {
			found++
		}
		require.Equal(t, counts[kind], found)
	}
}

// §2.3: the order of operations makes no difference to the state or
// its snapshot; nor does the way through the log's bytes.
func TestApplyIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := store.New(store.DefaultOptions()), store.New(store.DefaultOptions())
		for i := range rapid.IntRange(1, 10).Draw(t, "batches") {
			txn := genTxn(t)
			txn.RequestID = ""
			shuffled := txn
			shuffled.Ops = rapid.Permutation(txn.Ops).Draw(t, "order")
			data, err := store.EncodeCommand(shuffled)
			require.NoError(t, err)
			decoded, err := store.DecodeCommand(data)
			require.NoError(t, err)
			rev := resource.Revision(i + 1)
			require.Equal(t, a.Apply(rev, txn).Err == nil, b.Apply(rev, decoded).Err == nil)
		}
		var x, y bytes.Buffer
		require.NoError(t, a.WriteSnapshot(&x))
		require.NoError(t, b.WriteSnapshot(&y))
		require.Equal(t, x.Bytes(), y.Bytes())
	})
}

// §7.3: a replica that is fed the batches after any cut, one by one
// or joined, comes to the source's state; the feed is the difference of views.
func TestReplicaEqualsSource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source := store.New(store.DefaultOptions())
		for i := range rapid.IntRange(1, 12).Draw(t, "batches") {
			source.Apply(resource.Revision(i*2+1), genTxn(t))
		}
		cut := resource.Revision(rapid.Uint64Range(0, uint64(source.View().Changed())).Draw(t, "cut"))
		from, err := source.ViewAt(cut)
		require.NoError(t, err)
		replica := store.New(store.DefaultOptions())
		require.NoError(t, replica.Reset(&store.Snapshot{
			Revision: cut, Time: from.Time(), Epoch: from.Epoch(), Resources: slices.Collect(from.All()),
		}))
		for replica.Revision() < source.View().Changed() {
			batches, err := source.Next(t.Context(), replica.Revision())
			require.NoError(t, err)
			if rapid.Bool().Draw(t, "join") {
				last := batches[len(batches)-1]
				to, err := source.ViewAt(last.Revision)
				require.NoError(t, err)
				at, err := source.ViewAt(replica.Revision())
				require.NoError(t, err)
				epoch := to.Epoch()
				batches = []store.Batch{{
					Revision: last.Revision, Prev: replica.Revision(), Time: last.Time, Changes: store.Diff(at, to), Epoch: &epoch,
				}}
			}
			for i, b := range batches {
				if i == 0 {
					b.Prev = replica.Revision()
				}
				require.NoError(t, replica.Replicate(b))
				to, err := source.ViewAt(b.Revision)
				require.NoError(t, err)
				require.Equal(t, to.DigestOf(nil), replica.View().DigestOf(nil))
				require.Empty(t, store.Diff(to, replica.View()))
				checkDigests(t, replica.View())
			}
		}
		require.Equal(t, dump(source.View().All()), dump(replica.View().All()))
		require.Equal(t, source.View().Epoch(), replica.View().Epoch())
	})
}

func TestReplicateRefusesGaps(t *testing.T) {
	source := opened(t, store.DefaultOptions())
	require.NoError(t, source.Apply(5, puts(retry("a", 1))).Err)
	require.NoError(t, source.Apply(8, puts(retry("a", 2))).Err)
	feed, err := source.Next(t.Context(), 0)
	require.NoError(t, err)

	replica := store.New(store.DefaultOptions())
	require.NoError(t, replica.Replicate(feed[0]))
	require.Equal(t, &store.GapError{At: 1, Prev: 5, Revision: 8}, replica.Replicate(feed[2]))
	require.Equal(t, &store.GapError{At: 1, Prev: 0, Revision: 1}, replica.Replicate(feed[0]), "a repetition")
	replica.Advance(3)
	require.NoError(t, replica.Replicate(feed[1]), "nothing happened between 1 and 3")
	require.Error(t, replica.Replicate(store.Batch{Prev: 5, Revision: 9, Changes: []store.Change{feed[2].Changes[0], feed[2].Changes[0]}}))
	require.NoError(t, replica.Replicate(feed[2]))
	require.Equal(t, source.View().DigestOf(nil), replica.View().DigestOf(nil))

	unseen := store.Batch{Prev: 8, Revision: 12, Changes: []store.Change{{Before: retry("never", 1)}}}
	require.NoError(t, replica.Replicate(unseen))
	require.Equal(t, resource.Revision(12), replica.Revision())
	require.Equal(t, resource.Revision(8), replica.View().Changed(), "deleting nothing is no change")
}

// Union lists both in one order, the first winning, as if they were one store.
func TestUnionEqualsOneStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := store.DefaultOptions()
		opts.ExternalMeshes = true
		opts.Terms = termsOf
		first, second := store.New(opts), store.New(opts)
		first.Apply(7, store.Txn{Ops: genOps(t)})
		second.Apply(9, store.Txn{Ops: genOps(t)})
		u := store.Union(first.View(), second.View())
		require.Equal(t, resource.Revision(7), u.Revision())
		want := map[resource.Key]*resource.Resource{}
		for _, v := range []*store.View{second.View(), first.View()} {
			for r := range v.All() {
				want[r.Key()] = r
			}
		}
		for _, kind := range []resource.Kind{"AccessRole", "Mesh", "Retry", "Timeout"} {
			for _, mesh := range []resource.MeshName{"", "a", "b"} {
				var keys []resource.Key
				for key := range want {
					if key.Kind == kind && (mesh == "" || key.Mesh == mesh) {
						keys = append(keys, key)
					}
				}
				slices.SortFunc(keys, resource.Key.Compare)
				var got []resource.Key
				for r := range u.List(kind, mesh) {
					require.Same(t, want[r.Key()], r)
					got = append(got, r.Key())
				}
				require.Equal(t, keys, got)
				for range u.List(kind, mesh) {
					break
				}
				by, ok := u.(interface {
					ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool)
				}).ListBy(kind, mesh, "is ")
				require.True(t, ok)
				var byTerm []resource.Key
				for r := range by {
					require.Same(t, want[r.Key()], r)
					byTerm = append(byTerm, r.Key())
				}
				if mesh != "" || kind == "AccessRole" || kind == "Mesh" {
					require.ElementsMatch(t, keys, byTerm)
				}
			}
		}
		for key, r := range want {
			found, ok := u.Get(key)
			require.True(t, ok)
			require.Same(t, r, found)
		}
	})
}

// One writer and many readers at once; each reader's feed leads it through the
// same states as the views. Meant for the race detector.
func TestConcurrentReaders(t *testing.T) {
	const batches = 400
	s := opened(t, store.DefaultOptions())
	var readers sync.WaitGroup
	for range 4 {
		start := s.View()
		readers.Go(func() {
			feed := s.Follow(start)
			state := start.DigestOf(nil)
			for feed.Revision() < batches+1 {
				got, err := feed.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				for _, b := range got {
					for _, c := range b.Changes {
						if c.Before != nil {
							state = state.Sub(store.Sum(c.Before))
						}
						if c.After != nil {
							state = state.Add(store.Sum(c.After))
						}
					}
					if v, err := s.ViewAt(b.Revision); err != nil || v.DigestOf(nil) != state {
						t.Errorf("feed and view differ at %d: %v", b.Revision, err)
						return
					}
				}
			}
		})
		readers.Go(func() {
			for s.Revision() < batches+1 {
				v := s.View()
				n := 0
				for range v.List("Retry", "default") {
					n++
				}
				if n != v.Count("Retry") {
					t.Errorf("a view of %d resources lists %d", v.Count("Retry"), n)
					return
				}
				if err := s.Wait(t.Context(), v.Revision()+1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	readers.Go(func() {
		var buf bytes.Buffer
		for s.Revision() < batches+1 {
			buf.Reset()
			if err := s.WriteSnapshot(&buf); err != nil {
				t.Error(err)
				return
			}
			if _, err := store.ReadSnapshot(&buf); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range batches {
		require.NoError(t, s.Apply(resource.Revision(i+2), puts(retry(fmt.Sprint("n", i%37), i), retry(fmt.Sprint("m", i), i))).Err)
	}
	readers.Wait()
}
