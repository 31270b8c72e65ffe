package consensus

import (
	"context"
	"errors"
	"fmt"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
)

// AddMember makes a server a member, here while this server leads, else at the
// leader, once.
func (s *peerService) AddMember(ctx context.Context, req *peerv1.AddMemberRequest) (*peerv1.AddMemberResponse, error) {
	n := s.node
	asks := raftlog.ServerID(req.GetName(), req.GetDisk())
	caller := raftnet.CallerFrom(ctx)
	// A server asks for itself, by the key that it proves to have. Only a member that
	// passes on what another asked says by which key that one is known.
	key := caller.Key
	if caller.Server != asks {
		if !req.GetForwarded() || !caller.Member {
			return nil, rpcerr.New(rpcerr.Denied, raftnet.ReasonNotMember, "server %q cannot have server %q added", raftlog.NameOf(caller.Server), req.GetName())
		}
		key = req.GetKey()
	}
	err := n.members.addMember(ctx, addition{
		key:  key,
		name: req.GetName(), disk: req.GetDisk(), addr: req.GetRaft(), fresh: req.GetFresh(), cluster: req.GetClusterId(),
		format: req.GetCommandFormat(), version: req.GetVersion(),
	})
	switch {
	case err == nil:
		return &peerv1.AddMemberResponse{ClusterId: n.ClusterID(), Members: n.members.memberAddresses()}, nil
	case errors.Is(err, ErrNotLeader) && !req.GetForwarded():
		return s.forwardAddMember(ctx, req)
	}
	return nil, memberStatus(err)
}

// forwardAddMember passes a request on to the leader.
func (s *peerService) forwardAddMember(ctx context.Context, req *peerv1.AddMemberRequest) (*peerv1.AddMemberResponse, error) {
	name, addr := s.node.Leader()
	if name == "" || name == s.node.cfg.NodeID {
		return nil, memberStatus(ErrUnavailable)
	}
	forwarded := &peerv1.AddMemberRequest{
		Name: req.GetName(), Disk: req.GetDisk(), Raft: req.GetRaft(), Fresh: req.GetFresh(), ClusterId: req.GetClusterId(),
		Version: req.GetVersion(), CommandFormat: req.GetCommandFormat(), Forwarded: true,
		Key: raftnet.CallerFrom(ctx).Key,
	}
	return peerv1.NewRaftServiceClient(s.node.PeerConn(addr)).AddMember(ctx, forwarded)
}

// RemoveMember takes a server out of the cluster, which only the leader can.
func (s *peerService) RemoveMember(ctx context.Context, req *peerv1.RemoveMemberRequest) (*peerv1.RemoveMemberResponse, error) {
	if err := s.node.members.removeMember(ctx, req.GetName(), req.GetForce()); err != nil {
		return nil, memberStatus(err)
	}
	return &peerv1.RemoveMemberResponse{}, nil
}

// Reasons by which a peer tells errors of this package apart.
const (
	// reasonNotLeader: only the leader can do it, and nothing happened.
	reasonNotLeader = "NOT_LEADER"
	// reasonUnavailable: it cannot be done now, and nothing happened.
	reasonUnavailable = "UNAVAILABLE"
	// reasonUnknownOutcome: it may or may not be done, now or later.
	reasonUnknownOutcome = "UNKNOWN_OUTCOME"
	// reasonDiskFull: the leader's disk is nearly full, and nothing was written.
	reasonDiskFull = "DISK_FULL"
	// reasonUnreadable: the leader is of a release that cannot apply it, and
	// nothing happened.
	reasonUnreadable = "UNREADABLE"
)

// memberStatus makes an error fit to travel to a peer; memberError is its
// counterpart.
func memberStatus(err error) error {
	switch {
	case errors.Is(err, ErrNotLeader):
		err = rpcerr.New(rpcerr.Unavailable, reasonNotLeader, "%w", err)
	case errors.Is(err, ErrUnknownOutcome):
		err = rpcerr.New(rpcerr.Unavailable, reasonUnknownOutcome, "%w", err)
	case errors.Is(err, raftlog.ErrDiskFull):
		err = rpcerr.New(rpcerr.TooLarge, reasonDiskFull, "%w", err)
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrClosed):
		err = rpcerr.New(rpcerr.Unavailable, reasonUnavailable, "%w", err)
	}
	return rpcerr.ToStatus(err).Err()
}

// memberError makes what a peer said an error of this package. What says nothing
// about why it failed may have been done.
func memberError(err error) error {
	if err == nil {
		return nil
	}
	err = rpcerr.FromStatus(err)
	var said *rpcerr.Error
	if !errors.As(err, &said) {
		return unknownOutcome(err)
	}
	switch {
	case said.Reason == reasonNotLeader:
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case said.Reason == reasonUnavailable, said.Reason == raftnet.ReasonNotMember:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case said.Code == rpcerr.NotFound, said.Code == rpcerr.Conflict, said.Code == rpcerr.Invalid, said.Code == rpcerr.Unsupported:
		return err
	default:
		return unknownOutcome(err)
	}
}
