package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meridian/internal/authn"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
)

// What a server holds of requests that it has not answered (see the ADR on what
// strangers can make a server hold). Besides it there is at most a window for
// every call that waits for its turn on a processor.
const (
	// window is what a caller may send of a message before anybody reads it. It is
	// the least that gRPC knows.
	window = 64 << 10
	// connectionWindow is what a connection may have on its way: it bounds what
	// one can send in a round trip, and no memory.
	connectionWindow = 1 << 20
	// strangersLittle bounds a request of somebody who can write nothing here, and
	// those of the services that everybody may use.
	strangersLittle = window
	// strangersRoom bounds what is held of requests without credentials. Its
	// smallest unit is a window, so that a thousand of them can be on their way.
	strangersRoom = 64 << 20
	// knownRoom is the same for everybody else: eight requests at their largest.
	knownRoom = 8 * MaxMessageBytes
	// firstRead is how much of a message is made room for at first, if it claims
	// to be longer. What is made room for doubles as it is used.
	firstRead = 256 << 10
)

const (
	// ReasonBusy is the reason of requests that there was no room for.
	ReasonBusy = "BUSY"
	// ReasonTooLarge is the reason of requests that nobody may send.
	ReasonTooLarge = "REQUEST_TOO_LARGE"
)

// receiver receives the requests of a server's calls, after it is known who
// calls.
type receiver struct {
	// Enter is what a unary call passes before its request is received.
	enter grpc.UnaryServerInterceptor
	// strangersWrite reports whether somebody without credentials may write
	// anything at all.
	strangersWrite   func() bool
	strangers, known *limits.Intake
}

func newReceiver(enter []grpc.UnaryServerInterceptor, strangersWrite func() bool) *receiver {
	return &receiver{
		enter: inOrder(enter), strangersWrite: strangersWrite,
		strangers: limits.New(strangersRoom), known: limits.New(knownRoom),
	}
}

// inOrder makes one interceptor of several.
func inOrder(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		next := handler
		for _, one := range slices.Backward(all) {
			inner := next
			next = func(ctx context.Context, req any) (any, error) { return one(ctx, req, info, inner) }
		}
		return next(ctx, req)
	}
}

// service returns a service whose requests are received here.
//
// gRPC reads a unary request, all of it, before the first interceptor runs. What
// it calls for a method is ours to replace, though, and that is called before
// anything is read.
func (r *receiver) service(desc *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *desc
	out.Methods, out.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	prefix := "/" + desc.ServiceName + "/"
	for i := range out.Methods {
		out.Methods[i].Handler = r.unary(prefix+out.Methods[i].MethodName, out.Methods[i].Handler)
	}
	for i, m := range out.Streams {
		switch {
		case !m.ClientStreams:
			out.Streams[i].Handler = r.answers(prefix+m.StreamName, m.Handler)
		case free(prefix):
			out.Streams[i].Handler = r.conversation(prefix+m.StreamName, m.Handler)
		}
		// Other conversations are for those who have proved who they are; their
		// handlers receive nothing before that is known.
	}
	return &out
}

// free reports whether a method is of the services that everybody may use.
func free(method string) bool {
	return slices.ContainsFunc(alwaysAllowed, func(s string) bool { return strings.HasPrefix(method, s) })
}

// unary is a unary method's handler that decides who may call before it receives
// the request.
func (r *receiver) unary(method string, handle grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, _ func(any) error, after grpc.UnaryServerInterceptor) (any, error) {
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: method}
		return r.enter(ctx, nil, info, func(ctx context.Context, _ any) (any, error) {
			c, err := r.begin(ctx, method, window)
			if err != nil {
				return nil, err
			}
			defer c.request.Done()
			return handle(srv, ctx, c.receiveOne, after)
		})
	}
}

// answers is the handler of a method that answers one request with a stream.
func (r *receiver) answers(method string, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		c, err := r.begin(stream.Context(), method, window)
		if err != nil {
			return err
		}
		defer c.request.Done()
		return handle(srv, answering{stream, c})
	}
}

// answering is a stream that receives one request.
type answering struct {
	grpc.ServerStream
	call *call
}

// RecvMsg implements grpc.ServerStream.
func (s answering) RecvMsg(m any) error { return s.call.receiveOne(m) }

// conversation is the handler of a method by which strangers may send many
// messages. What comes in while an answer goes out waits in up to a window, in
// pieces as small as the caller likes: it is charged for more than its bytes.
func (r *receiver) conversation(method string, handle grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		c, err := r.begin(stream.Context(), method, 16*window)
		if err != nil {
			return err
		}
		defer c.request.Done()
		return handle(srv, conversing{stream, c})
	}
}

type conversing struct {
	grpc.ServerStream
	call *call
}

// RecvMsg implements grpc.ServerStream.
func (s conversing) RecvMsg(m any) error {
	data, err := s.call.message()
	if err != nil {
		return err
	}
	return decode(data, m)
}

// call is a call whose requests are being received.
type call struct {
	wire    wire
	request *limits.Request
	held    int
	limit   int
	// known is whether the caller has proved who it is.
	known bool
}

