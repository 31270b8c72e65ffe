package envoy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// envoy is a running Envoy.
type envoy struct {
	t     *testing.T
	cmd   *exec.Cmd
	admin *http.Client
	// stdout is the file of its standard output.
	stdout string

	mu  sync.Mutex
	log bytes.Buffer
	// ready is closed once it takes connections; ended once it has ended.
	ready, ended chan struct{}
}

// program returns the Envoy to test with, or skips the test.
func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("ENVOY_BIN")
	if path == "" {
		t.Skip("no Envoy: `make envoy` installs one, and ENVOY_BIN names it")
	}
	return path
}

// directory is a temporary one with a path that is short enough for unix sockets.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "me")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// launch is launchIn in a directory of its own.
func launch(t *testing.T, configuration string) *envoy {
	t.Helper()
	return launchIn(t, directory(t), configuration)
}

// launchIn starts an Envoy in a directory with a configuration, in which ADMIN stands for
// the path of the socket of its administration interface. It ends with the test.
func launchIn(t *testing.T, dir, configuration string) *envoy {
	t.Helper()
	path := program(t)
	socket, file := filepath.Join(dir, "admin"), filepath.Join(dir, "envoy.json")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(configuration, "ADMIN", socket)), 0o600))
	e := &envoy{t: t, ready: make(chan struct{}), ended: make(chan struct{})}
	e.admin = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	e.cmd = exec.Command(path, "-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "info", "--file-flush-interval-msec", "20",
		"--drain-time-s", "30", "--drain-strategy", "immediate") // as an agent starts it
	e.cmd.Dir = dir
	e.stdout = filepath.Join(dir, "stdout")
	stdout, err := os.Create(e.stdout)
	require.NoError(t, err)
	defer func() { _ = stdout.Close() }() // Envoy has it
	e.cmd.Stdout = stdout
	out, err := e.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, e.cmd.Start())
	go e.read(out)
	t.Cleanup(func() {
		_ = e.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-e.ended
		if t.Failed() {
			t.Logf("Envoy:\n%s", e.logged())
		}
	})
	select {
	case <-e.ready:
	case <-e.ended:
		t.Fatal("Envoy ended before it was ready")
	}
	return e
}

// read keeps what Envoy logs, until it ends.
func (e *envoy) read(out io.Reader) {
	defer close(e.ended)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		e.mu.Lock()
		if !strings.Contains(line, "server.cc:467]") { // the extensions that it has
			e.log.WriteString(line)
		}
		e.mu.Unlock()
		if strings.Contains(line, "all dependencies initialized. starting workers") {
			close(e.ready)
		}
		if err != nil {
			break
		}
	}
	_ = e.cmd.Wait() // it is signalled
}

func (e *envoy) logged() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.log.String()
}

// ask returns what the administration interface says.
func (e *envoy) ask(path string) string {
	e.t.Helper()
	response, err := e.admin.Get("http://admin" + path)
	require.NoError(e.t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(e.t, errors.Join(err, response.Body.Close()))
	require.Equal(e.t, http.StatusOK, response.StatusCode, "%s: %s", path, body)
	return string(body)
}

// validate has Envoy load a configuration and returns what it says if it refuses it.
func validate(t *testing.T, configuration string) string {
	t.Helper()
	path := program(t)
	file := filepath.Join(directory(t), "envoy.json")
	require.NoError(t, os.WriteFile(file, []byte(configuration), 0o600))
	out, err := exec.Command(path, "-c", file, "--mode", "validate", "--log-level", "warning").CombinedOutput()
	if err != nil {
		return err.Error() + "\n" + string(out)
	}
	return ""
}
