package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/atrest"
	"meridian/internal/cli/clitest"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

func snapshotHarness(t *testing.T) (*harness, *clitest.Snapshots) {
	t.Helper()
	h := newHarness(t)
	s := store.New(store.DefaultOptions())
	for i, name := range []string{"default", "other"} {
		r := resourcetest.Build(t, "Mesh", "", name, "{}")
		require.NoError(t, s.Apply(resource.Revision(10*i+10), store.Txn{
			Time: clitest.Epoch, Ops: []store.Op{store.Put(r)}, SetEpoch: &store.Epoch{ClusterID: "c1", Incarnation: 2},
		}).Err)
	}
	var file bytes.Buffer
	require.NoError(t, s.View().WriteBackup(&file, map[string]string{"server": "one", "release": "v1", "taken": "2026-01-31T20:00:01Z"}))
	h.server.Snapshots = &clitest.Snapshots{File: file.Bytes()}
	return h, h.server.Snapshots
}

func TestSnapshotSave(t *testing.T) {
	h, service := snapshotHarness(t)
	path := filepath.Join(h.home, "x", "a.snapshot")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	out := h.run("cluster", "snapshot", "save", path)
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Empty(t, out.stdout)
	require.Contains(t, out.stderr, "Saved revision 20 of cluster c1: 2 resources, ")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, service.File, data)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it holds secrets")
	require.False(t, service.Stale)

	out = h.run("cluster", "snapshot", "save", path)
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "exists: --force replaces it")
	h.ok("cluster", "snapshot", "save", path, "--force", "--stale")
	require.True(t, service.Stale)

	require.Equal(t, string(service.File), h.ok("cluster", "snapshot", "save", "-"))
}

// A file that did not arrive whole does not appear, and one that was there stays.
func TestSnapshotSaveFails(t *testing.T) {
	h, service := snapshotHarness(t)
	path := h.write("dir/a.snapshot", "the one before")
	untouched := func(code int, message string) {
		t.Helper()
		out := h.run("cluster", "snapshot", "save", path, "--force")
		require.Equal(t, code, out.code, out.stderr)
		require.Contains(t, out.stderr, message)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "the one before", string(data))
		entries, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, entries, 1, "no temporary file is left")
	}
	service.Cut = 100
	untouched(exit.No, "is truncated or corrupt: read snapshot: corrupt data: it ends too early")
	service.Failed = rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "no leader")
	untouched(exit.Unavailable, "no leader")
	service.Cut, service.Failed = 0, rpcerr.New(rpcerr.Denied, "DENIED", "Access Denied")
	service.File = nil
	untouched(exit.Denied, "Access Denied")
	out := h.run("cluster", "snapshot", "save", filepath.Join(h.home, "no", "dir", "x"))
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "cannot be written")
}

