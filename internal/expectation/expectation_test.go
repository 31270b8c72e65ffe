package expectation_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/doctree"
	"meridian/internal/expectation"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

const shop = `
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
{type: Dataplane, mesh: default, name: web-1, networking: {address: 10.0.0.1, inbound: [{port: 8080, tags: {kuma.io/service: web}}], outbound: [{port: 9000, tags: {kuma.io/service: backend}}]}}
---
{type: Dataplane, mesh: default, name: backend-1, networking: {address: 10.0.0.2, inbound: [{port: 8080, tags: {kuma.io/service: backend}}]}}
---
{type: TrafficPermission, mesh: default, name: web-to-backend, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}]}
---
{type: Timeout, mesh: default, name: slow, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 5s, http: {requestTimeout: 20s}}}
---
{type: Timeout, mesh: default, name: nowhere, sources: [{match: {kuma.io/service: absent}}], destinations: [{match: {kuma.io/service: backend}}], conf: {connectTimeout: 7s}}
---
{type: RateLimit, mesh: default, name: limit, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}], conf: {http: {requests: 5, interval: 10s}}}
`

// load reads resources and the tests beside them.
func load(t testing.TB, text string) ([]*resource.Resource, []*expectation.File) {
	t.Helper()
	var files []*expectation.File
	documents, err := resource.Decode("shop.yaml", []byte(text), resource.DecodeOptions{Tests: func(source string, n *doctree.Node) {
		f, problems := expectation.Parse(source, n)
		require.Empty(t, problems)
		files = append(files, f)
	}})
	require.NoError(t, err)
	var resources []*resource.Resource
	for _, d := range documents {
		resources = append(resources, d.Resource)
	}
	return resources, files
}

func offline(t testing.TB, resources []*resource.Resource) *expectation.Offline {
	t.Helper()
	view, err := policy.Offline(resources, "default", false)
	require.NoError(t, err)
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	m := engines.NewMatcher(compiler)
	m.Reset(view)
	return &expectation.Offline{Matcher: m, Zone: "default", Access: func(_ context.Context, _ string, _ resource.MeshName, c *expectation.AccessCase) (bool, []string, error) {
		return c.As == "bob", []string{"no role of " + c.As + " grants it"}, nil
	}}
}

func run(t testing.TB, text string) (*expectation.Report, *expectation.Runner, []*resource.Resource) {
	t.Helper()
	resources, files := load(t, text)
	runner, err := expectation.New(offline(t, resources))
	require.NoError(t, err)
	report, err := runner.Run(t.Context(), files)
	require.NoError(t, err)
	return report, runner, resources
}

