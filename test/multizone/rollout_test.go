//go:build multizone

package multizone

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/audit"
)

// timeoutOf is a Timeout with a value.
func timeoutOf(name, value string) string {
	return fmt.Sprintf("---\n{type: Timeout, mesh: default, name: %s, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: '*'}}], conf: {connectTimeout: %s}}\n", name, value)
}

// rolloutStatus is what `meridian rollout status -o json` says.
type rolloutStatus struct {
	Phase  string `json:"phase"`
	Reason string `json:"reason"`
	Zones  []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"zones"`
}

// changed are the zones that have applied and stored the change of a rollout, and of
// which the global knows it.
func (r rolloutStatus) changed() []string {
	var names []string
	for _, z := range r.Zones {
		if z.State == "changed" {
			names = append(names, z.Name)
		}
	}
	return names
}

// rollout is the status of a rollout; empty while no answer comes.
func (p *process) rollout(name string) (r rolloutStatus) {
	p.t.Helper()
	if out := p.command("rollout", "status", name, "-o", "json").stdout; out != "" {
		require.NoError(p.t, json.Unmarshal([]byte(out), &r), out)
	}
	return r
}

func (p *process) awaitRollout(name, what string, holds func(rolloutStatus) bool) {
	p.t.Helper()
	p.await(fmt.Sprintf("rollout %s %s", name, what), func() bool { return holds(p.rollout(name)) })
}

// timeouts are the connect timeouts that a server shows, by name.
func (p *process) timeouts() map[string]string {
	p.t.Helper()
	var listed struct {
		Items []struct {
			Name string `json:"name"`
			Conf struct {
				ConnectTimeout string `json:"connectTimeout"`
			} `json:"conf"`
		} `json:"items"`
	}
	values := map[string]string{}
	r := p.command("get", "timeouts", "-o", "json")
	if r.code != 0 {
		return nil
	}
	require.NoError(p.t, json.Unmarshal([]byte(r.stdout), &listed), r.stdout)
	for _, item := range listed.Items {
		values[item.Name] = item.Conf.ConnectTimeout
	}
	return values
}

// awaitTimeouts waits until a server shows all of after, which it gets at once: until
// then it shows all of before.
func (p *process) awaitTimeouts(before, after map[string]string) {
	p.t.Helper()
	p.await(fmt.Sprintf("%v", after), func() bool {
		got := p.timeouts()
		if got != nil && fmt.Sprint(got) != fmt.Sprint(after) {
			require.Equal(p.t, before, got, "%s shows neither what it had nor what it is to have", p.name)
		}
		return fmt.Sprint(got) == fmt.Sprint(after)
	})
}

// A rollout reaches one zone after the other, the whole of it at once. An abort returns
// every zone to what it had. A zone keeps its stage while the global is down, over its own
// restart, and one that is new has that of all others. A condition halts.
func TestARolloutReachesOneZoneAfterTheOther(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	global.pin()
	canary, west := newZone(t, global, "canary").start(), newZone(t, global, "west").start()
	for _, zone := range []*process{canary.ready(), west.ready()} {
		global.awaitState(zone.name, "in-sync")
	}
	old := map[string]string{"web": "1s"}
	global.mustWith(timeoutOf("web", "1s"), "apply", "-f", "-", "--wait=zones")

	changed := map[string]string{"web": "2s", "api": "3s"}
	global.mustWith(timeoutOf("web", "2s")+timeoutOf("api", "3s"), "apply", "-f", "-", "--rollout", "zones=canary,then=all", "--manual", "--rollout-name", "first")
	canary.awaitTimeouts(old, changed)
	for _, other := range []*process{global, west} {
		require.Equal(t, old, other.timeouts(), other.name)
	}
	held := global.commandWith(timeoutOf("web", "9s"), "apply", "-f", "-")
	require.Equal(t, 3, held.code, held.stderr)
	require.Contains(t, held.stderr, "is being changed by rollout first")

	// Without the global, and restarted, the canary keeps its stage, and west its own.
	global.awaitRollout("first", "to be stored by the canary", func(r rolloutStatus) bool { return slices.Equal(r.changed(), []string{"canary"}) })
	global.kill()
	for _, zone := range []*process{canary, west} {
		zone.kill()
		zone.start().ready()
	}
	require.Equal(t, changed, canary.timeouts())
	require.Equal(t, old, west.timeouts())
	global.start().ready()

	global.must("rollout", "abort", "first")
	canary.awaitTimeouts(changed, old)
	require.Equal(t, 3, global.command("rollout", "promote", "first").code)

	// What halts leaves every zone as it is, until it is promoted.
	global.mustWith(timeoutOf("web", "4s"), "apply", "-f", "-", "--rollout", "zones=canary,then=all", "--manual", "--halt-on", "zone.connected", "--rollout-name", "second")
	global.awaitRollout("second", "to halt", func(r rolloutStatus) bool { return r.Phase == "Halted" })
	halted := global.command("rollout", "status", "second")
	require.Equal(t, 3, halted.code, halted.stdout)
	require.Contains(t, halted.stdout+halted.stderr, "zone canary")
	last := map[string]string{"web": "4s"}
	canary.awaitTimeouts(old, last)
	require.Equal(t, old, west.timeouts())
	global.must("rollout", "abort", "second")
	canary.awaitTimeouts(last, old)

	// A zone that joins while the last stage is on has the change. Completing it changes
	// no zone, and the history of what it has written names it, and who is behind it.
	global.mustWith(timeoutOf("web", "4s"), "apply", "-f", "-", "--rollout", "zones=canary,then=all", "--interval", "1h", "--rollout-name", "third")
	canary.awaitTimeouts(old, last)
	global.must("rollout", "promote", "third")
	west.awaitTimeouts(old, last)
	east := newZone(t, global, "east").start().ready()
	east.awaitTimeouts(map[string]string{}, last)
	require.Equal(t, old, global.timeouts())
	global.must("rollout", "promote", "third")
	for _, p := range []*process{global, canary, west, east} {
		p.awaitTimeouts(map[bool]map[string]string{true: old, false: last}[p == global], last)
	}
	require.Regexp(t, `updated +admin +rollout third`, global.must("history", "timeout", "web"))
	global.await("the audit log to name author and promoter", func() bool {
		return slices.ContainsFunc(global.audited(), func(r audit.Record) bool {
			return r.Who.Name == "admin" && strings.Contains(r.Rule, "rollout third, begun by admin") &&
				slices.ContainsFunc(r.Targets, func(target audit.Target) bool { return target.Kind == "Timeout" && target.Name == "web" })
		})
	})
}

// The leader is killed while one zone of two has a change: the next leader completes it,
// and no zone shows a part of it at any time.
func TestARolloutOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	canary, west := newZone(t, servers[0], "canary").start(), newZone(t, servers[0], "west").start()
	for _, zone := range []*process{canary.ready(), west.ready()} {
		servers[0].awaitState(zone.name, "in-sync")
	}
	old, changed := map[string]string{"web": "1s"}, map[string]string{"web": "2s", "api": "3s"}
	servers[0].mustWith(timeoutOf("web", "1s"), "apply", "-f", "-", "--wait=zones")
	leader := servers[0].leader(servers...)
	leader.mustWith(timeoutOf("web", "2s")+timeoutOf("api", "3s"), "apply", "-f", "-", "--rollout", "zones=canary,then=all", "--interval", "2s", "--rollout-name", "r")
	canary.awaitTimeouts(old, changed)
	leader.kill()
	rest := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == leader })
	rest[0].leader(rest...)
	leader.start() // until it answers, or is given up for lost, no stage ends
	west.awaitTimeouts(old, changed)
	rest[0].awaitRollout("r", "to be completed", func(r rolloutStatus) bool { return r.Phase == "Completed" })
	for _, p := range append(rest, canary, west) {
		require.Equal(t, changed, p.timeouts(), p.name)
	}
}

// shown are the documents that a server shows, but for rollouts.
func (p *process) shown() string {
	p.t.Helper()
	return p.must("get", "meshes", "-o", "json") + p.must("get", "timeouts", "-o", "json")
}

// With three zones, the leader is killed between two stages: the next one has the stage
// that was stored, and continues. An abort returns every zone to what it had, byte for byte.
func TestAnAbortAfterALeaderWasKilled(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	var zones []*process
	for _, name := range []string{"a", "b", "c"} {
		zones = append(zones, newZone(t, servers[0], name).start())
	}
	for _, zone := range zones {
		zone.ready()
		servers[0].awaitState(zone.name, "in-sync")
	}
	servers[0].mustWith(timeoutOf("web", "1s"), "apply", "-f", "-", "--wait=zones")
	old, changed := map[string]string{"web": "1s"}, map[string]string{"web": "2s", "api": "3s"}
	before := map[string]string{}
	for _, zone := range zones {
		before[zone.name] = zone.shown()
	}
	leader := servers[0].leader(servers...)
	leader.mustWith(timeoutOf("web", "2s")+timeoutOf("api", "3s"), "apply", "-f", "-", "--rollout", "zones=a,then=b,then=all", "--manual", "--rollout-name", "r")
	zones[0].awaitTimeouts(old, changed)
	leader.kill()
	rest := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == leader })
	next := rest[0].leader(rest...)
	next.must("rollout", "promote", "r")
	zones[1].awaitTimeouts(old, changed)
	require.Equal(t, old, zones[2].timeouts(), "no stage is skipped")
	next.must("rollout", "abort", "r")
	for _, zone := range zones {
		zone.awaitTimeouts(changed, old)
		require.Equal(t, before[zone.name], zone.shown(), zone.name)
	}
}

// In processes: who may begin, promote and abort a rollout, and who may skip the tests
// that a mesh carries. A stage whose tests fail is not begun.
func TestRightsAndTestsOfRollouts(t *testing.T) {
	t.Parallel()
	global := newGlobal(t, "--default-access=restricted").start().ready()
	canary := newZone(t, global, "canary").start().ready()
	global.awaitState("canary", "in-sync")
	meshTest := func(most string) string {
		return `---
type: MeshTest
mesh: default
name: default
dataplanes:
- {name: web, networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}], outbound: [{port: 9000, tags: {kuma.io/service: api}}]}}
cases:
- {name: answers come soon, dataplane: web, kind: Timeout, to: api, field: connectTimeout, expect: "<= ` + most + `"}
`
	}
	global.mustWith(timeoutOf("web", "1s")+meshTest("5s")+`---
{type: AccessRole, name: changes, rules: [{types: [Timeout], access: [CREATE, UPDATE, DELETE]}]}
---
{type: AccessRole, name: rolls, rules: [{types: [Rollout], access: [CREATE, UPDATE]}]}
---
{type: AccessRoleBinding, name: changes, subjects: [{type: User, name: changes}, {type: User, name: both}], roles: [changes]}
---
{type: AccessRoleBinding, name: rolls, subjects: [{type: User, name: rolls}, {type: User, name: both}], roles: [rolls]}
`, "apply", "-f", "-", "--wait=zones")
	configs := map[string]string{}
	as := func(user, stdin string, args ...string) result {
		if configs[user] == "" {
			configs[user] = global.as(strings.TrimSpace(global.must("generate", "user-token", "--name", user, "--valid-for", "1h")))
		}
		return meridian(t, configs[user], stdin, args...)
	}
	begin := func(name string) []string {
		return []string{"apply", "-f", "-", "--rollout", "zones=canary,then=all", "--manual", "--rollout-name", name}
	}
	for _, user := range []string{"changes", "rolls"} {
		require.Equal(t, 4, as(user, timeoutOf("web", "2s"), begin("r")...).code, "%s lacks one of the rights", user)
	}
	broken := as("both", timeoutOf("web", "9s"), begin("r")...)
	require.Equal(t, 2, broken.code, broken.stderr)
	require.Contains(t, broken.stderr, "answers come soon")
	require.Equal(t, 4, as("both", timeoutOf("web", "9s"), append(begin("r"), "--skip-tests")...).code, "it takes the right to delete them")

	began := as("both", timeoutOf("web", "4s"), begin("r")...)
	require.Zero(t, began.code, began.stderr)
	old, changed := map[string]string{"web": "1s"}, map[string]string{"web": "4s"}
	canary.awaitTimeouts(old, changed)
	for _, verb := range []string{"promote", "abort"} {
		require.Equal(t, 4, as("changes", "", "rollout", verb, "r").code, verb)
	}

	// The tests become stricter, which they may: what is written passes.
	global.mustWith(meshTest("3s"), "apply", "-f", "-")
	refused := as("both", "", "rollout", "promote", "r")
	require.Equal(t, 2, refused.code, refused.stderr)
	require.Contains(t, refused.stderr, `expected connectTimeout of Timeout to be "<= 3s", but it is "4s"`)
	require.Equal(t, 4, as("both", "", "rollout", "promote", "r", "--skip-tests").code)
	skipped := global.command("rollout", "promote", "r", "--skip-tests")
	require.Zero(t, skipped.code, skipped.stderr)
	require.Contains(t, skipped.stderr, "tests skipped")
	global.must("rollout", "promote", "r")
	require.Equal(t, changed, global.timeouts())
	global.await("the audit log to have the tests that were skipped", func() bool {
		return slices.ContainsFunc(global.audited(), func(r audit.Record) bool {
			return strings.Contains(r.Rule, "tests skipped") && strings.Contains(r.Rule, "answers come soon") && strings.Contains(r.Method, "PromoteRollout")
		})
	})
}
