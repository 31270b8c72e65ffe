package admin

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/authz"
	"meridian/internal/commit"
	"meridian/internal/commit/committest"
	"meridian/internal/grpctest"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// secured is a service on which bob may write the TrafficPermissions of backend,
// as long as he is bound.
type secured struct {
	*Service
	*committest.Log
	t testing.TB
}

var (
	bob   = authn.WithPrincipal(context.Background(), authn.UserPrincipal("bob", nil))
	root  = authn.WithPrincipal(context.Background(), authn.LoopbackAdmin())
	bound = message("AccessRoleBinding", "", "bob", `{"subjects": [{"type": "User", "name": "bob"}], "roles": ["backend"]}`)
)

func newSecured(t testing.TB) *secured {
	t.Helper()
	h := committest.New(store.New(store.DefaultOptions()))
	now := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	require.NoError(t, authz.Defaults{Restricted: true}.Ensure(t.Context(), h.View, h, now))
	s := &secured{t: t, Log: h, Service: New(Config{
		Writer:  h,
		Access:  authz.New(h.View),
		Applied: h.Applied, Remembers: h.Remembers,
		Preview: PreviewOf(h),
		View:    func() store.Reader { return h.View() },
		Stores:  func() []*store.Store { return []*store.Store{h.Store} },
		Source:  func(*resource.Descriptor) Source { return h.Store },
		Owns:    func(*resource.Descriptor) error { return nil },
		Now:     now,
	})}
	s.must("setup", message("Mesh", "", "default", "{}"), bound, message("AccessRole", "", "backend", `{"rules": [{
		"types": ["TrafficPermission"], "access": ["CREATE", "UPDATE"],
		"when": [{"destinations": {"match": {"kuma.io/service": "backend"}}}]}]}`))
	return s
}

func (s *secured) must(id string, batch ...*meridianv1.Resource) {
	s.t.Helper()
	_, err := s.Service.ApplyBatch(root, &meridianv1.ApplyRequest{RequestId: id, Resources: batch})
	require.NoError(s.t, err)
}

func (s *secured) unbind() {
	r := s.Store.Apply(s.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "bob"})}})
	require.NoError(s.t, r.Err)
}

// change makes a change without authorization.
func (s *secured) change(op store.Op) {
	if err := s.Log.Write(store.Txn{Ops: []store.Op{op}}).Err; err != nil {
		s.t.Errorf("%v", err)
	}
}

func (s *secured) op(m *meridianv1.Resource) store.Op {
	s.t.Helper()
	r, _, err := Decode(m)
	require.NoError(s.t, err)
	return store.Put(r)
}

func permission(name, destination string) *meridianv1.Resource {
	return message("TrafficPermission", "default", name, fmt.Sprintf(
		`{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": %q}}]}`, destination))
}

// as applies one resource for a user.
func (s *secured) as(user context.Context, id string, m *meridianv1.Resource) error {
	_, err := s.Service.ApplyBatch(user, &meridianv1.ApplyRequest{RequestId: id, Resources: []*meridianv1.Resource{m}})
	return err
}

