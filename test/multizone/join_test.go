//go:build multizone

package multizone

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// loopback are the flags of a server that may have any ports.
func loopback(name string) []string {
	return []string{
		"--name", name, "--grpc-addr", anyPort, "--http-addr", anyPort, "--raft-addr", anyPort, "--gossip-addr", anyPort,
	}
}

// serverBundle has a running server issue the bundle of a new one.
func (p *process) serverBundle() string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "server.bundle")
	text := p.must("generate", "server-token", "--valid-for", "1h", "--bundle")
	require.NoError(p.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// newServer returns a server that joins the global of another and has not been
// started.
func newServer(t *testing.T, first *process, name string, args ...string) *process {
	t.Helper()
	return newProcess(t, "meridian-global", name, slices.Concat(loopback(name), []string{"--join-bundle", first.serverBundle()}, args)...)
}

// withoutBundle has a server restart as it should from then on.
func (p *process) withoutBundle() *process {
	p.t.Helper()
	i := slices.Index(p.args, "--join-bundle")
	require.GreaterOrEqual(p.t, i, 0)
	p.args = slices.Delete(p.args, i, i+2)
	return p
}

// member is a row of `meridian cluster members -o json`.
type member struct {
	Name, GRPC, Raft, State string
	Voter                   bool
	AppliedRevision         uint64
}

// members returns the servers as this one knows them, by name.
func (p *process) members() map[string]member {
	p.t.Helper()
	var list []member
	r := p.command("cluster", "members", "-o", "json")
	if r.code != 0 {
		return nil
	}
	require.NoError(p.t, json.Unmarshal([]byte(r.stdout), &list), r.stdout)
	byName := map[string]member{}
	for _, m := range list {
		byName[m.Name] = m
	}
	return byName
}

// awaitVoters waits until the named servers are the members and each has a vote.
func (p *process) awaitVoters(names ...string) {
	p.t.Helper()
	p.await("every server to have a vote: "+strings.Join(names, ", "), func() bool {
		members := p.members()
		for _, name := range names {
			if m := members[name]; !m.Voter || m.State == "unreachable" {
				return false
			}
		}
		return len(members) == len(names)
	})
}

// leader returns the one of the servers that leads, in the eyes of p.
func (p *process) leader(of ...*process) *process {
	p.t.Helper()
	var found *process
	p.await("a leader", func() bool {
		for _, m := range p.members() {
			if m.State != "leader" {
				continue
			}
			for _, s := range of {
				if s.name == m.Name && s.running() {
					found = s
					return true
				}
			}
		}
		return false
	})
	return found
}

// newCluster returns the running servers of a global of three.
func newCluster(t *testing.T) []*process {
	t.Helper()
	first := newProcess(t, "meridian-global", "one", loopback("one")...).start().ready()
	second, third := newServer(t, first, "two").start(), newServer(t, first, "three").start()
	second.ready()
	third.ready()
	first.awaitVoters("one", "two", "three")
	return []*process{first, second, third}
}

// writesAndReads has a server take a write and every one of the others show it.
func writesAndReads(t *testing.T, by *process, all []*process, mesh string) {
	t.Helper()
	by.mustWith("{type: Mesh, name: "+mesh+"}", "apply", "-f", "-")
	for _, p := range all {
		require.Contains(t, p.must("get", "meshes", "-o", "name"), "Mesh/"+mesh, "%s, written at %s", p.name, by.name)
	}
}

// §7.1 on several servers: each takes writes and reads; each restarts
// without its bundle, or with the stale one; the death of the leader stops
// nothing but what is under way.
func TestThreeServersAreOneGlobal(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	for i, p := range servers {
		writesAndReads(t, p, servers, fmt.Sprintf("m-%d", i))
	}
	// The tokens are used up, each by its server.
	used := map[string]string{}
	for _, token := range servers[1].serverTokens() {
		used[token.UsedBy] = token.State
	}
	require.Equal(t, map[string]string{"two": "used", "three": "used"}, used)
	// Every server has the authority and makes its own certificates.
	ca := servers[0].file("pki/ca.pem")
	for _, p := range servers[1:] {
		require.Equal(t, ca, p.file("pki/ca.pem"))
		require.NoFileExists(t, filepath.Join(p.dir, "join.json"))
	}
	// A bundle names all of them, the server that issued it first.
	bundle := string(servers[2].fileAt(servers[2].serverBundle()))
	require.Less(t, strings.Index(bundle, servers[2].addresses()["grpc"]), strings.Index(bundle, servers[0].addresses()["grpc"]))
	require.Contains(t, bundle, servers[1].addresses()["grpc"])

	// One after the other restarts, under the addresses that it had.
	servers[1].withoutBundle()
	for i, p := range servers {
		before := p.addresses()
		require.Zero(t, p.stop(), p.name)
		p.start().ready()
		require.Equal(t, before, p.addresses())
		writesAndReads(t, p, servers, fmt.Sprintf("restarted-%d", i))
	}
	require.Contains(t, servers[2].log.String(), "the join bundle is not used: this server has joined before")

	// The leader dies without warning.
	leader := servers[0].leader(servers...)
	rest := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == leader })
	leader.kill()
	writesAndReads(t, rest[0], rest, "without-the-leader")
	writesAndReads(t, rest[1], rest, "again-without-it")
	leader.start().ready()
	writesAndReads(t, leader, servers, "with-it-again")

	// All of them die at once.
	for _, p := range servers {
		p.kill()
	}
	for _, p := range servers {
		p.start()
	}
	for _, p := range servers {
		p.ready()
	}
	writesAndReads(t, servers[1], servers, "after-all")
	require.Equal(t, 1, strings.Count(servers[0].must("get", "meshes", "-o", "name"), "Mesh/default"))
}

