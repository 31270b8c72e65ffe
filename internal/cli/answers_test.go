package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

const scenarios = "../policy/testdata"

// TestEvalScenarios runs the specification by example through the command: the
// answers are the same to the byte as those of a zone.
func TestEvalScenarios(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(scenarios, "*", "command"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	h := newHarness(t)
	for _, command := range folders {
		t.Run(filepath.Base(filepath.Dir(command)), func(t *testing.T) {
			line, err := os.ReadFile(command)
			require.NoError(t, err)
			want, err := os.ReadFile(filepath.Join(filepath.Dir(command), "want.json"))
			require.NoError(t, err)
			args := append([]string{"eval"}, strings.Fields(string(line))...)
			args = append(args, "-f", filepath.Join(filepath.Dir(command), "input.yaml"))
			require.Equal(t, string(want), h.ok(append(args, "-o", "json")...))
			require.NotEmpty(t, h.ok(args...))
			require.NotEmpty(t, h.ok(append(args, "-o", "yaml")...))
		})
	}
	require.Empty(t, h.server.Calls)
}

// scenario is the input of a folder of the specification.
func scenario(name string) string { return filepath.Join(scenarios, name, "input.yaml") }

// What a server answers is printed as it came, to the byte.
func TestInspectPrintsTheServersBytes(t *testing.T) {
	h := newHarness(t)
	document := h.ok("eval", "dataplane", "web-1", "-f", scenario("more-tags-win"), "-o", "json")
	h.serveDocument([]byte(document))
	require.Equal(t, document, h.ok("inspect", "dataplane", "web-1", "-o", "json"))
	require.Equal(t, h.ok("eval", "dataplane", "web-1", "-f", scenario("more-tags-win")), h.ok("inspect", "dataplane", "web-1"))
}

func TestInspectQuestions(t *testing.T) {
	h := newHarness(t)
	h.serveDocument([]byte("{}\n"))
	last := func() *meridianv1.InspectRequest { return h.server.Inspected[len(h.server.Inspected)-1] }

	h.ok("inspect", "dataplane", "web-1", "--zone", "east", "-m", "demo", "-o", "json")
	require.Equal(t, "east", last().GetZone())
	require.Equal(t, "demo", last().GetMesh())
	require.Equal(t, "web-1", last().GetDataplane().GetName())

	h.ok("inspect", "connection", "--from-tags", "kuma.io/service=web,version=v1", "--to", "b", "--port", "80", "-o", "json")
	require.Equal(t, map[string]string{"kuma.io/service": "web", "version": "v1"}, last().GetConnection().GetFromTags())
	require.Equal(t, uint32(80), last().GetConnection().GetPort())

	h.ok("inspect", "policy", "traffic-permissions", "allow", "-o", "json")
	require.Equal(t, "TrafficPermission", last().GetPolicy().GetKind())
	h.ok("inspect", "policy", "Timeout/slow", "-o", "json")
	require.Equal(t, "slow", last().GetPolicy().GetName())

	h.ok("inspect", "policy", "AuthPolicy", "gw", "--rule", "authentication.a", "-o", "json")
	require.Equal(t, "authentication.a", last().GetPolicy().GetRule())
	h.ok("inspect", "route", "r1", "-o", "json")
	require.Equal(t, "r1", last().GetRoute().GetName())
	h.ok("inspect", "gateway", "team-a/edge", "-m", "demo", "-o", "json")
	require.Equal(t, "edge.team-a", last().GetGateway().GetName())
	require.Equal(t, "demo", last().GetMesh())

	h.ok("why", "web-1", "timeout", "http.requestTimeout", "--to", "backend", "-o", "json")
	require.Equal(t, "Timeout", last().GetWhy().GetKind())
	require.Equal(t, "http.requestTimeout", last().GetWhy().GetField())
	require.Equal(t, "backend", last().GetWhy().GetTo())
	require.Equal(t, "default", last().GetMesh())

	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", `there is no dataplane "web-2"; did you mean "web-1"?`)
	}
	require.Equal(t, outcome{exit.No, "", "Error: there is no dataplane \"web-2\"; did you mean \"web-1\"?\n"}, h.run("inspect", "dataplane", "web-2"))
}

