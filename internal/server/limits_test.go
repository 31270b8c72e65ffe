package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
)

// readOnly is what an error says about the write of a call that only reads.
const readOnly rpcerr.Effect = ""

// refusals are how often a limit was exceeded.
func (r *testServer) refusals(limit string) float64 {
	return testutil.ToFloat64(r.limits.refusals.WithLabelValues(limit))
}

// requireExceeded checks that a call was refused for a limit. Of a write the refusal
// says that nothing was written; of a read it says nothing about a write.
func (r *testServer) requireExceeded(limit string, effect rpcerr.Effect, err error) {
	r.t.Helper()
	require.Equal(r.t, codes.ResourceExhausted, status.Code(err), err)
	err = rpcerr.FromStatus(err)
	require.True(r.t, rpcerr.HasReason(err, ReasonLimit), err)
	require.Positive(r.t, rpcerr.RetryAfter(err))
	require.Equal(r.t, effect, rpcerr.EffectOf(err))
	var e *rpcerr.Error
	require.ErrorAs(r.t, err, &e)
	require.Equal(r.t, limit, e.Metadata[metaLimit])
	require.ErrorContains(r.t, err, "the limit on ")
	require.Positive(r.t, r.refusals(limit))
}

// Connections beyond the limit are closed before their handshake, and find a place
// when another has ended.
func TestConnectionsOfOneAddress(t *testing.T) {
	r := newTestServer(t, func(o *LimitOptions) { o.MaxUnauthenticatedConnections = 2 })
	dial := func() (*tls.Conn, error) {
		raw, err := net.Dial("tcp", r.addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = raw.Close() })
		conn := tls.Client(raw, &tls.Config{RootCAs: r.pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
		return conn, conn.Handshake()
	}
	first, err := dial()
	require.NoError(t, err)
	_, err = dial()
	require.NoError(t, err)
	_, err = dial()
	require.Error(t, err)
	require.InDelta(t, 1, r.refusals(limits.LimitUnauthenticated), 0)
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { _, err := dial(); return err == nil }, time.Minute, 10*time.Millisecond)
}

// Connections of authenticated callers do not count among the others.
func TestAuthenticatedConnectionsDoNotCount(t *testing.T) {
	r := newTestServer(t, func(o *LimitOptions) { o.MaxUnauthenticatedConnections = 2 })
	for range 5 {
		require.NoError(t, r.stream("user", part(t), 1))
	}
	require.Zero(t, r.refusals(limits.LimitUnauthenticated))
	total, unauthenticated := r.limits.grpc.Counts()
	require.Equal(t, 5, total)
	require.Zero(t, unauthenticated)
}

// A client that begins calls and gives them up loses its connection, authenticated or not.
func TestAFloodOfAbortedCalls(t *testing.T) {
	for _, who := range []string{"", "user"} {
		t.Run("of "+who, func(t *testing.T) {
			r := newTestServer(t)
			conn := r.dial()
			for i := 0; r.refusals(limits.LimitAborts) == 0; i++ {
				require.Less(t, i, 100_000, "the flood has no end")
				ctx, giveUp := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "is", who))
				stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, applyMethod, grpc.ForceCodecV2(oneBuffer{}))
				if err == nil {
					_ = stream.SendMsg([]byte{}) // so that the call has begun on the wire
				}
				giveUp()
			}
			require.NoError(t, r.stream("user", part(t), 1), "others are served")
		})
	}
}

// Calls that unauthenticated clients make too often are refused before anything is
// done for them; those of authenticated callers are not.
func TestCallsOfUnauthenticatedClients(t *testing.T) {
	r := newTestServer(t)
	require.NoError(t, r.stream("user", part(t), 1))
	conn := r.dial()
	var refused error
	for i := 0; refused == nil; i++ {
		require.Less(t, i, 100_000, "the flood has no end")
		refused = conn.Invoke(t.Context(), "/grpc.health.v1.Health/Check", []byte{}, &struct{}{}, grpc.ForceCodecV2(oneBuffer{}))
	}
	r.requireExceeded(limits.LimitCalls, readOnly, refused)
}