// §6.4: a decision that the state has outrun is not written by.
func TestDecisionAndWriteAreOne(t *testing.T) {
	t.Run("the right is withdrawn", func(t *testing.T) {
		s := newSecured(t)
		s.Once(s.unbind)
		requireCode(t, s.as(bob, "1", permission("a", "backend")), rpcerr.Denied, `user "bob/mesh-system:authenticated" cannot access`, "no role is bound")
		require.Zero(t, s.View().Count("TrafficPermission"))
	})
	t.Run("the rules change and still allow it", func(t *testing.T) {
		s := newSecured(t)
		s.Once(func() {
			s.must("other", message("AccessRole", "", "other", `{"rules": [{"access": ["CREATE"]}]}`))
		})
		require.NoError(t, s.as(bob, "1", permission("a", "backend")))
		require.Equal(t, 1, s.View().Count("TrafficPermission"))
	})
	t.Run("another owner takes the resource", func(t *testing.T) {
		s := newSecured(t)
		require.NoError(t, s.as(bob, "1", permission("a", "backend")))
		s.Once(func() { s.must("take", permission("a", "other")) })
		requireCode(t, s.as(bob, "2", permission("a", "backend")), rpcerr.Denied, "as it is stored", "entry 1 has other")
	})
	t.Run("a creation becomes an update", func(t *testing.T) {
		s := newSecured(t)
		s.Once(func() { s.must("take", permission("a", "other")) })
		requireCode(t, s.as(bob, "1", permission("a", "backend")), rpcerr.Denied, "UPDATE on TrafficPermission")
	})
	t.Run("deleted and created anew at the same version", func(t *testing.T) {
		s := newSecured(t)
		require.NoError(t, s.as(bob, "1", permission("a", "backend")))
		s.Once(func() {
			_, err := s.Service.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "del", Keys: []*meridianv1.ResourceKey{{Kind: "TrafficPermission", Mesh: "default", Name: "a"}}})
			require.NoError(t, err)
			s.must("again", permission("a", "other"))
		})
		requireCode(t, s.as(bob, "2", permission("a", "backend")), rpcerr.Denied, "as it is stored")
	})
	t.Run("the caller's own condition is not retried", func(t *testing.T) {
		s := newSecured(t)
		require.NoError(t, s.as(bob, "1", permission("a", "backend")))
		wrong := &meridianv1.VersionCondition{Key: keyOf(permission("a", "")), Version: 7}
		_, err := s.Service.ApplyBatch(bob, &meridianv1.ApplyRequest{
			RequestId: "2", Resources: []*meridianv1.Resource{permission("a", "backend")}, IfVersions: []*meridianv1.VersionCondition{wrong},
		})
		requireCode(t, err, rpcerr.Conflict, "expected 7")
	})
	t.Run("no end of changes", func(t *testing.T) {
		s := newSecured(t)
		n := 0
		s.Before(func(store.Txn) error {
			n++
			role := message("AccessRole", "", "other", fmt.Sprintf(`{"rules": [{"access": ["CREATE"], "names": ["n%d"]}]}`, n))
			r, _, err := Decode(role)
			require.NoError(t, err)
			return s.Log.Write(store.Txn{Ops: []store.Op{store.Put(r)}}).Err
		})
		requireCode(t, s.as(bob, "1", permission("a", "backend")), rpcerr.Unavailable, "while the write was decided")
		require.Equal(t, commit.MaxDecisions, n)
	})
}

// §6.4 under concurrency: bob's role is bound and unbound, and the resource that
// he writes changes its owner and changes back. Each of his writes took effect
// while he had the right to it.
func TestRaceOfRolesAndWrites(t *testing.T) {
	s := newSecured(t)
	const writers, writes = 4, 60
	require.NoError(t, s.as(bob, "first", permission("first", "backend")), "with the right, before it comes and goes")
	// Every other writer is held up between decision and write until the state has
	// been changed under it.
	change, written := make(chan chan struct{}), make(chan struct{})
	s.Before(func(store.Txn) error {
		if rand.IntN(2) == 0 {
			done := make(chan struct{})
			change <- done
			<-done
		}
		return nil
	})
	write, flip := sync.WaitGroup{}, sync.WaitGroup{}
	for w := range writers {
		write.Go(func() {
			for i := range writes {
				// Half of them on one name, so that they also race each other.
				name := fmt.Sprintf("w%d", w)
				if i%2 == 0 {
					name = "shared"
				}
				err := s.as(bob, fmt.Sprintf("%d-%d", w, i), permission(name, []string{"backend", "backend", "other"}[i%3]))
				if code := rpcerr.CodeOf(err); err != nil && code != rpcerr.Denied && code != rpcerr.Unavailable {
					t.Errorf("unexpected: %v", err)
				}
			}
		})
	}
	key := resource.Key{Kind: "TrafficPermission", Mesh: "default", Name: "shared"}
	for _, turn := range [][2]store.Op{
		{store.Delete(resource.Key{Kind: resource.KindAccessRoleBinding, Name: "bob"}), s.op(bound)},
		{s.op(permission("shared", "theirs")), store.Delete(key)},
	} {
		flip.Go(func() {
			for {
				select {
				case done := <-change:
					s.change(turn[0])
					close(done)
				case <-written:
					return
				}
				for range rand.IntN(20) {
					runtime.Gosched()
				}
				s.change(turn[1])
			}
		})
	}
	write.Wait()
	close(written)
	flip.Wait()

	batches, err := s.Next(t.Context(), 0)
	require.NoError(t, err)
	destination := func(r *resource.Resource) string {
		return r.Spec().(resource.ConnectionSpec).DestinationSelectors()[0]["kuma.io/service"]
	}
	isBound, his := false, 0
	for _, b := range batches {
		for _, c := range b.Changes {
			switch c.Key().Kind {
			case resource.KindAccessRoleBinding:
				if c.Key().Name == "bob" {
					isBound = c.After != nil
				}
			case "TrafficPermission":
				if c.After == nil || destination(c.After) == "theirs" {
					continue // not by bob
				}
				his++
				require.True(t, isBound, "revision %d writes %s while bob has no right", b.Revision, c.Key())
				require.Equal(t, "backend", destination(c.After))
				if c.Before != nil {
					require.Equal(t, "backend", destination(c.Before), "revision %d takes %s over", b.Revision, c.Key())
				}
			}
		}
	}
	require.Positive(t, his)
}

