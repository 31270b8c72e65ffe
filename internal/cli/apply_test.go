package cli

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

func TestApplyPrintsOutcomesInInputOrderThenTheRevision(t *testing.T) {
	h := newHarness(t)
	all := h.write("all.yaml", webToBackend+"---\n"+meshYAML+"---\n"+catchAllK8s)
	require.Equal(t, "TrafficPermission/web-to-backend created\nMesh/default created\nTrafficPermission/catch-all created\nrevision 1841\n",
		h.ok("apply", "-f", all))
	require.Equal(t, "TrafficPermission/web-to-backend unchanged\nMesh/default unchanged\nTrafficPermission/catch-all unchanged\nrevision 1841\n",
		h.ok("apply", "-f", all))
	require.Contains(t, h.server.Authorizations, "Bearer secret")
}

func TestApplyReadsFilesDirectoriesAndStdin(t *testing.T) {
	h := newHarness(t)
	h.write("dir/a.yaml", webToBackend)
	h.write("dir/sub/b.yml", catchAllK8s)
	out := h.runWith(t.Context(), meshYAML, "apply", "-f", h.home+"/dir", "-f", "-")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "TrafficPermission/web-to-backend created\nTrafficPermission/catch-all created\nMesh/default created\nrevision 1841\n", out.stdout)
	require.Empty(t, out.stderr)
}

func TestApplyJSON(t *testing.T) {
	h := newHarness(t)
	out := h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "-o", "json")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.JSONEq(t, `{"results": [{"type": "TrafficPermission", "mesh": "default", "name": "web-to-backend", "outcome": "created", "version": 1}], "revision": 1841}`, out.stdout)
	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "-o", "name")
	require.Equal(t, "TrafficPermission/web-to-backend\n", out.stdout)
}

func TestApplyDryRun(t *testing.T) {
	h := newHarness(t)
	out := h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--dry-run=client")
	require.Equal(t, outcome{
		exit.OK, "TrafficPermission/web-to-backend valid\n",
		"Dry run: the documents are valid; nothing was sent to a control plane.\n",
	}, out)
	require.Empty(t, h.server.Calls)

	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--dry-run=server")
	require.Equal(t, outcome{
		exit.OK, "TrafficPermission/web-to-backend created\nrevision 1840\n", "Dry run: nothing was written.\n",
	}, out)
	require.Empty(t, h.server.Stored)
	require.Empty(t, h.server.Applies[0].GetRequestId())
}

func TestApplyIfVersion(t *testing.T) {
	h := newHarness(t)
	policy := h.write("p.yaml", webToBackend)
	h.ok("apply", "-f", policy, "--if-version", "0")
	out := h.run("apply", "-f", policy, "--if-version", "0")
	require.Equal(t, outcome{exit.Conflict, "", "Error: TrafficPermission/default/web-to-backend has version 1, not 0\n" +
		"It was changed since it was read, or `version` in the document is old: read it again with `meridian get -o yaml`; apply --force ignores `version`.\n"}, out)
	h.ok("apply", "-f", policy, "--if-version", "1")

	two := h.write("two.yaml", webToBackend+"---\n"+meshYAML)
	for _, tc := range []struct {
		values []string
		code   int
		want   string
	}{
		{[]string{"1"}, exit.Usage, "--if-version is about one resource; the input holds 2: write KIND/NAME=VERSION"},
		{[]string{"tp/web-to-backend=x"}, exit.Usage, "write VERSION or KIND/NAME=VERSION"},
		{[]string{"tp/web-to-backend=0@7"}, exit.Usage, "7@1842 for version 7 of revision 1842"},
		{[]string{"tp/web-to-backend=1@0"}, exit.Usage, "7@1842"},
		{[]string{"tp/web-to-backend=1@1799"}, exit.Conflict, "was written at revision 1841, not 1799"},
		{[]string{"tp/other=1"}, exit.Usage, "the input does not hold TrafficPermission/other"},
		{[]string{"tp/web-to-backend=1", "TrafficPermission/web-to-backend=2"}, exit.Usage, "has a condition already"},
		{[]string{"tp/web-to-backend=1", "mesh/default=3"}, exit.Conflict, "has version 0, not 3"},
		{[]string{"tp/web-to-backend=1@1841", "mesh/default=0"}, exit.OK, ""},
	} {
		args := []string{"apply", "-f", two}
		for _, v := range tc.values {
			args = append(args, "--if-version", v)
		}
		out := h.run(args...)
		require.Equal(t, tc.code, out.code, "%v %s", tc.values, out.stderr)
		require.Contains(t, out.stderr, tc.want)
	}
	require.Equal(t, exit.Conflict, h.run("delete", "tp", "web-to-backend", "--if-version", "7").code)
	require.Equal(t, exit.Usage, h.run("delete", "tp", "web-to-backend", "--if-version", "mesh/default=7").code)
	h.ok("delete", "tp/web-to-backend", "mesh/default", "--if-version", "mesh/default=1")
}

