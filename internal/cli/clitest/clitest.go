// Package clitest is a control plane in memory for tests of the command: enough
// of the protocol's promises, and ways to break them.
package clitest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/clientconfig"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Epoch is when the fake server wrote everything; commands run ten minutes
// later.
var Epoch = time.Date(2026, 1, 31, 20, 0, 0, 0, time.UTC)

// Server is a control plane in memory: enough of the protocol's promises
// for the command to be tested, and ways to break them.
type Server struct {
	meridianv1.UnimplementedAdminServiceServer
	meridianv1.UnimplementedInspectServiceServer
	meridianv1.UnimplementedControlServiceServer
	meridianv1.UnimplementedClusterServiceServer
	meridianv1.UnimplementedAuditServiceServer

	// Rollouts answers about rollouts.
	Rollouts meridianv1.RolloutServiceServer
	// Audit answers ListAudit.
	Audit func(*meridianv1.ListAuditRequest) *meridianv1.ListAuditResponse

	Mu       sync.Mutex // guards all below
	Role     string
	Stored   map[resource.Key]*meridianv1.Resource
	Revision uint64
	Applied  map[string]*meridianv1.ApplyResponse // by request id
	Feed     []*meridianv1.WatchResponse
	AllZones []*meridianv1.ZoneStatus
	Notes    []string
	Answer   func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error)
	// Before is called with every method's short name and may fail the call;
	// After may hide that a call succeeded.
	Before, After func(method string) error
	// Entered is called with every method's context and short name.
	Entered func(ctx context.Context, method string)
	// Lacks are kinds that it does not know, as a server of an older release.
	Lacks          []string
	Warnings       []string
	Findings       []*meridianv1.Finding
	Calls          []string
	Authorizations []string
	// Plan is what the server says that every change would do, as JSON.
	Plan    []byte
	Applies []*meridianv1.ApplyRequest
	Deletes []*meridianv1.DeleteRequest
	// Rollbacks are those that were made, without those that were planned only.
	Rollbacks []*meridianv1.RollbackRequest
	// Servers, if set, are named in every answer.
	Servers string
	// Pending are the zones that WaitForZones waits for; with PendingStay
	// they never catch up.
	Pending     []*meridianv1.PendingZone
	PendingStay bool
	// PageSize bounds the pages of List, unless zero; Expired is for how many pages
	// after a first the revision is not retained.
	PageSize, Expired int
	// PendingError, if set, ends WaitForZones.
	PendingError error
	// Waiting, if set, is called when WaitForZones has told which it waits for, and
	// which then waits until the client leaves.
	Waiting   func()
	Waits     []*meridianv1.WaitForZonesRequest
	Inspected []*meridianv1.InspectRequest
	Access    meridianv1.AccessServiceServer
	// Past, if set, answers History, Rollback and what is asked about earlier states, and
	// every List.
	Past meridianv1.AdminServiceServer
	// Caller is who Access is asked by; anonymous when it is nil.
	Caller     *authn.Principal
	Snapshots  *Snapshots
	Tokens     *Tokens
	AllMembers *meridianv1.MembersResponse
	// MembersError, if it is set, is what the server answers in their place.
	MembersError error
	// Connections counts those that were opened.
	Connections atomic.Int32
	// GeneratesCA: each member has the key of the certificate authority.
	GeneratesCA bool
}

// New returns a global that holds nothing.
func New() *Server {
	return &Server{
		Tokens: &Tokens{}, Role: "global", Revision: 1840, Plan: []byte("{}"),
		Stored:  map[resource.Key]*meridianv1.Resource{},
		Applied: map[string]*meridianv1.ApplyResponse{},
	}
}

