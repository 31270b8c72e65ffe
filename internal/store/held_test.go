package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// rolloutOf is a rollout in a phase that puts some resources and deletes others.
func rolloutOf(t *testing.T, name string, phase resource.RolloutPhase, put []*resource.Resource, del ...resource.Key) *resource.Resource {
	t.Helper()
	spec := resource.Rollout{Stages: []resource.RolloutStage{{All: true}}, Status: resource.RolloutStatus{Phase: phase, Stage: 1}}
	for _, r := range put {
		spec.Changes = append(spec.Changes, resource.RolloutChange{Put: resource.NewRolloutDocument(r)})
	}
	for _, k := range del {
		spec.Changes = append(spec.Changes, resource.RolloutChange{Delete: &resource.RolloutKey{Type: k.Kind, Mesh: k.Mesh, Name: k.Name}, Replaces: 1})
	}
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindRollout, Name: name}}, text)
	require.NoError(t, err)
	return r
}

func namespaceNamed(t *testing.T, name string) *resource.Resource {
	t.Helper()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindNamespace, Name: name}}, []byte("{}"))
	require.NoError(t, err)
	return r
}

func meshPut(t *testing.T, name string) *resource.Resource {
	t.Helper()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: name}}, []byte("{}"))
	require.NoError(t, err)
	return r
}

func retryPut(t *testing.T, mesh resource.MeshName, name string) *resource.Resource {
	t.Helper()
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindRetry, Mesh: mesh, Name: name}},
		[]byte(`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"http":{"numRetries":3}}}`))
	require.NoError(t, err)
	return r
}

// What an unfinished rollout is to change, no other batch changes, until the batch that
// finishes it.
func TestRolloutsHoldWhatTheyAreToChange(t *testing.T) {
	const progressing, halted, completed, aborted = resource.RolloutProgressing, resource.RolloutHalted, resource.RolloutCompleted, resource.RolloutAborted
	a, b := namespaceNamed(t, "a"), namespaceNamed(t, "b")
	web := retryPut(t, "shop", "web")
	meshKey := resource.Key{Kind: resource.KindMesh, Name: "shop"}
	puts := func(r ...*resource.Resource) []*resource.Resource { return r }
	holds := func(t *testing.T, open ...*resource.Resource) *store.Store {
		s := store.New(store.DefaultOptions())
		require.NoError(t, s.Apply(1, store.Txn{Ops: []store.Op{store.Put(b), store.Put(meshPut(t, "shop"))}}).Err)
		for i, r := range open {
			require.NoError(t, s.Apply(resource.Revision(i+2), store.Txn{Ops: []store.Op{store.Put(r)}}).Err)
		}
		return s
	}
	held := func(t *testing.T, s *store.Store, key resource.Key, by string, ops ...store.Op) {
		t.Helper()
		before := s.View().DigestOf(nil)
		txn := store.Txn{Ops: ops}
		preview, _ := s.Preview(txn)
		for _, err := range []error{preview.Err, s.Apply(s.Revision()+1, txn).Err} {
			var refused *store.HeldError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, key, refused.Key)
			require.Equal(t, by, refused.Rollout)
		}
		require.Equal(t, before, s.View().DigestOf(nil))
	}
	free := func(t *testing.T, s *store.Store, ops ...store.Op) {
		t.Helper()
		txn := store.Txn{Ops: ops}
		preview, _ := s.Preview(txn)
		require.NoError(t, preview.Err)
		require.NoError(t, s.Apply(s.Revision()+1, txn).Err)
	}
	for _, phase := range []resource.RolloutPhase{progressing, halted} {
		s := holds(t, rolloutOf(t, "r", phase, puts(a, web), b.Key()))
		held(t, s, a.Key(), "r", store.Put(a))
		held(t, s, b.Key(), "r", store.Put(namespaceNamed(t, "c")), store.Delete(b.Key()))
		held(t, s, meshKey, "r", store.Delete(meshKey))
		free(t, s, store.Put(namespaceNamed(t, "c")))
		free(t, s, store.Put(retryPut(t, "shop", "other")))

		held(t, s, a.Key(), "r", store.Put(rolloutOf(t, "q", progressing, puts(a))))
		held(t, s, b.Key(), "r", store.Put(rolloutOf(t, "q", progressing, nil, b.Key())))
		held(t, s, meshKey, "r", store.Put(rolloutOf(t, "q", progressing, nil, meshKey)))
		free(t, s, store.Put(rolloutOf(t, "q", progressing, puts(namespaceNamed(t, "d")))))
		free(t, s, store.Put(rolloutOf(t, "r", halted, puts(a, web), b.Key())))
		held(t, s, namespaceNamed(t, "d").Key(), "q", store.Put(rolloutOf(t, "r", completed, puts(a))), store.Put(namespaceNamed(t, "d")))

		free(t, s, store.Put(rolloutOf(t, "r", completed, puts(a, web), b.Key())), store.Put(a), store.Put(web), store.Delete(b.Key()))
		free(t, s, store.Put(rolloutOf(t, "p", progressing, puts(a))))
		free(t, s, store.Put(rolloutOf(t, "p", aborted, puts(a))))
		free(t, s, store.Delete(a.Key()))
	}

	s := holds(t, rolloutOf(t, "r", progressing, nil, meshKey))
	held(t, s, meshKey, "r", store.Put(rolloutOf(t, "q", progressing, puts(web))))

	s = holds(t)
	for i := range store.MaxRollouts {
		free(t, s, store.Put(rolloutOf(t, fmt.Sprint("r", i), progressing, puts(namespaceNamed(t, fmt.Sprint("n", i))))))
	}
	var many *store.RolloutsError
	require.ErrorAs(t, s.Apply(s.Revision()+1, store.Txn{Ops: []store.Op{store.Put(rolloutOf(t, "more", progressing, puts(a)))}}).Err, &many)
	free(t, s, store.Put(rolloutOf(t, "r0", aborted, puts(namespaceNamed(t, "n0")))))
	free(t, s, store.Put(rolloutOf(t, "more", progressing, puts(a))))
}

