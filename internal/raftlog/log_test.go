package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func openTestLog(t testing.TB, path string) *Log {
	t.Helper()
	log, err := OpenLog(begunDir(path), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close() })
	return log
}

// begunDir is a data directory whose log has been begun.
func begunDir(path string) *DataDir {
	id := identityIn(path)
	id.Bootstrapped = true
	return &DataDir{Storage: &files{path: path}, id: id}
}

func entries(from, to uint64) (logs []*raft.Log) {
	for i := from; i <= to; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: 1 + i/10, Type: raft.LogCommand, Data: fmt.Appendf(nil, "entry %d", i)})
	}
	return logs
}

func TestLogKeepsWhatItWasGiven(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	in := &raft.Log{Index: 1, Term: 3, Type: raft.LogConfiguration, Data: []byte("data"), Extensions: []byte("ext")}
	require.NoError(t, log.StoreLog(in))
	require.Equal(t, []byte("ext"), in.Extensions, "the caller's entry is not modified")
	require.NoError(t, log.SetUint64(keyCurrentTerm, 7))
	require.NoError(t, log.Set(keyLastVoteCandidate, nil))
	require.NoError(t, log.Close())

	log = openTestLog(t, dir)
	var out raft.Log
	require.NoError(t, log.GetLog(1, &out))
	require.Equal(t, *in, out)
	require.ErrorIs(t, log.GetLog(2, &out), raft.ErrLogNotFound)
	term, err := log.GetUint64(keyCurrentTerm)
	require.NoError(t, err)
	require.EqualValues(t, 7, term)
	_, err = log.Get([]byte("absent"))
	require.EqualError(t, err, "not found", "raft compares the text")
}

// TestLogAgainstMemory: whatever raft does to a log, ours answers like raft's
// own in-memory store.
func TestLogAgainstMemory(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	log.chunk = 8
	rapid.Check(t, func(t *rapid.T) {
		if first, last, err := log.Bounds(); err == nil && last > 0 {
			require.NoError(t, log.DeleteRange(first, last))
		}
		oracle := raft.NewInmemStore()
		next := uint64(rapid.IntRange(1, 100).Draw(t, "start"))
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				count := uint64(rapid.IntRange(1, 20).Draw(t, "count"))
				batch := entries(next, next+count-1)
				require.NoError(t, log.StoreLogs(batch))
				require.NoError(t, oracle.StoreLogs(batch))
				next += count
			},
			"cut": func(t *rapid.T) {
				first, _ := oracle.FirstIndex()
				last, _ := oracle.LastIndex()
				if last == 0 {
					return
				}
				at := rapid.Uint64Range(first, last).Draw(t, "at")
				lo, hi := first, at
				if rapid.Bool().Draw(t, "end") {
					lo, hi, next = at, last, at
				}
				require.NoError(t, log.DeleteRange(lo, hi))
				require.NoError(t, oracle.DeleteRange(lo, hi))
			},
			"": func(t *rapid.T) {
				wantFirst, _ := oracle.FirstIndex()
				wantLast, _ := oracle.LastIndex()
				first, last, err := log.Bounds()
				require.NoError(t, err)
				if wantFirst > wantLast { // how the oracle says empty
					wantFirst, wantLast = 0, 0
				}
				require.Equal(t, [2]uint64{wantFirst, wantLast}, [2]uint64{first, last})
			},
		})
	})
}

