package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
)

// oneBuffer is a codec that sends the bytes it is given, without a copy:
// many clients share them.
type oneBuffer struct{}

func (oneBuffer) Name() string { return "proto" }

func (oneBuffer) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (oneBuffer) Unmarshal(mem.BufferSlice, any) error { return nil }

// resources is an admin service that counts what reaches it.
type resources struct {
	meridianv1.UnimplementedAdminServiceServer
	applied, listed, got atomic.Int32
	// waiting are the waits for zones, each until its caller has gone.
	waiting atomic.Int32
}

func (r *resources) WaitForZones(_ *meridianv1.WaitForZonesRequest, stream grpc.ServerStreamingServer[meridianv1.WaitForZonesResponse]) error {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	if err := stream.Send(&meridianv1.WaitForZonesResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

func (r *resources) Apply(stream grpc.ClientStreamingServer[meridianv1.ApplyRequest, meridianv1.ApplyResponse]) error {
	req, err := batch.ReceiveApply(stream, nil)
	if err != nil {
		return err
	}
	r.applied.Add(1)
	if slices.ContainsFunc(req.GetResources(), func(x *meridianv1.Resource) bool { return x.GetKind() == "Panic" }) {
		panic("a defect")
	}
	return stream.SendAndClose(&meridianv1.ApplyResponse{Revision: uint64(len(req.GetResources()))})
}

func (r *resources) Get(context.Context, *meridianv1.GetRequest) (*meridianv1.GetResponse, error) {
	r.got.Add(1)
	return &meridianv1.GetResponse{Revision: 1}, nil
}

func (r *resources) List(*meridianv1.ListRequest, grpc.ServerStreamingServer[meridianv1.ListResponse]) error {
	r.listed.Add(1)
	return nil
}

// countingListener counts what its connections read.
type countingListener struct {
	net.Listener
	read *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countingConn{conn, l.read}, err
}

type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// testServer is a server whose callers are what their "is" header says.
type testServer struct {
	t         *testing.T
	resources *resources
	write     atomic.Bool
	read      atomic.Int64
	addr      string
	pool      *x509.CertPool
	limits    *Limits
	requests  *requests
}

func newTestServer(t *testing.T, change ...func(*LimitOptions)) *testServer {
	t.Helper()
	options := DefaultLimits()
	for _, c := range change {
		c(&options)
	}
	t.Cleanup(func() { goleak.VerifyNone(t) })
	r := &testServer{t: t, resources: &resources{}, pool: x509.NewCertPool(), limits: NewLimits(options)}
	pki, err := pki.Open(pki.Config{DataDir: t.TempDir(), Name: "s", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: discard(t)})
	require.NoError(t, err)
	require.True(t, r.pool.AppendCertsFromPEM(pki.CAPEM()))
	who := func(ctx context.Context) (context.Context, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		switch strings.Join(md.Get("is"), "") {
		case "forger":
			return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonBadToken, "not authenticated: forged")
		case "user":
			Authenticated(ctx)
			return authn.WithPrincipal(ctx, authn.UserPrincipal("bob", nil)), nil
		case "admin":
			Authenticated(ctx)
			return authn.WithPrincipal(ctx, authn.UserPrincipal("admin", []string{authn.AdminGroup})), nil
		}
		return ctx, nil
	}
	g := NewGRPC(discard(t), pki.ServerTLS(), Calls{
		Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if req == nil {
				return nil, errors.New("there is no request")
			}
			return handler(ctx, req)
		},
		Authenticate: func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			ctx, err := who(stream.Context())
			if err != nil {
				return err
			}
			return handler(srv, watchStream{stream, ctx})
		},
		UnauthenticatedCanWrite: r.write.Load,
		Limits:                  r.limits,
	})
	r.requests = g.requests
	meridianv1.RegisterAdminServiceServer(g, r.resources)
	meridianv1.RegisterTokenServiceServer(g, meridianv1.UnimplementedTokenServiceServer{})
	meridianv1.RegisterRolloutServiceServer(g, meridianv1.UnimplementedRolloutServiceServer{})
	meridianv1.RegisterControlServiceServer(g, meridianv1.UnimplementedControlServiceServer{})
	meridianv1.RegisterClusterServiceServer(g, meridianv1.UnimplementedClusterServiceServer{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- g.Run(ctx, r.limits.Bound(Listeners{GRPC: countingListener{l, &r.read}}).GRPC, 0) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-stopped)
	})
	return r
}