// A snapshot says that it holds a rollout: a server of a release that does not know what
// rollouts hold would start from it, and apply what the other servers refuse.
func TestTheFormatOfSnapshotsWithRollouts(t *testing.T) {
	s := store.New(store.DefaultOptions())
	read := func() *store.Snapshot {
		var file bytes.Buffer
		require.NoError(t, s.WriteSnapshot(&file))
		snap, err := store.ReadSnapshot(&file)
		require.NoError(t, err)
		return snap
	}
	s.Apply(1, store.Txn{Ops: []store.Op{store.Put(namespaceNamed(t, "a"))}})
	require.Zero(t, read().Format(), "every release reads it")
	r := rolloutOf(t, "r", resource.RolloutProgressing, []*resource.Resource{namespaceNamed(t, "b")})
	entry, err := store.EncodeCommand(store.Txn{Ops: []store.Op{store.Put(r)}})
	require.NoError(t, err)
	require.NoError(t, s.Apply(2, store.Txn{Ops: []store.Op{store.Put(r)}}).Err)
	snap := read()
	require.Equal(t, store.FormatOf(entry), snap.Format())

	// What starts from it refuses what the others refuse.
	again := store.New(store.DefaultOptions())
	require.NoError(t, again.Reset(snap))
	var held *store.HeldError
	require.ErrorAs(t, again.Apply(3, store.Txn{Ops: []store.Op{store.Put(namespaceNamed(t, "b"))}}).Err, &held)

	require.NoError(t, s.Apply(3, store.Txn{Ops: []store.Op{store.Delete(r.Key())}}).Err)
	require.Zero(t, read().Format())
}

// A command that writes a rollout takes a format that has every server hold what it is to
// change.
func TestTheFormatOfRollouts(t *testing.T) {
	r := rolloutOf(t, "r", resource.RolloutProgressing, []*resource.Resource{namespaceNamed(t, "a")})
	for _, txn := range []store.Txn{
		{Ops: []store.Op{store.Put(namespaceNamed(t, "a")), store.Put(r)}},
		{Restore: &store.RestorePart{Resources: []*resource.Resource{r}}},
	} {
		data, err := store.EncodeCommand(txn)
		require.NoError(t, err)
		require.Equal(t, uint32(4), store.FormatOf(data))
	}
	data, err := store.EncodeCommand(store.Txn{Ops: []store.Op{store.Put(namespaceNamed(t, "a"))}})
	require.NoError(t, err)
	require.Equal(t, uint32(1), store.FormatOf(data))
}

// A mesh of which two rollouts change something is held by both, whichever ends.
func TestAMeshIsHeldByEachOfItsRollouts(t *testing.T) {
	for _, ends := range []string{"r1", "r2"} {
		s := store.New(store.DefaultOptions())
		rollouts := map[string]*resource.Resource{}
		ops := []store.Op{store.Put(meshPut(t, "shop"))}
		for _, name := range []string{"r1", "r2"} {
			rollouts[name] = rolloutOf(t, name, resource.RolloutProgressing, []*resource.Resource{retryPut(t, "shop", name)})
			ops = append(ops, store.Put(rollouts[name]))
		}
		require.NoError(t, s.Apply(1, store.Txn{Ops: ops}).Err)
		aborted := rolloutOf(t, ends, resource.RolloutAborted, []*resource.Resource{retryPut(t, "shop", ends)})
		var held *store.HeldError
		err := s.Apply(2, store.Txn{Ops: []store.Op{store.Put(aborted), store.Delete(resource.Key{Kind: resource.KindMesh, Name: "shop"})}}).Err
		require.ErrorAs(t, err, &held)
		require.NotEqual(t, ends, held.Rollout)
	}
}