// file returns a file of the data directory.
func (p *process) file(name string) []byte { return p.fileAt(filepath.Join(p.dir, name)) }

func (p *process) fileAt(path string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(p.t, err)
	return data
}

// serverToken is an item of `meridian tokens list server -o json`.
type serverToken struct{ ID, State, UsedBy string }

func (p *process) serverTokens() []serverToken {
	p.t.Helper()
	var list struct{ Items []serverToken }
	require.NoError(p.t, json.Unmarshal([]byte(p.must("tokens", "list", "server", "-o", "json")), &list))
	return list.Items
}

// A majority that is missing is waited for, for as long as it takes: the server
// says for whom, answers who asks it for its members, and stops when it is told
// to.
func TestAServerWaitsForAMajority(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	for _, p := range servers {
		p.kill()
	}
	alone := servers[0].start()
	var ready string
	alone.await("it to say what it waits for", func() bool {
		ready = alone.readyz(t)
		return strings.Contains(ready, "cannot reach") && strings.Contains(ready, "two at") && strings.Contains(ready, "three at")
	})
	require.Contains(t, ready, "[-] state: starting: waiting for a leader")
	members := alone.members()
	require.Len(t, members, 3)
	require.Equal(t, "unreachable", members["two"].State)
	r := alone.command("--timeout", "1s", "get", "meshes")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "starting: waiting for a leader")
	require.Zero(t, alone.stop(), "a server that waits stops when it is told to")

	alone.start()
	servers[1].start().ready()
	alone.ready()
	writesAndReads(t, alone, servers[:2], "majority")
}

