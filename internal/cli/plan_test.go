package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"meridian/internal/cli/exit"
	"meridian/internal/plan"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const deployed = `{type: Mesh, name: default, mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}}
---
{type: Dataplane, mesh: default, name: orders-1, networking: {address: 10.0.0.1, inbound: [{port: 8080, tags: {kuma.io/service: orders}}], outbound: [{port: 9000, tags: {kuma.io/service: payments}}]}}
---
{type: Dataplane, mesh: default, name: orders-2, networking: {address: 10.0.0.2, inbound: [{port: 8080, tags: {kuma.io/service: orders}}], outbound: [{port: 9000, tags: {kuma.io/service: payments}}]}}
---
{type: Dataplane, mesh: default, name: payments-1, networking: {address: 10.0.0.3, inbound: [{port: 8080, tags: {kuma.io/service: payments}}]}}
---
{type: TrafficPermission, mesh: default, name: allow-orders, sources: [{match: {kuma.io/service: orders}}], destinations: [{match: {kuma.io/service: payments}}]}
---
{type: Timeout, mesh: default, name: slow, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: payments}}], conf: {connectTimeout: 5s}}
---
{type: AccessRole, name: ops, rules: [{mesh: default, types: [Timeout], access: [CREATE, UPDATE]}]}
---
{type: AccessRoleBinding, name: ops, subjects: [{type: Group, name: ops}], roles: [ops]}
`

const proposed = `{type: MeshTrafficPermission, mesh: default, name: deny-all, targetRef: {kind: Mesh}, from: [{targetRef: {kind: Mesh}, default: {action: DENY}}]}
---
{type: Timeout, mesh: default, name: slow, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: payments}}], conf: {connectTimeout: 10s}}
---
{type: Timeout, mesh: default, name: nowhere, sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: billing}}], conf: {connectTimeout: 10s}}
---
{type: AccessRole, name: ops, rules: [{mesh: default, types: [Timeout], access: [UPDATE]}]}
`

// TestPlanOfFiles is the transcript of `meridian plan` and `plan delete` without a server.
func TestPlanOfFiles(t *testing.T) {
	h := newHarness(t)
	state, change := h.write("deployed/all.yaml", deployed), h.write("new/all.yaml", proposed)
	out := h.run("plan", "-f", change, "--from-files", state, "--zone", "east")
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Equal(t, `Access
  orders → payments: allowed → denied by deny-all, 2 connections in zone east

Configuration
  Timeout /connectTimeout: "5s" → "10s" by slow, on outbound payments of 2 dataplanes in zone east

Rights
  group ops loses CREATE on Timeout in mesh default, by rules[0] of AccessRole ops, through AccessRoleBinding ops

Resources
  MeshTrafficPermission/deny-all created
  Timeout/slow updated
  Timeout/nowhere created
  AccessRole/ops updated

Warning: Timeout/default/nowhere: takes effect nowhere: it matches nothing on the 3 dataplanes that are known
`, withoutAdvice(out.stdout))

	out = h.run("plan", "-f", change, "--from-files", state, "-o", "json")
	require.Equal(t, exit.No, out.code)
	var d plan.Document
	require.NoError(t, json.Unmarshal([]byte(out.stdout), &d))
	require.Len(t, d.Connections, 2)
	require.Equal(t, "orders-1", d.Connections[0].From)
	require.True(t, *d.Connections[0].Before)
	require.False(t, *d.Connections[0].After)
	require.Equal(t, []string{"deny-all"}, d.Connections[0].By)
	require.NotNil(t, d.Warnings, "an empty list is none in JSON either")
	require.Len(t, d.Findings, 2)
	require.Equal(t, "dead-policy", d.Findings[0].Code)
	require.Equal(t, "both-generations", d.Findings[1].Code)
	require.Equal(t, "allow-orders", d.Findings[1].Name, "a policy that the change does not name")
	require.Len(t, d.Fields, 2)
	require.Equal(t, "5s", d.Fields[0].Before)
	require.Equal(t, "10s", d.Fields[0].After)

	out = h.run("plan", "delete", "traffic-permission", "allow-orders", "--from-files", state)
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Equal(t, `Access
  orders → payments: allowed → denied: no permission allows it, 2 connections in zone default

Resources
  TrafficPermission/allow-orders deleted

Warning: Mesh/default: mtls.enabledBackend: denies every connection: with mutual TLS a caller needs a TrafficPermission or MeshTrafficPermission, and mesh default has none
`, out.stdout)
	out = h.run("plan", "delete", "TrafficPermission/allow-orders", "Timeout/slow", "--from-files", state)
	require.Contains(t, out.stdout, "Warning: mesh default would be left without policies\n")

	out = h.run("plan", "-f", state, "--from-files", state)
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "Nothing would change.\n", withoutAdvice(out.stdout))
	require.Empty(t, h.server.Calls, "files need no server")

	for args, want := range map[string]string{
		"plan":                            "-f is required",
		"plan -f " + change + " --zone e": "--zone is about --from-files",
		"plan -f " + change + " --out p --from-files " + state: "--out keeps a plan of a control plane",
		"plan delete Timeout none --from-files " + state:       "is not in the documents of --from-files",
		"apply " + change: "documents are given with -f",
		"apply none.plan": "does not exist",
		"apply a -f b":    "documents are given with -f",
	} {
		out := h.run(strings.Fields(args)...)
		require.NotEqual(t, exit.OK, out.code, args)
		require.Contains(t, out.stderr, want, args)
	}
}

