package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// twoPolicies is a harness whose server has a labelled and an unlabelled policy.
func twoPolicies(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t)
	labelled := strings.Replace(catchAllK8s, "name: catch-all", "name: catch-all\n  labels: {team: a}", 1)
	h.ok("apply", "-f", h.write("p/a.yaml", labelled), "-f", h.write("p/b.yaml", webToBackend), "-f", h.write("p/mesh.yaml", meshYAML))
	return h
}

func TestShortNamesAreOfOneKindEach(t *testing.T) {
	short := map[resource.Kind]string{}
	for name, kind := range shortNames {
		require.Empty(t, short[kind], "%s has two", kind)
		short[kind] = name
		_, taken := resource.Lookup(name)
		require.False(t, taken, "%s is a kind of its own", name)
	}
	for _, d := range resource.Kinds() {
		require.NotEmpty(t, short[d.Kind], "%s has none", d.Kind)
	}
}

func TestNamesThatArePrintedAreTakenBack(t *testing.T) {
	h := twoPolicies(t)
	names := strings.Fields(h.ok("get", "tp", "-o", "name"))
	require.Equal(t, []string{"TrafficPermission/catch-all", "TrafficPermission/web-to-backend"}, names)
	require.Equal(t, strings.Join(names, "\n")+"\n", h.ok(append([]string{"get", "-o", "name"}, names...)...))
	require.Equal(t, "catch-all\n", h.ok("get", names[0], "-o", "jsonpath={.name}"))
	require.Equal(t, "TrafficPermission/catch-all deleted\nTrafficPermission/web-to-backend deleted\nrevision 1842\n",
		h.ok(append([]string{"delete"}, names...)...))
	for _, args := range [][]string{{"delete", "Timeout/a", "b"}, {"delete", "Timeout"}, {"get", "all", "x"}, {"get", "nosuch/x"}} {
		require.Equal(t, exit.Usage, h.run(args...).code, args)
	}
}

func TestGetSelector(t *testing.T) {
	h := twoPolicies(t)
	for selector, want := range map[string]string{
		"team=a": "TrafficPermission/catch-all\n", "team==a": "TrafficPermission/catch-all\n", "team": "TrafficPermission/catch-all\n",
		"team!=a": "TrafficPermission/web-to-backend\n", "!team": "TrafficPermission/web-to-backend\n", "team=a,!team": "",
	} {
		require.Equal(t, want, h.ok("get", "tp", "-o", "name", "-l", selector), selector)
	}
	require.Equal(t, exit.Usage, h.run("get", "tp", "-l", "team in (a)").code)
	require.Equal(t, exit.Usage, h.run("get", "tp", "web", "-l", "a").code)
}

func TestSelectFromJSON(t *testing.T) {
	h := twoPolicies(t)
	require.Equal(t, "catch-all web-to-backend\n", h.ok("get", "tp", "-o", "jsonpath=.items[*].name"))
	require.Equal(t, "NAME            TEAM\ncatch-all       a\nweb-to-backend  -\n",
		h.ok("get", "tp", "-o", "custom-columns=NAME:.name,TEAM:.labels.team"))
	require.Equal(t, "NAME       MESH\ncatch-all  default\n", h.ok("get", "tp", "catch-all", "-o", "custom-columns=NAME:.name,MESH:{.mesh}"))
	require.Equal(t, "TrafficPermission\n", h.ok("explain", "tp", "-o", "jsonpath={.kind}"))
	for _, format := range []string{"jsonpath={.a", "jsonpath=", "custom-columns=NAME", "custom-columns=:.a"} {
		require.Equal(t, exit.Usage, h.run("get", "tp", "-o", format).code, format)
	}
}

