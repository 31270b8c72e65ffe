package authn

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"meridian/internal/authn/token"
	"meridian/internal/authn/token/tokentest"
	"meridian/internal/grpctest"
	"meridian/internal/rpcerr"
)

// watch is a handler that lives until its context ends, as Watch does.
func watch(_ any, stream grpc.ServerStream) error {
	if err := stream.SendMsg(nil); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

var watchInfo = &grpc.StreamServerInfo{FullMethod: "/meridian.v1.AdminService/Watch"}

// §6.8: live streams end with their token.
func TestStreamsEndWhenTheirTokenIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := tokentest.Key(t, token.ForUser, 1)
		var revoked atomic.Value
		revoked.Store("")
		verifier := token.NewVerifier(time.Now, key.Public()).Revoking(func(_ token.Use, id string) bool { return id == revoked.Load() })
		heard := make(chan error, 4)
		a := &Authenticator{
			Verifier: func() *token.Verifier { return verifier },
			Refused:  func(_ context.Context, _ Principal, _ string, err error) { heard <- err },
		}
		issuer := token.NewIssuer(time.Now, key)
		first, issued, err := issuer.User("bob", nil, time.Hour)
		require.NoError(t, err)
		second, _, err := issuer.User("eve", nil, 2*time.Hour)
		require.NoError(t, err)
		ended := map[string]chan error{first: make(chan error, 1), second: make(chan error, 1)}
		for raw, done := range ended {
			go func() {
				done <- a.Stream(nil, &grpctest.Call{Ctx: request(far, "Bearer "+raw)}, watchInfo, watch)
			}()
		}
		synctest.Wait()
		a.Recheck()
		synctest.Wait()
		require.Len(t, a.streams.list(), 2, "nothing has changed")

		revoked.Store(issued.ID)
		a.Recheck()
		synctest.Wait()
		err = rpcerr.FromStatus(<-ended[first])
		require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(err))
		require.ErrorContains(t, err, "no longer authenticated: the token was revoked")
		require.Len(t, heard, 1)
		require.ErrorIs(t, <-heard, token.ErrRevoked)

		<-time.After(2 * time.Hour) // of the test's own clock
		synctest.Wait()
		require.ErrorContains(t, <-ended[second], "no longer authenticated: the token has expired on")
		require.Empty(t, a.streams.list())
	})
}

// A stream that outlives its token in its handler passes nothing on.
func TestNothingPassesAnEndedStream(t *testing.T) {
	d := newServer(t)
	raw := d.user(t, "bob", AdminGroup)
	stream := &grpctest.Call{Ctx: request(far, "Bearer "+raw)}
	err := d.Stream(nil, stream, watchInfo, func(_ any, s grpc.ServerStream) error {
		require.NoError(t, s.SendMsg(nil))
		require.NoError(t, s.RecvMsg(nil))
		d.Verifier = func() *token.Verifier { return token.NewVerifier(at(noon)) } // the keys were withdrawn
		d.Recheck()
		require.ErrorContains(t, s.SendMsg(nil), "signing key is not known here")
		return s.RecvMsg(nil)
	})
	require.Equal(t, rpcerr.Unauthenticated, rpcerr.CodeOf(rpcerr.FromStatus(err)))
	require.Equal(t, 1, stream.Messages)
}

// A call that revokes its caller's own token is answered.
func TestACallThatRevokesItsTokenIsAnswered(t *testing.T) {
	for _, revokes := range []bool{true, false} {
		d := newServer(t)
		raw := d.user(t, "bob", AdminGroup)
		d.Revokes = func(method string) bool { return revokes && method == watchInfo.FullMethod }
		stream := &grpctest.Call{Ctx: request(far, "Bearer "+raw)}
		err := d.Stream(nil, stream, watchInfo, func(_ any, s grpc.ServerStream) error {
			d.Verifier = func() *token.Verifier { return token.NewVerifier(at(noon)) } // the keys were withdrawn
			d.Recheck()
			return s.SendMsg(nil)
		})
		require.Equal(t, revokes, err == nil, "%v", err)
	}
}

// Whether a zone is authorized for as long as its stream is open is not asked here.
func TestAZonesStreamIsLeftToWhoServesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := tokentest.Key(t, token.ForZone, 1)
		a := &Authenticator{Verifier: func() *token.Verifier { return token.NewVerifier(time.Now, key.Public()) }}
		raw, _, err := token.NewIssuer(time.Now, key).Zone("east", []string{token.ScopeControlPlane}, time.Hour)
		require.NoError(t, err)
		require.NoError(t, a.Stream(nil, &grpctest.Call{Ctx: request(far, "Bearer "+raw)}, watchInfo, func(_ any, s grpc.ServerStream) error {
			a.Verifier = func() *token.Verifier { return token.NewVerifier(time.Now) } // the key was withdrawn
			a.Recheck()
			<-time.After(time.Hour + time.Second) // of the test's own clock
			return s.Context().Err()
		}))
	})
}

// A caller that needs no token keeps the stream, and what a handler says stands.
func TestStreamsWithoutATokenAreLeftAlone(t *testing.T) {
	d := newServer(t)
	mine := rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "no")
	for _, ctx := range []context.Context{request(near), request(far, "Bearer "+d.user(t, "bob", AdminGroup))} {
		err := d.Stream(nil, &grpctest.Call{Ctx: ctx}, watchInfo, func(_ any, s grpc.ServerStream) error {
			d.Recheck()
			require.NoError(t, s.Context().Err())
			return mine
		})
		require.Equal(t, error(mine), err)
		require.Empty(t, d.streams.list())
	}
}

func TestRefusalsAreHeard(t *testing.T) {
	d := newServer(t)
	var who []string
	d.Refused = func(_ context.Context, p Principal, method string, err error) {
		who = append(who, p.Name+" "+method+" "+err.Error())
	}
	_, err := d.unary(request(far, "Bearer x"), nil, &grpc.UnaryServerInfo{FullMethod: "/m/A"}, nil)
	require.Error(t, err)
	_, err = d.unary(request(far), nil, &grpc.UnaryServerInfo{FullMethod: "/m/B"}, nil)
	require.Error(t, err)
	require.Equal(t, []string{
		" /m/A not authenticated: the token is malformed",
		"mesh-system:anonymous /m/B not authenticated: /m/B is for known callers",
	}, who)
}

// A panic while a stream is authenticated reaches the interceptors around it.
func TestPanicWhileAStreamIsOpened(t *testing.T) {
	a := &Authenticator{} // without keys
	stream := quietServerStream{metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer x"))}
	defer func() {
		failed, ok := recover().(error)
		require.True(t, ok)
		require.ErrorContains(t, failed, "(*Authenticator).register(", "it says where")
	}()
	_ = a.Stream(nil, stream, &grpc.StreamServerInfo{FullMethod: "/test.Test/Talk", IsServerStream: true}, nil)
	require.Fail(t, "the stream continued")
}

type quietServerStream struct{ ctx context.Context }

func (s quietServerStream) Context() context.Context   { return s.ctx }
func (quietServerStream) SetHeader(metadata.MD) error  { return nil }
func (quietServerStream) SendHeader(metadata.MD) error { return nil }
func (quietServerStream) SetTrailer(metadata.MD)       {}
func (quietServerStream) SendMsg(any) error            { return nil }
func (quietServerStream) RecvMsg(any) error            { return nil }