func TestSnapshotInspect(t *testing.T) {
	h, service := snapshotHarness(t)
	path := h.write("a.snapshot", string(service.File))
	require.Equal(t, `File:       `+path+`, `+print.Size(int64(len(service.File)))+`, intact
Cluster:    c1, incarnation 2
Revision:   20, of 2026-01-31T20:00:00Z
Saved:      2026-01-31T20:00:01Z by one, release v1
Digest:     `+digestIn(t, service.File)+`
Resources:  2

KIND  MESH  COUNT
Mesh  -     2
`, h.ok("cluster", "snapshot", "inspect", path))
	var view snapshotView
	require.NoError(t, json.Unmarshal([]byte(h.ok("cluster", "snapshot", "inspect", path, "-o", "json")), &view))
	require.Equal(t, snapshotView{
		File: path, Bytes: int64(len(service.File)), ClusterID: "c1", Incarnation: 2, Revision: 20,
		Time: "2026-01-31T20:00:00.000000001Z", Server: "one", Release: "v1", Taken: "2026-01-31T20:00:01Z",
		Resources: 2, Digest: digestIn(t, service.File), Counts: []snapshotCountView{{Kind: "Mesh", Count: 2}},
	}, view)

	for name, test := range map[string]struct{ data, message string }{
		"cut":       {string(service.File[:200]), "is truncated or corrupt: corrupt data: it ends too early, before byte 200"},
		"bit":       {flipped(service.File, 120), "is truncated or corrupt: corrupt data: checksum, before byte "},
		"no":        {"type: Mesh\nname: a\n", "is truncated or corrupt: corrupt data: not a snapshot, before byte 8"},
		"newer":     {"MRDNSNP\x09" + string(service.File[8:]), "was written by a newer release: unknown format: 9"},
		"empty":     {"", "is truncated or corrupt: corrupt data: it ends too early, before byte 0"},
		"something": {string(service.File) + "x", "is truncated or corrupt: corrupt data: something follows the trailer"},
	} {
		t.Run(name, func(t *testing.T) {
			out := h.run("cluster", "snapshot", "inspect", h.write("bad", test.data))
			require.Equal(t, exit.Usage, out.code)
			require.Contains(t, out.stderr, test.message)
			out = h.run("cluster", "snapshot", "restore", h.write("bad", test.data), "--yes")
			require.Equal(t, exit.Usage, out.code)
			require.Contains(t, out.stderr, test.message)
		})
	}
	require.Equal(t, exit.Usage, h.run("cluster", "snapshot", "inspect", filepath.Join(h.home, "none")).code)
	require.Empty(t, service.Restored, "a damaged file is not even sent")
	require.Empty(t, h.server.Calls, "no server is asked")
}

func flipped(file []byte, at int) string {
	damaged := bytes.Clone(file)
	damaged[at] ^= 4
	return string(damaged)
}

func digestIn(t *testing.T, file []byte) string {
	snap, err := store.ReadSnapshot(bytes.NewReader(file))
	require.NoError(t, err)
	return snap.Summary().Digest.String()
}

func TestSnapshotRestore(t *testing.T) {
	h, service := snapshotHarness(t)
	path := h.write("a.snapshot", string(service.File))
	out := h.run("cluster", "snapshot", "restore", path, "--dry-run")
	require.Equal(t, exit.OK, out.code)
	require.Contains(t, out.stderr, "by 2 resources of cluster c1, incarnation 2, at revision 20, saved 2026-01-31T20:00:01Z by one.")
	require.Contains(t, out.stderr, "the snapshot is of another cluster")
	require.Contains(t, out.stderr, "Dry run: nothing was changed.")
	out = h.run("cluster", "snapshot", "restore", path)
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "use --yes")
	require.Nil(t, service.Restored)

	require.Equal(t, "restored 2 resources; incarnation 3 of cluster c1 begins at revision 1841\n",
		h.ok("cluster", "snapshot", "restore", path, "--yes"))
	require.Equal(t, service.File, service.Restored)
	out = h.runWith(t.Context(), string(service.File), "cluster", "snapshot", "restore", "-", "-y", "-o", "json")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.JSONEq(t, `{"saved": 20, "revision": 1841, "resources": 2, "clusterId": "c1", "incarnation": 3}`, out.stdout)
	require.Equal(t, service.File, service.Restored)

	service.Refusal = rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "NOT_RESTORED", "the leader changed"), rpcerr.EffectNone)
	out = h.run("cluster", "snapshot", "restore", path, "--yes")
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "the leader changed\nNothing was written.\n")
	require.Empty(t, out.stdout)
	h.server.Role = "zone"
	out = h.run("cluster", "snapshot", "restore", path, "--yes")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "the snapshot is of a global, and "+h.address+" is a server of zone fake")
}