func TestGetWatchPrintsWhatThereIsThenChanges(t *testing.T) {
	h := twoPolicies(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watches := 0
	h.server.Before = func(method string) error {
		if method == "Watch" {
			if watches++; watches == 2 { // the fake's first stream has ended
				cancel()
			}
		}
		return nil
	}
	// The feed holds revision 1841, the list is of it: the watch must not repeat it.
	out := h.runWith(ctx, "", "get", "tp", "-w", "-o", "name")
	require.Equal(t, "TrafficPermission/catch-all\nTrafficPermission/web-to-backend\n", out.stdout)
	require.Equal(t, exit.Usage, h.run("get", "all", "-w").code)
}

func TestDryRunAlone(t *testing.T) {
	h := twoPolicies(t)
	out := h.run("delete", "tp", "catch-all", "--dry-run")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "Dry run: nothing was deleted.")
	out = h.run("apply", "-f", h.home+"/p", "--dry-run")
	require.Contains(t, out.stderr, "Dry run: nothing was written.")
	require.NotEmpty(t, h.ok("get", "tp/catch-all", "-o", "name"))
}

func TestAPIResources(t *testing.T) {
	h := newHarness(t)
	require.Contains(t, h.ok("api-resources"), "mesh-traffic-permissions  mtp")
}

func TestDurationsMayHaveDays(t *testing.T) {
	h := newHarness(t)
	for text, seconds := range map[string]int64{"30d": 30 * 86400, "1d12h": 36 * 3600, "90m": 5400} {
		h.ok("generate", "user-token", "--name", "bob", "--valid-for", text)
		require.Equal(t, seconds, h.server.Tokens.User.GetValidForSeconds(), text)
	}
	for _, text := range []string{"d", "-1d", "1d1", "99999d"} {
		require.Equal(t, exit.Usage, h.run("generate", "user-token", "--name", "bob", "--valid-for", text).code, text)
	}
}

func TestDiff(t *testing.T) {
	h := twoPolicies(t)
	require.Empty(t, h.ok("diff", "-f", h.home+"/p"))
	changed := h.write("changed.yaml", strings.Replace(webToBackend, "service: web", "service: shop", 1))
	out := h.run("diff", "-f", changed)
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "-    kuma.io/service: web\n+    kuma.io/service: shop\n")
	require.NotContains(t, out.stdout, "version:")
	out = h.run("diff", "-f", h.write("new.yaml", strings.Replace(webToBackend, "web-to-backend", "new", 1)))
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "+name: new\n")
}

func TestExpectedConnections(t *testing.T) {
	h := newHarness(t)
	files := "../policy/testdata/" // any scenario of a connection does
	entries, err := os.ReadDir(files)
	require.NoError(t, err)
	tried := false
	for _, e := range entries {
		command, err := os.ReadFile(filepath.Join(files, e.Name(), "command"))
		if err != nil || !strings.HasPrefix(string(command), "connection ") || tried {
			continue
		}
		tried = true
		args := append(append([]string{"eval"}, strings.Fields(string(command))...), "-f", filepath.Join(files, e.Name(), "input.yaml"))
		answer := strings.TrimSpace(h.ok(append(args, "-o", "jsonpath={.allowed}")...))
		is, isNot := "denied", "allowed"
		if answer == "true" {
			is, isNot = isNot, is
		}
		h.ok(append(args, "--expect", is)...)
		out := h.run(append(args, "--expect", isNot)...)
		require.Equal(t, exit.No, out.code)
		require.Contains(t, out.stderr, "expected "+isNot)
		require.Equal(t, exit.Usage, h.run(append(args, "--expect", "yes")...).code)
	}
	require.True(t, tried)
}

func TestVersionOfTheServer(t *testing.T) {
	h := newHarness(t)
	require.Contains(t, h.ok("version", "--server"), "\nserver fake v0 (global)\n")
	require.Equal(t, "v0\n", h.ok("version", "--server", "-o", "jsonpath={.server.version}"))
}