// readyz returns what a server says about its readiness.
func (p *process) readyz(t *testing.T) string {
	t.Helper()
	var ports map[string]int
	data, err := os.ReadFile(filepath.Join(p.dir, "ports.json"))
	if err != nil || json.Unmarshal(data, &ports) != nil {
		return ""
	}
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz?verbose", ports["http-addr"]))
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// Whatever keeps a server from joining has a message of its own, and leaves the
// global as it was.
func TestServersThatCannotJoin(t *testing.T) {
	t.Parallel()
	first := newProcess(t, "meridian-global", "one", loopback("one")...).start().ready()
	zoneBundle := filepath.Join(t.TempDir(), "east.bundle")
	require.NoError(t, os.WriteFile(zoneBundle, []byte(first.must("generate", "zone-token", "--zone", "east", "--valid-for", "1h", "--bundle")), 0o600))
	refused := func(p *process, code int, message string) {
		t.Helper()
		p.start()
		require.Equal(t, code, p.wait(), p.log.String())
		require.Contains(t, p.log.String(), message)
		require.NoFileExists(t, filepath.Join(p.dir, "identity.json"))
	}
	server := func(name, bundle string) *process {
		return newProcess(t, "meridian-global", name, append(loopback(name), "--join-bundle", bundle)...)
	}
	withToken := func(bundle, token string) string {
		path := filepath.Join(t.TempDir(), "bundle")
		lines := strings.Split(string(first.fileAt(bundle)), "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, "token: ") {
				lines[i] = "token: " + strings.TrimSpace(token)
			}
		}
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
		return path
	}
	good := first.serverBundle()

	// Of the wrong kind.
	refused(server("two", zoneBundle), 2, "the join bundle is of the wrong kind: it is a zone's, for --join-bundle of meridian-zone")
	zone := newProcess(t, "meridian-zone", "east", "--name", "east", "--join-bundle", good, "--grpc-addr", anyPort, "--http-addr", anyPort)
	zone.start()
	require.Equal(t, 2, zone.wait())
	require.Contains(t, zone.log.String(), "it is for a new server of a global or a zone")
	user := first.must("generate", "user-token", "--name", "bob", "--group", "mesh-system:admin", "--valid-for", "1h")
	refused(server("two", withToken(good, user)), 1, "is for joining servers: present a server token")
	// A server token opens nothing else.
	token := strings.TrimSpace(first.must("generate", "server-token", "--valid-for", "1h"))
	r := meridian(t, first.as(token), "", "get", "meshes")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "meridian.v1.AdminService takes a user token, not a server token")

	// Not good any more.
	first.must("tokens", "revoke", first.serverTokens()[0].ID)
	refused(server("two", withToken(good, token)), 1, "not authenticated: the token was revoked")
	short := strings.TrimSpace(first.must("generate", "server-token", "--valid-for", "1s"))
	first.await("a token to expire", func() bool {
		return strings.Contains(meridian(t, first.as(short), "", "get", "meshes").stderr, "the token has expired")
	})
	refused(server("two", withToken(good, short)), 1, "not authenticated: the token has expired")
	refused(server("two", withToken(good, token+"x")), 1, "not authenticated: the token")

	first.must("tokens", "rotate", "server")
	// The name is taken; the token is not used up by that.
	refused(server("one", good), 1, `a server called "one" runs already`)
	two := server("two", good).start().ready()
	first.awaitVoters("one", "two")
	refused(server("three", good), 1, `was used up by server "two"`)
	require.Len(t, two.members(), 2)

	// A directory in use is not made another global's.
	other := newProcess(t, "meridian-global", "other", loopback("other")...).start().ready()
	require.Zero(t, other.stop())
	other.args = append(other.args, "--join-bundle", first.serverBundle())
	other.start()
	require.Equal(t, 2, other.wait())
	require.Contains(t, other.log.String(), "belongs to global")

	// All of it is on record.
	var audit strings.Builder
	logs, err := filepath.Glob(filepath.Join(first.dir, "audit", "*"))
	require.NoError(t, err)
	for _, log := range logs {
		audit.Write(first.fileAt(log))
	}
	for _, part := range []string{
		`"method":"meridian.v1.ClusterService/GenerateServerToken","decision":"allowed"`,
		`"who":{"name":"server","source":"token","token":"`,
		`"method":"meridian.v1.JoinService/Join","decision":"allowed"`,
		`"method":"meridian.v1.JoinService/Join","decision":"denied","rule":"TOKEN_USED"`,
		`"method":"meridian.v1.JoinService/Join","decision":"refused"`,
	} {
		require.Contains(t, audit.String(), part)
	}

	// Only administrators issue server tokens.
	first.mustWith("{type: AccessRole, name: all, rules: [{access: [CREATE, UPDATE, DELETE, GENERATE_USER_TOKEN, GENERATE_ZONE_CP_TOKEN]}]}\n---\n"+
		"{type: AccessRoleBinding, name: bob, subjects: [{type: User, name: bob}], roles: [all]}", "apply", "-f", "-")
	bob := first.as(strings.TrimSpace(first.must("generate", "user-token", "--name", "bob", "--valid-for", "1h")))
	r = meridian(t, bob, "", "generate", "server-token", "--valid-for", "1h")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "missing: membership of group mesh-system:admin")
}

// While no server of the bundle can be reached, the new one says which and why,
// and keeps trying until it is stopped, or one answers.
func TestAServerThatReachesNoOther(t *testing.T) {
	t.Parallel()
	first := newProcess(t, "meridian-global", "one", loopback("one")...).start().ready()
	two := newServer(t, first, "two")
	at := first.addresses()["grpc"]
	first.kill()
	two.start()
	two.await("it to say whom it does not reach", func() bool {
		return strings.Contains(two.log.String(), at+": connection refused")
	})
	require.Zero(t, two.stop())
	two.start()
	first.start().ready()
	two.ready()
	first.awaitVoters("one", "two")
}

