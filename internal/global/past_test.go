package global

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/inherit"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// TestZonesAreToldOfThePast: a question about an earlier state reaches a zone with what
// was otherwise then, without what no zone has, and the answer of a zone that does not
// know such questions is not taken for one. A zone that keeps what it was told is told once.
func TestZonesAreToldOfThePast(t *testing.T) {
	s := store.New(store.DefaultOptions())
	retention := store.DefaultRetention()
	rev := resource.Revision(0)
	write := func(txn store.Txn) {
		rev++
		txn.Time = time.Unix(int64(rev), 0)
		require.NoError(t, s.Apply(rev, txn).Err)
	}
	log := func(name, backend string) store.Op {
		return store.Put(resourcetest.Build(t, "TrafficLog", "default", name,
			`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}],"conf":{"backend":"`+backend+`"}}`))
	}
	write(store.Txn{Retention: &retention})
	write(store.Txn{Ops: []store.Op{store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}")), log("a", "x"), log("same", "x")}})
	then := rev
	write(store.Txn{Ops: []store.Op{log("a", "y"), log("b", "y"), store.Put(resourcetest.Build(t, "GlobalSecret", "", "password", `{"data":"YWJj"}`))}})

	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	knows, keeps := true, false
	var kept []byte
	lengths := []int{}
	var asked meridianv1.InspectRequest
	service := &inspectService{
		turns: turns.NewServer(),
		past: &pastStates{store: s, now: time.Now, earlier: livematch.NewEarlier(func() (*policy.Matcher, livematch.State) {
			return livematch.New(policy.NewMatcher().Following(inherit.New(compiler)), s).Fork(inherit.New(compiler))
		})},
		zones: func(context.Context) fleetStatus {
			return fleetStatus{servers: map[resource.ZoneName]string{"east": "one"}}
		},
		asking: func(_ context.Context, _ resource.ZoneName, _ string, q []byte) ([]byte, error) {
			var req meridianv1.InspectRequest
			if err := proto.Unmarshal(q, &req); err != nil {
				return nil, err
			}
			lengths = append(lengths, len(q))
			if req.GetQuestion() == nil && !keeps { // a zone of an older release
				_, err := question.Parse(&req)
				return nil, rpcerr.ToStatus(rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)).Err()
			}
			about := req.GetThenQuestion()
			switch {
			case about == nil:
				about, kept = &req, req.GetThenName()
				proto.Reset(&asked)
				proto.Merge(&asked, &req)
			case !bytes.Equal(kept, req.GetThenName()):
				return nil, rpcerr.ToStatus(rpcerr.New(rpcerr.OutOfRange, question.ReasonNotTold, "not kept")).Err()
			}
			response := &meridianv1.InspectResponse{Json: []byte(`{}`), AsOf: uint64(rev)}
			if knows {
				response.AtRevision = about.GetAt().GetRevision()
			}
			return proto.Marshal(response)
		},
	}
	ask := func(q question.Question, at resource.Revision) (*meridianv1.InspectResponse, error) {
		req := question.Request(q, "default", "east")
		req.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(at)}}
		return service.Inspect(t.Context(), req)
	}
	got, err := ask(question.Dataplane{Name: "web-1"}, then)
	require.NoError(t, err)
	require.Equal(t, uint64(then), got.GetAtRevision())
	require.Equal(t, uint64(then), got.GetAsOf())
	require.Equal(t, uint64(rev), asked.GetThenFrom())
	require.Len(t, asked.GetThenWritten(), 1)
	require.Contains(t, string(asked.GetThenWritten()[0].GetSpec()), `"x"`)
	require.Len(t, asked.GetThenDeleted(), 1)
	require.Equal(t, "b", asked.GetThenDeleted()[0].GetName())
	require.NotEmpty(t, asked.GetThenName())

	again := func(times int) {
		t.Helper()
		lengths = nil
		got, err := ask(question.Dataplane{Name: "web-1"}, then)
		require.NoError(t, err)
		require.Equal(t, uint64(then), got.GetAtRevision())
		require.Len(t, lengths, times)
	}
	again(2) // its release knows no names
	keeps, kept = true, nil
	again(2)
	again(1)
	write(store.Txn{Ops: []store.Op{log("c", "z")}})
	again(1) // what it keeps counts from an earlier revision, and is as good
	require.Equal(t, uint64(rev-1), asked.GetThenFrom())
	kept = nil // it has restarted
	again(2)
	require.Equal(t, uint64(rev), asked.GetThenFrom())
	require.Len(t, asked.GetThenDeleted(), 2)
	again(1)
	for later := range resource.Revision(2) {
		_, err := ask(question.Dataplane{Name: "web-1"}, then+1+later)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(service.past.told), keptTold)
	again(2) // neither of them keeps it any more

	knows = false
	_, err = ask(question.Dataplane{Name: "web-1"}, then)
	require.True(t, rpcerr.HasReason(err, "NO_PAST"), "%v", err)
	_, err = ask(question.Dataplanes{}, then)
	require.True(t, rpcerr.HasReason(err, "NO_PAST"), "%v", err)
	_, err = ask(question.Dataplane{Name: "web-1"}, rev+1)
	require.Equal(t, rpcerr.OutOfRange, rpcerr.CodeOf(err))
}

// TestWhatZonesAreToldIsForgotten: what zones are told of an earlier state is kept while
// it is asked about, and for a minute.
func TestWhatZonesAreToldIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(store.DefaultOptions())
		retention := store.DefaultRetention()
		require.NoError(t, s.Apply(1, store.Txn{Retention: &retention}).Err)
		states := &pastStates{store: s, now: time.Now}
		state, err := s.StateAt(1)
		require.NoError(t, err)
		first, err := states.tell(state, nil)
		require.NoError(t, err)
		for range 3 {
			<-time.After(45 * time.Second)
			same, err := states.tell(state, nil)
			require.NoError(t, err)
			require.Same(t, first, same)
		}
		<-time.After(61 * time.Second)
		synctest.Wait()
		other, err := states.tell(state, nil)
		require.NoError(t, err)
		require.NotSame(t, first, other)
		require.Equal(t, first.name, other.name, "the name is that of the contents")
	})
}