// §1.2: the version that a document was read at is a condition, unless forced; a
// resource that does not exist is no conflict.
func TestApplyHonoursTheVersionOfADocument(t *testing.T) {
	h := newHarness(t)
	versioned := func(n string) string { return h.write("v"+n+".yaml", webToBackend+"version: "+n+"\n") }
	h.ok("apply", "-f", versioned("7"))
	out := h.run("apply", "-f", versioned("7"))
	require.Equal(t, exit.Conflict, out.code)
	require.Contains(t, out.stderr, "TrafficPermission/default/web-to-backend has version 1, not 7")
	h.ok("apply", "-f", versioned("1"))
	h.ok("apply", "-f", versioned("7"), "--force")
	h.ok("apply", "-f", versioned("7"), "--if-version", "1")
}

// §1.1
func TestApplySaysThatTimesAreNotKept(t *testing.T) {
	h := newHarness(t)
	timed := h.write("t.yaml", secretYAML+"creationTime: 2020-01-02T03:04:05Z\n")
	out := h.run("apply", "-f", timed)
	require.Contains(t, out.stderr, "Note: the times of 1 document are not kept")
	require.Nil(t, h.server.Applies[0].GetResources()[0].GetModificationTime())
	require.False(t, h.server.Applies[0].GetKeepTimes())
	out = h.run("apply", "-f", timed, "--keep-times")
	require.Empty(t, out.stderr)
	require.True(t, h.server.Applies[1].GetKeepTimes())
	require.Equal(t, 2020, h.server.Applies[1].GetResources()[0].GetCreationTime().AsTime().Year())
}

func TestApplyMesh(t *testing.T) {
	h := newHarness(t)
	meshless := `type: TrafficPermission
name: p
sources: [{match: {kuma.io/service: web}}]
destinations: [{match: {kuma.io/service: backend}}]
`
	out := h.runWith(t.Context(), meshless, "apply", "-f", "-", "-m", "demo", "-o", "json")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stdout, `"mesh": "demo"`)
	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "-m", "demo")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, `the document is for mesh "default", the command for mesh "demo"`)
}

// A write whose acknowledgement is lost is sent again under the same request
// id, and so takes effect once.
func TestApplyRetriesWithOneRequestID(t *testing.T) {
	h := newHarness(t)
	var lost atomic.Int32
	h.server.After = func(method string) error {
		if method == "Apply" && lost.Add(1) <= 2 {
			return rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader")
		}
		return nil
	}
	out := h.runWith(t.Context(), secretYAML, "apply", "-f", "-")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "GlobalSecret/web-to-backend created\nrevision 1841\n", out.stdout)
	require.Len(t, h.server.Applies, 3)
	id := h.server.Applies[0].GetRequestId()
	require.NotEmpty(t, id)
	for _, a := range h.server.Applies {
		require.Equal(t, id, a.GetRequestId())
	}

	h.server.After = nil
	h.runWith(t.Context(), secretYAML, "apply", "-f", "-")
	require.NotEqual(t, id, h.server.Applies[3].GetRequestId(), "another invocation is another request")
}

