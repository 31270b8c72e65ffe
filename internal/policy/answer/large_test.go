package answer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

// A query whose answer would be too large is refused before it uses the server's
// memory, and the error names a narrower query.
func TestAnswersAreBounded(t *testing.T) {
	build := func(kind resource.Kind, name, spec string) *resource.Resource {
		return resourcetest.Build(t, kind, "default", name, spec)
	}
	var listeners, rules []string
	for i := range 64 {
		listeners = append(listeners, fmt.Sprintf(`{"name": "l%d", "port": %d, "protocol": "HTTP"}`, i, i+1))
	}
	for i := range policy.MaxPlaces/64 + 1 {
		rules = append(rules, fmt.Sprintf(`"a%d": {}`, i))
	}
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	m := engines.NewMatcher(compiler)
	m.Reset(policy.NewSnapshot(
		build("Gateway", "g", `{"listeners": [`+strings.Join(listeners, ",")+`]}`),
		build("HTTPRoute", "r", `{"parentRefs": [{"name": "g"}]}`),
		build("AuthPolicy", "p", `{"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {`+strings.Join(rules, ",")+`}}}`),
	))

	_, err = answer.Route(m, "default", "r", 0)
	require.ErrorIs(t, err, answer.ErrInvalid)
	require.ErrorContains(t, err, "ask about single policies")
	_, err = answer.Gateway(m, "default", "g", 0)
	require.ErrorIs(t, err, answer.ErrInvalid)
	require.ErrorContains(t, err, "ask about its routes")
	_, err = answer.PolicyRules(m, "AuthPolicy", "default", "p", answer.AllRules, "", 0)
	require.ErrorIs(t, err, answer.ErrInvalid)
	require.ErrorContains(t, err, "name one of its rules")
	one, err := answer.PolicyRules(m, "AuthPolicy", "default", "p", "authentication.a7", "", 0)
	require.NoError(t, err)
	require.Len(t, one.Rules, 64)
}

// Large rules that many paths share count on each of them.
func TestAnswersAreBoundedInBytes(t *testing.T) {
	build := func(kind resource.Kind, name, spec string) *resource.Resource {
		return resourcetest.Build(t, kind, "default", name, spec)
	}
	const size = 1 << 19
	resources := []*resource.Resource{
		build("Gateway", "g", `{"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}`),
		build("AuthPolicy", "p", `{"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {"a": "`+strings.Repeat("x", size)+`"}}}`),
	}
	for i := range policy.MaxPathBytes/size + 1 {
		resources = append(resources, build("HTTPRoute", fmt.Sprintf("r%d", i), `{"parentRefs": [{"name": "g"}]}`))
	}
	m := newMatcher(t)
	m.Reset(policy.NewSnapshot(resources...))
	_, err := answer.Gateway(m, "default", "g", 0)
	require.ErrorIs(t, err, answer.ErrInvalid)
	require.ErrorContains(t, err, "16 MiB of them; ask about its routes")
	one, err := answer.Route(m, "default", "r7", 0)
	require.NoError(t, err)
	require.Len(t, one.Paths, 1)
}
