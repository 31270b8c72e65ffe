package cli

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/audit"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/pki"
)

func TestGenerateUserAndDataplaneTokens(t *testing.T) {
	h := newHarness(t)
	require.Equal(t, "user.token\n", h.ok("generate", "user-token", "--name", "bob", "--group", "a,b", "--group", "c", "--valid-for", "24h"))
	require.Equal(t, "bob", h.server.Tokens.User.GetName())
	require.Equal(t, []string{"a", "b", "c"}, h.server.Tokens.User.GetGroups())
	require.Equal(t, int64(86400), h.server.Tokens.User.GetValidForSeconds())

	require.Equal(t, "dataplane.token\n", h.ok("generate", "dataplane-token", "-m", "demo", "--name", "web-1",
		"--tag", "kuma.io/service=web", "--tag", "kuma.io/service=api", "--tag", "team=a=b", "--valid-for", "1h"))
	require.Equal(t, "demo", h.server.Tokens.Dataplane.GetMesh())
	tags := h.server.Tokens.Dataplane.GetTags()
	require.Len(t, tags, 2)
	require.Equal(t, []string{"web", "api"}, tags[0].GetValues())
	require.Equal(t, []string{"a=b"}, tags[1].GetValues())
	h.ok("generate", "dataplane-token", "--valid-for", "1h")
	require.Equal(t, "default", h.server.Tokens.Dataplane.GetMesh())

	for args, want := range map[string]string{
		"user-token --valid-for 1h":                                   "Error: --name is required: the name of the user\n",
		"user-token --name bob":                                       "Error: --valid-for is required, such as 24h\n",
		"dataplane-token --valid-for 10ms":                            "Error: --valid-for 10ms: a token is valid for at least one second\n",
		"dataplane-token --valid-for 1h --tag team":                   "Error: --tag \"team\": write NAME=VALUE\n",
		"dataplane-token --valid-for 1h -m No!":                       "Error: --mesh: ",
		"zone-token --zone e --valid-for 1h --scope ingress --bundle": "Error: --bundle is what a zone's control plane joins with: it does not go with --scope ingress alone\n",
	} {
		out := h.run(append([]string{"generate"}, strings.Fields(args)...)...)
		require.Equal(t, exit.Usage, out.code, args)
		require.True(t, strings.HasPrefix(out.stderr, want), out.stderr)
	}
}

func TestTokensKeysList(t *testing.T) {
	h := newHarness(t)
	require.Equal(t, `KEY                                 KIND             SERIAL  STATE    TOKENS  CREATED
dataplane-token-signing-key-1       dataplane-token  1       retired  12      2026-01-31T20:00:00Z
dataplane-token-signing-key-2.east  dataplane-token  2       active   0       2026-01-31T20:00:00Z
`, h.ok("tokens", "keys", "list"))
	require.Equal(t, "dataplane-token-signing-key-1\ndataplane-token-signing-key-2.east\n", h.ok("tokens", "keys", "list", "-o", "name"))
	require.JSONEq(t, `{"items": [
		{"id": "dataplane-token-signing-key-1", "kind": "dataplane-token", "serial": 1, "state": "retired", "created": "2026-01-31T20:00:00Z", "tokens": 12},
		{"id": "dataplane-token-signing-key-2.east", "kind": "dataplane-token", "serial": 2, "issuer": "east", "state": "active", "created": "2026-01-31T20:00:00Z", "tokens": 0}
	]}`, h.ok("tokens", "keys", "list", "dataplanes", "-o", "json"))
	require.Equal(t, "dataplane-token", h.server.Tokens.Listed)
	require.Contains(t, h.run("tokens", "keys", "list", "user").stderr, "There is no key for that kind of token here.")
	require.Equal(t, exit.Usage, h.run("tokens", "keys", "list", "host").code)
}

