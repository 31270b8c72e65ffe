package consensus

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/atrest"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// ErrNotRecoverable means that a data directory is not one that a cluster can be
// recovered from. Nothing was changed; the message says what to do instead.
var ErrNotRecoverable = errors.New("no cluster can be recovered from this data directory")

// Recovery is what the data directory of a stopped server holds, when a majority
// of its cluster is lost for good, and the way to force a new single-server
// cluster from it.
//
// The new cluster begins with the server's whole log: entries that were acknowledged
// and are not in it are lost, and entries that were never acknowledged but are in
// it take effect. The state begins a new incarnation, so that no zone takes it for
// a continuation of the history before.
type Recovery struct {
	// Server is the name of the server. Member says that it belongs to the cluster
	// as far as it knows, by its log and by what the cluster told it: otherwise it
	// was removed, or its disk was replaced, and what it holds ends there. Voter says
	// that it has a vote.
	Server        string
	Member, Voter bool
	// Role is what the server is a part of.
	Role Role
	// Others are the other servers of the cluster as this one knows them.
	Others []Member
	// Epoch is the state's, and Next the one that it gets.
	Epoch, Next store.Epoch
	// Revision and Time are the state's, Resources what it holds.
	Revision  resource.Revision
	Time      time.Time
	Resources int
	// FirstEntry, LastEntry and LastTerm are the log's; Snapshot is the entry that
	// the state is read up to without it. Of several servers, the one with the
	// highest term, and among those the one with the highest entry, has lost least.
	FirstEntry, LastEntry, LastTerm, Snapshot uint64

	addr raft.ServerAddress // the server's, as a member
	dir  *raftlog.DataDir
	log  *raftlog.Log
}