// A connection is read again some time after its calls were refused, or once it is
// closed.
func TestRefusedCallsAreReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewLimits(LimitOptions{}).grpc
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:1"))
		limited, err := all.Begin(addr, func() {})
		require.NoError(t, err)
		client, served := net.Pipe()
		conn := newLimitedConn(served, limited)
		go func() {
			for {
				if _, err := client.Write([]byte{0}); err != nil {
					return
				}
			}
		}()
		read := func() time.Duration {
			began := time.Now()
			_, err := conn.Read(make([]byte, 1))
			require.NoError(t, err)
			return time.Since(began)
		}
		require.Zero(t, read())
		for limited.Call(false) == nil {
			require.Zero(t, read())
		}
		paused := limited.Pause()
		require.Positive(t, paused)
		require.Equal(t, paused, read())
		require.Zero(t, read())
		for limited.Call(false) == nil { // some are served again by now
		}
		require.Positive(t, limited.Pause())
		began, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			_, _ = conn.Read(make([]byte, 1))
		}()
		synctest.Wait()
		require.NoError(t, conn.Close())
		<-done
		require.Zero(t, time.Since(began), "a connection that is closed is not waited for")
	})
}

// Handshakes compute one after the other, and those that wait for their clients hold
// up none.
func TestHandshakesTakeTurns(t *testing.T) {
	authority, err := pki.Open(pki.Config{DataDir: t.TempDir(), Name: "s", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: discard(t)})
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(authority.CAPEM()))
	synctest.Test(t, func(t *testing.T) {
		turns := limits.NewTurns(limitHandshakes, limits.TurnsConfig{Running: 1, RunningEach: 1, Waiting: 10, WaitingEach: 10})
		credentials := limitedCredentials{credentials.NewTLS(authority.ServerTLS()), turns}
		all := NewLimits(LimitOptions{}).grpc
		connect := func() (client net.Conn, result chan error) {
			client, served := net.Pipe()
			limited, err := all.Begin(served.RemoteAddr(), func() {})
			require.NoError(t, err)
			result = make(chan error, 1)
			conn := newLimitedConn(served, limited)
			go func() {
				_, info, err := credentials.ServerHandshake(conn)
				if err == nil && info.(connectionInfo).limits != limited {
					err = errors.New("the calls would not be limited")
				}
				result <- err
			}()
			return client, result
		}
		silent, broken := connect()
		half, halved := connect()
		_, err := half.Write([]byte{22, 3, 1}) // the beginning of a record
		require.NoError(t, err)

		done, err := turns.Wait(t.Context(), "other")
		require.NoError(t, err)
		client, result := connect()
		handshaken := make(chan error, 1)
		go func() {
			handshaken <- tls.Client(client, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}, Time: func() time.Time { return authority.Expires().Add(-time.Hour) }}).Handshake()
		}()
		synctest.Wait()
		require.Empty(t, result, "it waits for its turn")
		done()
		require.NoError(t, <-handshaken)
		require.NoError(t, <-result)

		require.NoError(t, silent.Close())
		require.Error(t, <-broken)
		require.NoError(t, half.Close())
		require.Error(t, <-halved)
		done, err = turns.Wait(t.Context(), "other")
		require.NoError(t, err, "no turn is left behind")
		done()
	})
}

