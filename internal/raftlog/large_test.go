package raftlog

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// largeLog is an entry whose data is in a file of its own.
func largeLog(index, term uint64, fill byte) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{fill}, ownFile), Extensions: []byte("note")}
}

// boltOf is the bbolt file of a log, with the files beside it.
func boltOf(t testing.TB, log *Log) *boltFile { return &journaledOf(t, log).boltFile }

func journaledOf(t testing.TB, log *Log) *journaled {
	t.Helper()
	file, ok := log.file.(*journaled)
	require.True(t, ok)
	return file
}

// ownFiles are the names of the files beside the log of a directory.
func ownFiles(t require.TestingT, dir string) (names []string) {
	entries, err := os.ReadDir(filepath.Join(dir, raftDir, largeDir))
	require.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestLargeEntriesAreWrittenOnce: a large entry is written to the disk once, not again
// with each of its neighbours, and neither is the removal of others a reason to write it
// again.
func TestLargeEntriesAreWrittenOnce(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	const count = 12
	for i := range uint64(count) {
		require.NoError(t, log.StoreLog(largeLog(i+1, 3, byte(i))))
	}
	require.NoError(t, log.DeleteRange(1, 4))
	stats := boltOf(t, log).Stats()
	require.Less(t, stats.TxStats.GetPageAlloc(), int64(ownFile), "bbolt has the names only")
	require.Len(t, ownFiles(t, dir), count-4)
}

// TestLargeEntriesAreThoseOfTheLog: whatever is appended, cut off and started again, and
// wherever a crash leaves files that no entry names, each entry is what was written last
// at its index, and after a start there is a file for each large entry and no other.
func TestLargeEntriesAreThoseOfTheLog(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		require.NoError(rt, err)
		defer func() { _ = os.RemoveAll(dir) }()
		open := func() *Log {
			log, err := OpenLog(begunDir(dir), nil)
			require.NoError(rt, err)
			return log
		}
		log := open()
		defer func() { require.NoError(rt, log.Close()) }()
		want := map[uint64]*raft.Log{}
		first, next := uint64(1), uint64(1)
		for round := range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			switch rapid.SampledFrom([]string{"append", "append", "cut end", "cut beginning", "start again"}).Draw(rt, "what") {
			case "append":
				var added []*raft.Log
				for range rapid.IntRange(1, 2).Draw(rt, "count") {
					entry := largeLog(next, uint64(round), byte(round))
					entry.Data = entry.Data[:rapid.SampledFrom([]int{0, 10, 10, ownFile}).Draw(rt, "size")]
					added, want[next] = append(added, entry), entry
					next++
				}
				require.NoError(rt, log.StoreLogs(added))
			case "cut end":
				from := rapid.Uint64Range(first, next).Draw(rt, "from")
				require.NoError(rt, log.DeleteRange(from, next))
				for ; next > from; next-- {
					delete(want, next-1)
				}
			case "cut beginning":
				to := rapid.Uint64Range(first, next).Draw(rt, "to")
				if to+1 >= next {
					continue
				}
				require.NoError(rt, log.DeleteRange(first, to))
				for ; first <= to; first++ {
					delete(want, first)
				}
			case "start again":
				require.NoError(rt, log.Close())
				left := fmt.Sprintf("%d-%d-7", rapid.Uint64Range(first, next).Draw(rt, "left"), round)
				require.NoError(rt, os.WriteFile(filepath.Join(dir, raftDir, largeDir, left), []byte("half"), 0o600))
				log = open()
			}
			large := 0
			for index, entry := range want {
				var got raft.Log
				require.NoError(rt, log.getWhole(index, &got))
				require.Equal(rt, entry.Term, got.Term)
				require.Equal(rt, entry.Type, got.Type)
				require.True(rt, bytes.Equal(entry.Data, got.Data))
				if len(entry.Data) >= ownFile {
					large++
				}
			}
			require.Len(rt, ownFiles(rt, dir), large)
		}
	})
}

