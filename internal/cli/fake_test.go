package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// epoch is when the fake server wrote everything; commands run ten minutes
// later.
var epoch = time.Date(2026, 1, 31, 20, 0, 0, 0, time.UTC)

// fakeServer is a control plane in memory: enough of the protocol's promises
// for the command to be tested, and ways to break them.
type fakeServer struct {
	meridianv1.UnimplementedAdminServiceServer
	meridianv1.UnimplementedInspectServiceServer
	meridianv1.UnimplementedControlServiceServer
	meridianv1.UnimplementedClusterServiceServer

	mu       sync.Mutex // guards all below
	role     string
	stored   map[resource.Key]*meridianv1.Resource
	revision uint64
	applied  map[string]*meridianv1.ApplyResponse // by request id
	feed     []*meridianv1.WatchResponse
	zones    []*meridianv1.ZoneStatus
	notes    []string
	answer   func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error)
	// before is called with every method's short name and may fail the call;
	// after may hide that a call succeeded.
	before, after func(method string) error
	warnings      []string
	calls         []string
	tokens        []string
	applies       []*meridianv1.ApplyRequest
	inspected     []*meridianv1.InspectRequest
	access        meridianv1.AccessServiceServer
	snapshots     *snapshotService
	members       *meridianv1.MembersResponse
}

func newFakeServer() *fakeServer {
	return &fakeServer{
		role: "global", revision: 1840,
		stored:  map[resource.Key]*meridianv1.Resource{},
		applied: map[string]*meridianv1.ApplyResponse{},
	}
}

func (s *fakeServer) enter(ctx context.Context, full string) error {
	method := full[strings.LastIndex(full, "/")+1:]
	s.mu.Lock()
	s.calls = append(s.calls, method)
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		s.tokens = append(s.tokens, strings.Join(md.Get("authorization"), ","))
	}
	before := s.before
	s.mu.Unlock()
	if before != nil {
		return before(method)
	}
	return nil
}

func (s *fakeServer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.enter(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err == nil && s.after != nil {
		err = s.after(info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:])
	}
	return resp, err
}

func (s *fakeServer) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := s.enter(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

func (s *fakeServer) Apply(_ context.Context, req *meridianv1.ApplyRequest) (*meridianv1.ApplyResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applies = append(s.applies, req)
	if first, ok := s.applied[req.GetRequestId()]; ok {
		return first, nil
	}
	resp := &meridianv1.ApplyResponse{Revision: s.revision, Warnings: s.warnings}
	batch := &meridianv1.WatchResponse{Revision: s.revision + 1, Time: timestamppb.New(epoch)}
	for _, m := range req.GetResources() {
		key := resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}
		if _, _, err := resource.Build(resource.Meta{Key: key}, m.GetSpec()); err != nil {
			return nil, rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCES", "nothing was applied: %v", err)
		}
		old := s.stored[key]
		if req.IfVersion != nil && old.GetVersion() != req.GetIfVersion() {
			return nil, rpcerr.New(rpcerr.Conflict, "VERSION_CONFLICT", "%s has version %d, not %d", key, old.GetVersion(), req.GetIfVersion())
		}
		result := &meridianv1.Result{Kind: m.GetKind(), Mesh: m.GetMesh(), Name: m.GetName(), Version: old.GetVersion()}
		resp.Results = append(resp.Results, result)
		switch {
		case old == nil:
			result.Outcome = meridianv1.Outcome_OUTCOME_CREATED
		case bytes.Equal(old.GetSpec(), m.GetSpec()):
			result.Outcome = meridianv1.Outcome_OUTCOME_UNCHANGED
			continue
		default:
			result.Outcome = meridianv1.Outcome_OUTCOME_UPDATED
		}
		result.Version++
		m.Version, m.Revision = result.Version, batch.GetRevision()
		m.CreationTime, m.ModificationTime = timestamppb.New(epoch), timestamppb.New(epoch)
		batch.Changes = append(batch.Changes, &meridianv1.Change{Outcome: result.GetOutcome(), Resource: m})
	}
	if req.GetDryRun() || len(batch.GetChanges()) == 0 {
		return resp, nil
	}
	for _, c := range batch.GetChanges() {
		m := c.GetResource()
		s.stored[resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}] = m
	}
	s.revision++
	s.feed = append(s.feed, batch)
	resp.Revision = s.revision
	s.applied[req.GetRequestId()] = resp
	return resp, nil
}