func TestExportOfKindsAndMeshesClean(t *testing.T) {
	h := twoPolicies(t)
	require.Equal(t, "Mesh/default\n", h.ok("export", "meshes", "-o", "name"))
	require.Equal(t, "Mesh/default\nTrafficPermission/catch-all\nTrafficPermission/web-to-backend\n", h.ok("export", "-m", "default", "-o", "name"), "eval needs the settings of the mesh")
	require.Equal(t, "Mesh/default\n", h.ok("export", "meshes", "-m", "default", "-o", "name"))
	require.Equal(t, "TrafficPermission/catch-all\nTrafficPermission/web-to-backend\n", h.ok("export", "tp", "-m", "default", "-o", "name"))
	clean := h.ok("export", "--clean")
	for _, gone := range []string{"creationTime", "modificationTime", "version", "revision"} {
		require.NotContains(t, clean, gone+":")
	}
	require.Contains(t, clean, "team: a")
	require.Equal(t, exit.Usage, h.run("export", "secrets").code, "never everything because nothing is left")
}

func TestValidateAsJSONAndStrictly(t *testing.T) {
	h := newHarness(t)
	good := h.write("good.yaml", webToBackend)
	require.Equal(t, "1 []\n", h.ok("validate", "-f", good, "-o", "jsonpath={.documents} {.findings}"))
	bad := h.write("bad.yaml", strings.ReplaceAll(webToBackend, "match:", "mtch:"))
	out := h.run("validate", "-f", bad, "-o", "json")
	require.Equal(t, exit.Usage, out.code)
	var report struct {
		Findings []struct{ Severity, Source, Kind, Name, Field string }
	}
	require.NoError(t, json.Unmarshal([]byte(out.stdout), &report))
	require.GreaterOrEqual(t, len(report.Findings), 2)
	require.Equal(t, "error", report.Findings[0].Severity)
	require.Equal(t, "web-to-backend", report.Findings[0].Name)
	require.Equal(t, bad, report.Findings[0].Source)
}

// Sixty documents with one cause are one line, and all of them as JSON.
func TestRemarksOfOneCauseAreOneLine(t *testing.T) {
	h := newHarness(t)
	var routes strings.Builder
	for i := range 60 {
		fmt.Fprintf(&routes, "---\ntype: HTTPRoute\nmesh: default\nname: r%d\nparentRefs: [{name: gone}]\nrules: [{backendRefs: [{name: b, port: 80}]}]\n", i)
	}
	file := h.write("routes.yaml", routes.String())
	for _, command := range [][]string{{"validate"}, {"validate", "--strict"}} {
		out := h.run(append(command, "-f", file)...)
		require.Equal(t, len(command)-1, out.code)
		require.Equal(t, "Warning: 60 documents (HTTPRoute/default/r0, r1, r2, …): parentRefs[0].name: there is no Gateway gone\n", out.stderr)
	}
	require.Equal(t, 60, strings.Count(h.ok("validate", "-f", file, "-o", "json"), `"message": "there is no Gateway gone"`))

	h.server.Findings = []*meridianv1.Finding{{
		Severity: meridianv1.Finding_SEVERITY_WARNING, Key: &meridianv1.ResourceKey{Kind: "HTTPRoute", Mesh: "default", Name: "r0"},
		Field: "parentRefs[0].name", Message: "there is no Gateway gone",
	}}
	require.JSONEq(t, `[{"severity": "warning", "kind": "HTTPRoute", "mesh": "default", "name": "r0", "field": "parentRefs[0].name", "message": "there is no Gateway gone"}]`,
		h.ok("apply", "-f", file, "-o", "jsonpath={.findings}"))
}

