//go:build multizone

package multizone

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/clientconfig"
)

// newZoneAt returns a zone that goes to some servers only and has not been
// started.
func newZoneAt(t *testing.T, name string, servers []*process, args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	write := func(file, text string) string {
		path := filepath.Join(dir, file)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.addresses()["grpc"])
	}
	return newProcess(t, "meridian-zone", name, append([]string{
		"--name", name, "--global-addr", strings.Join(addresses, ","), "--learn-global-addrs=false",
		"--global-ca", write("ca.pem", string(servers[0].file("pki/ca.pem"))),
		"--token-file", write("token", servers[0].must("generate", "zone-token", "--zone", name, "--valid-for", "1h")),
		"--grpc-addr", anyPort, "--http-addr", anyPort,
	}, args...)...)
}

// zoneServers returns which server each zone is connected to, in the eyes of p.
func (p *process) zoneServers() map[string][]string {
	p.t.Helper()
	var list struct {
		Items []struct {
			Name, State string
			Servers     []string
		}
	}
	require.NoError(p.t, json.Unmarshal([]byte(p.must("zones", "-o", "json")), &list))
	at := map[string][]string{}
	for _, z := range list.Items {
		if z.State == "in-sync" {
			at[z.Name] = z.Servers
		}
	}
	return at
}

// freeze pauses a process like a hanging machine, and returns what resumes it.
func (p *process) freeze() (thaw func()) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	return func() { require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT)) }
}

