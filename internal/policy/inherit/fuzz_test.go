package inherit

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Whatever stands in `unset`, it is refused with a reason or takes out the one
// rule it names, and no other (§5.2).
func FuzzUnset(f *testing.F) {
	for _, path := range []string{
		"rules.authentication.a", `rules.authentication["a.b"]`, `rules.response["x\"y"]`, "rules.authentication", "rules", "limits.a",
		"rules..a", "rules.authentication.a.b", `rules["authentication"].a`, `rules.patterns["é ~/"]`, "", ".", "[", `rules.callbacks[""]`,
	} {
		f.Add(path)
	}
	compiler := newCompiler(f)
	f.Fuzz(func(t *testing.T, path string) {
		path = strings.ToValidUTF8(path, "\uFFFD") // JSON has no other
		spec, err := json.Marshal(map[string]any{
			"targetRef": targetRef("R"), "unset": []string{path}, "rules": map[string]any{"metadata": map[string]any{"own": 1}},
		})
		require.NoError(t, err)
		below, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "r"}}, spec)
		section, name, parseErr := resource.ParseUnset(path)
		if parseErr != nil {
			require.ErrorIs(t, parseErr, resource.ErrUnset)
			require.Error(t, err, "a path that is none was accepted")
			return
		}
		var refused *resource.DocumentError
		if errors.As(err, &refused) {
			return // limits
		}
		require.NoError(t, err)
		rules := map[string]any{section: map[string]any{name: 1, name + "x": 2}}
		above, err := json.Marshal(map[string]any{
			"targetRef": targetRef("G"), "defaults": map[string]any{"strategy": "merge", "rules": rules},
		})
		require.NoError(t, err)
		x := New(compiler)
		x.Reset(policy.NewSnapshot(append(world(t), below, build(t, "AuthPolicy", "g", string(above)))...))
		p := pathOf(t, x, "rule-1")
		require.Len(t, p.Unset, 1)
		require.Len(t, p.Origins, 2)
		for id := range p.Unset {
			again, nameAgain, err := resource.ParseUnset("rules." + id)
			require.NoError(t, err, id)
			require.Equal(t, section, again)
			require.Equal(t, name, nameAgain)
		}
	})
}

// Whatever stands in `when`, the policy is refused or evaluated, and every path
// has its answer (§5.6).
func FuzzWhen(f *testing.F) {
	for _, when := range []string{
		"true", "spec.rules.authentication.a > 50", "self.spec.rules == spec.rules", "target.spec.listeners.all(l, l.port > 1)",
		"spec.rules.map(k, k)", "1/0 == 1", "spec", "'a'.replace('a', 'aaaa') == spec", "spec.rules.a[", "dyn(1)", "null == spec.rules.x.y",
	} {
		f.Add(when)
	}
	compiler := newCompiler(f)
	f.Fuzz(func(t *testing.T, when string) {
		spec, err := json.Marshal(map[string]any{"targetRef": targetRef("G"), "overrides": map[string]any{
			"strategy": "merge", "when": when, "onError": "apply", "rules": map[string]any{"authentication": map[string]any{"a": 50}},
		}})
		require.NoError(t, err)
		above, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "g"}}, spec)
		if err != nil {
			return
		}
		x := New(compiler)
		x.Reset(policy.NewSnapshot(append(world(t), above, build(t, "AuthPolicy", "r",
			`{"targetRef": {"kind": "HTTPRoute", "name": "r"}, "rules": {"authentication": {"a": 70, "b": {"x": [1]}}}}`))...))
		p := pathOf(t, x, "rule-1")
		require.Len(t, p.Origins, 2)
		problems := compiler.Check(above.Spec())
		accepted := conditionsOf(t, x, "AuthPolicy", "g")[0]
		if accepted.Reason == reasonInvalid {
			require.NotEmpty(t, problems, "what cannot be used is refused")
			require.Empty(t, p.Decided)
			require.Equal(t, "r", p.Origins["authentication.a"].Name)
			return
		}
		require.Len(t, p.Decided, 1)
		require.Equal(t, p.Decided[0].Used, p.Origins["authentication.a"].Name == "g")
		require.Equal(t, p.Decided[0].Used, p.Decided[0].Matched || p.Decided[0].Failed)
	})
}
