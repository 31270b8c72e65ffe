package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const dataplaneYAML = `type: Dataplane
mesh: default
name: web-1
networking:
  address: 10.0.0.1
  inbound:
    - port: 80
      tags: {kuma.io/service: web}
    - port: 81
      tags: {kuma.io/service: admin}
`

const timeoutYAML = `type: Timeout
mesh: demo
name: slow
labels: {team: a}
sources: [{match: {kuma.io/service: web, version: v1}}, {match: {kuma.io/service: api}}]
destinations: [{match: {kuma.io/service: "*"}}]
conf: {connectTimeout: 5s}
`

// stocked returns a harness whose server holds one of several kinds.
func stocked(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t)
	h.ok("apply", "-f", h.write("stock.yaml", strings.Join([]string{
		meshYAML, webToBackend, catchAllK8s, dataplaneYAML, timeoutYAML,
		"type: Mesh\nname: demo\nmtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}\n",
		"type: Zone\nname: east\nenabled: false\n",
		"type: GlobalSecret\nname: key\ndata: c2VjcmV0\n",
	}, "---\n")))
	h.server.Calls = nil
	return h
}

func TestGetTables(t *testing.T) {
	h := stocked(t)
	for _, c := range []struct{ args, want string }{
		{"get meshes", `NAME      MTLS   MATCHING              VERSION   AGE
default   off    KongMesh,FirstWins    1         10m
demo      ca     KongMesh,FirstWins    1         10m
`},
		{"get traffic-permissions", `MESH      NAME             SOURCES               DESTINATIONS              VERSION   AGE
default   catch-all        kuma.io/service=*     kuma.io/service=*         1         10m
default   web-to-backend   kuma.io/service=web   kuma.io/service=backend   1         10m
`},
		{"get TIMEOUT -m demo -o wide", `MESH   NAME   SOURCES                                        DESTINATIONS        VERSION   AGE   REVISION   MODIFIED               LABELS
demo   slow   kuma.io/service=web,version=v1 | kuma.io/service=api   kuma.io/service=*   1         10m   1841       2026-01-31T20:00:00Z   team=a
`},
		{"get dataplanes", `MESH      NAME    ADDRESS    SERVICES    VERSION   AGE
default   web-1   10.0.0.1   web,admin   1         10m
`},
		{"get zone", `NAME   ENABLED   VERSION   AGE
east   false     1         10m
`},
		{"get all -A", `TYPE                MESH      NAME             VERSION   AGE
Dataplane           default   web-1            1         10m
Mesh                -         default          1         10m
Mesh                -         demo             1         10m
Timeout             demo      slow             1         10m
TrafficPermission   default   catch-all        1         10m
TrafficPermission   default   web-to-backend   1         10m
Zone                -         east             1         10m
`},
		{"get timeouts -A -o name", "Timeout/slow\n"},
		{"get TrafficPermission/catch-all -o name", "TrafficPermission/catch-all\n"},
	} {
		require.Equal(t, columns(c.want), columns(h.ok(strings.Fields(c.args)...)), c.args)
	}
}