// Watches without credentials are limited for each address; others are not.
func TestWatchesOfUnauthenticatedClients(t *testing.T) {
	r := newTestServer(t, func(o *LimitOptions) { o.MaxUnauthenticatedWatches = 2 })
	watch := func(who, method string) (grpc.ClientStream, context.CancelFunc) {
		ctx, end := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "is", who))
		t.Cleanup(end)
		stream, err := r.dial().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(oneBuffer{}))
		require.NoError(t, err)
		_ = stream.SendMsg([]byte{}) // how it ends is in the answer
		_ = stream.CloseSend()
		return stream, end
	}
	const health = "/grpc.health.v1.Health/Watch"
	first, end := watch("", health)
	require.NoError(t, first.RecvMsg(&struct{}{}))
	second, _ := watch("", health)
	require.NoError(t, second.RecvMsg(&struct{}{}))
	third, _ := watch("", health)
	r.requireExceeded(limits.LimitWatches, readOnly, third.RecvMsg(&struct{}{}))
	reflected, _ := watch("", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
	r.requireExceeded(limits.LimitWatches, readOnly, reflected.RecvMsg(&struct{}{}))
	waiting, _ := watch("", meridianv1.AdminService_WaitForZones_FullMethodName)
	r.requireExceeded(limits.LimitWatches, readOnly, waiting.RecvMsg(&struct{}{}))
	for range 5 {
		known, _ := watch("user", meridianv1.AdminService_Watch_FullMethodName)
		require.Equal(t, codes.Unimplemented, status.Code(known.RecvMsg(&struct{}{})), "it got as far as the handler")
	}
	end()
	require.Eventually(t, func() bool {
		again, _ := watch("", health)
		return again.RecvMsg(&struct{}{}) == nil
	}, time.Minute, 10*time.Millisecond)
}

// Waits for zones are limited for each caller, authenticated or not, and their slots are
// free again once the caller has gone.
func TestWaitsForZonesOfOneCaller(t *testing.T) {
	r := newTestServer(t)
	wait := func(ctx context.Context, conn *grpc.ClientConn, who string) error {
		stream, err := meridianv1.NewAdminServiceClient(conn).WaitForZones(metadata.AppendToOutgoingContext(ctx, "is", who), &meridianv1.WaitForZonesRequest{})
		require.NoError(t, err)
		_, err = stream.Recv()
		return err
	}
	ctx, leave := context.WithCancel(t.Context())
	attacker := r.dial()
	for i := range maxClientZoneWaits {
		require.NoError(t, wait(ctx, attacker, "user"), i)
	}
	for range 3 {
		r.requireExceeded(limits.LimitZoneWaits, readOnly, wait(ctx, attacker, "user"))
	}
	require.NoError(t, wait(ctx, r.dial(), "admin"), "others are served")
	require.NoError(t, wait(ctx, r.dial(), ""), "so have those without credentials")
	require.EqualValues(t, maxClientZoneWaits+2, r.resources.waiting.Load())
	leave()
	require.Eventually(t, func() bool { return r.resources.waiting.Load() == 0 }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return wait(t.Context(), attacker, "user") == nil }, time.Minute, 10*time.Millisecond)
}

// Writes are limited for each caller, and the refusal says when to write again.
func TestWritesOfOneCaller(t *testing.T) {
	r := newTestServer(t, func(o *LimitOptions) { o.WriteRate = 2 })
	conn := r.dial()
	client := meridianv1.NewAdminServiceClient(conn)
	write := func(who string) error {
		stream, err := client.Apply(metadata.AppendToOutgoingContext(t.Context(), "is", who))
		require.NoError(t, err)
		_ = stream.Send(&meridianv1.ApplyRequest{}) // the answer says how it ended
		_, err = stream.CloseAndRecv()
		return err
	}
	var refused error
	for i := 0; refused == nil; i++ {
		require.Less(t, i, 100_000, "writes have no limit")
		refused = write("user")
	}
	r.requireExceeded(limits.LimitWriteRequests, rpcerr.EffectNone, refused)
	require.NoError(t, write("admin"), "one caller does not hold up another")
}

// conversations are the methods by which an authenticated caller sends for as long as it
// likes: what each takes is bounded by its service.
var conversations = []string{
	meridianv1.DataplaneService_Connect_FullMethodName,
	meridianv1.ClusterService_RestoreSnapshot_FullMethodName, // one at a time, of an administrator
	syncv1.SyncService_Stream_FullMethodName,
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName,
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName,
}

