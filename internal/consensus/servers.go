package consensus

import (
	"strings"

	"github.com/hashicorp/raft"

	"meridian/internal/mutant"
)

// diskMark separates the name of a server from the disk that it runs on, in what
// raft knows it by. Names are identities to people; to raft a server that comes
// back with another disk is another server, since it has forgotten what it
// promised. So neither a server that lost its disk nor a disk that was replaced
// and returns can vote, or confirm entries, in the name of the other.
const diskMark = "#"

// serverID is what raft knows a server by.
func (id identity) serverID() raft.ServerID { return serverID(id.NodeID, id.Disk) }

func serverID(name, disk string) raft.ServerID {
	if disk == "" || mutant.On(mutant.LostDiskVotes) {
		return raft.ServerID(name)
	}
	return raft.ServerID(name + diskMark + disk)
}

// nameOf returns the name of a server by what raft knows it by.
func nameOf(id raft.ServerID) string {
	name, _, _ := strings.Cut(string(id), diskMark)
	return name
}

// diskOf returns the disk of a server by what raft knows it by.
func diskOf(id raft.ServerID) string {
	_, disk, _ := strings.Cut(string(id), diskMark)
	return disk
}

// Identity is who a server is to the transports of others.
type Identity struct {
	// Server is what raft knows it by, Cluster its cluster's id, "" while it has
	// none.
	Server  raft.ServerID
	Cluster string
}

// identity is who this server is now.
func (n *Node) identity() Identity {
	n.dir.mu.Lock()
	defer n.dir.mu.Unlock()
	return Identity{Server: n.dir.id.serverID(), Cluster: n.dir.id.ClusterID}
}

// Server is a member of the cluster as this server's copy of the log has it.
type Server struct {
	// Name is its node id, Addr its raft address.
	Name, Addr string
	Voter      bool
}

// Servers returns the members of the cluster, this server among them, in the
// order of the log. It asks nobody: a server that is cut off may not have heard
// of a change.
func (n *Node) Servers() []Server {
	servers := n.raft.GetConfiguration().Configuration().Servers
	out := make([]Server, 0, len(servers))
	for _, s := range servers {
		out = append(out, Server{Name: nameOf(s.ID), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return out
}
