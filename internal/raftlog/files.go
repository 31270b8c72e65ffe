package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"meridian/internal/atomicfile"
	"meridian/internal/boltcheck"
)

const (
	identityFile = "identity.json"
	lockFile     = "LOCK"
	raftDir      = "raft"
	logFile      = "log.db"
	snapshotsDir = "snapshots"
)

// files is a Storage in a directory that this process holds the lock of.
type files struct {
	path string
	lock *os.File
	// made lists what this process created in a directory that was new, so that
	// a failed start leaves nothing behind; nil once there is something to keep.
	made []string
}

var _ Storage = (*files)(nil)

// Name is the directory.
func (f *files) Name() string { return f.path }

func (f *files) identityPath() string { return filepath.Join(f.path, identityFile) }
func (f *files) raftPath() string     { return filepath.Join(f.path, raftDir) }
func (f *files) logPath() string      { return filepath.Join(f.path, raftDir, logFile) }
func (f *files) journalPath() string  { return filepath.Join(f.path, raftDir, journalFile) }
func (f *files) largePath() string    { return filepath.Join(f.path, raftDir, largeDir) }

// rewrittenPath is where RewriteLog makes the new log.
func (f *files) rewrittenPath() string { return f.logPath() + ".new" }

// Acquire makes the directory if it is missing, and locks it.
func (f *files) Acquire() (err error) {
	if _, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) {
		f.made = append(f.made, f.path)
	}
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return dataDirError(f.path, err)
	}
	lockPath := filepath.Join(f.path, lockFile)
	if _, err := os.Stat(lockPath); errors.Is(err, fs.ErrNotExist) {
		f.made = append(f.made, lockPath)
	}
	f.lock, err = acquireLock(lockPath)
	if err != nil {
		if errors.Is(err, errLocked) {
			return fmt.Errorf("%w: %s", ErrDataDirInUse, f.path)
		}
		f.Release(true)
		return dataDirError(f.path, err)
	}
	return nil
}

// Used reports whether a server has used the directory. It makes nothing.
func (f *files) Used() bool {
	_, err := os.Stat(f.identityPath())
	return !errors.Is(err, fs.ErrNotExist)
}

// Identity reads the identity.
func (f *files) Identity() ([]byte, error) {
	data, err := os.ReadFile(f.identityPath())
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(f.raftPath()); err == nil {
			return nil, fmt.Errorf("%w: %s holds a raft log but no %s", ErrForeignDataDir, f.path, identityFile)
		}
		return nil, nil
	}
	if err != nil {
		return nil, dataDirError(f.path, err)
	}
	f.made = nil
	return data, nil
}

// SetIdentity replaces the identity.
func (f *files) SetIdentity(data []byte) error {
	if _, err := os.Stat(f.identityPath()); errors.Is(err, fs.ErrNotExist) {
		f.made = append(f.made, f.identityPath(), f.raftPath())
	}
	if err := atomicfile.Write(f.identityPath(), data, 0o600); err != nil {
		return dataDirError(f.path, err)
	}
	return nil
}