// withoutAdvice leaves out the warnings that every author gets.
func withoutAdvice(page string) string {
	var kept []string
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "Warning: ") || strings.Contains(line, "takes effect nowhere") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestPlanFiles: a plan is applied while it does what it did, and no longer.
func TestPlanFiles(t *testing.T) {
	h := newHarness(t)
	allowed, denied := true, false
	p := plan.New()
	p.Changes = []plan.Change{{Kind: "Mesh", Name: "demo", Outcome: plan.Created}}
	p.Connections = []plan.Connections{{Mesh: "demo", From: []string{"a"}, To: []string{"b"}, Before: &allowed, After: &denied, By: []string{"deny"}, Zone: "east", Count: 2}}
	says := func() {
		var err error
		h.server.Plan, err = json.Marshal(p)
		require.NoError(t, err)
	}
	says()
	mesh := h.write("mesh.yaml", "{type: Mesh, name: demo}\n")
	file := filepath.Join(h.home, "demo.plan")
	out := h.run("plan", "-f", mesh, "--out", file)
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Contains(t, out.stdout, "a → b: allowed → denied by deny, 2 connections in zone east of mesh demo")
	require.Empty(t, h.server.Stored, "a plan writes nothing")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	p.Connections[0].Count++
	says()
	out = h.run("apply", file)
	require.Equal(t, exit.Conflict, out.code, out.stderr)
	require.Contains(t, out.stderr, "would do something else by now")
	require.Empty(t, h.server.Stored)

	p.Connections[0].Count--
	p.AsOf += 7 // other writes have no part in it
	says()
	out = h.run("apply", file, "--dry-run")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Empty(t, h.server.Stored)
	out = h.run("apply", file)
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "Takes away: a → b: allowed → denied by deny, 2 connections in zone east of mesh demo\n")
	require.Contains(t, out.stdout, "Mesh/demo created\n")
	require.Len(t, h.server.Stored, 1)

	out = h.run("apply", file)
	require.Equal(t, exit.Conflict, out.code, "what is stored is not what it was: %s", out.stderr)
	require.Contains(t, out.stderr, "a → b: allowed → denied by deny, 2 connections in zone east of mesh demo\n", "what it would do by now")
	require.Contains(t, out.stderr, "what is stored is not what it was when the change was planned")
	require.Contains(t, out.stderr, "What it would do now is above. Plan it again: `meridian plan … --out "+file+"`.\n")
	require.NotContains(t, out.stderr, "in the document is old")

	// What is taken away is shown without a terminal, too, with --yes or without it.
	for _, args := range [][]string{{"apply", "-f", mesh, "--yes"}, {"apply", "-f", mesh}, {"delete", "Mesh", "demo"}} {
		out = h.run(args...)
		require.Equal(t, exit.OK, out.code, out.stderr)
		require.Equal(t, "Takes away: a → b: allowed → denied by deny, 2 connections in zone east of mesh demo\n", out.stderr)
	}
}

