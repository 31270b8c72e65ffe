package consensus

import (
	"slices"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
)

// identity is who this server is now.
func (n *core) identity() raftnet.Identity {
	id := n.dir.ID()
	return raftnet.Identity{Server: id.ServerID(), Cluster: id.ClusterID}
}

// servers returns the members as this server knows them: the newest
// configuration in its log, whether it is committed or not.
func (n *core) servers() []raft.Server {
	return n.raft.GetConfiguration().Configuration().Servers
}

// isMember reports whether a server is a member, as far as this one knows.
func (n *core) isMember(id raft.ServerID) bool {
	return slices.ContainsFunc(n.servers(), func(s raft.Server) bool { return s.ID == id })
}

// Server is a member of the cluster as this server's copy of the log has it.
type Server struct {
	// ID is what raft knows it by, Name its node id, Addr its raft address.
	ID, Name, Addr string
	Voter          bool
}

// Servers returns the members of the cluster, this server among them, in the
// order of the log. It asks no other server: one that is cut off may not have
// received a change.
func (n *Node) Servers() []Server {
	servers := n.servers()
	out := make([]Server, 0, len(servers))
	for _, s := range servers {
		out = append(out, Server{ID: string(s.ID), Name: raftlog.NameOf(s.ID), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return out
}