// columns forgets how wide a table's columns are, which TestTable is about.
func columns(text string) [][]string {
	var rows [][]string
	for _, line := range strings.Split(text, "\n") {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

func TestGetDocuments(t *testing.T) {
	h := stocked(t)
	require.Equal(t, `{
  "type": "TrafficPermission",
  "mesh": "default",
  "name": "web-to-backend",
  "creationTime": "2026-01-31T20:00:00Z",
  "modificationTime": "2026-01-31T20:00:00Z",
  "version": 1,
  "revision": 1841,
  "destinations": [
    {
      "match": {
        "kuma.io/service": "backend"
      }
    }
  ],
  "sources": [
    {
      "match": {
        "kuma.io/service": "web"
      }
    }
  ]
}
`, h.ok("get", "traffic-permission", "web-to-backend", "-o", "json"))
	var list struct{ Items []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(h.ok("get", "traffic-permissions", "-o", "json")), &list))
	require.Len(t, list.Items, 2)
	require.Equal(t, "catch-all", list.Items[0]["name"])

	for _, format := range []string{"json", "yaml"} { // what get prints, apply takes
		document := h.ok("get", "timeout", "slow", "-m", "demo", "-o", format)
		out := h.runWith(t.Context(), document, "apply", "-f", "-")
		require.Equal(t, "Timeout/slow unchanged\nrevision 1841\n", out.stdout, out.stderr)
	}
}

func TestGetNothing(t *testing.T) {
	h := stocked(t)
	require.Equal(t, outcome{exit.OK, "", "There is no Retry in mesh default; -A looks in every mesh.\n"}, h.run("get", "retries"))
	require.Equal(t, outcome{exit.OK, "", "There is no resource of these kinds in mesh default; -A looks in every mesh.\n"}, h.run("get", "retries,timeouts"))
	require.Equal(t, outcome{exit.No, "", "Error: Mesh/defualt does not exist\n"}, h.run("get", "retries", "-m", "defualt"), "a mesh that is named and not there")
	require.Equal(t, outcome{exit.OK, "{\n  \"items\": []\n}\n", "There is no Retry.\n"}, h.run("get", "retries", "-A", "-o", "json"))
	require.Equal(t, outcome{exit.No, "", "Error: Retry/default/x does not exist\n"}, h.run("get", "retry", "x"))
}

func TestGetConsistency(t *testing.T) {
	h := stocked(t)
	h.ok("get", "meshes", "--consistency", "stale")
	out := h.run("get", "meshes", "--consistency", "eventual")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, `Error: --consistency "eventual": write linearizable or stale`)
}

// A newer server may hold kinds and fields that this command does not know.
func TestGetPrintsWhatItDoesNotKnow(t *testing.T) {
	h := stocked(t)
	h.server.Stored[resource.Key{Kind: "Mesh", Name: "default"}].Spec = []byte(`{"future":{"a":[1]}}`)
	require.Contains(t, h.ok("get", "mesh", "default", "-o", "yaml"), "future:\n  a:\n  - 1\n")
	require.Contains(t, h.ok("get", "meshes"), "default")
}

