package raftnet

import (
	"container/list"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

const (
	// RPCTimeout bounds how long a message between servers may go without
	// progress.
	RPCTimeout = 2 * time.Second
	// handshakeTimeout bounds how long a connection may take to prove who it is.
	handshakeTimeout = 5 * time.Second
	// connsPerPeer is how many idle connections are kept to each server.
	connsPerPeer = 3
	// maxHandshakes bounds the connections that have not proved yet who they are.
	maxHandshakes = 256
)

// The protocols of the raft port, agreed upon in the handshake: calls, and raft's
// messages to one server of one cluster.
const protocolCalls = "h2"

// protocolRaft is what carries raft's messages to a server. The name of a
// protocol is at most 255 bytes long, so cluster and server are hashed.
func protocolRaft(cluster string, server raft.ServerID) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q/%q", cluster, server))
	return "meridian-raft/1/" + hex.EncodeToString(sum[:16])
}

// safeTransport is raft's network transport without its fast path for
// heartbeats. The fast path changes term and state on the connection's
// goroutine while the main loop may be about to append in its old term; the
// entry would then carry the new leader's term (hashicorp/raft#695).
//
// The concrete type is embedded on purpose: wrapping raft's interface would
// lose PreVote without a word.
type safeTransport struct {
	*raft.NetworkTransport
}

// addressTo names the server that a message is for, besides its address: the
// handshake asks for it.
func addressTo(id raft.ServerID, target raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + target
}

// retry sends a message until it meets a connection that was open. Raft keeps
// connections for the next message, to a server that may have been restarted
// since, and takes the end of such a connection for the server's silence: an
// election loses a vote to it, and seconds with another round. Every message that
// is sent in this way may arrive twice.
func retry(send func() error) error {
	for range connsPerPeer {
		if err := send(); !connectionEnded(err) {
			return err
		}
	}
	return send()
}

// connectionEnded reports that an error is the end of an established connection.
func connectionEnded(err error) bool {
	var unreached *unreachableError
	if errors.As(err, &unreached) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// unreachableError says that no connection to a server could be made.
type unreachableError struct {
	server string
	err    error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("reach server %s of this cluster: %v", e.server, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// AppendEntries sends entries or a heartbeat.
func (t safeTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return retry(func() error { return t.NetworkTransport.AppendEntries(id, addressTo(id, target), args, resp) })
}

// AppendEntriesPipeline opens a way for entries.
func (t safeTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.NetworkTransport.AppendEntriesPipeline(id, addressTo(id, target))
}

// RequestVote asks for a vote.
func (t safeTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return retry(func() error { return t.NetworkTransport.RequestVote(id, addressTo(id, target), args, resp) })
}

// RequestPreVote asks whether a vote would be given.
func (t safeTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return retry(func() error { return t.NetworkTransport.RequestPreVote(id, addressTo(id, target), args, resp) })
}

// InstallSnapshot sends a snapshot.
func (t safeTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.NetworkTransport.InstallSnapshot(id, addressTo(id, target), args, resp, data)
}

// TimeoutNow makes another server campaign.
func (t safeTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return retry(func() error { return t.NetworkTransport.TimeoutNow(id, addressTo(id, target), args, resp) })
}

// SetHeartbeatHandler does nothing, so that heartbeats go through the main loop.
func (t safeTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close ends the connections in both directions.
func (t safeTransport) Close() error {
	t.CloseStreams()
	return t.NetworkTransport.Close()
}

// tlsNetwork carries raft's messages and peers' calls over mutually
// authenticated TLS 1.3 on one port.
type tlsNetwork struct {
	listener net.Listener
	tls      *tls.Config
	logger   hclog.Logger
	// authorities is Config.Authorities.
	authorities func() *x509.CertPool
	// peerServer is Config.PeerServer.
	peerServer func(tls.ConnectionState) string
	// identify are the parts of Config that tell by which key a peer is known.
	identify Config
	// self is set, and transport made, before the first message of raft's.
	self      func() Identity
	transport *safeTransport
	// raft and calls are handed the connections of their protocol.
	raft, calls *handoff
	// ended wakes when one of those that raft was handed ends.
	ended Signal

	// accepting ends with stop, and every handshake with it; users are the
	// goroutines that do both.
	accepting context.Context
	stop      context.CancelFunc
	users     sync.WaitGroup
	mu        sync.Mutex
	// conns are the open connections: those accepted, and those to others; nil once
	// closed. handshaking are those accepted that have
	// not proved yet who they are, oldest first.
	conns       map[*tlsConn]struct{}
	handshaking list.List
}

var _ Network = (*tlsNetwork)(nil)

// Listen returns the network of a server that listens at the configured address.
//
// Errors: ErrAddrInUse, or why it cannot listen.
func Listen(ctx context.Context, cfg Config, logger *slog.Logger) (Network, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %s", ErrAddrInUse, cfg.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on raft address %s: %w", cfg.Addr, err)
	}
	advertise := listener.Addr()
	if cfg.Advertise != "" {
		advertise = advertised(cfg.Advertise)
	}
	base := cfg.TLS.Clone()
	base.MinVersion = tls.VersionTLS13
	base.ClientAuth = tls.RequireAndVerifyClientCert
	base.VerifyConnection = cfg.verify
	n := &tlsNetwork{
		listener: listener, tls: base, logger: NewLogger(logger), authorities: cfg.Authorities, peerServer: cfg.PeerServer, identify: cfg,
		raft: newHandoff(advertise), calls: newHandoff(advertise),
		conns: map[*tlsConn]struct{}{},
	}
	n.accepting, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	return n, nil
}

// Transport carries raft's messages, and has both kinds of connections accepted.
func (n *tlsNetwork) Transport(self func() Identity) Transport {
	n.self = self
	n.transport = &safeTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:  raftStream{n},
		MaxPool: connsPerPeer,
		Timeout: RPCTimeout,
		Logger:  n.logger,
	})}
	n.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return n.speaking(), nil }
	n.users.Go(n.accept)
	return *n.transport
}

