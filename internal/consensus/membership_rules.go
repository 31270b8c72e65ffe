package consensus

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
)

// Reasons why a change of membership is refused, for programs. They survive the
// wire: rpcerr.HasReason finds them at the caller, however many servers passed
// the request on.
const (
	// ReasonAlreadyRunning: a server of that name answers, so the one that asks
	// is another. Every server needs a name of its own; ask again in a few
	// seconds if it is the same one, which has just stopped.
	ReasonAlreadyRunning = "ALREADY_RUNNING"
	// ReasonRemoved: the server holds a log and is not a member any more.
	ReasonRemoved = "REMOVED"
	// ReasonCertificateRevoked: the certificate is that of another server, which was
	// removed.
	ReasonCertificateRevoked = "CERTIFICATE_REVOKED"
	// ReasonTooOld: the server runs a release that cannot read what is written
	// here.
	ReasonTooOld = "TOO_OLD"
	// ReasonMemberTooOld: a member runs a release that cannot apply what was to be
	// written. Nothing was written.
	ReasonMemberTooOld = "MEMBER_TOO_OLD"
	// ReasonAddressInUse: another member has that address.
	ReasonAddressInUse = "ADDRESS_IN_USE"
	// ReasonLastVoter: no server would be left that could decide anything.
	ReasonLastVoter = "LAST_VOTER"
	// ReasonWouldLoseQuorum: those that would be left and answer are too few to
	// decide anything.
	ReasonWouldLoseQuorum = "WOULD_LOSE_QUORUM"
	// ReasonIsAlive: the server answers; removing it takes force.
	ReasonIsAlive = "IS_ALIVE"
	// ReasonUnknownServer: no member has that name.
	ReasonUnknownServer = "UNKNOWN_SERVER"
)

// addition is a server that asks to become a member, or says where it is.
type addition struct {
	name, disk, addr string
	// fresh: it holds nothing.
	fresh bool
	// own: it is the leader itself that asks.
	own bool
	// reached is where the leader reaches the member of that name instead of at the
	// address in the log, empty when it does not.
	reached string
	// cluster is the one that it reports to be a member of, empty when it does not
	// know.
	cluster string
	// format is the newest format of log entries that it can apply.
	format  uint32
	version string
	// key is the key of its certificate where that names no server, "" where it does
	// or that is not known.
	key string
}

// membership is what a leader decides a change of members on.
type membership struct {
	cluster string
	self    raft.ServerID
	servers []raft.Server
	// silence is for how long a server has not answered heartbeats, 0 when it
	// does.
	silence func(raft.ServerID) time.Duration
	// gone is the silence from which on a server counts as unreachable.
	gone time.Duration
	// removed reports whether a server was a member before; nil: none was.
	removed func(raft.ServerID) bool
	// format is the newest format of log entries that is in use.
	format uint32
	// called are the servers that have answered a call just now, apart from the
	// leader. Only removals need to know.
	called map[raft.ServerID]bool
	// leaving are those among them that are about to stop.
	leaving map[raft.ServerID]bool
}

// step is one change of raft's configuration. A change of membership consists of
// some, each safe by itself, so that a leader may fail between two of them.
type step struct {
	what action
	id   raft.ServerID
	addr raft.ServerAddress
}

type action string

const (
	remove action = "remove"
	add    action = "add without a vote"
	move   action = "change the address of"
)

// add returns the steps that make a server a member.
//
// A server that lost its disk has forgotten its votes and the entries that it
// acknowledged. It must not vote again as if nothing had happened: it is removed
// first, which those that are left decide without it, and then it is a new
// server without a vote, and another one to raft (raftlog.DiskMark). What raft says to
// the old one does not reach it, so it counts as unreachable although its process
// runs; and should the old disk return, it is not a member any more.
func (m membership) add(a addition) ([]step, error) {
	if a.cluster != "" && a.cluster != m.cluster {
		return nil, rpcerr.New(rpcerr.Conflict, raftnet.ReasonForeignCluster,
			"%s is a server of cluster %s, and this is cluster %s: it continues only with its own; to have it join this one, start it with a new data directory, and keep the old one, which may be the only copy of what it holds", a.name, a.cluster, m.cluster)
	}
	if a.format < max(m.format, 1) {
		return nil, rpcerr.New(rpcerr.Conflict, ReasonTooOld,
			"%s runs release %s, which cannot read what the servers of this cluster write: give it a newer one", a.name, orUnknown(a.version))
	}
	if other, ok := m.at(a.addr); ok && raftlog.NameOf(other.ID) != a.name {
		return nil, rpcerr.New(rpcerr.Conflict, ReasonAddressInUse,
			"%s says that it is at %s, and so is the member %s: remove that one first if it is gone (meridian cluster remove %s)", a.name, a.addr, raftlog.NameOf(other.ID), raftlog.NameOf(other.ID))
	}
	id, addr := raftlog.ServerID(a.name, a.disk), raft.ServerAddress(a.addr)
	known, member := m.find(a.name)
	switch {
	case a.fresh && m.removed != nil && m.removed(id):
		return nil, rpcerr.New(rpcerr.Conflict, ReasonRemoved,
			"%s was removed from this cluster, and its certificate with it: to bring it back, let it join as a new server, with a new data directory", a.name)
	case !member && a.fresh:
		return []step{{add, id, addr}}, nil
	case !member, !a.fresh && known.ID != id:
		return nil, rpcerr.New(rpcerr.Conflict, ReasonRemoved,
			"%s is not a member of this cluster any more: to bring it back, let it join as a new server, with a new data directory", a.name)
	case !a.fresh && known.Address == addr:
		return nil, nil
	case m.answers(known.ID) && !a.own && !repeats(a, known) && (a.fresh || a.reached != a.addr):
		return nil, alreadyRunning(known)
	case !a.fresh:
		return []step{{move, id, addr}}, nil
	default:
		return []step{{remove, known.ID, ""}, {add, id, addr}}, nil
	}
}