func TestDataplanes(t *testing.T) {
	h := newHarness(t)
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(`{"items": [
			{"mesh": "default", "name": "web-1", "zone": "east", "gateway": false, "services": ["web"], "outbounds": ["backend"], "policies": 3},
			{"mesh": "gone", "name": "gw", "zone": "west", "gateway": true, "services": ["edge"], "outbounds": [], "policies": 0, "unmatched": "mesh gone does not exist"}]}`)}, nil
	}
	out := h.run("dataplanes", "--zone", "east")
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stdout, "web-1")
	require.Contains(t, out.stdout, "mesh gone does not exist")
	require.Empty(t, out.stderr)
	require.Equal(t, "east", h.server.Inspected[0].GetZone())
	require.Empty(t, h.server.Inspected[0].GetMesh())
	require.Equal(t, "Dataplane/web-1\nDataplane/gw\n", h.ok("dataplanes", "-o", "name"))
	require.Contains(t, h.ok("dataplanes", "-o", "wide"), "OUTBOUNDS")
}

func TestEvalRefuses(t *testing.T) {
	h := newHarness(t)
	input := scenario("zone-tag-added")
	out := h.run("eval", "dataplane", "web-2", "-f", input)
	require.Equal(t, outcome{exit.No, "", "Error: dataplane \"web-2\" in mesh \"default\": not found; did you mean \"web-1\"?\n"}, out)
	out = h.run("eval", "policy", "Timeout", "east-onli", "-f", input)
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stderr, `did you mean "east-only"?`)

	out = h.run("eval", "gateway", "edeg", "-f", scenario("inherit-paths-of-a-gateway"))
	require.Equal(t, outcome{exit.No, "", "Error: gateway \"edeg\" in mesh \"default\": not found; did you mean \"edge\"?\n"}, out)

	// §1.5: a tag that names another zone is an error with an explicit --zone.
	tagged := h.write("tagged.yaml", `type: Dataplane
mesh: default
name: web-1
networking:
  address: 10.0.0.1
  inbound: [{port: 80, tags: {kuma.io/service: web, kuma.io/zone: west}}]
`)
	require.Contains(t, h.ok("eval", "dataplane", "web-1", "-f", tagged, "-o", "json"), `"zone": "west"`)
	out = h.run("eval", "dataplane", "web-1", "-f", tagged, "--zone", "east")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "kuma.io/zone")
}

func TestWhyFromFiles(t *testing.T) {
	h := newHarness(t)
	input := scenario("tie-newest-wins")
	text := h.ok("why", "web-1", "timeouts", "-f", input)
	require.NotEmpty(t, text)
	require.Contains(t, h.ok("why", "web-1", "Timeout", "-f", input, "-o", "json"), `"losers"`)
	out := h.run("why", "web-1", "Timeout", "--to", "nowhere", "-f", input)
	require.Equal(t, exit.No, out.code)
	require.Empty(t, h.server.Calls)
}

// A server whose answer is not what this release reads is reported, not shown
// as an empty page.
func TestAnswerOfAnotherKind(t *testing.T) {
	h := newHarness(t)
	h.serveDocument([]byte("not json"))
	for _, question := range []string{"inspect dataplane a", "inspect policy Retry a", "inspect policy AuthPolicy a --rule b", "inspect route a", "inspect gateway a", "inspect connection --from a --to b", "why a Retry", "dataplanes"} {
		out := h.run(strings.Fields(question)...)
		require.Equal(t, exit.No, out.code, question)
		require.Empty(t, out.stdout, question)
		require.NotEmpty(t, out.stderr, question)
	}
}