// config is the TLS of a connection that begins now.
func (n *tlsNetwork) config() *tls.Config {
	config := n.tls.Clone()
	config.GetConfigForClient = nil
	if n.authorities != nil {
		config.RootCAs = n.authorities()
		config.ClientCAs = config.RootCAs
	}
	return config
}

// speaking returns the TLS of a connection to this server: calls are for any,
// raft's messages for the one that is meant, once it belongs to a cluster.
func (n *tlsNetwork) speaking() *tls.Config {
	config := n.config()
	config.NextProtos = []string{protocolCalls}
	if self := n.self(); self.Cluster != "" {
		config.NextProtos = append(config.NextProtos, protocolRaft(self.Cluster, self.Server))
	}
	return config
}

// advertised is an address of which only the text matters.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// accept takes connections until Close. Each proves who it is on a goroutine of
// its own, so that a slow peer holds up no other. Of too many that have not, the
// one that has taken longest is given up: handshaking may come faster than that,
// but a peer is quick.
func (n *tlsNetwork) accept() {
	ctx := n.accepting
	pause := time.Duration(0)
	for ctx.Err() == nil {
		raw, err := n.listener.Accept()
		if err != nil {
			pause = min(max(5*time.Millisecond, 2*pause), time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(pause): // out of file descriptors, for example
			}
			continue
		}
		pause = 0
		conn := &tlsConn{Conn: tls.Server(newProgressConn(raw), n.tls), network: n}
		if !n.register(conn) {
			_ = raw.Close()
			return
		}
		n.trackHandshake(conn)
		n.users.Go(func() { n.handshake(ctx, conn) })
	}
}

// handshake completes the handshake and hands the connection to its protocol.
func (n *tlsNetwork) handshake(ctx context.Context, conn *tlsConn) {
	limited, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	err := conn.HandshakeContext(limited)
	n.handshakeDone(conn)
	if err != nil {
		_ = conn.abort()
		return
	}
	to := n.raft
	switch conn.ConnectionState().NegotiatedProtocol {
	case protocolCalls:
		to = n.calls
	case "": // a client that names no protocol may mean another server
		_ = conn.abort()
		return
	}
	conn.forRaft = to == n.raft
	if !to.hand(ctx, conn) {
		_ = conn.abort()
	}
}

// register notes an open connection, unless the network is closed.
func (n *tlsNetwork) register(c *tlsConn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		return false
	}
	n.conns[c] = struct{}{}
	return true
}

// Recheck ends the connections of peers that would not be accepted now.
func (n *tlsNetwork) Recheck() {
	n.mu.Lock()
	var open []*tlsConn
	for c := range n.conns {
		if c.place == nil { // the others are decided about at the end of the handshake
			open = append(open, c)
		}
	}
	n.mu.Unlock()
	for _, c := range open {
		if state := c.ConnectionState(); state.HandshakeComplete && n.tls.VerifyConnection(state) != nil {
			_ = c.NetConn().Close()
		}
	}
}

// trackHandshake notes a connection whose handshake begins, and gives up the oldest of
// too many.
func (n *tlsNetwork) trackHandshake(c *tlsConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handshaking.Len() == maxHandshakes {
		oldest := n.handshaking.Remove(n.handshaking.Front()).(*tlsConn)
		oldest.place = nil
		_ = oldest.NetConn().Close() // which ends its handshake
	}
	c.place = n.handshaking.PushBack(c)
}

// handshakeDone notes that a connection's handshake is over.
func (n *tlsNetwork) handshakeDone(c *tlsConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.place != nil {
		n.handshaking.Remove(c.place)
		c.place = nil
	}
}

