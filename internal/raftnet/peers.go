package raftnet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"meridian/internal/dial"
	"meridian/internal/rpcerr"
)

const (
	// maxPeerMessage bounds a call between servers: a batch at its largest fits.
	maxPeerMessage = 64 << 20
	// peerStreamWindow and peerConnWindow are what a peer may have on its way. Windows that
	// gRPC adapts to the connection cost an exchange of their own for almost every message,
	// by which it is measured.
	peerStreamWindow, peerConnWindow = 4 << 20, 16 << 20
	// peerIdle is how long a connection to a peer may carry nothing before it is
	// probed, peerNoContact how long the peer has to answer.
	peerIdle, peerNoContact = 10 * time.Second, RPCTimeout
	// peerUnused is how long a connection without calls is kept.
	peerUnused = 5 * time.Minute
	// peerConnect bounds an attempt to connect.
	peerConnect = RPCTimeout
	// peerRetirement is how long calls in progress may use a connection that
	// seems dead.
	peerRetirement = 10 * time.Second
	// peerCloseTimeout is how long a server that stops waits for the answers of
	// calls that are done to be sent.
	peerCloseTimeout = 500 * time.Millisecond
)

// Peers are the connections of a node to the other servers.
type Peers struct {
	network Network
	// cluster names this server's cluster, "" while it has none.
	cluster func() string
	// self is what raft knows this server by.
	self func() raft.ServerID

	mu sync.Mutex
	// conns are by raft address; nil once closed.
	conns map[string]*grpc.ClientConn
	// retired are those that no new call uses, with what will close them.
	retired map[*grpc.ClientConn]*time.Timer
}

// NewPeers returns the connections through a network. Each call names the cluster
// that cluster returns, and this server as self does.
func NewPeers(network Network, cluster func() string, self func() raft.ServerID) *Peers {
	return &Peers{network: network, cluster: cluster, self: self, conns: map[string]*grpc.ClientConn{}, retired: map[*grpc.ClientConn]*time.Timer{}}
}

// Conn returns the connection to an address. It is made when it is first used.
func (p *Peers) Conn(addr string) (*grpc.ClientConn, error) {
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
	log := dial.NewLog()
	c, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := p.network.Dial(ctx, addr)
			log.Record(addr, err)
			return conn, err
		}),
		// What the network dials has proved who it is and is encrypted already.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: peerConnect,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: peerIdle, Timeout: peerNoContact}),
		grpc.WithIdleTimeout(peerUnused),
		grpc.WithStaticStreamWindowSize(peerStreamWindow), grpc.WithStaticConnWindowSize(peerConnWindow),
		grpc.WithDisableServiceConfig(),
		grpc.WithChainUnaryInterceptor(log.UnaryClient, rpcerr.UnaryClient, p.nameCallerUnary),
		grpc.WithChainStreamInterceptor(log.StreamClient, rpcerr.StreamClient, p.nameCallerStream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPeerMessage), grpc.MaxCallSendMsgSize(maxPeerMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to the server at %s: %w", addr, err)
	}
	p.conns[addr] = c
	return c, nil
}

// Retire makes the next call to an address use a new connection, because this
// one seems dead. Calls in progress on it have some time left to finish.
func (p *Peers) Retire(addr string, dead *grpc.ClientConn) {
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

// Close closes all connections. Calls in progress fail.
func (p *Peers) Close() {
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

// To returns a connection to the server with a raft address. It is shared,
// connects when it is first used and again after a failure, and is closed with
// the others.
func (p *Peers) To(addr string) grpc.ClientConnInterface { return peerConn{p, addr} }

// peerConn is a connection that is looked up at each call.
type peerConn struct {
	peers *Peers
	addr  string
}

// Invoke implements grpc.ClientConnInterface.
func (c peerConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.peers.Conn(c.addr)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c peerConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.peers.Conn(c.addr)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}
