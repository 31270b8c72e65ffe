package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/clientconfig"
	"meridian/internal/consensus"
	"meridian/internal/controlplane"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/store"
)

// host is a server that lets others in, or not.
type host struct {
	meridianv1.UnimplementedJoinServiceServer
	addr string
	ca   *pki.CA

	mu    sync.Mutex // guards all below
	asked []*meridianv1.JoinRequest
	token string
	reply func(*meridianv1.JoinRequest) (*meridianv1.JoinResponse, error)
}

func (h *host) Join(ctx context.Context, req *meridianv1.JoinRequest) (*meridianv1.JoinResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, req)
	md, _ := metadata.FromIncomingContext(ctx)
	h.token = strings.Join(md.Get("authorization"), "")
	if h.reply != nil {
		return h.reply(req)
	}
	return h.accept()
}

func (h *host) accept() (*meridianv1.JoinResponse, error) {
	key, err := h.ca.KeyPEM()
	return &meridianv1.JoinResponse{
		ClusterId: "c1", Ca: h.ca.CertificatePEM(), CaKey: key, GossipKeys: [][]byte{make([]byte, gossip.KeyBytes)},
		Peers: []*meridianv1.JoinPeer{{Name: "first", Grpc: h.addr, Raft: "127.0.0.1:1", Gossip: "127.0.0.1:2"}},
	}, err
}

// newHost starts a host with an authority of its own, or with the given one's.
func newHost(t *testing.T, like *host) *host {
	t.Helper()
	dir := t.TempDir()
	if like != nil {
		key, err := like.ca.KeyPEM()
		require.NoError(t, err)
		require.NoError(t, pki.ImportCA(dir, nil, like.ca.CertificatePEM(), key))
	}
	pki, err := pki.Open(pki.Config{DataDir: dir, Name: "first", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &host{addr: l.Addr().String(), ca: pki.CA()}
	s := server.NewGRPC(slog.New(slog.DiscardHandler), pki.ServerTLS(), server.Calls{UnauthenticatedCanWrite: func() bool { return true }, Limits: server.NewLimits(server.DefaultLimits())})
	meridianv1.RegisterJoinServiceServer(s, h)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx, l, time.Second) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return h
}

// closedAddr is an address without a listener: that of the client's end of a connection, so
// that nothing else gets it.
func closedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(conn.Close(), l.Close())) })
	return conn.LocalAddr().String()
}

func (h *host) bundle(addrs ...string) clientconfig.ServerBundle {
	return clientconfig.ServerBundle{Cluster: "c1", Addresses: addrs, CA: string(h.ca.CertificatePEM()), Token: "the.server.token"}
}

func newJoinClient(bundle clientconfig.ServerBundle) *joinClient {
	return &joinClient{
		bundle: bundle, source: "second.bundle", request: &meridianv1.JoinRequest{RequestId: "r1", Name: "second"},
		log: slog.New(slog.DiscardHandler), kind: Global, now: time.Now, waiting: func(string) {},
	}
}

// A server that is asked to wait, or that cannot be reached, is asked again; any
// of those in the bundle will do.
func TestJoinTriesUntilAServerAccepts(t *testing.T) {
	h := newHost(t, nil)
	refusals := 2
	h.reply = func(*meridianv1.JoinRequest) (*meridianv1.JoinResponse, error) {
		if refusals--; refusals >= 0 {
			return nil, rpcerr.New(rpcerr.Unavailable, server.ReasonStarting, "starting: waiting for a leader")
		}
		return h.accept()
	}
	down, foreign := closedAddr(t), newHost(t, nil)
	a := newJoinClient(h.bundle(down, foreign.addr, h.addr))
	var waited []string
	a.waiting = func(what string) { waited = append(waited, what) }
	response, err := a.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "c1", response.GetClusterId())
	require.Equal(t, "Bearer the.server.token", h.token)
	require.Equal(t, "r1", h.asked[0].GetRequestId())
	require.Len(t, waited, 2)
	require.Equal(t, "no server of the global can let this one in ("+
		down+": connection refused; "+
		foreign.addr+": the server's certificate is not signed by the CA in second.bundle; "+
		h.addr+": starting: waiting for a leader)", waited[0])
	require.Empty(t, foreign.token, "the token is not sent to a server without a valid certificate")
}