// A control plane that remains unavailable beyond --timeout is reported in its words.
// The last answer says that it is: no clock runs. How the attempts fill the timeout is
// tested with the client.
func TestApplyGivesUpWhenUnavailableForTheWholeTimeout(t *testing.T) {
	h := newHarness(t)
	var calls atomic.Int32
	h.server.Before = func(string) error {
		noLeader := rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader")
		if calls.Add(1) == 1 {
			return noLeader
		}
		return noLeader.WithRetry(2 * time.Hour)
	}
	out := h.runWith(t.Context(), secretYAML, "apply", "-f", "-", "--timeout", "1h")
	require.Equal(t, exit.Unavailable, out.code)
	require.Empty(t, out.stdout)
	require.Equal(t, "Error: the control plane at "+h.address+" is unavailable: there is no leader\n", out.stderr)
	require.Equal(t, []string{"Apply", "Members", "Apply"}, h.server.Calls)
}

// TestApplyWithoutALeaderSaysWhoIsMissing: the error names the servers that the one which has
// no leader does not reach, and says what to do.
func TestApplyWithoutALeaderSaysWhoIsMissing(t *testing.T) {
	h := newHarness(t)
	h.server.AllMembers = threeServers()
	h.server.AllMembers.Leader, h.server.AllMembers.Members[0].State = "", "candidate"
	h.server.Before = func(method string) error {
		if method == "Members" {
			return nil
		}
		return rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "there is no leader").WithRetry(2 * time.Hour)
	}
	require.Equal(t, outcome{exit.Unavailable, "", "Error: the control plane at " + h.address + ` is unavailable: there is no leader
Why: there is no leader: of 2 servers with a vote 1 answer, and it takes 2
  g3 at 10.0.0.3:5690 does not answer
Start the servers that do not answer, or fix the network between them: docs/operations/leader-loss.md.
`}, h.runWith(t.Context(), secretYAML, "apply", "-f", "-", "--timeout", "1h"))

	h.server.AllMembers.Leader = "g1"
	require.NotContains(t, h.runWith(t.Context(), secretYAML, "apply", "-f", "-", "--timeout", "1h").stderr, "Why", "it has one now")
}

// TestThePlanTakesOfTheTimeout: a write takes no longer than --timeout with the plan that is
// made of it before, which takes half of it at most.
func TestThePlanTakesOfTheTimeout(t *testing.T) {
	for method, args := range map[string][]string{"Apply": {"apply", "-f", "-", "--timeout", "1h"}, "Delete": {"delete", "Mesh", "demo", "--timeout", "1h"}} {
		h := newHarness(t)
		h.lossBudget = 20 * time.Millisecond
		var left atomic.Int64
		h.server.Entered = func(ctx context.Context, entered string) {
			deadline, _ := ctx.Deadline()
			switch until := time.Until(deadline); {
			case entered != method:
			case until < time.Minute:
				<-ctx.Done() // the plan hangs
			default:
				left.Store(int64(until))
			}
		}
		out := h.runWith(t.Context(), "{type: Mesh, name: demo}", args...)
		require.Contains(t, out.stderr, "there is no plan after 20ms", method)
		require.NotZero(t, left.Load(), method)
		require.LessOrEqual(t, time.Duration(left.Load()), time.Hour-20*time.Millisecond, method)

		h.lossBudget = time.Hour
		require.Contains(t, h.runWith(t.Context(), "{type: Mesh, name: demo}", append(args[:len(args)-1], "100ms")...).stderr, "there is no plan after 50ms", method)
	}
}