// scrape returns the metrics of a server.
func (p *process) scrape() string {
	p.t.Helper()
	response, err := http.Get("http://" + p.addresses()["http"] + "/metrics")
	require.NoError(p.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(p.t, err)
	return string(body)
}

const authPolicyOfARoute = `
type: Gateway
mesh: default
name: edge
gatewayClassName: envoy
listeners:
- {name: http, port: 80, protocol: HTTP}
---
type: HTTPRoute
mesh: default
name: shop
parentRefs: [{name: edge}]
rules:
- backendRefs: [{name: shop, port: 80}]
---
type: AuthPolicy
mesh: default
name: keys
targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop}
rules:
  authentication:
    a: {apiKey: {}}
`

// §7.4: zones are connected to different servers, and every server
// shows them all, waits for them all and asks them all.
func TestZonesOnDifferentServers(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	east := newZoneAt(t, "east", servers[0:1], "--audit-also", filepath.Join(t.TempDir(), "audit.log")).start().ready()
	west := newZoneAt(t, "west", servers[1:2]).start().ready()
	east.mustWith(webDataplane, "apply", "-f", "-")
	west.mustWith(strings.ReplaceAll(webDataplane, "web-1", "web-2"), "apply", "-f", "-")
	for i, p := range servers {
		p.await("both zones", func() bool {
			at := p.zoneServers()
			return slices.Equal(at["east"], []string{"one"}) && slices.Equal(at["west"], []string{"two"})
		})
		written := revisionOf(t, p.mustWith(timeout("t", "backend", fmt.Sprintf("%ds", i+1)), "apply", "-f", "-", "--wait=zones"))
		for _, zone := range p.zones() {
			require.Equal(t, "in-sync", zone.State, p.name)
			require.GreaterOrEqual(t, zone.Revision, written, p.name)
		}
		for _, z := range []struct {
			zone      *process
			dataplane string
		}{{east, "web-1"}, {west, "web-2"}} {
			answer := z.zone.must("inspect", "dataplane", z.dataplane, "-o", "json")
			conf, _, asOf := confOf(t, answer, "Timeout")
			require.JSONEq(t, fmt.Sprintf(`{"connectTimeout":"%ds"}`, i+1), conf)
			require.Equal(t, written, asOf)
			require.Equal(t, answer, p.must("inspect", "dataplane", z.dataplane, "--zone", z.zone.name, "-o", "json"), p.name)
			require.Equal(t, answer, p.must("inspect", "dataplane", z.dataplane, "-o", "json"), p.name)
		}
		require.Contains(t, p.must("dataplanes"), "web-1")
		require.Contains(t, p.must("dataplanes"), "web-2")
		require.Contains(t, p.must("why", "web-2", "Timeout"), "t")
		require.Equal(t, 1, p.command("inspect", "dataplane", "web-2", "--zone", "east").code, "it is in the other zone")
	}

	// The context of a server lists all servers, and one of the user's learns them.
	learned := []string{servers[1].addresses()["grpc"], servers[2].addresses()["grpc"]}
	slices.Sort(learned)
	own := filepath.Join(servers[0].dir, "admin.yaml")
	servers[0].await("the server's own context to list all servers", func() bool {
		contexts, err := clientconfig.LoadContexts(own)
		require.NoError(t, err)
		return slices.Equal(learned, contexts.ControlPlanes[0].Learned)
	})
	contexts, err := clientconfig.LoadContexts(own)
	require.NoError(t, err)
	contexts.ControlPlanes[0].Learned = nil
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, contexts.Save(config))
	servers[0].await("the context to list all servers", func() bool {
		require.Zero(t, meridian(t, config, "", "zones").code)
		contexts, err := clientconfig.LoadContexts(config)
		require.NoError(t, err)
		return slices.Equal(learned, contexts.ControlPlanes[0].Learned)
	})

	// Every metric that an alert is about is there, once there is a policy of a route;
	// those of the CAs of meshes are in TestStockGRPCIsPermitted.
	servers[0].mustWith(authPolicyOfARoute, "apply", "-f", "-")
	alerts, err := os.ReadFile("../../deploy/alerts/meridian.yaml")
	require.NoError(t, err)
	var scraped strings.Builder
	for _, p := range append(slices.Clone(servers), east, west) {
		scraped.WriteString(p.scrape())
	}
	for _, name := range regexp.MustCompile(`\bmeridian_[a-z_]+`).FindAllString(string(alerts), -1) {
		if strings.HasPrefix(name, "meridian_mesh_ca_") {
			continue
		}
		require.Regexp(t, `(?m)^`+name+`[ {]`, scraped.String())
	}

	// A zone of another server that does not answer is waited for, and named.
	thaw := west.freeze()
	r := servers[2].commandWith(timeout("t", "backend", "9s"), "apply", "-f", "-", "--wait=zones", "--timeout", "4s")
	require.Equal(t, 6, r.code, r.stderr)
	require.Contains(t, r.stderr, "zone west is")
	thaw()
	servers[2].mustWith(timeout("t", "backend", "10s"), "apply", "-f", "-", "--wait=zones")

	// So is a server that does not answer.
	thaw = servers[1].freeze()
	r = servers[0].command("zones")
	require.Zero(t, r.code)
	require.Contains(t, r.stderr, "server two could not be asked for its zones")
	require.Len(t, servers[0].zoneServers(), 1, "east is known")
	servers[0].must("inspect", "dataplane", "web-1", "--zone", "east")
	r = servers[0].command("inspect", "dataplane", "web-2")
	require.NotZero(t, r.code)
	thaw()
	servers[0].await("west to be back", func() bool { return len(servers[0].zoneServers()) == 2 })
}

