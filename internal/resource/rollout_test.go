package resource_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// rolloutYAML is a rollout as its command writes it.
const rolloutYAML = `
type: Rollout
name: timeouts
stages:
- zones: [canary-*]
- percent: 25
- all: true
interval: 5m
haltOn: zone.rejected > 0
changes:
- put:
    type: Timeout
    mesh: default
    name: all
    labels: {team: a}
    spec: {sources: [{match: {kuma.io/service: "*"}}], destinations: [{match: {kuma.io/service: "*"}}], conf: {connectTimeout: 5s}}
  replaces: 3
- delete: {type: Retry, mesh: default, name: all}
  replaces: 1
status: {phase: Progressing, stage: 1, zones: [canary-1, canary-2], since: "2026-01-31T20:00:00Z", author: mallory}
`

func TestRollout(t *testing.T) {
	r := acceptOne(t, rolloutYAML, resource.DecodeOptions{})
	requireRoundTrip(t, r)
	rollout := r.Spec().(*resource.Rollout)
	require.Equal(t, 5*time.Minute, rollout.Interval.Value())
	require.Equal(t, time.Date(2026, 1, 31, 20, 0, 0, 0, time.UTC), rollout.Status.Began())

	put := rollout.Changes[0].Put.Resource()
	require.Equal(t, resource.Meta{Key: key("Timeout", "default", "all"), Labels: map[string]string{"team": "a"}}, put.Meta())
	require.Equal(t, "5s", put.Spec().(*resource.Timeout).Conf.ConnectTimeout.String(), "typed, as if it had been applied")
	direct, _, err := resource.Build(put.Meta(), put.Canonical())
	require.NoError(t, err)
	require.Equal(t, direct.Hash(), put.Hash(), "the bytes are those of the resource")
	require.Equal(t, key("Retry", "default", "all"), rollout.Changes[1].Key())

	text, err := json.Marshal(rollout)
	require.NoError(t, err)
	again, _, err := resource.Build(resource.Meta{Key: r.Key()}, text)
	require.NoError(t, err, "%s", text)
	require.JSONEq(t, string(r.Canonical()), string(again.Canonical()), "what Go writes is what was read")
	require.Equal(t, put.Hash(), resource.NewRolloutDocument(put.WithMeta(resource.Meta{Key: put.Key(), Labels: put.Meta().Labels, Version: 4})).Resource().Hash())
}

func TestRolloutShows(t *testing.T) {
	status := resource.RolloutStatus{Phase: resource.RolloutProgressing, Zones: []resource.ZoneName{"east", "west"}}
	for zone, want := range map[resource.ZoneName]bool{"east": true, "west": true, "north": false, "": false, "eas": false} {
		require.Equal(t, want, status.Shows(zone), zone)
	}
	status.Phase = resource.RolloutHalted
	require.True(t, status.Shows("east"), "a halt takes nothing back")
	status.All = true
	require.True(t, status.Shows("north"))
	for _, over := range []resource.RolloutPhase{resource.RolloutAborted, resource.RolloutCompleted} {
		status.Phase = over
		require.False(t, status.Shows("east"))
	}
}

// Every kind that zones are sent can be changed by stages, but for what decides who is
// trusted, which is to hold everywhere at once, and for rollouts.
func TestKindsInRollouts(t *testing.T) {
	for _, d := range resource.Kinds() {
		apart := d.Kind == "Rollout" || d.Kind == "SigningKey" || d.Kind == "TokenRevocation"
		require.Equal(t, d.Synced && !apart, resource.InRollouts(d.Kind), d.Kind)
	}
	require.False(t, resource.InRollouts("Nonsense"))
}

