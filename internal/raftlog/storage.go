package raftlog

import (
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Storage is the disk below a node: an identity, a log with a few values beside
// it, and snapshots. A node without one in its Config keeps files below DataDir.
//
// What lies above it is the node's: checksums, the checks when it starts, what
// to do about an error. So a Storage does not verify its own bytes, and one that
// returns other bytes than it was given is detected.
//
// A node calls Acquire first and Release last, and the other methods between the
// two, one at a time. What OpenLog and OpenSnapshots return is used by several
// goroutines at once.
type Storage interface {
	// Name says where this is, for messages.
	Name() string
	// Acquire takes the storage for one node. ErrDataDirInUse: another has it.
	Acquire() error
	// Identity returns what SetIdentity stored, nil when nothing was.
	// ErrForeignDataDir: there is a log, but nothing that says whose it is.
	Identity() ([]byte, error)
	// SetIdentity replaces the identity, and returns once it is on disk. After a
	// crash there is the old one or the new.
	SetIdentity(data []byte) error
	// OpenLog opens the log, or makes an empty one. verify is called with what is
	// there, before anything is written to it; what it returns is returned. mark says
	// whether it may have a journal, and is told when it begins one.
	// ErrCorrupt: it is not a log.
	OpenLog(verify func(LogFile) error, mark JournalMark) (LogFile, error)
	// RemoveLog removes the log, which must not be open.
	RemoveLog() error
	// OpenSnapshots opens the snapshots and removes what a crash left half-written.
	// At most retain are kept.
	OpenSnapshots(retain int, logger hclog.Logger) (SnapshotFiles, error)
	// Space returns how much space there is.
	Space() (Space, error)
	// Release lets others have the storage. discard also removes what was made
	// since Acquire in a storage that was new, for a start that failed.
	Release(discard bool)
}

// Directory is a Storage that can say whether it was used without making it.
type Directory interface{ Used() bool }

// LogFile holds the log, and values by key beside it: raft's log store and
// stable store. A write returns once it is on disk, except for WriteLogs, and is there
// whole or not at all. Get of an absent key fails with an error whose text is "not found", GetLog
// of an absent index with raft.ErrLogNotFound.
type LogFile interface {
	io.Closer
	// Name says where this is, for messages.
	Name() string
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	GetLog(index uint64, log *raft.Log) error
	// WriteLogs writes entries. Unless sync is nil, it may return before they are on disk:
	// sync brings them there, and returns once they are. It has to be called once; other
	// writes wait for that.
	WriteLogs(logs []*raft.Log) (sync func() error, err error)
	DeleteRange(first, last uint64) error
	Set(key, value []byte) error
	Get(key []byte) ([]byte, error)
	// Flush brings what is in a journal to where releases without journals read it, and
	// ends the journal.
	Flush() error
}

// JournalMark records that entries may be in a journal: releases without journals, which
// would miss them, refuse a data directory that has the mark.
type JournalMark interface {
	// Journaled reports whether there is a mark.
	Journaled() bool
	// SetJournaled sets or removes it, and returns once that is on disk.
	SetJournaled(journaled bool) error
}

// SnapshotFiles holds snapshots. Open may leave it to the reader to find damage.
type SnapshotFiles interface {
	raft.SnapshotStore
	// Name says where this is, for messages.
	Name() string
	// Newest returns the index of the newest snapshot, readable or not, 0 when
	// there is none.
	Newest() (uint64, error)
}

// Space is the space on a disk, in bytes.
type Space struct {
	// Free is what this process may still write, Total the size of the disk.
	Free, Total uint64
}

// Files is the storage of a node without one in its Config: files below dir.
func Files(dir string) Storage { return &files{path: dir} }

// errNotFound is how raft is told that a key is absent: it compares the text.
const errNotFound = "not found"

func isNotFound(err error) bool { return err != nil && err.Error() == errNotFound }

func snapshotName(s SnapshotFiles, id string) string { return fmt.Sprintf("%s/%s", s.Name(), id) }
