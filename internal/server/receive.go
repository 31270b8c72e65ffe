package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/batch"
	"meridian/internal/deepstack"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
)

// What a server holds of requests that it has not answered (see the ADR on
// requests that are received after the caller is known).
const (
	// maxRequest bounds one message to a server, and is what each call that
	// receives is charged for at first: what a caller may send before anything is
	// read. It is the least window that gRPC knows.
	maxRequest = batch.MaxMessage
	// connectionWindow is what a connection may have on its way: it bounds what
	// one can send in a round trip, and no memory.
	connectionWindow = 1 << 20
	// unauthenticatedLimit bounds what is held of requests without credentials,
	// unauthenticatedShare what is held of those of one address.
	unauthenticatedLimit, unauthenticatedShare = 64 << 20, 32 << 20
	// knownLimit and knownShare are the same for callers with credentials, and for
	// each of them.
	knownLimit, knownShare = 192 << 20, 128 << 20
	// conversation is what a call is charged for by which an unauthenticated caller
	// may send many messages: while an answer is sent, more of them wait.
	conversation = 16 * maxRequest
)

// ReasonTooLarge is the reason of requests that are larger than any may be.
const ReasonTooLarge = "REQUEST_TOO_LARGE"

// writes are the methods whose requests count as writes: those of resources, of
// tokens, keys and revocations, of rollouts, and those that change the servers themselves.
// TestEveryMethodIsLimitedOrSaysWhyNot lists the methods that are neither writes nor reads.
var writes = []string{
	meridianv1.AdminService_Apply_FullMethodName, meridianv1.AdminService_Delete_FullMethodName, meridianv1.AdminService_Rollback_FullMethodName,
	meridianv1.TokenService_GenerateUserToken_FullMethodName, meridianv1.TokenService_GenerateDataplaneToken_FullMethodName,
	meridianv1.TokenService_RotateKey_FullMethodName, meridianv1.TokenService_RevokeToken_FullMethodName,
	meridianv1.TokenService_ReissueAdminToken_FullMethodName,
	meridianv1.ControlService_GenerateZoneToken_FullMethodName, meridianv1.ClusterService_GenerateServerToken_FullMethodName,
	meridianv1.RolloutService_PromoteRollout_FullMethodName, meridianv1.RolloutService_AbortRollout_FullMethodName,
	meridianv1.ClusterService_TransferLeadership_FullMethodName, meridianv1.ClusterService_RemoveMember_FullMethodName,
	meridianv1.ClusterService_RotateCA_FullMethodName, meridianv1.JoinService_Join_FullMethodName,
}

// Writes returns the methods whose requests count as writes.
func Writes() []string { return slices.Clone(writes) }

// reads are the methods that change nothing: what refuses them says nothing about a
// write.
var reads = []string{
	meridianv1.AdminService_Get_FullMethodName, meridianv1.AdminService_List_FullMethodName,
	meridianv1.AdminService_Watch_FullMethodName, meridianv1.AdminService_WaitForZones_FullMethodName, meridianv1.AdminService_History_FullMethodName,
	meridianv1.InspectService_Inspect_FullMethodName,
	meridianv1.TokenService_ListTokens_FullMethodName, meridianv1.TokenService_ListKeys_FullMethodName,
	meridianv1.AccessService_WhoAmI_FullMethodName, meridianv1.AccessService_CanI_FullMethodName, meridianv1.AccessService_WhoCan_FullMethodName,
	meridianv1.ControlService_Info_FullMethodName, meridianv1.ControlService_Zones_FullMethodName,
	meridianv1.AuditService_ListAudit_FullMethodName, meridianv1.ClusterService_Members_FullMethodName,
	meridianv1.ClusterService_SaveSnapshot_FullMethodName,
	meridianv1.RolloutService_ListRollouts_FullMethodName,
}

// receiver receives the requests of a server's calls after the caller is known.
type receiver struct {
	calls                  Calls
	watches                *watchTracker
	log                    *slog.Logger
	unauthenticated, known *limits.Pool
}

