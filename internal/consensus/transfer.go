package consensus

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// TransferLeadership makes another voter the leader, the one named or, when to
// is empty, whichever is furthest along, and returns its name. Writes wait
// meanwhile.
//
// Errors: ErrNotLeader, ErrUnavailable, ErrClosed, or why the server named
// cannot lead. This server may or may not lead after an error.
func (n *Node) TransferLeadership(ctx context.Context, to string) (string, error) {
	if err := n.begin(); err != nil {
		return "", err
	}
	defer n.requests.Done()
	if n.raft.State() != raft.Leader {
		return "", n.notLeader()
	}
	var future raft.Future
	if to == "" {
		future = n.raft.LeadershipTransfer()
	} else {
		addr, err := n.voterAddress(to)
		if err != nil {
			return "", err
		}
		future = n.raft.LeadershipTransferToServer(raft.ServerID(to), addr)
	}
	if err := future.Error(); err != nil {
		return "", fmt.Errorf("%w: hand over the leadership: %w", ErrUnavailable, err)
	}
	leader, _ := n.Leader()
	return leader, nil
}

// voterAddress returns the address of a server that may lead.
func (n *Node) voterAddress(name string) (raft.ServerAddress, error) {
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.ID != raft.ServerID(name) {
			continue
		}
		if s.Suffrage != raft.Voter {
			return "", fmt.Errorf("consensus: %s has no vote yet and cannot lead", name)
		}
		return s.Address, nil
	}
	return "", errors.New("consensus: no server of this cluster is called " + name)
}