// §5.8: the widest table has the conditions that the server worked
// out.
func TestGetWideShowsConditions(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("gateways.yaml", meshYAML+`---
type: AuthPolicy
mesh: default
name: gw
targetRef: {kind: Gateway, name: edge}
rules: {authentication: {a: {}}}
---
type: AuthPolicy
mesh: default
name: lost
targetRef: {kind: Gateway, name: egde, sectionName: http}
rules: {authentication: {a: {}}}
`))
	h.server.Inspected = nil // apply asks, too
	h.serveDocument([]byte(`{"kind": "AuthPolicy", "mesh": "default", "asOf": 1841, "items": [
		{"mesh": "default", "name": "gw", "conditions": [
			{"type": "Accepted", "status": "True", "reason": "Accepted"}, {"type": "Enforced", "status": "False", "reason": "Overridden"}]},
		{"mesh": "default", "name": "lost", "conditions": [
			{"type": "Accepted", "status": "False", "reason": "TargetNotFound"}, {"type": "Quarantined", "status": "True", "reason": "ZoneCannotUse"}]}]}`))
	require.Equal(t, `MESH     NAME  TARGET             ACCEPTED                ENFORCED            QUARANTINED           VERSION  AGE  REVISION  MODIFIED              LABELS
default  gw    Gateway/edge       True (Accepted)         False (Overridden)  -                     1        10m  1841      2026-01-31T20:00:00Z  -
default  lost  Gateway/egde/http  False (TargetNotFound)  -                   True (ZoneCannotUse)  1        10m  1841      2026-01-31T20:00:00Z  -
`, h.ok("get", "auth-policies", "-o", "wide"))
	require.Equal(t, "AuthPolicy", h.server.Inspected[0].GetConditions().GetKind())
	require.NotContains(t, h.ok("get", "AuthPolicy", "gw", "-o", "wide"), "QUARANTINED", "of the resources that are shown")
	h.ok("get", "auth-policies")
	h.ok("get", "meshes", "-o", "wide")
	require.Len(t, h.server.Inspected, 2, "asked about nothing else")

	// Of a policy on dataplanes, how many proxies obey it.
	h.ok("apply", "-f", h.write("p.yaml", webToBackend))
	h.server.Inspected = nil
	h.serveDocument([]byte(`{"kind": "TrafficPermission", "mesh": "default", "asOf": 1841, "items": [{"mesh": "default", "name": "web-to-backend", "conditions": [
		{"type": "Enforced", "status": "False", "reason": "SomeProxies", "proxies": [{"zone": "east", "obey": 8, "proxies": 10}]}]}],
		"incomplete": [{"zone": "west", "reason": "offline"}]}`))
	wide := h.run("get", "tp", "-o", "wide")
	require.Contains(t, wide.stdout, "ENFORCED")
	require.Contains(t, wide.stdout, "8 of 10 in east")
	require.Equal(t, "Note: ENFORCED is without zone \"west\": offline.\n", wide.stderr)
	require.Len(t, h.server.Inspected, 1)
	h.ok("get", "tp")
	require.Len(t, h.server.Inspected, 1, "it was not asked for")
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected")
	}
	require.NotContains(t, h.ok("get", "tp", "-o", "wide"), "ENFORCED")

	// A server that cannot tell does not keep the resources back.
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "this release does not know it")
	}
	out := h.run("get", "auth-policies", "-o", "wide")
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stdout, "Gateway/egde")
	require.Contains(t, out.stderr, "The status is not known: ")
}

// §1.1: pages show the names of namespaced resources as get does, whether the answer is
// that of a server or from files; JSON has the stored names.
func TestPagesShowNamespaces(t *testing.T) {
	h := newHarness(t)
	file := h.write("shop.yaml", `
type: Mesh
name: default
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec: {listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{name: all}]}
---
apiVersion: kuadrant.io/v1
kind: AuthPolicy
metadata: {name: keys, namespace: shop}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: cart}
  rules: {authentication: {key: {apiKey: {}}}}
---
type: Timeout
name: slow.shop
mesh: default
labels: {k8s.kuma.io/namespace: shop}
sources: [{match: {kuma.io/service: web}}]
destinations: [{match: {kuma.io/service: cart.shop}}]
conf: {connectTimeout: 1s}
---
type: Dataplane
name: web-1.shop
mesh: default
labels: {k8s.kuma.io/namespace: shop}
networking:
  address: 10.0.0.1
  inbound: [{port: 80, tags: {kuma.io/service: web}}]
  outbound: [{port: 81, tags: {kuma.io/service: cart.shop}}]
`)
	for _, question := range [][]string{
		{"gateway", "infra/edge"},
		{"route", "shop/cart"},
		{"route", "cart.shop"},
		{"policy", "AuthPolicy", "shop/keys"},
		{"policy", "AuthPolicy/shop/keys", "--rule", "*"},
		{"dataplane", "shop/web-1"},
		{"policy", "Timeout", "shop/slow"},
		{"connection", "--from", "shop/web-1", "--to", "shop/web-1"},
		{"why", "shop/web-1", "Timeout"},
	} {
		t.Run(strings.Join(question, " "), func(t *testing.T) {
			if question[0] != "why" {
				question = append([]string{"eval"}, question...)
			}
			question = append(question, "-f", file)
			page := h.ok(question...)
			document := h.ok(append(question, "-o", "json")...)
			require.Contains(t, document, ".shop\"")
			require.NotContains(t, document, "\"shop/")
			require.Contains(t, page, "shop/")
			for _, stored := range []string{"edge.infra", "keys.shop", "slow.shop", "web-1.shop", "route cart.shop", "HTTPRoute/cart.shop"} {
				require.NotContains(t, page, stored)
			}
			require.NotContains(t, page, "service shop/cart")
			if question[0] == "why" {
				return
			}
			h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
				return &meridianv1.InspectResponse{Json: []byte(document), ShownNames: map[string]string{
					"edge.infra": "infra/edge", "cart.shop": "shop/cart", "keys.shop": "shop/keys", "slow.shop": "shop/slow", "web-1.shop": "shop/web-1",
				}}, nil
			}
			question[0] = "inspect"
			require.Equal(t, page, h.ok(question[:len(question)-2]...))
		})
	}
}
