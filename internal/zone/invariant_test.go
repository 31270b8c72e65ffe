package zone

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/expectation"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// A zone judges its own dataplanes, and the connections to them: also those from other
// zones that the global tells of. What it evaluates is bounded.
func TestInvariants(t *testing.T) {
	s := zoneWith(t, following{}, map[string]string{
		"Mesh default":                         `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`,
		"Dataplane web-1":                      `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"web"}}]}}`,
		"Dataplane payments-1":                 `{"networking":{"address":"10.0.0.2","inbound":[{"port":80,"tags":{"kuma.io/service":"payments"}}]}}`,
		"TrafficPermission internet-to-anyone": `{"sources":[{"match":{"kuma.io/service":"internet"}}],"destinations":[{"match":{"kuma.io/service":"*"}}]}`,
	})
	judge := func(mesh, over, expression, elsewhere string) (*expectation.Verdict, error) {
		t.Helper()
		response, err := s.Inspect(t.Context(), &meridianv1.InspectRequest{Mesh: mesh, Question: &meridianv1.InspectRequest_Invariant{
			Invariant: &meridianv1.InvariantQuestion{Over: over, Expression: expression, Elsewhere: []byte(elsewhere)},
		}})
		if err != nil {
			return nil, err
		}
		v := &expectation.Verdict{}
		return v, answer.Unmarshal(response.GetJson(), v)
	}
	const safe = `!(c.allowed && c.to.tags.exists(t, t["kuma.io/service"] == "payments"))`
	v, err := judge("default", "connections", safe, "")
	require.NoError(t, err)
	require.Equal(t, &expectation.Verdict{Checked: 2, Examples: []string{}, Incomplete: []answer.Absence{}}, v)

	internet, err := json.Marshal([]expectation.Dataplane{
		{Mesh: "default", Name: "internet-1", Zone: "west", Tags: []resource.Tags{{"kuma.io/service": "internet"}}},
		{Mesh: "other", Name: "internet-2", Zone: "west", Tags: []resource.Tags{{"kuma.io/service": "internet"}}},
	})
	require.NoError(t, err)
	v, err = judge("default", "connections", safe, string(internet))
	require.NoError(t, err)
	require.Equal(t, &expectation.Verdict{Checked: 4, Broken: 1, Examples: []string{"internet-1 of zone west → payments-1:80 is allowed"}, Incomplete: []answer.Absence{}}, v)

	v, err = judge("default", "dataplanes", `d.zone == "east" && d.name != "web-1"`, "")
	require.NoError(t, err)
	require.Equal(t, []string{"web-1"}, v.Examples)

	v, err = judge("default", "connections", "c.name + 1 == 2", "")
	require.NoError(t, err)
	require.Equal(t, 2, v.Broken, "of what is not there nothing holds")

	bomb := "c.to.tags.all(a, " + strings.Repeat("[1,2,3,4,5,6,7,8,9,10].all(x, ", 6) + "true" + strings.Repeat(")", 7)
	for _, tc := range []struct{ mesh, over, expression, elsewhere, want string }{
		{"", "connections", "true", "", "an invariant is about one mesh"},
		{"default", "routes", "true", "", "an invariant is over connections or dataplanes"},
		{"default", "connections", "c.", "", "invariant: "},
		{"default", "connections", bomb, "", "zone \"east\": "},
		{"default", "connections", strings.Repeat("true && ", 1<<16) + "true", "", "zone \"east\": "},
		{"default", "connections", "true", "[", "dataplanes of other zones"},
	} {
		_, err := judge(tc.mesh, tc.over, tc.expression, tc.elsewhere)
		require.ErrorContains(t, err, tc.want)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), "%v", err)
	}
	_, err = s.Inspect(t.Context(), &meridianv1.InspectRequest{Mesh: "default", At: &meridianv1.PointInTime{}, Question: &meridianv1.InspectRequest_Invariant{Invariant: &meridianv1.InvariantQuestion{}}})
	require.ErrorContains(t, err, "does not know it", "there is no past of it")
}
