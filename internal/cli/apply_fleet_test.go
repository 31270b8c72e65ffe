package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

// aboutPolicy is what zones say of a policy, at a revision.
func aboutPolicy(asOf uint64, notes ...string) *meridianv1.InspectResponse {
	return &meridianv1.InspectResponse{AsOf: asOf, Notes: notes, Json: fmt.Appendf(nil,
		`{"kind":"TrafficPermission","mesh":"default","name":"p","asOf":%d,"dataplanes":[],"conditions":[],"meshDataplanes":2,"warnings":[
		{"path":"destinations[0].match","message":"selects nothing; did you mean \"backend\"?","ofDataplanes":true},
		{"path":"sources","message":"said at once"}]}`, asOf)}
}

// apply on a global says what only its zones know of the policies, once they have them.
func TestApplyAsksTheZones(t *testing.T) {
	h := newHarness(t)
	h.server.Answer = func(r *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		require.True(t, r.GetPolicy().GetBrief())
		return aboutPolicy(h.server.Revision, `zone "west": offline`), nil
	}
	file := h.write("p.yaml", webToBackend)
	out := h.run("apply", "-f", file)
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, "Warning: TrafficPermission/web-to-backend: destinations[0].match: selects nothing; did you mean \"backend\"?\n"+
		"Note: not every zone said whether the targets select anything and proxies obey it: zone \"west\": offline.\n", out.stderr)
	require.Len(t, h.server.Waits, 1)
	require.True(t, h.server.Waits[0].GetConnectedOnly())
	require.Equal(t, "destinations[0].match selects nothing; did you mean \"backend\"?\n",
		h.ok("apply", "-f", file, "-o", "jsonpath={.findings[0].field} {.findings[0].message}"))

	// Not for what has no target, nor without a write.
	asked := len(h.server.Inspected)
	h.ok("apply", "-f", h.write("mesh.yaml", "type: Zone\nname: other\n"))
	h.ok("apply", "-f", file, "--dry-run=server")
	require.Len(t, h.server.Inspected, asked)

	// A large batch is asked about in part.
	var many strings.Builder
	for i := range fleetPolicies + 3 {
		many.WriteString("---\n" + strings.Replace(webToBackend, "web-to-backend", fmt.Sprintf("p-%d", i), 1))
	}
	out = h.run("apply", "-f", h.write("many.yaml", many.String()))
	require.Equal(t, exit.OK, out.code)
	require.Len(t, h.server.Inspected, asked+fleetPolicies)
	require.Contains(t, out.stderr, "asked about the first 16 policies, not about 3 more")
}

// What cannot be known is not guessed, and does not fail what is written.
func TestApplyWithoutAnswersOfZones(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(revision uint64) (*meridianv1.InspectResponse, error)
		before func(method string) error
		says   string
	}{
		"no zones": {answer: func(uint64) (*meridianv1.InspectResponse, error) {
			return nil, rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected")
		}},
		"not for the caller": {answer: func(uint64) (*meridianv1.InspectResponse, error) {
			return nil, rpcerr.New(rpcerr.Denied, "ACCESS_DENIED", "no")
		}},
		"zones not for the caller": {before: func(method string) error {
			if method == "WaitForZones" {
				return rpcerr.New(rpcerr.Denied, "ACCESS_DENIED", "no")
			}
			return nil
		}, answer: func(revision uint64) (*meridianv1.InspectResponse, error) { return aboutPolicy(revision), nil }},
		"too many wait": {before: func(method string) error {
			if method == "WaitForZones" {
				return rpcerr.New(rpcerr.TooLarge, "LIMIT_REACHED", "the limit on waits is reached")
			}
			return nil
		}, answer: func(revision uint64) (*meridianv1.InspectResponse, error) {
			return aboutPolicy(revision-1, `zone "east": behind`), nil
		}, says: "Note: not every zone said whether the targets select anything and proxies obey it: zone \"east\": behind.\n"},
		"what was there before": {
			answer: func(revision uint64) (*meridianv1.InspectResponse, error) {
				return aboutPolicy(revision-1, `zone "east": behind`), nil
			},
			says: "Note: not every zone said whether the targets select anything and proxies obey it: zone \"east\": behind.\n",
		},
		"no answer in time": {answer: func(uint64) (*meridianv1.InspectResponse, error) {
			return nil, rpcerr.New(rpcerr.Timeout, "ZONE_TIMEOUT", "zone east did not answer")
		}, says: "Note: not every zone said whether the targets select anything and proxies obey it: no answer within 1m0s.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.server.Before = c.before
			h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
				return c.answer(h.server.Revision)
			}
			out := h.run("apply", "-f", h.write("p.yaml", webToBackend))
			require.Equal(t, exit.OK, out.code)
			require.Equal(t, c.says, out.stderr)
			require.Contains(t, out.stdout, "created")
		})
	}
}

