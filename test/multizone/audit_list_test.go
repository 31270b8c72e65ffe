//go:build multizone

package multizone

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
)

// listed is what audit list prints.
type listed struct {
	Items []struct {
		Server, Zone string
		Record       audit.Record
	}
	Incomplete []struct{ Server, Zone, Reason string }
}

func (p *process) listed(args ...string) listed {
	p.t.Helper()
	var out listed
	require.NoError(p.t, json.Unmarshal([]byte(p.must(append([]string{"audit", "list", "-o", "json"}, args...)...)), &out))
	return out
}

// An administrator finds five attempts with a bad token among a thousand other
// refusals, sees the records of all servers, and what was done to a log.
func TestAuditLogUnderAttack(t *testing.T) {
	also := filepath.Join(t.TempDir(), "also.log")
	global := newGlobal(t, "--localhost-is-admin=false", "--audit-required", "--audit-also", also).start().ready()
	east := newZone(t, global, "east").start().ready()
	global.awaitState("east", "in-sync")
	global.mustWith(adminsOnly, "apply", "-f", "-")
	bob := strings.TrimSpace(global.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	global.mustWith("{type: Mesh, name: made}", "apply", "-f", "-")

	client := meridianv1.NewAdminServiceClient(global.dial())
	var flood errgroup.Group
	flood.SetLimit(32)
	for i := range 1000 {
		flood.Go(func() error {
			_, err := client.Get(t.Context(), &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: "GlobalSecret", Name: fmt.Sprint("s-", i)}})
			if err == nil {
				return fmt.Errorf("a secret was read")
			}
			return nil
		})
	}
	require.NoError(t, flood.Wait())
	for range 5 {
		require.Equal(t, 4, meridian(t, global.as("not.a.token"), "", "get", "meshes").code)
	}
	require.Equal(t, 4, meridian(t, global.as(bob), "{type: Mesh, name: bobs}", "apply", "-f", "-").code)
	require.Equal(t, 4, meridian(t, global.as(bob), "", "audit", "list").code, "only administrators read it")
	require.Equal(t, 4, meridian(t, east.as("not.a.token"), "", "get", "meshes").code)

	global.await("every attempt to be on record", func() bool {
		attempts := uint64(0)
		for _, item := range global.listed("--verdict", "refused", "--since", "1h").Items {
			if item.Zone == "" && item.Record.Rule == "TOKEN_REFUSED" {
				attempts += 1 + item.Record.Repeated
			}
		}
		return attempts >= 5
	})
	found := global.listed()
	require.Empty(t, found.Incomplete)
	for i, item := range found.Items[1:] {
		require.False(t, item.Record.Time.Before(found.Items[i].Record.Time), "oldest first")
	}
	zones := map[string]bool{}
	for _, item := range found.Items {
		zones[item.Zone] = true
	}
	require.Equal(t, map[string]bool{"": true, "east": true}, zones)
	made := global.listed("--kind", "mesh", "--name", "made", "--verdict", "allowed")
	require.Len(t, made.Items, 1)
	require.Equal(t, "admin", made.Items[0].Record.Who.Name)
	require.Len(t, global.listed("--user", "bob", "--name", "bobs").Items, 1)
	require.Contains(t, global.must("audit", "list", "--user", "bob"), "Access Denied")

	require.Zero(t, east.stop())
	global.await("the zone to be missed", func() bool { return len(global.listed("--user", "bob").Incomplete) == 1 })
	require.Zero(t, global.stop())

	// The files are signed, and what is done to them is found.
	dir, ca := filepath.Join(global.dir, "audit"), filepath.Join(global.dir, "pki", "ca.pem")
	r := global.command("audit", "verify", "--ca", ca, dir)
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Zero(t, global.command("audit", "verify", also).code)
	r = global.command("audit", "verify", "--ca", filepath.Join(east.dir, "pki", "ca.pem"), dir)
	require.Equal(t, 1, r.code)
	refused := filepath.Join(dir, "refused.log")
	lines := strings.SplitAfter(string(global.fileAt(refused)), "\n")
	require.NoError(t, os.WriteFile(refused, []byte(strings.Join(lines[:1], "")), 0o600))
	r = global.command("audit", "verify", dir)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "missing at the end, by the checkpoint")
}