func TestStatus(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	h.server.AllMembers.Members = h.server.AllMembers.GetMembers()[:2]
	h.server.AllZones = []*meridianv1.ZoneStatus{{Name: "east", State: "in-sync"}, {Name: "old", State: "disabled"}}
	failing := ""
	h.server.Answer = func(r *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		if c := r.GetConditions(); c != nil && c.GetKind() == failing {
			return &meridianv1.InspectResponse{Json: []byte(`{"items":[{"mesh":"default","name":"p","conditions":[{"type":"Accepted","status":"False","reason":"TargetNotFound"}]}]}`)}, nil
		}
		return &meridianv1.InspectResponse{Json: []byte(`{"items":[]}`)}, nil
	}
	require.Equal(t, "global at revision 1840\n2 servers, 2 zones\n0 dataplanes\nNothing needs attention.\n", h.ok("status"))
	require.EqualValues(t, 1, h.server.Connections.Load(), "a server that hangs is waited for once")
	h.server.AllMembers = threeServers()
	h.server.AllZones[0] = &meridianv1.ZoneStatus{Name: "east", State: "lagging", Lag: 3}
	failing = "AuthPolicy"
	h.server.AllZones = append(h.server.AllZones,
		&meridianv1.ZoneStatus{Name: "all", State: "in-sync", Instances: []string{"a", "b", "c"}, ServersOfZone: 3},
		&meridianv1.ZoneStatus{Name: "south", State: "in-sync", Instances: []string{"a", "b"}, ServersOfZone: 3})
	out := h.run("status")
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, `Needs attention:
  server g3 is unreachable: connection refused
  zone east is lagging, 3 changes behind
  zone south has 3 servers, of which the global reaches 2: `+"`meridian cluster members`"+`, asked of a server of the zone, shows how they stand
  AuthPolicy/p in mesh default: Accepted is False (TargetNotFound)
`)
	require.Empty(t, out.stderr)

	// What several answers lack is named once, and dataplanes that are not known are
	// not counted as none.
	answered := h.server.Answer
	h.server.Answer = func(r *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		if r.GetConditions() == nil {
			return nil, rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected")
		}
		response, err := answered(r)
		response.Notes = []string{"server g3 could not be asked"}
		return response, err
	}
	out = h.run("status")
	require.Equal(t, 1, strings.Count(out.stdout+out.stderr, "server g3 could not be asked"), out.stdout+out.stderr)
	require.NotContains(t, out.stdout, "0 dataplanes")
	require.Contains(t, out.stdout, "the dataplanes are not known: no zone is connected")
	h.server.Answer = answered
	require.Equal(t, "false 3\n", h.run("status", "-o", "jsonpath={.ok} {.zones[0].lag}").stdout)
}

