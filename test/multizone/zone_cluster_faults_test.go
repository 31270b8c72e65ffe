//go:build multizone

package multizone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/test/traffic"
)

// linked are the servers of a zone of three, with a link before the port at which the others
// reach each.
type linked struct {
	servers []*process
	links   []*link
}

func newLinkedZone(t *testing.T, global *process) *linked {
	t.Helper()
	z := &linked{}
	for i, name := range []string{"one", "two", "three"} {
		raft := freePort(t)
		l := newLink(t, raft)
		var first *process
		if i > 0 {
			first = z.servers[0]
		}
		p := zoneServer(t, global, first, name, "--raft-addr", raft, "--advertise-raft-addr", l.address(), "--dataplane-grace", "20s").start()
		z.servers, z.links = append(z.servers, p), append(z.links, l)
		for _, l := range z.links { // before it calls another, and another it
			for _, p := range z.servers {
				l.caller(p.name, p.cmd.Process.Pid)
			}
		}
		p.ready()
	}
	z.servers[0].awaitVoters("one", "two", "three")
	return z
}

// cut has a server and the others not reach each other, and returns what heals that.
func (z *linked) cut(at int, how trouble) (heal func()) {
	for i, p := range z.servers {
		if i != at {
			z.links[at].disturb(p.name, how)
			z.links[i].disturb(z.servers[at].name, how)
		}
	}
	return func() { z.cut(at, trouble{}) }
}

