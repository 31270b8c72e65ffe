package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy/condition"
	"meridian/internal/rpcerr"
)

// §5.6: a policy with a condition that cannot be used is refused, and
// the whole batch with it; one that could fail only on some paths is not.
func TestConditionsAreChecked(t *testing.T) {
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	f := newFixture(t, func(c *Config) { c.Check = compiler.Check })
	capped := func(when string) *meridianv1.Resource {
		return message("AuthPolicy", "default", "capped", `{"targetRef": {"kind": "Gateway", "name": "g"},
			"overrides": {"when": "`+when+`", "rules": {"authentication": {"a": 1}}}}`)
	}
	_, err = f.apply("bad", trafficLog("good", "logstash"), capped("spec.a >"))
	requireCode(t, err, rpcerr.Invalid, "AuthPolicy", "overrides.when: at character 9: Syntax error")
	_, err = f.Get(f.ctx, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "TrafficLog", Mesh: "default", Name: "good"}})
	requireCode(t, err, rpcerr.NotFound)

	_, err = f.apply("good", capped("spec.rules.authentication.a > 1"))
	require.NoError(t, err)
}
