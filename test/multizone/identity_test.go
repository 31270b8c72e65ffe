//go:build multizone

package multizone

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// issued is an item of `meridian tokens list -o json`.
type issued struct {
	ID, Kind, Subject, State, Issuer string
	KeySerial                        uint64
}

func (p *process) tokens(kind string) []issued {
	p.t.Helper()
	var list struct{ Items []issued }
	require.NoError(p.t, json.Unmarshal([]byte(p.must("tokens", "list", kind, "-o", "json")), &list))
	return list.Items
}

// as returns a client context like the server's own, with another token.
func (p *process) as(token string) string {
	p.t.Helper()
	config := filepath.Join(p.t.TempDir(), "config.yaml")
	var ca []string
	text, err := os.ReadFile(filepath.Join(p.dir, "pki", "ca.pem"))
	require.NoError(p.t, err)
	ca = append(ca, string(text))
	file := filepath.Join(p.t.TempDir(), "ca.pem")
	require.NoError(p.t, os.WriteFile(file, []byte(strings.Join(ca, "")), 0o600))
	r := meridian(p.t, config, "", "config", "control-planes", "add", "--name", "it", "--address", p.addresses()["grpc"],
		"--ca-cert-file", file, "--auth-type=tokens", "--auth-conf", "token="+token)
	require.Zero(p.t, r.code, r.stderr)
	return config
}

// watching is a `meridian watch` that runs.
type watching struct {
	lines <-chan string
	ended <-chan int
}

func watchAs(t *testing.T, config string) watching {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, programPath(t, "meridian"), "watch", "mesh")
	cmd.Env = append(os.Environ(), "MERIDIAN_CONFIG="+config)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines, ended := make(chan string, 64), make(chan int, 1)
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
		_ = cmd.Wait()
		ended <- cmd.ProcessState.ExitCode()
	}()
	return watching{lines, ended}
}

// seenBy waits until a watch is live: it shows a change that is made here.
func (p *process) seenBy(w watching) {
	p.t.Helper()
	p.await("the watch to be live", func() bool {
		p.mustWith("{type: Mesh, name: seen-"+strings.ToLower(rand.Text())+"}", "apply", "-f", "-")
		select {
		case <-w.lines:
			return true
		case <-time.After(50 * time.Millisecond):
			return false
		}
	})
}

// §6.8: issue, list, rotate, revoke; a live stream ends within a
// second, and so does a zone's.
func TestTokensLiveAndDie(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.pin()
	bob := strings.TrimSpace(global.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	asBob := global.as(bob)
	watch := watchAs(t, asBob)
	global.seenBy(watch)

	global.must("tokens", "rotate", "user")
	require.Zero(t, meridian(t, asBob, "", "get", "meshes").code, "the key before still verifies")
	eve := strings.TrimSpace(global.must("generate", "user-token", "--name", "eve", "--valid-for", "1h"))
	all := global.tokens("user")
	require.Equal(t, "eve", all[0].Subject)
	require.Equal(t, uint64(2), all[0].KeySerial)
	require.Equal(t, "bob", all[1].Subject)
	require.Equal(t, uint64(1), all[1].KeySerial)

	require.Equal(t, all[1].ID+" revoked", strings.SplitN(global.must("tokens", "revoke", all[1].ID), "\n", 2)[0])
	revoked := time.Now()
	select {
	case code := <-watch.ended:
		require.Equal(t, 4, code)
		require.Less(t, time.Since(revoked), time.Second)
	case <-time.After(patience):
		t.Fatal("the stream of a revoked token continues")
	}
	r := meridian(t, asBob, "", "get", "meshes")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "not authenticated: the token was revoked: \""+all[1].ID+"\"")

	// A zone whose token is revoked is cut off.
	east := newZone(t, global, "east").start().ready()
	global.awaitState("east", "in-sync")
	global.must("tokens", "revoke", global.tokens("zone")[0].ID)
	global.awaitState("east", "offline")
	require.Contains(t, east.must("get", "meshes", "-o", "name"), "Mesh/default", "it keeps what it has")

	// All of it survives a crash.
	global.kill()
	global.start().ready()
	require.Zero(t, meridian(t, global.as(eve), "", "get", "meshes").code)
	require.Equal(t, 4, meridian(t, asBob, "", "get", "meshes").code)
	states := map[string]string{}
	for _, token := range global.tokens("user") {
		states[token.Subject] = token.State
	}
	require.Equal(t, map[string]string{"admin": "active", "bob": "revoked", "eve": "active"}, states)
}

