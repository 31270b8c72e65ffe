package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

const (
	roleYAML = `type: AccessRole
name: r
rules: [{types: [Mesh], access: [READ]}]
`
	bindingYAML = `type: AccessRoleBinding
name: b
subjects: [{type: User, name: bob}]
roles: [r]
`
)

// secretsYAML are n documents.
func secretsYAML(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\ntype: GlobalSecret\nname: s-%d\ndata: c2VjcmV0\n", i)
	}
	return b.String()
}

func batchesOf(applies []*meridianv1.ApplyRequest) [][]string {
	var all [][]string
	for _, a := range applies {
		var names []string
		for _, r := range a.GetResources() {
			names = append(names, r.GetKind()+"/"+r.GetName())
		}
		all = append(all, names)
	}
	return all
}

// Meshes are written before what is in them, roles before their bindings, and both after
// everything else.
func TestApplyInBatchesKeepsReferencesValid(t *testing.T) {
	h := newHarness(t)
	h.partResources = 2
	all := h.write("all.yaml", strings.Join([]string{bindingYAML, roleYAML, webToBackend, catchAllK8s, secretYAML, meshYAML}, "---\n"))
	out := h.run("apply", "-f", all, "--in-batches")
	require.Equal(t, outcome{
		exit.OK,
		"Mesh/default created\nGlobalSecret/web-to-backend created\nTrafficPermission/web-to-backend created\nTrafficPermission/catch-all created\n" +
			"AccessRole/r created\nAccessRoleBinding/b created\nrevision 1843\n",
		"This is not one atomic change: 6 resources are written in 3 batches, one after the other, and others see what is between. If one fails, those before it stay written. What it takes away is not looked at beforehand.\n" +
			"3 of 3 batches, 6 of 6 resources (100 %), revision 1843\n",
	}, out)
	require.Equal(t, [][]string{
		{"Mesh/default", "GlobalSecret/web-to-backend"},
		{"TrafficPermission/web-to-backend", "TrafficPermission/catch-all"},
		{"AccessRole/r", "AccessRoleBinding/b"},
	}, batchesOf(h.server.Applies))
	ids := map[string]bool{}
	for _, a := range h.server.Applies {
		ids[a.GetRequestId()] = true
	}
	require.Len(t, ids, 3, "each batch is a request of its own")
}

// Everything is checked before the first batch: documents, and the meshes they are in.
func TestApplyInBatchesWritesNothingOfAnInvalidInput(t *testing.T) {
	h := newHarness(t)
	h.partResources = 1
	out := h.runWith(t.Context(), secretYAML+"---\ntype: Mesh\nname: x\nnme: y\n", "apply", "-f", "-", "--in-batches")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "unknown field `nme`")
	out = h.runWith(t.Context(), secretYAML+"---\n"+webToBackend, "apply", "-f", "-", "--in-batches")
	require.Equal(t, exit.Usage, out.code)
	require.Equal(t, "Error: 1 mesh is neither in the input nor stored; nothing was written\n"+
		"  mesh \"default\", which TrafficPermission/default/web-to-backend is in\nTo create one, add {type: Mesh, name: NAME} to the input.\n", out.stderr)
	require.Empty(t, h.server.Applies)

	// A caller who may not read meshes may still write.
	h.server.Before = func(method string) error {
		if method == "Get" {
			return rpcerr.New(rpcerr.Denied, "DENIED", "no")
		}
		return nil
	}
	require.Equal(t, exit.OK, h.runWith(t.Context(), webToBackend, "apply", "-f", "-", "--in-batches").code)
}

// A failure says what is written and what is not, and repeating the command continues.
func TestApplyInBatchesContinues(t *testing.T) {
	h := newHarness(t)
	h.partResources = 2
	calls := 0
	h.server.Before = func(method string) error {
		if method == "Apply" {
			if calls++; calls == 3 {
				return rpcerr.WithEffect(rpcerr.New(rpcerr.Conflict, "HELD", "a rollout changes it"), rpcerr.EffectNone)
			}
		}
		return nil
	}
	secrets := h.write("s.yaml", secretsYAML(9))
	out := h.run("apply", "-f", secrets, "--in-batches")
	require.Equal(t, exit.Conflict, out.code)
	require.Contains(t, out.stderr, "Error: batch 3 of 5: a rollout changes it\n"+
		"Written: 2 batches before it, 4 of 9 resources, the last at revision 1842.\n"+
		"Not written: batch 3 of 5 (2 resources, from GlobalSecret/s-4 to GlobalSecret/s-5).\n"+
		"Not sent: 2 batches after it, 3 resources.\n"+
		"To continue, repeat the command: what is written already is unchanged then, and not written again.\n")
	require.Equal(t, "GlobalSecret/s-0 created\nGlobalSecret/s-1 created\nGlobalSecret/s-2 created\nGlobalSecret/s-3 created\nrevision 1842\n", out.stdout)

	var got struct {
		Revision uint64
		Complete bool
		Batches  []partView
		Results  []resultView
	}
	require.NoError(t, json.Unmarshal([]byte(h.ok("apply", "-f", secrets, "--in-batches", "-o", "json")), &got))
	require.True(t, got.Complete)
	require.Equal(t, []partView{
		{Revision: 1842, Resources: 2, Unchanged: 2},
		{Revision: 1842, Resources: 2, Unchanged: 2},
		{Revision: 1843, Resources: 2, Created: 2},
		{Revision: 1844, Resources: 2, Created: 2},
		{Revision: 1845, Resources: 1, Created: 1},
	}, got.Batches)
	require.Equal(t, uint64(1845), got.Revision)
	require.Len(t, got.Results, 9)

	h.server.Before = func(method string) error {
		if method == "Apply" {
			return rpcerr.New(rpcerr.Denied, "DENIED", "you may not")
		}
		return nil
	}
	out = h.run("apply", "-f", secrets, "--in-batches", "-o", "json")
	require.Equal(t, exit.Denied, out.code)
	require.JSONEq(t, `{"results": [], "revision": 0, "complete": false, "batches": []}`, out.stdout)
	require.Contains(t, out.stderr, "No batch was written before it.\nNot written: batch 1 of 5")
}

