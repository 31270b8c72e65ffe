package client

import (
	"cmp"
	"context"
	"fmt"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

// StateUnreachable is how a member is listed that does not answer.
const StateUnreachable = "unreachable"

// membersTimeout bounds how long a server is asked which servers there are. It asks each of
// them for a second.
const membersTimeout = 1500 * time.Millisecond

// learnLeaderless asks the server that has answered, where it says that it has no leader, which
// servers it does not reach. It asks once, until a request succeeds, and also when the time of
// the request is over: this is what the user has to know then.
func (c *Client) learnLeaderless(ctx context.Context, err error) {
	if err == nil {
		c.leaderless.Store(nil)
		return
	}
	if !rpcerr.HasReason(rpcerr.FromStatus(err), "NO_LEADER") || c.leaderless.Load() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), membersTimeout)
	defer cancel()
	c.leaderless.Store(&exit.Failure{})
	if members, err := c.Members(ctx, &meridianv1.MembersRequest{}); err == nil && members.GetLeader() == "" && len(members.GetMembers()) > 0 {
		c.leaderless.Store(NoLeader(members))
	}
}

// whyLeaderless are the lines about it, and what to do.
func (c *Client) whyLeaderless() []string {
	why := c.leaderless.Load()
	if why == nil || why.Err == nil {
		return nil
	}
	lines := append([]string{"Why: " + why.Error()}, why.Details...)
	return append(lines, "Start the servers that do not answer, or fix the network between them: docs/operations/leader-loss.md.")
}

// NoLeader reports that there is no leader, and which servers are missing.
func NoLeader(members *meridianv1.MembersResponse) *exit.Failure {
	voters, answering := 0, 0
	var missing []string
	for _, m := range members.GetMembers() {
		if !m.GetVoter() {
			continue
		}
		voters++
		if m.GetState() == StateUnreachable {
			missing = append(missing, fmt.Sprintf("  %s at %s does not answer", m.GetName(), cmp.Or(m.GetRaft(), "-")))
		} else {
			answering++
		}
	}
	out := exit.Failf(exit.Unavailable, "server %s has no leader: writes are refused until one is elected", members.GetSelf())
	if answering < voters/2+1 {
		out = exit.Failf(exit.Unavailable, "there is no leader: of %d servers with a vote %d answer, and it takes %d", voters, answering, voters/2+1)
	}
	return out.With(missing...)
}