func (s *Server) enter(ctx context.Context, full string) error {
	method := full[strings.LastIndex(full, "/")+1:]
	s.Mu.Lock()
	s.Calls = append(s.Calls, method)
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		s.Authorizations = append(s.Authorizations, strings.Join(md.Get("authorization"), ","))
	}
	before, servers := s.Before, s.Servers
	s.Mu.Unlock()
	if servers != "" {
		if err := grpc.SetHeader(ctx, metadata.Pairs(clientconfig.ServersHeader, servers)); err != nil {
			return err
		}
	}
	if s.Entered != nil {
		s.Entered(ctx, method)
	}
	if before != nil {
		return before(method)
	}
	return nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.enter(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err == nil && s.After != nil {
		err = s.After(info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:])
	}
	return resp, err
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := s.enter(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	err := handler(srv, stream)
	if err == nil && s.After != nil {
		err = s.After(info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:])
	}
	return err
}

// Apply stores a batch, once for each request id.
func (s *Server) Apply(stream grpc.ClientStreamingServer[meridianv1.ApplyRequest, meridianv1.ApplyResponse]) error {
	req, err := batch.ReceiveApply(stream, nil)
	if err != nil {
		return err
	}
	response, err := s.apply(req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

func (s *Server) apply(req *meridianv1.ApplyRequest) (*meridianv1.ApplyResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Applies = append(s.Applies, proto.CloneOf(req))
	if first, ok := s.Applied[req.GetRequestId()]; ok {
		return first, nil
	}
	if err := s.checkVersions(req.GetIfVersions()); err != nil {
		return nil, err
	}
	resp := &meridianv1.ApplyResponse{Revision: s.Revision, Warnings: s.Warnings, Findings: s.Findings}
	batch := &meridianv1.WatchResponse{Revision: s.Revision + 1, Time: timestamppb.New(Epoch)}
	for _, m := range req.GetResources() {
		key := resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}
		if _, _, err := resource.Build(resource.Meta{Key: key}, m.GetSpec()); err != nil {
			return nil, rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCES", "%v", err)
		}
		old := s.Stored[key]
		result := &meridianv1.Result{Kind: m.GetKind(), Mesh: m.GetMesh(), Name: m.GetName(), Version: old.GetVersion()}
		meta := resource.Meta{Key: key, Labels: m.GetLabels()}
		result.Shown = shown(meta)
		resp.Results = append(resp.Results, result)
		switch {
		case old == nil:
			result.Outcome = meridianv1.Outcome_OUTCOME_CREATED
		case bytes.Equal(old.GetSpec(), m.GetSpec()) && maps.Equal(old.GetLabels(), m.GetLabels()):
			result.Outcome = meridianv1.Outcome_OUTCOME_UNCHANGED
			continue
		default:
			result.Outcome = meridianv1.Outcome_OUTCOME_UPDATED
		}
		result.Version++
		m.Version, m.Revision = result.Version, batch.GetRevision()
		m.CreationTime, m.ModificationTime = timestamppb.New(Epoch), timestamppb.New(Epoch)
		batch.Changes = append(batch.Changes, &meridianv1.Change{Outcome: result.GetOutcome(), Resource: m})
	}
	if req.GetPlan() {
		resp.Plan = s.Plan
	}
	if req.GetDryRun() || len(batch.GetChanges()) == 0 {
		return resp, nil
	}
	for _, c := range batch.GetChanges() {
		m := c.GetResource()
		s.Stored[resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}] = m
	}
	s.Revision++
	s.Feed = append(s.Feed, batch)
	resp.Revision = s.Revision
	s.Applied[req.GetRequestId()] = resp
	return resp, nil
}

