package raftnet

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// ErrAddrInUse means that something else listens on the raft address. Choose
// another address, or port 0 for any free one.
var ErrAddrInUse = errors.New("raft address is in use")

// ErrClosed means that the connections to peers were closed before the call began.
var ErrClosed = errors.New("node is closed")

// ReasonForeignCluster is why a server refuses a call of another cluster's server
// (rpcerr.HasReason).
const ReasonForeignCluster = "FOREIGN_CLUSTER"

// ReasonNotMember is why a server refuses a call of one that is not a member of
// its cluster, or not the one that its certificate names (rpcerr.HasReason).
const ReasonNotMember = "NOT_A_MEMBER"

// Identity is who a server is to the transports of others.
type Identity struct {
	// Server is what raft knows it by, Cluster its cluster's id, "" while it has
	// none.
	Server  raft.ServerID
	Cluster string
}

// Config is how a server reaches other servers and is reached. The zero value is
// no network: a single-server cluster.
type Config struct {
	// Addr is the host:port to listen on; port 0 is any free one.
	Addr string
	// Advertise is the host:port that peers dial, the bound one when empty.
	// Required when Addr is an unspecified host such as 0.0.0.0.
	Advertise string
	// TLS serves both directions: its certificates are presented, RootCAs checks
	// servers, ClientCAs clients, ServerName (or the dialled host) is expected
	// of servers. TLS 1.3 and client certificates are enforced.
	TLS *tls.Config
	// Authorities, unless nil, are asked at every handshake for what checks servers
	// and clients in place of those in TLS.
	Authorities func() *x509.CertPool
	// VerifyPeer, unless nil, decides about a peer whose certificate is good:
	// whether its name belongs to this cluster.
	VerifyPeer func(tls.ConnectionState) error
	// PeerServer, unless nil, returns the server that a certificate was made for,
	// "" where it names none.
	PeerServer func(tls.ConnectionState) string
	// PeerKey, unless nil, identifies the key of a peer's certificate where the
	// certificate does not name the server, "" where it does.
	PeerKey func(tls.ConnectionState) string
	// Revoked, unless nil, reports whether a key (PeerKey) is that of a server which
	// was removed. It counts as Removed does, whichever server it claims to be.
	Revoked func(key string) bool
	// Met, unless nil, is told of each server that was reached for raft's messages,
	// and the key that it proved to have (PeerKey). The handshake is that server's: it
	// names the receiver.
	Met func(server, key string)
	// Removed, unless nil, reports whether a server was removed from the cluster:
	// raft's messages are not exchanged with it. It may still make calls, which are
	// decided about one by one.
	Removed func(raft.ServerID) bool
}

// Validate reports what is missing or impossible.
func (c Config) Validate() error {
	if c.Addr == "" {
		return nil
	}
	if c.TLS == nil {
		return errors.New("a raft address needs TLS: servers do not talk in the clear")
	}
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return fmt.Errorf("raft address: %w", err)
	}
	if ip := net.ParseIP(host); c.Advertise == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("raft address %s cannot be dialled by peers: an address to advertise is required", c.Addr)
	}
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return fmt.Errorf("advertised raft address: %w", err)
		}
	}
	return nil
}

// key identifies the key of a peer whose certificate names no server.
func (c Config) key(state tls.ConnectionState) string {
	if c.PeerKey == nil {
		return ""
	}
	return c.PeerKey(state)
}

// verify decides about a peer whose certificate is good.
func (c Config) verify(state tls.ConnectionState) error {
	if c.VerifyPeer != nil {
		if err := c.VerifyPeer(state); err != nil {
			return err
		}
	}
	if state.NegotiatedProtocol == protocolCalls {
		return nil
	}
	if key := c.key(state); key != "" && c.Revoked != nil && c.Revoked(key) {
		return errors.New("the certificate is that of a server which was removed from the cluster")
	}
	if c.PeerServer == nil || c.Removed == nil {
		return nil
	}
	if server := raft.ServerID(c.PeerServer(state)); server != "" && c.Removed(server) {
		return fmt.Errorf("server %s was removed from the cluster", raftlog.NameOf(server))
	}
	return nil
}