// Every method of every service that clients, zones, proxies and new servers call is a
// write, a read or a conversation: one that is forgotten would be limited by nothing, and
// a refusal of it would not say whether something was written.
func TestEveryMethodIsLimitedOrSaysWhyNot(t *testing.T) {
	var methods []string
	of := func(service protoreflect.ServiceDescriptor) {
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			methods = append(methods, fmt.Sprintf("/%s/%s", service.FullName(), m.Name()))
		}
	}
	of(discoveryv3.File_envoy_service_discovery_v3_ads_proto.Services().Get(0))
	of(syncv1.File_sync_v1_sync_proto.Services().ByName("SyncService"))
	protoregistry.GlobalFiles.RangeFilesByPackage("meridian.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			of(file.Services().Get(i))
		}
		return true
	})
	require.Greater(t, len(methods), 35)
	listed := slices.Concat(writes, reads, conversations)
	require.ElementsMatch(t, methods, listed)
	for _, method := range batches {
		require.Contains(t, slices.Concat(writes, reads), method)
	}
}

// Calls that write tokens, keys and revocations, or change rollouts, count as writes: for
// each caller and for all but administrators. What refuses those that list them says
// nothing about a write.
func TestTokenAndRolloutCallsAreWrites(t *testing.T) {
	methods := []string{meridianv1.ControlService_GenerateZoneToken_FullMethodName, meridianv1.ClusterService_GenerateServerToken_FullMethodName}
	for _, service := range []*grpc.ServiceDesc{&meridianv1.TokenService_ServiceDesc, &meridianv1.RolloutService_ServiceDesc} {
		for _, m := range service.Methods {
			method := "/" + service.ServiceName + "/" + m.MethodName
			if strings.HasPrefix(m.MethodName, "List") {
				require.Contains(t, reads, method)
				continue
			}
			methods = append(methods, method)
		}
	}
	r := newTestServer(t)
	r.write.Store(true)
	message, err := proto.Marshal(&meridianv1.GenerateUserTokenRequest{Name: "bob-of-team-a"})
	require.NoError(t, err)
	call := func(who, method string) error { return answer(r.send(who, method, message), true) }
	stopped := func() time.Time { return time.Unix(1, 0) }
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			handled := func(err error) {
				t.Helper()
				require.Equal(t, codes.Unimplemented, status.Code(err), "it gets as far as the handler: %v", err)
			}
			r.limits.writes = limits.NewWrites(limits.WriteConfig{Requests: 1, Bytes: 1000, All: 1, LargestRequest: 1000}, stopped)
			handled(call("user", method))
			handled(call("user", method))
			r.requireExceeded(limits.LimitWriteRequests, rpcerr.EffectNone, call("user", method))
			r.requireExceeded(limits.LimitAllWriteRequests, rpcerr.EffectNone, call("", method))
			handled(call("admin", method))

			r.limits.writes = limits.NewWrites(limits.WriteConfig{Requests: 1000, Bytes: 1, All: 1, LargestRequest: float64(len(message))}, stopped)
			handled(call("user", method))
			handled(call("user", method))
			r.requireExceeded(limits.LimitWriteBytes, rpcerr.EffectNone, call("user", method))
			r.requireExceeded(limits.LimitAllWriteBytes, rpcerr.EffectNone, call("", method))
			handled(call("admin", method))
		})
	}
}

// By a limit of none no client would be served.
func TestLimitsMustBePositive(t *testing.T) {
	o := DefaultLimits()
	require.NoError(t, o.validate())
	o.WriteRate = 0
	require.ErrorContains(t, o.validate(), "--write-rate 0: must be at least 1")
}

// Every limit has a series from the start.
func TestEveryLimitIsCounted(t *testing.T) {
	l := NewLimits(LimitOptions{})
	require.Len(t, limits.Names(), testutil.CollectAndCount(l, "meridian_limit_refusals_total"))
}