func (n *tlsNetwork) forget(c *tlsConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// dial connects to a peer, over TLS as given, and completes the handshake.
func (n *tlsNetwork) dial(ctx context.Context, addr string, config *tls.Config) (*tls.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if config.ServerName == "" {
		if config.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
	}
	conn := tls.Client(newProgressConn(raw), config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // it is closed already where ctx has ended
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no TLS handshake in time: %w", err)
		}
		return nil, err
	}
	return conn, nil
}

// Listener accepts the calls of peers.
func (n *tlsNetwork) Listener() net.Listener { return n.calls }

// Dial connects to a peer for calls.
func (n *tlsNetwork) Dial(ctx context.Context, addr string) (net.Conn, error) {
	config := n.config()
	config.NextProtos = []string{protocolCalls}
	raw, err := n.dial(ctx, addr, config)
	if err != nil {
		return nil, err
	}
	return n.opened(raw)
}

// opened notes a connection to a peer, which Recheck and Close end.
func (n *tlsNetwork) opened(raw *tls.Conn) (net.Conn, error) {
	conn := &tlsConn{Conn: raw, network: n}
	if !n.register(conn) {
		return nil, errors.Join(net.ErrClosed, conn.abort())
	}
	return conn, nil
}

// Close stops listening and ends every connection: raft leaves those that it
// accepted open, and waits for an answer on those that it opened.
func (n *tlsNetwork) Close() error {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	if conns == nil {
		return nil
	}
	n.stop()
	err := n.listener.Close()
	for c := range conns {
		_ = c.NetConn().Close() // without a farewell, which the peer might not take
	}
	n.users.Wait()
	if n.transport != nil {
		err = errors.Join(err, n.transport.Close())
	}
	return errors.Join(err, n.calls.Close())
}

// raftStream is the side of the network that raft sees.
type raftStream struct{ *tlsNetwork }

var _ raft.StreamLayer = raftStream{}

// Dial connects to the server that is meant, for raft's messages.
func (s raftStream) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.accepting, timeout)
	defer cancel()
	server, addr := "", string(target)
	if i := strings.LastIndex(addr, "@"); i >= 0 {
		server, addr = addr[:i], addr[i+1:]
	}
	cluster := s.self().Cluster
	if cluster == "" {
		return nil, errNotMember
	}
	config := s.config()
	config.NextProtos = []string{protocolRaft(cluster, raft.ServerID(server))}
	raw, err := s.dial(ctx, addr, config)
	if err != nil {
		return nil, &unreachableError{raftlog.NameOf(raft.ServerID(server)), err}
	}
	if met := s.identify.Met; met != nil {
		if key := s.identify.key(raw.ConnectionState()); key != "" {
			met(server, key)
		}
	}
	return s.opened(raw)
}

// Meet reaches a server as raft's messages would.
func (n *tlsNetwork) Meet(ctx context.Context, server raft.ServerID, addr string) error {
	patience := RPCTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline))
	}
	conn, err := raftStream{n}.Dial(addressTo(server, raft.ServerAddress(addr)), patience)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Ended tells of connections that raft was handed and has closed.
func (n *tlsNetwork) Ended() <-chan struct{} { return n.ended.Wait() }

// Accept returns the next connection for raft.
func (s raftStream) Accept() (net.Conn, error) { return s.tlsNetwork.raft.Accept() }

// Addr is the address that peers dial.
func (s raftStream) Addr() net.Addr { return s.tlsNetwork.raft.Addr() }

// Close stops Accept.
func (s raftStream) Close() error { return s.tlsNetwork.raft.Close() }

// handoff is a listener that is handed its connections.
type handoff struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newHandoff(addr net.Addr) *handoff {
	return &handoff{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// hand passes a connection to Accept and reports whether it was taken.
func (d *handoff) hand(ctx context.Context, c net.Conn) bool {
	select {
	case d.conns <- c:
		return true
	case <-d.closed:
	case <-ctx.Done():
	}
	return false
}

// Accept returns the next connection.
func (d *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// Addr is the address that peers dial.
func (d *handoff) Addr() net.Addr { return d.addr }

// Close stops Accept.
func (d *handoff) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// tlsConn is a connection that ends with the network.
type tlsConn struct {
	*tls.Conn
	network *tlsNetwork
	// place is where it stands among the handshaking; nil once it is none.
	place *list.Element
	// forRaft says that it was accepted, for raft's messages.
	forRaft bool
}

// Close ends the connection.
func (c *tlsConn) Close() error {
	c.network.forget(c)
	if c.forRaft {
		c.network.ended.Wake()
	}
	return c.Conn.Close()
}

// abort ends a connection that was never used, without a farewell.
func (c *tlsConn) abort() error {
	c.network.forget(c)
	return c.NetConn().Close()
}
