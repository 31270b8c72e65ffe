package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

func deletedOf(deletes []*meridianv1.DeleteRequest) [][]string {
	var all [][]string
	for _, d := range deletes {
		var names []string
		for _, k := range d.GetKeys() {
			names = append(names, k.GetKind()+"/"+k.GetName())
		}
		all = append(all, names)
	}
	return all
}

// Nothing is deleted before what refers to it, and access rules after everything else, in
// batches of their own.
func TestDeleteInBatchesKeepsReferencesValid(t *testing.T) {
	h := newHarness(t)
	h.partResources = 2
	all := h.write("all.yaml", strings.Join([]string{meshYAML, roleYAML, bindingYAML, secretYAML, webToBackend, catchAllK8s}, "---\n"))
	h.ok("apply", "-f", all)
	out := h.run("delete", "-f", all, "--in-batches")
	require.Equal(t, outcome{
		exit.OK,
		"TrafficPermission/web-to-backend deleted\nTrafficPermission/catch-all deleted\nGlobalSecret/web-to-backend deleted\nMesh/default deleted\n" +
			"AccessRoleBinding/b deleted\nAccessRole/r deleted\nrevision 1844\n",
		"This is not one atomic change: 6 resources are deleted in 3 batches, one after the other, and others see what is between. If one fails, those before it stay deleted. What that takes away is not looked at beforehand.\n" +
			"3 of 3 batches, 6 of 6 resources (100 %), revision 1844\n",
	}, out)
	require.Equal(t, [][]string{
		{"TrafficPermission/web-to-backend", "TrafficPermission/catch-all"},
		{"GlobalSecret/web-to-backend", "Mesh/default"},
		{"AccessRoleBinding/b", "AccessRole/r"},
	}, deletedOf(h.server.Deletes))
	ids := map[string]bool{}
	for _, d := range h.server.Deletes {
		ids[d.GetRequestId()] = true
	}
	require.Len(t, ids, 3, "each batch is a request of its own")
}

// A mesh that has more than is deleted is found before the first batch, unless the caller
// may not list what is in it.
func TestDeleteInBatchesDeletesNothingOfAMeshThatIsKept(t *testing.T) {
	h := newHarness(t)
	h.ok("apply", "-f", h.write("all.yaml", meshYAML+"---\n"+webToBackend+"---\n"+catchAllK8s))
	some := h.write("some.yaml", meshYAML+"---\n"+catchAllK8s)
	out := h.run("delete", "-f", some, "--in-batches")
	require.Equal(t, outcome{exit.Conflict, "", "Error: 1 mesh is not to be empty; nothing was deleted\n" +
		"  mesh \"default\" has 1 resource more, such as TrafficPermission/default/web-to-backend\n" +
		"Delete what is in a mesh together with it, or leave the mesh out.\n"}, out)
	require.Empty(t, h.server.Deletes)

	h.server.Before = func(method string) error {
		if method == "List" {
			return rpcerr.New(rpcerr.Denied, "DENIED", "no")
		}
		return nil
	}
	require.Equal(t, exit.OK, h.run("delete", "-f", some, "--in-batches").code, "the fake server does not know of meshes")
}

// A failure says what is deleted and what is not, and repeating the command continues.
func TestDeleteInBatchesContinues(t *testing.T) {
	for name, n := range map[string]int{"looked up one by one": 9, "looked up in lists": 2*listedFrom + 1} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.partResources = (n + 4) / 5
			secrets := h.write("s.yaml", secretsYAML(n))
			h.ok("apply", "-f", secrets)
			calls := 0
			h.server.Before = func(method string) error {
				if method == "Delete" {
					if calls++; calls == 3 {
						return rpcerr.WithEffect(rpcerr.New(rpcerr.Conflict, "HELD", "a rollout changes it"), rpcerr.EffectNone)
					}
				}
				return nil
			}
			out := h.run("delete", "-f", secrets, "--in-batches")
			require.Equal(t, exit.Conflict, out.code)
			require.Contains(t, out.stderr, "Error: batch 3 of 5: a rollout changes it\nDeleted: 2 batches before it, ")
			require.Contains(t, out.stderr, "Not deleted: batch 3 of 5 (")
			require.Contains(t, out.stderr, "Not sent: 2 batches after it, ")
			require.Contains(t, out.stderr, "To continue, repeat the command: what is deleted already is left out then.\n")

			var got struct {
				Complete bool
				Missing  int
				Batches  []deletedView
				Results  []resultView
			}
			require.NoError(t, json.Unmarshal([]byte(h.ok("delete", "-f", secrets, "--in-batches", "-o", "json")), &got))
			require.True(t, got.Complete)
			require.Equal(t, 2*h.partResources, got.Missing)
			require.Len(t, got.Batches, 3)
			require.Len(t, got.Results, n-got.Missing)
			require.Equal(t, h.partResources, got.Batches[0].Deleted)

			again := h.run("delete", "-f", secrets, "--in-batches", "-o", "json")
			require.Equal(t, exit.OK, again.code)
			require.NoError(t, json.Unmarshal([]byte(again.stdout), &got))
			require.True(t, got.Complete)
			require.Equal(t, n, got.Missing)
			require.Empty(t, got.Results)
		})
	}
}