// What proxies do not obey is one line for each cause, and a bounded number of lines; a
// zone is asked as well as a global, about what it has written itself.
func TestApplySaysWhatProxiesDoNotObey(t *testing.T) {
	const unenforced = `{"path":"conf.f%d","message":"has no effect on %d gRPC proxies in zone east: why","ofDataplanes":true,
		"unenforced":{"dialect":"grpc","status":"unsupported","note":"why","zones":[{"zone":"east","proxies":8}]}}`
	var many []string
	for i := range maxFleetWarnings + 2 {
		many = append(many, fmt.Sprintf(unenforced, i+10, 8))
	}
	answers := map[string]string{
		"a": fmt.Sprintf(unenforced, 1, 8) + "," + fmt.Sprintf(unenforced, 2, 8),
		"b": fmt.Sprintf(unenforced, 2, 3) + `,{"path":"destinations[0].match","message":"selects nothing","ofDataplanes":true}`,
		"c": strings.Join(many, ","),
	}
	document := func(name string) string { return strings.Replace(webToBackend, "web-to-backend", name, 1) }
	for _, zone := range []bool{false, true} {
		h := newHarness(t)
		if zone {
			h.server.Before = func(method string) error {
				if method == "WaitForZones" {
					return rpcerr.New(rpcerr.Invalid, "NO_ZONES_HERE", "a zone has no zones")
				}
				return nil
			}
		}
		h.server.Answer = func(r *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
			asOf := h.server.Revision
			if zone {
				asOf = 1 // of what it has from its global
			}
			return &meridianv1.InspectResponse{AsOf: asOf, Json: fmt.Appendf(nil, `{"kind":"TrafficPermission","mesh":"default","name":"p","asOf":%d,"warnings":[%s]}`,
				asOf, answers[r.GetPolicy().GetName()])}, nil
		}
		file := h.write("p.yaml", document("a")+"\n---\n"+document("b"))
		want := "Warning: TrafficPermission/a: conf.f1: has no effect on 8 gRPC proxies in zone east: why\n" +
			"Warning: 2 documents (TrafficPermission/default/a, b): conf.f2: has no effect on gRPC proxies: why\n"
		if !zone { // which says it of its own accord
			want += "Warning: TrafficPermission/b: destinations[0].match: selects nothing\n"
		}
		require.Equal(t, want, h.run("apply", "-f", file).stderr)
		require.Equal(t, "has no effect on gRPC proxies: why", h.ok("apply", "-f", file, "-o", "jsonpath={.findings[0].cause}")[:34])
		out := h.run("apply", "-f", h.write("c.yaml", document("c")))
		require.Equal(t, maxFleetWarnings, strings.Count(out.stderr, "Warning: "))
		require.Contains(t, out.stderr, "Note: 2 warnings more; ")
	}
}

// A zone or a server that hangs costs apply no more than the budget.
func TestApplyDoesNotWaitForZonesThatHang(t *testing.T) {
	h := newHarness(t)
	h.fleetBudget = 100 * time.Millisecond
	h.server.Waiting = func() {}
	release := make(chan struct{})
	defer close(release)
	h.server.Before = func(method string) error {
		if method == "Inspect" {
			<-release
		}
		return nil
	}
	out := h.run("apply", "-f", h.write("p.yaml", webToBackend))
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, "Note: not every zone said whether the targets select anything and proxies obey it: no answer within 100ms.\n", out.stderr)
}

// Names are shown in one way, which other commands take back.
func TestResultsShowNamespaces(t *testing.T) {
	h := newHarness(t)
	document := strings.Replace(webToBackend, "name: web-to-backend", "name: web.shop\nlabels: {k8s.kuma.io/namespace: shop}", 1)
	file := h.write("p.yaml", document)
	require.Equal(t, "TrafficPermission/shop/web\n", h.ok("apply", "-f", file, "-o", "name"))
	require.Equal(t, "TrafficPermission/shop/web unchanged\nrevision 1841\n", h.ok("apply", "-f", file))
	require.Equal(t, "TrafficPermission/shop/web valid\n", h.ok("apply", "-f", file, "--dry-run=client"))
	require.Equal(t, "TrafficPermission/shop/web\n", h.ok("export", "traffic-permissions", "-o", "name"))
	require.Equal(t, "web.shop\n", h.ok("apply", "-f", file, "-o", "jsonpath={.results[0].name}"), "JSON has the stored name")
	h.ok("apply", "-f", file, "--if-version", "TrafficPermission/shop/web=1")
	require.Equal(t, "TrafficPermission/shop/web deleted\nrevision 1842\n", h.ok("delete", "TrafficPermission/shop/web", "--if-version", "TrafficPermission/shop/web=1"))
}
