package targetref_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/specificity"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

const webAndBackend = `
---
type: Dataplane
mesh: m
name: web-1
networking:
  address: 10.0.0.1
  inbound:
    - {port: 80, tags: {kuma.io/service: web, version: v1}}
  outbound:
    - {port: 1, tags: {kuma.io/service: backend}}
`

// why answers a question about web-1 in lines: field, value, policy, losers.
func why(t *testing.T, m *policy.Matcher, q answer.WhyQuestion) []string {
	t.Helper()
	q.Mesh, q.Dataplane = "m", "web-1"
	a, err := answer.Why(m, q, "east", 0)
	require.NoError(t, err)
	var lines []string
	for _, e := range a.Entries {
		for _, f := range e.Fields {
			lines = append(lines, string(f.Field)+" = "+policytest.Spell(t, f.Value)+" of "+f.Policy+" ("+f.Rule+": "+f.Reason+")")
			for _, l := range f.Losers {
				lines = append(lines, "  "+l.Policy+" ("+l.Rule+": "+l.Reason+")")
			}
		}
		for _, c := range e.Considered {
			if !c.Used {
				lines = append(lines, "unused "+c.Policy+" ("+c.Rule+": "+c.Reason+")")
			}
		}
	}
	return lines
}

// Every loser is told the rule by which it lost: kind of target, name, or
// position in the list.
func TestWhyNamesEveryLoser(t *testing.T) {
	m := load(t, `
type: MeshUpstreamTimeout
mesh: m
name: a-base
to:
  - {targetRef: {kind: Mesh}, connectTimeout: 1s}
---
type: MeshUpstreamTimeout
mesh: m
name: b-base
to:
  - {targetRef: {kind: Mesh}, connectTimeout: 2s}
---
type: MeshUpstreamTimeout
mesh: m
name: owner
targetRef: {kind: Service, name: web}
to:
  - {targetRef: {kind: Service, name: backend}, connectTimeout: 3s}
  - {targetRef: {kind: Mesh}, connectTimeout: 4s}
---
type: MeshUpstreamTimeout
mesh: m
name: owner-of-other
targetRef: {kind: Service, name: web}
to:
  - {targetRef: {kind: Service, name: other}, connectTimeout: 5s}
---
type: MeshUpstreamTimeout
mesh: m
name: cap
overrides:
  strategy: merge
  when: has(spec.idleTimeout)
  to:
    - {targetRef: {kind: Mesh}, connectTimeout: 6s}
`+webAndBackend)
	require.Equal(t, []string{
		`/connectTimeout = "3s" of owner (4.5: to[0] stands above to[1])`,
		`  owner (4.5: to[1] loses to to[0] of the same policy: the first item that has a field sets it)`,
		`  b-base (4.2: loses to owner (to[0]): it targets Mesh, the winner Service web)`,
		`  a-base (4.2: loses to owner (to[0]): it targets Mesh, the winner Service web)`,
		`unused b-base (4.2: loses to owner (to[0]): it targets Mesh, the winner Service web)`,
		`unused a-base (4.2: loses to owner (to[0]): it targets Mesh, the winner Service web)`,
		`unused owner-of-other (4.6: none of its to items selects this outbound)`,
		`unused cap (4.10: when (has(spec.idleTimeout)) of its overrides does not hold: false)`,
	}, why(t, m, answer.WhyQuestion{Kind: "MeshUpstreamTimeout"}))
}

// For a caller, the rules that match it are merged in order (§4.7).
func TestWhyForCaller(t *testing.T) {
	m := load(t, `
type: MeshTrafficPermission
mesh: m
name: deny-v1
from:
  - {targetRef: {kind: MeshSubset, tags: {version: v1}}, action: Deny}
---
type: MeshTrafficPermission
mesh: m
name: allow
from:
  - {targetRef: {kind: Mesh}, action: Allow}
`+webAndBackend)
	ask := func(caller resource.Tags) []string {
		return why(t, m, answer.WhyQuestion{Kind: "MeshTrafficPermission", From: caller})
	}
	require.Equal(t, []string{
		`/action = "DENY" of deny-v1 (4.3: targets a Mesh as allow does, and its name sorts later)`,
		`  allow (4.3: loses to deny-v1 (from[0]): both target a Mesh, the winner's name sorts later)`,
		`unused allow (4.3: loses to deny-v1 (from[0]): both target a Mesh, the winner's name sorts later)`,
	}, ask(resource.Tags{"version": "v1"}))
	require.Equal(t, `/action = "ALLOW" of allow (4.5: sets what nothing above it sets)`, ask(resource.Tags{"version": "v2"})[0])
}

