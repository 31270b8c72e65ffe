package answer_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

var update = flag.Bool("update", false, "write want.json instead of comparing with it")

// scenarios holds one folder per example; its README says what is in them.
const scenarios = "../testdata"

// newMatcher returns a matcher with everything that a zone follows.
func newMatcher(t testing.TB) *policy.Matcher {
	t.Helper()
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	return engines.NewMatcher(compiler)
}

// examples says which folder shows which worked example of §3.7, so
// that none gets lost.
var examples = map[string][]string{
	"web-to-backend-policy beats catch-all-policy": {"more-tags-win"},
	"and only there":                                                {"more-tags-win-only-there", "policy-where-used"},
	"{web, v1} beats {web, *}":                                      {"exact-beats-wildcard"},
	"exact beats wildcard (both rule sets)":                         {"exact-service-beats-any"},
	"more tags, though wildcards (both rule sets)":                  {"wildcards-with-more-tags"},
	"the newer of two equals beats the older (KongMesh)":            {"tie-newest-wins"},
	"policy-1 beats policy-2 (Kuma2020)":                            {"kuma2020-tie-name-wins"},
	"allow-b-to-a and allow-c-to-a override one another (KongMesh)": {"permissions-override", "permissions-override-explained"},
	"they add up (Kuma2020)":                                        {"kuma2020-permissions-add-up", "kuma2020-permissions-add-up-explained"},
	"allow-b-c-to-a allows both under either":                       {"permission-combined", "kuma2020-permission-combined"},
	"the HealthCheck on web's first outbound only":                  {"health-check-on-first-outbound", "health-check-leaves-destination-alone"},
	"the TrafficPermission on backend's first inbound only":         {"permission-on-first-inbound", "permission-leaves-source-alone"},
	"ProxyTemplate on web-1":                                        {"proxy-template-on-dataplane"},
}

func TestWorkedExamplesAreScenarios(t *testing.T) {
	for example, folders := range examples {
		for _, folder := range folders {
			require.FileExists(t, filepath.Join(scenarios, folder, "want.json"), example)
		}
	}
}

// The README says what each folder shows.
func TestScenariosAreListed(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(scenarios, "README.md"))
	require.NoError(t, err)
	entries, err := os.ReadDir(scenarios)
	require.NoError(t, err)
	for _, entry := range entries {
		if entry.IsDir() {
			require.Contains(t, string(readme), "\n| `"+entry.Name()+"` | §", "add a row to testdata/README.md")
		}
	}
}

// TestScenarios reads every folder of the specification by example.
func TestScenarios(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(scenarios, "*", "command"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	for _, command := range folders {
		folder := filepath.Dir(command)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			line, err := os.ReadFile(command)
			require.NoError(t, err)
			got := ask(t, filepath.Join(folder, "input.yaml"), parseQuestion(t, string(line)))
			want := filepath.Join(folder, "want.json")
			if *update {
				require.NoError(t, os.WriteFile(want, got, 0o600))
				return
			}
			wanted, err := os.ReadFile(want)
			require.NoError(t, err)
			require.Equal(t, string(wanted), string(got))
		})
	}
}

// question is a parsed command line of a scenario.
type question struct {
	words []string
	flags map[string]string
}

func parseQuestion(t *testing.T, line string) question {
	t.Helper()
	q := question{flags: map[string]string{"--mesh": "default"}}
	words := strings.Fields(line)
	for i := 0; i < len(words); i++ {
		if !strings.HasPrefix(words[i], "-") {
			q.words = append(q.words, words[i])
			continue
		}
		require.Less(t, i+1, len(words), "%s needs a value", words[i])
		name := words[i]
		if name == "-m" {
			name = "--mesh"
		}
		q.flags[name] = words[i+1]
		i++
	}
	require.NotEmpty(t, q.words)
	return q
}

// load reads documents as `meridian eval` does.
func load(t testing.TB, path string, zone resource.ZoneName, strict bool) *policy.Snapshot {
	t.Helper()
	documents, err := resource.Load([]string{path}, nil, resource.DecodeOptions{})
	require.NoError(t, err)
	resources := make([]*resource.Resource, len(documents))
	for i, d := range documents {
		resources[i] = d.Resource
	}
	view, err := policy.Offline(resources, zone, strict)
	require.NoError(t, err)
	return view
}

// ask answers a question from a file.
func ask(t *testing.T, path string, q question) []byte {
	t.Helper()
	zone, strict := resource.ZoneName(q.flags["--zone"]), true
	if zone == "" {
		zone, strict = "default", false
	}
	m := newMatcher(t)
	m.Reset(load(t, path, zone, strict))
	document, err := reply(m, q, zone)
	require.NoError(t, err)
	text, err := answer.Marshal(document)
	require.NoError(t, err)
	return text
}

func reply(m *policy.Matcher, q question, zone resource.ZoneName) (any, error) {
	mesh := resource.MeshName(q.flags["--mesh"])
	switch q.words[0] {
	case "dataplane":
		return answer.Dataplane(m, mesh, q.words[1], zone, 0)
	case "route":
		return answer.Route(m, mesh, q.words[1], 0)
	case "gateway":
		return answer.Gateway(m, mesh, q.words[1], 0)
	case "policy":
		if rule := q.flags["--rule"]; rule != "" {
			return answer.PolicyRules(m, resource.Kind(q.words[1]), mesh, q.words[2], rule, zone, 0)
		}
		a, err := answer.Policy(m, resource.Kind(q.words[1]), mesh, q.words[2], zone, 0)
		if err == nil {
			err = m.Read(func(r *policy.Reading) error {
				a.Warn(r.View(), engines.Surveyors()...)
				return nil
			})
		}
		return a, err
	case "connection":
		c := answer.ConnectionQuestion{Mesh: mesh, From: q.flags["--from"], To: q.flags["--to"]}
		if tags := q.flags["--from-tags"]; tags != "" {
			c.FromTags = resource.Tags{}
			for pair := range strings.SplitSeq(tags, ",") {
				tag, value, _ := strings.Cut(pair, "=")
				c.FromTags[tag] = value
			}
		}
		if port := q.flags["--port"]; port != "" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("port: %w", err)
			}
			c.Port = uint32(n)
		}
		return answer.Connection(m, c, 0)
	default:
		return nil, fmt.Errorf("no such question: %s", q.words[0])
	}
}
