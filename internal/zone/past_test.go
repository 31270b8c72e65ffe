package zone

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// TestInspectThen: a zone answers by the policies of an earlier revision, by its own
// replica or by what its global says was otherwise, and for its dataplanes of now.
func TestInspectThen(t *testing.T) {
	replica, local := store.New(store.DefaultOptions()), store.New(store.Options{ExternalMeshes: true})
	timeout := func(connect string) *resource.Resource {
		return resourcetest.Build(t, "Timeout", "default", "web",
			`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":{"connectTimeout":"`+connect+`"}}`)
	}
	write := func(s *store.Store, rev resource.Revision, r *resource.Resource) {
		require.NoError(t, s.Apply(rev, store.Txn{Time: time.Unix(int64(rev), 0), Ops: []store.Op{store.Put(r)}}).Err)
	}
	write(replica, 10, resourcetest.Build(t, "Mesh", "", "default", "{}"))
	write(replica, 11, timeout("1s"))
	write(replica, 12, timeout("9s"))
	dataplane := func(to string, port int) *resource.Resource {
		return resourcetest.Build(t, "Dataplane", "default", "web-1", fmt.Sprintf(
			`{"networking":{"address":"127.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"web"}}],"outbound":[{"port":%d,"tags":{"kuma.io/service":%q}}]}}`, port, to))
	}
	write(local, 1, dataplane("backend", 81))
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	live := livematch.New(engines.NewMatcher(compiler), replica, local)
	earlier := livematch.NewEarlier(func() (*policy.Matcher, livematch.State) { return live.Fork(engines.Followers(compiler)...) })
	s := &inspectService{zone: "east", turns: turns.NewServer(), past: &pastStates{
		stores: []*store.Store{replica, local}, now: time.Now, earlier: earlier,
	}}
	ask := func(q question.Question, change func(*meridianv1.InspectRequest)) (*meridianv1.InspectResponse, error) {
		req := question.Request(q, "default", "")
		change(req)
		encoded, err := proto.Marshal(req)
		require.NoError(t, err)
		answered, err := s.answerRelayed(t.Context(), encoded)
		if err != nil {
			return nil, rpcerr.FromStatus(err)
		}
		var response meridianv1.InspectResponse
		require.NoError(t, proto.Unmarshal(answered, &response))
		return &response, nil
	}
	at := func(rev uint64) func(*meridianv1.InspectRequest) {
		return func(r *meridianv1.InspectRequest) {
			r.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: rev}}
		}
	}
	for rev, says := range map[uint64]string{11: `"1s"`, 12: `"9s"`} {
		for _, q := range []question.Question{question.Dataplane{Name: "web-1"}, question.Why{Dataplane: "web-1", Kind: "Timeout"}} {
			got, err := ask(q, at(rev))
			require.NoError(t, err)
			require.Equal(t, rev, got.GetAtRevision())
			require.Equal(t, rev, got.GetAsOf())
			require.Contains(t, string(got.GetJson()), says)
		}
	}
	got, err := ask(question.Dataplane{Name: "web-1"}, at(10))
	require.NoError(t, err)
	require.NotContains(t, string(got.GetJson()), "connectTimeout", "there was no policy")

	told := func(rev uint64, r *meridianv1.InspectRequest) {
		at(rev)(r)
		r.ThenFrom = 12
	}
	got, err = ask(question.Dataplane{Name: "web-1"}, func(r *meridianv1.InspectRequest) {
		told(5, r) // the replica does not have it
		r.ThenWritten = []*meridianv1.Resource{admin.Encode(timeout("3s"))}
	})
	require.NoError(t, err)
	require.Equal(t, uint64(5), got.GetAtRevision())
	require.Contains(t, string(got.GetJson()), `"3s"`)
	got, err = ask(question.Dataplane{Name: "web-1"}, func(r *meridianv1.InspectRequest) {
		told(5, r)
		r.ThenDeleted = []*meridianv1.ResourceKey{{Kind: "Timeout", Mesh: "default", Name: "web"}}
	})
	require.NoError(t, err)
	require.NotContains(t, string(got.GetJson()), "connectTimeout")

	named := func(name string, rev uint64) (*meridianv1.InspectResponse, error) {
		return ask(question.Dataplane{Name: "web-1"}, func(r *meridianv1.InspectRequest) {
			at(rev)(r)
			about := proto.CloneOf(r)
			proto.Reset(r)
			r.ThenName, r.ThenQuestion = []byte(name), about
		})
	}
	tell := func(name string, rev uint64, r *resource.Resource) {
		t.Helper()
		got, err := ask(question.Dataplane{Name: "web-1"}, func(req *meridianv1.InspectRequest) {
			told(rev, req)
			req.ThenName = []byte(name)
			req.ThenWritten = []*meridianv1.Resource{admin.Encode(r)}
		})
		require.NoError(t, err)
		require.Equal(t, rev, got.GetAtRevision())
	}
	refused := func(name string, rev uint64) {
		t.Helper()
		_, err := named(name, rev)
		require.True(t, rpcerr.HasReason(err, question.ReasonNotTold), "%v", err)
	}
	refused("five", 5)
	tell("five", 5, timeout("5s"))
	refused("five", 6)
	refused("six", 6)
	_, err = named("", 5)
	require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err))
	for _, change := range []func(){
		func() {},
		func() { write(replica, 13, timeout("13s")) },
		func() { write(local, 2, dataplane("backend", 82)) },
		func() { write(local, 3, dataplane("backend", 83)) },
	} {
		change()
		moved := earlier.Moved()
		for range 2 {
			got, err = named("five", 5)
			require.NoError(t, err)
			require.Equal(t, uint64(5), got.GetAtRevision())
			require.Contains(t, string(got.GetJson()), `"5s"`)
		}
		require.LessOrEqual(t, earlier.Moved(), moved+1)
	}
	require.Contains(t, string(got.GetJson()), `83`, "what the zone owns is as it is now")
	tell("four", 4, timeout("4s"))
	refused("five", 5)
	got, err = named("four", 4)
	require.NoError(t, err)
	require.Contains(t, string(got.GetJson()), `"4s"`)
	require.True(t, question.Internal(&meridianv1.InspectRequest{ThenName: []byte("four")}), "only a global names states")
	require.True(t, question.Internal(&meridianv1.InspectRequest{ThenQuestion: &meridianv1.InspectRequest{}}))

	_, err = ask(question.Dataplane{Name: "web-1"}, at(14))
	require.Equal(t, rpcerr.OutOfRange, rpcerr.CodeOf(err))
	_, err = ask(question.Dataplanes{}, at(12))
	require.True(t, rpcerr.HasReason(err, "NO_PAST"), "%v", err)
	require.True(t, question.Internal(&meridianv1.InspectRequest{ThenFrom: 3}), "only a global says what was otherwise")
}

// TestInspectThenWaitsWithoutATurn: who asks about a revision that is not there yet has
// no other question wait for a turn.
func TestInspectThenWaitsWithoutATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &inspectService{zone: "east", turns: turns.NewServer(), past: &pastStates{stores: []*store.Store{store.New(store.DefaultOptions())}, now: time.Now}}
		req := question.Request(question.Dataplane{Name: "web-1"}, "default", "")
		req.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: 7}}
		ended := make(chan error, 1)
		go func() {
			_, err := s.inspect(t.Context(), turns.Caller{Name: "ann", Known: true}, req)
			ended <- err
		}()
		synctest.Wait()
		require.Empty(t, ended, "it waits")
		work, _ := s.turns.Stats()
		require.Zero(t, work.Running)
		require.Equal(t, rpcerr.OutOfRange, rpcerr.CodeOf(<-ended))
	})
}