func TestRolloutRefusals(t *testing.T) {
	const document = `{type: Mesh, name: m, spec: {}}`
	const put = `{put: ` + document + `}`
	spec := func(stages, changes, status string) string {
		return "{stages: " + stages + ", changes: " + changes + ", status: " + status + "}"
	}
	const stages, status = `[{all: true}]`, `{phase: Progressing, stage: 1}`
	changes := func(changes string) string { return spec(stages, changes, status) }
	tests := []struct{ rule, spec, want string }{
		{"nothing is wrong", changes("[" + put + "]"), ""},
		{"what is needed", "{}", "stages: is required\nchanges: is required\nstatus: is required"},
		{"stages", spec("[]", "["+put+"]", status), "stages: has 0 stages; a rollout has 1 to 16\nstatus.stage: is 1 of 0 stages"},
		{"too many stages", spec("["+strings.Repeat("{percent: 1}, ", 16)+"{all: true}]", "["+put+"]", status), "stages: has 17 stages; a rollout has 1 to 16"},
		{"the last stage is for all", spec("[{percent: 5}]", "["+put+"]", status), "stages[0].all: belongs to the last stage, and the last stage needs it"},
		{"only the last stage is for all", spec("[{all: true}, {all: true}]", "["+put+"]", status), "stages[0].all: belongs to the last stage, and the last stage needs it"},
		{"one way", spec("[{percent: 5, zones: [a]}, {all: true}]", "["+put+"]", status), "stages[0]: needs exactly one of zones, percent and all"},
		{"no way", spec("[{}, {all: true}]", "["+put+"]", status), "stages[0]: needs exactly one of zones, percent and all"},
		{"no zones", spec("[{zones: []}, {all: true}]", "["+put+"]", status), "stages[0].zones: needs at least one zone"},
		{"percent", spec("[{percent: 101}, {all: true}]", "["+put+"]", status), "stages[0].percent: must be between 1 and 100, got 101"},
		{"a pattern", spec(`[{zones: ["*", "a*b", "A"]}, {all: true}]`, "["+put+"]", status), `stages[0].zones[2]: "A" cannot hold 'A': a name is made of lower-case letters, digits, - and .; "a" would do`},
		{"changes", changes("[]"), "changes: has 0 changes; a rollout has 1 to 10000"},
		{"put or delete", changes("[{}]"), "changes[0]: needs exactly one of put and delete"},
		{"put and delete", changes("[{put: " + document + ", delete: {type: Mesh, name: m}, replaces: 1}]"), "changes[0]: needs exactly one of put and delete"},
		{"once each", changes("[" + put + ", {delete: {type: Mesh, name: m}, replaces: 1}]"), "changes[1]: Mesh/m is changed by changes[0] already; keep one of them"},
		{"nothing to delete", changes("[{delete: {type: Mesh, name: m}}]"), "changes[0].replaces: is required: a resource that does not exist cannot be deleted"},
		{"what is deleted", changes("[{delete: {type: Timeout, name: T}, replaces: 1}]"), "changes[0].delete.name: \"T\" cannot hold 'T': a name is made of lower-case letters, digits, - and .; \"t\" would do\nchanges[0].delete.mesh: a name is required"},
		{"no such kind to delete", changes("[{delete: {type: Timeouts, name: t}, replaces: 1}]"), "changes[0].delete.type: unknown kind \"Timeouts\"; did you mean \"Timeout\"?"},
		{"a kind that is not synced", changes("[{delete: {type: Zone, name: z}, replaces: 1}, {put: {type: AccessRole, name: a, spec: {}}}]"), "changes[1].put.type: resources of kind AccessRole cannot be changed stage by stage\nchanges[0].delete.type: resources of kind Zone cannot be changed stage by stage"},
		{"a rollout in a rollout", changes("[{put: {type: Rollout, name: r, spec: {}}}]"), "changes[0].put.type: resources of kind Rollout cannot be changed stage by stage"},
		{"a document is checked", changes("[{put: {type: Mesh, name: M, spec: {mtls: {enabledBackend: ca}, x: 1}}}]"), "changes[0].put.name: \"M\" cannot hold 'M': a name is made of lower-case letters, digits, - and .; \"m\" would do\nchanges[0].put.spec.x: unknown field `x`; known here: mtls, logging, tracing, metrics, networking, routing, constraints, matching\nchanges[0].put.spec.mtls.enabledBackend: there is no backend \"ca\" in `backends`"},
		{"the mesh of a document", changes("[{put: {type: Timeout, name: t, spec: {}}}]"), "changes[0].put.mesh: is required"},
		{"the spec of a document", changes("[{put: {type: Mesh, name: m}}]"), "changes[0].put.spec: is required"},
		{"no other form", changes("[{put: {kind: Mesh, metadata: {name: m}, spec: {}}}]"), "changes[0].put.kind: unknown field `kind`; known here: type, mesh, name, labels, spec"},
		{"no document", changes("[{put: Mesh}]"), "changes[0].put: expected a document with `type`, `name` and `spec`, got the string \"Mesh\""},
		{"a stage that is not there", spec(stages, "["+put+"]", "{phase: Progressing, stage: 2}"), "status.stage: is 2 of 1 stages"},
		{"a phase", spec(stages, "["+put+"]", "{phase: Done, stage: 1}"), "status.phase: unknown value \"Done\"; use one of Progressing, Halted, Completed, Aborted"},
		{"zones in order", spec(stages, "["+put+"]", "{phase: Progressing, stage: 1, zones: [b, a, a]}"), "status.zones[1]: zones are sorted by name, and each is there once\nstatus.zones[2]: zones are sorted by name, and each is there once"},
		{"nothing after the end", spec(stages, "["+put+"]", "{phase: Aborted, stage: 1, zones: [a]}"), "status.zones: no zone has the change of a rollout that is over"},
		{"a time", spec(stages, "["+put+"]", "{phase: Halted, stage: 1, since: now}"), `status.since: expected a time such as 2026-01-31T20:00:00Z, got the string "now"`},
		{"a long condition", strings.Replace(changes("["+put+"]"), "{", "{haltOn: "+strings.Repeat("x", 5000)+", ", 1), "haltOn: takes 5000 bytes; a condition takes at most 4096"},
		{"a long reason", spec(stages, "["+put+"]", "{phase: Halted, stage: 1, reason: "+strings.Repeat("x", 5000)+"}"), "status.reason: takes 5000 bytes; at most 4096 are allowed"},
	}
	for _, test := range tests {
		t.Run(test.rule, func(t *testing.T) { require.Equal(t, test.want, refusal(t, "Rollout", test.spec)) })
	}
	var many []string
	for i := range resource.MaxRolloutChanges + 1 {
		many = append(many, fmt.Sprintf("{delete: {type: Mesh, name: m-%d}, replaces: 1}", i))
	}
	require.Equal(t, "changes: has 10001 changes; a rollout has 1 to 10000", refusal(t, "Rollout", changes("["+strings.Join(many, ", ")+"]")))
}
