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
	_, err = answer.PolicyRules(m, "AuthPolicy", "default", "p", answer.AllRules, "", 0)
	require.ErrorIs(t, err, answer.ErrInvalid)
	require.ErrorContains(t, err, "name one of its rules")
	one, err := answer.PolicyRules(m, "AuthPolicy", "default", "p", "authentication.a7", "", 0)
	require.NoError(t, err)
	require.Len(t, one.Rules, 64)
}
