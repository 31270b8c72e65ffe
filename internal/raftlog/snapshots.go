package raftlog

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Snapshots is the storage's snapshots with two more rules.
//
// What is read is what was written (see sealedSink and sealedSource): a snapshot
// that is damaged is never restored from, nor sent.
//
// Raft falls back to an older snapshot when the newest cannot be read; that is
// right only while the log still holds everything after the older one. Where it
// does not, raft would panic or, worse, continue without writes that were
// acknowledged.
type Snapshots struct {
	SnapshotFiles
	log *Log
	// damage is the first reason why a snapshot was refused. Used while the node
	// opens only, on one goroutine.
	damage error
	// finishing is held while a snapshot becomes one that counts.
	finishing sync.Mutex
	// opening is set until raft runs: refusals concern what raft starts from.
	opening atomic.Bool
}

// OpenSnapshots opens the store and removes what a crash left half-written.
func OpenSnapshots(dir *DataDir, log *Log, retain int, logger hclog.Logger) (*Snapshots, error) {
	snapshots, err := dir.OpenSnapshots(retain, logger)
	if err != nil {
		return nil, err
	}
	s := &Snapshots{SnapshotFiles: snapshots, log: log}
	s.opening.Store(true)
	log.floor = s.floor
	return s, nil
}

// floor returns the first entry that the oldest kept snapshot needs.
func (s *Snapshots) floor() (uint64, error) {
	metas, err := s.List()
	if err != nil || len(metas) == 0 {
		return 0, err
	}
	return metas[len(metas)-1].Index + 1, nil
}

// Create begins a snapshot. After a failure of the storage none is made: it would
// outlive the reason why nothing may be written any more.
func (s *Snapshots) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if err := s.log.Failure(); err != nil {
		return nil, err
	}
	sink, err := s.SnapshotFiles.Create(version, index, term, members, membersIndex, trans)
	if err != nil {
		return nil, err
	}
	meta := raft.SnapshotMeta{Index: index, Term: term, Configuration: members, ConfigurationIndex: membersIndex}
	return newSealedSink(sink, meta, s.finish), nil
}

// errOutdated means that a newer snapshot was installed while one was taken.
var errOutdated = errors.New("a newer snapshot exists")

// finish makes a snapshot of an entry count, unless there is a newer one: raft
// would take the older one for its last, and refuse what follows the newer.
func (s *Snapshots) finish(index uint64, complete func() error) error {
	s.finishing.Lock()
	defer s.finishing.Unlock()
	newest, err := s.Newest()
	if err != nil {
		return err
	}
	if index < newest {
		return fmt.Errorf("snapshot of entry %d: %w, of entry %d", index, errOutdated, newest)
	}
	return complete()
}

// List returns the snapshots, the newest first. While raft runs, it fails when
// the newest is there and cannot be read about: raft would send an older one.
func (s *Snapshots) List() ([]*raft.SnapshotMeta, error) {
	newest, err := s.Newest()
	if err != nil {
		return nil, err
	}
	metas, err := s.SnapshotFiles.List()
	if err != nil {
		return nil, err
	}
	if !s.opening.Load() && newest > 0 && (len(metas) == 0 || metas[0].Index < newest) {
		return nil, s.log.report(Corruptf("%s: the snapshot of entry %d cannot be read", s.Name(), newest))
	}
	for i, meta := range metas {
		metas[i] = unsealedMeta(meta)
	}
	return metas, nil
}

// Open returns a snapshot. The last part of it is not read before all of it has
// turned out intact. While the node starts, Open refuses one that the log does
// not complete.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, source, err := s.open(id)
	if !s.opening.Load() {
		if err == nil || !errors.Is(err, ErrCorrupt) || s.gone(id) {
			return meta, source, err
		}
		return nil, nil, s.log.report(err)
	}
	if err == nil {
		err = s.complete(meta.Index)
		if err != nil {
			_ = source.Close()
		}
	}
	if err != nil {
		s.damaged(err)
		return nil, nil, err
	}
	return meta, source, nil
}

