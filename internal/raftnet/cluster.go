package raftnet

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// clusterHeader carries the id of the caller's cluster. Certificates do not always
// tell clusters apart, and an address may have passed from a server of one to a
// server of another, whose answers would be taken for ours.
const clusterHeader = "meridian-cluster"

// serverHeader carries what raft knows the caller by.
const serverHeader = "meridian-server-bin"

func (p *Peers) nameCaller(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, serverHeader, string(p.self()))
	if cluster := p.cluster(); cluster != "" {
		return metadata.AppendToOutgoingContext(ctx, clusterHeader, cluster)
	}
	return ctx
}

func (p *Peers) nameCallerUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(p.nameCaller(ctx), method, req, reply, cc, opts...)
}

func (p *Peers) nameCallerStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(p.nameCaller(ctx), desc, cc, method, opts...)
}
