package consensus

import (
	"context"
	"errors"
	"sync"
	"time"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
	"meridian/internal/version"
)

// peerService answers the calls of other servers. Its errors carry the reasons
// of peer_codec.go.
type peerService struct {
	peerv1.UnimplementedRaftServiceServer
	node *Node
}

var _ peerv1.RaftServiceServer = (*peerService)(nil)

// Propose writes a batch that another server decided, at this server's time. It
// is not passed on: the caller knows best who leads now.
func (s *peerService) Propose(ctx context.Context, request *peerv1.ProposeRequest) (*peerv1.ProposeResponse, error) {
	n := s.node
	if err := n.begin(); err != nil {
		return nil, memberStatus(err)
	}
	defer n.requests.Done()
	command, scope, err := store.Restamp(request.GetCommand(), n.cfg.Clock())
	switch {
	case errors.Is(err, store.ErrUnknownFormat):
		return nil, rpcerr.New(rpcerr.Unsupported, ReasonMemberTooOld, "server %s, the leader, runs release %s, which cannot apply such a write: upgrade it first; nothing was written", n.cfg.NodeID, version.String())
	case err != nil:
		return nil, rpcerr.New(rpcerr.Invalid, reasonUnreadable, "the leader, which runs release %s, cannot apply this: %w", version.String(), err)
	}
	p := proposal{command: command, note: request.GetNote(), scope: scope, patience: time.NewTimer(n.cfg.ApplyTimeout)}
	defer p.patience.Stop()
	result, index, err := n.proposer.proposeHere(ctx, &p)
	if err != nil && result.Err == nil {
		return nil, memberStatus(err)
	}
	return resultToPeer(result, index, n.raft.CurrentTerm())
}

// ProposeAll writes batches that other callers of the same server have decided.
func (s *peerService) ProposeAll(ctx context.Context, request *peerv1.ProposeAllRequest) (*peerv1.ProposeAllResponse, error) {
	proposals := request.GetProposals()
	if len(proposals) > maxShared {
		return nil, rpcerr.New(rpcerr.Invalid, reasonUnreadable, "%d proposals in a request that may have %d", len(proposals), maxShared)
	}
	response := &peerv1.ProposeAllResponse{Outcomes: make([]*peerv1.ProposeOutcome, len(proposals))}
	var all sync.WaitGroup
	for i, proposal := range proposals {
		all.Go(func() { response.Outcomes[i] = outcomeToPeer(s.Propose(ctx, proposal)) })
	}
	all.Wait()
	return response, nil
}

// ReadIndex returns what a linearizable read has to wait for.
func (s *peerService) ReadIndex(ctx context.Context, _ *peerv1.ReadIndexRequest) (*peerv1.ReadIndexResponse, error) {
	n := s.node
	if err := n.begin(); err != nil {
		return nil, memberStatus(err)
	}
	defer n.requests.Done()
	point, term, err := n.reader.readPointHere(ctx)
	if err != nil {
		return nil, memberStatus(err)
	}
	return &peerv1.ReadIndexResponse{Revision: uint64(point), Term: term}, nil
}

// Status says how this server stands; to one that is no member, only which server
// it is.
func (s *peerService) Status(ctx context.Context, _ *peerv1.StatusRequest) (*peerv1.StatusResponse, error) {
	n := s.node
	response := &peerv1.StatusResponse{
		ClusterId: n.ClusterID(), Name: n.cfg.NodeID, Disk: raftlog.DiskOf(n.id),
		Version: version.String(), CommandFormat: n.cfg.logFormat(),
	}
	if !raftnet.CallerFrom(ctx).Member {
		return response, nil
	}
	status := n.Status()
	response.State, response.Leader, response.Term = status.State, status.Leader, status.Term
	response.LastIndex, response.LastTerm = uint64(status.Last), n.lastLogTerm()
	response.Committed, response.Applied = uint64(status.Committed), uint64(status.Applied)
	response.Raft, response.Members = n.RaftAddr(), n.members.memberAddresses()
	response.DiskLow, response.Stopping, response.Encryption = n.Disk().Low, n.leaving.Load(), n.encryption()
	if n.cfg.Addresses != nil {
		addresses := n.cfg.Addresses()
		response.Grpc, response.Gossip = addresses.GRPC, addresses.Gossip
	}
	if n.cfg.GossipKeys != nil {
		response.GossipKeys = n.cfg.GossipKeys()
	}
	return response, nil
}

// TransferLeadership makes another server the leader in place of this one.
func (s *peerService) TransferLeadership(ctx context.Context, request *peerv1.TransferLeadershipRequest) (*peerv1.TransferLeadershipResponse, error) {
	n := s.node
	if err := n.begin(); err != nil {
		return nil, memberStatus(err)
	}
	defer n.requests.Done()
	leader, err := n.transfers.handOver(ctx, request.GetTo())
	if err != nil {
		return nil, memberStatus(err)
	}
	return &peerv1.TransferLeadershipResponse{Leader: leader}, nil
}
