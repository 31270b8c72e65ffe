package raftnet

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/rpcerr"
)

// Server answers the calls of peers.
type Server struct {
	grpc *grpc.Server
	// cluster names this server's cluster, "" while it has none.
	cluster func() string
	// member reports whether a server is a member of the cluster.
	member  func(raft.ServerID) bool
	serving sync.WaitGroup
}

// Serve answers calls that arrive at a network, by the services that register
// adds, until Stop. cluster names this server's cluster; member reports whether a
// server is a member of it now, and is asked at every call.
func Serve(network Network, cluster func() string, member func(raft.ServerID) bool, register func(grpc.ServiceRegistrar)) *Server {
	s := &Server{cluster: cluster, member: member}
	s.grpc = grpc.NewServer(
		grpc.Creds(proved{}),
		grpc.MaxRecvMsgSize(maxPeerMessage), grpc.MaxSendMsgSize(maxPeerMessage),
		grpc.StaticStreamWindowSize(peerStreamWindow), grpc.StaticConnWindowSize(peerConnWindow),
		grpc.ChainUnaryInterceptor(rpcerr.UnaryServer, s.authorizeUnary), grpc.ChainStreamInterceptor(rpcerr.StreamServer, s.authorizeStream),
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

// authorize decides about a call: it must come from a member of this cluster, and from
// the server that the certificate names. Any server may ask for the status and to
// be added: both decide by themselves how much a caller is told or given, by
// CallerFrom.
func (s *Server) authorize(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	caller := raft.ServerID(strings.Join(md.Get(serverHeader), ","))
	if named := provedServer(ctx); named != "" && named != caller {
		return ctx, rpcerr.New(rpcerr.Denied, ReasonNotMember, "the certificate is that of server %s, not of %s", named, caller)
	}
	key, revoked := provedKey(ctx)
	member := s.member(caller) && !revoked
	ctx = context.WithValue(ctx, callerKey{}, Caller{Server: caller, Member: member, Key: key})
	if method == peerv1.RaftService_Status_FullMethodName || method == peerv1.RaftService_AddMember_FullMethodName {
		return ctx, nil
	}
	own := s.cluster()
	for _, theirs := range md.Get(clusterHeader) {
		if theirs != own && own != "" {
			return ctx, rpcerr.New(rpcerr.Unavailable, ReasonForeignCluster, "this is a server of cluster %s, not %s", own, theirs)
		}
	}
	if !member {
		return ctx, rpcerr.New(rpcerr.Denied, ReasonNotMember, "server %q is not a member of cluster %s", raftlog.NameOf(caller), own)
	}
	return ctx, nil
}

// Caller is who makes a call.
type Caller struct {
	// Server is what raft knows it by: as it says, and as its certificate proves
	// where that names a server.
	Server raft.ServerID
	// Member: it is a member of this server's cluster now, and its certificate is not
	// that of a server which was removed.
	Member bool
	// Key identifies the key of its certificate where that names no server
	// (Config.PeerKey), "" where it does.
	Key string
}

type callerKey struct{}

// CallerFrom returns who makes the call that is answered in a context.
func CallerFrom(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

func (s *Server) authorizeUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, err := s.authorize(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (s *Server) authorizeStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, err := s.authorize(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handle(srv, &streamWithCaller{ServerStream: stream, ctx: ctx})
}

// streamWithCaller is a stream whose context knows the caller.
type streamWithCaller struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *streamWithCaller) Context() context.Context { return s.ctx }

// proved are the transport credentials of connections that the network has
// authenticated already: they pass on which server the certificate names.
type proved struct{}

var _ credentials.TransportCredentials = proved{}

// peerInfo is what the handshake proved.
type peerInfo struct {
	credentials.CommonAuthInfo
	server raft.ServerID
	key    string
	// revoked is asked at every call: a connection may outlast a removal.
	revoked func(string) bool
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "tls" }

// provedServer returns the server that the certificate of a call's connection
// names, "" where it names none.
func provedServer(ctx context.Context) raft.ServerID {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(peerInfo); ok {
			return info.server
		}
	}
	return ""
}

// provedKey returns the key that a call's certificate proves where that names no
// server, and whether it is that of a server which was removed.
func provedKey(ctx context.Context) (key string, revoked bool) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(peerInfo); ok && info.key != "" {
			return info.key, info.revoked != nil && info.revoked(info.key)
		}
	}
	return "", false
}

// ServerHandshake implements credentials.TransportCredentials.
func (proved) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	if c, ok := raw.(*tlsConn); ok && c.network.peerServer != nil {
		info.server = raft.ServerID(c.network.peerServer(c.ConnectionState()))
	}
	if c, ok := raw.(*tlsConn); ok {
		info.key, info.revoked = c.network.identify.key(c.ConnectionState()), c.network.identify.Revoked
	}
	return raw, info, nil
}

// ClientHandshake implements credentials.TransportCredentials. The connections of
// clients are made by the network (Peers).
func (proved) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers")
}

// Info implements credentials.TransportCredentials.
func (proved) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (p proved) Clone() credentials.TransportCredentials { return p }

// OverrideServerName implements credentials.TransportCredentials.
func (proved) OverrideServerName(string) error { return nil }