// The servers are operated through any of them, by administrators only.
func TestServersAreOperated(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	leads := func(name string) {
		t.Helper()
		for _, p := range servers {
			p.await(name+" to lead", func() bool {
				r := p.command("cluster", "leader", "-o", "name")
				return r.code == 0 && r.stdout == name+"\n"
			})
		}
	}
	for i, to := range []string{"two", "three", "one", "one"} {
		require.Equal(t, to+" leads\n", servers[i%3].must("cluster", "transfer-leadership", to))
		leads(to)
		writesAndReads(t, servers[(i+1)%3], servers, fmt.Sprintf("led-by-%s-%d", to, i))
	}
	require.NotEqual(t, "one leads\n", servers[0].must("cluster", "transfer-leadership"))
	r := servers[0].command("cluster", "transfer-leadership", "tow")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, `no server of this global is called "tow"; did you mean "two"?`)

	// Users may look and nothing else; what they tried is on record.
	bob := servers[1].as(strings.TrimSpace(servers[0].must("generate", "user-token", "--name", "bob", "--valid-for", "1h")))
	require.Zero(t, meridian(t, bob, "", "cluster", "members").code)
	require.Zero(t, meridian(t, bob, "", "cluster", "leader").code)
	for _, args := range [][]string{{"transfer-leadership", "two"}, {"remove", "two"}} {
		r := meridian(t, bob, "", append([]string{"cluster"}, args...)...)
		require.Equal(t, 4, r.code)
		require.True(t, strings.HasPrefix(r.stderr, `Error: Access Denied (user "bob/mesh-system:authenticated" cannot access the resource)`), r.stderr)
		require.Contains(t, r.stderr, "missing: membership of group mesh-system:admin")
	}
	servers[1].await("the denials to be on record", func() bool {
		record := string(servers[1].file("audit/denied.log"))
		return strings.Contains(record, `"decision":"denied"`) && strings.Contains(record, `"action":"remove","kind":"server","name":"two"`)
	})

	// A server that runs is not removed by accident, nor one that is needed.
	r = servers[0].command("cluster", "remove", "three")
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stderr, "three is running: stop it first, or remove it all the same with --force")
	leader := servers[0].leader(servers...)
	rest := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == leader })
	require.Equal(t, leader.name+" removed\n", rest[0].must("cluster", "remove", leader.name, "--force"))
	require.Equal(t, 1, leader.wait(), "it finds out and stops")
	require.Contains(t, leader.log.String(), "was removed from the cluster")
	rest[1].awaitVoters(rest[0].name, rest[1].name)
	writesAndReads(t, rest[1], rest, "of-two")
	r = rest[0].command("cluster", "remove", leader.name)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "there are: "+strings.Join(sorted(rest), ", "))
	require.Contains(t, string(rest[0].file("audit/audit.log")), `"action":"remove","kind":"server","name":"`+leader.name+`"`)

	// Of two, the one that is gone is needed to decide anything.
	rest[1].kill()
	rest[0].await("no leader", func() bool { return rest[0].command("cluster", "leader").code == 5 })
	r = rest[0].command("cluster", "remove", rest[1].name, "--force", "--timeout", "3s")
	require.Contains(t, []int{5, 6}, r.code, r.stderr)
	r = rest[0].command("cluster", "leader")
	require.Contains(t, r.stderr, "there is no leader: of 2 servers with a vote 1 answer, and it takes 2")
	require.Contains(t, r.stderr, rest[1].name+" at "+rest[1].members()[rest[1].name].Raft)
}

func sorted(servers []*process) []string {
	var names []string
	for _, p := range servers {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}

// A server that is cut off from the others, or gone, does not keep its zones:
// they go where the newest state is, and lose nothing.
func TestZonesLeaveAServerThatIsNotCurrent(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	east := newZoneAt(t, "east", servers).start().ready()
	at := func(p *process) (found *process) {
		p.await("east to be connected", func() bool {
			for _, s := range servers {
				if slices.Equal(p.zoneServers()["east"], []string{s.name}) {
					found = s
					return true
				}
			}
			return false
		})
		return found
	}
	first := at(servers[0])
	others := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == first })

	// Its server hangs.
	thaw := first.freeze()
	others[0].await("east to go to another server", func() bool {
		s := others[0].zoneServers()["east"]
		return len(s) == 1 && s[0] != first.name
	})
	others[0].mustWith(timeout("hangs", "backend", "5s"), "apply", "-f", "-", "--timeout", "40s", "--wait=zones")
	require.Contains(t, east.must("get", "timeouts", "-o", "name"), "hangs")
	thaw()
	writesAndReads(t, first, servers, "thawed")

	// Two of three are gone: the one that is left says so and lets the zone go,
	// which serves what it has, and those who watch.
	left := at(servers[0])
	watch := watchAs(t, filepath.Join(left.dir, "admin.yaml"))
	for _, p := range servers {
		if p != left {
			p.kill()
		}
	}
	left.await("it to let its zones go", func() bool {
		return strings.Contains(left.readyz(t), "cut off from the leader")
	})
	require.Contains(t, left.scrape(), "\nmeridian_current 0\n")
	east.await("the zone to be told", func() bool {
		return strings.Contains(east.log.String(), "it has had no touch with a leader")
	})
	require.Contains(t, east.must("get", "timeouts", "-o", "name"), "hangs")
	for _, p := range servers {
		if p != left {
			p.start().ready()
			break
		}
	}
	left.mustWith(timeout("back", "backend", "5s"), "apply", "-f", "-", "--timeout", "40s", "--wait=zones")
	left.await("east to be back", func() bool { return len(left.zoneServers()["east"]) == 1 })
	left.mustWith("{type: Mesh, name: watched}", "apply", "-f", "-")
	left.await("the watch to resume where it was", func() bool {
		select {
		case line := <-watch.lines:
			return strings.Contains(line, "Mesh/watched")
		default:
			return false
		}
	})
	require.Contains(t, east.must("get", "timeouts", "-o", "name"), "back")
}