// TestCases has each kind of case as it passes, and as it fails with what is so.
func TestCases(t *testing.T) {
	for given, want := range map[string]string{
		`connection: {from: web-1, to: backend-1}, expect: allowed`:                                                  "",
		`connection: {from: web-1, to: backend-1}, expect: denied`:                                                   "expected denied, but it is allowed by web-to-backend",
		`connection: {from: backend-1, to: web-1, port: 8080}, expect: denied`:                                       "",
		`connection: {from: backend-1, to: web-1}, expect: allowed`:                                                  "expected allowed, but it is denied: no permission allows it",
		`connection: {fromTags: {kuma.io/service: other}, to: backend-1}, expect: allowed`:                           "expected allowed, but it is denied by web-to-backend",
		`connection: {from: wbe-1, to: backend-1}, expect: allowed`:                                                  `dataplane "wbe-1" in mesh "default": not found; did you mean "web-1"?`,
		`connection: {from: web-1, to: backend-1, port: 81}, expect: allowed`:                                        `inbound port 81 of dataplane "backend-1": not found; it has 8080`,
		`dataplane: web-1, kind: Timeout, to: backend, field: connectTimeout, expect: 5s`:                            "",
		`dataplane: web-1, kind: Timeout, to: backend, field: connectTimeout, expect: 5000ms`:                        "",
		`dataplane: web-1, kind: Timeout, to: backend, field: /connectTimeout, expect: 6s`:                           `outbound backend:9000: expected /connectTimeout of Timeout to be "6s", but it is "5s", by slow`,
		`dataplane: web-1, kind: Timeout, to: backend, field: http.requestTimeout, expect: <= 20s`:                   "",
		`dataplane: web-1, kind: Timeout, to: backend, field: http.requestTimeout, expect: "> 20s"`:                  `outbound backend:9000: expected http.requestTimeout of Timeout to be "> 20s", but it is "20s", by slow`,
		`dataplane: web-1, kind: Timeout, to: backend, field: http.idleTimeout, expect: null`:                        "",
		`dataplane: web-1, kind: Timeout, to: other, field: connectTimeout, expect: 5s`:                              `dataplane web-1: expected connectTimeout of Timeout to be "5s", but it is nothing`,
		`dataplane: web-1, kind: Timeout, to: backend, field: http.idleTimeout, expect: "< 1s"`:                      `outbound backend:9000, http.idleTimeout: nothing is set, which cannot be compared with "1s"`,
		`dataplane: web-1, kind: Timeout, to: backend, field: connectTimeout, expect: "< many"`:                      `outbound backend:9000, connectTimeout: "5s" and "many" are neither two numbers nor two durations`,
		`dataplane: backend-1, kind: RateLimit, from: web-1, field: http.requests, expect: 5`:                        "",
		`dataplane: backend-1, kind: RateLimit, from: web-1, field: http.requests, expect: "< 5"`:                    `inbound 8080: expected http.requests of RateLimit to be "< 5", but it is 5, by limit`,
		`dataplane: backend-1, kind: RateLimit, field: http.requests, expect: 5`:                                     "RateLimit is set for each caller: add `from`, the dataplane that calls",
		`over: connections, invariant: '!c.allowed || c.from.tags.exists(t, t["kuma.io/service"] == "web")'`:         "",
		`over: connections, invariant: 'c.allowed'`:                                                                  "does not hold for 1 of 2 connections: backend-1 → web-1:8080 is denied",
		`over: connections, invariant: 'c.by == ["web-to-backend"] || c.port == 8080 && c.to.name == "web-1"'`:       "",
		`over: dataplanes, invariant: 'd.zone == "default" && d.mesh == "default"'`:                                  "",
		`over: dataplanes, invariant: 'd.effective.exists(e, e.kind == "Timeout" && e.conf.connectTimeout == "5s")'`: "does not hold for 1 of 2 dataplanes: backend-1",
		`over: dataplanes, invariant: 'd.owner == "me"'`:                                                             "does not hold for 2 of 2 dataplanes: backend-1 (no such key: owner); web-1 (no such key: owner)",
		`over: dataplanes, invariant: 'd.name == '`:                                                                  "invariant: at character 11: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
		`over: dataplanes, invariant: 'd.name + 1 == 2'`:                                                             "backend-1: no such overload",
		`over: routes, invariant: 'true'`:                                                                            "there are no routes in mesh default: the invariant says nothing",
		`access: {as: bob, verb: update, file: x.yaml}, expect: yes`:                                                 "",
		`access: {as: eve, verb: update, file: x.yaml}, expect: yes`:                                                 "expected yes, but it is no: no role of eve grants it",
		`access: {as: eve, verb: update, file: x.yaml}, expect: no`:                                                  "",
	} {
		report, _, _ := run(t, shop+"---\n{kind: PolicyTest, cases: [{name: it, "+given+"}]}\n")
		require.Len(t, report.Cases, 1)
		require.Equal(t, want, report.Cases[0].Message, "%s", given)
		require.Equal(t, want == "", report.Cases[0].OK)
	}
}

