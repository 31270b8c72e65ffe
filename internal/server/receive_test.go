package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
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

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
)

// oneBuffer is a codec that sends the bytes it is given, without a copy: a crowd
// of clients shares them.
type oneBuffer struct{}

func (oneBuffer) Name() string { return "proto" }

func (oneBuffer) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (oneBuffer) Unmarshal(mem.BufferSlice, any) error { return nil }

// resources is an admin service that counts what reaches it.
type resources struct {
	meridianv1.UnimplementedAdminServiceServer
	applied, listed atomic.Int32
}

func (r *resources) Apply(_ context.Context, req *meridianv1.ApplyRequest) (*meridianv1.ApplyResponse, error) {
	r.applied.Add(1)
	return &meridianv1.ApplyResponse{Revision: uint64(len(req.GetResources()))}, nil
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

func received(req any) error {
	if req == nil {
		return nil
	}
	return errors.New("the request has been received already")
}

// receiving is a server whose callers are what their "is" header says.
type receiving struct {
	t         *testing.T
	resources *resources
	write     atomic.Bool
	read      atomic.Int64
	addr      string
	pool      *x509.CertPool
}

func newReceiving(t *testing.T) *receiving {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	r := &receiving{t: t, resources: &resources{}, pool: x509.NewCertPool()}
	pki, err := pki.Open(pki.Config{DataDir: t.TempDir(), Name: "s", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: discard(t)})
	require.NoError(t, err)
	require.True(t, r.pool.AppendCertsFromPEM(pki.CAPEM()))
	who := func(ctx context.Context) (context.Context, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		switch strings.Join(md.Get("is"), "") {
		case "forger":
			return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonBadToken, "not authenticated: forged")
		case "user":
			return authn.WithPrincipal(ctx, authn.UserPrincipal("bob", nil)), nil
		}
		return ctx, nil
	}
	g := NewGRPC(discard(t), pki.ServerTLS(), Calls{
		Enter: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			ctx, err := who(ctx)
			if err != nil || req != nil {
				return nil, errors.Join(err, received(req))
			}
			return handler(ctx, req)
		}},
		Unary: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if req == nil {
				return nil, errors.New("there is no request")
			}
			return handler(ctx, req)
		}},
		Stream: []grpc.StreamServerInterceptor{func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			ctx, err := who(stream.Context())
			if err != nil {
				return err
			}
			return handler(srv, watchStream{stream, ctx})
		}},
		StrangersWrite: r.write.Load,
	})
	meridianv1.RegisterAdminServiceServer(g, r.resources)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- g.Run(ctx, countingListener{l, &r.read}, 0) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-stopped)
	})
	return r
}

