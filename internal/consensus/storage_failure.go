package consensus

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/raft"

	"meridian/internal/store"
)

// storageFailure is the end of a node's trust in its storage: a write that may or may
// not be on disk, or a read of something else than was written. It is for good.
// From then on nothing more is written, so that nothing is promised that the
// disk may not keep, and the owner of the node is told to end the process.
//
// Until that has happened raft goes on, and raft v1.7.3 answers some errors of a
// disk with a panic, which would end the process without a word about the mend:
//
//   - a term that cannot be saved (setCurrentTerm): see logStore.Set;
//   - a committed entry that cannot be read (processLogs): see logStore.GetLog.
//
// The others it survives: a leader that cannot append steps down (dispatchLogs),
// a follower refuses the entries (appendEntries), a vote that cannot be saved is
// not given (requestVote, electSelf), entries that cannot be read are not sent
// (replicateTo, which tries again for ever), nor is a snapshot
// (sendLatestSnapshot, likewise), and one that cannot be restored leaves the
// state as it was (installSnapshot).
type storageFailure struct {
	mu     sync.Mutex
	err    error
	report func(error) // nil until raft runs: before, errors are returned by Open
	told   bool
	// hole is the index of a committed entry that could not be read; the state
	// machine applies nothing from there on.
	hole atomic.Uint64
}

// set records the first failure, reports it, and returns err.
func (f *storageFailure) set(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.tellLocked()
	return err
}

// end stops all writes without a report: the node is being closed.
func (f *storageFailure) end(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err, f.told = err, true
	}
	return err
}

// arm makes failures be reported from now on, and one that has happened.
func (f *storageFailure) arm(report func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report = report
	f.tellLocked()
}

func (f *storageFailure) tellLocked() {
	if f.err != nil && f.report != nil && !f.told {
		f.told = true
		f.report(f.err)
	}
}

// get returns the failure, nil while there is none.
func (f *storageFailure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// frozenFSM is a state machine that stops before the first committed entry that
// could not be read: what follows was decided on a state that this server does
// not have.
type frozenFSM struct {
	fsm
	fail      *storageFailure
	snapshots *snapshotStore
}

var (
	_ raft.FSM                = frozenFSM{}
	_ raft.ConfigurationStore = frozenFSM{}
)

func (f frozenFSM) frozenAt(index uint64) bool {
	hole := f.fail.hole.Load()
	return hole != 0 && index >= hole
}

// Apply applies a batch, unless it comes after the hole. What becomes of it on
// the other servers is not known here.
func (f frozenFSM) Apply(entry *raft.Log) any {
	if f.frozenAt(entry.Index) {
		return store.Result{Err: fmt.Errorf("%w: %w", ErrUnknownOutcome, f.fail.get())}
	}
	return f.fsm.Apply(entry)
}

// StoreConfiguration passes a change of membership, unless it comes after the
// hole.
func (f frozenFSM) StoreConfiguration(index uint64, members raft.Configuration) {
	if !f.frozenAt(index) {
		f.fsm.StoreConfiguration(index, members)
	}
}

// Snapshot fails once there is a hole: raft believes that everything was
// applied.
func (f frozenFSM) Snapshot() (raft.FSMSnapshot, error) {
	if f.fail.hole.Load() != 0 {
		return nil, f.fail.get()
	}
	return f.fsm.Snapshot()
}

// Restore replaces the state, unless there is a hole.
func (f frozenFSM) Restore(source io.ReadCloser) error {
	if f.fail.hole.Load() != 0 {
		return errors.Join(f.fail.get(), source.Close())
	}
	err := f.fsm.Restore(source)
	if err != nil {
		f.snapshots.unusable(err)
	}
	return err
}

// isNoSpace says that a write failed for want of room before it changed
// anything: bbolt writes the pages of a transaction to places not in use, and
// then the one that makes them count. A sync that fails is another matter: what
// it was to keep may be lost, whatever the error says.
func isNoSpace(err error) bool {
	var op *fs.PathError
	return errors.As(err, &op) && (op.Op == "write" || op.Op == "truncate") &&
		(errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// isShortage says that something failed for want of what the process may use,
// which says nothing about the disk.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// calledBy says whether a method of raft is being executed by this goroutine.
func calledBy(method string) bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "hashicorp/raft."+method) {
			return true
		}
		if !more {
			return false
		}
	}
}

// mend says how a server comes back whose storage is of no more use: alone in
// its cluster, beside others, or, while it starts, who knows.
func mend(cfg Config, where string, others, known bool) string {
	if cfg.Role == RoleZone {
		return fmt.Sprintf("to bring it back: put a backup of %s in its place", where)
	}
	const (
		restore = "start it with an empty one and run \"meridian cluster snapshot restore FILE\" with the last saved snapshot"
		rejoin  = "run \"meridian generate server-token --valid-for 1h --bundle\" against another server and start this one with an empty one and --join-bundle FILE"
	)
	switch {
	case !known:
		return fmt.Sprintf("to bring it back, move %s away; if there are other servers, %s; if not, %s", where, rejoin, restore)
	case others:
		return fmt.Sprintf("to bring it back, move %s away, %s", where, rejoin)
	default:
		return fmt.Sprintf("to bring it back, move %s away, %s", where, restore)
	}
}