// OpenLog opens the bbolt file, the journal and the files beside it. An existing one is first
// checked and read from end to end, from the disk: after a sync that failed, the kernel may hold pages
// that the disk never got and does not write again. It is opened read-only for
// that: bbolt answers damage with a panic, in part on
// goroutines of its own, and raft answers it with another.
func (f *files) OpenLog(verify func(LogFile) error, mark JournalMark) (LogFile, error) {
	path := f.logPath()
	if err := os.MkdirAll(f.raftPath(), 0o700); err != nil {
		return nil, dataDirError(f.path, err)
	}
	if err := atomicfile.DropCache(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, dataDirError(f.path, err)
	}
	if err := openLarge(f.largePath()); err != nil {
		return nil, err
	}
	var read journalContent
	if mark.Journaled() {
		var err error
		if read, err = readJournal(f.journalPath()); err != nil {
			return nil, err
		}
	}
	if err := verifyBolt(path, read.entries, verify); err != nil {
		return nil, err
	}
	// A crash in RewriteLog left it. It may not be encrypted.
	if err := os.Remove(f.rewrittenPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, dataDirError(f.path, err)
	}
	// Without a synced free list an append costs the same however long the log
	// once was; opening scans the file instead, some 50 ms per GiB.
	bolt, err := openBolt(path, &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	log, err := f.openJournaled(bolt, read, mark)
	if err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	return log, nil
}

// openJournaled opens the rest of a log whose bbolt file is open.
func (f *files) openJournaled(bolt boltFile, read journalContent, mark JournalMark) (*journaled, error) {
	if err := errors.Join(atomicfile.SyncDir(f.raftPath()), atomicfile.SyncDir(f.path), atomicfile.SyncDir(filepath.Dir(f.path))); err != nil {
		return nil, dataDirError(f.raftPath(), err)
	}
	if err := bolt.removeUnnamed(); err != nil {
		return nil, err
	}
	if err := atomicfile.RemoveLeftovers(f.journalPath()); err != nil {
		return nil, dataDirError(f.raftPath(), err)
	}
	log, err := withJournal(bolt, read.entries)
	if err != nil {
		return nil, err
	}
	log.journalPath, log.mark = f.journalPath(), mark
	if !mark.Journaled() {
		// One that is there was never used, or has been flushed.
		if err := removeJournal(log.journalPath); err != nil {
			return nil, dataDirError(f.raftPath(), err)
		}
		return log, nil
	}
	if log.journal, err = openJournal(log.journalPath, read); err != nil {
		return nil, dataDirError(f.raftPath(), err)
	}
	if err := log.flush(); err != nil && !isNoSpace(err) {
		return nil, errors.Join(err, log.journal.close())
	}
	return log, nil
}

// RemoveLog removes the bbolt file, the journal and the files beside it.
func (f *files) RemoveLog() error {
	for _, path := range []string{f.journalPath(), f.logPath()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dataDirError(f.path, err)
		}
	}
	if err := os.RemoveAll(f.largePath()); err != nil {
		return dataDirError(f.path, err)
	}
	return nil
}

// OpenSnapshots opens raft's file store.
func (f *files) OpenSnapshots(retain int, logger hclog.Logger) (SnapshotFiles, error) {
	path := filepath.Join(f.raftPath(), snapshotsDir)
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, dataDirError(path, err)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".tmp") {
			if err := os.RemoveAll(filepath.Join(path, entry.Name())); err != nil {
				return nil, dataDirError(path, err)
			}
		}
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(f.raftPath(), retain, logger)
	if err != nil {
		return nil, dataDirError(path, err)
	}
	return snapshotDir{FileSnapshotStore: store, path: path}, nil
}

// Release closes the lock, having removed what was made if that is wanted. A
// directory that others have put files into stays.
func (f *files) Release(discard bool) {
	for i := len(f.made) - 1; discard && i >= 0; i-- {
		if f.made[i] == f.raftPath() {
			_ = os.RemoveAll(f.made[i])
			continue
		}
		_ = os.Remove(f.made[i])
	}
	f.made = nil
	if f.lock != nil {
		_ = f.lock.Close()
		f.lock = nil
	}
}

func openBolt(path string, opts *bbolt.Options) (boltFile, error) {
	store, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: opts})
	if err != nil {
		return boltFile{}, boltError(path, err)
	}
	return boltFile{BoltStore: store, path: path, disk: systemDisk}, nil
}

// boltError tells damage from a file that cannot be opened: a file system's
// error names a path, anything else is about the content.
func boltError(path string, err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return dataDirError(filepath.Dir(path), err)
	}
	return corruptLog(path, err)
}

// verifyBolt checks the structure of an existing file and then what it and the journal
// beside it hold. A fault while reading a mapped page (the file is shorter than it says) is
// damage like any other.
func verifyBolt(path string, journal []*raft.Log, verify func(LogFile) error) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		if len(journal) > 0 {
			return corruptLog(path, fmt.Errorf("it is missing, and the journal beside it has entries %d to %d", journal[0].Index, journal[len(journal)-1].Index))
		}
		return nil // bbolt makes it
	}
	if err != nil {
		return dataDirError(filepath.Dir(path), err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = corruptLog(path, fmt.Errorf("%v", p))
		}
	}()
	// In this order: with a bad root the rest may be of another transaction.
	if err := boltcheck.CheckRoots(path); err != nil {
		return boltError(path, err)
	}
	if err := boltcheck.CheckKeys(path, knownKey); err != nil {
		return boltError(path, err)
	}
	bolt, err := openBolt(path, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bolt.Close()) }()
	log, err := withJournal(bolt, journal)
	if err != nil {
		return err
	}
	return verify(log)
}

