package consensus

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/atrest"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ErrBadBackup means that a backup cannot be restored: it is damaged, or a newer
// release wrote it. Nothing was changed. Use another backup, or that release.
var ErrBadBackup = errors.New("the backup cannot be used")

// ErrNotRestored means that a backup was not restored, for a reason other than
// the backup: no leader, a leader that changed, a caller that went away. The
// state is as it was. Try again.
var ErrNotRestored = errors.New("the backup was not restored")

// Restored is what a restore brought.
type Restored struct {
	// Saved is the revision that the backup was taken at, in its own history;
	// zero when the answer got lost, and only the state says that it is restored.
	Saved resource.Revision
	// Revision is the one at which its state took the place of the one before.
	Revision resource.Revision
	// Epoch begins with it.
	Epoch store.Epoch
	// Resources counts what it holds.
	Resources int
	// Kept is what it has from the state before; zeros when the answer got lost.
	Kept KeptTrust
}

const (
	// defaultRestorePart is the size of one command of a restore, in bytes: small enough
	// that several fit into a message between servers without holding up
	// heartbeats.
	defaultRestorePart = 256 << 10
	// restoreWindow is how many commands are on their way at a time.
	restoreWindow = 4
)

// restorer replaces the state by a backup's, through the log.
type restorer struct {
	*core
	reader *reader
	// restorePart is defaultRestorePart, except in tests.
	restorePart int
	// restoring says that this server writes the parts of a restore.
	restoring atomic.Bool
}

// Restore replaces the whole state by a backup's, on every server in one step,
// as a new incarnation of the cluster's history. source is read to its end and
// verified before anything is done. Writes wait meanwhile.
//
// The state goes through the log like any write, in parts of which the last puts
// it into effect together with its epoch. So there is never a mixture: before
// that last part is committed every server shows the state of before, after it
// every server that comes so far shows the new one, whichever servers stop or
// lead meanwhile. Raft's own Restore promises less: it gives the leader a snapshot
// that no majority has agreed on, and a leader that falls before its followers
// have fetched it comes back with a state that they never had.
//
// Where the backup is of this cluster, what the cluster trusts stays as it is
// (Config.KeepTrust), unless dropTrust is set: what was revoked since the backup
// was taken is not valid again. What is about the servers' own files stays as it is
// always (Config.KeepOwn).
//
// Any server takes it; one that does not lead passes it on.
//
// Errors: ErrBadBackup, ErrNotRestored, ErrClosed (nothing was changed),
// ErrUnknownOutcome (it may have been restored, whole).
func (n *restorer) Restore(ctx context.Context, source io.Reader, dropTrust bool) (Restored, error) {
	if err := n.begin(); err != nil {
		return Restored{}, err
	}
	defer n.requests.Done()
	id := randomID()
	_, _, err := n.waitLeadership(ctx)
	var restored Restored
	switch _, leader := n.Leader(); {
	case err == nil:
		restored, err = n.restoreHere(ctx, source, dropTrust, id)
	case errors.Is(err, ErrNotLeader):
		restored, err = n.relayRestore(ctx, leader, source, dropTrust, id)
	default:
		return Restored{}, notRestored(err)
	}
	if errors.Is(err, ErrUnknownOutcome) {
		restored, err = n.settle(ctx, id, err)
	}
	if err != nil {
		return Restored{}, err
	}
	if err := n.st.Wait(ctx, restored.Revision); err != nil {
		n.cfg.Logger.Info("a backup is restored, and this server has yet to follow", "node", n.cfg.NodeID, "revision", restored.Revision)
	}
	return restored, nil
}

// notRestored is the error of a restore that was given up before its last part.
// Whatever became of the other parts, they have no effect.
func notRestored(why error) error {
	if errors.Is(why, ErrNotRestored) {
		return why
	}
	if unknown := (*unknownOutcomeError)(nil); errors.As(why, &unknown) {
		why = unknown.cause
	}
	return fmt.Errorf("%w: %s", ErrNotRestored, why.Error())
}

func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// restoreHere restores a backup on the leader. id names the attempt, and tells
// the epoch from others of its incarnation.
func (n *restorer) restoreHere(ctx context.Context, source io.Reader, dropTrust bool, id uint64) (Restored, error) {
	if _, _, err := n.waitLeadership(ctx); err != nil {
		return Restored{}, notRestored(err)
	}
	snap, err := n.readBackup(source)
	switch {
	case errors.Is(err, atrest.ErrNoKey), errors.Is(err, atrest.ErrDamaged), errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrUnknownFormat):
		return Restored{}, fmt.Errorf("%w: %w", ErrBadBackup, err)
	case err != nil:
		return Restored{}, notRestored(&sourceError{err})
	}
	if of := snap.Metadata[BackupZone]; of != n.cfg.Zone {
		return Restored{}, fmt.Errorf("%w: it is of %s, and these are the servers of %s", ErrBadBackup, whose(of), whose(n.cfg.Zone))
	}
	if err := n.writes.hold(ctx, whileRestoring); err != nil {
		return Restored{}, notRestored(err)
	}
	defer n.writes.release()
	// What the decision below is made on is everything that was ever acknowledged.
	if _, err := n.reader.Read(ctx); err != nil {
		return Restored{}, notRestored(err)
	}
	view := n.st.View()
	fresh := n.cfg.Fresh != nil && n.cfg.Fresh(view)
	epoch := nextEpoch(view.Epoch(), snap.Epoch, fresh, id)
	var kept KeptTrust
	if n.cfg.KeepTrust != nil && !dropTrust && snap.Epoch.ClusterID == view.Epoch().ClusterID {
		snap.Resources, kept = n.cfg.KeepTrust(view, snap.Resources)
	}
	if n.cfg.KeepOwn != nil {
		snap.Resources = n.cfg.KeepOwn(view, snap.Resources)
	}
	revision, err := n.proposeParts(ctx, snap.Parts(view.Epoch(), epoch, n.restorePart))
	if err != nil {
		return Restored{}, err
	}
	return Restored{Saved: snap.Revision, Revision: revision, Epoch: epoch, Resources: len(snap.Resources), Kept: kept}, nil
}

