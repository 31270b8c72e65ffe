package rpcerr

import (
	"context"

	"google.golang.org/grpc"
)

// UnaryServer sends every error of a unary handler through ToStatus.
func UnaryServer(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	return resp, ToStatus(err).Err()
}

// StreamServer sends every error of a streaming handler through ToStatus.
func StreamServer(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return ToStatus(handler(srv, stream)).Err()
}

// UnaryClient turns what unary calls return into *Error.
func UnaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return FromStatus(invoke(ctx, method, req, reply, cc, opts...))
}

// StreamClient turns what streams return into *Error; io.EOF stays io.EOF.
func StreamClient(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return clientStream{stream}, nil
}

type clientStream struct{ grpc.ClientStream }

func (s clientStream) SendMsg(m any) error { return FromStatus(s.ClientStream.SendMsg(m)) }

func (s clientStream) RecvMsg(m any) error { return FromStatus(s.ClientStream.RecvMsg(m)) }

func (s clientStream) CloseSend() error { return FromStatus(s.ClientStream.CloseSend()) }