// TestFindingsOfAChange: what an analysis finds because of a write or deletion is told with
// its results, once.
func TestFindingsOfAChange(t *testing.T) {
	h := newHarness(t)
	p := plan.New()
	p.Findings = []answer.Finding{
		{Code: "dead-policy", Severity: answer.SeverityWarning, Kind: "Timeout", Mesh: "default", Name: "old", Message: "takes effect nowhere"},
		{Code: "role-unbound", Severity: answer.SeverityInfo, Kind: "AccessRole", Name: "r", Message: "it has no subjects"},
	}
	var err error
	h.server.Plan, err = json.Marshal(p)
	require.NoError(t, err)
	says := "Warning: Timeout/default/old: takes effect nowhere\nNote: AccessRole/r: it has no subjects\n"
	mesh := h.write("mesh.yaml", meshYAML)
	require.Equal(t, outcome{exit.OK, "Mesh/default created\nrevision 1841\n", says}, h.run("apply", "-f", mesh))
	out := h.run("apply", "-f", mesh, "-o", "json")
	var document struct {
		Findings []findingView `json:"findings"`
	}
	require.NoError(t, json.Unmarshal([]byte(out.stdout), &document))
	require.Equal(t, p.Findings, document.Findings)
	file := filepath.Join(h.home, "mesh.plan")
	require.Contains(t, h.run("plan", "-f", mesh, "--out", file).stdout, says)
	require.Equal(t, says, h.run("apply", file).stderr)
	require.Equal(t, outcome{exit.OK, "Mesh/default deleted\nrevision 1842\n", says}, h.run("delete", "mesh", "default"))
}

// TestLossIsNotKnown: a change continues without a terminal where no plan can be had, and says
// so; where the change will fail for the same reason, it says nothing.
func TestLossIsNotKnown(t *testing.T) {
	h := newHarness(t)
	mesh := h.write("mesh.yaml", "{type: Mesh, name: demo}\n")
	apply := func() outcome { return h.run("apply", "-f", mesh) }
	h.server.Plan = nil
	note := "Note: what this takes away is not known: the control plane does not plan: it is of an older release\n"
	require.Equal(t, outcome{exit.OK, "Mesh/demo created\nrevision 1841\n", note}, apply())
	require.Contains(t, h.run("plan", "-f", mesh).stderr, "it is of an older release")

	fails := func(err error) func(string) error {
		calls := 0
		return func(string) error {
			if calls++; calls == 1 {
				return err
			}
			return nil
		}
	}
	for _, tc := range []struct {
		err  error
		note string
	}{
		{rpcerr.New(rpcerr.Invalid, "UNKNOWN_FIELDS", "the request has fields that this server does not know"), note},
		{rpcerr.New(rpcerr.Internal, "BROKEN", "it broke"), "Note: what this takes away is not known: it broke\n"},
		{rpcerr.New(rpcerr.Invalid, "PLAN_TOO_LARGE", "the batch is too large"), "Note: what this takes away is not known: the batch is too large\n"},
		{rpcerr.New(rpcerr.TooLarge, "LIMIT_REACHED", "too many questions").WithRetry(time.Hour), "Note: what this takes away is not known: too many questions\n"},
		{rpcerr.New(rpcerr.Denied, "DENIED", "you may not plan"), ""},
	} {
		h.server.Before = fails(tc.err)
		require.Equal(t, outcome{exit.OK, "Mesh/demo unchanged\nrevision 1841\n", tc.note}, apply(), "%v", tc.err)
	}
	h.server.Before = nil

	p := plan.New()
	p.Hidden = true
	for i := range 7 {
		p.Incomplete = append(p.Incomplete, answer.Absence{Zone: resource.ZoneName(fmt.Sprint("z", i)), Reason: "offline"})
	}
	var err error
	h.server.Plan, err = json.Marshal(p)
	require.NoError(t, err)
	out := apply()
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stderr, "Note: what this takes away from resources that you may not read is not known.\n")
	require.Contains(t, out.stderr, "zone \"z4\": offline\nNote: nor is it known in 2 more zones.\n")

	h.lossBudget = time.Nanosecond
	require.Equal(t, outcome{
		exit.OK, "Mesh/demo unchanged\nrevision 1841\n",
		"Note: what this takes away is not known: there is no plan after 1ns; `meridian plan` waits longer\n",
	}, apply())
	h.lossBudget = time.Minute

	h.stop()
	for _, args := range [][]string{{"apply", "-f", mesh}, {"apply", "-f", mesh, "--yes"}, {"delete", "Mesh", "demo"}} {
		out = h.run(args...)
		require.Equal(t, exit.Unavailable, out.code)
		require.Equal(t, 1, strings.Count(out.stderr, "connection refused"), "the cause is said once: %s", out.stderr)
	}
}