func TestTokens(t *testing.T) {
	h := newHarness(t)
	require.Equal(t, `ID  KIND             SUBJECT        STATE        EXPIRES               KEY
b2  dataplane-token  default/web-1  active       2026-01-31T21:00:00Z  2
c3  server-token     server         used         2026-01-31T21:00:00Z  1
d4  user-token       eve            key deleted  2026-01-31T21:00:00Z  3
a1  user-token       bob            revoked      2026-01-31T20:00:00Z  1
`, h.ok("tokens", "list"))
	require.Contains(t, h.ok("tokens", "list", "-o", "wide"), "kuma.io/service=web|api")
	require.Equal(t, "b2\nc3\nd4\na1\n", h.ok("tokens", "list", "-o", "name"))
	var got struct{ Items []tokenView }
	require.NoError(t, json.Unmarshal([]byte(h.ok("tokens", "list", "users", "-o", "json")), &got))
	require.Equal(t, "user-token", h.server.Tokens.Listed)
	require.Equal(t, map[string][]string{"kuma.io/service": {"web", "api"}}, got.Items[0].Tags)
	require.Equal(t, clitest.Epoch.Add(time.Hour), got.Items[0].Expires)
	require.Equal(t, "second", got.Items[1].UsedBy)
	require.Equal(t, "key deleted", got.Items[2].State)
	require.Contains(t, h.ok("tokens", "list", "-o", "wide"), "used by second")
	out := h.run("tokens", "list", "zone")
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stderr, "No token of that kind is recorded here.")

	require.Equal(t, "user-token-signing-key-2 created\nrevision 9\n", h.ok("tokens", "rotate", "user-tokens"))
	require.Equal(t, "user-token", h.server.Tokens.Rotate.GetKind())
	require.NotEmpty(t, h.server.Tokens.Rotate.GetRequestId())
	require.Equal(t, "a1 revoked\nrevision 9\n", h.ok("tokens", "revoke", "a1", "--reason", "lost"))
	require.Equal(t, "lost", h.server.Tokens.Revoke.GetReason())
	require.Equal(t, "a1 unchanged\nrevision 9\n", h.ok("tokens", "revoke", "a1", "--reason", "again"))
	require.Equal(t, exit.No, h.run("tokens", "revoke", "nope").code)
	require.NotContains(t, h.run("tokens", "revoke", "a1").stderr, "arning")
	out = h.run("tokens", "revoke", "many")
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, "many revoked\nrevision 9\n", out.stdout)
	require.Contains(t, out.stderr, "Warning: 3 revoked tokens of this mesh, those that were revoked first, have certificates that servers accept until they expire: servers deny the last 2000. "+
		"To end them now, replace the certificate authority of the mesh in each zone (docs/proxies/README.md).")
	out = h.run("tokens", "rotate", "host")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, `"host" is no kind of token; the kinds are user, dataplane, zone and server`)
}

func TestAuditVerify(t *testing.T) {
	h := newHarness(t)
	dir := t.TempDir()
	authority := func() (*pki.PKI, string) {
		data := t.TempDir()
		p, err := pki.Open(pki.Config{DataDir: data, Name: "global-1", Hosts: []string{"localhost"}, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return p, filepath.Join(data, "pki", "ca.pem")
	}
	server, ca := authority()
	_, otherCA := authority()
	log, err := audit.Open(audit.Config{Dir: dir, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Sign: server.Sign})
	require.NoError(t, err)
	for range 3 {
		log.Write(audit.Record{Who: audit.Who{Name: "bob"}, Method: "m", Decision: audit.Allowed})
	}
	log.Write(audit.Record{Who: audit.Who{Name: "bob", Source: "token"}, Method: "m", Decision: audit.Denied, Rule: "ACCESS_DENIED"})
	require.NoError(t, log.Close())
	file := filepath.Join(dir, audit.CurrentFile)
	require.Regexp(t, `^CHAIN   RECORDS  FIRST  LAST  HASH\naudit   3        1      3     [0-9a-f]{64}\ndenied  1        1      1     [0-9a-f]{64}\n$`, h.run("audit", "verify", dir).stdout)
	require.Contains(t, h.run("audit", "verify", dir).stderr, "the checkpoint is signed by global-1, by the certificate in it: --ca verifies")
	require.Equal(t, outcome{exit.OK, h.run("audit", "verify", dir).stdout, ""}, h.run("audit", "verify", dir, "--ca", ca))
	require.Regexp(t, `^CHAIN  RECORDS  FIRST  LAST  HASH\naudit  3        1      3     [0-9a-f]{64}\n$`, h.run("audit", "verify", file).stdout)
	out := h.run("audit", "verify", dir, "--ca", otherCA)
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "head.json: the checkpoint: its certificate is not one of the CA")

	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(data), "bob", "eve", 1)), 0o600))
	out = h.run("audit", "verify", file)
	require.Equal(t, exit.No, out.code)
	require.Equal(t, file+":1: its hash does not fit: it was altered\n", out.stdout)
	require.Contains(t, out.stderr, "Error: the audit log was altered: 1 problem\n")
	var report audit.Report
	out = h.run("audit", "verify", dir, "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out.stdout), &report))
	require.Equal(t, 1, report.Problems[0].Line)

	lines := strings.SplitAfter(string(data), "\n")
	cut := filepath.Join(t.TempDir(), "copy.log")
	require.NoError(t, os.WriteFile(cut, []byte(lines[0]), 0o600))
	out = h.run("audit", "verify", cut)
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stderr, "there is no checkpoint")
	out = h.run("audit", "verify", cut, "--head", filepath.Join(dir, audit.HeadFile))
	require.Equal(t, exit.No, out.code)
	require.Contains(t, out.stdout, "records 2 to 3 are missing at the end, by the checkpoint")

	for _, args := range [][]string{{}, {filepath.Join(dir, "nope")}, {t.TempDir()}, {file, "--head", file}} {
		require.Equal(t, exit.Usage, h.run(append([]string{"audit", "verify"}, args...)...).code, args)
	}
	require.Empty(t, h.server.Calls, "it needs no server")
}
