package consensus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// rpcTimeout bounds one message between servers.
	rpcTimeout = 10 * time.Second
	// handshakeTimeout bounds how long a connection may take to prove who it is.
	handshakeTimeout = 5 * time.Second
	// connsPerPeer is how many idle connections are kept to each server.
	connsPerPeer = 3
)

// transport is what a node needs of a way to its peers.
type transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// openTransport returns the way to other servers: none, in memory, without an
// address; TLS on the address otherwise.
func openTransport(ctx context.Context, cfg Config) (transport, error) {
	if cfg.Transport.Addr == "" {
		addr, t := raft.NewInmemTransportWithTimeout(raft.ServerAddress(cfg.NodeID), rpcTimeout)
		t.Connect(addr, t)
		return t, nil
	}
	stream, err := listenTLS(ctx, cfg.Transport)
	if err != nil {
		return nil, err
	}
	return safeTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:  stream,
		MaxPool: connsPerPeer,
		Timeout: rpcTimeout,
		Logger:  newRaftLogger(cfg.Logger),
	})}, nil
}

// safeTransport is raft's network transport without its fast path for
// heartbeats. The fast path changes term and state on the connection's
// goroutine while the main loop may be about to append in its old term; the
// entry would then carry the new leader's term (hashicorp/raft#695).
//
// The concrete type is embedded on purpose: wrapping the interface would lose
// PreVote without a word.
type safeTransport struct {
	*raft.NetworkTransport
}

// SetHeartbeatHandler does nothing, so that heartbeats go through the main loop.
func (safeTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close ends the connections in both directions.
func (t safeTransport) Close() error {
	t.CloseStreams()
	return t.NetworkTransport.Close()
}

// tlsStream carries raft's messages over mutually authenticated TLS 1.3.
type tlsStream struct {
	listener       net.Listener
	advertise      net.Addr
	server, client *tls.Config

	mu sync.Mutex
	// conns are the accepted connections that are open; nil once closed.
	conns map[*peerConn]struct{}
}

var _ raft.StreamLayer = (*tlsStream)(nil)

func listenTLS(ctx context.Context, cfg TransportConfig) (*tlsStream, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %s", ErrAddrInUse, cfg.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("consensus: listen on raft address %s: %w", cfg.Addr, err)
	}
	s := &tlsStream{listener: listener, advertise: listener.Addr(), conns: map[*peerConn]struct{}{}}
	if cfg.Advertise != "" {
		s.advertise = advertised(cfg.Advertise)
	}
	base := cfg.TLS.Clone()
	base.MinVersion = tls.VersionTLS13
	base.ClientAuth = tls.RequireAndVerifyClientCert
	if cfg.VerifyPeer != nil {
		base.VerifyConnection = cfg.VerifyPeer
	}
	s.server, s.client = base, base
	return s, nil
}

// advertised is an address of which only the text matters.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// Dial connects to a peer and completes the handshake.
func (s *tlsStream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, "tcp", string(addr), s.client)
}

// Accept returns the next connection. Its handshake happens on its first read,
// which is on its own goroutine, so that a slow peer holds up nobody.
func (s *tlsStream) Accept() (net.Conn, error) {
	raw, err := s.listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &peerConn{Conn: tls.Server(raw, s.server), stream: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	s.conns[c] = struct{}{}
	return c, nil
}

// Addr is the address that peers dial.
func (s *tlsStream) Addr() net.Addr { return s.advertise }

// Close stops listening and ends every accepted connection: raft leaves those
// open, and with them the goroutines that read from them.
func (s *tlsStream) Close() error {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	err := s.listener.Close()
	for c := range conns {
		_ = c.Conn.NetConn().Close()
	}
	return err
}

// peerConn is an accepted connection.
type peerConn struct {
	*tls.Conn
	stream    *tlsStream
	handshake sync.Once
	err       error
}

// Read completes the handshake, within handshakeTimeout, before the first byte.
func (c *peerConn) Read(b []byte) (int, error) {
	c.handshake.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
		defer cancel()
		c.err = c.HandshakeContext(ctx)
	})
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(b)
}

// Close ends the connection.
func (c *peerConn) Close() error {
	c.stream.mu.Lock()
	delete(c.stream.conns, c)
	c.stream.mu.Unlock()
	return c.Conn.Close()
}
