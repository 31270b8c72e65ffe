package resource_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// TestDocuments holds §1.2: the documents' own YAML is valid as
// written, without a warning.
func TestDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/documents/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, document := range strings.Split(string(data), "\n---\n") {
			documents, err := resource.Decode(file, []byte(document), resource.DecodeOptions{})
			require.NoError(t, err)
			require.Len(t, documents, 1)
			for _, p := range documents[0].Problems {
				require.Contains(t, p.Message, "is never granted", "role-1 of the access control document lists every access")
			}
		}
	}
}

// document returns the document of a file that has a name.
func document(t *testing.T, file, name string) *resource.Resource {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/documents", file))
	require.NoError(t, err)
	for _, text := range strings.Split(string(data), "\n---\n") {
		if r := decodeOne(t, text); r.Key().Name == name {
			return r
		}
	}
	require.FailNow(t, "no such document", name)
	return nil
}

// TestInheritedForms holds §5.2 and §5.3: bare rules are atomic
// defaults, and bodies stay whole.
func TestInheritedForms(t *testing.T) {
	spec := func(name string) resource.InheritedSpec {
		return document(t, "inherited.yaml", name).Spec().(resource.InheritedSpec)
	}
	bare := spec("bare")
	target := bare.Target()
	require.Equal(t, "HTTPRoute", target.Kind)
	require.Equal(t, "rule-2", target.Section())
	require.Nil(t, bare.Overrides())
	require.Equal(t, resource.Atomic, bare.Defaults().Strategy)
	require.Equal(t, resource.Root, bare.Defaults().Path)
	require.Equal(t, `{"authentication":{"b":{"x":[1,"2",null]}},"response":{"success":{"headers":{}}}}`, treeJSON(t, bare.Defaults().Rules))
	require.Equal(t, []resource.RuleID{{Section: "authentication", Name: "a"}, {Section: "authorization", Name: "a.b"}}, bare.UnsetRules())

	merged := spec("merged-overrides")
	require.Nil(t, merged.Defaults())
	require.Equal(t, &resource.RuleBlock{
		Strategy: resource.Merge, When: "spec.rules.authentication.a > 50", OnError: resource.ApplyOnError,
		Rules: merged.Overrides().Rules, Path: "overrides",
	}, merged.Overrides())
	require.Equal(t, `{"authentication":{"a":50}}`, treeJSON(t, merged.Overrides().Rules))

	limits := spec("limits")
	require.Equal(t, `{"c":{}}`, treeJSON(t, limits.Defaults().Rules))
	require.Equal(t, resource.Atomic, limits.Defaults().Strategy)
	require.Equal(t, []resource.RuleID{{Name: "a.b"}}, spec("route-limits").UnsetRules())
}

// TestRuleNames holds §5.1: unnamed rules are named by their place.
func TestRuleNames(t *testing.T) {
	route := document(t, "inherited.yaml", "my-route").Spec().(resource.RouteSpec)
	require.Equal(t, []string{"get", "rule-2"}, route.RuleNames())
	require.Equal(t, []string{"api.example.com"}, route.HostNames())
	parents := route.Parents()
	require.Equal(t, "Gateway", parents[0].ParentKind())
	require.Equal(t, "http", parents[0].Section())
	require.Equal(t, "Service", parents[1].ParentKind())
	require.Empty(t, parents[1].Section())
}

// TestParseUnset holds §5.2.
func TestParseUnset(t *testing.T) {
	for path, want := range map[string][2]string{
		"rules.authentication.a":          {"authentication", "a"},
		`rules.authorization["a.b"]`:      {"authorization", "a.b"},
		`rules["response"]["\"q\""]`:      {"response", `"q"`},
		"limits.my-limit":                 {"limits", "my-limit"},
		`limits["a.b"]`:                   {"limits", "a.b"},
		"rules.patterns.with spaces/also": {"patterns", "with spaces/also"},
	} {
		section, name, err := resource.ParseUnset(path)
		require.NoError(t, err)
		require.Equal(t, want, [2]string{section, name}, path)
	}
	for path, want := range map[string]string{
		"":                         "its steps cannot be told apart",
		".limits.a":                "its steps cannot be told apart",
		"limits.a.":                "its steps cannot be told apart",
		"limits[0]":                "its steps cannot be told apart",
		`limits["a`:                "its steps cannot be told apart",
		"rules":                    "the rules cannot be unset as a whole",
		"limits":                   "limits cannot be unset as a whole",
		"rules.authentication":     "authentication cannot be unset as a whole",
		"rules.authentification.a": "there is no section \"authentification\"; did you mean `authentication`?",
		"limits.a.b":               "there is more after the rule's name",
		`limits[""]`:               "the rule's name is empty",
		"spec.limits.a":            "it begins with neither rules nor limits",
	} {
		_, _, err := resource.ParseUnset(path)
		require.ErrorIs(t, err, resource.ErrUnset, path)
		require.True(t, strings.HasSuffix(err.Error(), ": "+want), err.Error())
	}
}

