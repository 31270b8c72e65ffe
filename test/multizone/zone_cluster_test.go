//go:build multizone

package multizone

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/test/traffic"
)

// zoneServer returns one of several servers of a zone, which has not been started. first is
// the one that lets it in, nil for the first one.
func zoneServer(t *testing.T, global, first *process, name string, args ...string) *process {
	t.Helper()
	args = slices.Concat([]string{
		"--name", "east", "--server-name", name, "--grpc-addr", anyPort, "--http-addr", anyPort,
		"--raft-addr", anyPort, "--gossip-addr", anyPort, "--dataplane-grace", "5s",
	}, args)
	if first != nil { // it has the way to the global from the first
		args = append(args, "--server-bundle", first.serverBundle())
	} else {
		args = append(args, "--join-bundle", writeZoneBundle(t, global, filepath.Join(t.TempDir(), "east.bundle"), "1h"))
	}
	return newProcess(t, "meridian-zone", name, args...)
}

// writeZoneBundle writes a bundle of zone east to a file, and returns that.
func writeZoneBundle(t *testing.T, global *process, path, validFor string) string {
	t.Helper()
	text := global.must("generate", "zone-token", "--zone", "east", "--valid-for", validFor, "--bundle")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// newZoneCluster returns the running servers of a zone of three.
func newZoneCluster(t *testing.T, global *process) []*process {
	t.Helper()
	first := zoneServer(t, global, nil, "one").start().ready()
	second, third := zoneServer(t, global, first, "two").start(), zoneServer(t, global, first, "three").start()
	all := []*process{first, second.ready(), third.ready()}
	first.awaitVoters("one", "two", "three")
	for _, p := range all {
		p.pin()
	}
	return all
}

// instances is how many instances the global shows of a zone.
func (p *process) instances(zone string) int {
	p.t.Helper()
	var listed struct {
		Items []struct {
			Name      string
			Instances json.RawMessage
		} `json:"items"`
	}
	require.NoError(p.t, json.Unmarshal([]byte(p.must("zones", "-o", "json")), &listed))
	for _, z := range listed.Items {
		if z.Name == zone {
			var n int
			if json.Unmarshal(z.Instances, &n) == nil {
				return n
			}
			var all []json.RawMessage
			require.NoError(p.t, json.Unmarshal(z.Instances, &all))
			return len(all)
		}
	}
	return 0
}

// registered is a dataplane as it is stored.
type registered struct {
	CreationTime time.Time         `json:"creationTime"`
	Version      uint64            `json:"version"`
	Labels       map[string]string `json:"labels"`
}

// registration returns what a server of the zone has of a dataplane; nil for nothing.
func (p *process) registration(name string) *registered {
	p.t.Helper()
	r := p.command("get", "dataplane", name, "-o", "json")
	if r.code != 0 {
		return nil
	}
	var got registered
	require.NoError(p.t, json.Unmarshal([]byte(r.stdout), &got), r.stdout)
	return &got
}

// at is the server at which a dataplane is registered.
func (r *registered) at() string {
	if r == nil {
		return ""
	}
	return r.Labels["meridian.io/registered-at"]
}

// startAgentAt runs the agent of a dataplane with the addresses of several servers.
func startAgentAt(t *testing.T, servers []*process, dataplane, token string) *proxyAgent {
	t.Helper()
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = s.addresses()["grpc"]
	}
	return startAgentWith(t, servers[0], dataplane, token, func(bootstrap string) []string {
		return []string{"--grpc-bootstrap", bootstrap, "--drain-time", "1h", "--zone-address", strings.Join(addresses, ",")}
	})
}

