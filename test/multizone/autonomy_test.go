//go:build multizone

package multizone

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const webDataplane = `
type: Dataplane
mesh: default
name: web-1
networking:
  address: 192.168.0.1
  inbound:
    - port: 9000
      servicePort: 6379
      tags: {kuma.io/service: web}
  outbound:
    - port: 1234
      tags: {kuma.io/service: backend}
`

func timeout(name, service, connect string) string {
	return fmt.Sprintf(`
type: Timeout
mesh: default
name: %s
sources: [{match: {kuma.io/service: '*'}}]
destinations: [{match: {kuma.io/service: %s}}]
conf: {connectTimeout: %s}
`, name, service, connect)
}

// confOf returns the configuration and the deciding policies of one kind in the
// answer about a dataplane.
func confOf(t *testing.T, answer, kind string) (string, []string, uint64) {
	t.Helper()
	var a struct {
		AsOf      uint64 `json:"asOf"`
		Effective []struct {
			Kind     string          `json:"kind"`
			Conf     json.RawMessage `json:"conf"`
			Policies []string        `json:"policies"`
		} `json:"effective"`
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &a))
	for _, e := range a.Effective {
		if e.Kind == kind {
			var compact bytes.Buffer
			require.NoError(t, json.Compact(&compact, e.Conf))
			return compact.String(), e.Policies, a.AsOf
		}
	}
	return "", nil, a.AsOf
}

var revisionLine = regexp.MustCompile(`(?m)^revision (\d+)$`)

func revisionOf(t *testing.T, stdout string) uint64 {
	t.Helper()
	m := revisionLine.FindStringSubmatch(stdout)
	require.NotNil(t, m, stdout)
	n, err := strconv.ParseUint(m[1], 10, 64)
	require.NoError(t, err)
	return n
}

// §7.2, §7.4: one revision follows a change from the write to the
// dataplane, and the answers of the zone and of the global are the same bytes.
func TestOneRevisionFromTheWriteToTheDataplane(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	west := newZone(t, global, "west").start().ready()
	east.mustWith(webDataplane, "apply", "-f", "-")

	written := revisionOf(t, global.mustWith(timeout("t", "backend", "5s"), "apply", "-f", "-", "--wait=zones"))
	for _, z := range []string{"east", "west"} {
		s := global.zones()[z]
		require.Equal(t, "in-sync", s.State, s)
		require.GreaterOrEqual(t, s.Revision, written)
	}
	answer := east.must("inspect", "dataplane", "web-1", "-o", "json")
	conf, policies, asOf := confOf(t, answer, "Timeout")
	require.JSONEq(t, `{"connectTimeout":"5s"}`, conf)
	require.Equal(t, []string{"t"}, policies)
	require.Equal(t, written, asOf)
	require.Equal(t, answer, global.must("inspect", "dataplane", "web-1", "--zone", "east", "-o", "json"))
	require.Equal(t, answer, global.must("inspect", "dataplane", "web-1", "-o", "json"),
		"--zone may be left out when one zone has the dataplane")
	r := west.command("inspect", "dataplane", "web-1")
	require.Equal(t, 1, r.code, "dataplanes never leave their zone")

	// Nothing of a zone's own reaches the global, nor the other zone.
	require.Empty(t, items(t, global.must("get", "dataplanes", "-o", "json")))
	require.Zero(t, east.stop())
	require.Zero(t, west.stop())
	require.Zero(t, global.stop())
}

func items(t *testing.T, list string) []map[string]any {
	t.Helper()
	var l struct {
		Items []map[string]any `json:"items"`
	}
	require.NoError(t, json.Unmarshal([]byte(list), &l))
	return l.Items
}

// §7.6: a zone serves with the global gone, also after its own
// restart, and §1.3: it refuses what is not its own.
func TestZoneServesWithTheGlobalGone(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.pin()
	east := newZone(t, global, "east").start().ready()
	east.mustWith(webDataplane, "apply", "-f", "-")
	global.mustWith(timeout("t", "backend", "5s"), "apply", "-f", "-", "--wait=zones")
	before := east.must("inspect", "dataplane", "web-1", "-o", "json")

	global.kill()
	require.Equal(t, before, east.must("inspect", "dataplane", "web-1", "-o", "json"))
	east.kill()
	east.start().ready()
	require.Equal(t, before, east.must("inspect", "dataplane", "web-1", "-o", "json"),
		"a zone that starts with the global away answers from its own disk")

	east.mustWith(strings.ReplaceAll(webDataplane, "web-1", "web-2"), "apply", "-f", "-")
	conf, _, _ := confOf(t, east.must("inspect", "dataplane", "web-2", "-o", "json"), "Timeout")
	require.JSONEq(t, `{"connectTimeout":"5s"}`, conf, "a new dataplane is matched without the global")

	r := east.commandWith(timeout("mine", "backend", "1s"), "apply", "-f", "-")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.stderr, "global", "the refusal says where to apply it")

	global.start().ready()
	written := revisionOf(t, global.mustWith(timeout("t", "backend", "7s"), "apply", "-f", "-"))
	global.await("the zone to catch up", func() bool { return global.zones()["east"].Revision >= written })
	conf, _, asOf := confOf(t, east.must("inspect", "dataplane", "web-2", "-o", "json"), "Timeout")
	require.JSONEq(t, `{"connectTimeout":"7s"}`, conf)
	require.GreaterOrEqual(t, asOf, written)
}