// TestInvalid has what is refused, with its place.
func TestInvalid(t *testing.T) {
	for given, want := range map[string]string{
		`cases: [{name: a}]`: "cases[0]: \"a\": write one of `connection`, `dataplane`, `invariant` and `access`; there are 0",
		`cases: [{name: a, invariant: x, access: {as: b, verb: READ}}]`:                         "cases[0]: \"a\": write one of `connection`, `dataplane`, `invariant` and `access`; there are 2",
		`cases: [{name: a, connection: {from: b, to: c}}]`:                                      "cases[0]: \"a\": `expect` is required: allowed or denied",
		`cases: [{name: a, connection: {from: b, to: c}, expect: yes}]`:                         "cases[0]: \"a\": `expect` is required: allowed or denied",
		`cases: [{name: a, connection: {to: c}, expect: denied}]`:                               "cases[0]: \"a\": write either `connection.from`, a dataplane, or `connection.fromTags`",
		`cases: [{name: a, conection: {to: c}, expect: denied}]`:                                "cases[0].conection: unknown field `conection`; did you mean `connection`?",
		`cases: [{name: a, invariant: x}]`:                                                      "cases[0]: \"a\": `over` is required: connections, dataplanes or routes",
		`cases: [{name: a, invariant: x, over: routes, expect: true}]`:                          "cases[0]: \"a\": an invariant is expected to be true everywhere: leave `expect` out",
		`cases: [{name: a, dataplane: x, kind: Timout, field: y, expect: 1}]`:                   "cases[0]: \"a\": `kind`: \"Timout\" is no kind of policy for dataplanes",
		`cases: [{name: a, dataplane: x, kind: Timeout, field: y}]`:                             "cases[0]: \"a\": `expect` is required: a value, a comparison such as \"<= 30s\", or null where nothing is to be set",
		`cases: [{name: a, dataplane: x, kind: Timeout, to: b, from: c, field: y, expect: 1}]`:  "cases[0]: \"a\": write `to` for an outbound, or `from` for a caller, not both",
		`cases: [{name: a, access: {as: x, verb: READ}, field: y, expect: no}]`:                 "cases[0]: \"a\": `kind`, `to`, `from` and `field` go with `dataplane`",
		`cases: [{name: a, connection: {from: b, to: c}, over: routes, expect: denied}]`:        "cases[0]: \"a\": `over` goes with `invariant`",
		`cases: [{name: a, invariant: x, over: routes}, {name: a, invariant: x, over: routes}]`: "cases[1]: the name \"a\" is taken by a case before: a report names cases by it",
		`name: x`: "cases: is required",
		`cases: [{connection: {from: b, to: c}, expect: denied}]`: "cases[0].name: is required",
	} {
		roots, _, err := doctree.Parse([]byte("kind: PolicyTest\n"+given), false)
		require.NoError(t, err)
		_, problems := expectation.Parse("t.yaml", roots[0])
		require.NotEmpty(t, problems, "%s", given)
		require.Equal(t, want, problems[0].String())
		require.Positive(t, problems[0].Line)
	}
}

// The dataplanes of a MeshTest have names as others have.
func TestNamesOfCarriedDataplanes(t *testing.T) {
	for name, want := range map[string]string{
		"web": "",
		"Web": `dataplanes[0].name: "Web" cannot hold 'W'`,
		"":    "dataplanes[0].name: must not be empty",
	} {
		_, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindMeshTest, Mesh: "default", Name: "default"}}, []byte(`{
			"dataplanes": [{"name": "`+name+`", "networking": {"address": "10.0.0.1", "inbound": [{"port": 1, "tags": {"kuma.io/service": "a"}}]}}],
			"cases": [{"name": "a", "over": "dataplanes", "invariant": "true"}]}`))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "a name is required", "said once")
	}
}

