package raftlog

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestRecentEntriesAreThoseOfTheLog: whatever is appended, written over and cut
// off, an entry in memory is the one that was written last at its index, the end
// of the log is there as far as it is kept, and what is kept is bounded.
func TestRecentEntriesAreThoseOfTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var recent recentEntries
		log := map[uint64]raft.Log{}
		first, last := uint64(1), uint64(0)
		for round := range rapid.IntRange(1, 40).Draw(t, "rounds") {
			switch rapid.SampledFrom([]string{"append", "append", "append", "many", "cut end", "cut beginning"}).Draw(t, "what") {
			case "append", "many":
				size, count := rapid.SampledFrom([]int{0, 100, recentBytes / 3, recentBytes + 1}).Draw(t, "size"), rapid.IntRange(1, 5).Draw(t, "count")
				if size < 1000 {
					count *= 200
				}
				data := bytes.Repeat([]byte{byte(round)}, size)
				var logs []*raft.Log
				for range count {
					last++
					logs = append(logs, &raft.Log{Index: last, Term: uint64(round), Data: data})
					log[last] = *logs[len(logs)-1]
				}
				recent.add(logs)
				require.True(t, recent.get(last, new(raft.Log)))
			case "cut end":
				last = max(first-1, last-min(last, rapid.Uint64Range(1, 500).Draw(t, "n")))
				recent.clear()
			case "cut beginning":
				first = min(last+1, first+rapid.Uint64Range(1, 500).Draw(t, "n"))
				recent.cut(first)
			}
			require.LessOrEqual(t, len(recent.logs), recentCount)
			held := 0
			require.False(t, recent.get(last+1, new(raft.Log)))
			for index := uint64(0); index <= last; index++ {
				var got raft.Log
				if !recent.get(index, &got) {
					require.Zero(t, held, "a gap before %d", index)
					continue
				}
				require.LessOrEqual(t, first, index)
				require.LessOrEqual(t, index, last)
				require.Equal(t, log[index].Term, got.Term)
				held += len(got.Data)
			}
			require.Equal(t, held, recent.bytes)
			if len(recent.logs) > 1 {
				require.LessOrEqual(t, recent.bytes, recentBytes)
			}
		}
	})
}

// TestEntriesAreReadFromMemory: an entry just written costs no read, an older one
// does, and one that was cut off is not found.
func TestEntriesAreReadFromMemory(t *testing.T) {
	s := openTestLog(t, t.TempDir())
	file := &countingFile{LogFile: s.file}
	s.file = file
	large := make([]byte, recentBytes/2)
	for index := range uint64(4) {
		require.NoError(t, s.StoreLog(&raft.Log{Index: index + 1, Term: 1, Data: large}))
	}
	var log raft.Log
	require.NoError(t, s.GetLog(4, &log))
	require.Equal(t, large, log.Data)
	require.Zero(t, file.reads)
	require.NoError(t, s.GetLog(1, &log))
	require.Equal(t, 1, file.reads)
	require.NoError(t, s.DeleteRange(3, 4))
	require.ErrorIs(t, s.GetLog(4, &log), raft.ErrLogNotFound)
	require.NoError(t, s.StoreLog(&raft.Log{Index: 3, Term: 2}))
	require.NoError(t, s.GetLog(3, &log))
	require.EqualValues(t, 2, log.Term)
}

// countingFile counts the entries that are read.
type countingFile struct {
	LogFile
	reads int
}

func (f *countingFile) GetLog(index uint64, log *raft.Log) error {
	f.reads++
	return f.LogFile.GetLog(index, log)
}
