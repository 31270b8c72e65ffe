package raftnet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"meridian/internal/raftnet/raftnettest"
)

// answering opens a transport that grants every vote, until the test ends.
func answering(t *testing.T, cfg Config) Transport {
	t.Helper()
	trans, stop := answeringUntil(t, cfg)
	t.Cleanup(stop)
	return trans
}

// answeringUntil opens a transport that grants every vote, until stop.
func answeringUntil(t *testing.T, cfg Config) (trans Transport, stop func()) {
	t.Helper()
	network, err := Listen(context.Background(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	trans = network.Transport(func() Identity { return Identity{Server: "one", Cluster: "cluster"} })
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case rpc := <-trans.Consumer():
				rpc.Respond(&raft.RequestVoteResponse{Term: 7, Granted: true}, nil)
			case <-done:
				return
			}
		}
	}()
	return trans, func() {
		close(done)
		<-stopped
		require.NoError(t, trans.Close())
		require.NoError(t, network.Close())
	}
}

// TestMessagesOutliveARestart: connections that were kept to a server before it
// was restarted do not cost an election its vote.
func TestMessagesOutliveARestart(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	caller := answering(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "two")})
	cfg := Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")}
	server, stop := answeringUntil(t, cfg)
	cfg.Addr = string(server.LocalAddr())
	ask := func() error {
		var response raft.RequestVoteResponse
		return caller.RequestVote("one", raft.ServerAddress(cfg.Addr), &raft.RequestVoteRequest{Term: 7}, &response)
	}
	for range 3 {
		var asking errgroup.Group
		for range connsPerPeer {
			asking.Go(ask)
		}
		require.NoError(t, asking.Wait())
		stop()
		_, stop = answeringUntil(t, cfg)
		require.NoError(t, ask(), "the first after the restart")
	}
	stop()
	require.ErrorContains(t, ask(), "reach server one", "once no server listens there")
}

func TestPeersMustProveWhoTheyAre(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	onlyTwo := func(state tls.ConnectionState) error {
		return state.PeerCertificates[0].VerifyHostname("two")
	}
	server := answering(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one"), VerifyPeer: onlyTwo})
	ask := func(from Config) error {
		var response raft.RequestVoteResponse
		err := answering(t, from).RequestVote("one", server.LocalAddr(), &raft.RequestVoteRequest{Term: 7}, &response)
		if err == nil && !response.Granted {
			return errors.New("not granted")
		}
		return err
	}
	require.NoError(t, ask(Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "two")}))
	require.Error(t, ask(Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "three")}), "a name that VerifyPeer refuses")
	require.Error(t, ask(Config{Addr: "127.0.0.1:0", TLS: raftnettest.NewAuthority(t).Config(t, "two")}), "another authority")
	anonymous := ca.Config(t, "two")
	anonymous.Certificates = nil
	require.Error(t, ask(Config{Addr: "127.0.0.1:0", TLS: anonymous}), "no certificate")
	require.Error(t, ask(Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "two"), VerifyPeer: func(tls.ConnectionState) error {
		return errors.New("not the server I meant")
	}}), "the caller checks too")

	plain, err := net.Dial("tcp", string(server.LocalAddr()))
	require.NoError(t, err)
	_, err = plain.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	buf := make([]byte, 64)
	read, _ := plain.Read(buf)
	require.NotContains(t, string(buf[:read]), "HTTP")
	require.NoError(t, plain.Close())
}

// TestHeartbeatsStayInLine: the network transport keeps PreVote and has no fast
// path for heartbeats (hashicorp/raft#695).
func TestHeartbeatsStayInLine(t *testing.T) {
	trans := answering(t, Config{Addr: "127.0.0.1:0", TLS: raftnettest.NewAuthority(t).Config(t, "one")})
	safe, ok := trans.(safeTransport)
	require.True(t, ok)
	_, ok = raft.Transport(safe).(raft.WithPreVote)
	require.True(t, ok)
	called := false
	safe.SetHeartbeatHandler(func(raft.RPC) { called = true })
	// What raft's transport takes for a heartbeat.
	heartbeat := raft.AppendEntriesRequest{Term: 1, RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("one"), Addr: safe.EncodePeer("one", safe.LocalAddr()),
	}}
	require.NoError(t, safe.AppendEntries("one", safe.LocalAddr(), &heartbeat, &raft.AppendEntriesResponse{}))
	require.False(t, called, "handled outside the main loop")
}