// A server whose start was interrupted at any point continues where it was, though its
// token is used up.
func TestAJoinThatIsCutOff(t *testing.T) {
	t.Parallel()
	first := newProcess(t, "meridian-global", "one", loopback("one")...).start().ready()
	two := newServer(t, first, "two")
	for wait := time.Duration(0); wait <= 400*time.Millisecond; wait += 40 * time.Millisecond {
		two.start()
		select {
		case <-two.cmd.Done:
			t.Fatalf("it ended by itself:\n%s", two.log.String())
		case <-time.After(wait):
		}
		two.kill()
	}
	two.start().ready()
	first.awaitVoters("one", "two")
	writesAndReads(t, two, []*process{first, two}, "joined")
	require.Len(t, first.serverTokens(), 1)
}

// A server comes back under its name: at another address, and with an empty disk
// and a bundle that any of the others issued.
func TestAServerThatMovesOrLosesItsDisk(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	two, three := servers[1].withoutBundle(), servers[2]
	before := two.addresses()
	require.Zero(t, two.stop())
	require.NoError(t, os.Remove(filepath.Join(two.dir, "ports.json")))
	two.start().ready()
	require.NotEqual(t, before["raft"], two.addresses()["raft"])
	three.await("the others to learn where it is", func() bool {
		m := three.members()["two"]
		return m.Raft == two.addresses()["raft"] && m.State != "unreachable" && m.GRPC == two.addresses()["grpc"]
	})
	writesAndReads(t, two, servers, "moved")

	two.kill()
	require.NoError(t, os.RemoveAll(two.dir))
	two.args = append(two.args, "--join-bundle", three.serverBundle())
	two.start().ready()
	three.awaitVoters("one", "two", "three")
	writesAndReads(t, two, servers, "anew")
	require.Contains(t, two.must("get", "meshes", "-o", "name"), "Mesh/moved")

	// Initial resources of a global that were deleted are not waited for for ever.
	three.must("delete", "global-secret", "admin-user-token")
	leader := three.leader(servers...)
	follower := servers[(slices.Index(servers, leader)+1)%3]
	require.Zero(t, follower.stop())
	follower.start().ready()

	// Who was removed ends, and stays away until it is made a new server.
	three.must("cluster", "remove", "two", "--force")
	for range 2 {
		require.Equal(t, 1, two.wait())
		require.Contains(t, two.log.String(), "this server was removed from the cluster; to bring it back, let it join as a new server, with a new data directory")
		two.start()
	}
	require.Equal(t, 1, two.wait())
	require.NoError(t, os.RemoveAll(two.dir))
	two.withoutBundle()
	two.args = append(two.args, "--join-bundle", three.serverBundle())
	two.start().ready()
	writesAndReads(t, two, servers, "once-more")
}

// authority is an operator's own.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
	// names are those of its certificates beside the address.
	names []string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), names: []string{"meridian-global"}}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "own CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.write("ca.pem", "CERTIFICATE", der)
	gossip := make([]byte, 32)
	_, _ = rand.Read(gossip)
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, "gossip.key"), []byte(base64.StdEncoding.EncodeToString(gossip)), 0o600))
	return a
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// flags issues a certificate for 127.0.0.1 and returns the flags by which a
// server uses it.
func (a *authority) flags(name string, uses ...x509.ExtKeyUsage) []string {
	a.t.Helper()
	a.n++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.n), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: a.names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: uses,
	}, a.cert, key.Public(), a.key)
	require.NoError(a.t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return []string{
		"--ca-file", filepath.Join(a.dir, "ca.pem"), "--gossip-key-file", filepath.Join(a.dir, "gossip.key"),
		"--cert-file", a.write(name+".pem", "CERTIFICATE", der), "--key-file", a.write(name+"-key.pem", "PRIVATE KEY", pkcs8),
	}
}

