package global

import (
	"context"
	"testing"
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
// know such questions is not taken for one.
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
	knows := true
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
			if err := proto.Unmarshal(q, &asked); err != nil {
				return nil, err
			}
			response := &meridianv1.InspectResponse{Json: []byte(`{}`), AsOf: uint64(rev)}
			if knows {
				response.AtRevision = asked.GetAt().GetRevision()
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

	knows = false
	_, err = ask(question.Dataplane{Name: "web-1"}, then)
	require.True(t, rpcerr.HasReason(err, "NO_PAST"), "%v", err)
	_, err = ask(question.Dataplanes{}, then)
	require.True(t, rpcerr.HasReason(err, "NO_PAST"), "%v", err)
	_, err = ask(question.Dataplane{Name: "web-1"}, rev+1)
	require.Equal(t, rpcerr.OutOfRange, rpcerr.CodeOf(err))
}