// What another writer deletes between the look and the batch is left out of it.
func TestDeleteInBatchesLeavesOutWhatIsGone(t *testing.T) {
	h := newHarness(t)
	h.partResources = 2
	secrets := h.write("s.yaml", secretsYAML(4))
	h.ok("apply", "-f", secrets)
	deletes := 0
	h.server.Before = func(method string) error {
		if method == "Delete" {
			if deletes++; deletes == 1 {
				h.server.Mu.Lock()
				defer h.server.Mu.Unlock()
				for key := range h.server.Stored {
					if key.Name == "s-1" || key.Name == "s-2" || key.Name == "s-3" {
						delete(h.server.Stored, key)
					}
				}
			}
		}
		return nil
	}
	out := h.run("delete", "-f", secrets, "--in-batches")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Equal(t, "GlobalSecret/s-0 deleted\nrevision 1842\n", out.stdout)
	require.Empty(t, h.server.Stored)
}

// Keys are small where resources may be large: a batch that the server refuses for its size
// is divided.
func TestDeleteInBatchesDividesWhatIsTooLarge(t *testing.T) {
	h := newHarness(t)
	secrets := h.write("s.yaml", secretsYAML(4))
	h.ok("apply", "-f", secrets)
	refusals := 0
	h.server.Before = func(method string) error {
		if method == "Delete" {
			if refusals++; refusals == 1 {
				return rpcerr.New(rpcerr.TooLarge, "BATCH_TOO_LARGE", "the batch removes too much")
			}
		}
		return nil
	}
	require.Equal(t, exit.OK, h.run("delete", "-f", secrets, "--in-batches").code)
	require.Equal(t, [][]string{{"GlobalSecret/s-0", "GlobalSecret/s-1"}, {"GlobalSecret/s-2", "GlobalSecret/s-3"}}, deletedOf(h.server.Deletes))
}

func TestDeleteInBatchesRefusesWhatIsAboutOneBatch(t *testing.T) {
	h := newHarness(t)
	secret := h.write("s.yaml", secretYAML)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--if-version", "1"}, "--if-version is a condition on one atomic batch"},
		{[]string{"--rollout", "zones=a,then=all"}, "a rollout is one change"},
		{[]string{"--dry-run"}, "--dry-run decides one batch"},
	} {
		out := h.run(append([]string{"delete", "-f", secret, "--in-batches"}, c.args...)...)
		require.Equal(t, exit.Usage, out.code)
		require.Contains(t, out.stderr, c.want)
	}
	require.Empty(t, h.server.Calls)
}

func TestDeleteOfTooMuchNamesInBatches(t *testing.T) {
	h := newHarness(t)
	secret := h.write("s.yaml", secretYAML)
	h.ok("apply", "-f", secret)
	h.server.Before = func(method string) error {
		if method == "Delete" {
			return rpcerr.New(rpcerr.TooLarge, "BATCH_TOO_LARGE", "the batch removes 20000000 bytes: split it")
		}
		return nil
	}
	require.Equal(t, outcome{exit.Usage, "", "Error: the batch removes 20000000 bytes: split it\n" +
		"`meridian delete --in-batches` deletes it as several batches, which are not one atomic change.\n"}, h.run("delete", "-f", secret))
}