// TestStatusOfAZone: a zone of several servers names those that do not answer, as a
// global does. One without members, or whose members the caller may not read, is
// answered without them.
func TestStatusOfAZone(t *testing.T) {
	h := newHarness(t)
	h.server.Role, h.server.AllMembers = "zone", threeServers()
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"items":[]}`)}, nil
	}
	out := h.run("status")
	require.Equal(t, exit.No, out.code)
	require.Equal(t, "zone at revision 1840\n3 servers\n0 dataplanes\nNeeds attention:\n  server g3 is unreachable: connection refused\n", out.stdout)

	h.server.AllMembers.Members = h.server.AllMembers.GetMembers()[:2]
	require.Equal(t, "zone at revision 1840\n2 servers\n0 dataplanes\nNothing needs attention.\n", h.ok("status"))
	for _, code := range []rpcerr.Code{rpcerr.Unsupported, rpcerr.Denied} {
		h.server.MembersError = rpcerr.New(code, "", "no members for you")
		require.Equal(t, "zone at revision 1840\n0 dataplanes\nNothing needs attention.\n", h.ok("status"))
	}
	h.server.MembersError = rpcerr.New(rpcerr.Internal, "", "the disk is gone")
	require.Contains(t, h.run("status").stderr, "the disk is gone")
}

func TestZonesAreSwitchedAndDeleted(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("z.yaml", "type: Zone\nname: east\n"))
	require.Equal(t, "Zone/east updated\nrevision 1842\n", h.ok("zones", "disable", "east"))
	require.Equal(t, "false\n", h.ok("get", "z", "east", "-o", "jsonpath={.enabled}"))
	require.Equal(t, uint64(1), h.server.Applies[1].GetIfVersions()[0].GetVersion())
	h.ok("zones", "enable", "east")
	require.Equal(t, "true\n", h.ok("get", "z", "east", "-o", "jsonpath={.enabled}"))
	require.Equal(t, exit.No, h.run("zones", "enable", "west").code)

	h.server.AllZones = []*meridianv1.ZoneStatus{{Name: "east", State: "in-sync", Instances: []string{"a"}}}
	out := h.run("zones", "delete", "east")
	require.Equal(t, exit.Conflict, out.code)
	require.Contains(t, out.stderr, "delete zone east: it is connected (in-sync)")
	for _, args := range [][]string{{"delete", "zone", "east"}, {"delete", "Zone/west", "z/east"}, {"delete", "-f", h.write("z.yaml", "type: Zone\nname: east\n")}} {
		out = h.run(args...)
		require.Equal(t, exit.Conflict, out.code, args)
		require.Contains(t, out.stderr, "delete zone east: it is connected (in-sync)")
		require.Contains(t, out.stderr, "--force")
	}
	require.Equal(t, "Zone/east deleted\nrevision 1844\n", h.ok("zones", "delete", "east", "--force"))
	require.True(t, h.server.Deletes[0].GetForce(), "as by delete zone")
	h.ok("apply", "-f", h.write("z.yaml", "type: Zone\nname: east\n"))
	require.Contains(t, h.ok("delete", "zone", "east", "--force"), "Zone/east deleted\n")
}

// Several kinds are one list, as in other clients; what is in no mesh is in it, too.
func TestGetSeveralKinds(t *testing.T) {
	h := twoPolicies(t)
	require.Equal(t, "Mesh/default\nTrafficPermission/catch-all\nTrafficPermission/web-to-backend\n", h.ok("get", "meshes,tp", "-o", "name"))
	require.Equal(t, "Mesh/default\n", h.ok("get", "m,tp", "-m", "other", "-o", "name"))
	require.Equal(t, "TrafficPermission/catch-all\n", h.ok("get", "to,tp", "-l", "team=a", "-o", "name"))
	for _, wrong := range [][]string{{"get", "tp,nope"}, {"get", "tp,m", "catch-all"}, {"get", "tp,m", "-w"}, {"get", "tp,"}} {
		require.Equal(t, exit.Usage, h.run(wrong...).code, wrong)
	}
}

// A path that leads nowhere is said: fields are those of -o json, which a user of
// another client does not expect.
func TestPathsThatLeadNowhereAreSaid(t *testing.T) {
	h := twoPolicies(t)
	for output, want := range map[string]string{
		"jsonpath={.items[0].metadata.name}":       "Note: nothing has {.items[0].metadata.name}; -o json shows the fields\n",
		"jsonpath={.items[*].name}":                "",
		"custom-columns=N:.name,S:.spec.sources":   "Note: nothing has .spec.sources; -o json shows the fields\n",
		"custom-columns=N:.name,T:.labels.team":    "",
		"custom-columns=N:.name,S:.sources[0]":     "",
		"jsonpath={.items[?(@.name==\"x\")].name}": "",
	} {
		out := h.run("get", "tp", "-o", output)
		require.Equal(t, exit.OK, out.code, out.stderr)
		require.Equal(t, want, out.stderr, output)
	}
}

// What zones have is not on the global, and that is said in place of "there is none".
func TestGetOfWhatZonesHave(t *testing.T) {
	h := newHarness(t)
	out := h.run("get", "dp")
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, "The global has no Dataplane: zones have them. `meridian dataplanes` lists the dataplanes of all zones.\n", out.stderr)
	require.Equal(t, exit.No, h.run("export", "-m", "nope").code, "a mesh that does not exist")
}