// Servers with certificates of an authority of the operator's join by any address
// of a running one.
func TestServersWithTheirOwnCertificates(t *testing.T) {
	t.Parallel()
	const asServer, asClient = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	own := newAuthority(t)
	server := func(name string, certificate []string, args ...string) *process {
		return newProcess(t, "meridian-global", name, slices.Concat(loopback(name), certificate, args)...)
	}
	first := server("one", own.flags("one", asServer, asClient)).start().ready()
	for name, address := range map[string]string{"two": "raft", "three": "grpc", "four": "gossip"} {
		at := first.addresses()[address]
		server(name, own.flags(name, asServer, asClient), "--join", at).start().ready()
	}
	first.awaitVoters("one", "two", "three", "four")

	// Its certificates are not the global's to make.
	r := first.command("generate", "server-token", "--valid-for", "1h")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "--join "+first.addresses()["raft"])

	// A certificate for one direction only makes no server.
	half := server("half", own.flags("half", asServer), "--join", first.addresses()["raft"]).start()
	require.Equal(t, 2, half.wait())
	require.Contains(t, half.log.String(), "clientAuth is missing")
	alone := server("alone", own.flags("alone", asServer)).start().ready()
	require.Contains(t, alone.log.String(), "this server will have to stay alone")
	require.Contains(t, alone.log.String(), "clientAuth is missing")

	// Nor does one that the authority signed for something else.
	own.names = []string{"database"}
	other := server("other", own.flags("other", asServer, asClient), "--join", first.addresses()["raft"]).start()
	require.Equal(t, 2, other.wait())
	require.Contains(t, other.log.String(), "the certificate does not name the cluster")
	forced := server("other", own.flags("other", asServer, asClient), "--peer-names", "database", "--join", first.addresses()["raft"]).start()
	forced.await("it to report why no server accepts it", func() bool { return strings.Contains(forced.readyz(t), "certificate") })
	require.Zero(t, forced.stop())
	own.names = []string{"meridian-global"}

	// Nor does one of another authority.
	foreign := server("foreign", newAuthority(t).flags("foreign", asServer, asClient), "--join", first.addresses()["raft"]).start()
	foreign.await("it to report why no server accepts it", func() bool { return strings.Contains(foreign.readyz(t), "certificate") })
	require.Zero(t, foreign.stop())
	require.Len(t, first.members(), 4)

	// A name that is taken.
	taken := server("two", own.flags("two-again", asServer, asClient), "--join", first.addresses()["raft"]).start()
	taken.await("it to say that its name is taken", func() bool { return strings.Contains(taken.readyz(t), "every server needs a name of its own") })
	require.Zero(t, taken.stop())
}

// A call that is running when its server is told to stop finishes through the
// next leader, and the stop is an orderly one within ten seconds.
func TestStoppingTheLeaderUnderWrites(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	leader := servers[0].leader(servers...)
	rest := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == leader })
	config := leader.asAnyOf(append([]*process{leader}, rest...)...)
	const writers = 3
	ctx, stop := context.WithCancel(t.Context())
	failed, written := make(chan string, writers), make(chan [2]int, writers)
	for w := range writers {
		go func() {
			n := 0
			for ; ctx.Err() == nil; n++ {
				if r := meridian(t, config, fmt.Sprintf("{type: Mesh, name: w-%d-%d}", w, n), "apply", "-f", "-"); r.code != 0 {
					failed <- r.stderr
					break
				}
			}
			written <- [2]int{w, n}
		}()
	}
	has := func(name string) bool {
		return strings.Contains(rest[0].must("get", "meshes", "-o", "name")+"\n", "Mesh/"+name+"\n")
	}
	leader.await("some writes", func() bool { return has("w-0-3") })
	require.Zero(t, leader.stop(), leader.log.String())
	require.Contains(t, leader.log.String(), "transferred leadership")
	require.NotEqual(t, leader, rest[0].leader(rest...))
	rest[0].mustWith("{type: Mesh, name: after}", "apply", "-f", "-")
	stop()
	for range writers {
		of := <-written
		w, n := of[0], of[1]
		for i := range n {
			require.True(t, has(fmt.Sprintf("w-%d-%d", w, i)), "w-%d-%d of %d was acknowledged and is not there", w, i, n)
		}
	}
	close(failed)
	for stderr := range failed {
		t.Errorf("a write failed while its server stopped: %s", stderr)
	}
}

// asAnyOf returns a client context of the admin's that knows all of the servers.
func (p *process) asAnyOf(servers ...*process) string {
	p.t.Helper()
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.addresses()["grpc"])
	}
	config := filepath.Join(p.t.TempDir(), "config.yaml")
	r := meridian(p.t, config, "", "config", "control-planes", "add", "--name", "global", "--address", strings.Join(addresses, ","),
		"--ca-cert-file", filepath.Join(p.dir, "pki", "ca.pem"))
	require.Zero(p.t, r.code, r.stderr)
	return config
}
