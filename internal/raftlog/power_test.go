package raftlog

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"meridian/internal/atomicfile"
)

// volatileDir is the directory of large entries on a disk that may lose power: what
// was not synced may be there or not. A transaction of bbolt counts as synced as soon
// as it is in bbolt's file.
type volatileDir struct {
	t    *testing.T
	path string
	// point is called before and after each sync and removal.
	point func(what string)
	// written are the files whose content was synced, named those whose name was.
	// No name is used twice.
	written, named map[string]bool
	points         int
}

// beneath has a log use the directory.
func (v *volatileDir) beneath(log *Log) {
	withFiles(v.t, log, func(b *boltFile) {
		v.path = b.large()
		b.disk.sync = func(f *os.File) error {
			return v.around("the sync of a file", f.Sync, func() { v.written[filepath.Base(f.Name())] = true })
		}
		b.disk.syncDir = func(dir string) error {
			return v.around("the sync of the directory", func() error { return atomicfile.SyncDir(dir) }, func() { v.named = v.present() })
		}
		b.disk.remove = func(path string) error {
			return v.around("a removal", func() error { return os.Remove(path) }, func() {})
		}
	})
}

func (v *volatileDir) around(what string, do func() error, done func()) error {
	v.points++
	v.point("before " + what)
	if err := do(); err != nil {
		return err
	}
	done()
	v.point("after " + what)
	return nil
}

// present are the names that the running system sees.
func (v *volatileDir) present() map[string]bool {
	entries, err := os.ReadDir(v.path)
	require.NoError(v.t, err)
	names := map[string]bool{}
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	return names
}

// survivors are what a loss of power may leave, by what is told about each: the names
// of the files, true for those with their content. A file that was removed, but may be
// there again, is empty here: nothing may need it.
func (v *volatileDir) survivors() map[string]map[string]bool {
	present := v.present()
	out := map[string]map[string]bool{}
	add := func(what string, names map[string]bool, synced bool) {
		files := map[string]bool{}
		for name := range names {
			files[name] = present[name] && (v.written[name] || !synced)
		}
		for _, other := range out {
			if maps.Equal(files, other) {
				return
			}
		}
		out[what] = files
	}
	both := maps.Clone(v.named)
	maps.Copy(both, present)
	kept := maps.Clone(v.named)
	maps.DeleteFunc(kept, func(name string, _ bool) bool { return !present[name] })
	add("nothing that was not synced", v.named, true)
	add("of that removals only", kept, true)
	add("of that names only", both, true)
	add("of that names and removals", present, true)
	add("all that was written", present, false)
	return out
}

// leave makes a data directory as a loss of power leaves it.
func (v *volatileDir) leave(log string, files map[string]bool) (dir string) {
	dir, err := os.MkdirTemp(filepath.Dir(filepath.Dir(filepath.Dir(log))), "left-*")
	require.NoError(v.t, err)
	large := filepath.Join(dir, raftDir, largeDir)
	require.NoError(v.t, os.MkdirAll(large, 0o700))
	data, err := os.ReadFile(log)
	require.NoError(v.t, err)
	require.NoError(v.t, os.WriteFile(filepath.Join(dir, raftDir, logFile), data, 0o600))
	for name, whole := range files {
		to := filepath.Join(large, name)
		if whole { // no file is ever written to again
			require.NoError(v.t, os.Link(filepath.Join(v.path, name), to))
			continue
		}
		require.NoError(v.t, os.WriteFile(to, nil, 0o600))
	}
	return dir
}

// readAll opens the log of a directory, and returns each entry in short. It checks that
// there is a file for each large entry, and no other.
func readAll(t *testing.T, dir, what string) (read []string) {
	t.Helper()
	large := 0
	log, err := OpenLog(begunDir(dir), func(entry *raft.Log) {
		read = append(read, inShort(entry))
		if len(entry.Data) >= ownFile {
			large++
		}
	})
	require.NoError(t, err, what)
	require.NoError(t, log.Close())
	require.Len(t, ownFiles(t, dir), large, what)
	return read
}

func inShort(entry *raft.Log) string {
	return fmt.Sprintf("%d-%d %08x", entry.Index, entry.Term, entryChecksum(entry))
}

// TestPowerLossAndLargeEntries: wherever the power goes, and whatever of that which was
// not synced is lost, the next start finds a log with all that was acknowledged, of the
// write under way everything or nothing, and no entry without its file.
func TestPowerLossAndLargeEntries(t *testing.T) {
	var before, after []string
	dir := filepath.Join(t.TempDir(), "data")
	log := openTestLog(t, dir)
	v := &volatileDir{t: t, written: map[string]bool{}, named: map[string]bool{}}
	v.beneath(log)
	step := ""
	v.point = func(point string) {
		for lost, files := range v.survivors() {
			what := fmt.Sprintf("%s, %s: there is %s", step, point, lost)
			left := v.leave(log.path, files)
			read := readAll(t, left, what)
			if !slices.Equal(after, read) {
				require.Equal(t, before, read, what)
			}
			require.NoError(t, os.RemoveAll(left))
		}
	}
	var held []*raft.Log
	do := func(name string, next []*raft.Log, change func() error) {
		step, after = name, nil
		for _, entry := range next {
			after = append(after, inShort(entry))
		}
		require.NoError(t, change(), name)
		before, held = after, next
		v.point("after it was acknowledged")
	}
	add := func(name string, logs ...*raft.Log) {
		do(name, slices.Concat(held, logs), func() error { return log.StoreLogs(logs) })
	}
	add("a small entry", entries(1, 1)...)
	add("a large entry", largeLog(2, 3, 2))
	add("several entries", largeLog(3, 3, 3), entries(4, 4)[0], largeLog(5, 3, 5))
	do("the end is cut off", held[:3], func() error { return log.DeleteRange(4, 5) })
	add("another entry in its place", entries(4, 4)[0], largeLog(5, 4, 6))
	do("the beginning is cut off", held[2:], func() error { return log.DeleteRange(1, 2) })
	do("all is cut off", nil, func() error { return log.DeleteRange(3, 5) })
	add("the first entry after that", largeLog(9, 5, 9))
	require.Equal(t, 5+4+4, v.points, "files synced, the directory synced, files removed")
}
