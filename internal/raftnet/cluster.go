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

func (p *Peers) nameCluster(ctx context.Context) context.Context {
	if cluster := p.cluster(); cluster != "" {
		return metadata.AppendToOutgoingContext(ctx, clusterHeader, cluster)
	}
	return ctx
}

func (p *Peers) nameClusterUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(p.nameCluster(ctx), method, req, reply, cc, opts...)
}

func (p *Peers) nameClusterStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(p.nameCluster(ctx), desc, cc, method, opts...)
}