func (r *testServer) dial() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: r.pool})))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// send begins a call and sends a message, without an end to the call.
func (r *testServer) send(who, method string, message []byte) grpc.ClientStream {
	r.t.Helper()
	ctx := metadata.AppendToOutgoingContext(r.t.Context(), "is", who)
	stream, err := r.dial().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(oneBuffer{}))
	require.NoError(r.t, err)
	if message != nil {
		_ = stream.SendMsg(message) // how it ends is in the answer
	}
	return stream
}

// answer is how a call ends, which is ended first if closing says so.
func answer(stream grpc.ClientStream, closing bool) error {
	if closing {
		_ = stream.CloseSend()
	}
	for {
		if err := stream.RecvMsg(nil); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

const (
	applyMethod = meridianv1.AdminService_Apply_FullMethodName
	listMethod  = meridianv1.AdminService_List_FullMethodName
	getMethod   = meridianv1.AdminService_Get_FullMethodName
)

// part is a message of a batch, nearly as large as one may be.
func part(t *testing.T) []byte {
	t.Helper()
	out, err := proto.Marshal(&meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{{Kind: "Mesh", Spec: make([]byte, maxRequest-1024)}}})
	require.NoError(t, err)
	return out
}

// A caller that is refused, or can write nothing, is refused before the request is
// received, of unary methods and of others.
func TestCallersAreKnownBeforeTheirRequests(t *testing.T) {
	r := newTestServer(t)
	large := make([]byte, MaxMessageBytes-1)
	for _, tc := range []struct {
		who, method string
		code        codes.Code
		want        string
	}{
		{"forger", applyMethod, codes.Unauthenticated, "not authenticated: forged"},
		{"forger", getMethod, codes.Unauthenticated, "not authenticated: forged"},
		{"forger", listMethod, codes.Unauthenticated, "not authenticated: forged"},
		{"", applyMethod, codes.ResourceExhausted, "received message larger than max (25165823 vs. 65536)"},
		{"", getMethod, codes.ResourceExhausted, "received message larger than max"},
		{"user", listMethod, codes.ResourceExhausted, "received message larger than max"},
		{"user", healthv1.Health_Check_FullMethodName, codes.ResourceExhausted, "received message larger than max"},
		{"user", healthv1.Health_Watch_FullMethodName, codes.ResourceExhausted, "received message larger than max"},
		{"user", reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName, codes.ResourceExhausted, "received message larger than max"},
	} {
		before := r.read.Load()
		err := answer(r.send(tc.who, tc.method, large), false)
		require.Equal(t, tc.code, status.Code(err), "%s: %v", tc.method, err)
		require.ErrorContains(t, err, tc.want, tc.method)
		require.Less(t, r.read.Load()-before, int64(4*maxRequest), "%s: little of it is read", tc.method)
	}
	for _, method := range []string{getMethod, listMethod, applyMethod} {
		// Nothing is sent at all, and the answer is there.
		require.Equal(t, codes.Unauthenticated, status.Code(answer(r.send("forger", method, nil), false)), method)
	}
	err := r.stream("", part(t), 3)
	require.ErrorContains(t, err, "the batch has more than 65536 bytes, the limit for callers without credentials, who can write nothing here")
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Zero(t, r.resources.applied.Load()+r.resources.listed.Load()+r.resources.got.Load())

	r.write.Store(true)
	require.NoError(t, r.stream("", part(t), 3))
	require.NoError(t, answer(r.send("", getMethod, []byte{}), true))
	require.NoError(t, answer(r.send("", listMethod, []byte{}), true))
	require.Equal(t, int32(3), r.resources.applied.Load()+r.resources.listed.Load()+r.resources.got.Load())
}

// open begins a batch and sends n messages of it, or fewer where it is refused.
func (r *testServer) open(who string, message []byte, n int) grpc.ClientStream {
	r.t.Helper()
	stream := r.send(who, applyMethod, message)
	for range n - 1 {
		if stream.SendMsg(message) != nil {
			break
		}
	}
	return stream
}

// stream sends a batch of n messages and returns how it ends.
func (r *testServer) stream(who string, message []byte, n int) error {
	r.t.Helper()
	return answer(r.open(who, message, n), true)
}

// However many batches of unauthenticated callers are arriving, the bytes that the
// server holds of them are bounded; they are aborted for each other, the oldest
// first, and never for callers with credentials.
func TestLargeUnauthenticatedBatchesAreAborted(t *testing.T) {
	r := newTestServer(t)
	r.write.Store(true)
	message := part(t)
	const each = 20 << 20
	n := each / len(message)
	const batches = 3 // of which one is within the share of an address
	var streams []grpc.ClientStream
	for range batches {
		streams = append(streams, r.open("", message, n))
		require.NoError(t, r.stream("", message, 1), "a small batch is accepted")
		require.NoError(t, r.stream("user", message, 1))
	}
	for _, stream := range streams[:batches-1] {
		err := answer(stream, false)
		require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
		require.True(t, rpcerr.HasReason(rpcerr.FromStatus(err), ReasonLimit))
		require.Positive(t, rpcerr.RetryAfter(rpcerr.FromStatus(err)))
		require.ErrorContains(t, err, "the request took long to arrive, and the server needed the memory for others: retry in a moment, or with a token")
	}
	require.NoError(t, answer(streams[batches-1], true), "it was within the limit")
}

// A panic fails the batch that met it, and no other.
func TestAPanicFailsOneBatch(t *testing.T) {
	r := newTestServer(t)
	client := meridianv1.NewAdminServiceClient(r.dial())
	ctx := metadata.AppendToOutgoingContext(t.Context(), "is", "user")
	apply := func(kind string) error {
		_, err := batch.Apply(ctx, client, &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{{Kind: kind}}})
		return err
	}
	err := apply("Panic")
	require.Equal(t, codes.Internal, status.Code(err), err)
	require.ErrorContains(t, err, "the server failed on this request; its log says more")
	require.NoError(t, apply("Mesh"))
}

