package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/authn"
	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Why a request about the cluster is refused, beside the reasons of package
// consensus.
const (
	reasonNoVote      = "NO_VOTE"
	reasonOnlyServer  = "ONLY_SERVER"
	reasonServerName  = "SERVER_NAME_MISSING"
	reasonNotHandedOn = "NOT_HANDED_OVER"
	// reasonUnreachable: a server that was named does not answer.
	reasonUnreachable = "SERVER_UNREACHABLE"
)

// clusterService operates the servers. Reading is allowed to every
// user; the rest takes membership of mesh-system:admin.
type clusterService struct {
	meridianv1.UnimplementedClusterServiceServer
	server *Server
}

// Members lists the servers as this one knows them. It needs no leader.
func (s *clusterService) Members(ctx context.Context, _ *meridianv1.MembersRequest) (*meridianv1.MembersResponse, error) {
	c := s.server
	leader, _ := c.Node.Leader()
	response := &meridianv1.MembersResponse{Leader: leader, Self: c.cfg.Name, ClusterId: c.Node.ClusterID(), AuthorityKnownTo: c.knowAuthority()}
	for _, m := range c.Node.Members(ctx) {
		response.Members = append(response.Members, &meridianv1.ClusterMember{
			Name: m.Name, Grpc: m.GRPC, Raft: m.Raft, State: m.State, Voter: m.Voter,
			AppliedRevision: uint64(m.Applied), Version: m.Version, Problem: m.Problem, Encryption: m.Encryption,
		})
	}
	return response, nil
}

// TransferLeadership makes another server the leader.
func (s *clusterService) TransferLeadership(ctx context.Context, req *meridianv1.TransferLeadershipRequest) (*meridianv1.TransferLeadershipResponse, error) {
	c := s.server
	if err := c.authorizeOperation(ctx); err != nil {
		return nil, err
	}
	if err := checkTransferTarget(c.cfg.Kind, c.Node.Servers(), req.GetTo()); err != nil {
		return nil, err
	}
	before, _ := c.Node.Leader()
	leader, err := c.Node.TransferLeadership(ctx, req.GetTo())
	if now, _ := c.Node.Leader(); err != nil && now != "" && now == req.GetTo() {
		leader, err = now, nil // the answer was lost
	}
	if err != nil {
		if refusal := unreachable(c.Node.Members(ctx), req.GetTo()); refusal != nil {
			return nil, refusal
		}
		return nil, transferError(before, err)
	}
	c.Audit.RecordOperation(ctx, operation("transfer-leadership", leader), nil)
	return &meridianv1.TransferLeadershipResponse{Leader: leader}, nil
}

// authorizeOperation allows what is recorded and for members of mesh-system:admin.
func (c *Server) authorizeOperation(ctx context.Context) error {
	if err := c.Authorizer.RequireAdmin(ctx); err != nil {
		return err
	}
	return c.Audit.Storable()
}

// transferError says what became of a transfer that did not succeed.
func transferError(before string, err error) error {
	var said *rpcerr.Error
	if errors.As(rpcerr.FromStatus(err), &said) && said.Code != rpcerr.Unavailable && said.Code != rpcerr.Internal {
		return said
	}
	if before == "" {
		return rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "no server leads now, so none can hand over: %w", err)
	}
	return rpcerr.New(rpcerr.Unavailable, reasonNotHandedOn, "%s did not transfer leadership, and is still the leader unless it failed; see `meridian cluster members` (%w)", before, err)
}

// checkTransferTarget refuses a server that cannot be made the leader.
func checkTransferTarget(kind Kind, servers []consensus.Server, to string) error {
	others := slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.Voter && s.Name != to })
	at := slices.IndexFunc(servers, func(s consensus.Server) bool { return s.Name == to })
	switch {
	case to != "" && at < 0:
		return unknownServer(kind, servers, to)
	case to != "" && !servers[at].Voter:
		return rpcerr.New(rpcerr.Conflict, reasonNoVote, "%s has no vote yet and cannot lead: it is given one when it has caught up; see `meridian cluster members`", to)
	case to == "" && (!others || len(servers) < 2):
		return rpcerr.New(rpcerr.Conflict, reasonOnlyServer, "there is no other server that could lead")
	}
	return nil
}

// unreachable refuses a server that was to lead and does not answer: to try again
// would not help. It returns nil where that was not the cause.
func unreachable(members []consensus.Member, to string) error {
	at := slices.IndexFunc(members, func(m consensus.Member) bool { return m.Name == to })
	if to == "" || at < 0 || members[at].State != consensus.StateUnreachable {
		return nil
	}
	return rpcerr.New(rpcerr.Conflict, reasonUnreachable, "%s cannot lead, %s; start it, or hand over to another server", to, members[at].Problem)
}

func unknownServer(kind Kind, servers []consensus.Server, name string) error {
	names := make([]string, len(servers))
	for i, s := range servers {
		names[i] = s.Name
	}
	slices.Sort(names)
	hint := "; there are: " + strings.Join(names, ", ")
	if nearest, ok := resource.Nearest(name, names); ok {
		hint = "; did you mean \"" + nearest + "\"?"
	}
	return rpcerr.New(rpcerr.NotFound, consensus.ReasonUnknownServer, "no server of this %s is called %q%s", kind, name, hint)
}

// RemoveMember takes a server out of the cluster.
func (s *clusterService) RemoveMember(ctx context.Context, req *meridianv1.RemoveMemberRequest) (*meridianv1.RemoveMemberResponse, error) {
	c := s.server
	if err := c.authorizeOperation(ctx); err != nil {
		return nil, err
	}
	name := req.GetName()
	if name == "" {
		return nil, rpcerr.New(rpcerr.Invalid, reasonServerName, "the name of the server is required")
	}
	err := c.Node.Remove(ctx, name, req.GetForce())
	switch {
	case err == nil:
		c.gossip.Load().Forget(name)
		c.Audit.RecordOperation(ctx, operation("remove", name), nil)
		return &meridianv1.RemoveMemberResponse{KnowsAuthority: c.peers.Base() != nil}, nil
	case rpcerr.HasReason(err, consensus.ReasonUnknownServer):
		return nil, unknownServer(c.cfg.Kind, c.Node.Servers(), name)
	case errors.Is(err, consensus.ErrUnknownOutcome):
		record := operation("remove", name)
		record.Decision = audit.Unknown
		c.Audit.RecordOperation(ctx, record, err)
		return nil, rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, reasonUnknown, "%s may or may not have been removed: see `meridian cluster members`, or repeat it (%w)", name, err), rpcerr.EffectUnknown)
	case errors.Is(err, consensus.ErrUnavailable), errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrClosed):
		return nil, rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "%w", err), rpcerr.EffectNone)
	}
	return nil, err
}

// operation is the record of something done to a server.
func operation(action, name string) audit.Record {
	return audit.Record{
		Rule: "member of " + authn.AdminGroup, Targets: []audit.Target{{Action: action, Kind: "server", Name: name}},
	}
}
