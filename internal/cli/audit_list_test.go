package cli

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
)

// A denial that names no target is shown with the method that was called.
func TestADenialWithoutTargets(t *testing.T) {
	h := newHarness(t)
	h.server.Audit = func(*meridianv1.ListAuditRequest) *meridianv1.ListAuditResponse {
		return &meridianv1.ListAuditResponse{Records: []*meridianv1.AuditRecord{{Server: "a", Json: []byte(
			`{"chain":"denied","seq":1,"time":"2026-01-31T20:00:02Z","who":{"name":"bob"},"method":"meridian.v1.ClusterService/RotateCA","decision":"denied","message":"Access Denied","prev":"","hash":""}`)}}}
	}
	require.Contains(t, h.ok("audit", "list"), "bob   denied   RotateCA  -       Access Denied")
}

func TestAuditList(t *testing.T) {
	h := newHarness(t)
	first := `{"seq":3,"time":"2026-01-31T20:00:01.5Z","who":{"name":"alice","source":"token"},"from":"192.0.2.1:1","method":"m","decision":"allowed","rule":"rules[0] of AccessRole \"x\"","targets":[{"action":"create","kind":"Timeout","mesh":"default","name":"t","version":1},{"kind":"Retry","name":"r"}],"revision":7,"request":"q","prev":"","hash":""}`
	second := "{\"chain\":\"denied\",\"seq\":1,\"time\":\"2026-01-31T20:00:02Z\",\"who\":{\"name\":\"\u202eeve\"},\"decision\":\"denied\",\"targets\":[{\"action\":\"create\",\"kind\":\"Mesh\",\"name\":\"m\"}],\"message\":\"Access Denied\"}"
	var asked []*meridianv1.ListAuditRequest
	h.server.Audit = func(req *meridianv1.ListAuditRequest) *meridianv1.ListAuditResponse {
		asked = append(asked, req)
		west := &meridianv1.AuditAbsence{Zone: "west", Reason: "offline"}
		if req.GetPageToken() == "" {
			return &meridianv1.ListAuditResponse{
				Records: []*meridianv1.AuditRecord{{Server: "global-1", Json: []byte(first)}}, NextPageToken: "next", Incomplete: []*meridianv1.AuditAbsence{west},
			}
		}
		return &meridianv1.ListAuditResponse{
			Records:    []*meridianv1.AuditRecord{{Zone: "east", Json: []byte(second)}, {Zone: "south", Server: "two", Json: []byte(second)}},
			Incomplete: []*meridianv1.AuditAbsence{west, {Zone: "south", Server: "three", Reason: "gone"}},
		}
	}
	out := h.run("audit", "list", "--user", "alice", "--since", "1h", "--kind", "timeouts", "--name", "t", "--verdict", "allowed")
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, ""+
		"TIME                  AT               USER       VERDICT  ACTION  TARGET                        REASON\n"+
		"2026-01-31T20:00:01Z  global-1         alice      allowed  create  Timeout/default/t and 1 more  rules[0] of AccessRole \"x\"\n"+
		"2026-01-31T20:00:02Z  zone east        \\u202eeve  denied   create  Mesh/m                        Access Denied\n"+
		"2026-01-31T20:00:02Z  zone south, two  \\u202eeve  denied   create  Mesh/m                        Access Denied\n", out.stdout)
	require.Equal(t, "Warning: the list lacks the records of zone west: offline\nWarning: the list lacks the records of server three of zone south: gone\n", out.stderr, "once")
	require.Len(t, asked, 2)
	require.Equal(t, "alice", asked[1].GetUser())
	require.Equal(t, "Timeout", asked[1].GetKind())
	require.Equal(t, "next", asked[1].GetPageToken())
	require.Equal(t, clitest.Epoch.Add(10*time.Minute-time.Hour), asked[0].GetSince().AsTime())

	var document struct {
		Items []struct {
			Server, Zone string
			Record       struct{ Seq int }
		}
		Incomplete []struct{ Server, Zone, Reason string }
	}
	require.NoError(t, json.Unmarshal([]byte(h.ok("audit", "list", "-o", "json")), &document))
	require.Len(t, document.Items, 3)
	require.Equal(t, "two", document.Items[2].Server)
	require.Equal(t, "east", document.Items[1].Zone)
	require.Equal(t, 3, document.Items[0].Record.Seq)
	require.Equal(t, []struct{ Server, Zone, Reason string }{{"", "west", "offline"}, {"three", "south", "gone"}}, document.Incomplete)
	require.Nil(t, asked[2].GetSince())
	require.Contains(t, h.run("audit", "list", "-o", "wide").stdout, "192.0.2.1:1")
	h.run("audit", "list", "--since", "2026-01-02T03:04:05Z", "--kind", "snapshot")
	require.Equal(t, "2026-01-02 03:04:05 +0000 UTC", asked[len(asked)-1].GetSince().AsTime().String())
	require.Equal(t, "snapshot", asked[len(asked)-1].GetKind())

	h.server.Audit = func(*meridianv1.ListAuditRequest) *meridianv1.ListAuditResponse {
		return &meridianv1.ListAuditResponse{}
	}
	require.Equal(t, outcome{exit.OK, "", "There is no such record.\n"}, h.run("audit", "list"))
	require.Equal(t, "{\n  \"items\": [],\n  \"incomplete\": []\n}\n", h.ok("audit", "list", "-o", "json"))
	for _, args := range [][]string{{"--since", "yesterday"}, {"--verdict", "maybe"}, {"x"}} {
		require.Equal(t, exit.Usage, h.run(append([]string{"audit", "list"}, args...)...).code, args)
	}
}
