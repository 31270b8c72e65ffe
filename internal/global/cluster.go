package global

import (
	"context"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/version"
)

// clusterService operates the servers of this global. Reading is open to every
// user; the rest takes membership of mesh-system:admin.
type clusterService struct {
	meridianv1.UnimplementedClusterServiceServer
	global *global
}

// Members lists the servers as this one knows them. It needs no leader.
func (s *clusterService) Members(context.Context, *meridianv1.MembersRequest) (*meridianv1.MembersResponse, error) {
	g := s.global
	status := g.node.Status()
	return &meridianv1.MembersResponse{
		Members: []*meridianv1.ClusterMember{{
			Name: g.cfg.Name, Grpc: g.advertisedGRPC, Raft: g.addresses.Raft,
			State: status.State, Voter: true, AppliedRevision: uint64(status.Applied), Version: version.String(),
		}},
		Leader: status.Leader, Self: g.cfg.Name, ClusterId: g.clusterID(),
	}, nil
}
