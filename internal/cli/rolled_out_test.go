package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
)

// What a zone shows by a rollout says so: in tables, documents and answers.
func TestReadsNameTheRollout(t *testing.T) {
	h := twoPolicies(t)
	require.NotContains(t, h.ok("get", "tp"), "ROLLOUT")
	h.server.Stored[resource.Key{Kind: "TrafficPermission", Mesh: "default", Name: "catch-all"}].Rollout = "canary"
	require.Regexp(t, `(?m)ROLLOUT *\n.*catch-all .*canary *\n.*web-to-backend .* - *$`, h.ok("get", "tp"))
	require.Contains(t, h.ok("get", "tp", "catch-all", "-o", "yaml"), "\nrollout: canary\n")
	require.Contains(t, h.ok("get", "tp", "catch-all", "-o", "json"), `"rollout": "canary"`)
	require.Contains(t, h.ok("describe", "tp", "catch-all"), "Rollout:    canary: shown in this zone in place of what the global has\n")
	h.ok("apply", "-f", h.write("again.yaml", h.ok("get", "tp", "catch-all", "-o", "yaml")))
	require.Empty(t, h.server.Applies[len(h.server.Applies)-1].GetResources()[0].GetRollout(), "a document that was read is applied as any other")

	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"rollouts": [
			{"kind": "Timeout", "mesh": "default", "name": "all", "rollout": "canary", "zone": "east"},
			{"kind": "Retry", "mesh": "default", "name": "all", "deleted": true, "rollout": "canary", "zone": "east"}]}`)}, nil
	}
	out := h.run("inspect", "policy", "Timeout", "all", "-o", "json")
	require.Contains(t, out.stdout, `"rollout": "canary"`)
	require.Equal(t, "Timeout/default/all is as Rollout canary changes it in zone \"east\".\n"+
		"Retry/default/all is deleted as Rollout canary changes it in zone \"east\".\n", out.stderr)
}