func newReceiver(calls Calls, watches *watchTracker, log *slog.Logger) *receiver {
	return &receiver{
		calls: calls, watches: watches, log: log,
		unauthenticated: limits.New(unauthenticatedLimit, unauthenticatedShare), known: limits.New(knownLimit, knownShare),
	}
}

// service returns a service whose requests are received here.
//
// gRPC receives the request of a unary method, all of it, before the first
// interceptor runs, and the handler of a streaming method before anything is
// read. On the wire the two are the same: every unary method is served by a
// streaming handler. gRPC may or may not call a stream interceptor for such a
// method, so that all interceptors are called here.
func (r *receiver) service(desc *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *desc
	out.Methods, out.Streams = nil, slices.Clone(desc.Streams)
	prefix := "/" + desc.ServiceName + "/"
	for i, m := range out.Streams {
		method := prefix + m.StreamName
		switch {
		case !m.ClientStreams:
			out.Streams[i].Handler = r.receiving(method, maxRequest, m.Handler)
		case exempt(prefix):
			out.Streams[i].Handler = r.receiving(method, conversation, m.Handler)
		case slices.Contains(batches, method):
			out.Streams[i].Handler = r.gathering(method, m.Handler)
		}
		// Other conversations are for authenticated callers; what their handlers
		// receive they do not keep.
		out.Streams[i].Handler = r.intercepted(out.Streams[i], method)
	}
	for _, m := range desc.Methods {
		method := prefix + m.MethodName
		handle := func(srv any, stream grpc.ServerStream) error {
			decode := func(into any) error { return stream.RecvMsg(into) }
			answer, err := m.Handler(srv, stream.Context(), decode, r.calls.Unary)
			if err != nil {
				return err
			}
			return stream.SendMsg(answer)
		}
		served := grpc.StreamDesc{StreamName: m.MethodName, Handler: r.receiving(method, maxRequest, handle)}
		served.Handler = r.intercepted(served, method)
		out.Streams = append(out.Streams, served)
	}
	return &out
}

// intercepted is the handler of a method behind everything that a call passes.
//
// What it calls is on the stack of every stream for as long as the stream lasts,
// and a zone has ten thousand: what only begins or ends a call is done in one
// frame, not in an interceptor each (see docs/adr/0028).
func (r *receiver) intercepted(desc grpc.StreamDesc, method string) grpc.StreamHandler {
	info := &grpc.StreamServerInfo{FullMethod: method, IsClientStream: desc.ClientStreams, IsServerStream: desc.ServerStreams}
	handle := r.recorded(desc.Handler, info)
	if one := r.calls.Authenticate; one != nil {
		next := handle
		handle = func(srv any, stream grpc.ServerStream) error { return one(srv, stream, info, next) }
	}
	if strings.HasSuffix(method, watchSuffix) {
		handle = r.watches.handler(method, handle)
	}
	return func(srv any, stream grpc.ServerStream) (err error) {
		defer r.finish(method, &err)
		if r.calls.Check != nil {
			if err := r.calls.Check(method); err != nil {
				return err
			}
		}
		return handle(srv, stream)
	}
}

// recorded is a handler behind the steps that begin a call and what records its end,
// in one frame.
func (r *receiver) recorded(handle grpc.StreamHandler, info *grpc.StreamServerInfo) grpc.StreamHandler {
	record := r.calls.Record
	if record == nil {
		record = func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, stream)
		}
	}
	return func(srv any, stream grpc.ServerStream) error {
		if err := r.beginCall(stream, info.FullMethod); err != nil {
			return err
		}
		return record(srv, stream, info, handle)
	}
}

// beginCall is apart from what is on the stack of a stream.
func (r *receiver) beginCall(stream grpc.ServerStream, method string) error {
	for _, step := range r.calls.Begin {
		if err := step(stream, method); err != nil {
			return err
		}
	}
	return nil
}

// finish makes what a call ends with the status that tells it to the caller. A
// panic fails this call and no other.
func (r *receiver) finish(method string, err *error) {
	if value := recover(); value != nil {
		r.log.Error("a call broke off", "method", method, "panic", value, "stack", string(debug.Stack()))
		*err = rpcerr.New(rpcerr.Internal, "PANIC", "the server failed on this request; its log says more")
	}
	*err = rpcerr.ToStatus(*err).Err()
}