// wire is what a call of a gRPC server is to its transport. gRPC has no interface
// of its own by which a message could be read as it comes: it lets a caller
// announce a length and reserves the room for it.
type wire interface {
	// ReadMessageHeader fills p with what comes next. The error is io.EOF when
	// nothing does.
	ReadMessageHeader(p []byte) error
	// WriteStatus ends the call, and by that every wait of it.
	WriteStatus(st *status.Status) error
}

// begin makes room for n bytes of a call's requests.
func (r *receiver) begin(ctx context.Context, method string, n int64) (*call, error) {
	w, ok := grpc.ServerTransportStreamFromContext(ctx).(wire)
	if !ok {
		return nil, rpcerr.New(rpcerr.Internal, "NO_TRANSPORT", "the request cannot be received: this gRPC is of another release")
	}
	c := &call{wire: w, limit: MaxMessageBytes, held: window}
	room := r.known
	if c.known = authn.PrincipalFrom(ctx).Source != authn.FromNothing && !free(method); !c.known {
		room = r.strangers
		if free(method) || !r.strangersWrite() {
			c.limit = strangersLittle
		}
	}
	var err error
	c.request, err = room.Begin(n, func() {
		// What fails here, the handler's own end fails with as well.
		_ = w.WriteStatus(rpcerr.ToStatus(c.refusal(limits.ErrGivenUp)))
	})
	return c, c.refusal(err)
}

// refusal says why there was no room.
func (c *call) refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case c.known:
		return rpcerr.New(rpcerr.Unavailable, ReasonBusy, "%w: try again in a moment", err)
	}
	return rpcerr.New(rpcerr.Unavailable, ReasonBusy, "%w: try again in a moment, or with a token, for requests without one share little room", err)
}

// receiveOne receives the one request of a call, and sees to it that nothing
// follows.
func (c *call) receiveOne(m any) error {
	data, err := c.message()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = rpcerr.New(rpcerr.Invalid, "REQUEST_MISSING", "the call has no request")
		}
		return err
	}
	switch err := c.wire.ReadMessageHeader(make([]byte, 1)); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return c.broken(err)
	default:
		return rpcerr.New(rpcerr.Invalid, "REQUEST_REPEATED", "the call has more than one request")
	}
	if err := c.request.Received(int64(len(data))); err != nil {
		return c.refusal(err)
	}
	return decode(data, m)
}

// message receives a message. The error is io.EOF where none is left.
func (c *call) message() ([]byte, error) {
	var header [5]byte
	if err := c.wire.ReadMessageHeader(header[:]); err != nil {
		return nil, c.broken(err)
	}
	length := binary.BigEndian.Uint32(header[1:])
	switch {
	case header[0] != 0:
		return nil, rpcerr.New(rpcerr.Unsupported, "COMPRESSED", "the request is compressed, which is not understood here")
	case int64(length) > int64(c.limit):
		return nil, c.tooLarge(length)
	}
	data := make([]byte, min(int(length), firstRead))
	if err := c.hold(len(data)); err != nil {
		return nil, err
	}
	for read := 0; ; {
		if err := c.wire.ReadMessageHeader(data[read:]); errors.Is(err, io.EOF) {
			return nil, c.broken(io.ErrUnexpectedEOF)
		} else if err != nil {
			return nil, c.broken(err)
		}
		if read = len(data); read == int(length) {
			return data, nil
		}
		longer := min(2*read, int(length))
		if err := c.hold(longer); err != nil {
			return nil, err
		}
		data = append(make([]byte, 0, longer), data...)[:longer]
	}
}

// hold makes room for a message of n bytes so far.
func (c *call) hold(n int) error {
	if n <= c.held {
		return nil
	}
	err := c.request.Grow(int64(n - c.held))
	c.held = n
	return c.refusal(err)
}

func (c *call) tooLarge(length uint32) error {
	if !c.known && c.limit < MaxMessageBytes {
		return rpcerr.New(rpcerr.TooLarge, ReasonTooLarge,
			"the request has %d bytes, and without credentials, by which nothing can be written here, at most %d are taken", length, c.limit)
	}
	return rpcerr.New(rpcerr.TooLarge, ReasonTooLarge, "the request has %d bytes, and at most %d are taken", length, c.limit)
}

// broken is why reading ended: the caller is gone or done, or the request was
// given up.
func (c *call) broken(err error) error {
	switch {
	case c.request.GivenUp():
		return c.refusal(limits.ErrGivenUp)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return rpcerr.New(rpcerr.Invalid, "REQUEST_CUT_OFF", "the request ends before it is whole")
	}
	return err
}

func decode(data []byte, m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return rpcerr.New(rpcerr.Internal, "NO_MESSAGE", "the request cannot be decoded into %T", m)
	}
	if err := proto.Unmarshal(data, message); err != nil {
		return rpcerr.New(rpcerr.Invalid, "MALFORMED_REQUEST", "the request is not what the method takes: %w", err)
	}
	return nil
}
