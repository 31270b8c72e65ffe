package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// journaled is the log in a bbolt file with a journal before it: an append is on disk
// with one sync, where bbolt takes two. Entries go into the bbolt file together, when the
// journal is full, when what the journal cannot express is written, and when the log is
// closed.
type journaled struct {
	boltFile
	// write is held by what changes the log, from WriteLogs on until its sync has ended. It
	// guards the journal.
	write sync.Mutex
	// journal is nil while there is none: before the first append, after Flush, and where
	// there is no space for one.
	journal *journal
	// journalPath is where it is, and mark tells earlier releases of it. without says that
	// none is to be made.
	journalPath string
	mark        JournalMark
	without     bool
	// mu guards pending, the entries that are in the journal only. They continue those of
	// the bbolt file.
	mu      sync.RWMutex
	pending []*raft.Log
}

var _ LogFile = (*journaled)(nil)

// withJournal returns the log in a bbolt file and the entries that were read from the
// journal before it. Those that the bbolt file has, too, are left out: it is where all go.
func withJournal(bolt boltFile, entries []*raft.Log) (*journaled, error) {
	first, err := bolt.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := bolt.LastIndex()
	if err != nil {
		return nil, err
	}
	for len(entries) > 0 && entries[0].Index <= last {
		if index := entries[0].Index; index >= first {
			var stored raft.Log
			if err := bolt.BoltStore.GetLog(index, &stored); err != nil {
				return nil, corruptLog(bolt.path, fmt.Errorf("entry %d: %w", index, err))
			}
			if stored.Term != entries[0].Term {
				return nil, corruptLog(bolt.path, fmt.Errorf("entry %d has the term %d, and %d in the journal beside it", index, stored.Term, entries[0].Term))
			}
		}
		entries = entries[1:]
	}
	if len(entries) > 0 && (last == 0 || entries[0].Index != last+1) {
		return nil, corruptLog(bolt.path, fmt.Errorf("it ends at entry %d, and the journal beside it begins at entry %d", last, entries[0].Index))
	}
	return &journaled{boltFile: bolt, pending: entries}, nil
}

// waiting returns the entries that are in the journal only.
func (j *journaled) waiting() []*raft.Log {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.pending
}

// LastIndex implements LogFile. FirstIndex is the bbolt file's: a journal begins no log.
func (j *journaled) LastIndex() (uint64, error) {
	if waiting := j.waiting(); len(waiting) > 0 {
		return waiting[len(waiting)-1].Index, nil
	}
	return j.boltFile.LastIndex()
}

// GetLog implements LogFile.
func (j *journaled) GetLog(index uint64, log *raft.Log) error {
	if waiting := j.waiting(); len(waiting) > 0 && index >= waiting[0].Index {
		if at := index - waiting[0].Index; at < uint64(len(waiting)) {
			*log = *waiting[at]
			return nil
		}
	}
	return j.boltFile.GetLog(index, log)
}

// WriteLogs implements LogFile. It keeps the entries until they are in the bbolt file.
func (j *journaled) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	j.write.Lock()
	defer func() {
		if sync == nil {
			j.write.Unlock()
		}
	}()
	bytes := journaledBytes(logs)
	continues, err := j.continues(logs)
	if err != nil {
		return nil, err
	}
	if !continues || bytes > journalRecord {
		return nil, j.storeDirectly(logs, continues)
	}
	if err := j.begin(); err != nil {
		return nil, err
	}
	if j.journal == nil {
		return nil, j.storeDirectly(logs, continues)
	}
	if !j.journal.fits(bytes) {
		if err := j.flush(); err != nil {
			return nil, err
		}
	}
	if err := j.journal.write(logs); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = append(j.pending, logs...)
	return func() error {
		defer j.write.Unlock()
		return j.journal.sync()
	}, nil
}

// begin makes a journal, unless there is one or none can be made.
func (j *journaled) begin() error {
	if j.journal != nil || j.without {
		return nil
	}
	err := makeJournal(j.journalPath)
	if err == nil {
		err = j.mark.SetJournaled(true)
	}
	if err == nil {
		j.journal, err = openJournal(j.journalPath, journalContent{})
	}
	switch {
	case lacksSpace(err):
		j.without = true
		_ = removeJournal(j.journalPath) // if it stays, the next start removes it
		return nil
	case isShortage(err): // the next append tries again
		return nil
	}
	return err
}

// continues reports whether entries follow on the last one of a log that has some, without
// gaps.
func (j *journaled) continues(logs []*raft.Log) (bool, error) {
	last, err := j.LastIndex()
	if err != nil || last == 0 {
		return false, err
	}
	for _, log := range logs {
		if last++; log.Index != last {
			return false, nil
		}
	}
	return true, nil
}

// storeDirectly puts entries into the bbolt file. Those that wait go there in the same
// transaction, unless they are written over.
func (j *journaled) storeDirectly(logs []*raft.Log, continues bool) error {
	if !continues {
		if err := j.empty(j.waiting()); err != nil {
			return err
		}
	}
	return j.store(slices.Concat(j.waiting(), logs))
}

// flush puts the entries that wait into the bbolt file.
func (j *journaled) flush() error { return j.store(j.waiting()) }

// store puts the entries that wait, less some of the last or with some more, into the
// bbolt file. None wait after it.
func (j *journaled) store(logs []*raft.Log) error {
	if waiting := j.waiting(); len(waiting) > 0 {
		last, err := j.boltFile.LastIndex()
		if err != nil {
			return err
		}
		if waiting[0].Index != last+1 {
			return corruptLog(j.path, fmt.Errorf("it ends at entry %d, not at %d", last, waiting[0].Index-1))
		}
	}
	if len(logs) > 0 {
		if err := j.boltFile.StoreLogs(logs); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = nil
	if j.journal != nil {
		j.journal.restart()
	}
	return nil
}

// empty puts entries into the bbolt file as store does, and leaves none in the journal: a
// start would take up again what is removed from the bbolt file, or written over.
func (j *journaled) empty(logs []*raft.Log) error {
	if err := j.store(logs); err != nil || j.journal == nil {
		return err
	}
	return j.journal.reset()
}

// DeleteRange implements LogFile.
func (j *journaled) DeleteRange(first, last uint64) error {
	j.write.Lock()
	defer j.write.Unlock()
	end, err := j.boltFile.LastIndex()
	if err != nil {
		return err
	}
	if last >= end {
		kept := j.waiting()
		if n := len(kept); n > 0 && first > end && last >= kept[n-1].Index {
			// What is in the journal only needs no space in the bbolt file to be removed.
			kept = kept[:min(first-kept[0].Index, uint64(n))]
		}
		if err := j.empty(kept); err != nil {
			return err
		}
	}
	return j.boltFile.DeleteRange(first, last)
}

// Flush implements LogFile. Unless it fails, all entries are in the bbolt file, and there
// is no journal any more.
func (j *journaled) Flush() error {
	j.write.Lock()
	defer j.write.Unlock()
	if err := j.flush(); err != nil || j.journal == nil {
		return err
	}
	if err := j.mark.SetJournaled(false); err != nil {
		return err
	}
	j.without = true
	err := errors.Join(j.journal.close(), removeJournal(j.journalPath))
	j.journal = nil
	return err
}

// Close implements LogFile. The next start finds what was not flushed.
func (j *journaled) Close() error {
	j.write.Lock()
	defer j.write.Unlock()
	var err error
	if j.journal != nil {
		err = j.journal.close()
	}
	return errors.Join(err, j.boltFile.Close())
}
