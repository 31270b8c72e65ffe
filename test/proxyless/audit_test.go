//go:build linux

package proxyless

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/resource"
)

// event is a line of gRPC's audit log.
type event struct {
	Principal   string `json:"principal"`
	MatchedRule string `json:"matched_rule"`
	Authorized  bool   `json:"authorized"`
	Method      string `json:"rpc_method"`
}

// audited returns what is written to the audit log while something is done. gRPC writes it
// to the standard output that there was when the process started.
func audited(t *testing.T, do func()) (events []event) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	require.NoError(t, err)
	saved, err := unix.Dup(1)
	require.NoError(t, err)
	require.NoError(t, unix.Dup2(int(file.Fd()), 1))
	do()
	require.NoError(t, unix.Dup2(saved, 1))
	require.NoError(t, unix.Close(saved))
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.NoError(t, file.Close())
	for line := range strings.Lines(string(text)) {
		var e struct {
			Event *event `json:"grpc_audit_log"`
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Event != nil {
			events = append(events, *e.Event)
		}
	}
	return events
}

// A stock server writes a line for each call that a permission denies, with the caller and
// the policy, and one for each call that it serves where a MeshLogging asks for that.
func TestAStockServerLogsDenials(t *testing.T) {
	z := newZone(t)
	const list = `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Service","name":"web"},"default":{"action":"DENY"}},{"targetRef":{"kind":"Service","name":"api"},"default":{"action":"ALLOW"}}]}`
	z.apply(z.put(resource.KindMesh, "", "m", mutualTLS), z.put(resource.KindMeshTrafficPermission, "m", "no-web", list))
	ca := meshcatest.Authority(t, "m")
	f := newFiles(t)
	f.put(meshcatest.Issue(t, ca, "m", "backend-1", resource.Tags{resource.ServiceTag: "backend"}), ca.Roots())
	server := z.serveMember("backend-1", `{"kuma.io/service":"backend","kuma.io/zone":"east"}`, f)
	calls := func(when string) []event {
		return audited(t, func() {
			for service, code := range map[string]codes.Code{"web": codes.PermissionDenied, "api": codes.OK, "other": codes.PermissionDenied} {
				h := meshcatest.Issue(t, ca, "m", service+"-1", resource.Tags{resource.ServiceTag: service})
				_, err := callBare(t, server.address, presenting(t, h.Pair(t)))
				require.Equal(t, code, status.Code(err), "%s: %s: %v", when, service, err)
			}
		})
	}
	of := func(events []event) map[string]event {
		byCaller := map[string]event{}
		for _, e := range events {
			require.Equal(t, "/a.S/M", e.Method)
			_, rest, found := strings.Cut(e.Principal, "spiffe://east.m/dp/")
			require.True(t, found, e.Principal)
			name, _, _ := strings.Cut(rest, "/")
			require.NotContains(t, byCaller, name, "one line for a call")
			byCaller[name] = event{MatchedRule: e.MatchedRule, Authorized: e.Authorized}
		}
		return byCaller
	}
	denials := map[string]event{"web-1": {MatchedRule: "MeshTrafficPermission no-web"}, "other-1": {MatchedRule: "mtls-default"}}
	require.Equal(t, denials, of(calls("denials")))

	for spec, all := range map[string]bool{
		`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"backends":[{"type":"File","file":{"path":"/dev/null"}}]}}]}`: true,
		`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":{"backends":[]}}]}`:                                            false,
	} {
		z.apply(z.put(resource.KindMeshLogging, "m", "log", spec))
		z.follow(server)
		require.Empty(t, server.xds.Settle())
		for {
			got := of(calls(spec))
			served := got["api-1"].Authorized
			delete(got, "api-1")
			require.Equal(t, denials, got)
			if served == all {
				break
			}
			require.NoError(t, t.Context().Err()) // a server accepts what its calls obey a moment later
		}
	}
}
