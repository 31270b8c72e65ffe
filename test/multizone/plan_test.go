//go:build multizone

package multizone

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/plan"
)

const planCaller = `{type: Dataplane, mesh: default, name: orders-1, networking: {address: 10.0.0.1, inbound: [{port: 8080, tags: {kuma.io/service: orders}}]}}
`

const planCalled = `{type: Dataplane, mesh: default, name: payments-1, networking: {address: 10.0.0.2, inbound: [{port: 8080, tags: {kuma.io/service: payments}}]}}
`

const planDeny = `{type: MeshTrafficPermission, mesh: default, name: deny-all, targetRef: {kind: Mesh}, from: [{targetRef: {kind: Mesh}, default: {action: DENY}}]}
`

// A plan counts connections between zones, names a zone that is away, and is applied only
// while it does the same.
func TestAPlanAsksTheZones(t *testing.T) {
	t.Parallel()
	global := newGlobal(t).start().ready()
	east := newZone(t, global, "east").start().ready()
	west := newZone(t, global, "west").start().ready()
	global.awaitState("east", "in-sync")
	global.awaitState("west", "in-sync")
	east.mustWith(planCaller+"---\n"+planCalled, "apply", "-f", "-")
	west.mustWith(planCaller, "apply", "-f", "-")

	// In a zone that has the change of a rollout, a plan compares with that.
	const staged = "{type: Timeout, mesh: default, name: slow, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: payments}}], conf: {connectTimeout: 5s}}"
	global.mustWith(staged, "apply", "-f", "-", "--wait=zones")
	begun := global.mustWith(strings.Replace(staged, "5s", "9s", 1), "apply", "-f", "-", "--rollout", "zones=east,then=all", "--manual", "-o", "name")
	rollout := strings.TrimPrefix(strings.TrimSpace(begun), "Rollout/")
	east.await("the change of the rollout", func() bool { return east.timeouts()["slow"] == "9s" })
	added := strings.Replace(planCaller, "orders-1, networking: {", "orders-2, networking: {outbound: [{port: 9000, tags: {kuma.io/service: payments}}], ", 1)
	for zone, shown := range map[*process]string{east: "9s", west: "5s"} {
		planned := zone.commandWith(added, "plan", "-f", "-")
		require.Equal(t, 1, planned.code, planned.stderr)
		require.Contains(t, planned.stdout, `Timeout /connectTimeout: none → "`+shown+`" by slow`)
	}
	refused := global.commandWith(strings.Replace(staged, "5s", "7s", 1), "plan", "-f", "-")
	require.Equal(t, 3, refused.code, refused.stdout)
	require.Contains(t, refused.stderr, "is being changed by rollout "+rollout)
	global.must("rollout", "abort", rollout)
	global.must("delete", "Timeout", "slow")

	r := global.commandWith(planDeny, "plan", "-f", "-")
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stdout, "orders and payments → orders and payments: allowed → denied by deny-all, 4 connections in zone east\n")
	require.Contains(t, r.stdout, "orders and payments → orders: allowed → denied by deny-all, 2 connections in zone west\n")
	require.NotContains(t, r.stdout, "Not certain")

	file := filepath.Join(t.TempDir(), "deny.plan")
	require.Equal(t, 1, global.commandWith(planDeny, "plan", "-f", "-", "--out", file).code)
	west.mustWith(planCalled, "apply", "-f", "-") // more connections than were planned
	r = global.command("apply", file)
	require.Equal(t, 3, r.code, r.stdout)
	require.Contains(t, r.stderr, "would do something else by now")
	require.Equal(t, 1, global.commandWith(planDeny, "plan", "-f", "-", "--out", file).code)
	r = global.command("apply", file, "--wait=zones")
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, 3, global.command("apply", file).code, "what is stored is not what it was")

	for _, zone := range []string{"east", "west"} {
		r = global.command("inspect", "connection", "--from", "orders-1", "--from-zone", zone, "--to", "payments-1", "--to-zone", "east", "-o", "jsonpath={.allowed}")
		require.Equal(t, "false\n", r.stdout, r.stderr)
	}
	require.Equal(t, 2, global.command("plan", "-f", file).code, "a plan is no document")

	require.Zero(t, west.stop())
	global.awaitState("west", "offline")
	r = global.command("plan", "delete", "MeshTrafficPermission", "deny-all", "-o", "json")
	require.Equal(t, 1, r.code, r.stderr)
	var d plan.Document
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &d))
	require.Len(t, d.Connections, 2)
	require.Len(t, d.Incomplete, 1)
	require.Equal(t, "west", string(d.Incomplete[0].Zone))
	require.Equal(t, 6, global.command("plan", "delete", "MeshTrafficPermission", "deny-all", "--strict").code)
}