// §7.7: disabling a zone ends its stream; it keeps what it has.
func TestDisabledZoneIsCutOff(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	east.mustWith(webDataplane, "apply", "-f", "-")
	global.mustWith(timeout("t", "backend", "5s"), "apply", "-f", "-", "--wait=zones")

	global.mustWith("{type: Zone, name: east, enabled: false}", "apply", "-f", "-")
	global.awaitState("east", "disabled")
	global.mustWith(timeout("t", "backend", "9s"), "apply", "-f", "-", "--wait=zones")
	conf, _, _ := confOf(t, east.must("inspect", "dataplane", "web-1", "-o", "json"), "Timeout")
	require.JSONEq(t, `{"connectTimeout":"5s"}`, conf, "a disconnection deletes nothing and brings nothing")

	global.mustWith("{type: Zone, name: east, enabled: true}", "apply", "-f", "-")
	global.awaitState("east", "in-sync")
	east.await("the change it missed", func() bool {
		conf, _, _ := confOf(t, east.must("inspect", "dataplane", "web-1", "-o", "json"), "Timeout")
		return conf == `{"connectTimeout":"9s"}`
	})
}

// acknowledged applies batches one after the other until the server is gone, and
// returns the number of the last one that was acknowledged. Batch n writes the
// policies p-0 to p-4 with n milliseconds each, so that a torn batch shows.
func acknowledged(ctx context.Context, command, config string, from int) (last int, err error) {
	for n := from; ; n++ {
		var batch strings.Builder
		for i := range 5 {
			batch.WriteString("---" + timeout(fmt.Sprintf("p-%d", i), "backend", fmt.Sprintf("%dms", n)))
		}
		cmd := exec.CommandContext(ctx, command, "apply", "-f", "-", "--timeout", "1s")
		cmd.Env = append(cmd.Environ(), "MERIDIAN_CONFIG="+config)
		cmd.Stdin = strings.NewReader(batch.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return n - 1, fmt.Errorf("%w: %s", err, out)
		}
	}
}

// stored reads the batch number that a server holds, and fails on a torn batch.
func (p *process) stored() int {
	p.t.Helper()
	seen := map[string]bool{}
	last := ""
	for _, r := range items(p.t, p.must("get", "timeouts", "-o", "json")) {
		conf := r["conf"].(map[string]any)
		last = conf["connectTimeout"].(string)
		seen[last] = true
	}
	require.LessOrEqual(p.t, len(seen), 1, "a batch is there whole or not at all")
	if last == "" {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSuffix(last, "ms"))
	require.NoError(p.t, err)
	return n
}

// §7.1, §7.3: kill -9 of the global at any moment loses no
// acknowledged write and leaves no half-applied batch, there or in a zone.
func TestKilledGlobalLosesNoAcknowledgedWrite(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.pin()
	east := newZone(t, global, "east").start().ready()
	last, command := 0, programPath(t, "meridian")
	for round := range 4 {
		type outcome struct {
			n   int
			err error
		}
		done := make(chan outcome, 1)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		go func() {
			n, err := acknowledged(ctx, command, filepath.Join(global.dir, "admin.yaml"), last+1)
			done <- outcome{n, err}
		}()
		want := last + 3 + round
		east.await("the writer to get going", func() bool { return east.stored() >= want })
		global.kill()
		got := <-done
		cancel()
		require.Error(t, got.err)
		global.start().ready()
		stored := global.stored()
		require.GreaterOrEqual(t, stored, got.n, "round %d: an acknowledged write is lost", round)
		require.LessOrEqual(t, stored, got.n+1, "round %d: a write that was never made", round)
		last = stored
		global.awaitState("east", "in-sync")
		east.await("the zone to hold what the global holds", func() bool { return east.stored() == stored })
	}
}

// §7.3, §7.6: kill -9 of a zone while changes arrive leaves a whole
// prefix of the global's history on its disk.
func TestKilledZoneResumesFromItsDisk(t *testing.T) {
	global := newGlobal(t).start().ready()
	global.pin()
	east := newZone(t, global, "east").start().ready()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done, command := make(chan int, 1), programPath(t, "meridian")
	go func() {
		n, _ := acknowledged(ctx, command, filepath.Join(global.dir, "admin.yaml"), 1)
		done <- n
	}()
	for range 4 {
		at := east.stored()
		east.await("changes to arrive", func() bool { return east.stored() >= at+2 })
		held := east.stored()
		east.kill()
		east.start().ready()
		require.GreaterOrEqual(t, east.stored(), held, "what a zone has shown is on its disk")
	}
	cancel()
	<-done
	global.awaitState("east", "in-sync")
	// What was cut off last may yet be written, so the global is asked each time.
	east.await("the last change", func() bool { return east.stored() == global.stored() })
}

// SIGTERM drains and exits 0 within 10 s, with streams open.
func TestServersStopInTime(t *testing.T) {
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	global.awaitState("east", "in-sync")
	for _, p := range []*process{global, east} {
		began := time.Now()
		require.Zero(t, p.stop(), p.log.String())
		require.Less(t, time.Since(began), 10*time.Second)
	}
}
