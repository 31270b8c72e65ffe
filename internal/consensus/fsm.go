package consensus

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// fsm applies committed entries to the store. It keeps no state and reads no
// clock: what Apply does is a function of the entry and the store. Of what it did
// it tells events.
type fsm struct {
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
}

var (
	_ raft.FSM                = fsm{}
	_ raft.ConfigurationStore = fsm{}
)

// Apply applies one batch and returns its store.Result. An entry that cannot be
// decoded was written by a newer release or by another program; continuing
// without it would make this server's state differ from its peers', so it
// panics.
func (f fsm) Apply(entry *raft.Log) any {
	if f.complete != nil {
		whole, err := f.complete(entry)
		if err != nil {
			panic(fmt.Sprintf("entry %d cannot be applied: %v", entry.Index, err))
		}
		entry = whole
	}
	format := store.FormatOf(entry.Data)
	if f.format != 0 && format > f.format {
		panic(fmt.Sprintf("entry %d cannot be applied: it has format %d, and this release knows formats up to %d; run the release that wrote it", entry.Index, format, f.format))
	}
	txn, err := store.DecodeCommand(entry.Data)
	if err == nil && f.used != nil {
		f.used.Store(max(f.used.Load(), format)) // entries are applied one after the other
	}
	if err != nil {
		panic(fmt.Sprintf("entry %d cannot be applied: %v; run the release that wrote it", entry.Index, err))
	}
	result := f.st.Apply(resource.Revision(entry.Index), txn)
	if len(entry.Extensions) > 0 && f.events.Applied != nil {
		f.events.Applied(entry.Extensions, result)
	}
	return result
}

// StoreConfiguration notes that a change of membership has been passed, so that
// the store's revision reaches it.
func (f fsm) StoreConfiguration(index uint64, c raft.Configuration) {
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
	if f.st.Restoring() {
		return nil, errRestoring
	}
	return fsmSnapshot{f.st.View(), f.events.Snapshotting}, nil
}

// Restore replaces the store's content, or leaves it alone and fails.
func (f fsm) Restore(source io.ReadCloser) error {
	defer func() { _ = source.Close() }() // read only
	snap, err := store.ReadSnapshot(source)
	if err == nil {
		err = f.st.Reset(snap)
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