func TestApplyWaitForZones(t *testing.T) {
	h := newHarness(t)
	out := h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=zones")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "TrafficPermission/web-to-backend created\nrevision 1841\n", out.stdout)
	require.Len(t, h.server.Applies, 2, "the batch is planned, and sent once")
	require.Len(t, h.server.Waits, 2, "a short one is before the zones are asked about the policy")
	require.Equal(t, uint64(1841), h.server.Waits[1].GetRevision())
	require.False(t, h.server.Waits[1].GetConnectedOnly())

	h.server.Pending = []*meridianv1.PendingZone{{Name: "west", State: "lagging", Revision: 1700}}
	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=zones", "--connected-only")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "Waiting for zone west (lagging).\n", out.stderr)
	require.True(t, h.server.Waits[3].GetConnectedOnly())
	require.Equal(t, exit.Usage, h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--connected-only").code)
}

// The result of the write is never hidden behind a wait that failed, and the zones
// that it ended without are named: an enabled zone that is offline, too.
func TestApplyWaitForZonesTimesOut(t *testing.T) {
	h := newHarness(t)
	h.server.PendingStay = true
	h.server.Pending = []*meridianv1.PendingZone{
		{Name: "north", State: "offline", Revision: 1},
		{Name: "west", State: "stale", Revision: 1700, LastError: "disk full"},
	}
	out := h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=zones")
	require.Equal(t, exit.Timeout, out.code)
	require.Equal(t, "TrafficPermission/web-to-backend created\nrevision 1841\n", out.stdout)
	require.Equal(t, "Waiting for zone north (offline), zone west (stale).\n"+
		"Error: revision 1841 is written, but not every zone has applied it within 30s\n"+
		"  zone north is offline at revision 1\n"+
		"  zone west is stale at revision 1700: disk full\n", out.stderr)
}

// A wait for proxies names them, and says when nothing but rejections is left.
func TestApplyWaitForProxies(t *testing.T) {
	h := newHarness(t)
	h.server.Pending = []*meridianv1.PendingZone{{Name: "west", State: "in-sync", Revision: 1841, ProxiesBehind: 12, Proxies: []*meridianv1.PendingProxy{
		{Mesh: "default", Dataplane: "web-1", State: "pending"},
	}}}
	out := h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=enforced")
	require.Equal(t, outcome{exit.OK, "TrafficPermission/web-to-backend created\nrevision 1841\n", "Waiting for 12 proxies in zone west.\n"}, out)
	require.True(t, h.server.Waits[1].GetEnforced(), "the first is before the zones are asked about the policy")

	h.server.PendingStay = true
	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=enforced")
	require.Equal(t, exit.Timeout, out.code)
	require.Contains(t, out.stderr, "Error: revision 1841 is written, but not every proxy has accepted it within 30s\n"+
		"  12 proxies in zone west\n    web-1 in mesh default: pending\n")

	h.server.PendingError = rpcerr.New(rpcerr.Conflict, "PROXIES_REJECTED", "rejected")
	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=enforced")
	require.Equal(t, exit.Timeout, out.code)
	require.Contains(t, out.stderr, "Error: revision 1841 is written, but proxies have rejected it: `meridian proxy status` says why\n")
	require.Equal(t, exit.Usage, h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=proxies").code)
}

// A wait that the server does not take on, or ends, says that the write stands.
func TestApplyWaitBeyondTheLimit(t *testing.T) {
	h := newHarness(t)
	h.server.PendingStay = true
	h.server.PendingError = rpcerr.New(rpcerr.Unauthenticated, "TOKEN_EXPIRED", "not authenticated: the token has expired")
	out := h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=enforced")
	require.Equal(t, exit.Denied, out.code)
	require.Contains(t, out.stderr, "Error: revision 1841 is written, but it is not known whether every proxy has accepted it: not authenticated: the token has expired\n")
	h.server.PendingError = rpcerr.New(rpcerr.TooLarge, "LIMIT_REACHED", "the limit on waits for zones is reached")
	out = h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--wait=zones")
	require.Equal(t, exit.Unavailable, out.code)
	require.Equal(t, "TrafficPermission/web-to-backend unchanged\nrevision 1841\n", out.stdout)
	require.Contains(t, out.stderr, "Error: revision 1841 is written, but it is not known whether every zone has applied it: the limit on waits for zones is reached")
}

// An interrupted command says whether it has written.
func TestInterruptedWrites(t *testing.T) {
	h := newHarness(t)
	h.server.PendingStay = true
	h.server.Pending = []*meridianv1.PendingZone{{Name: "west", State: "offline", Revision: 7}}
	ctx, cancel := context.WithCancel(t.Context())
	h.server.Waiting = cancel
	out := h.runWith(ctx, secretYAML, "apply", "-f", "-", "--wait=zones")
	require.Equal(t, exit.Interrupted, out.code)
	require.Equal(t, "GlobalSecret/web-to-backend created\nrevision 1841\n", out.stdout)
	require.Contains(t, out.stderr, "Error: interrupted: revision 1841 is written, but it is not known whether every zone has applied it\n")

	for _, args := range [][]string{{"apply", "-f", "-"}, {"delete", "global-secret", "web-to-backend"}} {
		ctx, cancel := context.WithCancel(t.Context())
		h.server.Before = func(string) error {
			cancel()
			return rpcerr.New(rpcerr.Unavailable, "X", "busy")
		}
		out = h.runWith(ctx, secretYAML, args...)
		require.Equal(t, exit.Interrupted, out.code)
		require.Contains(t, out.stderr, "interrupted: whether the batch was written is not known\n")
	}
}

func TestApplyWarningsGoToStderr(t *testing.T) {
	h := newHarness(t)
	h.server.Warnings = []string{"TrafficLog/default/x: the mesh has no backend file"}
	out := h.runWith(t.Context(), meshYAML, "apply", "-f", "-", "-o", "json")
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, "Warning: TrafficLog/default/x: the mesh has no backend file\n", out.stderr)
	require.True(t, json.Valid([]byte(out.stdout)))
}

func TestDelete(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("all.yaml", webToBackend+"---\n"+catchAllK8s+"---\n"+meshYAML))
	require.Equal(t, "TrafficPermission/catch-all deleted\nrevision 1842\n", h.ok("delete", "traffic-permission", "catch-all"))
	out := h.run("delete", "TrafficPermission/catch-all")
	require.Equal(t, outcome{exit.No, "", "Error: TrafficPermission/default/catch-all does not exist\n"}, out)
	require.Equal(t, "TrafficPermission/web-to-backend deleted\nrevision 1842\n",
		h.ok("delete", "-f", h.write("one.yaml", webToBackend), "--dry-run=server"))
	require.Equal(t, "TrafficPermission/web-to-backend deleted\nrevision 1843\n", h.ok("delete", "-f", h.write("one.yaml", webToBackend)))

	// One that is missing leaves everything as it is.
	out = h.run("delete", "-f", h.write("all.yaml", meshYAML+"---\n"+webToBackend))
	require.Equal(t, exit.No, out.code)
	require.Equal(t, "Mesh/default\n", h.ok("get", "meshes", "-o", "name"))
}