// §6.8: after a rotation the key before still verifies; once it is
// deleted, everything that lives on it ends: a watch, a zone's stream, a proxy.
func TestDeletedKeysEndWhatLivesOnThem(t *testing.T) {
	client := referenceClient(t)
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	global.awaitState("east", "in-sync")
	bob := strings.TrimSpace(global.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	watch := watchAs(t, global.as(bob))
	global.seenBy(watch)
	old := strings.TrimSpace(global.must("generate", "dataplane-token", "--tag", "kuma.io/service=web", "--valid-for", "1h"))
	for _, kind := range []string{"user", "dataplane", "zone", "server"} {
		require.Contains(t, global.must("tokens", "rotate", kind), kind+"-token-signing-key-2 created")
	}
	next := strings.TrimSpace(global.must("generate", "dataplane-token", "--tag", "kuma.io/service=web", "--valid-for", "1h"))
	proxies := []*proxy{connectProxy(t, client, east, "web-1", old), connectProxy(t, client, east, "web-2", next)}
	for _, p := range proxies {
		p.await(1)
	}

	// The admin's own token names the first key, too.
	admin := global.as(strings.TrimSpace(global.must("generate", "user-token", "--name", "root", "--group", "mesh-system:admin", "--valid-for", "1h")))
	remove := func(kind, name string) {
		t.Helper()
		r := meridian(t, admin, "", "delete", kind, name)
		require.Zero(t, r.code, r.stderr)
	}
	remove("signing-key", "dataplane-token-signing-key-1")
	<-proxies[0].done
	require.Contains(t, proxies[0].stderr.String(), `signing key is not known here: "dataplane-token-signing-key-1"`)
	remove("global-secret", "user-token-signing-key-1")
	require.Equal(t, 4, <-watch.ended)
	require.Equal(t, 4, global.command("get", "meshes").code, "the bootstrap token is none any more")
	remove("global-secret", "zone-token-signing-key-1")
	east.await("the zone to be told", func() bool {
		return strings.Contains(east.log.String(), `no longer authorized: the token's signing key is not known here: \"zone-token-signing-key-1`)
	})
	require.Contains(t, east.must("get", "meshes", "-o", "name"), "Mesh/default", "it keeps what it has")
	select {
	case <-proxies[1].done:
		t.Fatalf("the token of the key that stayed was refused: %s", proxies[1].stderr.String())
	default:
	}
}

// §6.8: a token of one control plane opens no other.
func TestTokensAreNotForOtherControlPlanes(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	west := newZone(t, global, "west").start().ready()
	user := func(p *process) string {
		return strings.TrimSpace(p.must("generate", "user-token", "--name", "bob", "--group", "mesh-system:admin", "--valid-for", "1h"))
	}
	for from, token := range map[*process]string{global: user(global), east: user(east)} {
		for _, to := range []*process{global, east, west} {
			r := meridian(t, to.as(token), "", "get", "meshes")
			if to == from {
				require.Zero(t, r.code, r.stderr)
				continue
			}
			require.Equal(t, 4, r.code)
			require.Contains(t, r.stderr, "not authenticated: the token's signing key is not known here", "%s to %s", from.name, to.name)
		}
	}
	// A token of a dataplane or a zone is not accepted by the services for users.
	for _, token := range []string{
		global.must("generate", "dataplane-token", "--tag", "kuma.io/service=web", "--valid-for", "1h"),
		global.must("generate", "zone-token", "--zone", "east", "--valid-for", "1h"),
	} {
		r := meridian(t, global.as(strings.TrimSpace(token)), "", "get", "meshes")
		require.Equal(t, 4, r.code)
		require.Contains(t, r.stderr, "meridian.v1.AdminService takes a user token")
	}
}

// Every write and every denial is in the audit log, which verifies, names no
// secret, and shows tampering.
func TestAuditLog(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.mustWith(adminsOnly, "apply", "-f", "-")
	bob := strings.TrimSpace(global.must("generate", "user-token", "--name", "bob", "--valid-for", "1h"))
	asBob := global.as(bob)
	global.mustWith("{type: GlobalSecret, name: s, data: c2VjcmV0LW1hdGVyaWFs}", "apply", "-f", "-")
	require.Equal(t, 4, meridian(t, asBob, "{type: Mesh, name: bobs}", "apply", "-f", "-").code)
	require.Equal(t, 4, meridian(t, asBob, "", "get", "global-secret", "s").code)
	require.Equal(t, 4, meridian(t, global.as("not.a.token"), "", "get", "meshes").code)
	global.must("delete", "global-secret", "s")

	dir := filepath.Join(global.dir, "audit")
	require.Zero(t, global.command("audit", "verify", dir).code, "also while it is written")
	require.Zero(t, global.stop())
	r := global.command("audit", "verify", dir)
	require.Zero(t, r.code, r.stdout+r.stderr)

	var text []byte
	for _, file := range []string{"audit.log", "denied.log", "refused.log"} {
		text = append(text, global.file("audit/"+file)...)
	}
	admin, err := os.ReadFile(filepath.Join(global.dir, "admin.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, admin)
	for _, secret := range []string{bob, "c2VjcmV0", "secret-material", "PRIVATE KEY", "eyJ"} {
		require.NotContains(t, string(text), secret)
	}
	type target struct{ Action, Kind, Name string }
	type record struct {
		Who                                   struct{ Name, Source, Token string }
		From, Method, Decision, Rule, Message string
		Targets                               []target
		Revision                              uint64
		Request                               string
	}
	find := func(decision, action, name string) record {
		t.Helper()
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			var rec record
			require.NoError(t, json.Unmarshal([]byte(line), &rec))
			for _, tgt := range rec.Targets {
				if rec.Decision == decision && tgt.Action == action && tgt.Name == name {
					return rec
				}
			}
			if action == "" && rec.Decision == decision {
				return rec
			}
		}
		t.Fatalf("no record of %s %s %s in\n%s", decision, action, name, text)
		return record{}
	}
	made := find("allowed", "create", "s")
	require.Equal(t, "admin", made.Who.Name)
	require.Equal(t, "token", made.Who.Source)
	require.NotEmpty(t, made.Who.Token)
	require.Equal(t, "meridian.v1.AdminService/Apply", made.Method)
	require.Contains(t, made.Rule, `rules[0] of AccessRole "admin"`)
	require.NotZero(t, made.Revision)
	require.NotEmpty(t, made.Request)
	require.True(t, strings.HasPrefix(made.From, "127.0.0.1:"), made.From)
	require.Greater(t, find("allowed", "delete", "s").Revision, made.Revision)
	require.Equal(t, "server", find("allowed", "create", "user-token-signing-key-1").Who.Source, "what the server made by itself")
	require.Equal(t, "bob", find("denied", "apply", "bobs").Who.Name)
	require.Equal(t, "bob", find("denied", "read", "s").Who.Name)
	require.Contains(t, find("denied", "apply", "bobs").Message, `Access Denied (user "bob/mesh-system:authenticated" cannot access the resource)`)
	refused := find("refused", "", "")
	require.Equal(t, "TOKEN_REFUSED", refused.Rule)

	altered := strings.Replace(string(global.file("audit/denied.log")), `"name":"bobs"`, `"name":"hers"`, 1)
	require.NotEqual(t, string(global.file("audit/denied.log")), altered)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "denied.log"), []byte(altered), 0o600))
	r = global.command("audit", "verify", dir)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "its hash does not fit: it was altered")
}

