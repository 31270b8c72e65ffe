//go:build multizone

package multizone

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// configuration is a line of the reference client's output.
type configuration struct {
	Sequence string `json:"sequence"`
	Revision string `json:"revision"`
	Full     bool   `json:"full"`
	Set      []struct {
		Target struct {
			Kind string `json:"kind"`
		} `json:"target"`
		Policies []string `json:"policies"`
	} `json:"set"`
	Removed []struct {
		Kind string `json:"kind"`
	} `json:"removed"`
}

// proxy is the reference client of examples/dataplane.
type proxy struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	// tokenFile is where it reads its token from.
	tokenFile string

	mu       sync.Mutex
	received []configuration
	stderr   bytes.Buffer
}

// referenceClient builds the client once per test.
func referenceClient(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dataplane")
	out, err := exec.Command("go", "build", "-o", path, "meridian/examples/dataplane").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// connectProxy runs the client against a zone.
func connectProxy(t *testing.T, client string, zone *process, name, token string) *proxy {
	t.Helper()
	dir := t.TempDir()
	document, tokenFile := filepath.Join(dir, "dataplane.yaml"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(document, []byte(strings.ReplaceAll(webDataplane, "web-1", name)), 0o600))
	require.NoError(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	p := &proxy{t: t, done: make(chan struct{}), tokenFile: tokenFile}
	p.cmd = exec.Command(client, "--address", zone.addresses()["grpc"], "--ca-file", filepath.Join(zone.dir, "pki", "ca.pem"),
		"--token-file", tokenFile, "--dataplane", document, "-o", "json")
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var c configuration
			if json.Unmarshal(lines.Bytes(), &c) == nil {
				p.mu.Lock()
				p.received = append(p.received, c)
				p.mu.Unlock()
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *proxy) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}

func (p *proxy) configurations() []configuration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]configuration{}, p.received...)
}

// await waits for the n-th configuration, from 1.
func (p *proxy) await(n int) configuration {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return len(p.configurations()) >= n }, patience, 5*time.Millisecond, "configuration %d", n)
	return p.configurations()[n-1]
}

// dataplaneState is a row of `meridian dataplanes -o json`.
type dataplaneState struct {
	Name         string `json:"name"`
	State        string `json:"state"`
	RegisteredBy string `json:"registeredBy"`
	Acked        uint64 `json:"ackedRevision"`
	Lag          uint64 `json:"lag"`
}

func (p *process) dataplanes() map[string]dataplaneState {
	p.t.Helper()
	return list(p, "dataplanes", func(d dataplaneState) string { return d.Name })
}

// A proxy follows its zone: through changes, through a zone that is killed and
// comes back, until its token is revoked; and what it registered goes after the
// grace period, while what an operator applied stays (§6.8).
func TestProxyFollowsItsZone(t *testing.T) {
	client := referenceClient(t)
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east", "--dataplane-grace", "2s").start().ready()
	east.pin()
	global.mustWith(timeout("to-backend", "backend", "1s"), "apply", "-f", "-", "--wait=zones")
	east.mustWith(strings.ReplaceAll(webDataplane, "web-1", "by-hand"), "apply", "-f", "-")
	token := func(name, service string) string {
		return strings.TrimSpace(global.must("generate", "dataplane-token", "--mesh", "default", "--name", name,
			"--tag", "kuma.io/service="+service, "--valid-for", "1h"))
	}

	held := token("web-1", "web")
	p := connectProxy(t, client, east, "web-1", held)
	first := p.await(1)
	require.True(t, first.Full)
	require.Len(t, first.Set, 1)
	require.Equal(t, []string{"to-backend"}, first.Set[0].Policies)

	refused := connectProxy(t, client, east, "web-1", token("web-1", "payments"))
	<-refused.done
	require.Equal(t, 1, refused.cmd.ProcessState.ExitCode())
	require.Contains(t, refused.stderr.String(), "Access Denied")

	revision := revisionOf(t, global.mustWith(timeout("to-backend", "backend", "2s"), "apply", "-f", "-"))
	second := p.await(2)
	require.False(t, second.Full)
	require.Equal(t, fmt.Sprint(revision), second.Revision, "§7.2: one number")
	east.await("the acknowledgement", func() bool { return east.dataplanes()["web-1"].Acked == revision })
	require.Equal(t, dataplaneState{Name: "web-1", State: "online", RegisteredBy: "proxy", Acked: revision}, east.dataplanes()["web-1"])
	require.Equal(t, dataplaneState{Name: "by-hand", State: "manual", RegisteredBy: "operator"}, east.dataplanes()["by-hand"])
	require.Contains(t, east.must("inspect", "dataplane", "web-1"), fmt.Sprintf("proxy online, has taken on revision %d", revision))
	require.Contains(t, global.must("inspect", "dataplane", "web-1"), "proxy online")

	// Its token is replaced while it serves: it continues with the new one.
	renewed := token("web-1", "web")
	require.NoError(t, os.WriteFile(p.tokenFile, []byte(renewed), 0o600))
	global.must("tokens", "revoke", tokenID(t, held))
	require.True(t, p.await(3).Full)

	east.kill()
	east.start().ready()
	require.True(t, p.await(4).Full, "it comes back and is told everything")

	global.must("tokens", "revoke", tokenID(t, renewed))
	revoked := time.Now()
	<-p.done
	require.Less(t, time.Since(revoked), time.Second)
	require.Contains(t, p.stderr.String(), "revoked")
	east.await("the registration to go", func() bool { _, there := east.dataplanes()["web-1"]; return !there })
	require.Contains(t, east.dataplanes(), "by-hand")
	require.Zero(t, east.stop())
}

// tokenID reads the id of a token, which is in its second part.
func tokenID(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	require.Len(t, parts, 3)
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(t, err)
	var claims struct {
		ID string `json:"jti"`
	}
	require.NoError(t, json.Unmarshal(payload, &claims))
	return claims.ID
}