// §7.1: a retry is answered with what its first attempt did, also when
// it could not be made again.
func TestARetryOutlivesTheRight(t *testing.T) {
	s := newSecured(t)
	require.NoError(t, s.as(bob, "1", permission("a", "backend")))
	s.unbind()
	again, err := s.Service.ApplyBatch(bob, &meridianv1.ApplyRequest{RequestId: "1", Resources: []*meridianv1.Resource{permission("a", "backend")}})
	require.NoError(t, err)
	require.Equal(t, []meridianv1.Outcome{created}, outcomes(again.GetResults()))
	requireCode(t, s.as(bob, "2", permission("a", "backend")), rpcerr.Denied)

	keys := []*meridianv1.ResourceKey{{Kind: "TrafficPermission", Mesh: "default", Name: "a"}}
	for range 2 {
		r, err := s.Service.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "3", Keys: keys})
		require.NoError(t, err)
		require.Len(t, r.GetResults(), 1)
	}
}

// A dry run is decided as the write would be.
func TestDryRunIsDecided(t *testing.T) {
	s := newSecured(t)
	_, err := s.Service.ApplyBatch(bob, &meridianv1.ApplyRequest{DryRun: true, Resources: []*meridianv1.Resource{permission("a", "other")}})
	requireCode(t, err, rpcerr.Denied)
	_, err = s.Service.ApplyBatch(bob, &meridianv1.ApplyRequest{DryRun: true, Resources: []*meridianv1.Resource{permission("a", "backend")}})
	require.NoError(t, err)
}

// §6.1: secret material is shown to those who may write it.
func TestSecretsAreWithheld(t *testing.T) {
	s := newSecured(t)
	s.must("secrets", message("GlobalSecret", "", "db", `{"data": "AA=="}`), message("GlobalSecret", "", "other", `{"data": "AA=="}`),
		message("AccessRole", "", "dba", `{"rules": [{"types": ["GlobalSecret"], "names": ["db"], "access": ["UPDATE"]}]}`),
		message("AccessRoleBinding", "", "dba", `{"subjects": [{"type": "User", "name": "dba"}], "roles": ["dba"]}`))
	dba := authn.WithPrincipal(context.Background(), authn.UserPrincipal("dba", nil))
	get := func(user context.Context, name string) error {
		_, err := s.Service.Get(user, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "GlobalSecret", Name: name}})
		return err
	}
	require.NoError(t, get(dba, "db"))
	requireCode(t, get(dba, "other"), rpcerr.Denied)
	requireCode(t, get(bob, "db"), rpcerr.Denied)
	require.NoError(t, get(root, "other"))

	list := func(user context.Context, kinds ...string) ([]string, error) {
		out := &listStream{Ctx: user}
		err := s.Service.List(&meridianv1.ListRequest{Kinds: kinds}, out)
		return listed(out), err
	}
	names, err := list(dba, "GlobalSecret")
	require.NoError(t, err)
	require.Equal(t, []string{"GlobalSecret/db"}, names)
	_, err = list(bob, "GlobalSecret")
	requireCode(t, err, rpcerr.Denied)
	names, err = list(bob)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	require.False(t, slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "GlobalSecret/") }), names)

	watched := func(user context.Context) []string {
		var seen []string
		batches, err := s.Next(t.Context(), 0)
		require.NoError(t, err)
		for _, b := range batches {
			shown := func(r *resource.Resource) bool { return s.cfg.Access.Read(user, r) == nil }
			for _, c := range encodeBatch(b, map[resource.Kind]bool{"GlobalSecret": true}, "", shown).GetChanges() {
				seen = append(seen, c.GetResource().GetName())
			}
		}
		return seen
	}
	require.Equal(t, []string{"db"}, watched(dba))
	require.Empty(t, watched(bob))
	require.Equal(t, []string{"db", "other"}, watched(root))
}

// listStream collects what List sends.
type listStream = grpctest.Stream[meridianv1.ListRequest, meridianv1.ListResponse]

// listed are the names of what was sent, as KIND/NAME.
func listed(s *listStream) (names []string) {
	for _, page := range s.Sent {
		for _, m := range page.GetResources() {
			names = append(names, m.GetKind()+"/"+m.GetName())
		}
	}
	return names
}

