package agent

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
)

// What Envoy says of connections is counted across its listeners: one that is removed and
// comes back begins anew, and what is no number counts for nothing.
func TestConnectionsAreCounted(t *testing.T) {
	before := map[string]uint64{}
	for _, c := range []struct {
		body        string
		taken, open uint64
	}{
		{"", 0, 0},
		{"http.in_80_plaintext.downstream_cx_total: 3\nhttp.in_80_plaintext.downstream_cx_active: 2\n", 3, 2},
		{"http.in_80_plaintext.downstream_cx_total: 3\nhttp.in_80_plaintext.downstream_cx_active: 0\n", 0, 0},
		{"http.in_80_plaintext.downstream_cx_total: 4\ntcp.in_81_plaintext.downstream_cx_total: 5\nconnection_limit.in_81_plaintext.active_connections: 1\n", 6, 1},
		{"http.in_80_plaintext.downstream_cx_total: 1\ntcp.in_81_plaintext.downstream_cx_total: 5\n", 1, 0},
		{"http.in_80_plaintext.downstream_cx_total: x\nhttp.in_80", 0, 0},
	} {
		taken, open := countPlaintext([]byte(c.body), before)
		require.Equal(t, c.taken, taken, c.body)
		require.Equal(t, c.open, open, c.body)
	}
}

// A zone is told what is counted once it asks, when that changes, and again after some time; and
// another connection's zone is told nothing before it asks.
func TestAZoneIsToldOfConnections(t *testing.T) {
	var p plaintext
	now := time.Unix(1_000_000_000, 0)
	after := func(d time.Duration) time.Time { now = now.Add(d); return now }
	told := func(connections, open uint64, quiet time.Duration) {
		t.Helper()
		m := p.next().GetPlaintext()
		require.NotNil(t, m)
		require.Equal(t, connections, m.GetConnections())
		require.Equal(t, open, m.GetOpen())
		require.Equal(t, quiet, m.GetQuiet().AsDuration())
		require.Nil(t, p.next(), "it was told")
	}
	p.add(9, 9, after(time.Second))
	require.Nil(t, p.next(), "no zone asks")
	p.want(true, after(time.Second))
	require.Nil(t, p.next(), "Envoy has not been asked")
	p.add(0, 0, after(4*time.Second))
	told(0, 0, 4*time.Second)
	p.add(0, 0, after(5*time.Second))
	require.Nil(t, p.next(), "nothing is new")
	p.add(2, 1, after(5*time.Second))
	told(2, 1, 0)
	p.add(0, 0, after(5*time.Second))
	told(2, 0, 5*time.Second)
	p.add(0, 0, after(sayAgain))
	told(2, 0, 5*time.Second+sayAgain)
	require.Nil(t, p.next(), "Envoy has not been asked since")

	p.reconnect()
	p.add(1, 0, after(time.Second))
	require.Nil(t, p.next(), "this zone has not asked")
	p.want(true, after(time.Second))
	told(3, 0, 0)
	p.want(false, now)
	p.add(1, 0, after(time.Second))
	require.Nil(t, p.next())
	p.want(true, now)
	p.add(0, 0, after(time.Second))
	told(0, 0, time.Second)
}

// Where the zone issues no certificate Envoy starts if the mesh accepts plaintext: the zone
// has it serve that. Otherwise it waits.
func TestAnEnvoyWithoutACertificate(t *testing.T) {
	for _, plaintext := range []bool{true, false} {
		z := startZone(t)
		z.identity = func(version uint64) *meridianv1.DataplaneIdentity {
			return &meridianv1.DataplaneIdentity{Version: version, Refused: "the names are too long", Plaintext: plaintext}
		}
		dir := t.TempDir()
		program, started := filepath.Join(dir, "envoy"), filepath.Join(dir, "started")
		require.NoError(t, os.WriteFile(program, []byte(`#!/bin/sh
[ "$1" != --version ] || { echo 'version: 9e55/1.40.0/Clean'; exit; }
touch '`+started+`'
exec sleep 600
`), 0o600))
		require.NoError(t, os.Chmod(program, 0o700))
		r := start(t, z, func(c *Config) { c.Bootstrap, c.Envoy, c.Output, c.Drain = "", program, io.Discard, 0 })
		runs := func() bool { _, err := os.Stat(started); return err == nil }
		if plaintext {
			require.Eventually(t, runs, time.Minute, 5*time.Millisecond)
		} else {
			// The answer to the identity follows what it has done with it.
			z.await(t, func() bool { return len(z.trusted) > 0 })
			require.False(t, runs())
		}
		r.stop()
		require.NoError(t, <-r.ended)
	}
}