func (s *fakeServer) Delete(_ context.Context, req *meridianv1.DeleteRequest) (*meridianv1.DeleteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &meridianv1.DeleteResponse{}
	for _, k := range req.GetKeys() {
		key := resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
		if s.stored[key] == nil {
			return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s does not exist", key)
		}
		resp.Results = append(resp.Results, &meridianv1.Result{
			Kind: k.GetKind(), Mesh: k.GetMesh(), Name: k.GetName(), Outcome: meridianv1.Outcome_OUTCOME_DELETED,
		})
	}
	if !req.GetDryRun() {
		for _, k := range req.GetKeys() {
			delete(s.stored, resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()})
		}
		s.revision++
	}
	resp.Revision = s.revision
	return resp, nil
}

func (s *fakeServer) Get(_ context.Context, req *meridianv1.GetRequest) (*meridianv1.GetResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := req.GetKey()
	key := resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
	m, ok := s.stored[key]
	if !ok {
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s does not exist", key)
	}
	return &meridianv1.GetResponse{Resource: m, Revision: s.revision}, nil
}

func (s *fakeServer) List(req *meridianv1.ListRequest, stream grpc.ServerStreamingServer[meridianv1.ListResponse]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []resource.Key
	for key := range s.stored {
		wanted := len(req.GetKinds()) == 0 || slices.Contains(req.GetKinds(), string(key.Kind))
		if wanted && (req.GetMesh() == "" || string(key.Mesh) == req.GetMesh()) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, resource.Key.Compare)
	for _, key := range keys { // one part each: the command puts them together
		part := &meridianv1.ListResponse{Resources: []*meridianv1.Resource{s.stored[key]}, Revision: s.revision}
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return nil
}

// Watch sends what is in the feed and ends, as a server that restarts would.
func (s *fakeServer) Watch(req *meridianv1.WatchRequest, stream grpc.ServerStreamingServer[meridianv1.WatchResponse]) error {
	s.mu.Lock()
	feed := slices.Clone(s.feed)
	s.mu.Unlock()
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

func (s *fakeServer) Inspect(_ context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inspected = append(s.inspected, req)
	return s.answer(req)
}

func (s *fakeServer) Info(context.Context, *meridianv1.InfoRequest) (*meridianv1.InfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &meridianv1.InfoResponse{Role: s.role, Version: "v0", Name: "fake", Revision: s.revision}, nil
}

func (s *fakeServer) Zones(context.Context, *meridianv1.ZonesRequest) (*meridianv1.ZonesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &meridianv1.ZonesResponse{Zones: s.zones, Revision: s.revision, Notes: s.notes}, nil
}

func (s *fakeServer) SaveSnapshot(req *meridianv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[meridianv1.SaveSnapshotResponse]) error {
	return s.snapshots.SaveSnapshot(req, stream)
}

func (s *fakeServer) RestoreSnapshot(stream grpc.ClientStreamingServer[meridianv1.RestoreSnapshotRequest, meridianv1.RestoreSnapshotResponse]) error {
	return s.snapshots.RestoreSnapshot(stream)
}

func (s *fakeServer) GenerateServerToken(_ context.Context, req *meridianv1.GenerateServerTokenRequest) (*meridianv1.GenerateServerTokenResponse, error) {
	resp := &meridianv1.GenerateServerTokenResponse{Token: fmt.Sprintf("server-token-for-%d", req.GetValidForSeconds())}
	if req.GetBundle() {
		resp.Bundle = []byte("kind: server bundle\n\n")
	}
	return resp, nil
}

func (s *fakeServer) GenerateZoneToken(_ context.Context, req *meridianv1.GenerateZoneTokenRequest) (*meridianv1.GenerateZoneTokenResponse, error) {
	resp := &meridianv1.GenerateZoneTokenResponse{Token: fmt.Sprintf("token-of-%s-for-%d", req.GetZone(), req.GetValidForSeconds())}
	if req.GetBundle() {
		resp.Bundle = []byte("kind: bundle\n")
	}
	return resp, nil
}

// accessService passes questions to whatever the test has put in place.
type accessService struct {
	meridianv1.UnimplementedAccessServiceServer
	server *fakeServer
}

func (s accessService) WhoAmI(ctx context.Context, req *meridianv1.WhoAmIRequest) (*meridianv1.WhoAmIResponse, error) {
	return s.server.access.WhoAmI(ctx, req)
}

func (s accessService) CanI(ctx context.Context, req *meridianv1.CanIRequest) (*meridianv1.CanIResponse, error) {
	return s.server.access.CanI(ctx, req)
}

func (s accessService) WhoCan(ctx context.Context, req *meridianv1.WhoCanRequest) (*meridianv1.WhoCanResponse, error) {
	return s.server.access.WhoCan(ctx, req)
}

// harness runs commands against a fake server.
type harness struct {
	t      *testing.T
	server *fakeServer
	tokens *fakeTokens
	// address is the server's, caFile and config are files for it.
	address, caFile, config string
	home                    string
	env                     []string
	tls                     *tls.Config
	stop                    func()
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{t: t, server: newFakeServer(), tokens: &fakeTokens{}, home: t.TempDir()}
	now := time.Now()
	ca, err := authn.NewCA(now)
	require.NoError(t, err)
	cert, key, err := ca.IssueServer("fake", []string{"127.0.0.1"}, now)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	h.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	h.address, h.stop = h.serve(h.server)

	h.caFile = h.write("ca.pem", string(ca.CertificatePEM()))
	h.config = filepath.Join(h.home, "admin.yaml")
	contexts := &authn.Contexts{}
	require.NoError(t, contexts.Add(authn.ControlPlane{
		Name: "global", Addresses: []string{h.address}, CA: string(ca.CertificatePEM()), Token: "secret",
	}, false))
	require.NoError(t, contexts.Switch("global"))
	require.NoError(t, contexts.Save(h.config))
	h.env = []string{"HOME=" + h.home, "MERIDIAN_CONFIG=" + h.config}
	return h
}

// serve runs a server, and returns its address and what stops it.
func (h *harness) serve(fake *fakeServer) (address string, stop func()) {
	h.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(h.t, err)
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(h.tls)), grpc.UnaryInterceptor(fake.unary), grpc.StreamInterceptor(fake.stream),
	)
	meridianv1.RegisterAdminServiceServer(server, fake)
	meridianv1.RegisterInspectServiceServer(server, fake)
	meridianv1.RegisterControlServiceServer(server, fake)
	meridianv1.RegisterTokenServiceServer(server, h.tokens)
	meridianv1.RegisterAccessServiceServer(server, accessService{server: fake})
	meridianv1.RegisterClusterServiceServer(server, fake)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		<-served
	})
	h.t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// write makes a file in the harness's directory.