// A zone of three servers is one zone to the global and to its proxies. What it owns is on
// all of them; a registration follows its proxy from a server that is killed to another one,
// once, and goes when its proxy and its server do; no call fails while a server is killed,
// and while all are restarted one after the other.
func TestAZoneOfThreeServers(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	all := newZoneCluster(t, global)
	one, two, three := all[0], all[1], all[2]
	global.await("the global to show three instances", func() bool { return global.instances("east") == 3 })
	global.awaitState("east", "in-sync")

	// Every server takes every request; tokens of one are accepted, and revoked, by all.
	two.mustWith("{type: Secret, mesh: default, name: s1, data: aGVsbG8=}", "apply", "-f", "-")
	require.Contains(t, three.must("get", "secrets", "-o", "name"), "Secret/s1")
	require.Equal(t, "one", two.leader(all...).name)
	require.Contains(t, two.must("cluster", "leader"), "one")
	two.must("cluster", "transfer-leadership", "three")
	one.await("another leader", func() bool { return one.leader(all...) == three })
	token := func(name, service string) string {
		return strings.TrimSpace(two.must("generate", "dataplane-token", "--mesh", "default", "--name", name, "--tag", "kuma.io/service="+service, "--valid-for", "1h"))
	}

	listener, err := net.Listen("tcp", anyPort)
	require.NoError(t, err)
	backend := fmt.Sprintf(`{type: Dataplane, mesh: default, name: backend-1, networking: {address: 127.0.0.1, inbound: [
  {port: %d, tags: {kuma.io/service: backend, version: v1}}]}}`, listener.Addr().(*net.TCPAddr).Port)
	web := `{type: Dataplane, mesh: default, name: web-1, networking: {address: 127.0.0.1, inbound: [{port: 1, tags: {kuma.io/service: web}}],
  outbound: [{port: 4001, tags: {kuma.io/service: backend}}]}}`
	server := startAgentAt(t, []*process{three, two, one}, backend, token("backend-1", "backend"))
	client := startAgentAt(t, []*process{three, two, one}, web, token("web-1", "web"))
	serveXDS(t, listener, server.configuration(), "served")
	conn := dialXDS(t, client.configuration(), "xds:///backend")
	one.await("calls to be answered", func() bool {
		got, err := callXDS(conn)
		return err == nil && got == "served"
	})
	require.Equal(t, "three", one.registration("backend-1").at())
	began := one.registration("backend-1")
	for _, p := range all {
		p.await("every server to know the proxies of all", func() bool {
			states := p.dataplanes()
			return states["backend-1"].State == "online" && states["web-1"].State == "online"
		})
	}

	// What proxies do is answered from all servers, whichever is asked.
	far := startAgentAt(t, []*process{one}, strings.ReplaceAll(web, "web-1", "web-0"), token("web-0", "web"))
	_, err = callXDS(dialXDS(t, far.configuration(), "xds:///backend"))
	require.NoError(t, err)
	r := global.commandWith(`{type: TrafficRoute, mesh: default, name: first, sources: [{match: {kuma.io/service: web}}],
  destinations: [{match: {kuma.io/service: backend}}], conf: {destination: {kuma.io/service: backend, version: v1}}}`, "apply", "-f", "-", "--wait=enforced")
	require.Zero(t, r.code, r.stderr)
	require.NotContains(t, r.stderr, "is not known")
	for _, p := range []*process{global, one, two} {
		require.Contains(t, p.must("describe", "traffic-route", "first"), `Enforced=True (AllProxies): 2 of 2 proxies in zone "east"`, p.name)
	}
	for _, p := range all {
		status := p.must("proxy", "status")
		for _, name := range []string{"backend-1", "web-0", "web-1"} {
			require.Contains(t, status, name, p.name)
		}
		require.Contains(t, p.must("inspect", "dataplane", "web-1"), "TrafficRoute  first   rev ", p.name)
	}
	global.must("delete", "traffic-route", "first")

	// A wait that is asked of one server is for the proxies of all.
	more := strings.ReplaceAll(strings.ReplaceAll(backend, "backend-1", "backend-2"), "127.0.0.1", "127.0.0.2")
	require.NoError(t, client.process.Process.Signal(syscall.SIGSTOP)) // it is at three
	r = two.commandWith(more, "apply", "-f", "-", "--wait=enforced", "--timeout", "2s")
	require.Equal(t, 6, r.code, r.stderr)
	require.Contains(t, r.stderr, "web-1 in mesh default: pending")
	require.NotContains(t, r.stderr, "web-0", "that has accepted it")
	require.NoError(t, client.process.Process.Signal(syscall.SIGCONT))
	two.mustWith(strings.ReplaceAll(more, "127.0.0.2", "127.0.0.3"), "apply", "-f", "-", "--wait=enforced")
	two.must("delete", "dataplane", "backend-2")
	require.Contains(t, one.command("proxy", "status", "web-1").stdout, "SYNCED")

	load := traffic.New(t)
	load.Worker(func() error {
		_, err := callXDS(conn)
		return err
	})
	// The server that leads, and has the proxy, is killed.
	load.Pass(20)
	three.kill()
	one.await("the registration to move", func() bool {
		at := one.registration("backend-1").at()
		return at == "one" || at == "two"
	})
	moved := one.registration("backend-1")
	require.Equal(t, began.CreationTime, moved.CreationTime, "it was not removed meanwhile")
	require.Equal(t, began.Version+1, moved.Version, "it was written once")
	load.Pass(20)
	// It gets changes from the other one.
	one.await("the registration of the caller to move", func() bool { return one.registration("web-1").at() == "two" })
	global.mustWith(`{type: TrafficRoute, mesh: default, name: to-backend, sources: [{match: {kuma.io/service: web}}],
  destinations: [{match: {kuma.io/service: backend}}], conf: {destination: {kuma.io/service: backend, version: v1}}}`, "apply", "-f", "-")
	two.await("the change to be accepted", func() bool {
		return strings.Contains(two.must("inspect", "dataplane", "web-1"), "TrafficRoute  to-backend  rev ")
	})
	three.start().ready()
	one.awaitVoters("one", "two", "three")

	// All of them are restarted, one after the other.
	for _, p := range all {
		require.Zero(t, p.stop())
		load.Pass(20)
		p.start().ready()
		one.awaitVoters("one", "two", "three")
		global.await("the global to show three instances", func() bool { return global.instances("east") == 3 })
	}
	load.Pass(20)
	load.Stop()
	require.Equal(t, began.CreationTime, one.registration("backend-1").CreationTime, "it was never removed")

	// A proxy that dies with its server leaves nothing, and the server is replaced.
	lost := startAgentAt(t, []*process{two}, strings.ReplaceAll(web, "web-1", "web-2"), token("web-2", "web"))
	lost.configuration()
	require.Equal(t, "two", one.registration("web-2").at())
	two.kill()
	require.NoError(t, lost.process.Process.Kill())
	global.await("the global to show that a server is away", func() bool { return strings.Contains(global.must("zones"), " 2 of 3 ") })
	one.await("the registration to be removed", func() bool { return one.registration("web-2") == nil })
	one.must("cluster", "remove", "two")
	four := zoneServer(t, global, one, "four").start().ready()
	require.NotContains(t, one.members(), "two")
	require.Contains(t, one.members(), "four")
	four.await("the new server to have everything", func() bool {
		return four.registration("backend-1") != nil && four.dataplanes()["web-1"].State == "online"
	})
	global.await("the global to show three instances", func() bool { return global.instances("east") == 3 })
	require.NotContains(t, global.must("zones"), " of ", "the lost server was removed")
	got, err := callXDS(conn)
	require.NoError(t, err)
	require.Equal(t, "served", got)
}