// A batch without an answer may have been written.
func TestApplyInBatchesSaysWhatIsNotKnown(t *testing.T) {
	h := newHarness(t)
	h.partResources = 1
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	h.server.After = func(method string) error {
		if method == "Apply" {
			if calls++; calls == 2 {
				cancel()
				<-ctx.Done()
				return rpcerr.New(rpcerr.Unavailable, "", "gone")
			}
		}
		return nil
	}
	out := h.runWith(ctx, secretsYAML(3), "apply", "-f", "-", "--in-batches")
	require.Equal(t, exit.Interrupted, out.code)
	require.Contains(t, out.stderr, "Error: interrupted at batch 2 of 3\nWritten: 1 batch before it, 1 of 3 resources, the last at revision 1841.\n"+
		"Not known: whether batch 2 of 3 was written, whole or not at all (1 resource, from GlobalSecret/s-1 to GlobalSecret/s-1).\nNot sent: 1 batch after it, 1 resource.\n")
}

// §1.2: a document's version is the one it was read at. What an earlier run of the command
// has written of it is no conflict; another content is.
func TestApplyInBatchesContinuesWithVersions(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("old.yaml", secretYAML))
	versioned := h.write("new.yaml", strings.Replace(secretYAML, "c2VjcmV0", "bmV3", 1)+"version: 1\n")
	require.Equal(t, "GlobalSecret/web-to-backend updated\nrevision 1842\n", h.ok("apply", "-f", versioned, "--in-batches"))
	require.Equal(t, "GlobalSecret/web-to-backend unchanged\nrevision 1842\n", h.ok("apply", "-f", versioned, "--in-batches"))
	h.ok("apply", "-f", h.write("old.yaml", secretYAML))
	out := h.run("apply", "-f", versioned, "--in-batches")
	require.Equal(t, exit.Conflict, out.code)
	require.Contains(t, out.stderr, "Error: batch 1 of 1: GlobalSecret/web-to-backend has version 3, not 1\n")
}

func TestApplyInBatchesWaitsForTheLastRevision(t *testing.T) {
	h := newHarness(t)
	h.partResources = 1
	out := h.runWith(t.Context(), secretsYAML(3), "apply", "-f", "-", "--in-batches", "--wait=zones")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Len(t, h.server.Waits, 1)
	require.Equal(t, uint64(1843), h.server.Waits[0].GetRevision())
}

func TestApplyInBatchesRefusesWhatIsAboutOneBatch(t *testing.T) {
	h := newHarness(t)
	secret := h.write("s.yaml", secretYAML)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-f", secret, "--if-version", "1"}, "--if-version is a condition on one atomic batch"},
		{[]string{"-f", secret, "--rollout", "zones=a,then=all"}, "a rollout is one change"},
		{[]string{"-f", secret, "--dry-run"}, "--dry-run=server decides one batch"},
		{[]string{"change.plan"}, "a plan is of one atomic change"},
	} {
		out := h.run(append([]string{"apply", "--in-batches"}, c.args...)...)
		require.Equal(t, exit.Usage, out.code)
		require.Contains(t, out.stderr, c.want)
	}
	require.Empty(t, h.server.Calls)
	require.Equal(t, "GlobalSecret/web-to-backend valid\n", h.ok("apply", "-f", secret, "--in-batches", "--dry-run=client"))
}

// What does not fit into one batch is refused with the way to write it, by the size of the
// message and by that of its resources.
func TestApplyOfTooMuchNamesInBatches(t *testing.T) {
	for _, reason := range []string{"REQUEST_TOO_LARGE", "BATCH_TOO_LARGE"} {
		h := newHarness(t)
		h.server.Before = func(method string) error {
			if method == "Apply" {
				return rpcerr.New(rpcerr.TooLarge, reason, "the batch has more than 25165824 bytes, the limit for one: split it")
			}
			return nil
		}
		out := h.runWith(t.Context(), secretYAML, "apply", "-f", "-")
		require.Equal(t, outcome{exit.Usage, "", "Error: the batch has more than 25165824 bytes, the limit for one: split it\n" +
			"`meridian apply --in-batches` writes it as several batches, which are not one atomic change.\n"}, out)
	}
}

// What the servers say of several batches is printed once.
func TestApplyInBatchesWarnsOnce(t *testing.T) {
	h := newHarness(t)
	h.partResources = 1
	h.server.Warnings = []string{"the mesh has no backend"}
	out := h.runWith(t.Context(), secretsYAML(3), "apply", "-f", "-", "--in-batches", "-o", "name")
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, 1, strings.Count(out.stderr, "Warning: the mesh has no backend\n"))
	require.Equal(t, "GlobalSecret/s-0\nGlobalSecret/s-1\nGlobalSecret/s-2\n", out.stdout)
}