// A server that is cut off from the others sends its proxies to them and takes none, and
// nothing is lost, doubled or taken back when it returns: the registrations that moved, what
// was written and a token that was revoked meanwhile.
func TestAServerOfAZoneIsCutOff(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	z := newLinkedZone(t, global)
	one, two, three := z.servers[0], z.servers[1], z.servers[2]
	token := func(name string) string {
		return strings.TrimSpace(two.must("generate", "dataplane-token", "--mesh", "default", "--name", name, "--tag", "kuma.io/service=web", "--valid-for", "1h"))
	}
	dataplane := func(name string) string {
		return fmt.Sprintf("{type: Dataplane, mesh: default, name: %s, networking: {address: 127.0.0.1, inbound: [{port: 1, tags: {kuma.io/service: web}}]}}", name)
	}
	startAgentAt(t, z.servers, dataplane("web-1"), token("web-1")).configuration()
	startAgentAt(t, []*process{one}, dataplane("web-2"), token("web-2")).configuration()
	startAgentAt(t, []*process{two}, dataplane("web-3"), token("web-3")).configuration()
	bob := strings.TrimSpace(three.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	began := two.registration("web-1")
	require.Equal(t, "one", began.at())
	require.Equal(t, "one", one.leader(z.servers...).name, "that it leads is what makes it hard")

	heal := z.cut(0, trouble{dropRequests: true, dropResponses: true})
	two.await("the registration to move", func() bool {
		at := two.registration("web-1").at()
		return at == "two" || at == "three"
	})
	moved := two.registration("web-1")
	require.Equal(t, began.CreationTime, moved.CreationTime, "it was not removed meanwhile")
	require.Equal(t, began.Version+1, moved.Version, "it was written once")
	r := one.commandWith(dataplane("by-hand"), "apply", "-f", "-", "--timeout", "1s")
	require.NotZero(t, r.code, "it writes nothing")
	two.mustWith(dataplane("meanwhile"), "apply", "-f", "-")
	var revoked string
	for _, issued := range two.tokens("user") {
		if issued.Subject == "bob" {
			revoked = issued.ID
		}
	}
	two.must("tokens", "revoke", revoked)
	// web-2 has nowhere else to go, and is looked after by the leader, which removes it when the
	// grace period is over.
	kept := two.registration("web-2")
	require.Equal(t, "one", kept.at())

	heal()
	one.await("it to have what was written", func() bool { return one.registration("meanwhile") != nil })
	require.Nil(t, one.registration("by-hand"))
	one.await("the token to be refused", func() bool { return meridian(t, one.as(bob), "", "get", "meshes").code == 4 })
	for _, p := range z.servers {
		p.await("all proxies to be online", func() bool {
			states := p.dataplanes()
			return states["web-1"].State == "online" && states["web-2"].State == "online" && states["web-3"].State == "online"
		})
		require.Equal(t, moved, p.registration("web-1"), "it did not come back to the server that was cut off")
		require.Equal(t, kept.CreationTime, p.registration("web-2").CreationTime, "it was never removed")
		require.Equal(t, "one", p.registration("web-2").at())
		require.Equal(t, "two", p.registration("web-3").at())
	}
	global.await("the global to show three instances", func() bool { return global.instances("east") == 3 })
}

// The state of a zone of three is saved at one server and restored at another, on all: what
// operators wrote is as it was saved, and proxies notice nothing. Tokens that were revoked
// since stay so, and those issued since stay valid.
func TestAZoneOfThreeIsRestored(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	all := newZoneCluster(t, global)
	one, two, three := all[0], all[1], all[2]
	two.mustWith("{type: Secret, mesh: default, name: saved, data: aGVsbG8=}", "apply", "-f", "-")
	bob := strings.TrimSpace(one.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	path := three.save("zone.snapshot")
	require.Contains(t, three.must("cluster", "snapshot", "inspect", path), "Zone:       east\n")

	two.mustWith("{type: Secret, mesh: default, name: since, data: aGVsbG8=}", "apply", "-f", "-")
	two.must("delete", "secret", "saved")
	two.must("tokens", "revoke", two.tokens("user")[0].ID)
	token := strings.TrimSpace(two.must("generate", "dataplane-token", "--mesh", "default", "--name", "web-1", "--tag", "kuma.io/service=web", "--valid-for", "1h"))
	startAgentAt(t, []*process{two, three}, webDataplane, token).configuration()
	began := one.registration("web-1")

	r := global.command("cluster", "snapshot", "restore", path, "--yes")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "the snapshot is of zone east")
	r = two.command("cluster", "snapshot", "restore", global.save("global.snapshot"), "--yes")
	require.Equal(t, 2, r.code)
	one.must("cluster", "snapshot", "restore", path, "--yes", "--zone", "east")
	for _, p := range all {
		p.await("what was saved to be there", func() bool {
			return strings.Contains(p.must("get", "secrets", "-o", "name"), "Secret/saved")
		})
		require.NotContains(t, p.must("get", "secrets", "-o", "name"), "since")
		require.Equal(t, began, p.registration("web-1"), "it is registered as before")
		require.Equal(t, 4, meridian(t, p.as(bob), "", "get", "meshes").code)
	}
	require.Equal(t, "online", two.dataplanes()["web-1"].State)
	two.kill()
	one.await("its token to be accepted by another server", func() bool { return one.registration("web-1").at() == "three" })
	require.Equal(t, began.CreationTime, one.registration("web-1").CreationTime)
}

// No request between Envoys at three servers of a zone fails, with certificates of any of
// them, while the mesh's authority is replaced by a server that has none of them, and while
// all servers are restarted, one after the other. The audit log tells of all of them.
func TestNoRequestBetweenSidecarsOfThreeServersFails(t *testing.T) {
	t.Parallel()
	if os.Getenv("ENVOY_BIN") == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	global := newGlobal(t).start().ready()
	all := newZoneCluster(t, global)
	one, two, three := all[0], all[1], all[2]
	// The leader has none of the proxies. It knows of all certificates since it leads.
	one.must("cluster", "transfer-leadership", "three")
	one.await("another leader", func() bool { return one.leader(all...) == three })
	mtls := func(backend string) {
		global.mustWith(fmt.Sprintf(`{type: Mesh, name: default, mtls: {enabledBackend: %s, backends: [{name: %s, type: builtin}]}}`, backend, backend), "apply", "-f", "-")
	}
	mtls("ca-1")
	global.mustWith(`{type: MeshTrafficPermission, mesh: default, name: everyone, spec: {targetRef: {kind: Mesh}, from: [{targetRef: {kind: Mesh}, default: {action: ALLOW}}]}}`, "apply", "-f", "-")
	s := newSidecars(t, global, one)
	at := func(servers ...*process) *sidecars {
		s.zone, s.addresses = servers[0], nil
		for _, p := range servers {
			s.addresses = append(s.addresses, p.addresses()["grpc"])
		}
		return s
	}
	backends := []*replica{at(one, two, three).replica("backend-1"), at(two, three, one).replica("backend-2")}
	web, urls := at(two, one, three).caller()
	s.zone = three
	l := traffic.New(t)
	for _, request := range []func() error{
		traffic.Post(urls["http"], false, false), traffic.Post(urls["http2"], true, false), traffic.Call(t, urls["grpc"]),
	} {
		one.await("the sidecars to be there", func() bool { return request() == nil })
		l.Worker(request)
	}
	for _, b := range backends {
		b.takes(l)
	}
	require.Equal(t, "one", one.registration("backend-1").at())
	require.Equal(t, "two", one.registration("backend-2").at())

	issuer := web.presents().AuthorityKeyId
	mtls("ca-2")
	three.await("the leader to have the new authority sign", func() bool { return strings.Contains(three.log.String(), "signing=ca-2") })
	s.renew(backends[0].sidecar, backends[1].sidecar, web)
	for _, c := range []*sidecar{backends[0].sidecar, backends[1].sidecar, web} {
		require.NotEqual(t, issuer, c.presents().AuthorityKeyId)
	}
	l.Pass(20)
	for _, p := range all {
		require.Zero(t, p.stop())
		l.Pass(20)
		p.start().ready()
		one.awaitVoters("one", "two", "three")
	}
	for _, b := range backends {
		b.takes(l)
	}
	l.Stop()
	servers := map[string]bool{}
	for _, item := range global.listed().Items {
		if item.Zone == "east" {
			servers[item.Server] = true
		}
	}
	require.Equal(t, map[string]bool{"one": true, "two": true, "three": true}, servers)
	require.Empty(t, two.listed("--kind", "dataplane").Incomplete)
}

// A token of the zone is replaced where it was given, and the servers that have it from that
// one follow, over the end of the one before.
func TestServersFollowTheWayToTheGlobal(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	all := newZoneCluster(t, global)
	global.await("the global to show three instances", func() bool { return global.instances("east") == 3 })
	bundle := ""
	for i, arg := range all[0].args {
		if arg == "--join-bundle" {
			bundle = all[0].args[i+1]
		}
	}
	before := global.tokens("zone")[0].ID
	next := writeZoneBundle(t, global, filepath.Join(t.TempDir(), "next"), "1h")
	require.NoError(t, os.Rename(next, bundle))
	global.must("tokens", "revoke", before)
	global.await("all to be connected again", func() bool {
		return global.instances("east") == 3 && global.zones()["east"].State == "in-sync"
	})
	require.Zero(t, all[1].stop())
	for i, arg := range all[1].args {
		if arg == "--server-bundle" {
			all[1].args = append(all[1].args[:i], all[1].args[i+2:]...)
			break
		}
	}
	all[1].start().ready()
	global.await("it to be connected without any bundle", func() bool { return global.instances("east") == 3 })
}
