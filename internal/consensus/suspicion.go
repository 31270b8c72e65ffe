package consensus

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// firstProbe and maxProbe are how long a follower waits before it asks again
	// whether the leader's process is there. The time doubles from one to the other.
	firstProbe = 5 * time.Millisecond
	maxProbe   = 40 * time.Millisecond
	// probeInterval is how often connections that end have the leader looked at, at
	// most.
	probeInterval = 50 * time.Millisecond
	// candidateStep is how much later each server asks for votes than the one before
	// it: time enough for an election on disks that are not slow.
	candidateStep = 50 * time.Millisecond
)

// suspicion shortens the wait for a leader whose process has ended. A follower whose
// connections end connects to the leader. Where the connection is refused, no process
// is there, and the follower waits for heartbeats no longer than the leader's lease.
// Everything else proves nothing: a server that is cut off, has been stopped, is slow
// or does not accept this server refuses no connection.
//
// Nothing depends on a suspicion being right. It makes a follower campaign
// earlier than the heartbeat timeout does, and raft still asks for the silence of the
// lease before that, and for the agreement of a majority that has no leader either
// (pre-vote).
type suspicion struct {
	*core
	keeper *keeper
	// standBackUntil is the moment before which this server asks for no votes, nil for
	// none.
	standBackUntil atomic.Pointer[time.Time]
}

// watch suspects leaders until ctx ends.
func (s *suspicion) watch(ctx context.Context) {
	ended := s.network.Ended()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		ended = s.network.Ended() // what ends from now on is looked at after this
		s.examine(ctx, time.Now())
		if !s.sleep(ctx, probeInterval) {
			return
		}
	}
}

// examine campaigns if no process is where the leader was when connections
// ended.
func (s *suspicion) examine(ctx context.Context, ended time.Time) {
	address, leader := s.raft.LeaderWithID()
	if leader == "" || leader == s.id || s.raft.State() != raft.Follower {
		return
	}
	// All servers count from the end of their connections, which is the same moment for
	// all of them, and not from the last message of the leader, which is not.
	at := ended.Add(s.cfg.Timing.Lease)
	if !s.refused(ctx, leader, address, at) || !s.sleep(ctx, time.Until(at)) || !s.follows(leader) {
		return
	}
	s.cfg.Logger.Info("no process is where the leader was: campaigning early", "leader", leader)
	until := at.Add(time.Duration(s.rank(leader)) * candidateStep)
	s.standBackUntil.Store(&until)
	s.keeper.hasten(true)
	defer s.keeper.hasten(false)
	timeout := time.NewTimer(s.cfg.Timing.Heartbeat)
	defer timeout.Stop()
	for {
		moved := s.moved.Wait()
		if !s.follows(leader) {
			return
		}
		select {
		case <-moved:
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// follows reports whether this server follows a leader.
func (s *suspicion) follows(leader raft.ServerID) bool {
	_, now := s.raft.LeaderWithID()
	return now == leader && s.raft.State() == raft.Follower
}

// refused reports whether the leader's address refused a connection. It asks until it
// knows, or until a moment.
func (s *suspicion) refused(ctx context.Context, leader raft.ServerID, address raft.ServerAddress, until time.Time) bool {
	if elsewhere, moved := s.endpoint.AddressOf(leader); moved {
		address = elsewhere
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for pause := firstProbe; s.follows(leader); pause = min(2*pause, maxProbe) {
		err := s.network.Meet(ctx, leader, string(address))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if err == nil || !s.sleep(ctx, pause) {
			return false
		}
	}
	return false
}

// sleep waits and reports whether ctx has not ended.
func (s *suspicion) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// rank is the number of voters, other than a leader that is gone, that ask for votes
// before this server does.
func (s *suspicion) rank(gone raft.ServerID) int {
	rank := 0
	for _, other := range s.servers() {
		if other.Suffrage == raft.Voter && other.ID != gone && other.ID < s.id {
			rank++
		}
	}
	return rank
}

// standBack is for how long this server still leaves it to others to ask for votes.
func (s *suspicion) standBack() time.Duration {
	until := s.standBackUntil.Load()
	if until == nil {
		return 0
	}
	return max(0, time.Until(*until))
}
