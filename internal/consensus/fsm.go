package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// fsm applies committed entries to the store. It keeps no state but halted and reads
// no clock: what Apply does is a function of the entry and the store. Of what it did
// it tells events.
type fsm struct {
	// halted is why it applies nothing any more. Nil: it is not told to a node.
	halted *halted
	st     *store.Store
	events Events
	// complete, unless nil, adds the data of an entry that comes without.
	complete func(*raft.Log) (*raft.Log, error)
	// configured, unless nil, is told of changes of membership.
	configured func(raft.Configuration)
	// format is the newest format of entries that it applies; used, unless nil, is
	// raised to the newest one that it has applied.
	format uint32
	used   *atomic.Uint32
	// unusable, unless nil, is told why a snapshot could not be restored.
	unusable func(error)
	// synced, unless nil, waits until an entry is on this server's disk.
	synced func(index uint64) error
}

var (
	_ raft.FSM                = fsm{}
	_ raft.ConfigurationStore = fsm{}
)

// halted is a state machine that has met an entry which it cannot apply. It takes
// part in nothing after that: what it holds is the state before that entry, until
// the process ends.
type halted struct {
	why atomic.Pointer[error]
	// tell is told why, once.
	tell func(error)
}

// err is why the state machine is halted, nil while it is not.
func (h *halted) err() error {
	if h == nil {
		return nil
	}
	if why := h.why.Load(); why != nil {
		return *why
	}
	return nil
}

// at halts the state machine and returns why.
func (h *halted) at(err error) error {
	if h != nil {
		h.why.Store(&err)
		h.tell(err)
	}
	return err
}

// Apply applies one entry and returns its store.Result, or an error when it cannot:
// the entry was written by a newer release or by another program. Continuing
// without it would make this server's state differ from its peers', so nothing is
// applied after that.
func (f fsm) Apply(entry *raft.Log) any {
	if err := f.halted.err(); err != nil {
		return err
	}
	if f.synced != nil {
		if err := f.synced(entry.Index); err != nil {
			return f.halted.at(fmt.Errorf("entry %d of the log is not applied: %w", entry.Index, err))
		}
	}
	if f.complete != nil {
		whole, err := f.complete(entry)
		if err != nil {
			return f.halted.at(fmt.Errorf("entry %d of the log cannot be applied: %w", entry.Index, err))
		}
		entry = whole
	}
	format := store.FormatOf(entry.Data)
	if f.format != 0 && format > f.format {
		return f.halted.at(newerEntry(entry.Index, format, f.format))
	}
	txn, err := store.DecodeCommand(entry.Data)
	if err == nil && f.used != nil {
		f.used.Store(max(f.used.Load(), format)) // entries are applied one after the other
	}
	if err != nil {
		return f.halted.at(fmt.Errorf("entry %d of the log cannot be applied: %w", entry.Index, err))
	}
	txn.Note = bytes.Clone(entry.Extensions)
	result := f.st.Apply(resource.Revision(entry.Index), txn)
	f.tell(txn.Note, result)
	for i := range txn.Batches {
		f.tell(txn.Batches[i].Note, result.Batches[i])
	}
	return result
}

// tell tells that a batch with a note was applied.
func (f fsm) tell(note []byte, result store.Result) {
	if len(note) > 0 && f.events.Applied != nil {
		f.events.Applied(note, result)
	}
}

// StoreConfiguration notes that a change of membership has been passed, so that
// the store's revision reaches it.
func (f fsm) StoreConfiguration(index uint64, c raft.Configuration) {
	if f.halted.err() != nil {
		return
	}
	f.st.Advance(resource.Revision(index))
	if f.configured != nil {
		f.configured(c)
	}
}

// errRestoring postpones a snapshot.
var errRestoring = errors.New("a backup is being restored; the snapshot is taken after that")

// Snapshot takes the store's current view, which costs nothing and never
// changes. While a restore is under way there is none: it would lack the parts
// that have come so far, and a server that starts from it would not find them in
// the log that follows.
func (f fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.halted.err(); err != nil {
		return nil, err // raft counts entries as applied that are not
	}
	if f.st.Restoring() {
		return nil, errRestoring
	}
	return fsmSnapshot{f.st.View(), f.events.Snapshotting}, nil
}

// Restore replaces the store's content, or leaves it alone and fails.
func (f fsm) Restore(source io.ReadCloser) error {
	defer func() { _ = source.Close() }() // read only
	if err := f.halted.err(); err != nil {
		return err
	}
	snap, err := store.ReadSnapshot(source)
	if err == nil && f.format != 0 && snap.Format() > f.format {
		err = newerSnapshot(snap.Format(), f.format)
	}
	if err == nil {
		err = f.st.Reset(snap)
	}
	if err == nil && f.used != nil {
		f.used.Store(max(f.used.Load(), snap.Format()))
	}
	if err != nil {
		err = fmt.Errorf("restore the state from a snapshot: %w", err)
		if f.unusable != nil {
			f.unusable(err)
		}
	}
	return err
}

type fsmSnapshot struct {
	view   *store.View
	before func(resource.Revision) // may be nil
}

// Persist streams the view.
func (s fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if s.before != nil {
		s.before(s.view.Revision())
	}
	if err := s.view.WriteSnapshot(sink); err != nil {
		return errors.Join(fmt.Errorf("write a snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

// Release does nothing: the view is garbage once it is unreachable.
func (fsmSnapshot) Release() {}
