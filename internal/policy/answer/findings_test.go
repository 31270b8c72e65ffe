package answer_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

func analysisOf(t *testing.T, dataplanes int, found ...answer.Finding) []byte {
	a := answer.AnalysisAnswer{AsOf: 7, Findings: found, Dataplanes: map[resource.MeshName]int{"m": dataplanes}}
	text, err := answer.Marshal(&a)
	require.NoError(t, err)
	return text
}

func findingOn(kind, name string, code resource.Code) answer.Finding {
	return answer.FindingOf(policy.Advice{
		Key:     resource.Key{Kind: resource.Kind(kind), Mesh: "m", Name: name},
		Problem: resource.Problem{Message: "names secret", Code: code, Severity: resource.Warning},
	})
}

// What takes effect nowhere is told when it is so in each zone that has dataplanes of the
// mesh; a tie or a successor when it is so anywhere; what a zone owns never.
func TestMergeAnalyses(t *testing.T) {
	own := findingOn("MeshUpstreamTimeout", "own", resource.CodeTargetNotFound)
	dead, half := findingOn("Timeout", "dead", resource.CodeDeadPolicy), findingOn("Timeout", "half", resource.CodeDeadPolicy)
	tie, role := findingOn("Timeout", "tie", resource.CodeTie), findingOn("AccessRole", "r", resource.CodeRoleUnbound)
	parts := []answer.Part{
		{JSON: analysisOf(t, 0, own)},
		{Zone: "east", JSON: analysisOf(t, 2, own, dead, half, role)},
		{Zone: "west", JSON: analysisOf(t, 1, dead, tie)},
		{Zone: "empty", JSON: analysisOf(t, 0)},
	}
	for _, absent := range [][]answer.Absence{nil, {{Zone: "south", Reason: "offline"}}} {
		merged, err := answer.MergeAnalyses(parts, func([]answer.Rejected) []answer.Absence { return absent })
		require.NoError(t, err)
		var a answer.AnalysisAnswer
		require.NoError(t, answer.Unmarshal(merged, &a))
		require.Equal(t, map[resource.MeshName]int{"m": 3}, a.Dataplanes)
		require.Len(t, a.Incomplete, len(absent))
		want := dead
		if len(absent) > 0 {
			want.Message += " (in the zones that answered)"
		}
		require.Equal(t, []answer.Finding{own, want, tie}, a.Findings)
	}
}

// A reader of a part learns no name that it may not read.
func TestRestrictAnalysis(t *testing.T) {
	a := answer.AnalysisAnswer{Findings: []answer.Finding{
		findingOn("Timeout", "mine", resource.CodeDeadPolicy), findingOn("Timeout", "theirs", resource.CodeDeadPolicy),
	}, Incomplete: []answer.Absence{{Zone: "east", Reason: "secret"}}, Dataplanes: map[resource.MeshName]int{"m": 3}}
	a.Restrict(func(key resource.Key) (bool, bool) { return key.Name == "mine", true })
	require.Len(t, a.Findings, 1)
	text, err := json.Marshal(&a)
	require.NoError(t, err)
	require.Contains(t, string(text), `"partial":true`)
	for _, hidden := range []string{"secret", "theirs", "east"} {
		require.NotContains(t, string(text), hidden+`"`)
	}
	var page strings.Builder
	a.Findings = nil
	require.NoError(t, answer.RenderAnalysis(&page, &a, answer.Form{}))
	require.Contains(t, page.String(), "Nothing that you may read")
}

// An answer about one mesh has nothing about others; one of very many findings is cut.
func TestAnalysisIsBounded(t *testing.T) {
	a := answer.AnalysisAnswer{Mesh: "m"}
	var found []policy.Advice
	for range 10_500 {
		found = append(found, policy.Advice{Key: resource.Key{Kind: "Timeout", Mesh: "m", Name: "t"}})
	}
	a.Add(append([]policy.Advice{
		{Key: resource.Key{Kind: "Mesh", Name: "m"}},
		{Key: resource.Key{Kind: "Mesh", Name: "n"}},
		{Key: resource.Key{Kind: "AccessRole", Name: "m"}},
		{Key: resource.Key{Kind: "Timeout", Mesh: "n", Name: "t"}},
	}, found...))
	require.Len(t, a.Findings, 10_000)
	require.Equal(t, 501, a.Truncated)
	require.Equal(t, "Timeout", a.Findings[1].Kind)
}
