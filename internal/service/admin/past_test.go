package admin

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/authz/authztest"
	"meridian/internal/commit"
	"meridian/internal/commit/committest"
	"meridian/internal/past"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// keepHistory has contents kept from now on.
func (s *secured) keepHistory(r store.Retention) *secured {
	require.NoError(s.t, s.Log.Write(store.Txn{Retention: &r}).Err)
	return s
}

func at(rev resource.Revision) *meridianv1.PointInTime {
	return &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(rev)}}
}

func (s *secured) rollback(user context.Context, to resource.Revision, change func(*meridianv1.RollbackRequest)) (*meridianv1.RollbackResponse, error) {
	req := &meridianv1.RollbackRequest{To: at(to), RequestId: crand.Text()}
	if change != nil {
		change(req)
	}
	return s.Service.Rollback(user, req)
}

// shape is what a state holds, without versions, revisions and times.
func shape(r store.Reader, kinds ...resource.Kind) []string {
	var out []string
	for _, kind := range kinds {
		for res := range r.List(kind, "") {
			out = append(out, fmt.Sprintf("%s %v %s", res.Key(), res.Meta().Labels, res.Canonical()))
		}
	}
	return out
}

var rolledBack = []resource.Kind{"Mesh", "TrafficLog", "TrafficPermission"}

// restart has the server begin with a snapshot of what it has, as another server does that
// joins or takes over.
func (s *secured) restart(t require.TestingT) {
	var file bytes.Buffer
	require.NoError(t, s.WriteSnapshot(&file))
	snapshot, err := store.ReadSnapshot(&file)
	require.NoError(t, err)
	require.NoError(t, s.Reset(snapshot))
}

// TestRollbackOfAnything: on random histories, a rollback leaves exactly the state that
// there was, as one batch, and so does one that is gone back from; also on servers that
// have the history from a snapshot.
func TestRollbackOfAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSecured(t).keepHistory(store.DefaultRetention())
		begun := s.Revision()
		states := map[resource.Revision][]string{begun: shape(s.View(), rolledBack...)}
		for range rapid.IntRange(1, 12).Draw(rt, "writes") {
			var ops []store.Op
			for name := range rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.Bool(), 1, 3).Draw(rt, "names") {
				mesh := rapid.SampledFrom([]string{"default", "other"}).Draw(rt, "mesh")
				if _, ok := s.View().Get(resource.Key{Kind: resource.KindMesh, Name: mesh}); !ok {
					ops = append(ops, s.op(message("Mesh", "", mesh, "{}")))
				}
				m := permission(name, rapid.SampledFrom([]string{"backend", "web"}).Draw(rt, "service"))
				m.Mesh = mesh
				if rapid.Bool().Draw(rt, "labels") {
					m.Labels = map[string]string{"team": name}
				}
				op := s.op(m)
				if rapid.IntRange(0, 2).Draw(rt, "delete") == 0 {
					op = store.Delete(op.Key)
				}
				ops = append(ops, op)
				break
			}
			if rapid.IntRange(0, 5).Draw(rt, "empty the mesh") == 0 {
				ops = nil
				for _, kind := range rolledBack {
					for r := range s.View().List(kind, "") {
						if r.Key().Mesh == "other" || r.Key().Name == "other" {
							ops = append(ops, store.Delete(r.Key()))
						}
					}
				}
			}
			require.NoError(rt, s.Log.Write(store.Txn{Ops: ops}).Err)
			states[s.Revision()] = shape(s.View(), rolledBack...)
			if rapid.IntRange(0, 4).Draw(rt, "restart") == 0 {
				s.restart(rt)
			}
		}
		for range rapid.IntRange(1, 3).Draw(rt, "rollbacks") {
			if rapid.Bool().Draw(rt, "restart before a rollback") {
				s.restart(rt)
			}
			to := begun + resource.Revision(rapid.IntRange(0, int(s.Revision()-begun)).Draw(rt, "to"))
			before := s.Revision()
			dry, err := s.rollback(root, to, func(r *meridianv1.RollbackRequest) { r.DryRun = true })
			require.NoError(rt, err)
			require.Equal(rt, before, s.Revision())
			done, err := s.rollback(root, to, nil)
			require.NoError(rt, err)
			require.Equal(rt, uint64(to), done.GetToRevision())
			require.Equal(rt, dry.GetResults(), done.GetResults())
			require.Equal(rt, states[to], shape(s.View(), rolledBack...), "rolled back to %d", to)
			require.LessOrEqual(rt, s.Revision(), before+1, "one batch")
			states[s.Revision()] = shape(s.View(), rolledBack...)
		}
	})
}

