package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
)

const badCondition = `type: AuthPolicy
mesh: default
name: capped
targetRef:
  kind: Gateway
  name: gw
overrides:
  when: spek.rules.size() > 1
  rules:
    authentication:
      a: 1
---
type: MeshUpstreamTimeout
mesh: default
name: slow
overrides:
  when: 1 + 1
  to:
    - targetRef:
        kind: Mesh
      connectTimeout: 1s
`

// §4.10, §5.6: a condition that cannot be used is refused before
// anything is sent.
func TestBadConditionsAreRefused(t *testing.T) {
	h := newHarness(t)
	file := h.write("p.yaml", badCondition)
	for _, args := range [][]string{{"validate"}, {"apply"}, {"apply", "--dry-run=client"}} {
		out := h.run(append(args, "-f", file)...)
		require.Equal(t, exit.Usage, out.code, args)
		require.Empty(t, out.stdout)
		require.Contains(t, out.stderr, "Error: 2 problems in the input; nothing was done")
		require.Contains(t, out.stderr, "document 1 (AuthPolicy/default/capped): overrides.when: at character 1: undeclared reference to 'spek'")
		require.Contains(t, out.stderr, "document 2 (MeshUpstreamTimeout/default/slow): overrides.when: the expression gives a int; a condition must be true or false")
	}
	require.Empty(t, h.server.Calls)
}

// One that is stored all the same is shown, and left out.
func TestBadConditionsAreExplained(t *testing.T) {
	h := newHarness(t)
	gateway := "type: Gateway\nmesh: default\nname: gw\nlisteners:\n  - {name: http, port: 80, protocol: HTTP}\n---\n"
	out := h.ok("eval", "policy", "AuthPolicy", "capped", "-f", h.write("p.yaml", gateway+badCondition))
	require.Contains(t, out, "Accepted   False   Invalid  Policy is invalid: overrides.when: at character 1: undeclared reference to 'spek'")
}

func TestRuleQuestions(t *testing.T) {
	h := newHarness(t)
	ask := func(args ...string) outcome {
		return h.run(append([]string{"eval", "policy"}, append(args, "-f", scenario("inherit-rule-reach"))...)...)
	}
	require.Contains(t, ask("AuthPolicy", "gw-policy", "--rule", "*").stdout, "authorization.b")
	out := ask("AuthPolicy", "gw-policy", "--rule", "authentication.b")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stderr, `rule "authentication.b" of AuthPolicy "gw-policy": not found; it has authentication.a and authorization.b`)
	out = ask("Timeout", "x", "--rule", "a")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "a Timeout has no named rules")
	require.Contains(t, h.ok("eval", "route", "r1", "-o", "wide", "-f", scenario("inherit-condition-fails")),
		"overrides of cap skipped: when spec.limits.a > 50 failed: no such overload")
	require.Equal(t, exit.No, h.run("eval", "route", "r3", "-f", scenario("inherit-rule-reach")).code)
}
