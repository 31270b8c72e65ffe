package consensus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// authority is a certificate authority for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.cert = issue(t, template, template, nil)
	a.pool.AddCert(a.cert)
	return a
}

func issue(t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if signer == nil {
		signer = private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return private, cert
}

// config is the TLS of a server: a certificate with its name.
func (a *authority) config(t *testing.T, node string) *tls.Config {
	t.Helper()
	private, cert := issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{node, "raft.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, a.key)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: private}},
		RootCAs:      a.pool, ClientCAs: a.pool, ServerName: "raft.test",
	}
}

// TestOneServerOnTheNetwork: with an address the listener is there from the
// start, the server leads without waiting for a timeout, and a restart on
// another port keeps everything.
func TestOneServerOnTheNetwork(t *testing.T) {
	ca := newAuthority(t)
	cfg := testConfig(t.TempDir())
	cfg.Transport = TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "one")}
	cfg.Timing.Heartbeat, cfg.Timing.Lease = time.Hour, time.Hour
	n, _ := open(t, cfg)
	propose(t, n, put("a", 1))
	conn, err := tls.Dial("tcp", n.RaftAddr(), ca.config(t, "two"))
	require.NoError(t, err)
	require.EqualValues(t, tls.VersionTLS13, conn.ConnectionState().Version)
	require.NoError(t, n.Close(), "an open connection does not hold it up")
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	_ = conn.Close()

	n, st := open(t, cfg)
	value, _ := stored(t, st.View(), "a")
	require.Equal(t, 1, value)
	propose(t, n, put("a", 2))
}

// answering opens a transport that grants every vote, until the test ends.
func answering(t *testing.T, cfg TransportConfig) Transport {
	t.Helper()
	trans, stop := answeringUntil(t, cfg)
	t.Cleanup(stop)
	return trans
}

// answeringUntil opens a transport that grants every vote, until stop.
func answeringUntil(t *testing.T, cfg TransportConfig) (trans Transport, stop func()) {
	t.Helper()
	node := testConfig("d")
	node.Transport = cfg
	network, err := openNetwork(context.Background(), node)
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
	ca := newAuthority(t)
	caller := answering(t, TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "two")})
	cfg := TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "one")}
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
	require.ErrorContains(t, ask(), "reach server one", "once nobody listens there")
}

func TestPeersMustProveWhoTheyAre(t *testing.T) {
	ca := newAuthority(t)
	onlyTwo := func(state tls.ConnectionState) error {
		return state.PeerCertificates[0].VerifyHostname("two")
	}
	server := answering(t, TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "one"), VerifyPeer: onlyTwo})
	ask := func(from TransportConfig) error {
		var response raft.RequestVoteResponse
		err := answering(t, from).RequestVote("one", server.LocalAddr(), &raft.RequestVoteRequest{Term: 7}, &response)
		if err == nil && !response.Granted {
			return errors.New("not granted")
		}
		return err
	}
	require.NoError(t, ask(TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "two")}))
	require.Error(t, ask(TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "three")}), "a name that VerifyPeer refuses")
	require.Error(t, ask(TransportConfig{Addr: "127.0.0.1:0", TLS: newAuthority(t).config(t, "two")}), "another authority")
	anonymous := ca.config(t, "two")
	anonymous.Certificates = nil
	require.Error(t, ask(TransportConfig{Addr: "127.0.0.1:0", TLS: anonymous}), "no certificate")
	require.Error(t, ask(TransportConfig{Addr: "127.0.0.1:0", TLS: ca.config(t, "two"), VerifyPeer: func(tls.ConnectionState) error {
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
	trans := answering(t, TransportConfig{Addr: "127.0.0.1:0", TLS: newAuthority(t).config(t, "one")})
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
