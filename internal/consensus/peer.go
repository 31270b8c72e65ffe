package consensus

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/rpcerr"
)

const (
	// maxPeerMessage bounds a call between servers: a batch at its largest fits.
	maxPeerMessage = 64 << 20
	// peerIdle is how long a connection to a peer may be silent before it is
	// asked whether it is alive, peerSilence how long it has to answer.
	peerIdle, peerSilence = 10 * time.Second, rpcTimeout
	// peerUnused is how long a connection without calls is kept.
	peerUnused = 5 * time.Minute
	// peerConnect bounds an attempt to connect.
	peerConnect = rpcTimeout
	// peerRetirement is how long calls may go on using a connection that seems
	// dead.
	peerRetirement = 10 * time.Second
	// peerFarewell is how long Close lets the answers of calls that are done
	// reach their callers.
	peerFarewell = 500 * time.Millisecond
)

// peers are the connections of a node to the other servers.
type peers struct {
	network Network
	// cluster names this server's cluster, "" while it has none.
	cluster func() string

	mu sync.Mutex
	// conns are by raft address; nil once closed.
	conns map[string]*grpc.ClientConn
	// retired are those that no new call uses, with what will close them.
	retired map[*grpc.ClientConn]*time.Timer
}

func newPeers(network Network, cluster func() string) *peers {
	return &peers{network: network, cluster: cluster, conns: map[string]*grpc.ClientConn{}, retired: map[*grpc.ClientConn]*time.Timer{}}
}

// conn returns the connection to an address. It is made when it is first used.
func (p *peers) conn(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, ErrClosed
	}
	if c, ok := p.conns[addr]; ok {
		return c, nil
	}
	if p.network == nil || addr == "" {
		return nil, noNetwork(addr)
	}
	c, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.network.Dial(ctx, addr) }),
		// What the network dials has proved who it is and is encrypted already.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: peerConnect,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: peerIdle, Timeout: peerSilence}),
		grpc.WithIdleTimeout(peerUnused),
		grpc.WithDisableServiceConfig(),
		grpc.WithChainUnaryInterceptor(rpcerr.UnaryClient, p.nameClusterUnary), grpc.WithChainStreamInterceptor(rpcerr.StreamClient, p.nameClusterStream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPeerMessage), grpc.MaxCallSendMsgSize(maxPeerMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("consensus: connect to the server at %s: %w", addr, err)
	}
	p.conns[addr] = c
	return c, nil
}

// retire makes the next call to an address use a new connection, because this
// one seems dead. Calls in progress on it have some time left to finish.
func (p *peers) retire(addr string, dead *grpc.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[addr] != dead {
		return
	}
	delete(p.conns, addr)
	p.retired[dead] = time.AfterFunc(peerRetirement, func() {
		p.mu.Lock()
		delete(p.retired, dead)
		p.mu.Unlock()
		_ = dead.Close()
	})
}

func (p *peers) close() {
	p.mu.Lock()
	conns, retired := p.conns, p.retired
	p.conns, p.retired = nil, nil
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	for c, timer := range retired {
		timer.Stop()
		_ = c.Close()
	}
}

// PeerConn returns a connection to the server with a raft address, for the
// services it registered with Config.PeerServices. Both ends have proved to be
// servers of this cluster. It is shared, connects when it is first used and
// again after a failure, and is closed with the node.
func (n *Node) PeerConn(addr string) grpc.ClientConnInterface { return peerConnTo{n.peers, addr} }

// peerConnTo is a connection that is looked up at each call.
type peerConnTo struct {
	peers *peers
	addr  string
}

// Invoke implements grpc.ClientConnInterface.
func (c peerConnTo) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.peers.conn(c.addr)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c peerConnTo) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.peers.conn(c.addr)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

// servePeers answers the calls of peers until stopPeers.
func (n *Node) servePeers() {
	n.peerServer = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxPeerMessage), grpc.MaxSendMsgSize(maxPeerMessage),
		grpc.ChainUnaryInterceptor(rpcerr.UnaryServer, n.sameClusterUnary), grpc.ChainStreamInterceptor(rpcerr.StreamServer, n.sameClusterStream),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: peerIdle, Timeout: peerSilence}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: peerIdle / 2, PermitWithoutStream: true}),
	)
	peerv1.RegisterRaftServiceServer(n.peerServer, &peerService{node: n})
	if n.cfg.PeerServices != nil {
		n.cfg.PeerServices(n.peerServer)
	}
	listener := n.network.Listener()
	n.serving.Go(func() { _ = n.peerServer.Serve(listener) }) // ends with the listener
}

// stopPeers lets answers that are on their way arrive and ends every call.
func (n *Node) stopPeers() {
	n.peers.close()
	if n.peerServer == nil {
		return
	}
	stopped := make(chan struct{})
	n.serving.Go(func() {
		defer close(stopped)
		n.peerServer.GracefulStop()
	})
	patience := time.NewTimer(peerFarewell)
	defer patience.Stop()
	select {
	case <-stopped:
	case <-patience.C:
		n.peerServer.Stop()
	}
	n.serving.Wait()
}