// knownKey rejects keys that are never written: a damaged key would look like
// one that is absent, and a vote that is absent could be given twice.
func knownKey(bucket string, key []byte) error {
	switch bucket {
	case "logs":
		if len(key) == 8 {
			return nil
		}
	case "conf":
		switch string(key) {
		case string(keyCurrentTerm), string(keyLastVoteTerm), string(keyLastVoteCandidate):
			return nil
		}
	}
	return fmt.Errorf("unknown key %q in %q", key, bucket)
}

// snapshotDir is raft's file store.
type snapshotDir struct {
	*raft.FileSnapshotStore
	path string
}

// Name is the path of the directory.
func (s snapshotDir) Name() string { return s.path }

// Newest goes by the names (term-index-time), which a damaged file does not
// change.
func (s snapshotDir) Newest() (uint64, error) {
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return 0, dataDirError(s.path, err)
	}
	var newest uint64
	for _, entry := range entries {
		parts := strings.Split(entry.Name(), "-")
		if len(parts) != 3 || strings.HasSuffix(entry.Name(), ".tmp") {
			continue
		}
		index, err := strconv.ParseUint(parts[1], 10, 64)
		if err == nil {
			newest = max(newest, index)
		}
	}
	return newest, nil
}

// rewriteEntries and rewriteBytes bound one transaction of RewriteLog.
const (
	rewriteEntries = 256
	rewriteBytes   = 4 << 20
)

// RewriteLog implements rewriter: no page of the old file is left, as there would
// be in one that is written over. What a crash leaves of it is removed by OpenLog. The
// log has been flushed.
func (f *files) RewriteLog(change func(*raft.Log) error) error {
	if err := removeJournal(f.journalPath()); err != nil {
		return dataDirError(f.raftPath(), err)
	}
	temporary := f.rewrittenPath()
	if err := f.copyLog(temporary, change); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	if err := os.Rename(temporary, f.logPath()); err != nil {
		return dataDirError(f.path, err)
	}
	if err := atomicfile.SyncDir(f.raftPath()); err != nil {
		return dataDirError(f.raftPath(), err)
	}
	return nil
}

func (f *files) copyLog(to string, change func(*raft.Log) error) (err error) {
	from, err := openBolt(f.logPath(), &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	next, err := openBolt(to, &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.Close()) }()
	for _, key := range [][]byte{keyCurrentTerm, keyLastVoteTerm, keyLastVoteCandidate} {
		value, err := from.Get(key)
		if isNotFound(err) {
			continue
		}
		if err == nil {
			err = next.Set(key, value)
		}
		if err != nil {
			return err
		}
	}
	first, err := from.FirstIndex()
	if err != nil {
		return err
	}
	last, err := from.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	var batch []*raft.Log
	size := 0
	for index := first; index <= last; index++ {
		entry := &raft.Log{}
		if err := from.GetLog(index, entry); err != nil {
			return err
		}
		if err := change(entry); err != nil {
			return err
		}
		batch, size = append(batch, entry), size+entryBytes(entry)
		if index == last || len(batch) == rewriteEntries || size >= rewriteBytes {
			if err := next.StoreLogs(batch); err != nil {
				return err
			}
			batch, size = nil, 0
		}
	}
	return nil
}

// RemoveSnapshot implements rewriter.
func (f *files) RemoveSnapshot(id string) error {
	path := filepath.Join(f.raftPath(), snapshotsDir)
	if err := errors.Join(os.RemoveAll(filepath.Join(path, id)), atomicfile.SyncDir(path)); err != nil {
		return dataDirError(path, err)
	}
	return nil
}