// A server restarts: its zones go to the others and it serves again, knowing
// where they are.
func TestWaitForZonesAcrossARestart(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	zones := []*process{
		// East was given the address of one server and learns the others.
		newZoneAt(t, "east", servers[:1], "--learn-global-addrs=true").start().ready(),
		newZone(t, servers[2], "west").start().ready(),
	}
	zones[0].await("it to learn where the servers are", func() bool {
		known, _ := os.ReadFile(filepath.Join(zones[0].dir, "global-servers.json"))
		return strings.Contains(string(known), servers[1].addresses()["grpc"]) && strings.Contains(string(known), servers[2].addresses()["grpc"])
	})
	servers[1].withoutBundle()
	servers[2].withoutBundle()
	for i, p := range servers {
		require.Zero(t, p.stop())
		next := servers[(i+1)%3]
		next.await("every zone to be connected elsewhere", func() bool { return len(next.zoneServers()) == 2 })
		p.start().ready()
		name := fmt.Sprintf("after-%d", i)
		p.mustWith(timeout(name, "backend", "5s"), "apply", "-f", "-", "--wait=zones", "--timeout", "40s")
		for _, z := range zones {
			require.Contains(t, z.must("get", "timeouts", "-o", "name"), name)
		}
		require.Len(t, p.zoneServers(), 2)
	}
}

// §6.8: what is revoked on one server ends on every other, at once.
func TestRevocationOnEveryServer(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	east := newZoneAt(t, "east", servers[1:2]).start().ready()
	servers[0].await("east to be connected", func() bool { return len(servers[0].zoneServers()["east"]) == 1 })
	client := referenceClient(t)
	held := strings.TrimSpace(servers[0].must("generate", "dataplane-token", "--tag", "kuma.io/service=web", "--valid-for", "1h"))
	raw := strings.TrimSpace(servers[0].must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	var watches []watching
	for _, p := range servers {
		watches = append(watches, watchAs(t, p.as(raw)))
	}
	for _, w := range watches {
		servers[0].seenBy(w)
	}
	began := time.Now()
	servers[2].must("tokens", "revoke", tokenID(t, raw))
	for i, w := range watches {
		servers[i].await("the watch to end", func() bool {
			select {
			case code := <-w.ended:
				require.Equal(t, 4, code, servers[i].name)
				return true
			case <-w.lines:
			default:
			}
			return false
		})
	}
	t.Logf("watches on three servers ended %s after the command to revoke began", time.Since(began))

	began = time.Now()
	servers[2].mustWith("{type: Zone, name: east, enabled: false}", "apply", "-f", "-")
	servers[0].await("east to be cut off", func() bool { return servers[0].zones()["east"].State == "disabled" })
	east.await("the zone to be told", func() bool { return strings.Contains(east.log.String(), "no longer authorized") })
	t.Logf("the zone was cut off %s after the command to disable it began", time.Since(began))
	servers[2].mustWith("{type: Zone, name: east, enabled: true}", "apply", "-f", "-")
	servers[0].await("east to be connected", func() bool { return len(servers[0].zoneServers()["east"]) == 1 })

	// A zone that is connected to another server, and a proxy of it that lives on a
	// token of the global.
	proxy := connectProxy(t, client, east, "web-1", held)
	proxy.await(1)
	began = time.Now()
	servers[2].must("tokens", "revoke", tokenID(t, held))
	<-proxy.done
	t.Logf("a proxy of a zone was ended %s after the command to revoke began", time.Since(began))
	require.Contains(t, proxy.stderr.String(), "revoked")
	zoneToken := servers[2].tokens("zone")[0].ID
	began = time.Now()
	servers[2].must("tokens", "revoke", zoneToken)
	east.await("the zone to be told", func() bool {
		return strings.Contains(east.log.String(), `no longer authorized: the token was revoked: \"`+zoneToken)
	})
	t.Logf("the zone was cut off %s after the command to revoke its token began", time.Since(began))
}
