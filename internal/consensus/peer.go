package consensus

import (
	"slices"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftnet"
)

// PeerConn returns a connection to the server with a raft address, for the
// services it registered with Config.PeerServices. Both ends have proved to be
// servers of this cluster. It is shared, connects when it is first used and
// again after a failure, and is closed with the node.
func (n *core) PeerConn(addr string) grpc.ClientConnInterface { return n.peers.To(addr) }

// servePeers answers the calls of peers until the server is stopped.
func (n *Node) servePeers() {
	n.peerServer = raftnet.Serve(n.network, n.ClusterID, n.isMember, func(registrar grpc.ServiceRegistrar) {
		peerv1.RegisterRaftServiceServer(registrar, &peerService{node: n})
		if n.cfg.PeerServices != nil {
			n.cfg.PeerServices(registrar)
		}
	})
}

// Recheck decides again about the peers of all open connections, and ends those of
// peers that would not be accepted now.
func (n *core) Recheck() {
	if n.network != nil {
		n.network.Recheck()
	}
}

// isMember reports whether a server is a member, as far as this one knows.
func (n *core) isMember(id raft.ServerID) bool {
	return slices.ContainsFunc(n.servers(), func(s raft.Server) bool { return s.ID == id })
}

// stopPeers ends the calls to and of peers.
func (n *Node) stopPeers() {
	n.peers.Close()
	if n.peerServer != nil {
		n.peerServer.Stop()
	}
}
