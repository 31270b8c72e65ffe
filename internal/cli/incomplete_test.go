package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
)

// What an answer about several zones lacks is in its text, its JSON and, with
// --strict, the exit code; a complete answer has none of it.
func TestIncompleteAnswers(t *testing.T) {
	const lacks = `"incomplete": [{"server": "b", "reason": "no answer within 1s"}, {"zone": "north", "reason": "offline"}]`
	const line = "\nIncomplete: server b: no answer within 1s; zone \"north\": offline.\n"
	documents := map[string]string{
		"dataplanes":                         `{"items": [{"mesh": "default", "name": "web-1", "zone": "east", "services": ["web"], "outbounds": [], "policies": 1}], `,
		"inspect policy Retry r":             `{"kind": "Retry", "mesh": "default", "name": "r", "asOf": 7, "dataplanes": [{"name": "web-1", "zone": "east", "attachments": []}], "conditions": [], `,
		"inspect connection --from a --to b": `{"mesh": "default", "from": "a", "to": "b", "asOf": 7, "allowed": true, "allowedBy": [], "effective": [], `,
	}
	for command, document := range documents {
		h := newHarness(t)
		h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
			return &meridianv1.InspectResponse{Json: []byte(document + lacks + "}"), Notes: []string{
				"server b: no answer within 1s", `zone "north": offline`, "and more",
			}}, nil
		}
		out := h.run(strings.Fields(command)...)
		require.Equal(t, exit.OK, out.code, command)
		require.Contains(t, out.stdout, line, command)
		require.Equal(t, "Warning: the answer may be incomplete: and more\n", out.stderr, command)
		require.Contains(t, h.run(strings.Fields(command+" -o json")...).stdout, "no answer within 1s", command)
		out = h.run(strings.Fields(command + " --strict")...)
		require.Equal(t, exit.Timeout, out.code, command)
		require.Contains(t, out.stdout, line, command)
		require.Contains(t, out.stderr, "the answer is incomplete: server b: no answer within 1s, and 2 more", command)

		h.serveDocument([]byte(document + `"incomplete": []}`))
		out = h.run(strings.Fields(command + " --strict")...)
		require.Equal(t, exit.OK, out.code, command)
		require.NotContains(t, out.stdout, "Incomplete", command)
	}
	// A list of names has no place for it.
	h := newHarness(t)
	h.serveDocument([]byte(documents["dataplanes"] + lacks + "}"))
	out := h.run("dataplanes", "-o", "name")
	require.Equal(t, "Dataplane/web-1\n", out.stdout)
	require.Contains(t, out.stderr, `the answer is incomplete: zone "north": offline`)
}
