package raftlog

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// afterSnapshot is a log's node that has restored or taken a snapshot.
type afterSnapshot struct{ index, term uint64 }

func (afterSnapshot) OnlyVoter() bool                  { return false }
func (afterSnapshot) Leads() bool                      { return false }
func (afterSnapshot) DiskFull()                        {}
func (afterSnapshot) StorageFailed(error)              {}
func (afterSnapshot) ShutDownRaft()                    {}
func (afterSnapshot) Closing() <-chan struct{}         { return nil }
func (s afterSnapshot) LastSnapshot() (_, term uint64) { return s.index, s.term }

// TestOverlap: what a leader repeats from before a snapshot is cut down to what
// follows it, and its word on what was committed to what it tells about.
func TestOverlap(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	log.host = afterSnapshot{index: 20, term: 3}
	request := func(prev, to, committed uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{
			PrevLogEntry: prev, PrevLogTerm: 1 + prev/10, Entries: entries(prev+1, to), LeaderCommitIndex: committed,
		}
	}
	bounds := func(r *raft.AppendEntriesRequest) [4]uint64 {
		first, last := uint64(0), uint64(0)
		if len(r.Entries) > 0 {
			first, last = r.Entries[0].Index, r.Entries[len(r.Entries)-1].Index
		}
		return [4]uint64{r.PrevLogEntry, first, last, r.LeaderCommitIndex}
	}
	for name, given := range map[string][]*raft.Log{"empty": nil, "after the snapshot": entries(21, 30)} {
		t.Run(name, func(t *testing.T) {
			if given != nil {
				require.NoError(t, log.StoreLogs(given))
			}
			old := request(5, 25, 40)
			require.Equal(t, [4]uint64{0, 21, 25, 25}, bounds(log.Overlap(old)))
			require.Zero(t, log.Overlap(old).PrevLogTerm)
			require.Equal(t, [4]uint64{5, 6, 25, 40}, bounds(old), "the sender's request is left alone")
			require.Equal(t, [4]uint64{0, 0, 0, 20}, bounds(log.Overlap(request(5, 15, 40))))
			require.Equal(t, [4]uint64{0, 21, 25, 22}, bounds(log.Overlap(request(20, 25, 22))))
		})
	}
	require.Equal(t, [4]uint64{25, 26, 28, 28}, bounds(log.Overlap(request(25, 28, 90))), "what follows is not checked yet")
	require.Equal(t, [4]uint64{25, 0, 0, 25}, bounds(log.Overlap(request(25, 25, 90))))
}

// TestEmptiedAfterSnapshot: when raft empties the log after it restored a
// snapshot, what follows on the snapshot stays, for it was confirmed; where the
// log continues differently, the server ends, for raft would not know that its end
// has moved.
func TestEmptiedAfterSnapshot(t *testing.T) {
	for name, c := range map[string]struct {
		index, term uint64
		first, last uint64
		failed      bool
	}{
		"the log ends before":     {index: 40, term: 9},
		"the log ends there":      {index: 30, term: 4},
		"the log continues":       {index: 15, term: 2, first: 16, last: 30},
		"the log turns elsewhere": {index: 15, term: 7, first: 10, last: 30, failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			log := openTestLog(t, t.TempDir())
			require.NoError(t, log.StoreLogs(entries(10, 30)))
			log.host = afterSnapshot{index: c.index, term: c.term}
			err := log.DeleteRange(10, 30)
			first, last, boundsErr := log.Bounds()
			require.NoError(t, boundsErr)
			require.Equal(t, [2]uint64{c.first, c.last}, [2]uint64{first, last})
			if c.failed {
				require.ErrorIs(t, err, ErrRestart)
				require.ErrorIs(t, log.Failure(), ErrRestart)
				return
			}
			require.NoError(t, err)
		})
	}
}

// TestConflictIsCut: the end of a log that no majority had is cut off, also where
// all of the log is after the snapshot.
func TestConflictIsCut(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	require.NoError(t, log.StoreLogs(entries(21, 30)))
	log.host = afterSnapshot{index: 20, term: 3}
	require.NoError(t, log.DeleteRange(21, 30))
	_, last, err := log.Bounds()
	require.NoError(t, err)
	require.Zero(t, last)
}
