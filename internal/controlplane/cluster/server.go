package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/authn/token"
	"meridian/internal/consensus"
	"meridian/internal/controlplane"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/resource"
	"meridian/internal/server"
	"meridian/internal/store"
)

// Hooks are what the servers of a kind of control plane add. All are required unless they say
// otherwise.
type Hooks struct {
	// Bootstrap is what the control plane begins with; the leader writes it.
	Bootstrap func() controlplane.Bootstrap
	// PeerServices registers what the other servers may call, before the first call
	// arrives.
	PeerServices func(grpc.ServiceRegistrar)
	// Suspend is called when this server cannot make sure any more that it is up to date,
	// and Resume when it can again.
	Suspend func(reason string)
	Resume  func()
	// Unreachable and Differing count the other servers that cannot be asked, and those
	// that hold something else.
	Unreachable, Differing func() int
	// Authorities asks another server by which authorities it verifies others and is
	// verified.
	Authorities func(context.Context, Peer) (*peerv1.AuthoritiesResponse, error)
	// Unconfirmed lists who, beside the servers, has yet to trust the authorities of a
	// digest.
	Unconfirmed func(ctx context.Context, trusted string) []*meridianv1.RotateCAMissing
	// WayToGlobal says how this server of a zone reaches the global; nil where it has none.
	WayToGlobal func() (*meridianv1.GlobalAccess, error)
	// KeepOnRestore returns the resources of a backup with those of the running state that no
	// restore changes; nil where there are none.
	KeepOnRestore func(running *store.View, saved []*resource.Resource) []*resource.Resource
	// KeepWayToGlobal keeps what another server says of it (Config.InheritsGlobal).
	KeepWayToGlobal func(*meridianv1.GlobalAccess) error
}

// Server is a server as one of several. It is safe for concurrent use once it is open.
type Server struct {
	*controlplane.Base
	cfg   Config
	hooks Hooks

	// joinState is how far this server has come with joining a cluster; nil once it
	// has caught up, and for a server that joins none.
	joinState *joinState
	// known are addresses of other servers that this one was told.
	known knownAddresses
	// advertisedGRPC is where clients, zones and servers reach Addresses.GRPC.
	advertisedGRPC string
	// peers is the certificate that other servers see, mostly that of clients.
	peers *pki.PKI
	// gossip is empty until it was opened, which is after the node.
	gossip atomic.Pointer[gossip.Gossip]
	// leadershipGained is told, without waiting, that this server has become leader.
	leadershipGained chan struct{}

	// stale: this server cannot tell whether it is up to date. leaders counts
	// changes of the leader.
	stale   atomic.Bool
	leaders atomic.Uint64
	// servers are what is registered of this server and the others. opened says that this
	// server can write; membersChanged and gossipChanged are told, without waiting, of
	// changes of membership.
	servers                       servers
	opened                        atomic.Bool
	membersChanged, gossipChanged chan struct{}
	// gossipUsed identifies the gossip keys that this server has. The others belong to
	// keepRegister: the step of a replacement that it waits for, since when, and who has
	// not followed.
	gossipUsed    atomic.Pointer[string]
	gossipStep    string
	gossipSince   time.Time
	gossipMissing []string
	// warnedFor is the removed server on whose account the log asks for another gossip
	// key; it belongs to followRegister.
	warnedFor string
	// unencrypted are the servers that do not encrypt although others do, as last asked.
	unencrypted atomic.Pointer[[]string]
	// rotated: the log tells of a rotation of the authority, finished or not.
	rotated atomic.Bool
}

// CheckPorts returns an error where the ports of the servers among each other are in use.
// They are bound later, once the data directory is open: a start that fails for want of a
// port leaves no trace in it.
func (c *Config) CheckPorts() error {
	return errors.Join(server.CheckFree("raft-addr", c.RaftAddr), server.CheckFree("gossip-addr", c.GossipAddr))
}

// New returns a server on a base that is called as the configuration says
// (Config.ServerName).
func New(base *controlplane.Base, cfg Config, hooks Hooks) *Server {
	cfg.Name = cfg.ServerName()
	base.Reaches = append(base.Reaches, cfg.reaches()...)
	base.Secrets = append(base.Secrets, filepath.Join(cfg.DataDir, gossipKeyFile))
	c := &Server{
		Base: base, cfg: cfg, hooks: hooks,
		advertisedGRPC: cfg.Advertised(base.Addresses.GRPC), leadershipGained: make(chan struct{}, 1),
		membersChanged: make(chan struct{}, 1), gossipChanged: make(chan struct{}, 1),
	}
	c.servers.server = c
	return c
}

