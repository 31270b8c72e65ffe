// Package grpctest has the server's side of a gRPC call in memory, for tests of
// handlers and interceptors of streams.
//
// Non-goals: the network, and everything that gRPC does before a handler runs. Tests
// of those use a server on a listener in memory.
package grpctest

import (
	"context"
	"io"

	"google.golang.org/grpc"
)

// Stream is the server's side of a call that receives messages Q and sends messages
// R. The zero value is a call without credentials whose client sends nothing. It is
// for one goroutine that receives and one that sends, as streams of gRPC are.
type Stream[Q, R any] struct {
	grpc.ServerStream
	// Ctx is the context of the call; nil stands for context.Background.
	Ctx context.Context
	// Requests are what the client sends. The stream ends after them.
	Requests []*Q
	// Received counts the calls of Recv, with the one that returned io.EOF.
	Received int
	// Sent are the messages that the handler sent, unless OnSend is set.
	Sent []*R
	// OnSend is called with each message that the handler sends, in place of
	// keeping it. Its error is that of Send. Optional.
	OnSend func(*R) error
	// Messages counts the calls of SendMsg, which interceptors see.
	Messages int
}

// Call is a Stream of a call whose messages do not matter.
type Call = Stream[struct{}, struct{}]

// Context implements grpc.ServerStream.
func (s *Stream[Q, R]) Context() context.Context {
	if s.Ctx == nil {
		return context.Background()
	}
	return s.Ctx
}

// Recv returns the next request. The error is io.EOF after the last one.
func (s *Stream[Q, R]) Recv() (*Q, error) {
	s.Received++
	if s.Received > len(s.Requests) {
		return nil, io.EOF
	}
	return s.Requests[s.Received-1], nil
}

// Send keeps a message in Sent, or hands it to OnSend and returns its error.
func (s *Stream[Q, R]) Send(r *R) error {
	if s.OnSend != nil {
		return s.OnSend(r)
	}
	s.Sent = append(s.Sent, r)
	return nil
}

// SendAndClose is Send.
func (s *Stream[Q, R]) SendAndClose(r *R) error { return s.Send(r) }

// SendMsg counts a message. It implements grpc.ServerStream.
func (s *Stream[Q, R]) SendMsg(any) error {
	s.Messages++
	return nil
}

// RecvMsg leaves what it is given as it is. It implements grpc.ServerStream.
func (s *Stream[Q, R]) RecvMsg(any) error { return nil }