// TestRollbackPlanFiles: the plan of a rollback is applied while it does what it did, and
// changes what it was to change.
func TestRollbackPlanFiles(t *testing.T) {
	h, log := historyOf(t)
	p := plan.New()
	says := func(changes ...plan.Change) {
		p.Changes = changes
		var err error
		h.server.Plan, err = json.Marshal(p)
		require.NoError(t, err)
	}
	web := plan.Change{Kind: "Timeout", Mesh: "default", Name: "web", Outcome: plan.Updated, Version: 3, Revision: 103}
	says(web)
	file := filepath.Join(h.home, "back.plan")
	planned := func(args ...string) outcome {
		return h.run(append([]string{"plan", "rollback", "--out", file}, args...)...)
	}
	out := h.run("plan", "rollback", "--to", "102", "Timeout", "web", "--out", filepath.Join(h.home, "nowhere", "back.plan"))
	require.Equal(t, exit.Usage, out.code, "1 would say that something changes")
	require.Equal(t, 1, strings.Count(out.stderr, "nowhere"), out.stderr)
	out = planned("--to", "7m", "Timeout", "web")
	require.Equal(t, exit.No, out.code, out.stderr)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(data), `"to": 1840`, "a revision, which does not move")
	out = planned("--to", "102", "Timeout", "web")
	require.Equal(t, exit.No, out.code, out.stderr)

	out = h.run("apply", file, "--dry-run")
	require.Equal(t, outcome{exit.OK, "", "Dry run: the plan still holds; nothing was written.\n"}, out)
	other := web
	other.Version = 2
	says(other)
	require.Equal(t, exit.Conflict, h.run("apply", file).code, "something else is stored")
	says(web)
	require.Equal(t, resource.Revision(103), log.Revision())
	out = h.run("apply", file)
	require.Equal(t, outcome{exit.OK, "Timeout/web updated\nrevision 104\n", "Back to revision 102.\n"}, out)
	out = h.run("apply", file) // the server plans as before, and then has nothing to write
	require.Equal(t, exit.Conflict, out.code)
	require.Contains(t, out.stderr, "what is stored is not what it was when the change was planned; nothing was written: Timeout \"web\" in mesh \"default\" is what it was at revision 102")
	require.Contains(t, out.stderr, "What it would do now is above.")
	require.NotContains(t, out.stderr, "meridian get", "no hint about documents")

	says()
	require.Equal(t, exit.OK, planned("--to", "104").code)
	require.Equal(t, outcome{exit.OK, "", "Nothing differs from revision 104.\n"}, h.run("apply", file))
	for name, text := range map[string]string{
		"no change":   `{"kind": "MeridianPlan", "format": 1, "stored": [], "effect": ""}`,
		"two changes": `{"kind": "MeridianPlan", "format": 1, "stored": [], "effect": "", "rollback": {"to": 3}, "deleted": [{"kind": "Mesh", "name": "a", "version": 1}]}`,
		"to nothing":  `{"kind": "MeridianPlan", "format": 1, "stored": [], "effect": "", "rollback": {"to": 0}}`,
	} {
		out := h.run("apply", h.write("bad.plan", text))
		require.Equal(t, exit.Usage, out.code, name)
		require.Contains(t, out.stderr, "it either writes resources, deletes resources or is a rollback", name)
	}
}

// terminalOf makes a terminal the standard input of commands, and returns what types on it.
func (h *harness) terminalOf() func(line string) {
	h.t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		h.t.Skipf("there are no terminals here: %v", err)
	}
	h.t.Cleanup(func() { keyboard.Close() })
	require.NoError(h.t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	require.NoError(h.t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { terminal.Close() })
	h.terminal = terminal
	return func(line string) {
		h.t.Helper()
		_, err := keyboard.WriteString(line + "\n")
		require.NoError(h.t, err)
	}
}

// TestInterruptedQuestion: who interrupts the question whether to continue is told that
// nothing was changed.
func TestInterruptedQuestion(t *testing.T) {
	h, log := historyOf(t)
	h.terminalOf()
	allowed, denied := true, false
	p := plan.New()
	p.Connections = []plan.Connections{{Mesh: "default", From: []string{"a"}, To: []string{"b"}, Before: &allowed, After: &denied, By: []string{"deny"}, Zone: "east", Count: 2}}
	var err error
	h.server.Plan, err = json.Marshal(p)
	require.NoError(t, err)
	mesh := h.write("mesh.yaml", "{type: Mesh, name: demo}\n")
	for _, args := range [][]string{{"apply", "-f", mesh}, {"rollback", "--to", "102"}} {
		ctx, interrupt := context.WithCancel(t.Context())
		a, said := h.interruptedAt(interrupt, "Type yes to continue: ")
		require.Equal(t, exit.Interrupted, a.run(ctx, args))
		require.Contains(t, said.String(), "Type yes to continue: \nError: nothing was changed: interrupted before the answer\n")
		require.Empty(t, h.server.Stored)
		require.Equal(t, resource.Revision(103), log.Revision())
	}
}