// confOf is what one kind comes to on the only outbound of web-1.
func confOf(t *testing.T, m *policy.Matcher) string {
	t.Helper()
	rules := effective(t, m, policy.DataplaneKey("m", "web-1"))
	if len(rules) == 0 {
		return "nothing"
	}
	require.Len(t, rules, 1)
	return policytest.Spell(t, rules[0].Fold().Conf())
}

// TestBlocks is §4.10 by example. Every policy has a target and the
// forms written below it; the order of the list does not matter.
func TestBlocks(t *testing.T) {
	const connect1, connect2, idle3 = "to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]", "to: [{targetRef: {kind: Mesh}, connectTimeout: 2s}]", "to: [{targetRef: {kind: Mesh}, idleTimeout: 3s}]"
	type policies map[string]string // "name target" → forms
	tests := map[string]struct {
		policies policies
		want     string
	}{
		"merged defaults fill":           {policies{"p Mesh": "defaults: {strategy: merge, " + idle3 + "}", "q Service": connect1}, `{"connectTimeout":"1s","idleTimeout":"3s"}`},
		"atomic defaults are overridden": {policies{"p Mesh": "defaults: {" + idle3 + "}", "q Service": connect1}, `{"connectTimeout":"1s"}`},
		"atomic defaults alone apply":    {policies{"p Mesh": "defaults: {" + idle3 + "}"}, `{"idleTimeout":"3s"}`},
		"less specific merged fill them": {policies{"p Mesh": "defaults: {strategy: merge, " + connect1 + "}", "q Service": "defaults: {" + idle3 + "}"}, `{"connectTimeout":"1s","idleTimeout":"3s"}`},
		"merged overrides win":           {policies{"p Mesh": "overrides: {strategy: merge, " + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"2s"}`},
		"merged overrides leave others":  {policies{"p Mesh": "overrides: {strategy: merge, " + connect2 + "}", "q Service": idle3}, `{"connectTimeout":"2s","idleTimeout":"3s"}`},
		"the least specific override":    {policies{"p Mesh": "overrides: {strategy: merge, " + connect1 + "}", "q Service": "overrides: {strategy: merge, " + connect2 + "}"}, `{"connectTimeout":"1s"}`},
		"of one age the first name":      {policies{"p Mesh": "overrides: {strategy: merge, " + connect1 + "}", "q Mesh": "overrides: {strategy: merge, " + connect2 + "}"}, `{"connectTimeout":"1s"}`},
		"atomic overrides are all":       {policies{"p Mesh": "overrides: {" + connect2 + "}", "q Service": idle3}, `{"connectTimeout":"2s"}`},
		"defaults add nothing to them":   {policies{"p Service": "overrides: {" + connect2 + "}", "q Mesh": idle3}, `{"connectTimeout":"2s"}`},
		"overrides add to them":          {policies{"p Service": "overrides: {" + connect2 + "}", "q Mesh": "overrides: {strategy: merge, " + idle3 + "}"}, `{"connectTimeout":"2s","idleTimeout":"3s"}`},
		"both blocks of one policy":      {policies{"p Mesh": "defaults: {" + idle3 + "}\noverrides: {strategy: merge, " + connect2 + "}"}, `{"connectTimeout":"2s","idleTimeout":"3s"}`},
		"when true":                      {policies{"p Mesh": `overrides: {strategy: merge, when: 'self.connectTimeout == "1s"', ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"2s"}`},
		"self.spec is the same":          {policies{"p Mesh": `overrides: {strategy: merge, when: 'self.spec == spec && self.kind == "MeshUpstreamTimeout"', ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"2s"}`},
		"when false":                     {policies{"p Mesh": `overrides: {strategy: merge, when: 'spec.connectTimeout == "9s"', ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"1s"}`},
		"a missing key is false":         {policies{"p Mesh": `overrides: {strategy: merge, when: 'spec.idleTimeout == "9s"', onError: apply, ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"1s"}`},
		"an error is false":              {policies{"p Mesh": `overrides: {strategy: merge, when: 'duration(spec.connectTimeout + "x") > duration("1s")', ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"1s"}`},
		"an error with onError apply":    {policies{"p Mesh": `overrides: {strategy: merge, when: 'duration(spec.connectTimeout + "x") > duration("1s")', onError: apply, ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"2s"}`},
		"a condition that is no CEL":     {policies{"p Mesh": `overrides: {strategy: merge, when: 'spec.', onError: apply, ` + connect2 + "}", "q Service": connect1}, `{"connectTimeout":"1s"}`},
		"target is the attachment":       {policies{"p Mesh": `overrides: {strategy: merge, when: 'target.kind == "Mesh" && target.attachment.service == "backend" && target.attachment.port == 1', ` + connect2 + "}"}, `{"connectTimeout":"2s"}`},
		"self has no less specific":      {policies{"p Service": `overrides: {strategy: merge, when: 'size(spec) == 0', ` + connect2 + "}", "q Mesh": idle3}, `{"connectTimeout":"2s","idleTimeout":"3s"}`},
		"self has own defaults":          {policies{"p Mesh": "defaults: {" + idle3 + "}\noverrides: {strategy: merge, when: has(spec.idleTimeout), " + connect2 + "}"}, `{"connectTimeout":"2s","idleTimeout":"3s"}`},
		"conditions of defaults":         {policies{"p Mesh": "defaults: {strategy: merge, when: has(spec.connectTimeout), " + idle3 + "}", "q Service": connect1}, `{"connectTimeout":"1s","idleTimeout":"3s"}`},
		"unset takes out of defaults":    {policies{"p Mesh": connect1, "q Service": "unset: [/connectTimeout]\n" + idle3}, `{"idleTimeout":"3s"}`},
		"unset of everything":            {policies{"p Mesh": connect1, "q Service": "unset: [/connectTimeout]"}, `{}`},
		"unset leaves its own":           {policies{"q Service": "unset: [/connectTimeout]\n" + connect1}, `{"connectTimeout":"1s"}`},
		"unset leaves more specific":     {policies{"p Mesh": "unset: [/connectTimeout]", "q Service": connect1}, `{"connectTimeout":"1s"}`},
		"unset leaves overrides":         {policies{"p Mesh": "overrides: {strategy: merge, " + connect2 + "}", "q Service": "unset: [/connectTimeout]"}, `{"connectTimeout":"2s"}`},
		"unset is about its items":       {policies{"p Mesh": connect1, "q Service": "unset: [/connectTimeout]\nto: [{targetRef: {kind: Service, name: other}, idleTimeout: 3s}]"}, `{"connectTimeout":"1s"}`},
		"unset of an object":             {policies{"p Mesh": "to: [{targetRef: {kind: Mesh}, connectTimeout: 1s, http: {requestTimeout: 1s}}]", "q Service": "unset: [/http]"}, `{"connectTimeout":"1s"}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			text := "type: Mesh\nname: m\n"
			for head, forms := range tt.policies {
				name, target, _ := strings.Cut(head, " ")
				text += "---\ntype: MeshUpstreamTimeout\nmesh: m\nname: " + name + "\n" + forms + "\n"
				if target == "Service" {
					text += "targetRef: {kind: Service, name: web}\n"
				}
			}
			require.Equal(t, tt.want, confOf(t, load(t, text+webAndBackend)))
		})
	}
}

// TestBlocksForCallers is §4.10 on lists for callers: what is merged
// or taken out are entries with one target.
func TestBlocksForCallers(t *testing.T) {
	const denyWeb, allowAll = "{targetRef: {kind: Service, name: web}, action: DENY}", "{targetRef: {kind: Mesh}, action: ALLOW}"
	tests := map[string]struct {
		mesh, web string // forms of a policy on the Mesh, and of one on Service web
		want      []string
	}{
		"overrides stand on top":           {"overrides: {strategy: merge, from: [" + denyWeb + "]}", "from: [" + allowAll + "]", []string{"mesh DENY", "web ALLOW"}},
		"atomic overrides are all":         {"overrides: {from: [" + denyWeb + "]}", "from: [" + allowAll + "]", []string{"mesh DENY"}},
		"atomic defaults are overridden":   {"defaults: {from: [" + denyWeb + "]}", "from: [" + allowAll + "]", []string{"web ALLOW"}},
		"merged defaults stand below":      {"defaults: {strategy: merge, from: [" + denyWeb + "]}", "from: [" + allowAll + "]", []string{"web ALLOW", "mesh DENY"}},
		"unset is about equal targets":     {"from: [" + denyWeb + ", " + allowAll + "]", "unset: [/action]\nfrom: [" + allowAll + "]", []string{"web ALLOW", "mesh DENY"}},
		"unset alone is about all":         {"from: [" + denyWeb + ", " + allowAll + "]", "unset: [/action]", nil},
		"self is the entry of that target": {"overrides: {strategy: merge, when: has(spec.action), from: [" + denyWeb + ", " + strings.Replace(allowAll, "ALLOW", "DENY", 1) + "]}", "from: [" + allowAll + "]", []string{"mesh DENY", "web ALLOW"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := load(t, "type: Mesh\nname: m\n---\ntype: MeshTrafficPermission\nmesh: m\nname: mesh\n"+tt.mesh+
				"\n---\ntype: MeshTrafficPermission\nmesh: m\nname: web\ntargetRef: {kind: Service, name: web}\n"+tt.web+"\n"+webAndBackend)
			var got []string
			for _, rule := range effective(t, m, policy.DataplaneKey("m", "web-1")) {
				for _, s := range rule.Steps {
					got = append(got, s.Origin.Name+" "+s.Conf["action"].(string))
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// A policy whose blocks are all left out still says why, although nothing takes
// effect.
func TestWhyNothingTakesEffect(t *testing.T) {
	m := load(t, `
type: MeshUpstreamTimeout
mesh: m
name: cap
overrides:
  when: has(spec.idleTimeout)
  to:
    - {targetRef: {kind: Mesh}, connectTimeout: 6s}
`+webAndBackend)
	require.Equal(t, "nothing", confOf(t, m))
	require.Equal(t, []string{`unused cap (4.10: when (has(spec.idleTimeout)) of its overrides does not hold: false)`},
		why(t, m, answer.WhyQuestion{Kind: "MeshUpstreamTimeout"}))
}

// §4.2: a parentRef with a port means a gateway that listens there.
func TestRouteOnPortOfGateway(t *testing.T) {
	for port, want := range map[string]int{"": 1, ", port: 8080": 1, ", port: 8081": 0} {
		m := load(t, `
type: MeshGateway
mesh: m
name: edge
selectors: [{match: {kuma.io/service: edge}}]
conf: {listeners: [{port: 80, protocol: HTTP}, {port: 8080, protocol: HTTP}]}
---
type: HTTPRoute
mesh: m
name: shop
parentRefs: [{kind: MeshGateway, name: edge`+port+`}]
rules: [{backendRefs: [{kind: Service, name: backend}]}]
---
type: MeshRequestRetry
mesh: m
name: retries
to: [{targetRef: {kind: HTTPRoute, name: shop}, http: {numRetries: 3}}]
---
type: Dataplane
mesh: m
name: edge-1
networking:
  address: 10.0.0.1
  gateway: {tags: {kuma.io/service: edge}}
  outbound: [{port: 1, tags: {kuma.io/service: backend}}]
`)
		require.Len(t, effective(t, m, policy.DataplaneKey("m", "edge-1")), want, port)
	}
}

// Where policies of both generations meet, the Mesh kind holds for the complete
// attachment, and a warning names the pair (§4.11); elsewhere both take effect and
// there is none.
func TestBothGenerations(t *testing.T) {
	const older = "\n---\ntype: Timeout\nmesh: m\nname: old\nsources: [{match: {kuma.io/service: '*'}}]\ndestinations: [{match: {kuma.io/service: backend}}]\nconf: {connectTimeout: 1s}\n"
	warnings := func(service string) []string {
		m := policy.NewMatcher(specificity.Engine{}, targetref.New())
		m.Reset(viewOf(t, "type: MeshUpstreamTimeout\nmesh: m\nname: new\nto: [{targetRef: {kind: Service, name: "+service+"}, connectTimeout: 2s}]\n"+older+webAndBackend))
		a, err := answer.Dataplane(m, "m", "web-1", "east", 0)
		require.NoError(t, err)
		return a.Warnings
	}
	require.Equal(t, []string{"outbound backend:1: Timeout old is superseded by MeshUpstreamTimeout new"}, warnings("backend"))
	require.Empty(t, warnings("other"))
}

// The list for callers costs in proportion to its length, and so does finding
// what is shadowed (§4.7).
func TestCostIsLinear(t *testing.T) {
	cost := func(n int) float64 {
		w := oneDataplane(t)
		permissions(t, w, n)
		w.put(t, "MeshMetrics", mesh, "names-it", `{"targetRef":{"kind":"Proxy","name":"d1"},"conf":{}}`, 0)
		m := matcher(w.View())
		return testing.AllocsPerRun(3, func() {
			for _, rule := range effective(t, m, policy.DataplaneKey(mesh, "d1")) {
				rule.Shadows()
			}
		})
	}
	require.Less(t, cost(2000), 9*cost(250), "8 times as many rules")
}

// All thirteen kinds are answered for (§4.1), and every successor is
// one of them.
func TestKinds(t *testing.T) {
	require.Len(t, targetref.New().Kinds(), 13)
}

// Whatever a policy holds that the decoder takes, matching and advice come
// through, and the explanation agrees with the outcome.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{
		`{"to":[{"targetRef":{"kind":"Mesh"},"connectionLimits":{"maxRequests":1}}],"unset":["/connectionLimits"]}`,
		`{"targetRef":{"kind":"HTTPRoute","name":"r1"},"overrides":{"when":"size(spec) > 0","to":[{"targetRef":{"kind":"HTTPRoute","name":"r1"},"default":{"connectionLimits":{}}}]}}`,
		`{"defaults":{"strategy":"merge","from":[{"targetRef":{"kind":"ServiceSubset","name":"web","tags":{"kuma.io/service":"*"}},"outlierDetection":{"interval":"1s"}}]}}`,
		`{"targetRef":{"kind":"Proxy","name":"web-1"},"conf":{"from":[{"targetRef":{"kind":"MeshSubset","tags":{"a":"b"}},"connectionLimits":{"maxRetries":0}}]}}`,
	} {
		f.Add([]byte(seed))
	}
	base := viewOf(f, "type: HTTPRoute\nmesh: m\nname: r1\nparentRefs: [{kind: Service, name: backend}]\n"+webAndBackend)
	var fixed []*resource.Resource
	for _, kind := range []resource.Kind{"Mesh", "Dataplane", "HTTPRoute"} {
		for r := range base.List(kind, "") {
			fixed = append(fixed, r)
		}
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		key := resource.Key{Kind: "MeshCircuitBreaker", Mesh: "m", Name: "p"}
		r, _, err := resource.Build(resource.Meta{Key: key}, spec)
		if err != nil {
			return
		}
		view := policy.NewSnapshot(append(fixed, r)...)
		m := matcher(view)
		rules := effective(t, m, policy.DataplaneKey("m", "web-1"))
		a, err := answer.Dataplane(m, "m", "web-1", "east", 0)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(a.Effective), len(rules))
		policytest.Lint(t, view, []*resource.Resource{r}, targetref.New())
	})
}