// A batch larger than any may be is refused as soon as it is.
func TestABatchHasALimit(t *testing.T) {
	r := newTestServer(t)
	message := part(t)
	err := r.stream("user", message, MaxBatchBytes/len(message)+2)
	require.ErrorContains(t, err, "the batch has more than 25165824 bytes, the limit for one: split it")
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Zero(t, r.resources.applied.Load())
}

// A request that is none is refused as such.
func TestRequestsThatAreNone(t *testing.T) {
	r := newTestServer(t)
	for _, method := range []string{getMethod, listMethod} {
		require.Error(t, answer(r.send("user", method, nil), true), "no request")
		twice := r.send("user", method, []byte{})
		_ = twice.SendMsg([]byte{})
		require.Error(t, answer(twice, true), "two requests")
		require.Error(t, answer(r.send("user", method, []byte("no message")), true))
	}
	require.ErrorContains(t, answer(r.send("user", applyMethod, nil), true), "the call has no request")
	require.Zero(t, r.resources.applied.Load()+r.resources.listed.Load()+r.resources.got.Load())
}

// A batch arrives whole, whatever the sizes of what it holds.
func TestBatchesOfEverySize(t *testing.T) {
	r := newTestServer(t)
	client := meridianv1.NewAdminServiceClient(r.dial())
	for _, n := range []int{0, 1, maxRequest - 1, maxRequest, 3*maxRequest + 7, MaxBatchBytes - 1<<20} {
		req := &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{{Spec: make([]byte, n)}, {Kind: "Mesh"}}}
		resp, err := batch.Apply(metadata.AppendToOutgoingContext(t.Context(), "is", "user"), client, req)
		require.NoError(t, err, "%d bytes", n)
		require.Equal(t, uint64(2), resp.GetRevision())
	}
}
