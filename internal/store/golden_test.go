package store_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

var update = flag.Bool("update", false, "write the files of testdata that do not exist yet")

// goldenBackup is the file that TestBackupFormatOne reads for ever. It is
// written once, when a format is new, and never again.
const goldenBackup = "backup-format-1.snapshot"

// TestBackupFormatOne: a backup that an operator has kept since the first format
// can be read by this release, to the last byte, and restored.
func TestBackupFormatOne(t *testing.T) {
	path := filepath.Join("testdata", goldenBackup)
	if *update {
		if _, err := os.Stat(path); err != nil {
			require.NoError(t, os.WriteFile(path, goldenBytes(t), 0o600))
		}
	}
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	snap, err := store.ReadSnapshot(bytes.NewReader(file))
	require.NoError(t, err)

	summary := snap.Summary()
	require.Equal(t, store.Summary{
		Revision: 20, Epoch: goldenEpoch, Time: clock(2),
		Metadata:  map[string]string{"server": "one", "release": "0.6.0", "taken": "2026-03-01T12:00:09Z"},
		Resources: 4,
		Counts: []store.Count{
			{Kind: "AccessRole", Count: 1},
			{Kind: "Mesh", Count: 1},
			{Kind: "Timeout", Mesh: "default", Count: 1},
			{Kind: "TrafficPermission", Mesh: "default", Count: 1},
		},
		Digest: goldenDigest(t), Bytes: int64(len(file)),
	}, summary)
	s := store.New(store.DefaultOptions())
	for i, part := range snap.Parts(store.Epoch{}, next, 1<<20) {
		require.NoError(t, s.Apply(resource.Revision(100+i), store.Txn{Restore: &part}).Err)
	}
	timeout := get(t, s.View(), resource.Key{Kind: "Timeout", Mesh: "default", Name: "web"})
	require.Equal(t, uint64(2), timeout.Meta().Version)
	require.Equal(t, resource.Revision(20), timeout.Meta().Revision)
	require.Equal(t, clock(1), timeout.Meta().CreationTime.In(time.UTC))
	require.Equal(t, map[string]string{"team": "väst", "k8s/namespace": "a"}, timeout.Meta().Labels)
	require.Equal(t, file, goldenBytes(t), "this release writes the same file still")
}

var goldenEpoch = store.Epoch{ClusterID: "0af7651916cd43dd8448eb211c80319c", Incarnation: 2, Random: 0xfedcba9876543210}

// goldenDigest is a constant: the definition of digests must not change.
func goldenDigest(t *testing.T) store.Digest {
	raw, err := hex.DecodeString("05e88c0f1e4b10a2a5692d5ca794c223")
	require.NoError(t, err)
	d, err := store.DigestFromBytes(raw)
	require.NoError(t, err)
	return d
}

// goldenBytes is the backup as this release writes it.
func goldenBytes(t *testing.T) []byte {
	t.Helper()
	build := func(kind resource.Kind, mesh resource.MeshName, name, spec string, labels map[string]string) store.Op {
		r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: kind, Mesh: mesh, Name: name}, Labels: labels}, []byte(spec))
		require.NoError(t, err)
		return store.Put(r)
	}
	timeout := func(connect string) store.Op {
		return build("Timeout", "default", "web", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"web"}}],
			"conf":{"connectTimeout":"`+connect+`"}}`, map[string]string{"team": "väst", "k8s/namespace": "a"})
	}
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(10, store.Txn{
		Time: clock(1), RequestID: "first", SetEpoch: &goldenEpoch,
		Ops: []store.Op{
			build("Mesh", "", "default", `{}`, nil),
			build("AccessRole", "", "readers", `{"rules":[{"types":["Timeout"],"access":["UPDATE"]}]}`, nil),
			build("TrafficPermission", "default", "all", `{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"*"}}]}`, nil),
			timeout("1s"),
		},
	}).Err)
	require.NoError(t, s.Apply(20, store.Txn{Time: clock(2), Ops: []store.Op{timeout("1s500ms")}}).Err)
	var file bytes.Buffer
	require.NoError(t, s.View().WriteBackup(&file, map[string]string{"server": "one", "release": "0.6.0", "taken": "2026-03-01T12:00:09Z"}))
	return file.Bytes()
}