// TestFlippedBits: one flipped bit anywhere in the file either changes nothing
// that raft reads, or is reported. It never crashes the process.
func TestFlippedBits(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	want := entries(1, 200)
	for _, entry := range want {
		entry.Data = bytes.Repeat(entry.Data, 20)
	}
	require.NoError(t, log.StoreLogs(want))
	require.NoError(t, log.SetUint64(keyCurrentTerm, 9))
	require.NoError(t, log.Set(keyLastVoteCandidate, []byte("one")))
	require.NoError(t, log.Close())
	path := log.path
	pristine, err := os.ReadFile(path)
	require.NoError(t, err)

	rng := rand.New(rand.NewPCG(1, 2))
	detected := 0
	const flips = 400
	for range flips {
		at, bit := rng.IntN(len(pristine)), byte(1)<<rng.IntN(8)
		damaged := bytes.Clone(pristine)
		damaged[at] ^= bit
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		log, err := OpenLog(begunDir(dir), nil)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt, "byte %d bit %08b", at, bit)
			require.ErrorContains(t, err, path)
			detected++
			continue
		}
		for _, entry := range want {
			var got raft.Log
			require.NoError(t, log.GetLog(entry.Index, &got))
			got.AppendedAt = entry.AppendedAt
			require.Equal(t, *entry, got, "byte %d bit %08b", at, bit)
		}
		term, err := log.GetUint64(keyCurrentTerm)
		require.NoError(t, err)
		require.EqualValues(t, 9, term)
		vote, err := log.Get(keyLastVoteCandidate)
		require.NoError(t, err)
		require.Equal(t, "one", string(vote))
		require.NoError(t, log.Close())
	}
	t.Logf("%d of %d flips mattered, and were reported", detected, flips)
	require.Greater(t, detected, flips/10)
}

func TestTruncatedLog(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	require.NoError(t, log.StoreLogs(entries(1, 2000)))
	require.NoError(t, log.Close())
	info, err := os.Stat(log.path)
	require.NoError(t, err)
	for _, size := range []int64{0, 1, 4096, 8192, info.Size() / 2, info.Size() - 4096} {
		data, err := os.ReadFile(log.path)
		require.NoError(t, err)
		damaged := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(damaged, raftDir), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(damaged, raftDir, logFile), data[:size], 0o600))
		got, err := OpenLog(begunDir(damaged), nil)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt, "size %d", size)
			continue
		}
		// What was cut off may have been free, or the file may count as new.
		_, last, err := got.Bounds()
		require.NoError(t, err)
		require.NoError(t, got.Close())
		require.True(t, last == 2000 || size == 0, "size %d: %d entries", size, last)
	}
}

// TestFloor: entries that a kept snapshot needs are not removed, whatever raft
// asks for; the end of the log still can be.
func TestFloor(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	require.NoError(t, log.StoreLogs(entries(1, 100)))
	log.floor = func() (uint64, error) { return 41, nil }
	require.NoError(t, log.DeleteRange(1, 80))
	first, last, err := log.Bounds()
	require.NoError(t, err)
	require.Equal(t, [2]uint64{41, 100}, [2]uint64{first, last})
	require.NoError(t, log.DeleteRange(30, 39))
	require.NoError(t, log.DeleteRange(60, 100))
	_, last, err = log.Bounds()
	require.NoError(t, err)
	require.EqualValues(t, 59, last)
}

// TestStallIsReported: writes of which none ends are told of once, while they
// hang; a write that waits while others end is not stalled, nor is a large one
// that takes its time.
func TestStallIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan time.Duration, 8)
		w := &stallWatch{limit: 5 * time.Second, stalled: func(since time.Duration) { reports <- since }}
		endLong := w.begin(removes, 0)
		for range 4 {
			end := w.begin(removes, 0)
			<-time.After(3 * time.Second)
			end()
		}
		require.Empty(t, reports)
		require.Zero(t, w.stuck())
		<-time.After(time.Hour)
		require.Equal(t, 5*time.Second, <-reports)
		require.Empty(t, reports)
		require.InDelta(t, time.Hour, w.stuck(), float64(time.Second))
		endLong()
		require.Zero(t, w.stuck())
		<-time.After(time.Hour)
		end := w.begin(removes, 0)
		<-time.After(6 * time.Second)
		end()
		require.Len(t, reports, 1)
		<-reports
		end = w.begin(removes, 16*slowestDisk)
		<-time.After(20 * time.Second)
		require.Empty(t, reports, "sixteen seconds more than others")
		<-time.After(2 * time.Second)
		require.Len(t, reports, 1)
		end()
		<-time.After(time.Hour)
		require.Len(t, reports, 1)
	})
}