// TestDamagedLargeEntries: a file that is damaged, shorter, missing or of another entry
// is told, while the log is open and at the next start.
func TestDamagedLargeEntries(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"a flipped bit": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			data[rand.IntN(len(data))] ^= 1
			require.NoError(t, os.WriteFile(path, data, 0o600))
		},
		"truncated": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, ownFile/2)) },
		"longer":    func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 2*ownFile)) },
		"removed":   func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"another's": func(t *testing.T, path string) {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(path), ownFiles(t, filepath.Dir(filepath.Dir(filepath.Dir(path))))[2]))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, data, 0o600))
		},
		"no permission to read": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700)) // which is no file
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log := openTestLog(t, dir)
			for i := range uint64(3) {
				require.NoError(t, log.StoreLog(largeLog(i+1, 3, byte(i))))
			}
			damage(t, filepath.Join(dir, raftDir, largeDir, ownFiles(t, dir)[1]))
			var got raft.Log
			require.ErrorIs(t, log.getWhole(2, &got), ErrCorrupt)
			require.NoError(t, log.getWhole(1, &got))
			require.NoError(t, log.Close())
			_, err := OpenLog(begunDir(dir), nil)
			require.Error(t, err)
			if name != "no permission to read" { // which another start may have
				require.ErrorIs(t, err, ErrCorrupt)
			}
		})
	}
}

// TestNoSpaceForALargeEntry: a write that finds no space has no effect, leaves no file,
// and succeeds once there is space.
func TestNoSpaceForALargeEntry(t *testing.T) {
	small := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small).CombinedOutput(); err != nil {
		t.Skipf("a small file system cannot be made here: %s", out)
	}
	dir := filepath.Join(small, "data")
	log := openTestLog(t, dir)
	t.Cleanup(func() {
		_ = log.Close()
		require.NoError(t, exec.Command("umount", small).Run())
	})
	next := uint64(1)
	err := error(nil)
	for ; err == nil; next++ {
		err = log.StoreLog(largeLog(next, 3, byte(next)))
	}
	next--
	require.ErrorIs(t, err, ErrDiskFull)
	require.Len(t, ownFiles(t, dir), int(next-1)) //nolint:gosec // a few
	require.ErrorIs(t, log.StoreLog(largeLog(next, 3, byte(next))), ErrDiskFull)
	require.NoError(t, log.DeleteRange(1, 2))
	require.NoError(t, log.StoreLog(largeLog(next, 3, byte(next))))
	require.NoError(t, log.Close())
	log = openTestLog(t, dir)
	var got raft.Log
	require.NoError(t, log.getWhole(next, &got))
	require.Equal(t, largeLog(next, 3, byte(next)).Data, got.Data)
}

// TestNoFileForALargeEntry: without another file that may be opened, an entry is written
// all the same; a directory that has gone is the end.
func TestNoFileForALargeEntry(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	require.NoError(t, log.StoreLog(largeLog(1, 3, 1)))

	var limit, before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	limit = before
	limit.Cur = 0
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	err := log.StoreLog(largeLog(2, 3, 2))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	require.NoError(t, err)
	require.Len(t, ownFiles(t, dir), 1)
	var got raft.Log
	require.NoError(t, log.getWhole(2, &got))
	require.Len(t, got.Data, ownFile)

	// The directory is gone: this is no shortage, and the log must not continue.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, raftDir, largeDir)))
	err = log.StoreLog(largeLog(3, 3, 3))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NotErrorIs(t, err, ErrDiskFull)
}

// withFiles has a log use other functions on the files of large entries.
func withFiles(t *testing.T, log *Log, change func(*boltFile)) {
	t.Helper()
	change(boltOf(t, log))
}

func noFile(op, path string) error { return &fs.PathError{Op: op, Path: path, Err: syscall.EMFILE} }