// Explain adds to the error of a run what the operator can do about it.
func (c *Server) Explain(err error) error {
	if errors.Is(err, consensus.ErrRemoved) {
		return fmt.Errorf("%w (its data directory is %s; the bundle to join with comes from `meridian generate server-token --valid-for 1h --bundle` on another server)", err, c.cfg.DataDir)
	}
	return err
}

// OpenLog joins a cluster where the configuration says so, opens the certificates and the
// log, and restores the store from it.
func (c *Server) OpenLog(ctx context.Context, s *store.Store) error {
	if err := c.join(ctx); err != nil {
		return err
	}
	if err := c.openPKI(); err != nil {
		return err
	}
	return c.openNode(ctx, s)
}

// OpenRecords opens what needs the log: the records (controlplane.Base.OpenRecords) and
// gossip. The server can write from then on.
func (c *Server) OpenRecords(keys token.RingConfig) error {
	if err := c.Base.OpenRecords(keys); err != nil {
		return err
	}
	if err := c.openGossip(); err != nil {
		return err
	}
	c.opened.Store(true)
	c.Health.Add(server.Check{Name: "leader", Ready: c.checkLeader}, server.Check{Name: "current", Ready: c.checkFresh}, c.encryptionCheck())
	return nil
}

// CloseGossip ends the part in gossip. Call it before the node is closed.
func (c *Server) CloseGossip() error {
	if gossip := c.gossip.Load(); gossip != nil {
		return gossip.Close()
	}
	return nil
}

// ServeEarly adds to parts what runs from the beginning.
func (c *Server) ServeEarly(ctx context.Context, parts *errgroup.Group, hangups <-chan os.Signal) {
	c.Base.Serve(ctx, parts, hangups, c.reloadGossipKeys)
	for _, run := range []func(context.Context) error{
		c.discover, c.followAuthority, c.followRegister, c.followMembers, c.keepRegister, c.transferLeadership,
	} {
		parts.Go(func() error { return run(ctx) })
	}
}

// ServeStarted adds to parts what runs once AwaitStart has returned.
func (c *Server) ServeStarted(ctx context.Context, parts *errgroup.Group) {
	for _, run := range []func(context.Context) error{
		c.watchFreshness, c.watchLeaders, c.bootstrapOnLeadership, c.followReplacements, c.FollowServers, c.watchEncryption,
	} {
		parts.Go(func() error { return run(ctx) })
	}
}

// API completes the API of the control plane with what the servers tell about themselves.
func (c *Server) API(api controlplane.API) controlplane.API {
	api.Early, api.Authorities, api.Servers = earlyMethods(), c.announcedAuthorities, c.announcedServers
	return api
}

// RegisterServices adds the services about the servers. Call it after Assemble.
func (c *Server) RegisterServices() {
	meridianv1.RegisterClusterServiceServer(c.GRPC, &clusterService{server: c})
	meridianv1.RegisterJoinServiceServer(c.GRPC, &joinService{server: c})
}

// RegisterMetrics adds what servers report that are some of several.
func (c *Server) RegisterMetrics() {
	c.Gauge("meridian_gossip_members", "Servers of this cluster that gossip considers alive.", func() float64 { return float64(len(c.gossip.Load().Members())) })
	c.Metrics.MustRegister(newClusterCollector(c.clusterFigures))
	certificates := map[string]*pki.PKI{"api": c.PKI}
	if c.peers != c.PKI {
		certificates["peers"] = c.peers
	}
	c.UseCertificates(certificates)
}

// transferLeadership transfers leadership as soon as the server is to stop, so that the calls
// which are running finish through the next leader.
func (c *Server) transferLeadership(ctx context.Context) error {
	<-ctx.Done()
	c.Node.Leave()
	if !c.Node.IsLeader() {
		return nil
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), transferTimeout)
	defer cancel()
	if next, err := c.Node.TransferLeadership(stopping, ""); err != nil {
		c.Log.Debug("there is no server to transfer leadership to", "error", err)
	} else {
		c.Log.Info("transferred leadership", "to", next)
	}
	return nil
}

// transferTimeout bounds the transfer of leadership, of the ten seconds that a stop
// takes at most.
const transferTimeout = 2 * time.Second

// checkLeader is the readiness of the log: without a leader nothing can be written.
func (c *Server) checkLeader() error {
	if id, _ := c.Node.Leader(); id == "" {
		return fmt.Errorf("no leader is known: waiting for %s", c.Node.Waiting())
	}
	return nil
}

// earlyMethods are answered before the server is ready: without credentials,
// since it may not know its keys yet.
func earlyMethods() []string {
	return []string{meridianv1.ClusterService_Members_FullMethodName}
}
