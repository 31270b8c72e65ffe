package agent

import (
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/meshca"
)

// Who aborts does not wait for the application to close its streams, and the zone hears that
// the dataplane goes.
func TestAbortingEndsTheDrainTime(t *testing.T) {
	z := startZone(t)
	abort := make(chan struct{})
	r := start(t, z, func(c *Config) { c.Drain, c.Abort = time.Hour, abort })
	r.bootstrapped(t)
	stream := r.dial(t)
	exchange(t, stream, "a")
	r.stop()
	z.await(t, func() bool { return z.drains == 1 })
	exchange(t, stream, "b")
	close(abort)
	require.NoError(t, <-r.ended)
	_, err := stream.Recv()
	require.Error(t, err)
	z.await(t, func() bool { return z.left })
	_, err = os.Lstat(r.Socket)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// inTemporary has agents make their directories in one of the test's own, and returns it.
func inTemporary(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "agent") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("TMPDIR", dir)
	return dir
}

// An Envoy that has requests under way, and does not end when it is told to, is stopped, and
// its directory, which has the key, is removed.
func TestAbortingStopsEnvoy(t *testing.T) {
	temporary := inTemporary(t)
	z := startZone(t)
	ca, err := meshca.New("east", "default", "ca", time.Now())
	require.NoError(t, err)
	z.authority, z.lifetime = ca.WithLongest(time.Hour), time.Hour
	program, started := filepath.Join(t.TempDir(), "envoy"), filepath.Join(t.TempDir(), "started")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1\" != --version ] || { echo 'version: 9e55/1.40.0/Clean'; exit; }\ntrap '' TERM\necho $$ >'"+started+".new'\nmv '"+started+".new' '"+started+"'\nexec sleep 600\n"), 0o600))
	require.NoError(t, os.Chmod(program, 0o700))
	abort := make(chan struct{})
	r := start(t, z, func(c *Config) {
		c.Bootstrap, c.Envoy, c.Output, c.Drain, c.Abort = "", program, io.Discard, time.Hour, abort
	})
	exists := func(path string) func() bool {
		return func() bool { _, err := os.Lstat(path); return err == nil }
	}
	require.Eventually(t, exists(started), time.Minute, time.Millisecond)
	dirs, err := filepath.Glob(filepath.Join(temporary, envoyDir+"*"))
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	// The administration interface of an Envoy that is never idle.
	admin, err := net.Listen("unix", filepath.Join(dirs[0], "admin"))
	require.NoError(t, err)
	asked := make(chan struct{}, 1)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/ready" {
			_, _ = io.WriteString(w, "LIVE\n")
			return
		}
		if request.URL.Path == "/drain_listeners" {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
		_, _ = io.WriteString(w, "http.in_80.downstream_rq_active: 1\n")
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(admin) }()
	defer func() { require.NoError(t, server.Close()); <-served }()
	z.await(t, func() bool { return z.hello != nil })
	text, err := os.ReadFile(started)
	require.NoError(t, err)
	envoy, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(envoy, 0))
	r.stop()
	<-asked
	require.True(t, exists(dirs[0])())
	close(abort)
	require.NoError(t, <-r.ended)
	require.ErrorIs(t, syscall.Kill(envoy, 0), syscall.ESRCH)
	require.NoDirExists(t, dirs[0])
	z.await(t, func() bool { return z.left })
}

// An agent removes what agents of this user have left that were killed, and nothing else.
func TestWhatAKilledAgentLeftIsRemoved(t *testing.T) {
	parent := t.TempDir()
	made := func(name string) string {
		dir := filepath.Join(parent, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), []byte("secret"), 0o600))
		return dir
	}
	lock := func(dir string) *os.File {
		f, err := lockDir(dir)
		require.NoError(t, err)
		return f
	}
	abandoned, running, older, other := made(envoyDir+"1"), made(envoyDir+"2"), made(envoyDir+"3"), made("other-4")
	require.NoError(t, lock(abandoned).Close())
	require.NoError(t, lock(other).Close())
	held := lock(running)
	defer func() { require.NoError(t, held.Close()) }()
	// A link is not followed, and a file is none.
	require.NoError(t, os.Symlink(other, filepath.Join(parent, envoyDir+"5")))
	require.NoError(t, os.WriteFile(filepath.Join(parent, envoyDir+"6"), nil, 0o600))

	require.NoError(t, removeAbandoned(parent))
	require.NoDirExists(t, abandoned)
	for _, dir := range []string{running, older, other} {
		require.FileExists(t, filepath.Join(dir, "key"))
	}
	require.NoError(t, removeAbandoned(parent), "a second time")
	require.Error(t, removeAbandoned(filepath.Join(parent, "none")))
}

// The directory of an agent that runs is locked, and one that starts removes those of others
// that were killed.
func TestAnAgentStartsWithoutWhatOthersLeft(t *testing.T) {
	temporary := inTemporary(t)
	left := filepath.Join(temporary, envoyDir+"left")
	require.NoError(t, os.Mkdir(left, 0o700))
	f, err := lockDir(left)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	program := filepath.Join(t.TempDir(), "envoy")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho 'version: 9e55/1.40.0/Clean'\n"), 0o600))
	require.NoError(t, os.Chmod(program, 0o700))
	a := &agent{cfg: Config{Envoy: program, Log: slog.New(slog.DiscardHandler)}}
	s, err := newSupervisor(t.Context(), a)
	require.NoError(t, err)
	require.NoDirExists(t, left)
	require.Equal(t, filepath.Join(s.dir, socketFile), a.cfg.Socket, "the socket goes with the directory")
	second, err := newSupervisor(t.Context(), a)
	require.NoError(t, err)
	require.DirExists(t, s.dir)
	second.remove()
	s.remove()
	require.NoDirExists(t, s.dir)
}