// TestRuleIDRoundTrip holds that an explanation's name of a rule can be written
// into unset.
func TestRuleIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := resource.RuleID{Section: "authentication", Name: rapid.StringN(1, 20, -1).Draw(t, "name")}
		section, name, err := resource.ParseUnset("rules." + id.String())
		require.NoError(t, err)
		require.Equal(t, resource.RuleID{Section: section, Name: name}, id)
	})
}

// FuzzParseUnset looks for paths that break the parser.
func FuzzParseUnset(f *testing.F) {
	for _, seed := range []string{"rules.authentication.a", `limits["a.b"]`, "limits[", `rules["a`, "..", "limits[99999999999999999999]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		section, name, err := resource.ParseUnset(path)
		if err == nil && (section == "" || name == "") {
			t.Fatalf("%q is accepted as section %q, name %q", path, section, name)
		}
	})
}

// TestInvalidGateways shows each refusal in the words its author reads.
func TestInvalidGateways(t *testing.T) {
	const gateway = "targetRef: {kind: Gateway, name: g}\n"
	for _, c := range []struct{ kind, body, want string }{
		{"Gateway", "", "listeners: is required: at least one listener"},
		{"Gateway", "listeners: [{name: a, port: 80, protocol: HTTP}, {name: a, port: 0, protocol: HTTP}]", "listeners[1].port: must be between 1 and 65535, got 0\nlisteners[1].name: \"a\" is already the name of listener 1; names must differ"},
		{"Gateway", "listeners: [{name: a, port: 80, protocol: HTTP, hostname: '*.*.a', tls: {}}]", "listeners[0].hostname: \"*.*.a\" is neither a host name nor *. and one\nlisteners[0].tls: belongs to protocol HTTPS or TLS, not HTTP"},
		{"HTTPRoute", "parentRefs: [{name: g, kind: Gatway}]", "parentRefs[0].kind: unknown value \"Gatway\"; did you mean `Gateway`?"},
		{"HTTPRoute", "parentRefs: [{name: g}]\nrules: [{name: rule-2}, {}]", "rules[0].name: \"rule-2\" is already the name of rule 2; names must differ"},
		{"HTTPRoute", "parentRefs: [{name: g}]\nrules: [{name: a}, {name: a}]", "rules[1].name: \"a\" is already the name of rule 1; names must differ"},
		{"HTTPRoute", "parentRefs: [{name: g}]\nrules: [{filters: [{type: URLRewrite}]}]", "rules[0].filters[0].urlRewrite: is required with type URLRewrite"},
		{"GRPCRoute", "parentRefs: [{name: g}]\nrules: [{filters: [{type: URLRewrite, urlRewrite: {hostname: a}}], matches: [{method: {}}]}]", "rules[0].matches[0].method: needs at least one of service, method\nrules[0].filters[0].type: URLRewrite is not for gRPC calls"},
		{"AuthPolicy", "", "targetRef: is required"},
		{"AuthPolicy", gateway, "configures nothing: write `rules`, `defaults`, `overrides` or `unset`"},
		{"AuthPolicy", gateway + "rules: {}", "rules: holds no rule: write at least one, or leave it out"},
		{"AuthPolicy", gateway + "rules: {authentication: {a: {}}}\ndefaults: {rules: {authentication: {a: {}}}}", "defaults: cannot stand beside bare `rules`; move them into `defaults`, or leave the block out"},
		{"AuthPolicy", gateway + "rules: {authentication: {a: {}}}\noverrides: {rules: {authentication: {a: {}}}}", "overrides: cannot stand beside bare `rules`; move them into `defaults`, or leave the block out"},
		{"AuthPolicy", gateway + "overrides: {strategy: merge}", "overrides.rules: is required: a block without rules does nothing"},
		{"AuthPolicy", gateway + "overrides: {rules: {authentication: {}}}", "overrides.rules: holds no rule: write at least one, or leave it out"},
		{"AuthPolicy", gateway + "overrides: {strategy: patch, rules: {authentication: {a: 1}}}", "overrides.strategy: unknown value \"patch\"; use one of atomic, merge"},
		{"AuthPolicy", gateway + "rules: {authentification: {a: 1}}", "rules.authentification: unknown field `authentification`; did you mean `authentication`?"},
		{"AuthPolicy", gateway + "unset: [limits.a]", "unset[0]: an AuthPolicy has rules, not limits: write rules.<section>.<name>, got \"limits.a\""},
		{"AuthPolicy", "targetRef: {kind: Mesh, name: g}\nrules: {authentication: {a: 1}}", "targetRef.kind: unknown value \"Mesh\"; use one of Gateway, HTTPRoute, GRPCRoute"},
		{"RateLimitPolicy", gateway + "unset: [rules.authentication.a]", "unset[0]: a RateLimitPolicy has limits, not rules: write limits.<name>, got \"rules.authentication.a\""},
		{"RateLimitPolicy", gateway + "limits: {a: null}", "limits.a: has no body; write {} for an empty one, or use unset"},
		{"RateLimitPolicy", gateway + "limits: {}", "limits: holds no limit: write at least one, or leave it out"},
		{"RateLimitPolicy", gateway + "defaults: {}", "defaults.limits: is required: a block without limits does nothing"},
		{"MeshGateway", "selectors: [{match: {a: b}}]\nconf: {listeners: [{port: 1, protocol: HTTPS}]}", "conf.listeners[0].tls: is required with protocol HTTPS"},
		{"MeshGateway", "selectors: [{match: {a: b}}]\ntags: {kuma.io/service: x}", "tags[\"kuma.io/service\"]: the service is the dataplane's; leave it out"},
		{"MeshGatewayRoute", "selectors: [{match: {a: b}}]\nconf: {http: {rules: [{matches: [{}], backends: []}]}}", "conf.http.rules[0].matches[0]: needs at least one of path, method, headers, queryParameters\nconf.http.rules[0].backends: is required: at least one backend"},
	} {
		require.Equal(t, c.want, problems("type: "+c.kind+noTags+c.body), c.body)
	}
}

