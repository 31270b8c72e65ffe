package raftnet

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/rpcerr"
)

// Server answers the calls of peers.
type Server struct {
	grpc *grpc.Server
	// cluster names this server's cluster, "" while it has none.
	cluster func() string
	serving sync.WaitGroup
}

// Serve answers calls that arrive at a network, by the services that register
// adds, until Stop. cluster names this server's cluster.
func Serve(network Network, cluster func() string, register func(grpc.ServiceRegistrar)) *Server {
	s := &Server{cluster: cluster}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxPeerMessage), grpc.MaxSendMsgSize(maxPeerMessage),
		grpc.ChainUnaryInterceptor(rpcerr.UnaryServer, s.sameClusterUnary), grpc.ChainStreamInterceptor(rpcerr.StreamServer, s.sameClusterStream),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: peerIdle, Timeout: peerNoContact}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: peerIdle / 2, PermitWithoutStream: true}),
	)
	register(s.grpc)
	listener := network.Listener()
	s.serving.Go(func() { _ = s.grpc.Serve(listener) }) // ends with the listener
	return s
}

// Stop lets answers that are on their way arrive and ends every call.
func (s *Server) Stop() {
	stopped := make(chan struct{})
	s.serving.Go(func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	})
	patience := time.NewTimer(peerCloseTimeout)
	defer patience.Stop()
	select {
	case <-stopped:
	case <-patience.C:
		s.grpc.Stop()
	}
	s.serving.Wait()
}

// sameCluster refuses a call from a server of another cluster. Any server may ask
// for the status; AddMember has an answer of its own.
func (s *Server) sameCluster(ctx context.Context, method string) error {
	if method == peerv1.RaftService_Status_FullMethodName || method == peerv1.RaftService_AddMember_FullMethodName {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	own := s.cluster()
	for _, theirs := range md.Get(clusterHeader) {
		if theirs != own && own != "" {
			return rpcerr.New(rpcerr.Unavailable, ReasonForeignCluster, "this is a server of cluster %s, not %s", own, theirs)
		}
	}
	return nil
}

func (s *Server) sameClusterUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := s.sameCluster(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (s *Server) sameClusterStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := s.sameCluster(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(srv, stream)
}