// TestWhatARollbackLeaves: trust is not brought back, and access rules only where they
// are named (§6.8).
func TestWhatARollbackLeaves(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	trust := []*meridianv1.Resource{
		message("Zone", "", "east", `{"enabled": true}`),
		message("GlobalSecret", "", "password", `{"data": "YWJj"}`),
	}
	s.must("trust", trust...)
	s.must("kept", permission("kept", "backend"))
	to := s.Revision()
	s.must("after", message("Zone", "", "east", `{"enabled": false}`), message("GlobalSecret", "", "password", `{"data": "eHl6"}`), message("Zone", "", "west", `{}`), permission("kept", "web"), permission("new", "web"))
	s.unbind()
	before := shape(s.View(), "Zone", "GlobalSecret", "AccessRoleBinding", "AccessRole")

	done, err := s.rollback(root, to, nil)
	require.NoError(t, err)
	require.Equal(t, []meridianv1.Outcome{updated, meridianv1.Outcome_OUTCOME_DELETED}, outcomes(done.GetResults()))
	require.Equal(t, before, shape(s.View(), "Zone", "GlobalSecret", "AccessRoleBinding", "AccessRole"))
	for _, kind := range neverRolledBack {
		_, err := s.rollback(root, to, func(r *meridianv1.RollbackRequest) { r.Kinds = []string{string(kind)} })
		requireCode(t, err, rpcerr.Invalid, "never rolled back")
	}
	_, err = s.rollback(root, to, func(r *meridianv1.RollbackRequest) { r.Kinds = []string{"AccessRoleBinding"} })
	require.NoError(t, err)
	_, ok := s.View().Get(resource.Key{Kind: "AccessRoleBinding", Name: "bob"})
	require.True(t, ok, "it was named")
}

// TestRollbackIsDecided: rights, validation and the state of the moment decide, and the
// selection bounds what is changed.
func TestRollbackIsDecided(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	to := s.Revision()
	s.must("1", permission("mine", "backend"), permission("theirs", "web"), message("Mesh", "", "other", "{}"))
	later := s.Revision()
	s.must("2", permission("mine", "web"))

	_, err := s.rollback(bob, to, nil)
	requireCode(t, err, rpcerr.Denied, "cannot access", "DELETE")
	_, err = s.rollback(bob, later, nil)
	requireCode(t, err, rpcerr.Denied, "UPDATE")
	require.Contains(t, shape(s.View(), "TrafficPermission")[0], `"web"`)

	_, err = s.rollback(root, later, func(r *meridianv1.RollbackRequest) {
		r.Names, r.Kinds, r.Mesh = []string{"theirs"}, []string{"TrafficPermission"}, "default"
	})
	require.NoError(t, err)
	require.Contains(t, shape(s.View(), "TrafficPermission")[0], `"web"`, "it was not selected")
	_, err = s.rollback(root, to, func(r *meridianv1.RollbackRequest) { r.Mesh = "other" })
	require.NoError(t, err)
	require.Equal(t, 2, s.View().Count("TrafficPermission"))
	for name, change := range map[string]func(*meridianv1.RollbackRequest){
		`Mesh "nowhere" does not exist, and did not at revision`: func(r *meridianv1.RollbackRequest) { r.Mesh = "nowhere" },
		`TrafficPermission "mime" in mesh "default" does not exist, and did not at revision`: func(r *meridianv1.RollbackRequest) {
			r.Names, r.Kinds, r.Mesh = []string{"mime"}, []string{"TrafficPermission"}, "default"
		},
	} {
		_, err := s.rollback(root, later, change)
		requireCode(t, err, rpcerr.NotFound, name)
	}

	s.Once(func() { s.change(s.op(permission("meanwhile", "web"))) })
	done, err := s.rollback(root, to, nil)
	require.NoError(t, err)
	require.Len(t, done.GetResults(), 3, "what is written meanwhile is decided on, too")
	require.Zero(t, s.View().Count("TrafficPermission"))

	id := crand.Text()
	again := func() uint64 {
		done, err := s.rollback(root, later, func(r *meridianv1.RollbackRequest) { r.RequestId = id })
		require.NoError(t, err)
		return done.GetRevision()
	}
	first := again()
	require.Equal(t, first, again(), "a request that is repeated takes effect once")

	for name, change := range map[string]func(*meridianv1.RollbackRequest){
		"no id":    func(r *meridianv1.RollbackRequest) { r.RequestId = "" },
		"no kind":  func(r *meridianv1.RollbackRequest) { r.Kinds = []string{"Nothing"} },
		"no point": func(r *meridianv1.RollbackRequest) { r.To = nil },
		"a time ahead": func(r *meridianv1.RollbackRequest) {
			r.To = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Ago{Ago: durationpb.New(-time.Hour)}}
		},
	} {
		_, err := s.rollback(root, later, change)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), "%s: %v", name, err)
	}
	_, err = s.rollback(root, s.Revision()+1, nil)
	requireCode(t, err, rpcerr.OutOfRange, "has not been written yet")
	_, err = s.rollback(root, 1, nil)
	requireCode(t, err, rpcerr.OutOfRange, "revision 1 is no longer retained; the oldest is ")
}