// §6.1: no caller and no way of reading returns a signing key. What there is to
// know about one is returned, and cannot be stored in place of the key.
func TestSigningKeysAreNeverReturned(t *testing.T) {
	s := newSecured(t)
	ring := token.NewRing(token.RingConfig{Local: s.View, Now: time.Now})
	before := s.View()
	_, keys, err := ring.Rotation(token.ForUser)
	require.NoError(t, err)
	txn := store.Txn{}
	for _, key := range keys {
		txn.Ops = append(txn.Ops, store.Put(key))
	}
	require.NoError(t, s.Store.Apply(s.Revision()+1, txn).Err)
	name := keys[0].Key().Name
	material := keys[0].Spec().(*resource.Secret).Data
	require.Len(t, material, 160)
	requireWithheld := func(r *meridianv1.Resource) {
		t.Helper()
		require.Equal(t, name, r.GetName())
		require.JSONEq(t, `{"withheld": true}`, string(r.GetSpec()))
		require.NotContains(t, protojson.Format(r), material[20:60])
		require.Equal(t, uint64(1), r.GetVersion())
	}

	got, err := s.Service.Get(root, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "GlobalSecret", Name: name}})
	require.NoError(t, err)
	requireWithheld(got.GetResource())
	all := &listStream{Ctx: root}
	require.NoError(t, s.Service.List(&meridianv1.ListRequest{Kinds: []string{"GlobalSecret"}}, all))
	require.Len(t, listed(all), 1)
	requireWithheld(all.Sent[0].GetResources()[0])

	secrets := map[resource.Kind]bool{"GlobalSecret": true}
	shown := func(r *resource.Resource) bool { return s.cfg.Access.Read(root, r) == nil }
	require.NoError(t, s.Store.Apply(s.Revision()+1, store.Txn{Ops: []store.Op{store.Delete(keys[0].Key())}}).Err)
	feed, err := s.Next(t.Context(), before.Revision())
	require.NoError(t, err)
	changes := 0
	for _, b := range feed {
		for _, change := range encodeBatch(b, secrets, "", shown).GetChanges() {
			requireWithheld(change.GetResource())
			changes++
		}
	}
	require.Equal(t, 2, changes, "the creation and the deletion")

	_, err = s.Service.ApplyBatch(root, &meridianv1.ApplyRequest{RequestId: "back", Force: true, Resources: []*meridianv1.Resource{got.GetResource()}})
	refused := requireCode(t, err, rpcerr.Invalid)
	require.True(t, slices.ContainsFunc(refused.Violations, func(v rpcerr.Violation) bool {
		return strings.Contains(v.Description, "withheld: marks a signing key that was read without its data")
	}), "%v", refused.Violations)
}

// §1.1, --keep-times: who may write roles keeps the times of documents, and only times that a
// resource can have.
func TestKeepTimes(t *testing.T) {
	s := newSecured(t)
	old := timestamppb.New(time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC))
	applyAs := func(ctx context.Context, keep bool, created, modified *timestamppb.Timestamp) error {
		r := permission("a", "backend")
		r.CreationTime, r.ModificationTime = created, modified
		_, err := s.Service.ApplyBatch(ctx, &meridianv1.ApplyRequest{RequestId: crand.Text(), Resources: []*meridianv1.Resource{r}, KeepTimes: keep})
		return err
	}
	apply := func(keep bool, created, modified *timestamppb.Timestamp) error {
		return applyAs(root, keep, created, modified)
	}
	stored := func() resource.Meta {
		r, ok := s.Store.View().Get(resource.Key{Kind: "TrafficPermission", Mesh: "default", Name: "a"})
		require.True(t, ok)
		return r.Meta()
	}
	require.NoError(t, apply(false, old, old))
	require.Equal(t, 2026, stored().CreationTime.Year())
	require.NoError(t, apply(true, old, old))
	require.Equal(t, old.AsTime(), stored().CreationTime)
	require.Equal(t, old.AsTime(), stored().ModificationTime)
	require.Equal(t, uint64(2), stored().Version, "other times are a change")
	require.NoError(t, apply(true, nil, old))
	require.Equal(t, uint64(2), stored().Version, "the same times are none")

	older := timestamppb.New(old.AsTime().Add(-time.Hour))
	require.NoError(t, apply(true, older, nil))
	require.Equal(t, older.AsTime(), stored().ModificationTime, "as eval has it: never modified since")

	require.NoError(t, applyAs(bob, false, old, old), "bob may write it")
	requireCode(t, applyAs(bob, true, old, old), rpcerr.Denied, "missing: CREATE and UPDATE of every AccessRole")

	future := timestamppb.New(time.Date(2226, 1, 1, 0, 0, 0, 0, time.UTC))
	requireCode(t, apply(true, old, future), rpcerr.Invalid, "future")
	requireCode(t, apply(true, future, nil), rpcerr.Invalid, "future")
	requireCode(t, apply(true, timestamppb.New(old.AsTime().Add(time.Second)), old), rpcerr.Invalid, "before creationTime")
}