// The snapshot of a zone is restored into that zone, and nowhere else.
func TestSnapshotOfAZone(t *testing.T) {
	h, service := snapshotHarness(t)
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(7, store.Txn{
		Time: clitest.Epoch, Ops: []store.Op{store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}"))}, SetEpoch: &store.Epoch{ClusterID: "c", Incarnation: 1},
	}).Err)
	var file bytes.Buffer
	require.NoError(t, s.View().WriteBackup(&file, map[string]string{"server": "one", "zone": "fake"}))
	path := filepath.Join(h.home, "zone.snapshot")
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
	require.Contains(t, h.ok("cluster", "snapshot", "inspect", path), "Zone:       fake\n")

	out := h.run("cluster", "snapshot", "restore", path, "--yes")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "the snapshot is of zone fake, and "+h.address+" is a server of a global")
	h.server.Role, h.server.AllMembers = "zone", threeServers()
	out = h.run("cluster", "snapshot", "restore", path, "--yes", "--zone", "fake")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "This replaces everything in cluster c, which is at revision 1840,\n", "the zone's own, not the global's")
	require.Contains(t, out.stderr, "What was written to zone fake since is lost. What is the global's stays, and so do registrations of proxies.\nRevocations, keys")
	require.Equal(t, file.Bytes(), service.Restored)
}

// An encrypted snapshot is saved, inspected and restored without its key, as far
// as that goes, and completely with it.
func TestEncryptedSnapshots(t *testing.T) {
	h, service := snapshotHarness(t)
	line := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	keys, err := atrest.Parse([]byte(line))
	require.NoError(t, err)
	id, _ := keys.First()
	plain := service.File
	service.File, err = keys.Seal(plain)
	require.NoError(t, err)
	keyFile, other := h.write("keys", line+"\n"), h.write("other", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("o"), 32)))
	path := filepath.Join(h.home, "a.snapshot")

	out := h.run("cluster", "snapshot", "save", path)
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "encrypted with key "+id.String())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, service.File, data)

	for _, args := range [][]string{nil, {"--encryption-key-file", other}} {
		text := h.ok(append([]string{"cluster", "snapshot", "inspect", path}, args...)...)
		require.Contains(t, text, "Encrypted:  with key "+id.String()+"; --encryption-key-file FILE")
		require.JSONEq(t, fmt.Sprintf(`{"file": %q, "bytes": %d, "encryptionKey": %q}`, path, len(data), id),
			h.ok(append([]string{"cluster", "snapshot", "inspect", path, "-o", "json"}, args...)...))
	}
	text := h.ok("cluster", "snapshot", "inspect", path, "--encryption-key-file", keyFile)
	require.Contains(t, text, "Encrypted:  with key "+id.String()+"\nCluster:    c1, incarnation 2\n")
	out = h.run("cluster", "snapshot", "inspect", path, "--encryption-key-file", h.write("bad", "hunter2"))
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "line 1 is not a key")
	require.NotContains(t, out.stderr, "hunter2")
	for name, damaged := range map[string]string{"cut": string(data[:len(data)-1]), "longer": string(data) + "x", "head": flipped(data, 20)} {
		out := h.run("cluster", "snapshot", "inspect", h.write(name, damaged))
		require.Equal(t, exit.Usage, out.code, name)
		require.Contains(t, out.stderr, "is truncated or corrupt", name)
	}
	out = h.run("cluster", "snapshot", "inspect", h.write("flip", flipped(data, 200)), "--encryption-key-file", keyFile)
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "is truncated or corrupt")

	out = h.run("cluster", "snapshot", "restore", path, "--yes")
	require.Equal(t, exit.OK, out.code, out.stderr)
	require.Contains(t, out.stderr, "by a snapshot that is encrypted with key "+id.String())
	require.Equal(t, data, service.Restored)
	require.NotContains(t, out.stderr, "tokens revoked since are valid again")
	out = h.run("cluster", "snapshot", "restore", path, "--yes", "--drop-revocations")
	require.Contains(t, out.stderr, "Warning: tokens revoked since are valid again")
	out = h.run("cluster", "snapshot", "restore", path, "--dry-run", "--encryption-key-file", keyFile)
	require.Contains(t, out.stderr, "by 2 resources of cluster c1")
}
