package consensus

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
	"github.com/stretchr/testify/require"

	"meridian/internal/gossip"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
)

// pilotOf returns the pilot of a leader called a that has had no answer from b
// for a time, and gossips.
func pilotOf(silence time.Duration, peers func() []gossip.Peer) *pilot {
	cfg := DefaultConfig("unused")
	cfg.NodeID, cfg.Peers = "a", peers
	n := newNode(cfg, nil)
	if silence > 0 {
		n.members.contacts.observe(raft.FailedHeartbeatObservation{PeerID: "b", LastContact: time.Now().Add(-silence)})
	}
	return &pilot{node: n}
}

// TestWhoIsDead: heartbeats and gossip have to agree, and gossip that reaches no
// server has no opinion.
func TestWhoIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long, short := 6*time.Minute, 4*time.Minute
		peer := func(name string, state gossip.State, ago time.Duration) gossip.Peer {
			return gossip.Peer{Name: name, State: state, Since: time.Now().Add(-ago)}
		}
		c := peer("c", gossip.Alive, long)
		for name, tc := range map[string]struct {
			silence time.Duration
			peers   []gossip.Peer
			alone   bool
			dead    bool
		}{
			"it answers":                           {0, []gossip.Peer{peer("b", gossip.Dead, long), c}, false, false},
			"silent, and dead to gossip":           {long, []gossip.Peer{peer("b", gossip.Dead, long), c}, false, true},
			"silent for a short time":              {short, []gossip.Peer{peer("b", gossip.Dead, long), c}, false, false},
			"silent, and dead for a short time":    {long, []gossip.Peer{peer("b", gossip.Dead, short), c}, false, false},
			"silent towards the leader only":       {long, []gossip.Peer{peer("b", gossip.Alive, long), c}, false, false},
			"silent, and remembered only":          {long, []gossip.Peer{peer("b", gossip.Unseen, 0), c}, false, true},
			"silent, and unknown to gossip":        {long, []gossip.Peer{c}, false, true},
			"silent, and gossip reaches no server": {long, []gossip.Peer{peer("b", gossip.Dead, long), peer("c", gossip.Dead, long)}, false, false},
			"silent, and there is no gossip":       {long, nil, true, true},
			"for a short time, without any gossip": {short, nil, true, false},
		} {
			peers := func() []gossip.Peer { return tc.peers }
			if tc.alone {
				peers = nil
			}
			require.Equal(t, tc.dead, pilotOf(tc.silence, peers).dead("b"), name)
		}
		p := pilotOf(long, nil)
		p.node.cfg.Autopilot.DeadAfter = 0
		require.False(t, p.dead("b"), "removal is off")
	})
}

// TestContacts: who resumes is heard; an old failure says nothing about now.
func TestContacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newContacts()
		require.Zero(t, c.silence("b"))
		fail := func(ago time.Duration) {
			c.observe(raft.FailedHeartbeatObservation{PeerID: "b", LastContact: time.Now().Add(-ago)})
		}
		fail(time.Second)
		require.Equal(t, time.Second, c.silence("b"))
		require.Zero(t, c.silence("c"))
		<-time.After(time.Second)
		require.Equal(t, 2*time.Second, c.silence("b"))
		c.observe(raft.ResumedHeartbeatObservation{PeerID: "b"})
		require.Zero(t, c.silence("b"))
		fail(0)
		require.NotZero(t, c.silence("b"))
		<-time.After(failureStale + 1)
		require.Zero(t, c.silence("b"), "no heartbeat has failed since")
		fail(time.Minute)
		c.observe(raft.PeerObservation{Peer: raft.Server{ID: "b"}, Removed: true})
		require.Zero(t, c.silence("b"), "of another life")

		require.False(t, c.newSince("b", time.Minute))
		fail(time.Minute)
		c.add("b")
		require.Zero(t, c.silence("b"))
		require.True(t, c.newSince("b", time.Minute))
		<-time.After(time.Minute)
		require.False(t, c.newSince("b", time.Minute))
	})
}

// TestStaleServersStay: autopilot would remove at once what it takes for stale.
func TestStaleServersStay(t *testing.T) {
	p := pilotOf(0, nil)
	failed := &autopilot.FailedServers{
		StaleVoters: []raft.ServerID{"x"}, StaleNonVoters: []raft.ServerID{"y"},
		FailedVoters: []*autopilot.Server{{ID: "b"}}, FailedNonVoters: []*autopilot.Server{{ID: "c"}},
	}
	cfg := p.AutopilotConfig()
	three := &autopilot.State{Voters: []raft.ServerID{"a", "b", "d"}}
	require.Equal(t, &autopilot.FailedServers{FailedVoters: failed.FailedVoters, FailedNonVoters: failed.FailedNonVoters}, p.FilterFailedServerRemovals(cfg, three, failed))
	one := &autopilot.State{Voters: []raft.ServerID{"a"}}
	require.Equal(t, &autopilot.FailedServers{FailedVoters: failed.FailedVoters}, p.FilterFailedServerRemovals(cfg, one, failed), "a small cluster keeps its joiners")
	for _, err := range []error{
		pilotRaft{}.RemoveServer("x", 0, 0).Error(), pilotRaft{}.DemoteVoter("x", 0, 0).Error(),
		pilotRaft{}.AddNonvoter("x", "x", 0, 0).Error(), pilotRaft{}.LeadershipTransferToServer("x", "x").Error(),
	} {
		require.ErrorIs(t, err, errNotAutopilots)
	}
}

func TestAutopilotConfig(t *testing.T) {
	require.NoError(t, DefaultAutopilot().validate())
	for want, change := range map[string]func(*Autopilot){
		"interval":      func(a *Autopilot) { a.Interval = 0 },
		"stabilization": func(a *Autopilot) { a.Stabilization = raftnet.RPCTimeout - 1 },
		"removal":       func(a *Autopilot) { a.DeadAfter = -1 },
		"3 voters":      func(a *Autopilot) { a.MinVoters = 2 },
	} {
		a := DefaultAutopilot()
		change(&a)
		require.ErrorContains(t, a.validate(), want)
	}
}

// TestMemberErrorsSurviveTheWire: what a peer is told about a change of members
// is what the leader decided.
func TestMemberErrorsSurviveTheWire(t *testing.T) {
	for _, sentinel := range []error{ErrNotLeader, ErrUnavailable, ErrUnknownOutcome} {
		require.ErrorIs(t, memberError(memberStatus(fmt.Errorf("because: %w", sentinel))), sentinel)
	}
	require.ErrorIs(t, memberError(memberStatus(ErrClosed)), ErrUnavailable, "of that server; another may do it")
	require.ErrorIs(t, memberError(memberStatus(errors.New("odd"))), ErrUnknownOutcome)
	require.NoError(t, memberError(nil))
	for _, reason := range []string{ReasonAlreadyRunning, ReasonUnknownServer, ReasonLastVoter} {
		code := rpcerr.Conflict
		if reason == ReasonUnknownServer {
			code = rpcerr.NotFound
		}
		err := memberError(memberStatus(rpcerr.New(code, reason, "why")))
		require.True(t, rpcerr.HasReason(err, reason))
		require.EqualError(t, err, "why")
	}
}