// exempt reports whether a method is of the services that every caller may use.
func exempt(method string) bool {
	return slices.ContainsFunc(alwaysAllowed, func(s string) bool { return strings.HasPrefix(method, s) })
}

// receiving is a handler whose call is charged for n bytes until its request has
// been received, or until it ends where many may follow.
func (r *receiver) receiving(method string, n int64, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		c, err := r.begin(stream, method, n)
		if err != nil {
			return err
		}
		defer c.request.Done()
		for _, slots := range r.lasting(c, n) {
			done, err := slots.Take(c.owner)
			if err != nil {
				return r.calls.Limits.exceeded(method, err)
			}
			defer done()
		}
		if n == conversation {
			return handle(srv, c)
		}
		return handle(srv, single{c})
	}
}

// lasting returns the slots that a call of n bytes needs, which may last.
func (r *receiver) lasting(c *call, n int64) (slots []*limits.Slots) {
	waits := c.method == meridianv1.AdminService_WaitForZones_FullMethodName
	if waits {
		slots = append(slots, r.calls.Limits.zoneWaits)
	}
	if !c.known && (n == conversation || waits || strings.HasSuffix(c.method, watchSuffix)) {
		slots = append(slots, r.calls.Limits.watches)
	}
	return slots
}

// gathering is a handler that keeps all messages it receives.
func (r *receiver) gathering(method string, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		c, err := r.begin(stream, method, maxRequest)
		if err != nil {
			return err
		}
		defer c.request.Done()
		return c.abortable(func() error { return handle(srv, &gathered{call: c}) })
	}
}

// call is the stream of a call whose requests are being received.
type call struct {
	grpc.ServerStream
	method  string
	request *limits.Request
	// aborted is closed when the request is.
	aborted chan struct{}
	limit   int64
	// known is whether the caller has proved who it is; owner is its name or
	// address, admin whether it is an administrator.
	known, admin bool
	owner        string
	limits       *Limits
	// writes counts the bytes of a request that writes; nil for others.
	writes *limits.Writes
	// phase is what the handler of a gathered call does.
	phase atomic.Int32
}

// What the handler of a gathered call does.
const (
	// working: it has a message, or all of them.
	working = iota
	// awaiting: it waits for a message.
	awaiting
	// abandoned: the call ended while it waited.
	abandoned
)

// begin counts a call that writes, and charges it for the n bytes that it may hold
// at first.
func (r *receiver) begin(stream grpc.ServerStream, method string, n int64) (*call, error) {
	ctx := stream.Context()
	p := authn.PrincipalFrom(ctx)
	c := &call{ServerStream: stream, method: method, limit: MaxBatchBytes, aborted: make(chan struct{}), limits: r.calls.Limits, owner: p.Name}
	pool := r.known
	c.admin = slices.Contains(p.Groups, authn.AdminGroup)
	if c.known = p.Source != authn.FromNothing && !exempt(method); !c.known {
		pool, c.owner = r.unauthenticated, address(ctx)
		if exempt(method) || !r.calls.UnauthenticatedCanWrite() {
			c.limit = maxRequest
		}
	}
	if slices.Contains(writes, method) {
		c.writes = r.calls.Limits.writes
		if err := c.writes.Request(c.owner, c.admin); err != nil {
			return nil, c.limits.exceeded(method, err)
		}
	}
	var err error
	c.request, err = pool.Begin(c.owner, n, func() { close(c.aborted) })
	return c, c.refusal(err)
}

// address is what counts as the address that a caller has.
func address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return limits.Origin(p.Addr).String()
}

// received charges a call for a request of n bytes, which has arrived, and counts
// what is written.
func (c *call) received(n int64) error {
	if err := c.request.Received(n); err != nil {
		return c.refusal(err)
	}
	if c.writes == nil {
		return nil
	}
	return c.limits.exceeded(c.method, c.writes.Bytes(c.owner, c.admin, n))
}

