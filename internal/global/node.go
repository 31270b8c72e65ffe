package global

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"google.golang.org/grpc"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/authn/token"
	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/policy/engines"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/store"
	"meridian/internal/version"
)

// openPKI opens the certificates by which clients authenticate this server, and
// those by which the servers of this global authenticate each other. A given
// certificate serves for the latter only with its CA; without it clients may trust
// it, but servers could not verify a peer's.
func (g *global) openPKI() error {
	bound := g.Addresses
	bound.Raft = g.cfg.RaftAddr
	if advertised := g.cfg.advertisedRaft(g.cfg.RaftAddr); advertised != "" {
		bound.Raft = advertised
	}
	var err error
	if g.PKI, err = server.OpenPKI(g.cfg.Options, g.Encryption, g.cfg.Name, g.serverID(), bound, g.Now, g.Log); err != nil {
		return err
	}
	g.peers = g.PKI
	if g.cfg.CAFile != "" {
		return g.checkCertificate(bound.Raft)
	}
	if g.cfg.CertFile == "" {
		return nil
	}
	own := g.cfg.Options
	own.CertFile, own.KeyFile = "", ""
	g.peers, err = server.OpenPKI(own, g.Encryption, g.cfg.Name, g.serverID(), bound, g.Now, g.Log)
	return err
}

// checkCertificate says what other servers will not like about a certificate that was
// given. It stops only a server that is to join some: one alone can do without.
func (g *global) checkCertificate(raft string) error {
	host, _, err := net.SplitHostPort(raft)
	if err == nil {
		err = g.PKI.CheckServer(host)
	}
	if err == nil {
		err = g.PKI.CheckNamed(g.cfg.peerNames())
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("--cert-file %s: no other server of a global would take this one for one of theirs: %w", g.cfg.CertFile, err)
	if len(g.cfg.Join) > 0 {
		return &server.UsageError{Err: err}
	}
	g.Log.Warn("this server will have to stay alone", "reason", err)
	return nil
}

// serverID is what raft knows this server by, or will know it by once the data
// directory is used.
func (g *global) serverID() string {
	switch {
	case raftlog.NodeIn(g.cfg.DataDir) != "":
		return string(raftlog.ServerIn(g.cfg.DataDir))
	case g.joinState != nil:
		return string(raftlog.ServerID(g.cfg.Name, g.joinState.Disk))
	}
	return string(raftlog.ServerID(g.cfg.Name, ""))
}

// peerTLS is how servers of one global know each other: both sides show the
// server's certificate, signed by an authority of peerAuthorities.
func peerTLS(pki *pki.PKI) *tls.Config {
	config := pki.ServerTLS()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return pki.GetCertificate(nil)
	}
	return config
}

// peerAuthorities are the authorities that sign for servers of the global now.
func peerAuthorities(pki *pki.PKI) func() *x509.CertPool {
	return func() *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pki.CAPEM())
		return pool
	}
}

// verifyPeer decides whether a peer may be another server of this global, at the
// handshake and again when what it is decided on has changed.
func (g *global) verifyPeer(state tls.ConnectionState) error {
	if err := pki.VerifyServer(state); err != nil {
		return err
	}
	switch leaf := state.PeerCertificates[0]; {
	case g.cfg.CAFile != "":
		if err := pki.VerifyNamed(leaf, g.cfg.peerNames()); err != nil {
			return err
		}
	case pki.ServerIdentity(state) == "":
		return errors.New("the certificate names no server")
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: peerAuthorities(g.peers)(), Intermediates: between, CurrentTime: g.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("the certificate is not signed by an authority of this global: %w", err)
	}
	return nil
}

