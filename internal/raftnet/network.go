package raftnet

import (
	"context"
	"fmt"
	"net"

	"github.com/hashicorp/raft"
)

// Network is a node's way to its peers. Both ways of talking, raft's messages
// and calls (RaftService and Config.PeerServices), use the node's raft address.
// The node closes it.
type Network interface {
	// Transport carries raft's messages, to the server that is meant and between
	// servers of one cluster only: an address may have passed to another server,
	// which must neither vote nor confirm entries in its place. self says who this
	// server is; while it has no cluster, nothing is carried to or from it. It is
	// not called before the first message. Called once.
	//
	// A transport must not handle heartbeats on a path of their own
	// (hashicorp/raft#695): SetHeartbeatHandler does nothing.
	Transport(self func() Identity) Transport
	// Listener accepts the calls of peers; every connection it returns has proved
	// to be a peer's.
	Listener() net.Listener
	// Dial connects to the Listener of the peer with a raft address and returns
	// once it has proved who it is.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// Meet reaches a server for raft's messages and returns once it has proved who it
	// is, for Config.Met. That no process listens at the address is
	// syscall.ECONNREFUSED.
	Meet(ctx context.Context, server raft.ServerID, addr string) error
	// Ended returns a channel that is closed when a connection that a peer opened for
	// raft's messages has ended, by either side.
	Ended() <-chan struct{}
	// Recheck decides again about the peers of all open connections, and ends those
	// of peers that would not be accepted now.
	Recheck()
	// Close ends what Transport.Close and Listener.Close leave.
	Close() error
}

// Transport is what raft needs of a network.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// Loopback is the transport of a node without a network: it reaches itself.
func Loopback(id string) Transport {
	addr, t := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), RPCTimeout)
	t.Connect(addr, t)
	return t
}

// noNetwork is the error of whatever needs a peer in a node without a network.
func noNetwork(addr string) error {
	return fmt.Errorf("no way to the server at %s: this one has no network", addr)
}