// historyStream collects what History sends.
type historyStream struct {
	grpc.ServerStream
	ctx   context.Context
	items []*meridianv1.HistoryItem
	last  *meridianv1.HistoryResponse
}

func (h *historyStream) Context() context.Context { return h.ctx }
func (h *historyStream) Send(r *meridianv1.HistoryResponse) error {
	h.items, h.last = append(h.items, r.GetItems()...), r
	return nil
}

func (s *secured) history(user context.Context, key *meridianv1.ResourceKey, change func(*meridianv1.HistoryRequest)) (*historyStream, error) {
	req := &meridianv1.HistoryRequest{Key: key}
	if change != nil {
		change(req)
	}
	h := &historyStream{ctx: user}
	return h, s.Service.History(req, h)
}

// TestHistory: every kept write with its contents, of what was deleted too, in pages.
func TestHistory(t *testing.T) {
	s := newSecured(t)
	key := &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "a"}
	s.must("before", permission("a", "first"))
	s.keepHistory(store.DefaultRetention())
	s.must("1", permission("a", "backend"))
	s.must("2", permission("a", "web"))
	_, err := s.Service.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "3", Keys: []*meridianv1.ResourceKey{key}})
	require.NoError(t, err)
	h, err := s.history(root, key, nil)
	require.NoError(t, err)
	var got []string
	for _, i := range h.items {
		got = append(got, fmt.Sprintf("v%d %s", i.GetVersion(), i.GetOutcome()))
	}
	require.Equal(t, []string{"v0 OUTCOME_DELETED", "v3 OUTCOME_UPDATED", "v2 OUTCOME_UPDATED"}, got)
	require.Nil(t, h.items[0].GetResource())
	require.Contains(t, string(h.items[1].GetResource().GetSpec()), `"web"`)
	require.Contains(t, string(h.last.GetFirst().GetSpec()), `"first"`)
	require.False(t, h.last.GetMore())

	s.Service.cfg.Owns = func(*resource.Descriptor) error { return errors.New("another's") }
	_, err = s.history(root, key, nil)
	requireCode(t, err, rpcerr.Invalid, "TrafficPermission resources belong to the global control plane, which keeps their history: ask it")
	_, err = s.history(root, &meridianv1.ResourceKey{Kind: "Dataplane", Mesh: "default", Name: "a"}, nil)
	requireCode(t, err, rpcerr.Invalid, "Dataplane resources belong to a zone, which keeps their history: ask the zone's control plane")
	s.Service.cfg.Owns = func(*resource.Descriptor) error { return nil }

	page, err := s.history(root, key, func(r *meridianv1.HistoryRequest) { r.Limit = 2 })
	require.NoError(t, err)
	require.Len(t, page.items, 2)
	require.True(t, page.last.GetMore())
	page, err = s.history(root, key, func(r *meridianv1.HistoryRequest) { r.Before = page.items[1].GetRevision() })
	require.NoError(t, err)
	require.Len(t, page.items, 1)

	_, err = s.history(root, &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "nothing"}, nil)
	requireCode(t, err, rpcerr.NotFound, "does not exist")
}

