package consensus

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/rpcerr"
)

// clusterHeader carries the id of the caller's cluster. Certificates do not always
// tell clusters apart, and an address may have passed from a server of one to a
// server of another, whose answers would be taken for ours.
const clusterHeader = "meridian-cluster"

func (p *peers) nameCluster(ctx context.Context) context.Context {
	if cluster := p.cluster(); cluster != "" {
		return metadata.AppendToOutgoingContext(ctx, clusterHeader, cluster)
	}
	return ctx
}

func (p *peers) nameClusterUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(p.nameCluster(ctx), method, req, reply, cc, opts...)
}

func (p *peers) nameClusterStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(p.nameCluster(ctx), desc, cc, method, opts...)
}

// sameCluster refuses a call from a server of another cluster. Anybody may ask
// how a server stands; AddMember has an answer of its own.
func (n *Node) sameCluster(ctx context.Context, method string) error {
	if method == peerv1.RaftService_Status_FullMethodName || method == peerv1.RaftService_AddMember_FullMethodName {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	own := n.ClusterID()
	for _, theirs := range md.Get(clusterHeader) {
		if theirs != own && own != "" {
			return rpcerr.New(rpcerr.Unavailable, ReasonForeignCluster, "this is a server of cluster %s, not %s", own, theirs)
		}
	}
	return nil
}

func (n *Node) sameClusterUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := n.sameCluster(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (n *Node) sameClusterStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := n.sameCluster(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(srv, stream)
}
