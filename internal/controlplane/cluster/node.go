package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"meridian/internal/authn/token"
	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/store"
	"meridian/internal/version"
)

// openPKI opens the certificates by which clients authenticate this server, and
// those by which the servers of a cluster authenticate each other. A given
// certificate serves for the latter only with its CA; without it clients may trust
// it, but servers could not verify a peer's.
func (c *Server) openPKI() error {
	bound := c.Addresses
	bound.Raft = c.cfg.RaftAddr
	if advertised := c.cfg.advertisedRaft(c.cfg.RaftAddr); advertised != "" {
		bound.Raft = advertised
	}
	var err error
	if c.PKI, err = server.OpenPKI(c.cfg.Options, c.Encryption, c.cfg.Name, c.serverID(), bound, c.Now, c.Log); err != nil {
		return err
	}
	c.peers = c.PKI
	if c.Options.CAFile != "" {
		return c.checkCertificate(bound.Raft)
	}
	if c.cfg.CertFile == "" {
		return nil
	}
	own := c.cfg.Options
	own.CertFile, own.KeyFile = "", ""
	c.peers, err = server.OpenPKI(own, c.Encryption, c.cfg.Name, c.serverID(), bound, c.Now, c.Log)
	return err
}

// checkCertificate says what other servers will not like about a certificate that was
// given. It stops only a server that is to join some: one alone can do without.
func (c *Server) checkCertificate(raft string) error {
	host, _, err := net.SplitHostPort(raft)
	if err == nil {
		err = c.PKI.CheckServer(host)
	}
	if err == nil {
		err = c.PKI.CheckNamed(c.cfg.peerNames())
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("--cert-file %s: no other server of a %s would take this one for one of theirs: %w", c.cfg.CertFile, c.cfg.Kind, err)
	if len(c.cfg.Join) > 0 {
		return &server.UsageError{Err: err}
	}
	c.Log.Warn("this server will have to stay alone", "reason", err)
	return nil
}

// serverID is what raft knows this server by, or will know it by once the data
// directory is used.
func (c *Server) serverID() string {
	switch {
	case raftlog.NodeIn(c.cfg.DataDir) != "":
		return string(raftlog.ServerIn(c.cfg.DataDir))
	case c.joinState != nil:
		return string(raftlog.ServerID(c.cfg.Name, c.joinState.Disk))
	}
	return string(raftlog.ServerID(c.cfg.Name, ""))
}

// peerTLS is how servers of one cluster know each other: both sides show the
// server's certificate, signed by an authority of peerAuthorities.
func peerTLS(pki *pki.PKI) *tls.Config {
	config := pki.ServerTLS()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return pki.GetCertificate(nil)
	}
	return config
}

// peerAuthorities are the authorities that sign for servers of the cluster now.
func peerAuthorities(pki *pki.PKI) func() *x509.CertPool {
	return func() *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pki.CAPEM())
		return pool
	}
}