func (r *receiving) dial() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: r.pool})))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// send begins a call and sends a message, without an end to the call.
func (r *receiving) send(who, method string, message []byte) grpc.ClientStream {
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

const applyMethod, listMethod = meridianv1.AdminService_Apply_FullMethodName, meridianv1.AdminService_List_FullMethodName

// Who is refused, or could write nothing, is refused before the request is read.
func TestStrangersAreNotListenedTo(t *testing.T) {
	r := newReceiving(t)
	large := make([]byte, MaxMessageBytes-1)
	for _, tc := range []struct {
		who, method string
		code        codes.Code
		want        string
	}{
		{"forger", applyMethod, codes.Unauthenticated, "not authenticated: forged"},
		{"", applyMethod, codes.ResourceExhausted, "the request has 25165823 bytes, and without credentials, by which nothing can be written here, at most 65536 are taken"},
		{"", listMethod, codes.ResourceExhausted, "at most 65536 are taken"},
		{"user", healthv1.Health_Check_FullMethodName, codes.ResourceExhausted, "at most 65536 are taken"},
		{"user", healthv1.Health_Watch_FullMethodName, codes.ResourceExhausted, "at most 65536 are taken"},
		{"user", reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName, codes.ResourceExhausted, "at most 65536 are taken"},
	} {
		before := r.read.Load()
		err := answer(r.send(tc.who, tc.method, large), false)
		require.Equal(t, tc.code, status.Code(err), "%s: %v", tc.method, err)
		require.ErrorContains(t, err, tc.want, tc.method)
		require.Less(t, r.read.Load()-before, int64(4*window), "%s: little of it is read", tc.method)
	}
	require.Zero(t, r.resources.applied.Load()+r.resources.listed.Load())

	r.write.Store(true)
	require.NoError(t, answer(r.send("", applyMethod, []byte{}), true))
	require.NoError(t, answer(r.send("", listMethod, []byte{}), true))
	require.Equal(t, int32(2), r.resources.applied.Load()+r.resources.listed.Load())
}

// However many strangers hold up large requests, the room that they have is
// bounded; they lose it to each other, the oldest first, and never to others.
func TestLargeRequestsGiveWay(t *testing.T) {
	r := newReceiving(t)
	r.write.Store(true)
	large := make([]byte, 20<<20)
	const crowd = 6 // of which three find room
	var streams []grpc.ClientStream
	for range crowd {
		streams = append(streams, r.send("", applyMethod, large))
		require.NoError(t, answer(r.send("", applyMethod, []byte{}), true), "a small request finds room")
		require.NoError(t, answer(r.send("user", applyMethod, []byte{}), true))
	}
	for _, stream := range streams[:crowd-3] {
		err := answer(stream, false)
		require.Equal(t, codes.Unavailable, status.Code(err), err)
		require.True(t, rpcerr.HasReason(rpcerr.FromStatus(err), ReasonBusy))
		require.ErrorContains(t, err, "the request took long to arrive, and the server needed the room for others: try again in a moment, or with a token")
	}
	for _, stream := range streams[crowd-3:] {
		err := answer(stream, true)
		require.NotEqual(t, codes.Unavailable, status.Code(err), "it had room, and is no request: %v", err)
	}
}

// A request that is none is called what it is.
func TestRequestsThatAreNone(t *testing.T) {
	r := newReceiving(t)
	for _, method := range []string{applyMethod, listMethod} {
		err := answer(r.send("user", method, nil), true)
		require.ErrorContains(t, err, "the call has no request")
		require.Equal(t, codes.InvalidArgument, status.Code(err))

		twice := r.send("user", method, []byte{})
		_ = twice.SendMsg([]byte{})
		require.ErrorContains(t, answer(twice, true), "the call has more than one request")

		err = answer(r.send("user", method, []byte("no message")), true)
		require.ErrorContains(t, err, "the request is not what the method takes")
		require.Equal(t, codes.InvalidArgument, status.Code(err))

		err = answer(r.send("user", method, make([]byte, MaxMessageBytes+1)), true)
		require.ErrorContains(t, err, "the request has 25165825 bytes, and at most 25165824 are taken")
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
	}
	require.Zero(t, r.resources.applied.Load()+r.resources.listed.Load())
}

// A message is read whole, whatever its length.
func TestMessagesOfEveryLength(t *testing.T) {
	r := newReceiving(t)
	client := meridianv1.NewAdminServiceClient(r.dial())
	for _, n := range []int{0, 1, window - 1, window, firstRead, firstRead + 1, 3*firstRead + 7, MaxMessageBytes - 1024} {
		req := &meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{{Spec: make([]byte, n)}}}
		resp, err := client.Apply(metadata.AppendToOutgoingContext(t.Context(), "is", "user"), req)
		require.NoError(t, err, "%d bytes", n)
		require.Equal(t, uint64(1), resp.GetRevision())
	}
}

// pieces is what comes over a wire, and how it ends.
type pieces struct {
	data []byte
	end  error
}

func (p *pieces) ReadMessageHeader(into []byte) error {
	n := copy(into, p.data)
	p.data = p.data[n:]
	switch {
	case n == len(into):
		return nil
	case n > 0 && errors.Is(p.end, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return p.end
}

func (*pieces) WriteStatus(*status.Status) error { return nil }

func TestWhatIsCutOffOrCompressed(t *testing.T) {
	r := newReceiver(nil, func() bool { return false })
	frame := func(flag byte, length int, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(length)), body...) //nolint:gosec // small
	}
	for _, tc := range []struct {
		data []byte
		want string
	}{
		{frame(0, 10, "")[:3], "the request ends before it is whole"},
		{frame(0, 10, ""), "the request ends before it is whole"},
		{frame(0, 10, "some"), "the request ends before it is whole"},
		{frame(1, 4, "some"), "the request is compressed, which is not understood here"},
	} {
		c := &call{wire: &pieces{tc.data, io.EOF}, limit: MaxMessageBytes}
		var err error
		c.request, err = r.known.Begin(0, nil)
		require.NoError(t, err)
		require.EqualError(t, c.receiveOne(&meridianv1.ApplyRequest{}), tc.want)
		c.request.Done()
	}
}