// WaitForZones says that the zones of Pending are waited for, and then that none
// is, unless they are to stay.
func (s *Server) WaitForZones(req *meridianv1.WaitForZonesRequest, stream grpc.ServerStreamingServer[meridianv1.WaitForZonesResponse]) error {
	s.Mu.Lock()
	s.Waits = append(s.Waits, req)
	pending, stay, waiting, failure := s.Pending, s.PendingStay, s.Waiting, s.PendingError
	s.Mu.Unlock()
	if len(pending) > 0 {
		if err := stream.Send(&meridianv1.WaitForZonesResponse{Pending: pending}); err != nil {
			return err
		}
	}
	if waiting != nil {
		waiting()
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	if failure != nil {
		return failure
	}
	if stay {
		return rpcerr.New(rpcerr.Timeout, "ZONES_PENDING", "not every zone has applied it")
	}
	return stream.Send(&meridianv1.WaitForZonesResponse{Warnings: s.Warnings})
}

// shown is the name in a result, where it is shown otherwise than it is stored.
func shown(meta resource.Meta) string {
	if name := meta.Shown(); name != meta.Name {
		return name
	}
	return ""
}

// Delete deletes all keys or none.
func (s *Server) Delete(stream grpc.ClientStreamingServer[meridianv1.DeleteRequest, meridianv1.DeleteResponse]) error {
	req, err := batch.ReceiveDelete(stream, nil)
	if err != nil {
		return err
	}
	response, err := s.delete(req)
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// checkVersions fails for a condition that does not hold.
func (s *Server) checkVersions(conditions []*meridianv1.VersionCondition) error {
	for _, c := range conditions {
		k := c.GetKey()
		key := resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
		old := s.Stored[key]
		switch {
		case old == nil && c.GetOrMissing():
		case old.GetVersion() != c.GetVersion():
			return rpcerr.New(rpcerr.Conflict, "VERSION_CONFLICT", "%s has version %d, not %d", key, old.GetVersion(), c.GetVersion())
		case c.GetRevision() != 0 && old.GetRevision() != c.GetRevision():
			return rpcerr.New(rpcerr.Conflict, "VERSION_CONFLICT", "%s was written at revision %d, not %d", key, old.GetRevision(), c.GetRevision())
		}
	}
	return nil
}

func (s *Server) delete(req *meridianv1.DeleteRequest) (*meridianv1.DeleteResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Deletes = append(s.Deletes, proto.CloneOf(req))
	if err := s.checkVersions(req.GetIfVersions()); err != nil {
		return nil, err
	}
	resp := &meridianv1.DeleteResponse{}
	if req.GetPlan() {
		resp.Plan = s.Plan
	}
	for _, k := range req.GetKeys() {
		key := resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
		if s.Stored[key] == nil {
			return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s does not exist", key)
		}
		resp.Results = append(resp.Results, &meridianv1.Result{
			Kind: k.GetKind(), Mesh: k.GetMesh(), Name: k.GetName(), Outcome: meridianv1.Outcome_OUTCOME_DELETED,
			Shown: shown(resource.Meta{Key: key, Labels: s.Stored[key].GetLabels()}),
		})
	}
	if !req.GetDryRun() {
		for _, k := range req.GetKeys() {
			delete(s.Stored, resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()})
		}
		s.Revision++
	}
	resp.Revision = s.Revision
	return resp, nil
}

// lacks fails for a kind that the server does not know.
func (s *Server) lacks(kinds ...string) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, kind := range kinds {
		if slices.Contains(s.Lacks, kind) {
			return rpcerr.New(rpcerr.Invalid, "UNKNOWN_KIND", "unknown kind %q", kind)
		}
	}
	return nil
}