// TestWarnings holds what is accepted but said: §5.8 reports such a
// policy as TargetNotFound.
func TestWarnings(t *testing.T) {
	for body, want := range map[string]string{
		"type: AuthPolicy" + noTags + "targetRef: {kind: Gateway}\nrules: {authentication: {a: {}}}":                               "targetRef.name: is missing: the policy targets no Gateway until it names one",
		"type: HTTPRoute" + noTags + "rules: []":                                                                                   "parentRefs: names no gateway and no service: the route is attached to nothing",
		"type: AuthPolicy" + noTags + "targetRef: {kind: Gateway, name: g}\nunset: [rules.patterns.a, rules.patterns.a]":           "unset[1]: rules.patterns.a is listed twice",
		"type: AuthPolicy" + noTags + "targetRef: {kind: Gateway, name: g}\ndefaults: {onError: apply, rules: {patterns: {a: 1}}}": "defaults.onError: has no effect without when",
	} {
		documents, err := resource.Decode("", []byte(body), resource.DecodeOptions{})
		require.NoError(t, err)
		require.Len(t, documents[0].Problems, 1)
		require.Equal(t, want, documents[0].Problems[0].String())
		require.Equal(t, resource.Warning, documents[0].Problems[0].Severity)
	}
}

// TestInvalidAccess holds §6.1 and §6.2.
func TestInvalidAccess(t *testing.T) {
	for _, c := range []struct{ document, want string }{
		{"type: AccessRole\nname: r\n", "rules: is required: a role without rules grants nothing"},
		{"type: AccessRole\nname: r\nrules: [{types: [TraficPermission], access: [CREATE]}]", "rules[0].types[0]: unknown kind \"TraficPermission\"; did you mean \"TrafficPermission\"?"},
		{"type: AccessRole\nname: r\nrules: [{access: [CRATE]}]", "rules[0].access[0]: unknown value \"CRATE\"; did you mean `CREATE`?"},
		{"type: AccessRole\nname: r\nrules: [{types: [Mesh]}]", "rules[0].access: is required"},
		{"type: AccessRole\nname: r\nrules: [{access: []}]", "rules[0].access: is required: a rule without access grants nothing"},
		{"type: AccessRole\nname: r\nrules: [{access: [CREATE], when: [{}]}]", "rules[0].when[0]: holds for everything: write a qualifier, or remove when"},
		{"type: AccessRole\nname: r\nrules: [{access: [CREATE], when: [{sources: {match: {}}}]}]", "rules[0].when[0].sources.match: needs at least one tag"},
		{"type: AccessRole\nname: r\nrules: [{access: [CREATE], when: [{dpToken: {tags: []}}]}]", "rules[0].when[0].dpToken: needs at least one of tags and names"},
		{"type: AccessRole\nname: r\nrules: [{access: [CREATE], when: [{from: {targetRef: {kind: HTTPRoute, name: a}}}]}]", "rules[0].when[0].from.targetRef.kind: HTTPRoute cannot be targeted here; use one of Mesh, MeshSubset, Service, ServiceSubset"},
		{"type: AccessRoleBinding\nname: b\n", "subjects: is required: at least one user or group\nroles: is required: at least one role"},
		{"type: AccessRoleBinding\nname: b\nsubjects: [{type: Team, name: a}]\nroles: [r]", "subjects[0].type: unknown value \"Team\"; use one of User, Group"},
	} {
		require.Equal(t, c.want, problems(c.document), c.document)
	}
	decodeOne(t, `
type: AccessRole
name: r
rules:
- types: [MeshUpstreamTimeout, UpstreamTimeout]
  access: [UPDATE]
  when:
  - targetRef: {kind: MeshService, name: backend}
    to: {targetRef: {kind: Mesh}}
    from: {targetRef: {kind: ServiceSubset, name: web, tags: {version: v1}}}
`)
}