func TestDeleteJSON(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("m.yaml", meshYAML))
	var got struct {
		Results  []resultView
		Revision uint64
	}
	require.NoError(t, json.Unmarshal([]byte(h.ok("delete", "mesh", "default", "-o", "json")), &got))
	require.Equal(t, uint64(1842), got.Revision)
	require.Equal(t, "deleted", got.Results[0].Outcome)
}

// A limit of the moment is waited for as long as the server says, and its end is a
// success.
func TestApplyWaitsForALimitOfTheMoment(t *testing.T) {
	h := newHarness(t)
	var calls atomic.Int32
	h.server.Before = func(method string) error {
		if method != "Apply" {
			return nil
		}
		if calls.Add(1) == 1 {
			return rpcerr.New(rpcerr.TooLarge, "LIMIT_REACHED", "the limit on write requests is reached").WithRetry(time.Millisecond)
		}
		return nil
	}
	out := h.runWith(t.Context(), secretYAML, "apply", "-f", "-")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, int32(2), calls.Load())

	h.server.Before = func(string) error {
		return rpcerr.New(rpcerr.TooLarge, "LIMIT_REACHED", "the limit on write requests is reached").WithRetry(time.Hour)
	}
	out = h.runWith(t.Context(), secretYAML, "apply", "-f", "-", "--timeout", "10s")
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "the limit on write requests is reached")
}