func (s *Snapshots) open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	name := snapshotName(s, id)
	meta, source, err := s.SnapshotFiles.Open(id)
	if isShortage(err) {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", name, err)
	}
	if err != nil {
		return nil, nil, Corruptf("snapshot %s: %w", name, err)
	}
	sealed, err := newSealedSource(source, meta, func(err error) error {
		err = Corruptf("snapshot %s: %w", name, err)
		if s.opening.Load() {
			s.damaged(err)
			return err
		}
		return s.log.report(err)
	})
	if err != nil {
		return nil, nil, errors.Join(Corruptf("snapshot %s: %w", name, err), source.Close())
	}
	return unsealedMeta(meta), sealed, nil
}

// Running says that raft runs: from now on a snapshot that cannot be read ends
// the process.
func (s *Snapshots) Running() { s.opening.Store(false) }

// Damage returns the first reason why a snapshot was not used to start from, nil
// when there was none. To be called before Running.
func (s *Snapshots) Damage() error { return s.damage }

// damaged notes why a snapshot cannot be used to start from. Another may be.
func (s *Snapshots) damaged(err error) {
	if s.damage == nil {
		s.damage = err
	}
}

// Unusable notes that what a snapshot holds cannot be restored. Later on that is
// for the leader to hear, which sent it.
func (s *Snapshots) Unusable(err error) {
	if s.opening.Load() {
		s.damaged(Corruptf("snapshot below %s: %w", s.Name(), err))
	}
}

// gone says that a snapshot has been removed since it was listed, for a newer
// one.
func (s *Snapshots) gone(id string) bool {
	metas, err := s.SnapshotFiles.List()
	return err == nil && len(metas) > 0 && !slices.ContainsFunc(metas, func(m *raft.SnapshotMeta) bool { return m.ID == id })
}

// complete checks that the log holds everything that was ever committed after
// index, as far as the directory can tell.
func (s *Snapshots) complete(index uint64) error {
	first, last, err := s.log.Bounds()
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

// Check looks for what a crash or damage can have done to log and snapshots
// together, before raft relies on them.
func (s *Snapshots) Check(id Identity) error {
	first, last, err := s.log.Bounds()
	if err != nil {
		return err
	}
	newest, err := s.Newest()
	if err != nil {
		return err
	}
	term, err := s.log.CurrentTerm()
	if err != nil {
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
		return Corruptf("%s: the log starts at entry %d, and there is no readable snapshot of what came before", s.Name(), first)
	case last > 0 && last < newest:
		return s.finishRestore(metas, newest, first, last)
	case len(metas) > 0 && first <= metas[0].Index && metas[0].Index < last:
		return s.finishTurn(metas[0], first, last)
	}
	return nil
}

// finishTurn empties a log in which the newest snapshot's last entry is another
// one: what the log holds from there on was never committed, and raft was about
// to empty it after it restored the snapshot.
func (s *Snapshots) finishTurn(newest *raft.SnapshotMeta, first, last uint64) error {
	var entry raft.Log
	if err := s.log.GetLog(newest.Index, &entry); err != nil || entry.Term == newest.Term {
		return err
	}
	if err := s.verify(newest.ID); err != nil {
		return err
	}
	return s.log.cutEnd(first, last)
}

// finishRestore empties a log that ends before the newest snapshot: raft was
// doing so after it restored that snapshot. What is left must go before the log
// continues after the snapshot, or there would be a gap.
func (s *Snapshots) finishRestore(metas []*raft.SnapshotMeta, newest, first, last uint64) error {
	if len(metas) == 0 || metas[0].Index != newest {
		return Corruptf("%s: the snapshot of entry %d cannot be read, and the log ends at entry %d", s.Name(), newest, last)
	}
	if err := s.verify(metas[0].ID); err != nil {
		return err
	}
	return s.log.DeleteRange(first, last)
}

// verify reads a whole snapshot.
func (s *Snapshots) verify(id string) error {
	_, source, err := s.open(id)
	if err != nil {
		return err
	}
	if _, err = io.Copy(io.Discard, source); err != nil {
		return errors.Join(err, source.Close())
	}
	if err := source.Close(); err != nil {
		return fmt.Errorf("snapshot %s: %w", snapshotName(s, id), err)
	}
	return nil
}
