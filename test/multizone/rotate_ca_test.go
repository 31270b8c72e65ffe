//go:build multizone

package multizone

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The authority of a global is replaced while clients write and a zone follows:
// every request opens a connection of its own and none fails. A step is refused
// while a server or a zone is missing, and one that is killed continues from where
// it was.
func TestRotateCA(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	first, two := servers[0], servers[1]
	east := newZone(t, first, "east").start().ready()
	first.awaitState("east", "in-sync")
	admin, err := os.ReadFile(filepath.Join(first.dir, "admin.yaml"))
	require.NoError(t, err)
	copied := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, admin, 0o600))
		return path
	}
	idle, busy := copied("idle.yaml"), copied("busy.yaml")
	oldCA, err := os.ReadFile(filepath.Join(first.dir, "pki", "ca.pem"))
	require.NoError(t, err)
	oldKey, err := os.ReadFile(filepath.Join(first.dir, "pki", "ca-key.pem"))
	require.NoError(t, err)

	stop := make(chan struct{})
	var traffic sync.WaitGroup
	failures := make(chan string, 1)
	requests := 0
	traffic.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			requests++
			if r := meridian(t, busy, timeout("busy", "backend", "1s"), "apply", "-f", "-"); r.code != 0 {
				failures <- r.stderr
				return
			}
			select { // the processes of the test share two processors
			case <-stop:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	})

	// Two is killed: the switch is refused, and names it.
	require.Contains(t, first.must("cluster", "rotate-ca", "status"), "has not been replaced")
	require.Contains(t, first.command("cluster", "rotate-ca", "switch").stderr, "has not begun")
	require.Contains(t, first.must("cluster", "rotate-ca", "start"), "rotate-ca switch")
	two.kill()
	refused := first.command("cluster", "rotate-ca", "switch")
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "server two")
	two.start().ready()

	require.Contains(t, first.must("cluster", "rotate-ca", "switch"), "rotate-ca finish")
	east.kill()
	two.kill()
	two.start().ready()
	first.await("the zone to be missed", func() bool {
		refused = first.command("cluster", "rotate-ca", "finish")
		return refused.code != 0 && strings.Contains(refused.stderr, "zone east")
	})
	require.NotContains(t, first.must("get", "global-secret", "certificate-authority", "-o", "yaml"), "data:")
	require.Zero(t, meridian(t, idle, "", "cluster", "members", "--ca-cert-file", filepath.Join(first.dir, "pki", "ca.pem")).code, "who knows the old authority only")
	east.start().ready()
	first.awaitState("east", "in-sync")
	first.await("the end", func() bool {
		r := first.command("cluster", "rotate-ca", "finish")
		return r.code == 0 && strings.Contains(r.stdout, "the only one")
	})
	writesAndReads(t, two, servers, "rotated")
	east.await("the zone to follow", func() bool { return strings.Contains(east.must("get", "meshes", "-o", "name"), "Mesh/rotated") })

	close(stop)
	traffic.Wait()
	select {
	case failure := <-failures:
		require.Fail(t, "a request failed", failure)
	default:
	}
	require.Greater(t, requests, 5)
	require.Contains(t, meridian(t, idle, "", "zones").stderr, "not signed by the CA", "the old authority is trusted no more")
	for _, p := range append(servers, east) {
		for _, name := range []string{"pki/ca.pem", "pki/ca-key.pem", "pki/rotation.json", "global-ca.json", "admin.yaml"} {
			data, err := os.ReadFile(filepath.Join(p.dir, name))
			if err != nil || p == east && strings.HasPrefix(name, "pki") || p == east && name == "admin.yaml" {
				continue
			}
			require.False(t, bytes.Contains(data, bytes.TrimSpace(oldKey)), "%s %s", p.name, name)
			require.False(t, bytes.Contains(data, bytes.TrimSpace(oldCA)), "%s %s", p.name, name)
		}
	}
	for _, p := range servers {
		require.NoFileExists(t, filepath.Join(p.dir, "pki", "rotation.json"))
	}
	// A server that joins now is one of the new authority.
	two.kill()
	require.NoError(t, os.RemoveAll(two.dir))
	two.withoutBundle()
	two.args = append(two.args, "--join-bundle", first.serverBundle())
	two.start().ready()
	writesAndReads(t, two, servers, "joined")
}

// Restoring a backup of before a rotation leaves it in the step it is in.
func TestRotateCAOutlivesARestore(t *testing.T) {
	t.Parallel()
	global := newProcess(t, "meridian-global", "one", loopback("one")...).start().ready()
	before := global.save("before.snapshot")
	global.must("cluster", "rotate-ca", "start")
	begun := global.save("begun.snapshot")
	global.must("cluster", "snapshot", "restore", before, "--yes", "--drop-revocations")
	refused := global.command("delete", "global-secret", "certificate-authority")
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "which has not finished")
	require.Contains(t, global.must("cluster", "rotate-ca", "switch"), "rotate-ca finish")
	global.must("cluster", "snapshot", "restore", begun, "--yes")
	require.Contains(t, global.must("cluster", "rotate-ca", "finish"), "the only one")
	global.must("cluster", "snapshot", "restore", begun, "--yes")
	require.Contains(t, global.must("cluster", "rotate-ca", "start"), "rotate-ca switch")
}