// whose names what a state is of.
func whose(zone string) string {
	if zone == "" {
		return "a global"
	}
	return fmt.Sprintf("zone %q", zone)
}

// readBackup decrypts a backup, if it is encrypted, and reads it.
func (n *restorer) readBackup(source io.Reader) (*store.Snapshot, error) {
	plain, err := n.cfg.Encryption.Reader(source)
	if errors.Is(err, atrest.ErrNoKey) {
		return nil, fmt.Errorf("server %q leads and cannot read it: %w", n.cfg.NodeID, err)
	}
	if err != nil {
		return nil, err
	}
	return store.ReadSnapshot(plain)
}

// nextEpoch names the history that begins with a restore. A cluster that holds
// nothing of its own takes over the identity of the one that was saved, so that
// its zones follow; any other stays what it is.
func nextEpoch(running, saved store.Epoch, fresh bool, random uint64) store.Epoch {
	next := store.Epoch{ClusterID: running.ClusterID, Incarnation: max(running.Incarnation, saved.Incarnation) + 1, Random: random}
	if fresh && saved.ClusterID != "" {
		next.ClusterID = saved.ClusterID
	}
	return next
}

// proposeParts writes the parts of a restore, a few at a time, and the last one
// only when all others have been applied: until then, giving up has no effect. A
// leader that loses its leadership and regains it continues where it was.
func (n *restorer) proposeParts(ctx context.Context, parts []store.RestorePart) (resource.Revision, error) {
	n.restoring.Store(true)
	defer n.restoring.Store(false)
	now := n.cfg.Clock()
	for from, tries := 0, 0; ; tries++ {
		revision, unfinished, err := n.proposeFrom(ctx, parts, from, now)
		if !unfinished {
			return revision, err
		}
		refused := new(store.RestoreError)
		applied, ok := 0, false
		if tries < maxRestoreTries && ctx.Err() == nil && !errors.As(err, &refused) && n.regainLeadership(ctx) {
			applied, ok = n.st.RestoringParts(parts[0].ID)
		}
		if !ok {
			n.abandonRestore(now)
			return 0, notRestored(err)
		}
		from = applied
	}
}

// maxRestoreTries bounds how often a restore continues after a change of leader.
const maxRestoreTries = 16

// proposeFrom writes the parts from one on. unfinished means that the last one has
// not been proposed.
func (n *restorer) proposeFrom(ctx context.Context, parts []store.RestorePart, from int, now time.Time) (_ resource.Revision, unfinished bool, err error) {
	var flying []raft.ApplyFuture
	land := func(down int) error {
		for len(flying) > down {
			if _, err := n.applied(flying[0]); err != nil {
				return err
			}
			flying = flying[1:]
		}
		return nil
	}
	last := len(parts) - 1
	for i := from; i <= last; i++ {
		down := restoreWindow - 1
		if i == last {
			down = 0
		}
		err := land(down)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return 0, true, err
		}
		command, err := store.EncodeCommand(store.Txn{Time: now, Restore: &parts[i]})
		if err != nil {
			return 0, true, err
		}
		flying = append(flying, n.raft.Apply(command, n.cfg.ApplyTimeout))
	}
	result, err := n.applied(flying[0])
	return result.Revision, false, err
}

// regainLeadership waits until this server leads again, and reports whether it
// does. It does not wait once another one leads.
func (n *restorer) regainLeadership(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.ApplyTimeout)
	defer cancel()
	for {
		moved := n.moved.Wait()
		_, _, err := n.waitLeadership(ctx)
		if err == nil {
			return true
		}
		if leader, _ := n.Leader(); leader != "" && leader != n.cfg.NodeID || errors.Is(err, ErrClosed) || !n.pause(ctx, moved, nil) {
			return false
		}
	}
}

// applied waits for a command to be decided.
func (n *restorer) applied(future raft.ApplyFuture) (store.Result, error) {
	if err := future.Error(); err != nil {
		if err = n.proposeError(err); !errors.Is(err, ErrUnknownOutcome) {
			err = notRestored(err)
		}
		return store.Result{}, err
	}
	if err, halted := future.Response().(error); halted {
		return store.Result{}, unknownOutcome(err)
	}
	result, _ := future.Response().(store.Result)
	if result.Err != nil {
		return result, notRestored(result.Err)
	}
	return result, nil
}

// abandonRestore has every server forget the parts of a restore that does not go
// on, which holds snapshots back. Should it fail, the next leader does the same, or
// the next write.
func (n *restorer) abandonRestore(now time.Time) {
	if command, err := store.EncodeCommand(store.Txn{Time: now, Restore: store.Abandon()}); err == nil {
		_ = n.raft.Apply(command, n.cfg.ApplyTimeout).Error()
	}
}