// TestThePastIsReadAsOfNow: who may not read something now may not read what it was, also
// once it is deleted; secrets have no contents for any caller (§6.1).
func TestThePastIsReadAsOfNow(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	s.must("1", permission("a", "backend"), message("GlobalSecret", "", "password", `{"data": "c3dvcmRmaXNo"}`))
	then := s.Revision()
	s.must("2", permission("a", "web"), message("GlobalSecret", "", "password", `{"data": "eHl6"}`))
	a, secret := &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "a"}, &meridianv1.ResourceKey{Kind: "GlobalSecret", Name: "password"}
	nothing := authn.WithPrincipal(context.Background(), authn.Anonymous())
	check := func() {
		for _, user := range []context.Context{root, bob} {
			got, err := s.Service.Get(user, &meridianv1.GetRequest{Key: a, At: at(then)})
			require.NoError(t, err)
			require.Equal(t, uint64(then), got.GetAtRevision())
			require.Contains(t, string(got.GetResource().GetSpec()), `"backend"`)
		}
		_, err := s.Service.Get(nothing, &meridianv1.GetRequest{Key: a, At: at(then)})
		requireCode(t, err, rpcerr.Denied)
		_, err = s.history(nothing, a, nil)
		requireCode(t, err, rpcerr.Denied)
		_, err = s.Service.Get(bob, &meridianv1.GetRequest{Key: secret, At: at(then)})
		requireCode(t, err, rpcerr.Denied)
		_, err = s.Service.Get(root, &meridianv1.GetRequest{Key: secret, At: at(then)})
		requireCode(t, err, rpcerr.Invalid, "not kept")
		_, err = s.history(bob, secret, nil)
		requireCode(t, err, rpcerr.Denied)
		h, err := s.history(root, secret, nil)
		require.NoError(t, err)
		for _, i := range h.items {
			require.Nil(t, i.GetResource(), "revision %d", i.GetRevision())
		}
		require.Nil(t, h.last.GetFirst())
	}
	check()
	_, err := s.Service.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: "3", Keys: []*meridianv1.ResourceKey{a, secret}})
	require.NoError(t, err)
	check()
	_, err = s.Service.Get(root, &meridianv1.GetRequest{Key: a, At: at(then - 1)})
	requireCode(t, err, rpcerr.NotFound, "did not exist at revision")
}

// A list of the past is one state, over its pages.
func TestListOfThePast(t *testing.T) {
	f := newFixture(t, nil)
	retention := store.DefaultRetention()
	f.writer.Write(store.Txn{Retention: &retention})
	_, err := f.apply("1", trafficLog("a", "x"), trafficLog("b", "x"), trafficLog("c", "x"))
	require.NoError(t, err)
	then := f.store.Revision()
	_, err = f.apply("2", trafficLog("b", "y"), trafficLog("d", "y"))
	require.NoError(t, err)
	var got []string
	token := ""
	for page := 0; page == 0 || token != ""; page++ {
		stream, err := f.List(f.ctx, &meridianv1.ListRequest{Kinds: []string{"TrafficLog"}, Limit: 1, PageToken: token, At: at(then)})
		require.NoError(t, err)
		token = ""
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			require.Equal(t, uint64(then), part.GetAtRevision())
			for _, r := range part.GetResources() {
				got = append(got, r.GetName()+string(r.GetSpec()[:20]))
				require.NotContains(t, string(r.GetSpec()), `"y"`)
			}
			token = part.GetNextPageToken()
		}
		_, err = f.apply(fmt.Sprint("page", page), trafficLog("c", fmt.Sprint("z", page)))
		require.NoError(t, err)
	}
	require.Len(t, got, 3)
}

// TestAnOldContentGrantsNothing: a rule that covers what a resource was, and not what it
// is, does not let a caller read the past of it.
func TestAnOldContentGrantsNothing(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	s.cfg.Access.(*authz.Authorizer).ReadGranted()
	s.must("1", permission("a", "backend"))
	then := s.Revision()
	key := &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "a"}
	_, err := s.Service.Get(bob, &meridianv1.GetRequest{Key: key, At: at(then)})
	require.NoError(t, err)
	s.must("2", permission("a", "web"))
	_, err = s.Service.Get(bob, &meridianv1.GetRequest{Key: key, At: at(then)})
	requireCode(t, err, rpcerr.Denied)
}