func TestDescribe(t *testing.T) {
	h := stocked(t)
	require.Equal(t, `Name:       slow
Type:       Timeout, source/destination policy, outbound, direct
Mesh:       demo
Version:    1, written at revision 1841
Created:    2026-01-31T20:00:00Z (10m ago)
Modified:   2026-01-31T20:00:00Z (10m ago)
Labels:     team=a
Spec:
  conf:
    connectTimeout: 5s
  destinations:
  - match:
      kuma.io/service: "*"
  sources:
  - match:
      kuma.io/service: web
      version: v1
  - match:
      kuma.io/service: api
`, h.ok("describe", "timeout", "slow", "-m", "demo"))
	h.server.Answer = func(req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		require.True(t, req.GetPolicy().GetBrief())
		return &meridianv1.InspectResponse{Json: []byte(`{"kind": "Timeout", "conditions": [{"type": "UnsetWithoutEffect", "status": "True", "reason": "NoDefault", "message": "nothing"}],
			"warnings": [{"path": "destinations[0].match", "message": "selects nothing"}]}`), Notes: []string{"zone \"west\" is not in this answer"}}, nil
	}
	described := h.ok("describe", "timeout", "slow", "-m", "demo")
	require.Contains(t, described, "Conditions:\n  UnsetWithoutEffect=True (NoDefault): nothing\nWarnings:\n  destinations[0].match: selects nothing\nSpec:\n")
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"kind": "Timeout",
			"warnings": [{"path": "conf", "message": "is empty"}, {"path": "sources[0].match", "message": "selects nothing", "ofDataplanes": true}],
			"incomplete": [{"zone": "west", "reason": "offline"}]}`), Notes: []string{"zone \"west\": offline"}}, nil
	}
	require.Contains(t, h.ok("describe", "timeout", "slow", "-m", "demo"),
		"Warnings:\n  conf: is empty\n  sources[0].match: selects nothing (in the zones that answered)\nIncomplete:\n  zone \"west\": offline\nSpec:\n")
	require.NotContains(t, h.ok("describe", "global-secret", "key"), "c2VjcmV0")
}

func TestNothingToExport(t *testing.T) {
	h := newHarness(t)
	for format, want := range map[string]string{"yaml": "", "json": "{\n  \"items\": []\n}\n", "name": ""} {
		out := h.run("export", "-o", format)
		require.Equal(t, outcome{exit.OK, want, "There is nothing to export.\n"}, out, format)
	}
}

// What a control plane exports, it takes back unchanged.
func TestExportRoundTrip(t *testing.T) {
	h := stocked(t)
	for _, format := range []string{"yaml", "json"} {
		exported := h.ok("export", "-o", format)
		require.NotContains(t, exported, "c2VjcmV0")
		require.NotContains(t, exported, "web-1", "dataplanes belong to zones")
		out := h.runWith(t.Context(), exported, "apply", "-f", "-")
		require.Equal(t, exit.OK, out.code, out.stderr)
		require.NotContains(t, out.stdout, "updated")
		require.Equal(t, 5, strings.Count(out.stdout, " unchanged\n"))
	}
	require.Contains(t, h.ok("export", "--include-secrets"), "c2VjcmV0")
	h.server.Role = "zone"
	require.Equal(t, "Dataplane/web-1\n", h.ok("export", "-o", "name"))
}

func TestWatchPrintsChangesAndResumes(t *testing.T) {
	h := stocked(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watches := 0
	h.server.Before = func(method string) error {
		if method != "Watch" {
			return nil
		}
		if watches++; watches == 2 { // the second takes up after what the first saw
			h.server.Mu.Lock()
			defer h.server.Mu.Unlock()
			gone := &meridianv1.Resource{Kind: "Retry", Mesh: "default", Name: "r", Spec: []byte("{}")}
			h.server.Feed = append(h.server.Feed, &meridianv1.WatchResponse{
				Revision: 1850, Time: timestamppb.New(clitest.Epoch),
				Changes: []*meridianv1.Change{{Outcome: meridianv1.Outcome_OUTCOME_DELETED, Resource: gone}},
			})
		}
		if watches == 3 {
			cancel()
		}
		return nil
	}
	out := h.runWith(ctx, "", "watch", "--from-revision", "1840", "-o", "json")
	require.Equal(t, exit.OK, out.code, out.stderr)
	var lines []changeView
	for line := range strings.Lines(out.stdout) {
		var change changeView
		require.NoError(t, json.Unmarshal([]byte(line), &change))
		lines = append(lines, change)
	}
	require.Len(t, lines, 9)
	require.Equal(t, "created", lines[0].Outcome)
	require.Equal(t, uint64(1850), lines[8].Revision)
	require.Equal(t, "deleted", lines[8].Outcome)
	require.Equal(t, "2026-01-31T20:00:00Z", lines[8].Time)
	require.Contains(t, out.stderr, "The connection was lost; resuming the watch after revision 1841.\n")
}

// Without --from-revision the server says where the watch begins, and a lost
// connection is taken up from there even when nothing has changed yet.
func TestWatchFromNowResumes(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.server.Feed = []*meridianv1.WatchResponse{{Revision: 1840}}
	watches := 0
	h.server.Before = func(method string) error {
		if method != "Watch" {
			return nil
		}
		if watches++; watches == 2 {
			gone := &meridianv1.Resource{Kind: "Retry", Mesh: "default", Name: "r", Spec: []byte("{}")}
			h.server.Mu.Lock()
			defer h.server.Mu.Unlock()
			h.server.Feed = []*meridianv1.WatchResponse{{
				Revision: 1850, Changes: []*meridianv1.Change{{Outcome: meridianv1.Outcome_OUTCOME_DELETED, Resource: gone}},
			}}
		}
		if watches == 3 {
			cancel()
		}
		return nil
	}
	out := h.runWith(ctx, "", "watch", "-o", "name")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "Retry/r\n", out.stdout)
	require.Contains(t, out.stderr, "The connection was lost; resuming the watch after revision 1840.\n")
}

// A zone's two histories have no single revision to resume from.
func TestWatchOfTwoHistoriesEndsWithTheConnection(t *testing.T) {
	h := newHarness(t)
	gone := &meridianv1.Resource{Kind: "Retry", Mesh: "default", Name: "r", Spec: []byte("{}")}
	h.server.Feed = []*meridianv1.WatchResponse{{
		Revision: 1850, Changes: []*meridianv1.Change{{Outcome: meridianv1.Outcome_OUTCOME_DELETED, Resource: gone}},
	}}
	out := h.run("watch", "-o", "name")
	require.Equal(t, exit.Unavailable, out.code, out.stderr)
	require.Equal(t, "Retry/r\n", out.stdout)
	require.Contains(t, out.stderr, "the server is stopping")
}

func TestWatchTooFarBehind(t *testing.T) {
	h := newHarness(t)
	h.server.Before = func(method string) error {
		if method == "Watch" {
			return rpcerr.New(rpcerr.OutOfRange, "COMPACTED", "revision 3 is no longer retained: list, then watch from the list's revision")
		}
		return nil
	}
	require.Equal(t, outcome{exit.Usage, "", "Error: revision 3 is no longer retained: list, then watch from the list's revision\n"},
		h.run("watch", "meshes", "--from-revision", "3"))
}

func TestZones(t *testing.T) {
	h := newHarness(t)
	h.server.AllZones = []*meridianv1.ZoneStatus{
		{Name: "east", State: "in-sync", Revision: 1840, Instances: []string{"e1", "e2"}, Servers: []string{"g1", "g2"}, Versions: []string{"1.2.0"}, LastSeen: timestamppb.New(clitest.Epoch), ServersOfZone: 3},
		{Name: "west", State: "lagging", Revision: 1700, Lag: 12, Instances: []string{"w1"}, Quarantined: []*meridianv1.Quarantined{
			{Kind: "Retry", Mesh: "default", Name: "r", Version: 2, Message: "unknown field"},
		}},
		{Name: "north", State: "offline", LastError: "no route\nto host"},
	}
	require.Equal(t, `NAME   STATE    REVISION  LAG  INSTANCES  LAST ERROR
