package consensus

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// formatsKnown is for how long what a member has said of the formats that it
// applies is taken for granted. One that is restarted with an older release in
// the meantime would end itself at the first entry that it cannot apply.
const formatsKnown = time.Second

// formats decides, on the leader, whether all members can apply an entry: one that
// cannot would have to end, and an upgrade would stop the servers that wait for
// theirs. So a kind of entry that is new is refused until every member has said
// that it knows it.
type formats struct {
	*core

	mu sync.Mutex
	// known is what members have said, each when.
	known map[raft.ServerID]knownFormat // guarded by mu
	// asked is when members were last asked for the sake of writes that do without.
	asked time.Time // guarded by mu
}

type knownFormat struct {
	format  uint32
	release string
	at      time.Time
}

// check returns an *rpcerr.Error with the reason MEMBER_TOO_OLD when some member
// cannot apply an entry of a format, or when that is not known.
func (f *formats) check(ctx context.Context, needed uint32) error {
	switch {
	case needed <= 1 || !f.leads():
		return nil
	case needed <= f.formatInUse.Load():
		// Entries of it are in the log: every member applies them, or has ended, and no
		// other server becomes one. What was begun by one can be ended while a member is
		// down that this leader has never asked.
		return nil
	case needed > f.cfg.logFormat():
		return rpcerr.New(rpcerr.Unsupported, ReasonMemberTooOld, "this server runs a release that cannot apply such a write: upgrade it first; nothing was written")
	}
	var asked sync.WaitGroup
	servers := f.servers()
	refusals := make([]error, len(servers))
	for i, s := range servers {
		if s.ID != f.id {
			asked.Go(func() { refusals[i] = f.checkMember(ctx, s, needed) })
		}
	}
	asked.Wait()
	f.forgetOthers(servers)
	for _, err := range refusals {
		if err != nil {
			return err
		}
	}
	return nil
}

// permits reports whether all members are known to apply a format. It does not wait:
// where that is not known they are asked, once a second, for the calls that follow.
func (f *formats) permits(format uint32) bool {
	if format <= f.formatInUse.Load() {
		return true
	}
	if format > f.cfg.logFormat() {
		return false
	}
	servers := f.servers()
	f.mu.Lock()
	defer f.mu.Unlock()
	missing := func(s raft.Server) bool {
		known, ok := f.known[s.ID]
		return s.ID != f.id && (!ok || known.format < format || time.Since(known.at) > formatsKnown)
	}
	if !slices.ContainsFunc(servers, missing) {
		return true
	}
	if time.Since(f.asked) > formatsKnown {
		f.asked = time.Now()
		f.requests.Go(func() { _ = f.check(f.stopping, format) }) // it is what check notes that counts
	}
	return false
}

// checkMember decides about one member. One that does not answer counts as what it
// last said.
func (f *formats) checkMember(ctx context.Context, s raft.Server, needed uint32) error {
	f.mu.Lock()
	known, ok := f.known[s.ID]
	f.mu.Unlock()
	if !ok || time.Since(known.at) > formatsKnown || known.format < needed {
		asked, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		status, err := f.statusOf(asked, s.ID, s.Address)
		for !ok && err != nil && asked.Err() == nil { // it may have come back, and the connection not yet
			select {
			case <-asked.Done():
			case <-time.After(leaderPause):
				status, err = f.statusOf(asked, s.ID, s.Address)
			}
		}
		switch {
		case err == nil:
			known = knownFormat{status.GetCommandFormat(), status.GetVersion(), time.Now()}
			f.mu.Lock()
			f.known[s.ID] = known
			f.mu.Unlock()
		case !ok:
			return rpcerr.New(rpcerr.Unsupported, ReasonMemberTooOld,
				"server %s does not answer (%w), so it is not known whether it can apply such a write, which is of a newer release than some: start or remove it; nothing was written", raftlog.NameOf(s.ID), err)
		}
	}
	if known.format < needed {
		return rpcerr.New(rpcerr.Unsupported, ReasonMemberTooOld,
			"server %s runs release %s, which cannot apply such a write: upgrade it first; nothing was written", raftlog.NameOf(s.ID), orUnknown(known.release))
	}
	return nil
}

// forgetOthers forgets servers that are no members.
func (f *formats) forgetOthers(servers []raft.Server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.known {
		if !slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == id }) {
			delete(f.known, id)
		}
	}
}

// noteFormat, while the node is opened, notes an entry of the log as it is read at the start. One that a
// snapshot covers is not applied again, but may still be sent to a new member.
func (n *core) noteFormat(entry *raft.Log) {
	if entry.Type != raft.LogCommand {
		return
	}
	format := store.FormatOf(entry.Data)
	if format > n.cfg.logFormat() && n.newerLog == nil {
		n.newerLog = newerEntry(entry.Index, format, n.cfg.logFormat())
	}
	n.formatInUse.Store(max(n.formatInUse.Load(), format))
}