// §6.1: an answer about an earlier state has of each resource what its reader may read now
// and might have read then; that of one which is gone is hidden like any other.
func TestGrantedAnswersAboutThePast(t *testing.T) {
	s := newGranted(t).keepHistory(store.DefaultRetention())
	s.must("then", permissionIn("demo", "theirs", "other"), permissionIn("demo", "always", "backend"), permissionIn("demo", "gone", "other"))
	then := s.Revision()
	s.must("now", permissionIn("demo", "theirs", "backend"))
	_, err := s.Service.DeleteBatch(root, &meridianv1.DeleteRequest{RequestId: crand.Text(), Keys: []*meridianv1.ResourceKey{{Kind: "TrafficPermission", Mesh: "demo", Name: "gone"}}})
	require.NoError(t, err)
	s.must("dataplanes", message("AccessRole", "", "carl", `{"rules": [{"types": ["Dataplane"], "mesh": "demo", "access": ["READ"]}, `+carlReads[len(`{"rules": [`):]))

	var asked *meridianv1.InspectRequest
	inspect := &Inspect{Readers: s.cfg.Access, View: s.cfg.View, Past: func(ctx context.Context, point *meridianv1.PointInTime) (store.Reader, error) {
		return past.Read(ctx, s.Store, point, time.Now())
	}}
	ask := func(req *meridianv1.InspectRequest, document any) (*meridianv1.InspectResponse, error) {
		req.Mesh = "demo"
		inspect.Answers = noting{answers{document: document}, &asked}
		return inspect.Inspect(user("carl"), req)
	}
	policy := func(name string) *meridianv1.InspectRequest {
		return &meridianv1.InspectRequest{Question: &meridianv1.InspectRequest_Policy{Policy: &meridianv1.PolicyQuestion{Kind: "TrafficPermission", Name: name}}}
	}
	_, err = ask(policy("theirs"), &answer.PolicyAnswer{})
	require.NoError(t, err, "carl reads what it is")
	for _, name := range []string{"theirs", "gone"} {
		req := policy(name)
		req.At = at(then)
		_, err = ask(req, &answer.PolicyAnswer{})
		requireCode(t, err, rpcerr.Denied)
	}
	req := policy("always")
	req.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Ago{Ago: durationpb.New(0)}}
	_, err = ask(req, &answer.PolicyAnswer{})
	require.NoError(t, err)
	require.Equal(t, uint64(s.Revision()), asked.GetAt().GetRevision(), "the answer is about what was looked at")

	about := &meridianv1.InspectRequest{At: at(then), Question: &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: "web-1"}}}
	response, err := ask(about, &answer.DataplaneAnswer{Mesh: "demo", Dataplane: "web-1", Effective: []answer.Effective{
		{Kind: "TrafficPermission", Policies: []string{"always"}, Considered: []answer.Considered{{Policy: "always", Used: true}}},
		{Kind: "TrafficPermission", Policies: []string{"theirs"}, Considered: []answer.Considered{{Policy: "theirs", Used: true}}},
		{Kind: "TrafficPermission", Policies: []string{"gone"}, Considered: []answer.Considered{{Policy: "gone", Used: true}}},
	}})
	require.NoError(t, err)
	require.Contains(t, string(response.GetJson()), "always")
	require.NotContains(t, string(response.GetJson()), "theirs")
	require.NotContains(t, string(response.GetJson()), "gone")
}

// noting answers, and notes what was asked last.
type noting struct {
	answers
	asked **meridianv1.InspectRequest
}

func (n noting) Inspect(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	*n.asked = req
	return n.answers.Inspect(ctx, req)
}

// TestARollbackToComeHoldsNothing: who names a revision that is not written yet has others
// wait for neither memory nor a turn.
func TestARollbackToComeHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecured(t).keepHistory(store.DefaultRetention())
		s.cfg.Turns = turns.NewServer()
		ended := make(chan error, 1)
		go func() {
			_, err := s.rollback(root, s.Revision()+1, nil)
			ended <- err
		}()
		synctest.Wait()
		require.Empty(t, ended, "it waits")
		work, held := s.cfg.Turns.Stats()
		require.Zero(t, work.Running+held.Running)
		requireCode(t, <-ended, rpcerr.OutOfRange, "has not been written yet")
	})
}