func (h *harness) write(name, content string) string {
	h.t.Helper()
	path := filepath.Join(h.home, name)
	require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// outcome is what a command did.
type outcome struct {
	code           int
	stdout, stderr string
}

func (h *harness) run(args ...string) outcome {
	h.t.Helper()
	return h.runWith(h.t.Context(), "", args...)
}

func (h *harness) runWith(ctx context.Context, stdin string, args ...string) outcome {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{
		stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr,
		env: parseEnvironment(h.env), now: func() time.Time { return epoch.Add(10 * time.Minute) },
	}
	code := a.run(ctx, args)
	return outcome{code, stdout.String(), stderr.String()}
}

// ok runs a command that has to succeed and returns its output.
func (h *harness) ok(args ...string) string {
	h.t.Helper()
	out := h.run(args...)
	require.Equal(h.t, exitOK, out.code, "meridian %s\n%s", strings.Join(args, " "), out.stderr)
	return out.stdout
}

// serveDocument makes the server answer every question with a document.
func (h *harness) serveDocument(document []byte) {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	h.server.answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return &meridianv1.InspectResponse{Json: document}, nil
	}
}

const (
	meshYAML = `type: Mesh
name: default
`
	webToBackend = `type: TrafficPermission
mesh: default
name: web-to-backend
sources:
  - match:
      kuma.io/service: web
destinations:
  - match:
      kuma.io/service: backend
`
	catchAllK8s = `apiVersion: kuma.io/v1alpha1
kind: TrafficPermission
mesh: default
metadata:
  name: catch-all
spec:
  sources:
    - match:
        kuma.io/service: '*'
  destinations:
    - match:
        kuma.io/service: '*'
`
)
