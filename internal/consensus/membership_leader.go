package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftnet"
)

// atLeader does something about members where it can be done: here while this
// server leads, at the leader while another does. It tries again while no server
// can do it and whenever it is not known whether it was done: every change of
// members may be repeated.
func (n *members) atLeader(ctx context.Context, here func(context.Context) error, there func(context.Context, peerv1.RaftServiceClient) error) error {
	if err := n.begin(); err != nil {
		return err
	}
	defer n.requests.Done()
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.ApplyTimeout, fmt.Errorf("no leader could do it within %s", n.cfg.ApplyTimeout))
	defer cancel()
	for {
		_, changed := n.leadership.get()
		err := n.tryLeader(ctx, here, there)
		if !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknownOutcome) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-n.stopping.Done():
			return fmt.Errorf("%w: %w", ErrClosed, err)
		case <-changed:
		case <-time.After(leaderPause):
		}
	}
}

const (
	// leaderPause is how long to wait before the leader is tried again.
	leaderPause = 50 * time.Millisecond
	// leaderTimeout bounds one try: a leader that hangs is not the leader for
	// long.
	leaderTimeout = 2 * raftnet.RPCTimeout
)

func (n *members) tryLeader(ctx context.Context, here func(context.Context) error, there func(context.Context, peerv1.RaftServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	if n.raft.State() == raft.Leader {
		return here(ctx)
	}
	name, addr := n.Leader()
	if name == "" || name == n.cfg.NodeID {
		return ErrUnavailable
	}
	return there(ctx, peerv1.NewRaftServiceClient(n.PeerConn(addr)))
}
