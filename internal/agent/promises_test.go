package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/meshca"
)

// An agent whose zone was away when it is to end does not wait for its next attempt: the
// zone would send others to the dataplane until the grace period is over.
func TestAnAgentThatWaitsForItsZoneLeavesAtOnce(t *testing.T) {
	z := startZone(t)
	r := start(t, z)
	r.bootstrapped(t)
	z.mu.Lock()
	z.refuse = status.Error(codes.Unavailable, "away")
	tokens, end := len(z.tokens), z.end
	z.mu.Unlock()
	end(status.Error(codes.Unavailable, "away"))
	z.await(t, func() bool { return len(z.tokens) >= tokens+5 }) // the next pause is of a second at least
	z.mu.Lock()
	z.refuse = nil
	z.mu.Unlock()
	r.stop()
	require.NoError(t, <-r.ended)
	z.mu.Lock()
	defer z.mu.Unlock()
	require.True(t, z.left)
}

// A zone that stays away does not hold up the end, nor does one that never was there.
func TestAnAgentEndsWithoutItsZone(t *testing.T) {
	z := startZone(t)
	r := start(t, z)
	r.bootstrapped(t)
	z.stop()
	r.stop()
	require.NoError(t, <-r.ended)

	r = start(t, z)
	r.stop()
	require.NoError(t, <-r.ended)
}

// A dataplane whose certificate has expired takes no requests until it has another one.
func TestOthersAreSentNowhereWithACertificateThatExpired(t *testing.T) {
	z := startZone(t)
	ca, err := meshca.New("east", "default", "ca", time.Now())
	require.NoError(t, err)
	z.authority, z.lifetime = ca.WithLongest(time.Hour), time.Second
	var log syncBuffer
	r := start(t, z, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	r.bootstrapped(t)
	z.mu.Lock()
	require.False(t, z.hello.GetDraining())
	z.silent = true
	z.mu.Unlock()
	z.await(t, func() bool { return z.drains > 0 && strings.Contains(log.String(), "the certificate has expired") })

	z.mu.Lock()
	z.silent, z.lifetime, z.hello = false, time.Hour, nil
	end := z.end
	z.mu.Unlock()
	end(status.Error(codes.Unavailable, "away"))
	z.await(t, func() bool { return z.hello != nil && !z.hello.GetDraining() })
	r.stop()
	require.NoError(t, <-r.ended)
}

// Where only TLS is accepted, others are sent nowhere that can have no certificate: their
// requests would fail. Where plaintext is accepted too, they are.
func TestOthersAreSentNowhereThatIsRefusedACertificate(t *testing.T) {
	z := startZone(t)
	plaintext := true // guarded by z.mu
	z.identity = func(version uint64) *meridianv1.DataplaneIdentity {
		return &meridianv1.DataplaneIdentity{Version: version, Refused: "its tags are too long", Plaintext: plaintext}
	}
	r := start(t, z)
	r.bootstrapped(t)
	mode := func(permissive bool) {
		z.mu.Lock()
		plaintext, z.hello = permissive, nil
		end := z.end
		z.mu.Unlock()
		end(status.Error(codes.Unavailable, "away"))
	}
	z.mu.Lock()
	require.False(t, z.hello.GetDraining())
	require.Zero(t, z.drains)
	z.mu.Unlock()
	mode(false)
	z.await(t, func() bool { return z.drains == 1 })
	mode(true)
	z.await(t, func() bool { return z.hello != nil && !z.hello.GetDraining() })
	r.stop()
	require.NoError(t, <-r.ended)
}

// A certificate that is there is used until it expires, also while no other is issued.
func TestARefusalIsNoExpiry(t *testing.T) {
	var v availability
	now := time.Now()
	v.set(true)
	v.certify(now.Add(time.Hour))
	require.False(t, v.refuse())
	up, _ := v.get()
	require.True(t, up)
	require.True(t, v.lapse(now.Add(time.Hour)))
	v.certify(time.Time{})
	require.True(t, v.refuse())
	up, _ = v.get()
	require.False(t, up)
}

func TestCertificatesLapse(t *testing.T) {
	var v availability
	now := time.Now()
	v.set(true)
	v.certify(now.Add(time.Hour))
	require.False(t, v.lapse(now))
	up, changed := v.get()
	require.True(t, up)
	require.True(t, v.lapse(now.Add(time.Hour)))
	<-changed
	up, _ = v.get()
	require.False(t, up)
	require.False(t, v.lapse(now.Add(time.Hour)), "it is said once")
	v.certify(time.Time{}) // the mesh has no mutual TLS any more
	up, _ = v.get()
	require.True(t, up)
	require.False(t, v.lapse(now.Add(time.Hour)))
}

// An Envoy that ends again and again is started after longer and longer pauses, and after
// a short one when it has run for a while.
func TestPausesBetweenStarts(t *testing.T) {
	var p pauses
	var all []time.Duration
	for range 8 {
		all = append(all, p.next(time.Second))
	}
	require.Equal(t, []time.Duration{
		200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond, 3200 * time.Millisecond, 6400 * time.Millisecond, 10 * time.Second, 10 * time.Second,
	}, all)
	require.Equal(t, firstRestart, p.next(2*steady))
	require.Equal(t, 2*firstRestart, p.next(0))
}

// supervised names the directory in which a copy of this test is to run an Envoy.
const supervised = "FOR_SUPERVISED_ENVOY"

// An Envoy does not outlive an agent that is killed: nothing would renew its certificate.
func TestAnEnvoyEndsWithAKilledAgent(t *testing.T) {
	if dir := os.Getenv(supervised); dir != "" {
		s := &supervisor{agent: &agent{cfg: Config{Output: io.Discard, Log: slog.New(slog.DiscardHandler)}}, dir: dir, program: filepath.Join(dir, "envoy"), admin: &http.Client{}}
		s.run(context.Background())
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("only the kernel of Linux ends a process with another one")
	}
	dir := t.TempDir()
	seen := filepath.Join(dir, "pid")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "envoy"), []byte("#!/bin/sh\necho $$ >"+seen+".new\nmv "+seen+".new "+seen+"\nexec sleep 600\n"), 0o700))
	program, err := os.Executable()
	require.NoError(t, err)
	killed := exec.Command(program, "-test.run=^TestAnEnvoyEndsWithAKilledAgent$")
	killed.Env = append(os.Environ(), supervised+"="+dir)
	require.NoError(t, killed.Start())
	var pid []byte
	require.Eventually(t, func() bool {
		pid, err = os.ReadFile(seen)
		return err == nil
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", bytes.TrimSpace(pid)))
		return err != nil || strings.Contains(string(state), ") Z ")
	}, 30*time.Second, time.Millisecond)
}
