package raftlog

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// TestAnOlderSnapshotIsRefused: a snapshot that ends after a newer one was
// installed does not count, or raft would go back to it.
func TestAnOlderSnapshotIsRefused(t *testing.T) {
	dir := begunDir(t.TempDir())
	log, err := OpenLog(dir, nil)
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	snapshots, err := OpenSnapshots(dir, log, 3, hclog.NewNullLogger())
	require.NoError(t, err)
	begin := func(index uint64) raft.SnapshotSink {
		sink, err := snapshots.Create(snapshotVersion, index, 1, raft.Configuration{}, 1, nil)
		require.NoError(t, err)
		_, err = sink.Write([]byte("state"))
		require.NoError(t, err)
		return sink
	}
	own, installed := begin(10), begin(20)
	require.NoError(t, installed.Close())
	require.ErrorIs(t, own.Close(), errOutdated)
	require.NoError(t, own.Close(), "raft closes it once more")
	require.NoError(t, begin(20).Close(), "the same one again is fine")
	metas, err := snapshots.List()
	require.NoError(t, err)
	for _, meta := range metas {
		require.EqualValues(t, 20, meta.Index)
	}
}