// A certificate that is replaced on disk is served after SIGHUP, to new
// connections, while established ones continue.
func TestCertificatesAreReloaded(t *testing.T) {
	donor := newGlobal(t).start().ready()
	pki := t.TempDir()
	cert, key := filepath.Join(pki, "cert.pem"), filepath.Join(pki, "key.pem")
	place := func(from *process) {
		t.Helper()
		for to, name := range map[string]string{cert: "server.pem", key: "server-key.pem"} {
			data, err := os.ReadFile(filepath.Join(from.dir, "pki", name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(to, data, 0o600))
		}
	}
	other := newGlobal(t).start().ready()
	place(donor)
	global := newGlobal(t, "--cert-file", cert, "--key-file", key, "--ca-file", filepath.Join(donor.dir, "pki", "ca.pem")).start().ready()
	serial := func() string {
		t.Helper()
		conn, err := tls.Dial("tcp", global.addresses()["grpc"], &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.Equal(t, uint16(tls.VersionTLS13), conn.ConnectionState().Version)
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	standing, err := tls.Dial("tcp", global.addresses()["grpc"], &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer func() { _ = standing.Close() }()

	place(other)
	require.NoError(t, global.cmd.Process.Signal(syscall.SIGHUP))
	global.await("the other certificate", func() bool { return serial() != before })
	require.NoError(t, standing.Handshake(), "an established connection continues")
	_, err = standing.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	require.NoError(t, err)
	_ = standing.SetReadDeadline(time.Now().Add(patience))
	_, err = standing.Read(make([]byte, 9))
	require.NoError(t, err)
}

// A certificate given without its authority is for clients only: servers of the
// global continue to authenticate each other by their own. Neither the start nor the stop
// has anything to complain about.
func TestCertificateWithoutItsAuthority(t *testing.T) {
	donor := newGlobal(t).start().ready()
	pki := filepath.Join(donor.dir, "pki")
	global := newGlobal(t, "--cert-file", filepath.Join(pki, "server.pem"), "--key-file", filepath.Join(pki, "server-key.pem"),
		"--default-access=restricted").start().ready() // which would warn, were it open
	require.Zero(t, global.stop())
	require.NotContains(t, global.log.String(), "level=ERROR")
	require.NotContains(t, global.log.String(), "level=WARN")
}

// No port that takes credentials speaks anything but TLS 1.3.
func TestNothingIsServedInTheClear(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	for _, p := range []*process{global, east} {
		addresses := p.addresses()
		conn, err := net.Dial("tcp", addresses["grpc"])
		require.NoError(t, err)
		_, err = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		require.NoError(t, err)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		answer := make([]byte, 1024)
		n, _ := conn.Read(answer)
		require.NotContains(t, string(answer[:n]), "\x00\x00\x00\x04", "no HTTP/2 settings come back")
		require.NoError(t, conn.Close())
		_, err = tls.Dial("tcp", addresses["grpc"], &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}})
		require.ErrorContains(t, err, "protocol version")

		response, err := http.Get("http://" + addresses["http"] + "/readyz")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
		for _, path := range []string{"/", "/global-secrets/admin-user-token", "/debug/pprof/"} {
			response, err := http.Get("http://" + addresses["http"] + path)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusNotFound, response.StatusCode, "the plain port has health and metrics, and nothing else")
		}
	}
}

// §6.8: a zone's stream ends with its token. The next one is taken from
// the file of the last, without a restart.
func TestZoneTokenIsRenewed(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.pin()
	east := newZone(t, global, "east")
	bundle := east.args[slices.Index(east.args, "--join-bundle")+1]
	give := func(valid string) {
		t.Helper()
		text := global.must("generate", "zone-token", "--zone", "east", "--valid-for", valid, "--bundle")
		require.NoError(t, os.WriteFile(bundle, []byte(text), 0o600))
	}
	give("4s")
	east.start().ready()
	global.awaitState("east", "in-sync")
	global.awaitState("east", "offline")
	east.await("it to say why", func() bool { return strings.Contains(east.log.String(), "the token has expired") })
	give("1h")
	global.awaitState("east", "in-sync")
	global.mustWith(timeout("after", "backend", "5s"), "apply", "-f", "-", "--wait=zones")
	require.Contains(t, east.must("get", "timeouts"), "after")
}
