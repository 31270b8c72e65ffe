package consensus

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
)

// PeerConn returns a connection to the server with a raft address, for the
// services it registered with Config.PeerServices. Both ends have proved to be
// servers of this cluster. It is shared, connects when it is first used and
// again after a failure, and is closed with the node.
func (n *core) PeerConn(addr string) grpc.ClientConnInterface { return n.peers.To(addr) }

// servePeers answers the calls of peers until the server is stopped.
func (n *Node) servePeers() {
	n.peerServer = raftnet.Serve(n.network, n.ClusterID, n.isMember, func(registrar grpc.ServiceRegistrar) {
		peerv1.RegisterRaftServiceServer(registrar, &peerService{node: n})
		if n.cfg.PeerServices != nil {
			n.cfg.PeerServices(registrar)
		}
	})
}

// Recheck decides again about the peers of all open connections, and ends those of
// peers that would not be accepted now.
func (n *core) Recheck() {
	if n.network != nil {
		n.network.Recheck()
	}
}

// statusOf asks a member at its address how it stands.
func (n *core) statusOf(ctx context.Context, id raft.ServerID, addr raft.ServerAddress) (*peerv1.StatusResponse, error) {
	status, err := peerv1.NewRaftServiceClient(n.PeerConn(string(addr))).Status(ctx, &peerv1.StatusRequest{})
	switch {
	case err != nil:
		return nil, callFailure(err)
	case status.GetName() != raftlog.NameOf(id):
		return nil, fmt.Errorf("the server at %s is %s, not %s", addr, status.GetName(), raftlog.NameOf(id))
	case status.GetDisk() != raftlog.DiskOf(id):
		return nil, fmt.Errorf("the server at %s has another disk than the member %s", addr, raftlog.NameOf(id))
	case status.GetClusterId() != n.ClusterID():
		return nil, fmt.Errorf("the server at %s is of cluster %s", addr, status.GetClusterId())
	}
	return status, nil
}

// callFailure says in a few words why a call to a peer has no answer, without
// what gRPC adds about itself.
func callFailure(err error) error {
	said := status.Convert(err)
	switch said.Code() {
	case codes.DeadlineExceeded, codes.Canceled:
		return errors.New("no answer in time")
	case codes.Unavailable:
		return errors.New(said.Message())
	default:
		return err
	}
}

// stopPeers ends the calls to and of peers.
func (n *Node) stopPeers() {
	n.peers.Close()
	if n.peerServer != nil {
		n.peerServer.Stop()
	}
}