// interruptedAt returns a command that is interrupted once it has said something.
func (h *harness) interruptedAt(interrupt func(), said string) (*app, *bytes.Buffer) {
	w := &interrupting{said: said, interrupt: interrupt}
	a := newApp(h.terminal, io.Discard, w, parseEnvironment(h.env), time.Now)
	a.fleetBudget, a.lossBudget = h.fleetBudget, h.lossBudget
	return a, &w.Buffer
}

type interrupting struct {
	bytes.Buffer
	said      string
	interrupt func()
}

func (w *interrupting) Write(text []byte) (int, error) {
	n, err := w.Buffer.Write(text)
	if strings.HasSuffix(w.String(), w.said) {
		w.interrupt()
	}
	return n, err
}

// TestLossIsAskedAbout: on a terminal, what a write, a deletion or a rollback takes away is
// shown and asked about, and what is not known of it is said.
func TestLossIsAskedAbout(t *testing.T) {
	h, log := historyOf(t)
	answers := h.terminalOf()
	allowed, denied := true, false
	p := plan.New()
	says := func() {
		var err error
		h.server.Plan, err = json.Marshal(p)
		require.NoError(t, err)
	}
	p.Connections = []plan.Connections{{Mesh: "default", From: []string{"a"}, To: []string{"b"}, Before: &allowed, After: &denied, By: []string{"deny"}, Zone: "east", Count: 2}}
	says()
	const loss = "Takes away: a → b: allowed → denied by deny, 2 connections in zone east\nType yes to continue: "
	mesh := h.write("mesh.yaml", "{type: Mesh, name: demo}\n")
	apply, rollback := []string{"apply", "-f", mesh}, []string{"rollback", "--to", "102"}
	for _, args := range [][]string{apply, rollback} {
		answers("y")
		out := h.run(args...)
		require.Equal(t, exit.No, out.code, "%v: %s", args, out.stderr)
		require.Equal(t, loss+"Error: nothing was changed: the answer was not yes\n", out.stderr)
		require.Empty(t, h.server.Stored)
		require.Equal(t, resource.Revision(103), log.Revision())
	}
	for _, args := range [][]string{apply, rollback} {
		out := h.run(append(args, "--dry-run")...)
		require.Equal(t, exit.OK, out.code, "nothing is taken away: %s", out.stderr)
		require.Contains(t, out.stderr, "Takes away: a → b: allowed → denied by deny, 2 connections in zone east\n")
		require.NotContains(t, out.stderr, "Type yes")
	}
	for _, args := range [][]string{apply, rollback} {
		answers("yes")
		out := h.run(args...)
		require.Equal(t, exit.OK, out.code, "%v: %s", args, out.stderr)
		require.Contains(t, out.stderr, loss)
	}
	require.Len(t, h.server.Stored, 1)
	require.Equal(t, resource.Revision(104), log.Revision())
	out := h.run("rollback", "--to", "103", "--yes")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "Takes away: ")
	require.NotContains(t, out.stderr, "Type yes")

	// What is not known is no loss to be asked about, and no secret.
	p.Connections = nil
	p.Incomplete = []answer.Absence{{Zone: "west", Reason: "offline"}}
	says()
	out = h.run(apply...)
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "Note: what this takes away there is not known: zone \"west\": offline\n")

	// A plan that takes too long is asked about: it may be the largest change of all.
	h.lossBudget = time.Nanosecond
	answers("no")
	out = h.run("delete", "Mesh", "demo")
	require.Equal(t, exit.No, out.code, out.stderr)
	require.Equal(t, "Note: what this takes away is not known: there is no plan after 1ns; `meridian plan` waits longer\nType yes to continue: Error: nothing was changed: the answer was not yes\n", out.stderr)
	require.Len(t, h.server.Stored, 1)
	h.lossBudget = time.Minute
	answers("yes")
	out = h.run("delete", "Mesh", "nowhere")
	require.Equal(t, exit.No, out.code)
	require.Equal(t, "Error: Mesh/nowhere does not exist\n", out.stderr, "it is said once")
}