// openNode opens the log and restores the store from it.
func (g *global) openNode(ctx context.Context) error {
	options := store.DefaultOptions()
	options.Terms = engines.Terms
	config := g.NodeConfig(consensus.RoleGlobal, store.New(options))
	g.peerService = &peerService{name: g.cfg.Name}
	config.PeerServices = func(r grpc.ServiceRegistrar) { peerv1.RegisterZoneServiceServer(r, g.peerService) }
	config.Fresh = untouched
	config.KeepTrust = func(running *store.View, saved []*resource.Resource) ([]*resource.Resource, consensus.KeptTrust) {
		merged, carried := token.Carry(running, saved)
		return merged, consensus.KeptTrust(carried)
	}
	config.KeepOwn = token.CarryOwn
	config.LeaderTimeout = leaderTimeout
	config.Register, config.GossipKeys, config.Events.Members = &g.servers, g.gossipKeysInUse, g.notifyMembers
	config.Events.LeaderChanged = func(leading bool) {
		if leading {
			g.notifyLeadership()
		}
	}
	config.Addresses = func() consensus.Addresses {
		a := consensus.Addresses{GRPC: g.advertisedGRPC}
		if gossip := g.gossip.Load(); gossip != nil {
			a.Gossip = server.Dialable(gossip.Addr())
		}
		return a
	}
	config.Peers = func() []gossip.Peer {
		if gossip := g.gossip.Load(); gossip != nil {
			return gossip.Peers()
		}
		return nil
	}
	config.Join = consensus.JoinConfig{Fresh: g.joinState != nil || len(g.cfg.Join) > 0, Addrs: g.raftAddresses}
	if g.joinState != nil {
		config.ClusterID, config.Join.Disk = g.joinState.Cluster, g.joinState.Disk
	}
	open := func(addr string) (err error) {
		advertise := g.cfg.advertisedRaft(addr)
		if advertise != "" && g.cfg.AdvertiseRaftAddr == "" {
			// Its port has to be known before the listener is opened.
			if addr, err = server.PickPort(addr); err != nil {
				return err
			}
			advertise = g.cfg.advertisedRaft(addr)
		}
		config.Transport = raftnet.Config{
			Addr: addr, Advertise: advertise, TLS: peerTLS(g.peers), Authorities: peerAuthorities(g.peers), VerifyPeer: g.verifyPeer,
			PeerServer: pki.ServerIdentity, PeerKey: pki.ServerKey,
			Met: g.servers.see,
		}
		return g.OpenNode(ctx, config)
	}
	again := server.LastPorts(g.cfg.DataDir).Free("raft-addr", g.cfg.RaftAddr)
	err := open(again)
	if errors.Is(err, raftnet.ErrAddrInUse) && again != g.cfg.RaftAddr {
		err = open(g.cfg.RaftAddr) // another process took the port meanwhile
	}
	if errors.Is(err, raftnet.ErrAddrInUse) {
		return fmt.Errorf("--raft-addr: the port is in use by another process; choose another, or 0 for any free one (%w)", err)
	}
	if err != nil {
		return err
	}
	g.Addresses.Raft = g.Node.RaftAddr()
	return nil
}

// notifyLeadership has the leader look whether everything is there that a global
// begins with.
func (g *global) notifyLeadership() {
	select {
	case g.leadershipGained <- struct{}{}:
	default: // it has been told and has not looked yet
	}
}

// userAgent is how this server names itself to others that it calls.
var userAgent = "meridian-global/" + version.String()

// peersFile is what is remembered of the other servers, below the data
// directory.
const peersFile = "peers.json"

// openGossip makes this server's addresses known to others of its cluster.
func (g *global) openGossip() error {
	keys, err := gossipKeys(g.cfg, g.Encryption)
	if err != nil {
		return err
	}
	open := func(addr string) (err error) {
		gossip, err := gossip.Open(gossip.Config{
			Addr: addr, Advertise: g.cfg.gossipHost(), Keys: keys, Logger: g.Log,
			PeersFile: filepath.Join(g.cfg.DataDir, peersFile),
			Member:    g.isGossipMember,
			Self: gossip.Peer{
				Server: g.serverID(), Name: g.cfg.Name, GRPC: g.advertisedGRPC, Raft: g.Addresses.Raft,
				Cluster: g.Node.ClusterID(), Version: version.String(),
			},
		})
		if err == nil {
			g.gossip.Store(gossip)
			digest := gossipDigest(keys)
			g.gossipUsed.Store(&digest)
		}
		return err
	}
	again := server.LastPorts(g.cfg.DataDir).Free("gossip-addr", g.cfg.GossipAddr)
	err = open(again)
	if errors.Is(err, gossip.ErrAddrInUse) && again != g.cfg.GossipAddr {
		err = open(g.cfg.GossipAddr)
	}
	switch {
	case errors.Is(err, gossip.ErrAddrInUse):
		return fmt.Errorf("--gossip-addr %s: the port is in use by another process; choose another, or 0 for any free one", g.cfg.GossipAddr)
	case err != nil:
		return fmt.Errorf("--gossip-addr: %w", err)
	}
	g.Addresses.Gossip = g.gossip.Load().Addr()
	return nil
}
