package clitest

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/rpcerr"
)

// Members answers with what the test has put in place.
func (s *Server) Members(context.Context, *meridianv1.MembersRequest) (*meridianv1.MembersResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.AllMembers, s.MembersError
}

// TransferLeadership makes the named member the leader.
func (s *Server) TransferLeadership(_ context.Context, req *meridianv1.TransferLeadershipRequest) (*meridianv1.TransferLeadershipResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if req.GetTo() != "" {
		s.AllMembers.Leader = req.GetTo()
	}
	return &meridianv1.TransferLeadershipResponse{Leader: s.AllMembers.GetLeader()}, nil
}

// RemoveMember removes a member, a running one only by force.
func (s *Server) RemoveMember(_ context.Context, req *meridianv1.RemoveMemberRequest) (*meridianv1.RemoveMemberResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for i, m := range s.AllMembers.GetMembers() {
		switch {
		case m.GetName() != req.GetName():
		case m.GetState() != "unreachable" && !req.GetForce():
			return nil, rpcerr.New(rpcerr.Conflict, "IS_ALIVE", "%s is running: stop it first, or remove it all the same with --force", m.GetName())
		default:
			s.AllMembers.Members = append(s.AllMembers.Members[:i:i], s.AllMembers.Members[i+1:]...)
			if s.GeneratesCA {
				s.AllMembers.AuthorityKnownTo = append(s.AllMembers.AuthorityKnownTo, m.GetName())
			}
			return &meridianv1.RemoveMemberResponse{KnowsAuthority: s.GeneratesCA}, nil
		}
	}
	return nil, rpcerr.New(rpcerr.NotFound, "UNKNOWN_SERVER", "no server of this global is called %q", req.GetName())
}

// Snapshots saves what it is given and keeps what it is sent.
type Snapshots struct {
	meridianv1.UnimplementedClusterServiceServer
	File     []byte
	Cut      int   // bytes sent before failed ends the stream
	Failed   error // of SaveSnapshot
	Refusal  error // of RestoreSnapshot
	Stale    bool
	Restored []byte
}

// SaveSnapshot sends the snapshot of the test.
func (s *Snapshots) SaveSnapshot(req *meridianv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[meridianv1.SaveSnapshotResponse]) error {
	s.Stale = req.GetStale()
	file := s.File
	if s.Cut > 0 {
		file = file[:s.Cut]
	}
	for len(file) > 0 {
		n := min(50, len(file))
		if err := stream.Send(&meridianv1.SaveSnapshotResponse{Data: file[:n]}); err != nil {
			return err
		}
		file = file[n:]
	}
	return s.Failed
}

// RestoreSnapshot receives a snapshot.
func (s *Snapshots) RestoreSnapshot(stream grpc.ClientStreamingServer[meridianv1.RestoreSnapshotRequest, meridianv1.RestoreSnapshotResponse]) error {
	s.Restored = nil
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		s.Restored = append(s.Restored, m.GetData()...)
	}
	if s.Refusal != nil {
		return s.Refusal
	}
	return stream.SendAndClose(&meridianv1.RestoreSnapshotResponse{Revision: 20, Effective: 1841, Resources: 2, Incarnation: 3, ClusterId: "c1"})
}
