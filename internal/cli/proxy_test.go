package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

// How far the proxy has come stands on the page, and never in the document.
func TestInspectShowsTheProxy(t *testing.T) {
	h := newHarness(t)
	document := h.ok("eval", "dataplane", "web-1", "-f", scenario("more-tags-win"), "-o", "json")
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(document), Connection: &meridianv1.DataplaneConnection{
			State: "online", RegisteredBy: "proxy", Acked: 12, Lag: 1,
		}}, nil
	}
	require.Equal(t, document, h.ok("inspect", "dataplane", "web-1", "-o", "json"))
	require.Contains(t, h.ok("inspect", "dataplane", "web-1"), "\nproxy online, has taken on revision 12, 1 change behind\n")
}

func TestDataplanesShowsProxies(t *testing.T) {
	h := newHarness(t)
	h.serveDocument([]byte(`{"items": [{"mesh": "default", "name": "web-1", "zone": "east", "services": ["web"], "outbounds": [],
		"policies": 1, "state": "offline", "registeredBy": "proxy", "ackedRevision": 12, "lag": 0}]}`))
	require.Equal(t, `MESH     NAME   ZONE  SERVICES  POLICIES  STATE    ACKED  LAG
default  web-1  east  web       1         offline  12
`, h.ok("dataplanes"))
}

// A list without proxies names the zones that it lacks: theirs are not known.
func TestProxyStatusWithoutProxies(t *testing.T) {
	h := newHarness(t)
	answered := `{"items": []}`
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: []byte(answered)}, nil
	}
	require.Equal(t, "No proxy follows a zone over xDS.\n", h.run("proxy", "status").stderr)
	answered = `{"items": [], "incomplete": [{"zone": "west", "reason": "offline"}]}`
	out := h.run("proxy", "status")
	require.Empty(t, out.stderr)
	require.Contains(t, out.stdout, "Incomplete: zone \"west\": offline.\n")
}