// TestMessagesReachWhoIsMeant: an address may have passed to another server, of
// this cluster or not, or to another disk of the same, which must not answer in
// its place.
func TestMessagesReachWhoIsMeant(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	server := answering(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")})
	for meant, ok := range map[[2]string]bool{
		{"cluster", "one"}: true, {"cluster", "two"}: false, {"another", "one"}: false, {"cluster", "one#2"}: false,
	} {
		config := ca.Config(t, "two")
		config.NextProtos = []string{protocolRaft(meant[0], raft.ServerID(meant[1]))}
		conn, err := tls.Dial("tcp", string(server.LocalAddr()), config)
		if !ok {
			require.Error(t, err, meant)
			continue
		}
		require.NoError(t, err, meant)
		require.NoError(t, conn.Close())
	}
}

// TestSilentConnections: connections without a handshake do not hold up others,
// however many there are.
func TestSilentConnections(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	server := answering(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")})
	for range 2 * maxHandshakes {
		conn, err := net.Dial("tcp", string(server.LocalAddr()))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
	}
	config := ca.Config(t, "two")
	config.NextProtos = []string{protocolCalls}
	conn, err := tls.Dial("tcp", string(server.LocalAddr()), config)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

// A certificate that names no server is told by its key: where that is revoked, its
// messages are refused in both directions, whichever server it says to be.
func TestACertificateIsKnownByItsKey(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	keyOf := func(state tls.ConnectionState) string {
		return state.PeerCertificates[0].Subject.String() + string(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	}
	var met sync.Map
	var revoked atomic.Value
	revoked.Store("")
	isRevoked := func(key string) bool { return key == revoked.Load() }
	identified := func(config *tls.Config) Config {
		return Config{
			Addr: "127.0.0.1:0", TLS: config, PeerKey: keyOf,
			Revoked: isRevoked, Met: func(server, key string) { met.Store(server, key) },
		}
	}
	server := answering(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one"), PeerKey: keyOf, Revoked: isRevoked})
	ask := func(caller Transport) error {
		var response raft.RequestVoteResponse
		return caller.RequestVote("one", server.LocalAddr(), &raft.RequestVoteRequest{Term: 7}, &response)
	}
	two := identified(ca.Config(t, "two"))
	require.NoError(t, ask(answering(t, two)))
	shown, _ := met.Load("one")
	require.NotEmpty(t, shown, "the server that was meant has shown it")

	leaf, err := x509.ParseCertificate(two.TLS.Certificates[0].Certificate[0])
	require.NoError(t, err)
	revoked.Store(keyOf(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}))
	require.Error(t, ask(answering(t, two)), "of the caller")
	require.NoError(t, ask(answering(t, identified(ca.Config(t, "two")))), "another key")
	revoked.Store(shown)
	require.Error(t, ask(answering(t, identified(ca.Config(t, "two")))), "of the server")
}

// serverTwo listens as the server "two" of a cluster until the test ends.
func serverTwo(t *testing.T, ca *raftnettest.Authority) (Network, Transport) {
	t.Helper()
	network, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "two")}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	trans := network.Transport(func() Identity { return Identity{Server: "two", Cluster: "cluster"} })
	t.Cleanup(func() {
		require.NoError(t, trans.Close())
		require.NoError(t, network.Close())
	})
	return network, trans
}

// TestOnlyAnAddressWithoutAProcessRefuses: that a server is gone is told apart from one
// that does not answer, and from one that does not accept the caller.
func TestOnlyAnAddressWithoutAProcessRefuses(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	network, _ := serverTwo(t, ca)
	meet := func(addr string, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := network.Meet(ctx, "one", addr)
		require.Error(t, err)
		return err
	}
	refused := func(addr string, patience time.Duration) bool {
		return errors.Is(meet(addr, patience), syscall.ECONNREFUSED)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0") // a process that is stopped takes connections too
	require.NoError(t, err)
	err = meet(silent.Addr().String(), 50*time.Millisecond)
	require.NotErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.EqualError(t, err, "reach server one of this cluster: no TLS handshake in time: context deadline exceeded", "operators read it: no more than that")
	require.NoError(t, silent.Close())

	unknown, stop := answeringUntil(t, Config{Addr: "127.0.0.1:0", TLS: raftnettest.NewAuthority(t).Config(t, "one")})
	require.False(t, refused(string(unknown.LocalAddr()), RPCTimeout), "it cannot prove who it is")
	stop()

	server, stop := answeringUntil(t, Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")})
	require.NoError(t, network.Meet(t.Context(), "one", string(server.LocalAddr())))
	stop()
	require.True(t, refused(string(server.LocalAddr()), RPCTimeout), "no process is there")
}

// TestEndedConnectionsAreTold: as soon as a peer is gone, and not of connections that
// carried calls.
func TestEndedConnectionsAreTold(t *testing.T) {
	ca := raftnettest.NewAuthority(t)
	network, trans := serverTwo(t, ca)
	peer, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0", TLS: ca.Config(t, "one")}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	peerTrans := peer.Transport(func() Identity { return Identity{Server: "one", Cluster: "cluster"} })

	ended := network.Ended()
	calls, err := peer.Dial(t.Context(), string(trans.LocalAddr()))
	require.NoError(t, err)
	accepted, err := network.Listener().Accept()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	_ = calls.Close() // the other end is gone
	select {
	case <-ended:
		require.FailNow(t, "a connection for calls has ended")
	default:
	}

	asked := make(chan error, 1)
	go func() {
		var response raft.RequestVoteResponse
		asked <- peerTrans.RequestVote("two", trans.LocalAddr(), &raft.RequestVoteRequest{Term: 7}, &response)
	}()
	rpc := <-trans.Consumer()
	rpc.Respond(&raft.RequestVoteResponse{Term: 7}, nil)
	require.NoError(t, <-asked)
	require.NoError(t, peerTrans.Close())
	require.NoError(t, peer.Close())
	<-ended
}
