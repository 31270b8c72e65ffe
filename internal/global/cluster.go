package global

import (
	"context"

	meridianv1 "meridian/api/meridian/v1"
)

// clusterService operates the servers of this global. Reading is open to every
// user; the rest takes membership of mesh-system:admin.
type clusterService struct {
	meridianv1.UnimplementedClusterServiceServer
	global *global
}

// Members lists the servers as this one knows them. It needs no leader.
func (s *clusterService) Members(ctx context.Context, _ *meridianv1.MembersRequest) (*meridianv1.MembersResponse, error) {
	g := s.global
	leader, _ := g.node.Leader()
	response := &meridianv1.MembersResponse{Leader: leader, Self: g.cfg.Name, ClusterId: g.node.ClusterID()}
	for _, m := range g.node.Members(ctx) {
		response.Members = append(response.Members, &meridianv1.ClusterMember{
			Name: m.Name, Grpc: m.GRPC, Raft: m.Raft, State: m.State, Voter: m.Voter,
			AppliedRevision: uint64(m.Applied), Version: m.Version, Problem: m.Problem,
		})
	}
	return response, nil
}