// verifyPeer decides whether a peer may be another server of this cluster, at the
// handshake and again when what it is decided on has changed.
func (c *Server) verifyPeer(state tls.ConnectionState) error {
	if err := pki.VerifyServer(state); err != nil {
		return err
	}
	switch leaf := state.PeerCertificates[0]; {
	case c.Options.CAFile != "":
		if err := pki.VerifyNamed(leaf, c.cfg.peerNames()); err != nil {
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
		Roots: peerAuthorities(c.peers)(), Intermediates: between, CurrentTime: c.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("the certificate is not signed by an authority of this %s: %w", c.cfg.Kind, err)
	}
	return nil
}

// openNode opens the log and restores the store from it.
func (c *Server) openNode(ctx context.Context, s *store.Store) error {
	config := c.NodeConfig(c.cfg.Kind.Role, s)
	config.NodeID = c.cfg.Name
	config.PeerServices = c.hooks.PeerServices
	config.Fresh = untouched
	config.KeepTrust = func(running *store.View, saved []*resource.Resource) ([]*resource.Resource, consensus.KeptTrust) {
		merged, carried := token.Carry(running, saved)
		return merged, consensus.KeptTrust(carried)
	}
	config.Zone = c.cfg.Zone
	config.KeepOwn = func(running *store.View, saved []*resource.Resource) []*resource.Resource {
		if saved = token.CarryOwn(running, saved); c.hooks.KeepOnRestore != nil {
			saved = c.hooks.KeepOnRestore(running, saved)
		}
		return saved
	}
	config.LeaderTimeout = leaderTimeout
	config.Register, config.GossipKeys, config.Events.Members = &c.servers, c.gossipKeysInUse, c.notifyMembers
	config.Events.LeaderChanged = func(leading bool) {
		if leading {
			c.notifyLeadership()
		}
	}
	config.Addresses = func() consensus.Addresses {
		a := consensus.Addresses{GRPC: c.advertisedGRPC}
		if gossip := c.gossip.Load(); gossip != nil {
			a.Gossip = server.Dialable(gossip.Addr())
		}
		return a
	}
	config.Peers = func() []gossip.Peer {
		if gossip := c.gossip.Load(); gossip != nil {
			return gossip.Peers()
		}
		return nil
	}
	config.Join = consensus.JoinConfig{Fresh: c.joinState != nil || len(c.cfg.Join) > 0, Addrs: c.raftAddresses}
	if c.joinState != nil {
		config.ClusterID, config.Join.Disk = c.joinState.Cluster, c.joinState.Disk
	}
	open := func(addr string) (err error) {
		advertise := c.cfg.advertisedRaft(addr)
		if advertise != "" && c.cfg.AdvertiseRaftAddr == "" {
			// Its port has to be known before the listener is opened.
			if addr, err = server.PickPort(addr); err != nil {
				return err
			}
			advertise = c.cfg.advertisedRaft(addr)
		}
		config.Transport = raftnet.Config{
			Addr: addr, Advertise: advertise, TLS: peerTLS(c.peers), Authorities: peerAuthorities(c.peers), VerifyPeer: c.verifyPeer,
			PeerServer: pki.ServerIdentity, PeerKey: pki.ServerKey,
			Met: c.servers.see,
		}
		return c.OpenNode(ctx, config)
	}
	again := server.LastPorts(c.cfg.DataDir).Free("raft-addr", c.cfg.RaftAddr)
	err := open(again)
	if errors.Is(err, raftnet.ErrAddrInUse) && again != c.cfg.RaftAddr {
		err = open(c.cfg.RaftAddr) // another process took the port meanwhile
	}
	if errors.Is(err, raftnet.ErrAddrInUse) {
		return fmt.Errorf("--raft-addr: the port is in use by another process; choose another, or 0 for any free one (%w)", err)
	}
	if err != nil {
		return err
	}
	c.Addresses.Raft = c.Node.RaftAddr()
	return nil
}

// notifyLeadership has the leader look whether everything is there that a
// control plane begins with.
func (c *Server) notifyLeadership() {
	select {
	case c.leadershipGained <- struct{}{}:
	default: // it has been told and has not looked yet
	}
}

// userAgent is how a server names itself to others that it calls.
func (k Kind) userAgent() string { return "meridian-" + k.String() + "/" + version.String() }

func (c *Server) userAgent() string { return c.cfg.Kind.userAgent() }

// peersFile is what is remembered of the other servers, below the data
// directory.
const peersFile = "peers.json"

// openGossip makes this server's addresses known to others of its cluster.
func (c *Server) openGossip() error {
	keys, err := gossipKeys(c.cfg, c.Encryption)
	if err != nil {
		return err
	}
	open := func(addr string) (err error) {
		gossip, err := gossip.Open(gossip.Config{
			Addr: addr, Advertise: c.cfg.gossipHost(), Keys: keys, Logger: c.Log,
			PeersFile: filepath.Join(c.cfg.DataDir, peersFile),
			Member:    c.isGossipMember,
			Self: gossip.Peer{
				Server: c.serverID(), Name: c.cfg.Name, GRPC: c.advertisedGRPC, Raft: c.Addresses.Raft,
				Cluster: c.Node.ClusterID(), Version: version.String(),
			},
		})
		if err == nil {
			c.gossip.Store(gossip)
			digest := gossipDigest(keys)
			c.gossipUsed.Store(&digest)
		}
		return err
	}
	again := server.LastPorts(c.cfg.DataDir).Free("gossip-addr", c.cfg.GossipAddr)
	err = open(again)
	if errors.Is(err, gossip.ErrAddrInUse) && again != c.cfg.GossipAddr {
		err = open(c.cfg.GossipAddr)
	}
	switch {
	case errors.Is(err, gossip.ErrAddrInUse):
		return fmt.Errorf("--gossip-addr %s: the port is in use by another process; choose another, or 0 for any free one", c.cfg.GossipAddr)
	case err != nil:
		return fmt.Errorf("--gossip-addr: %w", err)
	}
	c.Addresses.Gossip = c.gossip.Load().Addr()
	return nil
}