// TestPausesAreNoStalls: while the process does not run, neither does the disk's
// time. A pause shows as a tick that comes late.
func TestPausesAreNoStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan time.Duration, 8)
		w := &stallWatch{limit: 5 * time.Second, stalled: func(since time.Duration) { reports <- since }}
		end := w.begin(removes, 0)
		pause := func(d time.Duration) { // as the watch sees one: no tick, and then the next
			w.mu.Lock()
			w.timer.Stop()
			w.mu.Unlock()
			<-time.After(d)
			w.check()
		}
		<-time.After(time.Second + time.Millisecond) // between two ticks
		pause(7 * time.Second)
		pause(time.Hour)
		require.Empty(t, reports)
		<-time.After(2 * time.Second)
		require.Empty(t, reports)
		<-time.After(2 * time.Second)
		require.Len(t, reports, 1, "the disk hangs all the same")
		end()
	})
}

// slowDeletes is a file that takes its time to remove entries.
type slowDeletes struct{ LogFile }

func (f slowDeletes) DeleteRange(lo, hi uint64) error {
	<-time.After(time.Second)
	return f.LogFile.DeleteRange(lo, hi)
}

// TestWhatTellsThatADiskIsSlow: small writes that wait for nothing else; not those that
// wait behind a large one, nor the removal of entries.
func TestWhatTellsThatADiskIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stallWatch{limit: 5 * time.Second}
		endLarge := w.begin(writes, smallWrite+1)
		endSmall := w.begin(writes, 10)
		<-time.After(time.Second)
		endLarge()
		endSmall()
		require.Zero(t, w.takeSlowest())
		end := w.begin(writes, 10)
		<-time.After(300 * time.Millisecond)
		end()
		require.Equal(t, 300*time.Millisecond, w.takeSlowest())

		log := openTestLog(t, t.TempDir())
		log.file = slowDeletes{log.file}
		require.NoError(t, log.StoreLogs(entries(1, 20)))
		_ = log.Slowest()
		require.NoError(t, log.DeleteRange(1, 5))
		require.NoError(t, log.DeleteRange(15, 20))
		require.Zero(t, log.Slowest())
	})
}

// changingFile is changed by another each time that an entry is not found.
type changingFile struct {
	LogFile
	changes []func()
}

func (f *changingFile) GetLog(index uint64, log *raft.Log) error {
	err := f.LogFile.GetLog(index, log)
	if errors.Is(err, raft.ErrLogNotFound) && len(f.changes) > 0 {
		change := f.changes[0]
		f.changes = f.changes[1:]
		change()
	}
	return err
}

// TestAnEntryIsWrittenAfterItWasNotFound: an entry that another goroutine cuts off and
// writes again while it is read is no damage. One that is missing is.
func TestAnEntryIsWrittenAfterItWasNotFound(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	file := &changingFile{LogFile: log.file}
	log.file = file
	again := &raft.Log{Index: 9, Term: 7, Type: raft.LogCommand, Data: []byte("another")}
	write := func() { require.NoError(t, log.StoreLog(again)) }
	cut := func() { require.NoError(t, log.DeleteRange(9, 9)) }
	lose := func() { require.NoError(t, file.LogFile.DeleteRange(9, 9)) }
	require.NoError(t, log.StoreLogs(entries(1, 8)))

	for _, c := range []struct {
		name    string
		changes []func()
		want    error
	}{
		{"it is written", []func(){write}, nil},
		{"it is written twice", []func(){func() { write(); cut(); write() }}, nil},
		{"it is written and cut off", []func(){func() { write(); cut() }}, raft.ErrLogNotFound},
		{"it is not written", nil, raft.ErrLogNotFound},
		{"it is written and lost", []func(){func() { write(); lose() }}, ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, last, err := log.Bounds(); err == nil && last == 9 {
				cut()
			}
			file.changes = c.changes
			var got raft.Log
			require.ErrorIs(t, log.getWhole(9, &got), c.want)
			require.Empty(t, file.changes)
			if c.want == nil {
				require.Equal(t, again.Term, got.Term)
				require.Equal(t, again.Data, got.Data)
			}
			require.Equal(t, errors.Is(c.want, ErrCorrupt), log.Failure() != nil)
		})
	}
}
