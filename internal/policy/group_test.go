package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// One cause is one line, however many documents have it, and what is said of one
// document alone is as it was.
func TestGroups(t *testing.T) {
	about := func(kind, mesh, name string, p resource.Problem) policy.Advice {
		return policy.Advice{Key: resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}, Problem: p}
	}
	warning := func(path, text string) resource.Problem {
		return resource.Problem{Severity: resource.Warning, Path: resource.Path(path), Message: text}
	}
	lost := warning("parentRefs[0].name", "there is no Gateway g")
	var sixty []policy.Advice
	for i := range 60 {
		sixty = append(sixty, about("HTTPRoute", "m", fmt.Sprintf("r%d", i), lost))
	}
	sourced := about("Timeout", "m", "t", warning("", "a"))
	sourced.Source = "f.yaml"
	for _, tc := range []struct {
		name   string
		advice []policy.Advice
		want   []string
	}{
		{"none", nil, nil},
		{
			"one document, two messages",
			[]policy.Advice{about("A", "m", "x", warning("p", "one")), about("A", "m", "x", warning("p", "two"))},
			[]string{"A/m/x: p: one", "A/m/x: p: two"},
		},
		{"sixty documents", sixty, []string{"60 documents (HTTPRoute/m/r0, r1, r2, …): parentRefs[0].name: there is no Gateway g"}},
		{"whatever the place in a list, and the kind", []policy.Advice{
			about("HTTPRoute", "m", "r", lost), about("GRPCRoute", "m", "r", warning("parentRefs[2].name", "there is no Gateway g")),
		}, []string{"2 documents (HTTPRoute/m/r, GRPCRoute/m/r): parentRefs[0].name: there is no Gateway g"}},
		{"twice of one document", []policy.Advice{
			about("A", "m", "x", lost), about("A", "m", "x", warning("parentRefs[1].name", "there is no Gateway g")),
		}, []string{"A/m/x: parentRefs[0].name: there is no Gateway g", "A/m/x: parentRefs[1].name: there is no Gateway g"}},
		{"other meshes, fields and severities apart", []policy.Advice{
			about("A", "m", "x", warning("p", "t")), about("A", "n", "x", warning("p", "t")), about("A", "m", "y", warning("q", "t")),
			about("A", "m", "z", resource.Problem{Severity: resource.Info, Path: "p", Message: "t"}),
		}, []string{"A/m/x: p: t", "A/n/x: p: t", "A/m/y: q: t", "A/m/z: p: t"}},
		{"one cause, a message each", []policy.Advice{
			about("T", "m", "a", resource.Problem{Severity: resource.Info, Message: "before b", Cause: "they tie"}),
			about("T", "m", "b", resource.Problem{Severity: resource.Info, Message: "after a", Cause: "they tie"}),
		}, []string{"2 documents (T/m/a, b): they tie"}},
		{"a cause of one document", []policy.Advice{
			about("T", "m", "a", resource.Problem{Severity: resource.Info, Message: "before b", Cause: "they tie"}),
		}, []string{"T/m/a: before b"}},
		{"a source, and a request", []policy.Advice{sourced, {Problem: warning("", "all of it")}}, []string{"f.yaml: Timeout/m/t: a", "all of it"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var lines []string
			groups := policy.Groups(tc.advice)
			for i := range groups {
				lines = append(lines, groups[i].String())
			}
			require.Equal(t, tc.want, lines)
		})
	}
}
