package livematch

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/specificity"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

func timeoutPolicy(t *testing.T, connect string) *resource.Resource {
	return resourcetest.Build(t, "Timeout", "default", "t", `{
		"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}],
		"conf": {"connectTimeout": "`+connect+`"}}`)
}

func dataplane(t *testing.T) *resource.Resource {
	return resourcetest.Build(t, "Dataplane", "default", "web-1", `{"networking": {"address": "10.0.0.1",
		"inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}],
		"outbound": [{"port": 81, "tags": {"kuma.io/service": "backend"}}]}}`)
}

// effective asks for the timeout on web-1's outbound and the revision of the
// answer.
func effective(t *testing.T, m *Matching) (string, resource.Revision) {
	t.Helper()
	var conf string
	var revision resource.Revision
	require.NoError(t, m.Read(func(matcher *policy.Matcher, asOf resource.Revision) error {
		a, err := answer.Dataplane(matcher, "default", "web-1", "east", asOf)
		if err != nil {
			return err
		}
		revision = a.AsOf
		for _, e := range a.Effective {
			if e.Kind == "Timeout" {
				conf = fmt.Sprint(e.Conf["connectTimeout"])
			}
		}
		return nil
	}))
	return conf, revision
}

// §7.2: an answer reflects everything applied when the question came,
// from both stores, and says the replica's revision.
func TestAnswersFollowBothStores(t *testing.T) {
	replica, local := store.New(store.DefaultOptions()), store.New(store.Options{ExternalMeshes: true})
	m := New(policy.NewMatcher(specificity.Engine{}), replica, local)
	mesh := resourcetest.Build(t, "Mesh", "", "default", "{}")
	require.NoError(t, replica.Apply(5, store.Txn{Ops: []store.Op{store.Put(mesh), store.Put(timeoutPolicy(t, "1s"))}}).Err)
	require.NoError(t, local.Apply(1, store.Txn{Ops: []store.Op{store.Put(dataplane(t))}}).Err)
	conf, revision := effective(t, m)
	require.Equal(t, "1s", conf)
	require.Equal(t, resource.Revision(5), revision)

	require.NoError(t, replica.Apply(9, store.Txn{Ops: []store.Op{store.Put(timeoutPolicy(t, "2s"))}}).Err)
	conf, revision = effective(t, m)
	require.Equal(t, "2s", conf)
	require.Equal(t, resource.Revision(9), revision)

	replica.Advance(12)
	_, revision = effective(t, m)
	require.Equal(t, resource.Revision(12), revision, "a revision without a change counts too")
}

// A replica that is replaced by a snapshot is followed by comparing states.
func TestMatchingSurvivesASnapshot(t *testing.T) {
	source := store.New(store.DefaultOptions())
	require.NoError(t, source.Apply(20, store.Txn{Ops: []store.Op{
		store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}")), store.Put(timeoutPolicy(t, "7s")),
	}}).Err)
	for name, at := range map[string]resource.Revision{"older": 5, "newer, rewound": 90} {
		t.Run(name, func(t *testing.T) {
			replica, local := store.New(store.DefaultOptions()), store.New(store.Options{ExternalMeshes: true})
			require.NoError(t, local.Apply(1, store.Txn{Ops: []store.Op{store.Put(dataplane(t))}}).Err)
			require.NoError(t, replica.Apply(at, store.Txn{Ops: []store.Op{
				store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}")), store.Put(timeoutPolicy(t, "1s")),
			}}).Err)
			m := New(policy.NewMatcher(specificity.Engine{}), replica, local)
			conf, _ := effective(t, m)
			require.Equal(t, "1s", conf)
			snapshot(t, source, replica)
			conf, revision := effective(t, m)
			require.Equal(t, "7s", conf)
			require.Equal(t, resource.Revision(20), revision)
		})
	}
}

// Run ends with its context and leaves nothing running.
func TestMatchingStops(t *testing.T) {
	s := store.New(store.DefaultOptions())
	m := New(policy.NewMatcher(specificity.Engine{}), s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	require.NoError(t, s.Apply(1, store.Txn{Ops: []store.Op{store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}"))}}).Err)
	cancel()
	require.NoError(t, <-done)
}

// snapshot replaces what one store holds by what another does.
func snapshot(t *testing.T, from, to *store.Store) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, from.WriteSnapshot(&b))
	s, err := store.ReadSnapshot(&b)
	require.NoError(t, err)
	require.NoError(t, to.Reset(s))
}

// A replica that adopts a restored history may stand at a lower revision than
// before: proxies hear of the change all the same, and at once.
func TestFollowersHearOfARewoundStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replica, local := store.New(store.DefaultOptions()), store.New(store.Options{ExternalMeshes: true})
		mesh := resourcetest.Build(t, "Mesh", "", "default", "{}")
		require.NoError(t, replica.Apply(5000, store.Txn{Ops: []store.Op{store.Put(mesh), store.Put(timeoutPolicy(t, "1s"))}}).Err)
		require.NoError(t, local.Apply(1, store.Txn{Ops: []store.Op{store.Put(dataplane(t))}}).Err)
		m := New(policy.NewMatcher(specificity.Engine{}), replica, local)
		touched := make(chan []policy.Touch, 8)
		m.OnTouch(func(touches []policy.Touch) { touched <- touches })
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- m.Run(ctx) }()
		synctest.Wait()

		require.NoError(t, replica.Reset(&store.Snapshot{Revision: 7, Epoch: store.Epoch{Incarnation: 2}, Resources: []*resource.Resource{mesh, timeoutPolicy(t, "2s")}}))
		synctest.Wait()
		require.Len(t, touched, 1)
		require.NoError(t, m.ReadCached(func(_ *policy.Matcher, asOf resource.Revision) error {
			require.Equal(t, resource.Revision(7), asOf)
			return nil
		}))
		cancel()
		require.NoError(t, <-stopped)
	})
}

// A state that a restore puts in place is answered from as soon as it is there.
func TestAnswersFollowARestore(t *testing.T) {
	s := store.New(store.DefaultOptions())
	m := New(policy.NewMatcher(specificity.Engine{}), s)
	mesh := resourcetest.Build(t, "Mesh", "", "default", "{}")
	require.NoError(t, s.Apply(5, store.Txn{Ops: []store.Op{store.Put(mesh), store.Put(dataplane(t)), store.Put(timeoutPolicy(t, "1s"))}}).Err)
	var file bytes.Buffer
	require.NoError(t, s.View().WriteBackup(&file, nil))
	require.NoError(t, s.Apply(6, store.Txn{Ops: []store.Op{store.Put(timeoutPolicy(t, "2s"))}}).Err)
	conf, _ := effective(t, m)
	require.Equal(t, "2s", conf)

	snap, err := store.ReadSnapshot(&file)
	require.NoError(t, err)
	for i, part := range snap.Parts(s.View().Epoch(), store.Epoch{Incarnation: 2}, 100) {
		part.ID = 1
		require.NoError(t, s.Apply(resource.Revision(7+i), store.Txn{Restore: &part}).Err)
	}
	conf, revision := effective(t, m)
	require.Equal(t, "1s", conf)
	require.Equal(t, s.Revision(), revision)
}
