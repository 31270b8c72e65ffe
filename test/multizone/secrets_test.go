//go:build multizone

package multizone

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// privateKeyText is how the base64 of every private key in PEM begins, as the
// resources that hold signing keys have it.
var privateKeyText = base64.StdEncoding.EncodeToString([]byte("-----BEGIN PRIVATE KEY-----"))[:32]

// holding are the files of a server that hold one of the texts.
func (p *process) holding(texts ...string) []string {
	p.t.Helper()
	var found []string
	require.NoError(p.t, filepath.WalkDir(p.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(data, []byte(text)) {
				found = append(found, strings.TrimPrefix(path, p.dir+string(filepath.Separator)))
				break
			}
		}
		return err
	}))
	return found
}

// Nothing that a server keeps, prints or logs shows a signing key, and with a file
// of keys nothing on its disk shows any secret.
func TestSecretsStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	require.NoError(t, os.WriteFile(keys, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600))

	global := newGlobal(t).start().ready()
	adminToken := tokenOf(t, global)
	marker := base64.StdEncoding.EncodeToString([]byte(rand.Text() + rand.Text()))
	global.mustWith("{type: GlobalSecret, name: db, data: "+marker+"}", "apply", "-f", "-")
	require.Zero(t, global.stop())
	gossip := strings.TrimSpace(string(global.file("pki/gossip.key")))
	rawGossip, err := base64.StdEncoding.DecodeString(gossip)
	require.NoError(t, err)
	texts := []string{marker, privateKeyText, "PRIVATE KEY", adminToken, base64.StdEncoding.EncodeToString([]byte(adminToken))[:64], gossip, string(rawGossip)}
	require.Subset(t, global.holding(texts...), []string{"admin.yaml", "pki/ca-key.pem", "pki/server-key.pem", "pki/gossip.key", "raft/log.db"}, "what is looked for is there to be found")

	// Turned on for a directory in use, in the way that a crash leaves it: the last entries
	// are in the journal only.
	global.start().ready()
	global.mustWith("{type: GlobalSecret, name: db2, data: "+marker+"}", "apply", "-f", "-")
	global.kill()
	require.NoError(t, os.WriteFile(filepath.Join(global.dir, "pki", ".ca-key.pem.42"), []byte("-----BEGIN PRIVATE KEY-----"), 0o600))
	context := filepath.Join(dir, "context.yaml")
	global.args = append(global.args, "--admin-context-file", context, "--encryption-key-file", keys)
	global.start().ready()
	require.Empty(t, global.holding(texts...))
	info, err := os.Stat(context)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	require.Contains(t, meridian(t, context, "", "auth", "whoami").stdout, "mesh-system:admin")
	east := newZone(t, global, "east", "--encryption-key-file", keys).start().ready()
	global.awaitState("east", "in-sync")
	east.mustWith("{type: Secret, mesh: default, name: db, data: "+marker+"}", "apply", "-f", "-")
	require.Contains(t, east.must("get", "secret", "db", "-o", "yaml"), marker)
	require.Empty(t, east.holding(texts...))

	snapshot := filepath.Join(dir, "a.snapshot")
	global.must("cluster", "snapshot", "save", snapshot)
	saved, err := os.ReadFile(snapshot)
	require.NoError(t, err)
	for _, text := range texts {
		require.NotContains(t, string(saved), text)
	}
	require.Contains(t, global.must("cluster", "snapshot", "inspect", snapshot), "Encrypted:  with key ")
	global.must("cluster", "snapshot", "restore", snapshot, "--yes")
	require.Empty(t, global.holding(texts...))
	for _, phase := range []string{"start", "switch", "finish"} {
		global.await("the zone to have followed, for "+phase, func() bool { return global.command("cluster", "rotate-ca", phase).code == 0 })
		global.await("the server to follow", func() bool {
			_, err := os.Stat(filepath.Join(global.dir, "pki", "rotation.json"))
			return (err != nil) == (phase == "finish")
		})
		require.Empty(t, global.holding(texts...), phase)
	}

	// No command shows an administrator a signing key.
	for _, p := range []*process{global, east} {
		for _, args := range [][]string{
			{"get", "global-secrets", "-o", "json"},
			{"get", "global-secrets", "-o", "yaml"},
			{"get", "global-secrets", "-o", "wide"},
			{"export", "--include=all", "--include-secrets"},
			{"export", "global-secrets", "--include-secrets", "-o", "json"},
			{"tokens", "list", "-o", "json"},
			{"get", "all", "-A", "-o", "json"},
		} {
			shown := p.must(args...)
			require.NotContains(t, shown, privateKeyText, "%s %v", p.name, args)
			require.NotContains(t, shown, "PRIVATE KEY")
		}
		require.Contains(t, p.must("get", "global-secrets", "-o", "yaml"), "withheld: true", p.name)
	}
	require.Contains(t, global.must("describe", "global-secret", "user-token-signing-key-1"), "no command shows it")

	// The admin token is replaced, and the one before is dead.
	fresh := filepath.Join(dir, "admin.token")
	global.must("tokens", "reissue-admin", "--out", fresh)
	require.Equal(t, 4, meridian(t, global.as(adminToken), "", "auth", "whoami").code)
	require.Contains(t, global.must("auth", "whoami", "--token-file", fresh), "mesh-system:admin")
	global.await("the context to have the new token", func() bool {
		data, err := os.ReadFile(context)
		return err == nil && !bytes.Contains(data, []byte(adminToken))
	})
	require.Contains(t, meridian(t, context, "", "auth", "whoami").stdout, "mesh-system:admin")

	// A server that would keep the secrets in plain text is not accepted.
	second := newServer(t, global, "second").start()
	require.NotZero(t, second.wait())
	require.Contains(t, second.log.String(), `server "second" would keep the secrets of this global on its disk without encryption`)
	for _, p := range []*process{global, east, second} {
		for _, text := range append([]string{"PRIVATE KEY", adminToken}, texts...) {
			require.NotContains(t, p.log.String(), text, "the log of %s", p.name)
		}
	}

	// Without the key the server does not start, and says which one is missing.
	global.kill()
	flags := global.args
	global.args = global.args[:len(global.args)-2]
	require.NotZero(t, global.start().wait())
	require.Contains(t, global.log.String(), "is not in the file of --encryption-key-file; nothing was changed")
	global.args = flags
	global.start().ready()
	require.Contains(t, global.must("get", "global-secret", "db", "-o", "yaml"), marker)
}