// A refusal ends it, unless another server lets it in: one that is cut off may
// not have received the token.
func TestJoinEndsWithARefusal(t *testing.T) {
	h := newHost(t, nil)
	behind := newHost(t, h)
	refuse := func(*meridianv1.JoinRequest) (*meridianv1.JoinResponse, error) {
		return nil, rpcerr.New(rpcerr.Denied, "TOKEN_USED", "Access Denied: the server token x was used up")
	}
	behind.reply = refuse
	_, err := newJoinClient(h.bundle(behind.addr, h.addr)).run(t.Context())
	require.NoError(t, err)
	h.reply = refuse
	_, err = newJoinClient(h.bundle(closedAddr(t), h.addr)).run(t.Context())
	require.EqualError(t, err, "--join-bundle second.bundle: the server at "+h.addr+" does not let this one in: Access Denied: the server token x was used up")
	require.Equal(t, rpcerr.Denied, rpcerr.CodeOf(err))
}

func TestJoinCanBeStopped(t *testing.T) {
	h := newHost(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	a := newJoinClient(h.bundle(closedAddr(t)))
	a.waiting = func(string) { stop() }
	_, err := a.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// joiner is a server that is about to join, on a directory.
func joiner(t *testing.T, dir, bundle, name string) *Server {
	t.Helper()
	cfg := Config{Kind: Global, Options: server.Options{DataDir: dir}, Name: name, JoinBundle: bundle}
	require.NoError(t, cfg.Validate())
	return &Server{Base: &controlplane.Base{Name: cfg.Name, Log: slog.New(slog.DiscardHandler), Now: time.Now}, cfg: cfg}
}

func writeBundle(t *testing.T, b clientconfig.ServerBundle) string {
	t.Helper()
	data, err := b.Encode()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "second.bundle")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// What a new server receives is in its directory before it continues, and it needs
// the bundle no more.
func TestJoiningFetchesAnIdentityOnce(t *testing.T) {
	h := newHost(t, nil)
	dir, bundle := t.TempDir(), writeBundle(t, h.bundle(h.addr))
	c := joiner(t, dir, bundle, "second")
	require.NoError(t, c.join(t.Context()))
	require.Len(t, h.asked, 1)
	require.Equal(t, "second", h.asked[0].GetName())
	require.Equal(t, []gossip.Peer{{Name: "first", GRPC: h.addr, Raft: "127.0.0.1:1", Gossip: "127.0.0.1:2"}}, c.joinState.Peers)
	require.Equal(t, []string{"127.0.0.1:1"}, c.raftAddresses())
	keys, err := gossipKeys(c.cfg, nil)
	require.NoError(t, err)
	require.Equal(t, [][]byte{make([]byte, gossip.KeyBytes)}, keys)
	ca, err := os.ReadFile(filepath.Join(dir, "pki", "ca.pem"))
	require.NoError(t, err)
	require.Equal(t, h.ca.CertificatePEM(), ca)

	// It restarts before its log was begun: without the bundle, with it, and
	// under the name that it joined with.
	for _, with := range []string{"", bundle, "absent"} {
		again := joiner(t, dir, with, "")
		require.Equal(t, "second", again.cfg.ServerName())
		require.NoError(t, again.join(t.Context()))
		require.Equal(t, c.joinState, again.joinState)
	}
	require.Len(t, h.asked, 1)
	other := h.bundle(h.addr)
	other.Cluster = "c2"
	err = joiner(t, dir, writeBundle(t, other), "").join(t.Context())
	var usage *server.UsageError
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "is for global c2, and --data-dir "+dir+" belongs to global c1")
}

// A start that is cut off asks again by the same attempt, so that the token it
// has used up lets it in again.
func TestJoiningIsTakenUpAgain(t *testing.T) {
	h := newHost(t, nil)
	dir, bundle := t.TempDir(), writeBundle(t, h.bundle(h.addr))
	ctx, cut := context.WithCancel(t.Context())
	h.reply = func(*meridianv1.JoinRequest) (*meridianv1.JoinResponse, error) {
		cut() // the answer is lost
		return nil, rpcerr.New(rpcerr.Unavailable, "", "lost")
	}
	require.ErrorIs(t, joiner(t, dir, bundle, "second").join(ctx), context.Canceled)
	h.reply = nil

	err := joiner(t, dir, "", "second").join(t.Context())
	var usage *server.UsageError
	require.ErrorAs(t, err, &usage, "it must not begin a global of its own by mistake")
	require.ErrorContains(t, err, "was joining global c1 and has not been accepted yet: give it --join-bundle again")

	// Whatever of the answer was written before the next cut is written anew.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "pki"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pki", "ca-key.pem"), []byte("part"), 0o600))
	require.NoError(t, joiner(t, dir, bundle, "second").join(t.Context()))
	require.Len(t, h.asked, 2)
	require.Equal(t, h.asked[0].GetRequestId(), h.asked[1].GetRequestId())
	require.NotEmpty(t, h.asked[0].GetRequestId())
}

// Nothing in a directory is overwritten by joining.
func TestJoiningLeavesOtherDirectoriesAlone(t *testing.T) {
	h := newHost(t, nil)
	bundle := writeBundle(t, h.bundle(h.addr))

	// A server of the same global: restarted as it was started.
	used := t.TempDir()
	config := consensus.DefaultConfig(used)
	config.NodeID, config.Role, config.ClusterID = "second", consensus.RoleGlobal, "c1"
	openAndClose(t, config)
	c := joiner(t, used, bundle, "")
	require.NoError(t, c.join(t.Context()))
	require.Nil(t, c.joinState)

	// Another global's.
	foreign := t.TempDir()
	config.DataDir, config.ClusterID = foreign, "c9"
	openAndClose(t, config)
	err := joiner(t, foreign, bundle, "").join(t.Context())
	require.ErrorContains(t, err, "belongs to global c9: omit the bundle to continue there, or start with a new directory to join the other")
	require.Empty(t, h.asked)

	// A directory with an authority of its own that nothing else is known of.
	own := t.TempDir()
	_, err = pki.Open(pki.Config{DataDir: own, Name: "x", Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.ErrorIs(t, joiner(t, own, bundle, "second").join(t.Context()), pki.ErrOtherCA)

	// The server that answers is of another global than the bundle.
	wrong := h.bundle(h.addr)
	wrong.Cluster = "c2"
	err = joiner(t, t.TempDir(), writeBundle(t, wrong), "second").join(t.Context())
	require.ErrorContains(t, err, "it is for global c2, and the server that answered is of global c1")

	zone, err := clientconfig.ZoneBundle{Zone: "east", Addresses: []string{h.addr}, Token: "t"}.Encode()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "east.bundle")
	require.NoError(t, os.WriteFile(path, zone, 0o600))
	err = joiner(t, t.TempDir(), path, "second").join(t.Context())
	require.ErrorIs(t, err, clientconfig.ErrBundleKind)
	var usage *server.UsageError
	require.ErrorAs(t, err, &usage)
}

// The servers of a cluster hold the same: a bundle of another kind of control plane, of
// another zone, or of a zone that follows a global where the server does not, is refused
// before the token is used.
func TestBundlesOfOtherControlPlanes(t *testing.T) {
	h := newHost(t, nil)
	of := func(zone string, federated bool) clientconfig.ServerBundle {
		b := h.bundle(h.addr)
		b.Zone, b.Federated = zone, federated
		return b
	}
	for want, tc := range map[string]struct {
		bundle    clientconfig.ServerBundle
		kind      Kind
		zone      string
		federated bool
	}{
		`it is for a server of zone "east", and this is one of a global`:      {of("east", true), Global, "", false},
		`it is for a server of a global, and this is one of zone "east"`:      {of("", false), Zone, "east", true},
		`it is for a server of zone "west", and this is one of zone "east"`:   {of("west", true), Zone, "east", true},
		`zone "east" follows a global: say also how this server reaches that`: {of("east", true), Zone, "east", false},
		`zone "east" is standalone: leave out what connects this server`:      {of("east", false), Zone, "east", true},
		"": {of("east", true), Zone, "east", true},
	} {
		c := joiner(t, t.TempDir(), writeBundle(t, tc.bundle), "second")
		c.cfg.Kind, c.cfg.Zone, c.cfg.Federated = tc.kind, tc.zone, tc.federated
		err := c.join(t.Context())
		if want == "" {
			require.NoError(t, err)
			continue
		}
		var usage *server.UsageError
		require.ErrorAs(t, err, &usage, want)
		require.ErrorContains(t, err, want)
	}
	require.Len(t, h.asked, 1)
}

// A server of a zone that is not told how to reach the global takes it from the one that accepts
// it, before it notes that it was accepted: the token is good for another attempt. It does
// not ask for what it is told.
func TestTheWayToTheGlobalIsInherited(t *testing.T) {
	h := newHost(t, nil)
	bundle := h.bundle(h.addr)
	bundle.Zone, bundle.Federated = "east", true
	dir, path := t.TempDir(), writeBundle(t, bundle)
	var kept []*meridianv1.GlobalAccess
	try := func(inherits bool) (*Server, error) {
		c := joiner(t, dir, path, "second")
		c.cfg.Kind, c.cfg.Zone, c.cfg.Federated, c.cfg.InheritsGlobal = Zone, "east", true, inherits
		c.hooks.KeepWayToGlobal = func(way *meridianv1.GlobalAccess) error {
			kept = append(kept, way)
			return nil
		}
		return c, c.join(t.Context())
	}
	_, err := try(true)
	var usage *server.UsageError
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "the server that answered does not say how it reaches the global: say it with --join-bundle or --global-addr")
	require.True(t, h.asked[0].GetWantsGlobal())
	h.reply = func(*meridianv1.JoinRequest) (*meridianv1.JoinResponse, error) {
		response, err := h.accept()
		response.Global = &meridianv1.GlobalAccess{Addresses: []string{"g:1"}, Token: "zone"}
		return response, err
	}
	c, err := try(true)
	require.NoError(t, err)
	require.True(t, c.joinState.Answered)
	require.Len(t, kept, 1)
	require.Equal(t, "zone", kept[0].GetToken())
	require.Equal(t, h.asked[0].GetRequestId(), h.asked[1].GetRequestId())

	dir = t.TempDir()
	_, err = try(false)
	require.NoError(t, err)
	require.False(t, h.asked[2].GetWantsGlobal())
	require.Len(t, kept, 1)
}

func openAndClose(t *testing.T, config consensus.Config) {
	t.Helper()
	config.Logger = slog.New(slog.DiscardHandler)
	node, err := consensus.Open(t.Context(), config, store.New(store.DefaultOptions()))
	require.NoError(t, err)
	require.NoError(t, node.Close())
}

func TestJoinSettings(t *testing.T) {
	h := newHost(t, nil)
	dir := t.TempDir()
	pki, err := pki.Open(pki.Config{DataDir: dir, Name: "x", Hosts: []string{"127.0.0.1"}, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NotEqual(t, h.ca.CertificatePEM(), pki.CAPEM())
	own := server.Options{
		DataDir: dir, CAFile: filepath.Join(dir, "pki", "ca.pem"),
		CertFile: filepath.Join(dir, "pki", "server.pem"), KeyFile: filepath.Join(dir, "pki", "server-key.pem"),
	}
	generated := server.Options{DataDir: dir}
	for want, c := range map[string]Config{
		"":                                 {Options: own, Join: []string{"a:1", "[::1]:2"}, GossipKeyFile: "k", Name: "a.b-c_1"},
		"give one or the other":            {Options: own, Join: []string{"a:1"}, GossipKeyFile: "k", JoinBundle: "b"},
		"with one of its own (--ca-file)":  {Options: own, JoinBundle: "b"},
		"--join goes with --ca-file":       {Options: generated, Join: []string{"a:1"}, GossipKeyFile: "k"},
		"and --gossip-key-file":            {Options: own, Join: []string{"a:1"}},
		"--join a: write host:port":        {Options: own, Join: []string{"a"}, GossipKeyFile: "k"},
		"--join :1: write host:port":       {Options: own, Join: []string{":1"}, GossipKeyFile: "k"},
		"--advertise-raft-addr a":          {Options: generated, AdvertiseRaftAddr: "a"},
		"--name: \"a b\" cannot be":        {Options: generated, Name: "a b"},
		"--name: \"a/b\" cannot be":        {Options: generated, Name: "a/b"},
		"--name: the name of a server has": {Options: generated, Name: strings.Repeat("x", maxServerName+1)},
	} {
		c.Kind = Global
		err := c.Validate()
		if want == "" {
			require.NoError(t, err)
			continue
		}
		var usage *server.UsageError
		require.ErrorAs(t, err, &usage, want)
		require.ErrorContains(t, err, want)
	}
}

// A server that waits for a leader names those it has contact with and those it
// cannot reach.
func TestRollOfMembers(t *testing.T) {
	require.Empty(t, memberSummary([]consensus.Member{{Name: "a", State: "follower"}}, "a"))
	require.Equal(t, "; reached b; cannot reach c at 10.0.0.3:5690 (it does not answer: connection refused), d at x:1 (gone)", memberSummary([]consensus.Member{
		{Name: "a", State: consensus.StateUnreachable},
		{Name: "b", State: "candidate"},
		{Name: "c", State: consensus.StateUnreachable, Raft: "10.0.0.3:5690", Problem: "it does not answer: connection refused"},
		{Name: "d", State: consensus.StateUnreachable, Raft: "x:1", Problem: "gone"},
	}, "a"))
}
