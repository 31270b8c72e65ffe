package consensus

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// snapshotStore is the storage's snapshots with one more rule. Raft falls back to an
// older snapshot when the newest cannot be read; that is right only while the
// log still holds everything after the older one. Where it does not, raft would
// panic or, worse, go on without writes that were acknowledged.
type snapshotStore struct {
	SnapshotFiles
	log *logStore
	// damage is the first reason why a snapshot was refused. Used while the node
	// opens only, by one goroutine.
	damage error
	// opening is set until raft runs: refusals apply to what raft starts from.
	opening atomic.Bool
}

// openSnapshots opens the store and removes what a crash left half-written.
func openSnapshots(dir *dataDir, log *logStore, cfg Config) (*snapshotStore, error) {
	snapshots, err := dir.OpenSnapshots(cfg.Snapshots.Retain, newRaftLogger(cfg.Logger))
	if err != nil {
		return nil, err
	}
	s := &snapshotStore{SnapshotFiles: snapshots, log: log}
	s.opening.Store(true)
	log.floor = s.floor
	return s, nil
}

// floor returns the first entry that the oldest kept snapshot needs.
func (s *snapshotStore) floor() (uint64, error) {
	metas, err := s.List()
	if err != nil || len(metas) == 0 {
		return 0, err
	}
	return metas[len(metas)-1].Index + 1, nil
}

// Open returns a snapshot. While the node starts, it refuses one that the log
// does not complete.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, source, err := s.SnapshotFiles.Open(id)
	if !s.opening.Load() {
		return meta, source, err
	}
	if err == nil {
		err = s.complete(meta.Index)
		if err != nil {
			_ = source.Close()
		}
	}
	if err != nil {
		if s.damage == nil {
			s.damage = fmt.Errorf("snapshot %s: %w", snapshotName(s, id), err)
		}
		return nil, nil, err
	}
	return meta, source, nil
}

// complete checks that the log holds everything that was ever committed after
// index, as far as the directory can tell.
func (s *snapshotStore) complete(index uint64) error {
	first, last, err := s.log.bounds()
	if err != nil {
		return err
	}
	newest, err := s.Newest()
	if err != nil {
		return err
	}
	if last > index && first > index+1 || last < newest && index < newest {
		return fmt.Errorf("the log holds entries %d to %d, which do not continue index %d", first, last, index)
	}
	return nil
}

// check looks for what a crash or damage can have done to log and snapshots
// together, before raft relies on them.
func (s *snapshotStore) check(id identity) error {
	first, last, err := s.log.bounds()
	if err != nil {
		return err
	}
	newest, err := s.Newest()
	if err != nil {
		return err
	}
	term, err := s.log.GetUint64(keyCurrentTerm)
	if err != nil && errors.Is(err, ErrCorrupt) {
		return err
	}
	metas, err := s.List()
	if err != nil {
		return err
	}
	switch {
	case id.Bootstrapped && (term == 0 || last == 0 && newest == 0):
		return corruptLog(s.log.path, errors.New("the log is empty, although this server has run before"))
	case len(metas) == 0 && first > 1:
		return corruptf("%s: the log starts at entry %d, and there is no readable snapshot of what came before", s.Name(), first)
	case last > 0 && last < newest:
		return s.finishRestore(metas, newest, first, last)
	}
	return nil
}

// finishRestore empties a log that ends before the newest snapshot: raft was
// doing so after it restored that snapshot. What is left must go before the log
// continues after the snapshot, or there would be a gap.
func (s *snapshotStore) finishRestore(metas []*raft.SnapshotMeta, newest, first, last uint64) error {
	if len(metas) == 0 || metas[0].Index != newest {
		return corruptf("%s: the snapshot of entry %d cannot be read, and the log ends at entry %d", s.Name(), newest, last)
	}
	_, source, err := s.SnapshotFiles.Open(metas[0].ID)
	if err != nil {
		return corruptf("snapshot %s: %w", snapshotName(s, metas[0].ID), err)
	}
	if err := source.Close(); err != nil {
		return fmt.Errorf("snapshot %s: %w", snapshotName(s, metas[0].ID), err)
	}
	return s.log.DeleteRange(first, last)
}