// TestConnectionsAsAsked holds the connections of invariants against the answers about
// each, in every mesh of the worked examples.
func TestConnectionsAsAsked(t *testing.T) {
	inputs, err := filepath.Glob("../policy/testdata/*/input.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	allowed, denied := 0, 0
	for _, input := range inputs {
		text, err := os.ReadFile(input)
		require.NoError(t, err)
		resources, _ := load(t, string(text))
		source := offline(t, resources)
		meshes := map[resource.MeshName]bool{}
		for _, r := range resources {
			meshes[r.Key().Mesh] = true
		}
		delete(meshes, "") // that of resources without a mesh
		for mesh := range meshes {
			require.NoError(t, source.Connections(t.Context(), mesh, func(c *expectation.Connection) bool {
				a, err := source.Connection(t.Context(), mesh, &expectation.ConnectionCase{From: c.From.Name, To: c.To.Name, Port: c.Port})
				require.NoError(t, err)
				if len(a.Inbounds) > 0 {
					return true // several inbounds share the port, and the answer is about all of them
				}
				require.Equal(t, a.Allowed, c.Allowed, "%s: %s to %s", input, c.From.Name, c.To.Name)
				if c.Allowed {
					allowed++
				} else {
					denied++
					by := slices.Clone(a.DeniedBy)
					slices.Sort(by)
					require.ElementsMatch(t, by, c.By, "%s: %s to %s", input, c.From.Name, c.To.Name)
				}
				return true
			}))
		}
	}
	require.NotZero(t, allowed)
	require.NotZero(t, denied)
}

func TestCoverage(t *testing.T) {
	report, _, resources := run(t, shop+`---
kind: PolicyTest
cases:
- {name: a, connection: {from: web-1, to: backend-1}, expect: allowed}
- {name: b, dataplane: web-1, kind: Timeout, to: backend, field: connectTimeout, expect: 5s}
- {name: c, over: dataplanes, invariant: "true"}
`)
	report.Cover(resources)
	require.Equal(t, &expectation.Coverage{Policies: 4, Tested: 2, Untested: []expectation.Policy{
		{Kind: resource.KindTimeout, Mesh: "default", Name: "nowhere"}, {Kind: resource.KindRateLimit, Mesh: "default", Name: "limit"},
	}}, report.Coverage)
}

func TestReports(t *testing.T) {
	report, _, _ := run(t, shop+`---
kind: PolicyTest
cases:
- {name: good, connection: {from: web-1, to: backend-1}, expect: allowed}
- {name: bad & <ugly>, connection: {from: web-1, to: backend-1}, expect: denied}
`)
	require.Equal(t, 1, report.Passed)
	require.Equal(t, 1, report.Failed)
	var b bytes.Buffer
	require.NoError(t, report.WriteJUnit(&b))
	var suites struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Suites   []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(b.Bytes(), &suites))
	require.Equal(t, 2, suites.Tests)
	require.Equal(t, 1, suites.Failures)
	require.Equal(t, "shop.yaml", suites.Suites[0].Name)
	require.Nil(t, suites.Suites[0].Cases[0].Failure)
	require.Equal(t, "bad & <ugly>", suites.Suites[0].Cases[1].Name)
	require.Equal(t, "expected denied, but it is allowed by web-to-backend", suites.Suites[0].Cases[1].Failure.Message)

	b.Reset()
	require.NoError(t, report.WriteSARIF(&b, "1.2"))
	var log struct {
		Version string `json:"version"`
		Runs    []struct {
			Results []struct {
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine int }
					}
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &log))
	require.Equal(t, "2.1.0", log.Version)
	require.Len(t, log.Runs[0].Results, 1)
	require.Equal(t, "bad & <ugly>: expected denied, but it is allowed by web-to-backend", log.Runs[0].Results[0].Message.Text)
	at := log.Runs[0].Results[0].Locations[0].PhysicalLocation
	require.Equal(t, "shop.yaml", at.ArtifactLocation.URI)
	require.Equal(t, report.Cases[1].Line, at.Region.StartLine)
}