func alreadyRunning(known raft.Server) error {
	return rpcerr.New(rpcerr.Conflict, ReasonAlreadyRunning,
		"a server called %s is running at %s: every server needs a name of its own (--name)", raftlog.NameOf(known.ID), known.Address)
}

// replace decides whether a server that asks to be added may take the place of a voter
// with its name: that one may answer a call although heartbeats miss it, on the disk
// that it had, and the others may be too few without it.
func (m membership) replace(voter raft.Server, a addition) error {
	if m.called[voter.ID] && voter.ID != raftlog.ServerID(a.name, a.disk) {
		return alreadyRunning(voter)
	}
	return m.spares(voter)
}

// repeats reports whether a request is one that was granted before: no other
// server has that address, and without a vote there is nothing to forget.
func repeats(a addition, known raft.Server) bool {
	return a.fresh && known.Suffrage != raft.Voter && string(known.Address) == a.addr
}

// release decides whether a server may be removed, and returns it. A voter that does not answer
// can be spared; one that does may be the one without which nothing could be
// decided any more, the removal itself included. That those that are left are
// there is worth asking: a heartbeat takes a moment to be missed. The server
// itself, on the other hand, is alive if it gives any sign of life.
func (m membership) release(name string, force bool) (raft.Server, error) {
	server, ok := m.find(name)
	if !ok {
		return raft.Server{}, rpcerr.New(rpcerr.NotFound, ReasonUnknownServer, "no server of this cluster is called %s", name)
	}
	if err := m.spares(server); err != nil {
		return raft.Server{}, err
	}
	if (m.answers(server.ID) || m.called[server.ID]) && !force {
		return raft.Server{}, rpcerr.New(rpcerr.Conflict, ReasonIsAlive,
			"%s is running: stop it first, or remove it all the same with --force", name)
	}
	return server, nil
}

// spares returns an error where, without a voter, those that would be left and answer
// could not decide anything.
func (m membership) spares(server raft.Server) error {
	if server.Suffrage != raft.Voter {
		return nil
	}
	name := raftlog.NameOf(server.ID)
	voters, answering := 0, 0
	for _, s := range m.servers {
		if s.Suffrage != raft.Voter || s.ID == server.ID {
			continue
		}
		voters++
		if s.ID == m.self || m.answers(s.ID) && m.called[s.ID] {
			answering++
		}
	}
	if voters == 0 {
		return rpcerr.New(rpcerr.Conflict, ReasonLastVoter, "%s is the only server of this cluster that has a vote: none would be left that could decide anything", name)
	}
	if answering < voters/2+1 {
		return rpcerr.New(rpcerr.Conflict, ReasonWouldLoseQuorum,
			"without %s the cluster could not decide anything: of the %d servers with a vote that would be left, %d answer; remove those that do not first, or bring them back",
			name, voters, answering)
	}
	return nil
}

// answers reports whether a server is reached by the leader.
func (m membership) answers(id raft.ServerID) bool { return id == m.self || m.silence(id) < m.gone }

func (m membership) find(name string) (raft.Server, bool) {
	for _, s := range m.servers {
		if raftlog.NameOf(s.ID) == name {
			return s, true
		}
	}
	return raft.Server{}, false
}

// disk returns the member with a name and disk.
func (m membership) disk(id raft.ServerID) (raft.Server, bool) {
	s, ok := m.find(raftlog.NameOf(id))
	return s, ok && s.ID == id
}

func (m membership) at(addr string) (raft.Server, bool) {
	for _, s := range m.servers {
		if string(s.Address) == addr {
			return s, true
		}
	}
	return raft.Server{}, false
}

func orUnknown(version string) string {
	if version == "" {
		return "(unknown)"
	}
	return fmt.Sprintf("%q", version)
}
