package answer_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
)

// targetRefExamples says which folder shows which published example
// (§4.9), so that none gets lost.
var targetRefExamples = map[string][]string{
	"UpstreamTimeout on web":                         {"targetref-upstream-timeout"},
	"web v1 is denied":                               {"targetref-permission-old-web", "targetref-permission-list"},
	"infra-monitoring is allowed":                    {"targetref-permission-infra-monitoring"},
	"infra-logger is allowed":                        {"targetref-permission-infra-logger"},
	"an empty list of modifications":                 {"targetref-empty-list-replaces"},
	"logging with both lists":                        {"targetref-to-and-from"},
	"three items of to about one outbound":           {"targetref-order-inside-a-policy"},
	"three items of from about one caller":           {"targetref-order-inside-a-policy-for-callers"},
	"one outbound, every outbound, a route":          {"targetref-to-and-from", "targetref-kinds-of-targets", "targetref-route-has-its-own-entry"},
	"lower levels override higher ones":              {"targetref-kinds-of-targets"},
	"policies on one object are sorted by name":      {"targetref-upstream-timeout", "targetref-upstream-timeout-last-wins"},
	"policies on routes of services and gateways":    {"targetref-policy-on-a-route", "targetref-policy-on-a-gateway-route", "targetref-route-on-a-gateway"},
	"the mesh wide permission where no other stands": {"targetref-permission-on-other-services"},
}

func TestWorkedExamplesOfTargetRefAreScenarios(t *testing.T) {
	for example, folders := range targetRefExamples {
		for _, folder := range folders {
			require.FileExists(t, filepath.Join(scenarios, folder, "want.json"), example)
		}
	}
}

// A policy that denies every inbound is named once.
func TestRenderDeniedOnEveryInbound(t *testing.T) {
	deny := answer.OnConnection{Side: "inbound", Kind: "MeshTrafficPermission", Conf: policy.Tree{"action": "DENY"}, Policies: []string{"perm"}}
	a := &answer.ConnectionAnswer{
		Mesh: "m", From: "b1", To: "web-1", Inbounds: []answer.InboundAccess{{Port: 80, Service: "web"}, {Port: 81, Service: "admin"}},
		Effective: []answer.OnConnection{deny, deny},
	}
	var page strings.Builder
	require.NoError(t, answer.RenderConnection(&page, a, answer.Form{}))
	require.Contains(t, page.String(), "denied by perm\n")
}