east   in-sync  1840      0    2 of 3     -
west   lagging  1700      12   1          1 resource quarantined, first Retry/r: unknown field
north  offline  -         -    0          no route to host
`, h.ok("zones"))
	require.Contains(t, h.ok("zones", "-o", "wide"), "e1,e2 of 3  g1,g2    1.2.0    10m")
	h.server.Notes = []string{"server g3 could not be asked for its zones: connection refused"}
	out := h.run("zones")
	require.Equal(t, "Warning: zones may be shown as offline that are not: server g3 could not be asked for its zones: connection refused\n", out.stderr)
	require.Contains(t, h.ok("zones", "-o", "json"), `"notes": [`)
	require.Equal(t, exit.Timeout, h.run("zones", "--strict").code)
	h.server.Notes = nil
	require.Equal(t, "Zone/east\nZone/west\nZone/north\n", h.ok("zones", "-o", "name"))
	var got struct {
		Items    []zoneView
		Revision uint64
	}
	require.NoError(t, json.Unmarshal([]byte(h.ok("zones", "-o", "json")), &got))
	require.Equal(t, uint64(1840), got.Revision)
	require.Equal(t, uint64(12), got.Items[1].Lag)
	require.Equal(t, uint32(3), got.Items[0].ServersOfZone)
	require.Equal(t, "unknown field", got.Items[1].Quarantined[0].Message)
	require.Equal(t, []string{}, got.Items[2].Instances)

	h.server.AllZones = nil
	out = h.run("zones")
	require.Equal(t, exit.OK, out.code)
	require.Empty(t, out.stdout)
	require.Contains(t, out.stderr, "There are no zones yet.")
}

func TestGenerateZoneToken(t *testing.T) {
	h := newHarness(t)
	require.Equal(t, "token-of-east-for-86400\n", h.ok("generate", "zone-token", "--zone", "east", "--valid-for", "24h"))
	require.Equal(t, "kind: bundle\n", h.ok("generate", "zone-token", "--zone", "east", "--valid-for", "24h", "--bundle"))
	for args, want := range map[string]string{
		"--valid-for 24h":              "Error: --zone is required: the name of the zone that will connect\n",
		"--zone east":                  "Error: --valid-for is required, such as 24h\n",
		"--zone east --valid-for 0s":   "Error: --valid-for 0s: a token is valid for at least one second\n",
		"--zone east --valid-for 1day": "Error: --valid-for \"1day\": not a duration; write one such as 90m, 24h or 30d\n",
	} {
		out := h.run(append([]string{"generate", "zone-token"}, strings.Fields(args)...)...)
		require.Equal(t, exit.Usage, out.code, args)
		require.True(t, strings.HasPrefix(out.stderr, want), out.stderr)
	}
}

func TestGenerateServerToken(t *testing.T) {
	h := newHarness(t)
	require.Equal(t, "server-token-for-3600\n", h.ok("generate", "server-token", "--valid-for", "1h"))
	require.Equal(t, "kind: server bundle\n", h.ok("generate", "server-token", "--valid-for", "1h", "--bundle"))
	for args, want := range map[string]string{
		"":                        "Error: --valid-for is required, such as 24h\n",
		"--valid-for 0s":          "Error: --valid-for 0s: a token is valid for at least one second\n",
		"--valid-for 1h a":        "Error: ",
		"--valid-for 1h --zone a": "Error: --zone a: ",
		"--valid-for 1h --zone A": "Error: --zone: ",
	} {
		out := h.run(append([]string{"generate", "server-token"}, strings.Fields(args)...)...)
		require.Equal(t, exit.Usage, out.code, args)
		require.True(t, strings.HasPrefix(out.stderr, want), out.stderr)
	}
}

func TestExplain(t *testing.T) {
	h := newHarness(t)
	require.Contains(t, h.ok("explain"), "TrafficPermission")
	page := h.ok("explain", "traffic-route")
	for _, want := range []string{"TrafficRoute (traffic-routes)", "source/destination policy, outbound, direct", "  sources  list of objects, required\n", "    match  map of strings", "global, and received by every zone"} {
		require.Contains(t, page, want)
	}
	part := h.ok("explain", "TrafficRoute", "sources")
	require.Contains(t, part, "    match  map of strings")
	require.NotContains(t, part, "destinations")
	require.Equal(t, part, h.ok("explain", "TrafficRoute.sources"))
	out := h.run("explain", "TrafficRoute", "source")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, `Error: TrafficRoute has no field "source"; did you mean "sources"?`)
	var view kindView
	require.NoError(t, json.Unmarshal([]byte(h.ok("explain", "mesh", "-o", "json")), &view))
	require.Equal(t, "Mesh", view.Kind)
	require.Contains(t, h.ok("explain", "mesh", "-o", "json"), `"plural": "meshes"`)
	require.NotEmpty(t, view.Fields)
	require.Empty(t, h.server.Calls, "explain needs no server")
}

// A page fits 100 columns, describes each field once, and lists the kinds of
// targets that hold where a targetRef stands.
func TestExplainedFields(t *testing.T) {
	h := newHarness(t)
	for _, d := range resource.Kinds() {
		page := h.ok("explain", string(d.Kind))
		for line := range strings.Lines(page) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), maxPage+1, "%s: %s", d.Kind, line)
		}
		every := h.ok("explain", string(d.Kind), "-o", "name")
		require.Len(t, strings.Fields(every), len(resource.Fields(d.Kind)), "names of all fields, wherever they are described")
	}
	page := h.ok("explain", "MeshUpstreamTimeout")
	require.Equal(t, 1, strings.Count(page, "Longest time to open a connection."))
	for _, want := range []string{
		"Its fields are those beside it:\n        connectTimeout, idleTimeout, http.", // default
		"Its fields are those beside it: to.",                                         // conf
		"fields are those of to: targetRef, connectTimeout",                           // defaults.to
		"are those of defaults: strategy, when, onError, to.",                         // overrides
	} {
		require.Contains(t, page, want)
	}
	kinds := func(kind, path string) []string {
		for _, f := range resource.Fields(resource.Kind(kind)) {
			if f.Path == path {
				return f.Enum
			}
		}
		return nil
	}
	require.Equal(t, []string{"Mesh", "Service", "HTTPRoute", "MeshService", "MeshHTTPRoute"}, kinds("MeshUpstreamTimeout", "defaults.to[].targetRef.kind"))
	require.Equal(t, []string{"Mesh", "MeshSubset", "Service", "ServiceSubset", "MeshService", "MeshServiceSubset"}, kinds("MeshTrafficPermission", "from[].targetRef.kind"))
	require.Len(t, kinds("MeshTrafficPermission", "targetRef.kind"), 10)
}

func TestVersionAndCompletion(t *testing.T) {
	h := newHarness(t)
	require.Regexp(t, `^meridian \S+ \(go\S+, \w+/\w+\)\n$`, h.ok("version"))
	require.Equal(t, h.ok("version"), h.ok("--version"))
	require.True(t, json.Valid([]byte(h.ok("version", "-o", "json"))))
	require.Equal(t, h.ok("get", "--help"), h.ok("help", "get"))
	require.Equal(t, h.ok("inspect", "policy", "--help"), h.ok("help", "inspect", "policy"))
	require.Equal(t, h.ok(), h.ok("help"))
	for _, shell := range []string{"bash", "zsh", "fish"} {
		require.Contains(t, h.ok("completion", shell), "meridian")
	}
	require.Equal(t, exit.Usage, h.run("completion", "powershell").code)
	require.Contains(t, h.ok("__complete", "get", "traffic-p"), "traffic-permissions")
	require.Empty(t, h.server.Calls)
}

// A list is read page by page, and from the beginning where its revision is not
// retained until the last.
func TestGetReadsEveryPage(t *testing.T) {
	h := stocked(t)
	want := h.ok("get", "all", "-A", "-o", "json")
	for size := 1; size < 4; size++ {
		h.server.PageSize, h.server.Expired = size, 2
		require.Equal(t, want, h.ok("get", "all", "-A", "-o", "json"))
		require.Zero(t, h.server.Expired)
	}
	h.server.Expired = 1000
	out := h.run("get", "all", "-A")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "list from the beginning")
}

// TestServerThatLacksAKind: what asks for all kinds leaves those out that a server of an
// older release does not know; what names such a kind fails.
func TestServerThatLacksAKind(t *testing.T) {
	h := stocked(t)
	h.server.Lacks = []string{"MeshTest", "Rollout"}
	require.Contains(t, h.ok("get", "all", "-m", "demo", "-o", "name"), "Timeout/slow\n")
	require.Contains(t, h.ok("export", "-o", "yaml"), "name: slow\n")
	out := h.run("diff", "--from", "1842")
	require.NotContains(t, out.stderr, "unknown kind")
	out = h.run("watch", "-o", "name")
	require.NotContains(t, out.stderr, "unknown kind")
	require.Contains(t, out.stderr, "the server is stopping")
	for _, args := range [][]string{{"get", "meshtests"}, {"get", "meshtests,timeouts"}, {"watch", "meshtests"}, {"export", "meshtests"}} {
		out := h.run(args...)
		require.Equal(t, exit.Usage, out.code, args)
		require.Contains(t, out.stderr, `unknown kind "MeshTest"`, args)
	}
}
