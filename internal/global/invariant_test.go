package global

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/expectation"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// An invariant over a fleet is judged in each zone, with the callers in the others, and
// names every zone of which the verdict is not known.
func TestInvariantsOverAllZones(t *testing.T) {
	var mu sync.Mutex
	told := map[resource.ZoneName]string{}
	verdicts := map[resource.ZoneName]string{
		"east":  `{"checked":3,"broken":1,"examples":["a → b:80 is allowed"],"incomplete":[]}`,
		"west":  `{"checked":2,"broken":0,"examples":[],"incomplete":[]}`,
		"liar":  `{"checked":1,"broken":2,"examples":["x","y"],"incomplete":[]}`,
		"long":  fmt.Sprintf(`{"checked":1,"broken":1,"examples":[%q],"incomplete":[]}`, strings.Repeat("x", maxExampleBytes+1)),
		"noise": `{`,
	}
	s := zonesThat(nil, "east", "liar", "long", "noise", "old", "west")
	s.asking = func(_ context.Context, zone resource.ZoneName, _ string, question []byte) ([]byte, error) {
		var req meridianv1.InspectRequest
		if err := proto.Unmarshal(question, &req); err != nil {
			return nil, err
		}
		switch {
		case zone == "old":
			return nil, rpcerr.ToStatus(rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "this release does not know it")).Err()
		case req.GetPlan() != nil:
			document := `[]`
			if zone == "east" || zone == "west" {
				document = fmt.Sprintf(`[{"mesh":"shop","tags":[{"kuma.io/service":"a"}],"names":["a-%s"]}]`, zone)
			}
			return proto.Marshal(&meridianv1.InspectResponse{Json: []byte(document)})
		}
		mu.Lock()
		defer mu.Unlock()
		told[zone] = string(req.GetInvariant().GetElsewhere())
		return proto.Marshal(&meridianv1.InspectResponse{Json: []byte(verdicts[zone])})
	}
	ask := func(over string) (*expectation.Verdict, *meridianv1.InspectResponse, error) {
		response, err := s.Inspect(t.Context(), &meridianv1.InspectRequest{Mesh: "shop", Question: &meridianv1.InspectRequest_Invariant{
			Invariant: &meridianv1.InvariantQuestion{Over: over, Expression: "true"},
		}})
		v := &expectation.Verdict{}
		if err == nil {
			err = answer.Unmarshal(response.GetJson(), v)
		}
		return v, response, err
	}
	v, response, err := ask("connections")
	require.NoError(t, err)
	require.Equal(t, 5, v.Checked)
	require.Equal(t, 1, v.Broken)
	require.Equal(t, []string{"zone east: a → b:80 is allowed"}, v.Examples)
	var absent []string
	for _, a := range v.Incomplete {
		absent = append(absent, string(a.Zone))
	}
	require.ElementsMatch(t, []string{"liar", "long", "noise", "old"}, absent)
	require.Len(t, response.GetNotes(), 4)
	require.NotContains(t, strings.Join(response.GetNotes(), ""), "xxx")
	require.JSONEq(t, `[{"mesh":"shop","name":"a-west","zone":"west","tags":[{"kuma.io/service":"a"}]}]`, told["east"])
	require.JSONEq(t, `[{"mesh":"shop","name":"a-east","zone":"east","tags":[{"kuma.io/service":"a"}]}]`, told["west"])

	_, _, err = ask("dataplanes")
	require.NoError(t, err)
	require.JSONEq(t, `[]`, told["east"])

	s.zones = func(context.Context) fleetStatus { return connectedTo("a") }
	_, _, err = ask("connections")
	require.True(t, rpcerr.HasReason(err, "NO_ZONES"), "%v", err)
}