// OpenRecovery examines the data directory of a stopped server and
// keeps it locked until Close. storage is where the directory is; see Files. It
// changes no more than a start of the server would, which tidies up after a crash.
//
// Errors: ErrNotRecoverable, ErrDataDirInUse (a server runs), ErrDataDirReadOnly,
// ErrCorrupt, raftlog.ErrNoKey.
func OpenRecovery(storage raftlog.Storage, keys *atrest.Keys) (_ *Recovery, err error) {
	if dir, ok := storage.(raftlog.Directory); ok && !dir.Used() {
		return nil, fmt.Errorf("%w: %s is no data directory of a server that has run", ErrNotRecoverable, storage.Name())
	}
	cfg := DefaultConfig("")
	cfg.Storage, cfg.Encryption, cfg.Logger = storage, keys, slog.New(slog.DiscardHandler)
	r := &Recovery{}
	if r.dir, err = openDataDir(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	r.dir.Keep()
	if err := recoverable(r.dir.Name(), r.dir.ID()); err != nil {
		return nil, err
	}
	if r.log, err = raftlog.OpenLog(r.dir, nil); err != nil {
		return nil, err
	}
	if err := finishRecovery(r.dir, r.log); err != nil {
		return nil, err
	}
	snapshots, err := raftlog.OpenSnapshots(r.dir, r.log, cfg.Snapshots.Retain, raftnet.NewLogger(cfg.Logger))
	if err != nil {
		return nil, err
	}
	if err := snapshots.Check(r.dir.ID()); err != nil {
		return nil, err
	}
	return r, r.examine(snapshots)
}

// recoverable refuses directories that hold no state of a cluster.
func recoverable(name string, id raftlog.Identity) error {
	switch {
	case id.FormatVersion == 0:
		return fmt.Errorf("%w: no server has run on %s", ErrNotRecoverable, name)
	case id.Joining:
		return fmt.Errorf("%w: %s is of a server that was still joining and has never held the whole state; use the directory of another server, or restore a backup into a new global", ErrNotRecoverable, name)
	case !id.Bootstrapped:
		return fmt.Errorf("%w: the server of %s has never finished its first start", ErrNotRecoverable, name)
	}
	return nil
}

// examine replays what a start would: the newest snapshot, then the log to its
// end.
func (r *Recovery) examine(snapshots *raftlog.Snapshots) error {
	r.Role = Role(r.dir.ID().Role)
	options := store.DefaultOptions()
	options.ExternalMeshes = r.Role == RoleZone // the meshes of most zones are their global's
	st := store.New(options)
	members, term, err := r.replaySnapshot(snapshots, st)
	if err != nil {
		return err
	}
	r.LastEntry, r.LastTerm = r.Snapshot, term
	first, last, err := r.log.Bounds()
	if err != nil {
		return err
	}
	r.FirstEntry = first
	for index := r.Snapshot + 1; index <= last; index++ {
		var entry raft.Log
		if err := r.log.GetLog(index, &entry); err != nil {
			return err
		}
		switch entry.Type {
		case raft.LogCommand:
			txn, err := store.DecodeCommand(entry.Data)
			if err != nil {
				return fmt.Errorf("%w: entry %d cannot be applied: %w; use the release that wrote it", ErrNotRecoverable, index, err)
			}
			st.Apply(resource.Revision(index), txn)
		case raft.LogConfiguration:
			members = raft.DecodeConfiguration(entry.Data)
		}
		st.Advance(resource.Revision(index))
		r.LastEntry, r.LastTerm = index, entry.Term
	}
	view := st.View()
	r.Epoch, r.Revision, r.Time, r.Resources = view.Epoch(), view.Revision(), view.Time(), view.Len()
	if r.Epoch == (store.Epoch{}) {
		return fmt.Errorf("%w: %s holds nothing that was ever written", ErrNotRecoverable, r.dir.Name())
	}
	r.Next = store.Epoch{ClusterID: r.Epoch.ClusterID, Incarnation: r.Epoch.Incarnation + 1, Random: randomID()}
	r.Server = r.dir.ID().NodeID
	for _, s := range members.Servers {
		if s.ID == r.dir.ID().ServerID() {
			r.Member = !r.dir.ID().Removed
			r.Voter, r.addr = r.Member && s.Suffrage == raft.Voter, s.Address
			continue
		}
		r.Others = append(r.Others, Member{Name: raftlog.NameOf(s.ID), Raft: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return nil
}

// replaySnapshot restores the newest snapshot that can be, if there is any, and
// returns the members and the term that it was taken in.
func (r *Recovery) replaySnapshot(snapshots *raftlog.Snapshots, st *store.Store) (members raft.Configuration, term uint64, err error) {
	metas, err := snapshots.List()
	if err != nil || len(metas) == 0 {
		return members, 0, err
	}
	for _, listed := range metas {
		meta, source, err := snapshots.Open(listed.ID)
		if err != nil {
			continue // an older one may do, as it would for a server that starts
		}
		if err := (fsm{st: st}).Restore(source); err != nil {
			continue
		}
		r.Snapshot = meta.Index
		return meta.Configuration, meta.Term, nil
	}
	return members, 0, raftlog.Corruptf("%s: no snapshot can be read", snapshots.Name())
}

// Alone reports whether the server is the only one of its cluster: there is
// nothing to recover, or it has been recovered.
func (r *Recovery) Alone() bool { return r.Voter && len(r.Others) == 0 }

// Recover makes the server the only one of its cluster, and begins the next
// epoch with what it holds. It adds two entries to the log, one of which makes it
// the only member and the other of which begins the epoch; it removes nothing.
// Before those are on disk nothing has happened, after that everything has: a
// crash between leaves either, and Recover can be repeated.
//
// With them the servers' own name of the cluster changes, which every message
// between them carries: those that are left behind cannot vote any more, should
// they be started.
func (r *Recovery) Recover(now time.Time) error {
	var name [16]byte
	_, _ = rand.Read(name[:]) // never fails
	err := r.dir.Change(func(id *raftlog.Identity) {
		id.RecoveryID, id.RecoveryEntry = hex.EncodeToString(name[:]), r.LastEntry+1
	})
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	current, err := r.log.CurrentTerm()
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	term := max(current, r.LastTerm) + 1
	if err := r.log.SetCurrentTerm(term); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	command, err := store.EncodeCommand(store.Txn{Time: now, SetEpoch: &r.Next})
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	err = r.log.StoreLogs([]*raft.Log{
		{Index: r.LastEntry + 1, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(r.alone()), AppendedAt: now},
		{Index: r.LastEntry + 2, Term: term, Type: raft.LogCommand, Data: command, AppendedAt: now},
	})
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return finishRecovery(r.dir, r.log)
}

// finishRecovery gives the cluster its new name when a recovery has reached the
// log, and forgets one that has not.
func finishRecovery(d *raftlog.DataDir, log *raftlog.Log) error {
	id := d.ID()
	if id.RecoveryID == "" {
		return nil
	}
	var entry raft.Log
	err := log.GetLog(id.RecoveryEntry, &entry)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	done := err == nil && entry.Type == raft.LogConfiguration && isAlone(raft.DecodeConfiguration(entry.Data), id.ServerID())
	return d.Change(func(id *raftlog.Identity) {
		if done {
			id.Former = strings.TrimSpace(id.ClusterID + " " + id.Former)
			id.ClusterID, id.Removed = id.RecoveryID, false
		}
		id.RecoveryID, id.RecoveryEntry = "", 0
	})
}

func isAlone(members raft.Configuration, id raft.ServerID) bool {
	return len(members.Servers) == 1 && members.Servers[0].ID == id && members.Servers[0].Suffrage == raft.Voter
}

// alone is the membership of this server only. A server that was removed does
// not know its address; it notes the one it listens on when it starts.
func (r *Recovery) alone() raft.Configuration {
	self := raft.Server{Suffrage: raft.Voter, ID: r.dir.ID().ServerID(), Address: r.addr}
	if self.Address == "" {
		self.Address = raft.ServerAddress(r.Server)
	}
	return raft.Configuration{Servers: []raft.Server{self}}
}

// Close lets others have the data directory.
func (r *Recovery) Close() error {
	var err error
	if r.log != nil {
		err = r.log.Close()
	}
	r.dir.Close()
	return err
}
