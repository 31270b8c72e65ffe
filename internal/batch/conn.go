package batch

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	meridianv1 "meridian/api/meridian/v1"
)

// methods are those whose requests are batches.
var methods = []string{
	meridianv1.AdminService_Apply_FullMethodName, meridianv1.AdminService_Delete_FullMethodName,
	meridianv1.AccessService_CanI_FullMethodName,
}

// Conn returns a connection that sends a batch of one message, as almost all are, as the
// call of a unary method. On the wire that is the same, but a stream writes its header, its
// message and its end one after the other, and a call writes them at once. Use it for the
// clients that Apply, Delete and CanI are given.
func Conn(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return batchConn{conn} }

type batchConn struct{ grpc.ClientConnInterface }

// NewStream implements grpc.ClientConnInterface.
func (c batchConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if !slices.Contains(methods, method) {
		return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	}
	return &lateStream{ctx: ctx, conn: c.ClientConnInterface, desc: desc, method: method, opts: opts}, nil
}

// lateStream is a stream that is opened by its second message. Like any other it is for
// one goroutine that sends and one that receives.
type lateStream struct {
	ctx    context.Context
	conn   grpc.ClientConnInterface
	desc   *grpc.StreamDesc
	method string
	opts   []grpc.CallOption
	// first is the message that was sent, nil before.
	first any
	// opened is the stream; nil where there is one message.
	opened grpc.ClientStream
	// header and trailer are of a call.
	header, trailer metadata.MD
}

var _ grpc.ClientStream = (*lateStream)(nil)

// SendMsg implements grpc.ClientStream. The first message must not be modified
// afterwards.
func (s *lateStream) SendMsg(m any) error {
	if s.opened == nil && s.first == nil {
		s.first = m
		return nil
	}
	if s.opened == nil {
		if err := s.open(); err != nil {
			return err
		}
	}
	return s.opened.SendMsg(m)
}

// open opens the stream and sends the message that was held back, if there is one.
func (s *lateStream) open() (err error) {
	if s.opened, err = s.conn.NewStream(s.ctx, s.desc, s.method, s.opts...); err != nil || s.first == nil {
		return err
	}
	return s.opened.SendMsg(s.first)
}

// CloseSend implements grpc.ClientStream.
func (s *lateStream) CloseSend() error {
	if s.opened == nil && s.first != nil {
		return nil // the call ends it
	}
	if s.opened == nil {
		if err := s.open(); err != nil {
			return err
		}
	}
	return s.opened.CloseSend()
}

// errUnsent is what a stream returns that was neither sent to nor closed.
var errUnsent = errors.New("receive the answer to a batch: nothing was sent")

// RecvMsg implements grpc.ClientStream.
func (s *lateStream) RecvMsg(m any) error {
	switch {
	case s.opened != nil:
		return s.opened.RecvMsg(m)
	case s.first == nil:
		return errUnsent
	}
	opts := append(slices.Clone(s.opts), grpc.Header(&s.header), grpc.Trailer(&s.trailer))
	return s.conn.Invoke(s.ctx, s.method, s.first, m, opts...)
}

// Header implements grpc.ClientStream. Of a call it is known after RecvMsg.
func (s *lateStream) Header() (metadata.MD, error) {
	if s.opened != nil {
		return s.opened.Header()
	}
	return s.header, nil
}

// Trailer implements grpc.ClientStream.
func (s *lateStream) Trailer() metadata.MD {
	if s.opened != nil {
		return s.opened.Trailer()
	}
	return s.trailer
}

// Context implements grpc.ClientStream.
func (s *lateStream) Context() context.Context {
	if s.opened != nil {
		return s.opened.Context()
	}
	return s.ctx
}