// Get returns a stored resource.
func (s *Server) Get(ctx context.Context, req *meridianv1.GetRequest) (*meridianv1.GetResponse, error) {
	if err := s.lacks(req.GetKey().GetKind()); err != nil {
		return nil, err
	}
	if s.Past != nil && req.GetAt() != nil {
		return s.Past.Get(ctx, req)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	k := req.GetKey()
	key := resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
	m, ok := s.Stored[key]
	if !ok {
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s does not exist", key)
	}
	return &meridianv1.GetResponse{Resource: m, Revision: s.Revision}, nil
}

// History sends what Past has.
func (s *Server) History(req *meridianv1.HistoryRequest, stream grpc.ServerStreamingServer[meridianv1.HistoryResponse]) error {
	return s.Past.History(req, stream)
}

// Rollback has Past go back, and answers what it would do as all plans.
func (s *Server) Rollback(ctx context.Context, req *meridianv1.RollbackRequest) (*meridianv1.RollbackResponse, error) {
	if req.GetPlan() {
		to := req.GetTo().GetRevision()
		if to == 0 {
			to = s.Revision
		}
		return &meridianv1.RollbackResponse{Plan: s.Plan, ToRevision: to}, nil
	}
	s.Mu.Lock()
	s.Rollbacks = append(s.Rollbacks, req)
	s.Mu.Unlock()
	return s.Past.Rollback(ctx, req)
}

// List sends the stored resources, one a message, PageSize a page where that is set.
func (s *Server) List(req *meridianv1.ListRequest, stream grpc.ServerStreamingServer[meridianv1.ListResponse]) error {
	if err := s.lacks(req.GetKinds()...); err != nil {
		return err
	}
	if s.Past != nil {
		return s.Past.List(req, stream)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var keys []resource.Key
	for key := range s.Stored {
		wanted := len(req.GetKinds()) == 0 || slices.Contains(req.GetKinds(), string(key.Kind))
		if wanted && (req.GetMesh() == "" || string(key.Mesh) == req.GetMesh()) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, resource.Key.Compare)
	if req.GetPageToken() != "" {
		if s.Expired > 0 {
			s.Expired--
			return rpcerr.New(rpcerr.OutOfRange, "PAGE_EXPIRED", "list from the beginning")
		}
		keys = slices.DeleteFunc(keys, func(k resource.Key) bool { return k.String() <= req.GetPageToken() })
	}
	for i, key := range keys { // one part each: the command puts them together
		part := &meridianv1.ListResponse{Resources: []*meridianv1.Resource{s.Stored[key]}, Revision: s.Revision}
		if i+1 == s.PageSize && i+1 < len(keys) {
			part.NextPageToken = key.String()
			return stream.Send(part)
		}
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}

// Watch sends what is in the feed and ends, as a server that restarts would.
func (s *Server) Watch(req *meridianv1.WatchRequest, stream grpc.ServerStreamingServer[meridianv1.WatchResponse]) error {
	if err := s.lacks(req.GetKinds()...); err != nil {
		return err
	}
	s.Mu.Lock()
	feed := slices.Clone(s.Feed)
	s.Mu.Unlock()
	for _, batch := range feed {
		if batch.GetRevision() <= req.GetFromRevision() {
			continue
		}
		if err := stream.Send(batch); err != nil {
			return err
		}
	}
	return rpcerr.New(rpcerr.Unavailable, "STOPPING", "the server is stopping")
}

// Inspect answers with what the test has put in place.
func (s *Server) Inspect(_ context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Inspected = append(s.Inspected, req)
	if s.Answer == nil {
		return nil, rpcerr.New(rpcerr.Unsupported, "INVALID_QUESTION", "this server answers no questions")
	}
	return s.Answer(req)
}

// Info returns the role and the revision.
func (s *Server) Info(context.Context, *meridianv1.InfoRequest) (*meridianv1.InfoResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return &meridianv1.InfoResponse{Role: s.Role, Version: "v0", Name: "fake", Revision: s.Revision}, nil
}

// Zones answers with what the test has put in place.
func (s *Server) Zones(context.Context, *meridianv1.ZonesRequest) (*meridianv1.ZonesResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return &meridianv1.ZonesResponse{Zones: s.AllZones, Revision: s.Revision, Notes: s.Notes}, nil
}

// SaveSnapshot sends the snapshot of the test.
func (s *Server) SaveSnapshot(req *meridianv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[meridianv1.SaveSnapshotResponse]) error {
	return s.Snapshots.SaveSnapshot(req, stream)
}

// RestoreSnapshot receives a snapshot.
func (s *Server) RestoreSnapshot(stream grpc.ClientStreamingServer[meridianv1.RestoreSnapshotRequest, meridianv1.RestoreSnapshotResponse]) error {
	return s.Snapshots.RestoreSnapshot(stream)
}

// GenerateServerToken issues a token that names its validity.
func (s *Server) GenerateServerToken(_ context.Context, req *meridianv1.GenerateServerTokenRequest) (*meridianv1.GenerateServerTokenResponse, error) {
	resp := &meridianv1.GenerateServerTokenResponse{Token: fmt.Sprintf("server-token-for-%d", req.GetValidForSeconds())}
	if req.GetBundle() {
		resp.Bundle = []byte("kind: server bundle\n\n")
	}
	return resp, nil
}

// GenerateZoneToken issues a token that names its zone and validity.
func (s *Server) GenerateZoneToken(_ context.Context, req *meridianv1.GenerateZoneTokenRequest) (*meridianv1.GenerateZoneTokenResponse, error) {
	resp := &meridianv1.GenerateZoneTokenResponse{Token: fmt.Sprintf("token-of-%s-for-%d", req.GetZone(), req.GetValidForSeconds())}
	if req.GetBundle() {
		resp.Bundle = []byte("kind: bundle\n")
	}
	return resp, nil
}

// accessService passes questions to whatever the test has put in place.
type accessService struct {
	meridianv1.UnimplementedAccessServiceServer
	server *Server
}

func (s accessService) WhoAmI(ctx context.Context, req *meridianv1.WhoAmIRequest) (*meridianv1.WhoAmIResponse, error) {
	return s.server.Access.WhoAmI(s.by(ctx), req)
}

func (s accessService) CanI(stream grpc.ClientStreamingServer[meridianv1.CanIRequest, meridianv1.CanIResponse]) error {
	return s.server.Access.CanI(askedBy{stream, s.by(stream.Context())})
}

func (s accessService) WhoCan(ctx context.Context, req *meridianv1.WhoCanRequest) (*meridianv1.WhoCanResponse, error) {
	return s.server.Access.WhoCan(s.by(ctx), req)
}

// by returns the context of a request by the caller.
func (s accessService) by(ctx context.Context) context.Context {
	if s.server.Caller == nil {
		return ctx
	}
	return authn.WithPrincipal(ctx, *s.server.Caller)
}

// askedBy is a stream with the context of its caller.
type askedBy struct {
	grpc.ClientStreamingServer[meridianv1.CanIRequest, meridianv1.CanIResponse]
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s askedBy) Context() context.Context { return s.ctx }

// connections counts the connections of a server.
type connections struct{ opened *atomic.Int32 }

// HandleConn implements stats.Handler.
func (c connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, begins := s.(*stats.ConnBegin); begins {
		c.opened.Add(1)
	}
}

// TagConn implements stats.Handler.
func (connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (connections) HandleRPC(context.Context, stats.RPCStats) {}

// Serve runs the server on a free port until the test ends, and returns its
// address and what stops it before.
func (s *Server) Serve(t *testing.T, config *tls.Config) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)), grpc.MaxRecvMsgSize(batch.MaxMessage), // as a server has it
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream), grpc.StatsHandler(connections{&s.Connections}),
	)
	meridianv1.RegisterAdminServiceServer(server, s)
	meridianv1.RegisterInspectServiceServer(server, s)
	meridianv1.RegisterControlServiceServer(server, s)
	meridianv1.RegisterTokenServiceServer(server, s.Tokens)
	meridianv1.RegisterAccessServiceServer(server, accessService{server: s})
	meridianv1.RegisterClusterServiceServer(server, s)
	meridianv1.RegisterAuditServiceServer(server, s)
	if s.Rollouts != nil {
		meridianv1.RegisterRolloutServiceServer(server, s.Rollouts)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Stop
	}()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-served
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// ListAudit implements meridianv1.AuditServiceServer.
func (s *Server) ListAudit(_ context.Context, req *meridianv1.ListAuditRequest) (*meridianv1.ListAuditResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Audit(req), nil
}
