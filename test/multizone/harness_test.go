//go:build multizone

// Package multizone runs real clusters: servers and command built from source,
// separate processes, real disks and sockets, killed without warning. It checks
// from the outside what operators rely on; the promises it validates are named
// after §7.
package multizone

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/clientconfig"
	"meridian/test/processes"
)

// programs are those under test; olderPrograms stand for the release before: they
// apply log entries up to the format before the newest one.
var (
	programs      processes.Programs
	olderPrograms = processes.Programs{Tag: "olderformat"}
)

func TestMain(m *testing.M) {
	code := m.Run()
	programs.Remove()
	olderPrograms.Remove()
	os.Exit(code)
}

// programPath returns the path of a program under test.
func programPath(t *testing.T, name string) string {
	t.Helper()
	path, err := programs.Path(name)
	require.NoError(t, err)
	return path
}

// patience bounds every wait of a test. It is generous: passing it means that
// what was waited for does not happen, not that the machine is slow.
const patience = 60 * time.Second

// process is a server under test.
type process struct {
	t       *testing.T
	name    string
	program string
	dir     string
	args    []string
	// older has it run the release before.
	older bool
	// files is how many files it may open, 0 for as many as the test.
	files int

	cmd *processes.Process // the last one started
	log *output
}

// output is what a process printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func newProcess(t *testing.T, program, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, program: program, dir: filepath.Join(t.TempDir(), name), args: args}
	t.Cleanup(func() {
		if p.running() {
			p.kill()
		}
		if t.Failed() && p.log != nil {
			t.Logf("log of %s:\n%s", name, tail(p.log.String(), 60))
		}
	})
	return p
}

// start starts the process and does not wait for it to be ready.
func (p *process) start() *process {
	p.t.Helper()
	path := programPath(p.t, p.program)
	if p.older {
		var err error
		path, err = olderPrograms.Path(p.program)
		require.NoError(p.t, err)
	}
	command := append([]string{path, "--data-dir", p.dir}, p.args...)
	if p.files > 0 {
		command = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, p.files)}, command...)
	}
	p.log = &output{}
	var err error
	p.cmd, err = processes.Start(p.log, command[0], command[1:]...)
	require.NoError(p.t, err)
	return p
}

// ready waits until the server has listed its addresses.
func (p *process) ready() *process {
	p.t.Helper()
	p.await("it to be ready", func() bool {
		if !p.running() {
			p.t.Fatalf("%s ended before it was ready:\n%s", p.name, tail(p.log.String(), 40))
		}
		return p.hasAddresses()
	})
	return p
}

// hasAddresses reports whether the server has listed its addresses.
func (p *process) hasAddresses() bool {
	info, err := os.Stat(filepath.Join(p.dir, "addresses.json"))
	return err == nil && info.Size() > 0
}

func (p *process) running() bool { return p.cmd != nil && p.cmd.Running() }

// await polls a condition of the world outside this process until it holds.
func (p *process) await(what string, holds func() bool) {
	p.t.Helper()
	require.Eventually(p.t, holds, patience, 20*time.Millisecond, "%s: waiting for %s", p.name, what)
}

// kill ends the process without warning, as a power cut would. The list of
// addresses it leaves behind is removed, so that ready waits for the next one.
func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
	p.wait()
	if err := os.Remove(filepath.Join(p.dir, "addresses.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
}

// stop ends the process in an orderly way and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	return p.wait()
}

// wait waits for the process to end and returns its exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.cmd.Done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		p.t.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) addresses() map[string]string {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, "addresses.json"))
	require.NoError(p.t, err)
	var a map[string]string
	require.NoError(p.t, json.Unmarshal(data, &a))
	return a
}

// result is what a command printed and how it ended.
type result struct {
	stdout, stderr string
	code           int
}

// command runs the operator's command against this server.
func (p *process) command(args ...string) result {
	p.t.Helper()
	return p.commandWith("", args...)
}