// TestNoFileToSyncALargeEntry: bbolt gets the entry as it is when the directory of the
// files cannot be opened for a sync, and no file stays.
func TestNoFileToSyncALargeEntry(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	withFiles(t, log, func(b *boltFile) { b.disk.syncDir = func(dir string) error { return noFile("open", dir) } })
	require.NoError(t, log.StoreLog(largeLog(1, 3, 1)))
	require.Empty(t, ownFiles(t, dir))
	var got raft.Log
	require.NoError(t, log.getWhole(1, &got))
	require.Equal(t, largeLog(1, 3, 1).Data, got.Data)
	require.Equal(t, raft.LogCommand, got.Type)
}

// TestNoFileToListLargeEntries: entries are removed also when their files cannot be
// listed, which the next start removes.
func TestNoFileToListLargeEntries(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	for i := range uint64(3) {
		require.NoError(t, log.StoreLog(largeLog(i+1, 3, byte(i))))
	}
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	none := before
	none.Cur = 0
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	err := log.DeleteRange(1, 2)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	require.NoError(t, err)
	require.Len(t, ownFiles(t, dir), 3)
	require.NoError(t, log.Close())
	log = openTestLog(t, dir)
	require.Len(t, ownFiles(t, dir), 1)
	var got raft.Log
	require.NoError(t, log.getWhole(3, &got))
}

// closable is the host of a log whose node can be closed.
type closable struct {
	afterSnapshot
	closing chan struct{}
	failed  error
}

func (c *closable) Closing() <-chan struct{} { return c.closing }
func (c *closable) StorageFailed(err error)  { c.failed = err }

// TestNoFileToReadALargeEntry: a read that finds no file to be opened is no damage. It
// waits for one while raft runs, until the node is closed.
func TestNoFileToReadALargeEntry(t *testing.T) {
	log := openTestLog(t, t.TempDir())
	require.NoError(t, log.StoreLog(largeLog(1, 3, 1)))
	attempts, enough := 0, 4
	withFiles(t, log, func(b *boltFile) {
		b.disk.readFile = func(path string) ([]byte, error) {
			if attempts++; attempts < enough {
				return nil, noFile("open", path)
			}
			return os.ReadFile(path)
		}
	})
	var got raft.Log
	err := log.getWhole(1, &got)
	require.ErrorIs(t, err, syscall.EMFILE, "before raft runs")
	require.NotErrorIs(t, err, ErrCorrupt)
	synctest.Test(t, func(t *testing.T) {
		host := &closable{closing: make(chan struct{})}
		log.host = host
		log.Running()
		begun := time.Now()
		require.NoError(t, log.getWhole(1, &got))
		require.Equal(t, 2*shortageRetry, time.Since(begun))
		require.Equal(t, largeLog(1, 3, 1).Data, got.Data)

		enough = 1 << 30
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = log.getWhole(1, &got)
		}()
		synctest.Wait()
		close(host.closing)
		<-ended
		require.NoError(t, host.failed)
		require.NoError(t, log.Failure())
		log.running.Store(false)
	})
}

// TestALargeEntryThatIsReplacedWhileItIsRead: the file of an entry may be removed after
// bbolt has named it, and another entry be stored at its index: that one is read then.
func TestALargeEntryThatIsReplacedWhileItIsRead(t *testing.T) {
	for name, size := range map[string]int{"a large one": ownFile, "a small one": 10} {
		t.Run(name, func(t *testing.T) {
			log := openTestLog(t, t.TempDir())
			require.NoError(t, log.StoreLog(largeLog(1, 3, 1)))
			require.NoError(t, log.StoreLog(largeLog(2, 3, 1)))
			next := largeLog(2, 4, 2)
			next.Data = next.Data[:size]
			turned := false
			withFiles(t, log, func(b *boltFile) {
				b.disk.readFile = func(path string) ([]byte, error) {
					if !turned {
						turned = true
						require.NoError(t, log.DeleteRange(2, 2))
						require.NoError(t, log.StoreLog(next))
					}
					return os.ReadFile(path)
				}
			})
			var got raft.Log
			require.NoError(t, log.getWhole(2, &got))
			require.Equal(t, next.Term, got.Term)
			require.Equal(t, next.Data, got.Data)
		})
	}
}
