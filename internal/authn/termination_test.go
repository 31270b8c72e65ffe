package authn

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"meridian/internal/authn/token"
	"meridian/internal/authn/token/tokentest"
	"meridian/internal/rpcerr"
)

// called runs a call of a method whose handler is given, on a server that
// watches over its streams, and returns the client's end.
func called(t *testing.T, handler grpc.StreamHandler) grpc.ClientStream {
	t.Helper()
	key := tokentest.Key(t, token.ForUser, 1)
	verifier := token.NewVerifier(time.Now, key.Public())
	raw, _, err := token.NewIssuer(time.Now, key).User("bob", nil, time.Hour)
	require.NoError(t, err)
	a := &Authenticator{Verifier: func() *token.Verifier { return verifier }}
	server := grpc.NewServer(grpc.ChainStreamInterceptor(rpcerr.StreamServer, a.Stream))
	desc := grpc.StreamDesc{StreamName: "Talk", Handler: handler, ServerStreams: true, ClientStreams: true}
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Test", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc}}, nil)
	listener := bufconn.Listen(64 << 10)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(token.Credentials(raw, true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	})
	stream, err := conn.NewStream(t.Context(), &desc, "/test.Test/Talk")
	require.NoError(t, err)
	return stream
}

// gRPC offers this by none of its own interfaces: a new version may no longer.
func TestStreamEndsWhileItsHandlerWaitsInRecv(t *testing.T) {
	synctest.Test(t, endInRecv)
}

func endInRecv(t *testing.T) {
	reason := rpcerr.New(rpcerr.Conflict, "REPLACED", "another one took the place of this one")
	type outcome struct{ cause, received, sent error }
	outcomes := make(chan outcome, 1)
	stream := called(t, func(_ any, stream grpc.ServerStream) error {
		end, ok := TerminationOf(stream.Context())
		if !ok {
			return errors.New("it has no end")
		}
		time.AfterFunc(time.Second, func() { end(reason) }) // of the test's own clock: Recv waits by then
		err := stream.RecvMsg(&healthv1.HealthCheckRequest{})
		end(errors.New("too late"))
		outcomes <- outcome{context.Cause(stream.Context()), err, stream.SendMsg(&healthv1.HealthCheckResponse{})}
		return err
	})
	err := stream.RecvMsg(&healthv1.HealthCheckResponse{})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), err)
	require.True(t, rpcerr.HasReason(rpcerr.FromStatus(err), "REPLACED"), "with everything a status says")
	o := <-outcomes
	require.Equal(t, error(reason), o.cause, "the first reason is the one")
	require.Error(t, o.received)
	require.Error(t, o.sent)
}

// A send waits for who does not read, and no longer than the stream.
func TestStreamEndsWhileItsHandlerWaitsInSend(t *testing.T) {
	synctest.Test(t, endInSend)
}

func endInSend(t *testing.T) {
	sent := make(chan error, 1)
	stream := called(t, func(_ any, stream grpc.ServerStream) error {
		end, _ := TerminationOf(stream.Context())
		time.AfterFunc(time.Second, func() { end(nil) })
		for {
			if err := stream.SendMsg(&healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{string(make([]byte, 32<<10)): {}}}); err != nil {
				sent <- err
				return err
			}
		}
	})
	require.Error(t, <-sent)
	for {
		var m healthv1.HealthListResponse
		if err := stream.RecvMsg(&m); err != nil {
			require.ErrorContains(t, err, "EOF", "no error is a success")
			break
		}
	}
}

func TestOnlyCallsHaveAnEnd(t *testing.T) {
	_, ok := TerminationOf(t.Context())
	require.False(t, ok)
	ctx, end := terminable(t.Context())
	_, ok = TerminationOf(ctx)
	require.False(t, ok)
	end(errors.New("over"))
	require.EqualError(t, context.Cause(ctx), "over")
}
