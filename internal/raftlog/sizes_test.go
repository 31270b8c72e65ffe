package raftlog

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSizesAreThoseOfTheLog: whatever is appended and cut off, also across a
// restart, the sizes in memory are those of the entries in the log.
func TestSizesAreThoseOfTheLog(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var sizes entrySizes
		var log []*raft.Log
		next := uint64(1)
		for range rapid.IntRange(1, 30).Draw(rt, "rounds") {
			switch rapid.SampledFrom([]string{"append", "append", "cut end", "cut beginning", "start again"}).Draw(rt, "what") {
			case "append":
				var added []*raft.Log
				for range rapid.IntRange(1, 5).Draw(rt, "count") {
					added = append(added, &raft.Log{Index: next, Term: next, Data: make([]byte, rapid.SampledFrom([]int{0, 10, largeEntry, ownFile}).Draw(rt, "size"))})
					next++
				}
				sizes.set(added)
				log = append(log, added...)
			case "cut end":
				log = log[:len(log)-rapid.IntRange(0, len(log)).Draw(rt, "n")]
			case "cut beginning":
				log = log[rapid.IntRange(0, len(log)).Draw(rt, "n"):]
			case "start again":
				sizes = entrySizes{}
				for _, entry := range log {
					sizes.set([]*raft.Log{entry})
				}
			}
			if len(log) == 0 {
				sizes.keep(0, 0)
			} else {
				next = log[len(log)-1].Index + 1
				sizes.keep(log[0].Index, log[len(log)-1].Index)
			}
			sum, large := uint64(0), 0
			for i := len(log) - 1; i >= 0; i-- {
				sum += uint64(entryOverhead + len(log[i].Data))
				require.Equal(rt, sum, sizes.after(log[i].Index-1))
				require.EqualValues(rt, len(log)-i, sizes.within(sum))
				require.EqualValues(rt, len(log)-i-1, sizes.within(sum-1))
				if term, ok := sizes.terms[log[i].Index]; ok {
					require.Equal(rt, log[i].Term, term)
					large++
				} else {
					require.Less(rt, len(log[i].Data), largeEntry)
				}
			}
			require.Len(rt, sizes.terms, large)
			isLarge := func(entry *raft.Log) uint64 {
				if len(entry.Data) < largeEntry || len(entry.Data) >= ownFile {
					return 0
				}
				return uint64(entryOverhead + len(entry.Data))
			}
			beginning, end := uint64(0), uint64(0)
			for i := range min(pageEntries, len(log)) {
				beginning += isLarge(log[i])
				end += isLarge(log[len(log)-1-i])
			}
			require.Equal(rt, beginning, sizes.besideBeginning())
			require.Equal(rt, end, sizes.besideEnd())
			require.Equal(rt, sum, sizes.after(0))
			require.Zero(rt, sizes.after(next-1))
		}
	})
}

// TestLargeEntriesAreReadWhenNeeded: while raft runs, a large entry comes without
// its data, and Complete adds it; one that has been removed meanwhile is not
// found.
func TestLargeEntriesAreReadWhenNeeded(t *testing.T) {
	s := openTestLog(t, t.TempDir())
	file := &countingFile{LogFile: s.file}
	s.file = file
	large := make([]byte, recentBytes+1) // too large to stay in memory
	for index := range uint64(3) {
		require.NoError(t, s.StoreLog(&raft.Log{Index: index + 1, Term: 4, Type: raft.LogCommand, Data: large, Extensions: []byte("note")}))
	}
	var log raft.Log
	require.NoError(t, s.GetLog(2, &log))
	require.Equal(t, large, log.Data, "before raft runs")
	file.reads = 0
	s.Running()
	require.NoError(t, s.GetLog(2, &log))
	require.Equal(t, raft.Log{Index: 2, Term: 4, Type: raft.LogCommand}, log)
	require.Zero(t, file.reads)
	whole, err := s.Complete(&log)
	require.NoError(t, err)
	require.Equal(t, large, whole.Data)
	require.Equal(t, []byte("note"), whole.Extensions)
	require.Empty(t, log.Data)
	require.NoError(t, s.DeleteRange(2, 3))
	_, err = s.Complete(&log)
	require.ErrorIs(t, err, raft.ErrLogNotFound)
	require.NoError(t, s.StoreLog(&raft.Log{Index: 2, Term: 5, Type: raft.LogCommand, Data: large}))
	_, err = s.Complete(&log)
	require.ErrorIs(t, err, raft.ErrLogNotFound, "another entry")
}

// TestWritesAreWatchedByTheirSize: bbolt writes large entries again with those that are
// appended or removed beside them. The watch knows of all these bytes: it allows a
// disk the time that they take, and does not take the time of a small entry beside
// them for that of a small write.
func TestWritesAreWatchedByTheirSize(t *testing.T) {
	s := openTestLog(t, t.TempDir())
	store := boltOf(t, s)
	watched := &watchedFile{LogFile: s.file, watch: &s.stall}
	s.file = watched
	const large = ownFile / 2
	// What was in the journal only is written along with any, and what is beside it in the
	// bbolt file: a disk that is not taken for one that hangs does so in a third of a second.
	const flushed = journalSize + pageEntries*ownFile
	next, written := uint64(1), int64(0)
	check := func(what string) {
		stats := store.Stats()
		now := stats.TxStats.GetPageAlloc()
		require.LessOrEqual(t, now-written, int64(watched.bytes)+flushed, "%s: more was written than the watch knows of", what) //nolint:gosec // a size
		written = now
	}
	appends := func(size int) {
		require.NoError(t, s.StoreLog(&raft.Log{Index: next, Term: 1, Type: raft.LogCommand, Data: make([]byte, size)}))
		next++
		check(fmt.Sprintf("append %d bytes as entry %d", size, next-1))
	}
	for range 12 {
		appends(large)
	}
	_ = s.Slowest()
	appends(10)
	require.Zero(t, s.Slowest(), "an entry beside large ones is no small write")
	for range 9 {
		appends(10)
	}
	require.LessOrEqual(t, watched.bytes, uint64(smallWrite), "an entry beside small ones is")
	require.NoError(t, s.DeleteRange(1, 5))
	check("remove the beginning")
	for range 7 {
		appends(large)
	}
	require.NoError(t, s.DeleteRange(next-2, next-1))
	check("remove the end")
	next -= 2
	appends(large)
	require.NoError(t, s.DeleteRange(6, next-3))
	check("remove the beginning")
	for range 8 {
		appends(ownFile)
	}
	appends(10)
	require.LessOrEqual(t, watched.bytes, uint64(smallWrite), "bbolt has no more than the names of files")
}

// watchedFile notes how many bytes the watch expects of a write that begins.
type watchedFile struct {
	LogFile
	watch *stallWatch
	bytes uint64
}

func (f *watchedFile) note() {
	f.watch.mu.Lock()
	defer f.watch.mu.Unlock()
	f.bytes = f.watch.bytes
}

func (f *watchedFile) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	f.note()
	return f.LogFile.WriteLogs(logs)
}

func (f *watchedFile) DeleteRange(first, last uint64) error {
	f.note()
	return f.LogFile.DeleteRange(first, last)
}