// refusal says which limit a request exceeds.
func (c *call) refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case c.known:
		return c.busy(rpcerr.New(rpcerr.TooLarge, ReasonLimit, "%w: retry in a moment", err))
	}
	return c.busy(rpcerr.New(rpcerr.TooLarge, ReasonLimit, "%w: retry in a moment, or with a token, since requests without one share a small limit", err))
}

// busy completes the error of a call that whose bytes cannot be held.
func (c *call) busy(err *rpcerr.Error) error {
	c.limits.Refused(limitBytes)
	return notWritten(c.method, err.WithMetadata(metaLimit, limitBytes).WithRetry(shortRetry))
}

// RecvMsg implements grpc.ServerStream. It returns when the request is aborted,
// with which the handler returns and gRPC ends the stream: the goroutine that
// receives ends with it.
//
// Ending the context of the stream would end the reading, too, but gRPC then answers
// the caller with Canceled before the handler can say why.
func (c *call) RecvMsg(m any) error {
	received := make(chan error, 1)
	go func() { received <- c.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-c.aborted:
		return c.refusal(limits.ErrAborted)
	}
}

// single is a call with one request.
type single struct{ *call }

// RecvMsg implements grpc.ServerStream.
func (s single) RecvMsg(m any) error {
	if err := s.call.RecvMsg(m); err != nil {
		return err
	}
	n, err := sizeOf(m)
	if err != nil {
		return err
	}
	return s.received(n)
}

func sizeOf(m any) (int64, error) {
	message, ok := m.(proto.Message)
	if !ok {
		return 0, rpcerr.New(rpcerr.Internal, "NO_MESSAGE", "the request cannot be decoded into %T", m)
	}
	return int64(proto.Size(message)), nil
}

// abortable runs a handler on another goroutine, so that the call can end when the request
// is aborted while the handler waits for a message: with the call gRPC ends the stream, and
// then that wait. A handler that has its messages is not interrupted. A panic is passed on,
// with the stack that it came from.
func (c *call) abortable(handle func() error) error {
	type end struct{ err, panicked error }
	ended := make(chan end, 1)
	go func() {
		deepstack.Reserve()
		var e end
		defer func() { ended <- e }()
		defer func() {
			if value := recover(); value != nil {
				e.panicked = fmt.Errorf("%v\n\n%s", value, debug.Stack())
			}
		}()
		e.err = handle()
	}()
	var e end
	select {
	case e = <-ended:
	case <-c.aborted:
		if c.phase.CompareAndSwap(awaiting, abandoned) {
			return c.refusal(limits.ErrAborted)
		}
		e = <-ended
	}
	if e.panicked != nil {
		panic(e.panicked)
	}
	return e.err
}

// gathered is an abortable call that is charged for all its messages until it ends.
type gathered struct {
	*call
	size int64
}

// next receives a message, unless the request is aborted.
func (g *gathered) next(m any) error {
	g.phase.Store(awaiting)
	var err error
	select {
	case <-g.aborted: // the call waits for the handler, or has ended
		err = g.refusal(limits.ErrAborted)
	default:
		err = g.ServerStream.RecvMsg(m)
	}
	if !g.phase.CompareAndSwap(awaiting, working) {
		return g.refusal(limits.ErrAborted)
	}
	return err
}

// RecvMsg implements grpc.ServerStream.
func (g *gathered) RecvMsg(m any) error {
	err := g.next(m)
	if errors.Is(err, io.EOF) {
		if full := g.received(g.size); full != nil {
			return full
		}
	}
	if err != nil {
		return err
	}
	n, err := sizeOf(m)
	if err != nil {
		return err
	}
	if g.size += n; g.size > g.limit {
		return g.tooLarge()
	}
	// What the call was charged for at first is the message that is received next.
	return g.refusal(g.request.Grow(n))
}

func (g *gathered) tooLarge() error {
	if !g.known && g.limit < MaxBatchBytes {
		return rpcerr.New(rpcerr.TooLarge, ReasonTooLarge,
			"the batch has more than %d bytes, the limit for callers without credentials, who can write nothing here", g.limit)
	}
	return rpcerr.New(rpcerr.TooLarge, ReasonTooLarge, "the batch has more than %d bytes, the limit for one: split it", g.limit)
}
