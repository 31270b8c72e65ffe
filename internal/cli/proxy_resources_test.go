package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/cli/exit"
)

const proxied = `{type: Dataplane, mesh: default, name: web-1, networking: {address: 10.0.0.9,
  inbound: [{port: 8080, tags: {kuma.io/service: web}}], outbound: [{port: 4001, tags: {kuma.io/service: backend}}]}}
---
{type: Timeout, mesh: default, name: t, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: backend}}],
  conf: {connectTimeout: 1s, http: {requestTimeout: 3s}}}
`

func TestEvalProxy(t *testing.T) {
	h := newHarness(t)
	h.write("d/a.yaml", proxied)
	all := h.ok("eval", "proxy", "web-1", "-f", h.home+"/d")
	require.Contains(t, all, "LDS   backend:4001")
	require.Contains(t, all, "/connectTimeout")
	require.Contains(t, all, "unsupported")
	routes := h.ok("eval", "proxy", "web-1", "-f", h.home+"/d", "--type", "rds", "-o", "json")
	require.Contains(t, routes, `"maxStreamDuration": "3s"`)
	require.NotContains(t, routes, `"LDS"`)
	for _, args := range [][]string{{"web-1", "--type", "xds"}, {"-"}, {}} {
		out := h.run(append([]string{"eval", "proxy", "-f", h.home + "/d"}, args...)...)
		require.Equal(t, exit.Usage, out.code, "%v", args)
	}
	require.Contains(t, h.run("eval", "proxy", "web-2", "-f", h.home+"/d").stderr, "not found: no dataplane web-2")
}

// What the proxies of a small mesh are sent, of callers and callees of both kinds, is as
// in the files of testdata/proxy: a change of it shows there.
func TestProxiesAreSentWhatTheFilesSay(t *testing.T) {
	const dir = "testdata/proxy"
	for _, dataplane := range []string{"web-1", "backend-1"} {
		for _, dialect := range []string{"grpc", "envoy"} {
			t.Run(dataplane+" "+dialect, func(t *testing.T) {
				got := newHarness(t).ok("eval", "proxy", dataplane, "-f", filepath.Join(dir, "mesh.yaml"), "--dialect", dialect, "-o", "yaml")
				path := filepath.Join(dir, dataplane+"-"+dialect+".golden")
				if *update {
					require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
					return
				}
				want, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, string(want), got, "go test ./internal/cli -run TestProxiesAreSent -update writes it")
			})
		}
	}
}

func TestExplainSaysWhatProxiesDo(t *testing.T) {
	h := newHarness(t)
	require.Contains(t, h.ok("explain", "MeshCircuitBreaker", "to.connectionLimits.maxRequests"), "On grpc proxies: enforced.")
	require.Contains(t, h.ok("explain", "MeshCircuitBreaker", "from.connectionLimits.maxRequests"), "On grpc proxies: unsupported (")
	require.NotContains(t, h.ok("explain", "MeshCircuitBreaker"), "grpc proxies")
	require.Equal(t, 1, strings.Count(h.ok("explain", "AuthPolicy", "overrides"), "a gRPC client is no gateway"), "one answer for all fields is given once")
	require.NotContains(t, h.ok("explain", "Timeout", "sources.match"), "grpc proxies", "it says where the policy holds")
	require.Contains(t, h.ok("explain", "Timeout", "-o", "json"), `"status": "approximated"`)
}