// TestInterfaces holds that engines find the view they need on every kind.
func TestInterfaces(t *testing.T) {
	for _, d := range resource.Kinds() {
		spec := d.New()
		switch d.Class {
		case resource.SourceDestination:
			_, connection := spec.(resource.ConnectionSpec)
			_, dataplane := spec.(resource.DataplaneSpec)
			require.NotEqual(t, connection, dataplane, d.Kind)
			require.Equal(t, d.Direction == resource.OnDataplane, dataplane, d.Kind)
			require.Implements(t, (*resource.ConfSpec)(nil), spec, d.Kind)
		case resource.TargetRef:
			require.Implements(t, (*resource.TargetRefSpec)(nil), spec, d.Kind)
		case resource.Inherited:
			require.Implements(t, (*resource.InheritedSpec)(nil), spec, d.Kind)
		}
	}
	for _, kind := range []resource.Kind{"HTTPRoute", "GRPCRoute"} {
		d, _ := resource.Describe(kind)
		require.Implements(t, (*resource.RouteSpec)(nil), d.New())
	}
	for _, kind := range []resource.Kind{"MeshGateway", "MeshGatewayRoute"} {
		d, _ := resource.Describe(kind)
		require.Implements(t, (*resource.DataplaneSpec)(nil), d.New())
	}
}

// TestListsAreBounded holds what keeps the ways through gateways to rules few
// enough to follow.
func TestListsAreBounded(t *testing.T) {
	list := func(n int, item string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = strings.ReplaceAll(item, "%", strconv.Itoa(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	for _, c := range []struct {
		kind, field, item string
		limit             int
	}{
		{"Gateway", "listeners", "{name: l%, port: 80, protocol: HTTP}", 64},
		{"HTTPRoute", "parentRefs", "{name: g%}", 32},
		{"HTTPRoute", "hostnames", "h%.example", 16},
		{"HTTPRoute", "rules", "{name: r%}", 128},
		{"GRPCRoute", "rules", "{}", 128},
	} {
		document := "type: " + c.kind + "\nmesh: default\nname: n\n" + c.field + ": "
		_, err := resource.Decode("", []byte(document+list(c.limit, c.item)), resource.DecodeOptions{})
		require.NoError(t, err)
		_, err = resource.Decode("", []byte(document+list(c.limit+1, c.item)), resource.DecodeOptions{})
		require.ErrorContains(t, err, fmt.Sprintf("%s: has %d entries; at most %d are allowed", c.field, c.limit+1, c.limit))
	}
}
