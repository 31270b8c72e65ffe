package raftnet

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"meridian/internal/raftnet/raftnettest"
	"meridian/internal/rpcerr"
)

// TestCallsAreOfMembers: a call is answered for the server that the certificate
// names, while that is a member; and a peer that would not be accepted any more
// loses its connections.
func TestCallsAreOfMembers(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	var member, refused, revoked atomic.Bool
	member.Store(true)
	network, err := Listen(t.Context(), Config{
		Addr: "127.0.0.1:0", TLS: ca.Config(t, "one"),
		VerifyPeer: func(tls.ConnectionState) error {
			if refused.Load() {
				return errors.New("revoked")
			}
			return nil
		},
		PeerServer: func(s tls.ConnectionState) string {
			if name := s.PeerCertificates[0].DNSNames[0]; name != "nameless" {
				return name
			}
			return ""
		},
		PeerKey: func(s tls.ConnectionState) string { return "key of " + s.PeerCertificates[0].DNSNames[0] },
		Revoked: func(key string) bool { return key == "key of nameless" && revoked.Load() },
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	trans := network.Transport(func() Identity { return Identity{Server: "one", Cluster: "c"} })
	server := Serve(network, func() string { return "c" }, func(id raft.ServerID) bool { return member.Load() && id == "two" }, func(r grpc.ServiceRegistrar) {
		healthv1.RegisterHealthServer(r, health.NewServer())
	})
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, trans.Close())
		require.NoError(t, network.Close())
	})
	as := func(id raft.ServerID, certificate string) func() error {
		calling, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, certificate)}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		peers := NewPeers(calling, func() string { return "c" }, func() raft.ServerID { return id })
		t.Cleanup(func() {
			peers.Close()
			require.NoError(t, calling.Close())
		})
		client := healthv1.NewHealthClient(peers.To(string(trans.LocalAddr())))
		return func() error {
			_, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{})
			return err
		}
	}
	two := as("two", "two")
	require.NoError(t, two())
	other := as("two", "mallory")
	err = other()
	require.True(t, rpcerr.HasReason(err, ReasonNotMember), "%v", err)
	require.ErrorContains(t, err, "the certificate is that of server mallory, not of two")
	unknown := as("mallory", "mallory")
	require.True(t, rpcerr.HasReason(unknown(), ReasonNotMember))

	member.Store(false)
	err = two()
	require.True(t, rpcerr.HasReason(err, ReasonNotMember), "%v", err)

	member.Store(true)
	require.NoError(t, two())
	// A certificate that names no server is whom it says to be, unless it is that of one
	// which was removed.
	nameless := as("two", "nameless")
	require.NoError(t, nameless())
	revoked.Store(true)
	require.True(t, rpcerr.HasReason(nameless(), ReasonNotMember), "on the connection that it had")
	require.NoError(t, two())

	refused.Store(true)
	network.Recheck()
	require.Error(t, two(), "on the connection that it had")
}

// TestCallsEndWithTrust: a server that calls a peer ends its connection to it once it
// would not accept it any more.
func TestCallsEndWithTrust(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	peer := answering(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")})
	var refused atomic.Bool
	network, err := Listen(t.Context(), Config{
		Addr: "127.0.0.1:0", TLS: ca.Config(t, "two"),
		VerifyPeer: func(tls.ConnectionState) error {
			if refused.Load() {
				return errors.New("revoked")
			}
			return nil
		},
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	conn, err := network.Dial(t.Context(), string(peer.LocalAddr()))
	require.NoError(t, err)
	network.Recheck()
	_, err = conn.Write([]byte("open"))
	require.NoError(t, err, "it is accepted as before")

	refused.Store(true)
	network.Recheck()
	_, err = conn.Write([]byte("closed"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, conn.Close(), net.ErrClosed)

	refused.Store(false)
	late, err := network.Dial(t.Context(), string(peer.LocalAddr()))
	require.NoError(t, err)
	require.NoError(t, network.Close())
	_, err = late.Write([]byte("closed"))
	require.ErrorIs(t, err, net.ErrClosed, "it ends with the network")
}