// commandWith is command with standard input. The context of a server has the others,
// too: this asks the one alone.
func (p *process) commandWith(stdin string, args ...string) result {
	p.t.Helper()
	config := filepath.Join(p.dir, "admin.yaml")
	contexts, err := clientconfig.LoadContexts(config)
	if err != nil || slices.Contains(args, "--address") {
		return meridian(p.t, config, stdin, args...)
	}
	entry, err := contexts.Get("")
	require.NoError(p.t, err)
	return meridian(p.t, config, stdin, append(args, "--config", config, "--address", entry.Addresses[0])...)
}

// must runs a command that has to succeed and returns its standard output.
func (p *process) must(args ...string) string {
	p.t.Helper()
	return p.mustWith("", args...)
}

func (p *process) mustWith(stdin string, args ...string) string {
	p.t.Helper()
	r := p.commandWith(stdin, args...)
	require.Zero(p.t, r.code, "meridian %s\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout
}

// meridian runs the operator's command with a context file.
func meridian(t *testing.T, config, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programPath(t, "meridian"), args...)
	cmd.Env = append(os.Environ(), "MERIDIAN_CONFIG="+config, "NO_COLOR=1")
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("meridian %s: %v", strings.Join(args, " "), err)
	}
	return result{stdout: out.String(), stderr: errOut.String(), code: cmd.ProcessState.ExitCode()}
}

const anyPort = "127.0.0.1:0"

// newGlobal returns a global of one server that has not been started.
func newGlobal(t *testing.T, args ...string) *process {
	t.Helper()
	return newProcess(t, "meridian-global", "global", append([]string{
		"--grpc-addr", anyPort, "--http-addr", anyPort, "--raft-addr", anyPort, "--gossip-addr", anyPort,
	}, args...)...)
}

// pin makes a process come back under the addresses it has now.
func (p *process) pin() {
	p.t.Helper()
	for name, addr := range p.addresses() {
		flag := "--" + name + "-addr"
		for i := range p.args {
			if p.args[i] == flag {
				p.args[i+1] = addr
			}
		}
	}
}

// newZone returns a federated zone that has not been started.
func newZone(t *testing.T, global *process, name string, args ...string) *process {
	t.Helper()
	bundle := filepath.Join(t.TempDir(), name+".bundle")
	text := global.must("generate", "zone-token", "--zone", name, "--valid-for", "1h", "--bundle")
	require.NoError(t, os.WriteFile(bundle, []byte(text), 0o600))
	return newProcess(t, "meridian-zone", name, append([]string{
		"--name", name, "--join-bundle", bundle, "--grpc-addr", anyPort, "--http-addr", anyPort,
	}, args...)...)
}

// zoneStatus is a row of `meridian zones -o json`.
type zoneStatus struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	Revision  uint64 `json:"revision"`
	Lag       uint64 `json:"lag"`
	LastError string `json:"lastError"`
}

func (p *process) zones() map[string]zoneStatus {
	p.t.Helper()
	return list(p, "zones", func(z zoneStatus) string { return z.Name })
}

// list returns what a command lists, by name.
func list[T any](p *process, command string, name func(T) string) map[string]T {
	p.t.Helper()
	var listed struct {
		Items []T `json:"items"`
	}
	require.NoError(p.t, json.Unmarshal([]byte(p.must(command, "-o", "json")), &listed))
	byName := map[string]T{}
	for _, item := range listed.Items {
		byName[name(item)] = item
	}
	return byName
}

// awaitState waits until the global shows a zone in a state.
func (p *process) awaitState(zone, state string) zoneStatus {
	p.t.Helper()
	var got zoneStatus
	p.await(fmt.Sprintf("zone %s to be %s", zone, state), func() bool {
		got = p.zones()[zone]
		return got.State == state
	})
	return got
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func decodeBase64(t *testing.T, text string) string {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	return string(data)
}
