package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"meridian/internal/atomicfile"
)

const (
	// ownFile is from how many bytes on the data of an entry is kept in a file of its
	// own: bbolt writes an entry again with its neighbours, up to four times.
	ownFile = 1 << 20
	// inOwnFile marks the type of an entry whose data is the name of such a file.
	inOwnFile raft.LogType = 0x80
	// largeDir is where these files are, beside the bbolt file.
	largeDir = "large"
)

// boltFile is the log in a raft-boltdb file, with files for the data of large
// entries. Such a file is on disk before the entry that names it, and is removed after
// that: a crash leaves a file too many (see removeUnnamed), never one too few.
type boltFile struct {
	*raftboltdb.BoltStore
	path string
	// disk are the calls on the files of large entries.
	disk largeDisk
}

// largeDisk are calls of the system, which tests replace.
type largeDisk struct {
	sync     func(f *os.File) error
	syncDir  func(dir string) error
	readFile func(path string) ([]byte, error)
	remove   func(path string) error
}

var systemDisk = largeDisk{sync: (*os.File).Sync, syncDir: atomicfile.SyncDir, readFile: os.ReadFile, remove: os.Remove}

// large is the directory of the files.
func (b boltFile) large() string { return filepath.Join(filepath.Dir(b.path), largeDir) }

// Name is the path of the bbolt file.
func (b boltFile) Name() string { return b.path }

// WriteLogs implements LogFile.
func (b boltFile) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	return nil, b.StoreLogs(logs)
}

// StoreLogs writes entries and returns once they are on disk.
func (b boltFile) StoreLogs(logs []*raft.Log) error {
	out := make([]*raft.Log, len(logs))
	var written []string
	for i, log := range logs {
		out[i] = log
		if len(log.Data) < ownFile {
			continue
		}
		name, err := b.writeLarge(log)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		named := *log
		named.Type |= inOwnFile
		named.Data = []byte(name)
		out[i], written = &named, append(written, name)
	}
	if len(written) > 0 {
		err := b.disk.syncDir(b.large())
		if isShortage(err) { // as in writeLarge
			b.remove(written)
			return b.BoltStore.StoreLogs(logs)
		}
		if err != nil {
			return err
		}
	}
	err := b.BoltStore.StoreLogs(out)
	if isNoSpace(err) { // after any other error they may be named
		b.remove(written)
	}
	return err
}

// writeLarge writes the data of an entry into a file and returns its name. Without
// space, or another file that may be opened, there is none: bbolt gets the entry as it
// is, and says whether there is space.
func (b boltFile) writeLarge(log *raft.Log) (name string, err error) {
	f, err := os.CreateTemp(b.large(), largePrefix(log)+"*")
	if isShortage(err) || lacksSpace(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	name = filepath.Base(f.Name())
	_, err = f.Write(log.Data)
	full := isNoSpace(err)
	if err == nil {
		err = b.disk.sync(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		return name, nil
	}
	b.remove([]string{name})
	if full {
		err = nil
	}
	return "", err
}

// largePrefix is how the name of the file of an entry begins; digits follow, so that
// one is never written over.
func largePrefix(log *raft.Log) string { return fmt.Sprintf("%d-%d-", log.Index, log.Term) }

// remove removes files that no entry names. One that stays is removed by the next
// start.
func (b boltFile) remove(names []string) {
	for _, name := range names {
		_ = b.disk.remove(filepath.Join(b.large(), name))
	}
}

// GetLog implements LogFile. A file may be removed between the two reads, after its
// entry: then bbolt has another entry by now, or none.
func (b boltFile) GetLog(index uint64, log *raft.Log) error {
	for missing := ""; ; {
		*log = raft.Log{}
		if err := b.BoltStore.GetLog(index, log); err != nil || log.Type&inOwnFile == 0 {
			return err
		}
		name := string(log.Data)
		if !strings.HasPrefix(name, largePrefix(log)) || strings.ContainsRune(name, filepath.Separator) {
			return fmt.Errorf("its data is in a file with the name %q", name)
		}
		data, err := b.disk.readFile(filepath.Join(b.large(), name))
		if errors.Is(err, fs.ErrNotExist) && name != missing {
			missing = name
			continue
		}
		log.Type &^= inOwnFile
		log.Data = data
		return err
	}
}

// DeleteRange implements LogFile. The entries have gone when bbolt says so: files that
// cannot be listed then are removed by the next start.
func (b boltFile) DeleteRange(first, last uint64) error {
	if err := b.BoltStore.DeleteRange(first, last); err != nil {
		return err
	}
	names, _ := b.largeFiles()
	for _, name := range names {
		if index := largeIndex(name); first <= index && index <= last {
			b.remove([]string{name})
		}
	}
	return nil
}

// largeFiles returns the names of all files.
func (b boltFile) largeFiles() (names []string, err error) {
	entries, err := os.ReadDir(b.large())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, dataDirError(b.large(), err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// largeIndex is the index of the entry that a file is of, 0 when the name is none.
func largeIndex(name string) uint64 {
	digits, _, _ := strings.Cut(name, "-")
	index, _ := strconv.ParseUint(digits, 10, 64)
	return index
}

// removeUnnamed removes the files that no entry names: what a crash left, and those of
// a log that was written again. They may not be encrypted.
func (b boltFile) removeUnnamed() error {
	names, err := b.largeFiles()
	if err != nil {
		return err
	}
	for _, name := range names {
		var entry raft.Log
		err := b.BoltStore.GetLog(largeIndex(name), &entry)
		if err == nil && entry.Type&inOwnFile != 0 && string(entry.Data) == name {
			continue
		}
		if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
			return corruptLog(b.path, err)
		}
		if err := os.Remove(filepath.Join(b.large(), name)); err != nil {
			return dataDirError(b.large(), err)
		}
	}
	return nil
}

// openLarge makes the directory of the files, and has the kernel forget what it knows
// of them.
func openLarge(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return dataDirError(dir, err)
	}
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if err == nil {
			err = atomicfile.DropCache(filepath.Join(dir, entry.Name()))
		}
	}
	if err != nil {
		return dataDirError(dir, err)
	}
	return nil
}
