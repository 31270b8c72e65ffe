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
)

// clusterInfo is what `snapshot inspect`, `snapshot restore` and `recover` say of
// a cluster.
type clusterInfo struct {
	ClusterID                               string
	Incarnation, Revision, Saved, Resources uint64
	NextIncarnation, LastEntry, LastTerm    uint64
	Alone, Recovered                        bool
}

func infoOf(t *testing.T, document string) (info clusterInfo) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(document), &info))
	return info
}

// save saves the state through a server.
func (p *process) save(name string) (path string) {
	p.t.Helper()
	path = filepath.Join(p.t.TempDir(), name)
	p.must("cluster", "snapshot", "save", path)
	return path
}

// meshes are the names of those that a server shows.
func (p *process) meshes() string { return p.must("get", "meshes", "-o", "name") }

// A state is saved through one server and restored through another: it is in
// effect on all of them and in the zones, under a new incarnation, and who was
// told what is on record.
func TestSnapshotAndRestore(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	east := newZone(t, servers[0], "east").start().ready()
	servers[0].mustWith("{type: Mesh, name: saved}\n---\n"+timeout("t", "backend", "1s"), "apply", "-f", "-", "--wait=zones")
	east.mustWith(webDataplane, "apply", "-f", "-")
	file := servers[1].save("a.snapshot")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	saved := infoOf(t, servers[0].must("cluster", "snapshot", "inspect", file, "-o", "json"))
	require.EqualValues(t, 1, saved.Incarnation)

	servers[2].mustWith("{type: Mesh, name: later}\n---\n"+timeout("t", "backend", "2s"), "apply", "-f", "-", "--wait=zones")
	raw := strings.TrimSpace(servers[0].must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	bob := servers[1].as(raw)
	for _, args := range [][]string{{"save", filepath.Join(t.TempDir(), "b")}, {"restore", file, "--yes"}} {
		r := meridian(t, bob, "", append([]string{"cluster", "snapshot"}, args...)...)
		require.Equal(t, 4, r.code, r.stderr)
		require.Contains(t, r.stderr, "missing: membership of group mesh-system:admin")
	}
	servers[0].must("tokens", "revoke", tokenID(t, raw))
	servers[1].await("the revocation", func() bool { return meridian(t, bob, "", "auth", "whoami").code == 4 })
	watch := watchAs(t, filepath.Join(servers[0].dir, "admin.yaml"))
	n := 0
	servers[0].await("the watch to be live", func() bool {
		n++
		servers[0].mustWith(fmt.Sprintf("{type: Mesh, name: seen-%d}", n), "apply", "-f", "-")
		return len(watch.lines) > 0
	})

	restored := infoOf(t, servers[2].must("cluster", "snapshot", "restore", file, "--yes", "-o", "json"))
	require.Equal(t, saved.ClusterID, restored.ClusterID)
	require.EqualValues(t, 2, restored.Incarnation)
	require.Equal(t, saved.Revision, restored.Saved)
	for _, p := range servers {
		require.Equal(t, "Mesh/default\nMesh/saved\n", p.meshes(), p.name)
		require.Equal(t, 4, meridian(t, p.as(raw), "", "auth", "whoami").code, "what was revoked since stays revoked")
	}
	servers[0].await("the watch to end", func() bool {
		select {
		case code := <-watch.ended:
			require.Equal(t, 2, code)
			return true
		case <-watch.lines:
		default:
		}
		return false
	})
	servers[1].awaitState("east", "in-sync")
	conf, _, asOf := confOf(t, east.must("inspect", "dataplane", "web-1", "-o", "json"), "Timeout")
	require.JSONEq(t, `{"connectTimeout":"1s"}`, conf)
	require.GreaterOrEqual(t, asOf, restored.Revision)
	servers[1].mustWith(timeout("t", "backend", "3s"), "apply", "-f", "-", "--wait=zones")
	conf, _, _ = confOf(t, east.must("inspect", "dataplane", "web-1", "-o", "json"), "Timeout")
	require.JSONEq(t, `{"connectTimeout":"3s"}`, conf)

	require.Contains(t, string(servers[1].file("audit/audit.log")), `"action":"save","kind":"snapshot"`)
	require.Contains(t, string(servers[2].file("audit/audit.log")), `"action":"restore","kind":"snapshot","name":"incarnation 2"`)
	for _, p := range servers {
		p.await("the restore to be on record", func() bool {
			return strings.Contains(string(p.file("audit/audit.log")), "the state was replaced by a backup: incarnation 2")
		})
	}
	servers[1].await("the denials to be on record", func() bool {
		return strings.Count(string(servers[1].file("audit/denied.log")), `"method":"meridian.v1.ClusterService/RestoreSnapshot","decision":"denied"`) == 1
	})

	// It stays after a restart of all servers.
	for _, p := range servers {
		if strings.Contains(strings.Join(p.args, " "), "--join-bundle") {
			p.withoutBundle()
		}
		p.kill()
	}
	for _, p := range servers {
		p.start()
	}
	for _, p := range servers {
		p.ready()
		require.Equal(t, "Mesh/default\nMesh/saved\n", p.meshes(), p.name)
	}
}

// A restored state that would take more than a fifth of what a zone holds waits
// for the zone's operator.
func TestRestoreWithinTheWipeGuard(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.pin()
	file := global.save("empty.snapshot")
	east := newZone(t, global, "east").start().ready()
	var many strings.Builder
	for i := range 150 {
		many.WriteString("---\n" + timeout(fmt.Sprintf("t-%03d", i), "backend", "1s"))
	}
	global.mustWith(many.String(), "apply", "-f", "-", "--wait=zones")
	global.must("generate", "zone-token", "--zone", "east", "--valid-for", "1h") // the Zone is not in the file
	zone := global.must("get", "zone", "east", "-o", "yaml")

	global.must("cluster", "snapshot", "restore", file, "--yes")
	global.mustWith(zone, "apply", "-f", "-")
	global.await("the zone to be held", func() bool { return strings.Contains(global.zones()["east"].LastError, "--accept-wipe") })
	require.Equal(t, 150, strings.Count(east.must("get", "timeouts", "-o", "name"), "Timeout/"), "it serves what it has")
	require.Zero(t, east.stop())
	_, accept, _ := strings.Cut(global.zones()["east"].LastError, "--accept-wipe ")
	east.args = append(east.args, "--accept-wipe", strings.Fields(accept)[0])
	east.start().ready()
	global.awaitState("east", "in-sync")
	require.Zero(t, strings.Count(east.must("get", "timeouts", "-o", "name"), "Timeout/"))
}

// Everything is lost but a snapshot and the certificates: a new global takes the
// state over with its identity, and the zones follow it as if it were the old one.
func TestRestoreIntoANewGlobal(t *testing.T) {
	lost := newGlobal(t).start().ready()
	east := newZone(t, lost, "east").start().ready()
	lost.mustWith(timeout("t", "backend", "1s"), "apply", "-f", "-", "--wait=zones")
	for i := range 40 {
		lost.mustWith(fmt.Sprintf("{type: Mesh, name: m-%d}", i), "apply", "-f", "-")
	}
	file := lost.save("last.snapshot")
	saved := infoOf(t, lost.must("cluster", "snapshot", "inspect", file, "-o", "json"))
	lost.mustWith(timeout("t", "backend", "2s")+"\n---\n{type: Mesh, name: lost}", "apply", "-f", "-", "--wait=zones")
	lost.pin()
	lost.kill()

	fresh := newProcess(t, "meridian-global", "fresh", append([]string{"--name", "fresh"}, lost.args...)...)
	require.NoError(t, os.MkdirAll(fresh.dir, 0o700))
	require.NoError(t, os.CopyFS(filepath.Join(fresh.dir, "pki"), os.DirFS(filepath.Join(lost.dir, "pki"))))
	require.NoError(t, os.Chmod(filepath.Join(fresh.dir, "pki"), 0o700))
	fresh.start().ready()
	restored := infoOf(t, fresh.must("cluster", "snapshot", "restore", file, "--yes", "-o", "json"))
	require.Equal(t, saved.ClusterID, restored.ClusterID, "it has become the one that was saved")
	require.EqualValues(t, 2, restored.Incarnation)
	require.Less(t, restored.Revision, saved.Revision, "its own log is shorter")

	fresh.awaitState("east", "in-sync")
	require.NotContains(t, east.must("get", "meshes", "-o", "name"), "lost")
	require.Contains(t, east.must("get", "timeouts", "t", "-o", "yaml"), "1s")
	fresh.mustWith(timeout("t", "backend", "3s"), "apply", "-f", "-", "--wait=zones")
	require.Contains(t, east.must("get", "timeouts", "t", "-o", "yaml"), "3s")
	// The admin token is the saved one, in its file as well.
	fresh.await("the client context to be the restored one", func() bool {
		return strings.Contains(string(fresh.file("admin.yaml")), tokenIn(t, lost))
	})
	require.Contains(t, fresh.must("auth", "whoami"), "admin")
}

// tokenIn is the admin token in a server's context file.
func tokenIn(t *testing.T, p *process) string {
	t.Helper()
	for _, line := range strings.Split(string(p.file("admin.yaml")), "\n") {
		if _, token, ok := strings.Cut(line, "token: "); ok {
			return strings.TrimSpace(token)
		}
	}
	require.Fail(t, "no token")
	return ""
}

// Two of three servers are lost permanently: the third continues alone with all that
// was acknowledged, zones follow, and the others join anew.
func TestRecoverWithOneServer(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	east := newZone(t, servers[2], "east").start().ready()
	servers[0].mustWith(timeout("t", "backend", "1s"), "apply", "-f", "-", "--wait=zones")
	left := servers[2]
	r := left.command("cluster", "recover", "--data-dir", left.dir, "--dry-run")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "A server runs on it.")
	servers[0].kill()
	servers[1].kill()
	left.await("it to have lost its leader", func() bool { return left.command("cluster", "leader").code == 5 })
	require.NotZero(t, left.commandWith("{type: Mesh, name: x}", "apply", "-f", "-", "--timeout", "2s").code)
	require.Zero(t, left.stop())

	found := infoOf(t, left.must("cluster", "recover", "--data-dir", left.dir, "--dry-run", "-o", "json"))
	require.False(t, found.Alone)
	require.EqualValues(t, 2, found.NextIncarnation)
	recovered := infoOf(t, left.must("cluster", "recover", "--data-dir", left.dir, "--confirm", found.ClusterID, "-o", "json"))
	require.True(t, recovered.Recovered)
	left.start().ready() // with the bundle by which it joined, as a unit file might have it
	require.Contains(t, left.must("get", "timeouts", "-o", "name"), "Timeout/t")
	left.awaitState("east", "in-sync")
	left.mustWith(timeout("t", "backend", "2s"), "apply", "-f", "-", "--wait=zones")
	require.Contains(t, east.must("get", "timeouts", "t", "-o", "yaml"), "2s")
	require.Equal(t, []string{"three"}, sorted(byName(left.members())))

	// Started by mistake, the others continue by themselves and do not disturb it.
	servers[1].withoutBundle()
	for _, p := range servers[:2] {
		p.start()
	}
	for _, p := range servers[:2] {
		p.ready()
	}
	servers[0].mustWith("{type: Mesh, name: second-history}", "apply", "-f", "-")
	left.mustWith("{type: Mesh, name: first-history}", "apply", "-f", "-")
	require.NotContains(t, left.meshes(), "second-history")
	require.Equal(t, []string{"three"}, sorted(byName(left.members())))
	require.NotContains(t, east.must("get", "meshes", "-o", "name"), "second-history")

	// Emptied, they join.
	for _, p := range servers[:2] {
		require.Zero(t, p.stop())
		require.NoError(t, os.RemoveAll(p.dir))
	}
	one, two := newServer(t, left, "one").start().ready(), newServer(t, left, "two").start().ready()
	left.awaitVoters("one", "two", "three")
	writesAndReads(t, one, []*process{one, two, left}, "of-three")
	two.awaitState("east", "in-sync")
}

// byName makes processes of names, to be sorted.
func byName(members map[string]member) []*process {
	var out []*process
	for name := range members {
		out = append(out, &process{name: name})
	}
	return out
}
