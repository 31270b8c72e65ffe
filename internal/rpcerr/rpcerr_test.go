package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"pgregory.net/rapid"
)

var everyCode = []Code{
	Internal, NotFound, Invalid, Conflict, OutOfRange, Unauthenticated, Denied,
	Unavailable, Timeout, Canceled, TooLarge, Unsupported,
}

// drawError draws an error that the wire can carry whole.
func drawError(t *rapid.T) *Error {
	e := &Error{
		Code:    rapid.SampledFrom(everyCode).Draw(t, "code"),
		Message: rapid.String().Draw(t, "message"),
		Reason:  rapid.StringMatching(`([A-Z][A-Z_]{0,20})?`).Filter(func(s string) bool { return s != unnamedReason }).Draw(t, "reason"),
	}
	e.RetryAfter = time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "retry"))
	if m := rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(t, "metadata"); len(m) > 0 {
		e.Metadata = m
	}
	if e.Code == Invalid || e.Code == Conflict {
		for range rapid.IntRange(0, 3).Draw(t, "violations") {
			e.Violations = append(e.Violations, Violation{
				Field: rapid.String().Draw(t, "field"), Description: rapid.String().Draw(t, "description"), Reason: rapid.String().Draw(t, "why"),
			})
		}
	}
	return e
}

func TestErrorsSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawError(t)
		got := &Error{}
		require.ErrorAs(t, FromStatus(ToStatus(want).Err()), &got)
		got.cause = nil
		require.Equal(t, want, got)
	})
}

func TestEveryCodeHasAStatusOfItsOwn(t *testing.T) {
	seen := map[codes.Code]Code{}
	for _, code := range everyCode {
		st := ToStatus(New(code, "WHY", "message")).Code()
		require.NotContains(t, seen, st, "%s and %s share %s", code, seen[st], st)
		require.Equal(t, code, CodeOf(FromStatus(status.Error(st, "message"))))
		require.NotContains(t, code.String(), "code ")
		seen[st] = code
	}
}

func TestToStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		err     error
		code    codes.Code
		message string
	}{
		"nil":                         {nil, codes.OK, ""},
		"unclassified":                {errors.New("disk on fire"), codes.Internal, "disk on fire"},
		"not UTF-8":                   {errors.New("name \xff"), codes.Internal, "name \uFFFD"},
		"wrapped keeps what was said": {fmt.Errorf("document 2: %w", New(Invalid, "", "no name")), codes.InvalidArgument, "document 2: no name"},
		"status":                      {status.Error(codes.NotFound, "gone"), codes.NotFound, "gone"},
		"deadline":                    {fmt.Errorf("waiting: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "waiting: context deadline exceeded"},
		"canceled":                    {context.Canceled, codes.Canceled, "context canceled"},
		"impossible code":             {&Error{Code: 99, Message: "odd"}, codes.Internal, "odd"},
	} {
		t.Run(name, func(t *testing.T) {
			st := ToStatus(tc.err)
			require.Equal(t, tc.code, st.Code())
			require.Equal(t, tc.message, st.Message())
		})
	}
}

func TestFromStatusLeavesOtherErrorsAlone(t *testing.T) {
	require.NoError(t, FromStatus(nil))
	require.Equal(t, io.EOF, FromStatus(io.EOF))
	own := New(Denied, "NO", "no")
	require.Same(t, own, FromStatus(own))
}

func TestWithReturnsACopy(t *testing.T) {
	first := New(Invalid, "BAD", "bad").WithMetadata("a", "1").WithViolations(Violation{Field: "x"})
	second := first.WithMetadata("b", "2").WithViolations(Violation{Field: "y"})
	require.Equal(t, map[string]string{"a": "1"}, first.Metadata)
	require.Len(t, first.Violations, 1)
	require.Len(t, second.Violations, 2)
	require.True(t, HasReason(fmt.Errorf("apply: %w", second), "BAD"))
}

func TestNewKeepsTheCause(t *testing.T) {
	require.ErrorIs(t, New(Internal, "", "reading: %w", io.ErrUnexpectedEOF), io.ErrUnexpectedEOF)
}

// failing answers every health check with an error.
type failing struct {
	grpc_health_v1.UnimplementedHealthServer
	err error
}

func (f failing) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return nil, f.err
}

func (f failing) Watch(_ *grpc_health_v1.HealthCheckRequest, _ grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	return f.err
}

func TestInterceptorsCarryErrorsBothWays(t *testing.T) {
	sent := New(Conflict, "VERSION", "web is at version 3, expected 2").
		WithMetadata("have", "3").
		WithViolations(Violation{Field: "TrafficPermission/default/web", Description: "version 3", Reason: "VERSION"})
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnaryInterceptor(UnaryServer), grpc.StreamInterceptor(StreamServer))
	grpc_health_v1.RegisterHealthServer(server, failing{err: fmt.Errorf("apply: %w", sent)})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); require.NoError(t, <-done) })

	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(UnaryClient), grpc.WithStreamInterceptor(StreamClient))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	client := grpc_health_v1.NewHealthClient(conn)

	check := func(err error) {
		t.Helper()
		var got *Error
		require.ErrorAs(t, err, &got)
		require.Equal(t, "apply: "+sent.Message, got.Message)
		require.Equal(t, sent.Reason, got.Reason)
		require.Equal(t, sent.Metadata, got.Metadata)
		require.Equal(t, sent.Violations, got.Violations)
	}
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	check(err)
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	check(err)
}
