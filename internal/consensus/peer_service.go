package consensus

import (
	"context"
	"strconv"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/version"
)

// commandFormat is the newest format of log entries that this release applies.
const commandFormat = 1

// peerService answers the calls of other servers.
type peerService struct {
	peerv1.UnimplementedRaftServiceServer
	node *Node
}

// Status says how this server stands.
func (s *peerService) Status(context.Context, *peerv1.StatusRequest) (*peerv1.StatusResponse, error) {
	n := s.node
	status := n.Status()
	lastTerm, _ := strconv.ParseUint(n.raft.Stats()["last_log_term"], 10, 64) // raft says it nowhere else
	response := &peerv1.StatusResponse{
		ClusterId: status.ClusterID, Name: status.NodeID,
		State: status.State, Leader: status.Leader, Term: status.Term,
		LastIndex: uint64(status.Last), LastTerm: lastTerm,
		Committed: uint64(status.Committed), Applied: uint64(status.Applied),
		Version: version.String(), CommandFormat: commandFormat,
		Raft: n.RaftAddr(), Members: n.memberAddresses(),
	}
	if n.cfg.Addresses != nil {
		addresses := n.cfg.Addresses()
		response.Grpc, response.Gossip = addresses.GRPC, addresses.Gossip
	}
	return response, nil
}