// FuzzParse: no document breaks the reader, and what it accepts can be run.
func FuzzParse(f *testing.F) {
	f.Add(`kind: PolicyTest
cases:
- {name: a, connection: {from: web-1, to: backend-1}, expect: allowed}
- {name: b, dataplane: web-1, kind: Timeout, to: backend, field: a.b~1/c, expect: ">= 5s"}
- {name: c, over: connections, invariant: "c.from.tags.size() > 1"}
- {name: d, access: {as: bob, verb: x, file: y}, expect: no}
`)
	resources, _ := load(f, shop)
	source := offline(f, resources)
	f.Fuzz(func(t *testing.T, text string) {
		roots, _, err := doctree.Parse([]byte(text), false)
		if err != nil {
			return
		}
		for _, root := range roots {
			if root.Shape != doctree.Object {
				continue
			}
			file, problems := expectation.Parse("f.yaml", root)
			if len(problems) > 0 {
				continue
			}
			runner, err := expectation.New(source)
			require.NoError(t, err)
			report, err := runner.Run(t.Context(), []*expectation.File{file})
			require.NoError(t, err)
			require.Len(t, report.Cases, len(file.Cases))
		}
	})
}

// FuzzMeshTest: no spec of tests that a mesh carries breaks the server that runs them.
func FuzzMeshTest(f *testing.F) {
	f.Add(`{"dataplanes": [{"name": "a", "networking": {"address": "10.0.0.1", "inbound": [{"port": 1, "tags": {"kuma.io/service": "a"}}], "outbound": [{"port": 2, "tags": {"kuma.io/service": "b"}}]}},
		{"name": "b", "networking": {"address": "10.0.0.2", "gateway": {"tags": {"kuma.io/service": "g"}}}}],
		"cases": [{"name": "a", "connection": {"from": "a", "to": "b", "port": 1}, "expect": "allowed"}, {"name": "b", "dataplane": "a", "kind": "Timeout", "to": "b", "field": "a.b~1/c", "expect": ">= 5s"},
		{"name": "c", "over": "connections", "invariant": "c.allowed"}, {"name": "d", "over": "dataplanes", "invariant": "d.effective.size() > 0"}, {"name": "e", "connection": {"fromTags": {"a": "b"}, "to": "a"}, "expect": "denied"}]}`)
	f.Add(`{"dataplanes": [{"name": "A", "networking": {"address": "10.0.0.1", "inbound": [{"port": 1, "tags": {"kuma.io/service": "a"}}]}}], "cases": [{"name": "a", "over": "dataplanes", "invariant": "true"}]}`)
	resources, _ := load(f, shop)
	view := policy.NewSnapshot(resources...)
	runner, err := expectation.NewCarried()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, spec string) {
		tests, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: resource.KindMeshTest, Mesh: "default", Name: "default"}}, []byte(spec))
		if err != nil {
			return
		}
		ctx, cancel := expectation.WithTestTime(t.Context())
		defer cancel()
		report, err := runner.Run(ctx, view, tests)
		if err != nil {
			require.ErrorIs(t, err, expectation.ErrTestTime)
			return
		}
		require.Len(t, report.Cases, len(tests.Spec().(*resource.MeshTest).Cases))
	})
}

// BenchmarkThousandCases runs 1,000 cases of connections and settings.
func BenchmarkThousandCases(b *testing.B) {
	text := shop + "---\nkind: PolicyTest\ncases:\n"
	for i := range 500 {
		n := string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		text += "- {name: c" + n + ", connection: {from: web-1, to: backend-1}, expect: allowed}\n"
		text += "- {name: s" + n + ", dataplane: web-1, kind: Timeout, to: backend, field: connectTimeout, expect: <= 5s}\n"
	}
	resources, files := load(b, text)
	source := offline(b, resources)
	for b.Loop() {
		runner, err := expectation.New(source)
		require.NoError(b, err)
		report, err := runner.Run(b.Context(), files)
		require.NoError(b, err)
		require.Equal(b, 1000, report.Passed)
	}
}