// TestRollbackOnConditions: a rollback with conditions changes what they are about as it is
// stored, and nothing else.
func TestRollbackOnConditions(t *testing.T) {
	s := newSecured(t).keepHistory(store.DefaultRetention())
	s.must("1", permission("a", "backend"))
	to := s.Revision()
	s.must("2", permission("a", "web"), permission("b", "web"))
	condition := func(name string, version uint64) *meridianv1.VersionCondition {
		return &meridianv1.VersionCondition{Key: &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: name}, Version: version}
	}
	before := shape(s.View(), rolledBack...)
	for name, tc := range map[string]struct {
		conditions []*meridianv1.VersionCondition
		says       string
	}{
		"another version":  {[]*meridianv1.VersionCondition{condition("a", 1), condition("b", 1)}, "version"},
		"one more changes": {[]*meridianv1.VersionCondition{condition("a", 2)}, "and the rollback is not to change it"},
		"one fewer":        {[]*meridianv1.VersionCondition{condition("a", 2), condition("b", 1), condition("c", 1)}, "and the rollback was to change it"},
	} {
		for _, dry := range []bool{true, false} {
			_, err := s.rollback(root, to, func(r *meridianv1.RollbackRequest) { r.IfVersions, r.DryRun = tc.conditions, dry })
			requireCode(t, err, rpcerr.Conflict, tc.says)
			require.True(t, rpcerr.HasReason(err, commit.ReasonVersion), name)
		}
	}
	require.Equal(t, before, shape(s.View(), rolledBack...))
	held := func(r *meridianv1.RollbackRequest) {
		r.IfVersions = []*meridianv1.VersionCondition{condition("a", 2), condition("b", 1)}
	}
	_, err := s.rollback(root, to, held)
	require.NoError(t, err)
	require.Equal(t, 1, s.View().Count("TrafficPermission"))
	_, err = s.rollback(root, to, held)
	requireCode(t, err, rpcerr.Conflict, "and the rollback was to change it")
}

// TestTwoHistories: a zone says which revisions are meant where it cannot read a state.
func TestTwoHistories(t *testing.T) {
	own, synced := store.New(store.DefaultOptions()), store.New(store.DefaultOptions())
	retention := store.DefaultRetention()
	require.NoError(t, committest.New(synced).Write(store.Txn{Retention: &retention}).Err)
	writer := committest.New(own)
	for range 3 {
		require.NoError(t, writer.Write(store.Txn{Retention: &retention}).Err)
	}
	f := newFixture(t, nil)
	c := &f.service.cfg
	c.Stores = func() []*store.Store { return []*store.Store{synced, own} }
	c.Source = func(d *resource.Descriptor) Source {
		if d.Owner == resource.OwnedByZone {
			return own
		}
		return synced
	}
	c.Owns = func(d *resource.Descriptor) error {
		if d.Owner == resource.OwnedByZone {
			return nil
		}
		return errors.New("apply it on the global")
	}
	list := func(rev resource.Revision, kinds ...string) error {
		_, _, err := f.service.readPast(authztest.Admin(), described(t, kinds...), &meridianv1.ListRequest{At: at(rev)}, nil)
		return err
	}
	requireCode(t, list(3, "Mesh", "Dataplane"), rpcerr.Invalid, "a zone has two histories, its own and the global's, whose revisions differ")
	requireCode(t, list(999, "Mesh"), rpcerr.OutOfRange, "of a Mesh the revisions are those of the global, which may have older ones")
	requireCode(t, list(999, "Dataplane"), rpcerr.OutOfRange, "which this zone owns, the revisions are the zone's own")
	_, err := f.service.Get(authztest.Admin(), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "default"}, At: at(999)})
	requireCode(t, err, rpcerr.OutOfRange, "of a Mesh the revisions are those of the global")
}

func described(t *testing.T, kinds ...string) []*resource.Descriptor {
	t.Helper()
	all, err := descriptors(kinds)
	require.NoError(t, err)
	return all
}
