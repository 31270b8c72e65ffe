package raftnet

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// absent is a member that takes nothing until a moment: it cannot be reached, or
// cannot store.
type absent struct {
	Transport
	until time.Time
	err   error
	sent  int
	// snapshots is how many were to be sent.
	snapshots int
}

func (a *absent) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	a.sent++
	resp.Term, resp.Success = args.Term, time.Now().After(a.until)
	if !resp.Success {
		return a.err
	}
	return nil
}

// TestEntriesAreSentAgain: a member that is back gets the entries within maxRetry,
// one that can store again within maxRefusedRetry, however long it was away; raft
// itself is told of no failure, after which it would wait for longer and longer.
// Heartbeats fail at once.
func TestEntriesAreSentAgain(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		pause time.Duration
	}{
		"it does not answer": {errors.New("unreachable"), maxRetry},
		"it cannot store":    {nil, maxRefusedRetry},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.err
			synctest.Test(t, func(t *testing.T) {
				back := time.Now().Add(time.Hour)
				there := &absent{until: back, err: err}
				w := NewEndpoint(there, noHint)
				w.Replicating(func(term uint64, id raft.ServerID, at raft.ServerAddress) bool {
					return term == 7 && id == "b" && at == "b:1"
				})
				require.Equal(t, err, w.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse)))
				require.Equal(t, 1, there.sent, "a heartbeat")
				for _, c := range []struct {
					term uint64
					at   raft.ServerAddress
				}{{6, "b:1"}, {7, "b:2"}} {
					there.sent = 0
					require.Equal(t, err, w.AppendEntries("b", c.at, &raft.AppendEntriesRequest{Term: c.term, PrevLogEntry: 3}, new(raft.AppendEntriesResponse)))
					require.Equal(t, 1, there.sent, "in a term that is over, or at an address that is not the member's")
				}
				var resp raft.AppendEntriesResponse
				there.sent = 0
				require.NoError(t, w.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 3}, &resp))
				require.True(t, resp.Success)
				require.WithinDuration(t, back, time.Now(), c.pause)
				require.InDelta(t, time.Hour/c.pause, there.sent, 10)
			})
		})
	}
}

// InstallSnapshot takes a snapshot, or fails.
func (a *absent) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	a.snapshots++
	if time.Now().After(a.until) {
		return nil
	}
	return a.err
}

// TestASnapshotWaitsForItsMember: a snapshot that could not be sent fails once the member
// has answered a heartbeat since, however long it was away, so that raft counts one
// failure; at once where this server does not lead any more or the member has moved.
func TestASnapshotWaitsForItsMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Hour)
		away := errors.New("unreachable")
		there := &absent{until: back, err: away}
		w := NewEndpoint(there, noHint)
		w.Replicating(func(term uint64, id raft.ServerID, at raft.ServerAddress) bool {
			return term == 7 && id == "b" && at == "b:1"
		})
		send := func(term uint64, at raft.ServerAddress) error {
			return w.InstallSnapshot("b", at, &raft.InstallSnapshotRequest{Term: term}, new(raft.InstallSnapshotResponse), nil)
		}
		began := time.Now()
		require.Equal(t, away, send(6, "b:1"))
		require.Equal(t, away, send(7, "b:2"))
		require.Equal(t, began, time.Now())

		ended := make(chan error, 1)
		go func() { ended <- send(7, "b:1") }()
		const beat = 150 * time.Millisecond
		for len(ended) == 0 {
			_ = w.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse))
			<-time.After(beat)
		}
		require.Equal(t, away, <-ended)
		require.WithinDuration(t, back, time.Now(), 2*beat)
		require.Equal(t, 3, there.snapshots, "one attempt each")
		require.NoError(t, send(7, "b:1"))
	})
}

// TestASnapshotEndsWithRaft: what waits for a member ends with the server.
func TestASnapshotEndsWithRaft(t *testing.T) {
	there := &absent{until: time.Now().Add(time.Hour), err: errors.New("unreachable")}
	w := NewEndpoint(there, noHint)
	w.Replicating(func(uint64, raft.ServerID, raft.ServerAddress) bool { return true })
	close(w.done)
	require.Error(t, w.InstallSnapshot("b", "b:1", &raft.InstallSnapshotRequest{Term: 7}, new(raft.InstallSnapshotResponse), nil))
}

// TestRaftGetsWhatItDealsWith: an answer that raft acts on is not asked for
// again.
func TestRaftGetsWhatItDealsWith(t *testing.T) {
	for name, answer := range map[string]raft.AppendEntriesResponse{
		"a later term":              {Term: 8},
		"a log that does not reach": {Term: 7, NoRetryBackoff: true},
	} {
		t.Run(name, func(t *testing.T) {
			there := &constant{answer: answer}
			w := NewEndpoint(there, noHint)
			w.Replicating(func(uint64, raft.ServerID, raft.ServerAddress) bool { return true })
			var resp raft.AppendEntriesResponse
			require.NoError(t, w.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 3}, &resp))
			require.Equal(t, answer, resp)
			require.Equal(t, 1, there.sent)
		})
	}
}

type constant struct {
	Transport
	answer raft.AppendEntriesResponse
	sent   int
}

func (a *constant) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	a.sent++
	*resp = a.answer
	return nil
}

// TestVotersAreAskedAgain: a voter that is starting, and one that still knows of a
// leader, are asked again within the same election, and not after it.
func TestVotersAreAskedAgain(t *testing.T) {
	const election = 10 * time.Second
	for name, c := range map[string]struct {
		err error
		ask func(*Endpoint) (granted bool, err error)
	}{
		"a vote, no answer": {errors.New("unreachable"), func(w *Endpoint) (bool, error) {
			var resp raft.RequestVoteResponse
			err := w.RequestVote("b", "b:1", &raft.RequestVoteRequest{Term: 7}, &resp)
			return resp.Granted, err
		}},
		"a pre-vote, no answer": {errors.New("unreachable"), preVote},
		"a pre-vote, denied":    {nil, preVote},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w := NewEndpoint(&voter{until: began.Add(5 * time.Second), err: c.err}, noHint)
				w.Campaigning(func(term uint64) bool { return term == 7 || term == 6 }, func() time.Duration { return election }, func() time.Duration { return 0 })
				granted, err := c.ask(w)
				require.NoError(t, err)
				require.True(t, granted)
				require.WithinDuration(t, began.Add(5*time.Second), time.Now(), maxRetry)

				over := time.Now().Add(election / 2)
				w = NewEndpoint(&voter{until: began.Add(time.Hour), err: c.err}, noHint)
				w.Campaigning(func(uint64) bool { return time.Now().Before(over) }, func() time.Duration { return election }, func() time.Duration { return 0 })
				granted, err = c.ask(w)
				require.Equal(t, c.err, err)
				require.False(t, granted)
				require.WithinDuration(t, over, time.Now(), maxRetry, "the election is over")

				if began = time.Now(); strings.Contains(name, "pre-vote") {
					w.Campaigning(func(uint64) bool { return true }, func() time.Duration { return election }, func() time.Duration { return 0 })
					_, err = c.ask(w)
					require.Equal(t, c.err, err)
					require.WithinDuration(t, began.Add(election), time.Now(), maxRetry, "raft has begun the next")
				}
			})
		})
	}
}

// TestServersTakeTurnsToCampaign: a server asks for no votes before its turn, and not at
// all if another has won until then.
func TestServersTakeTurnsToCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := time.Now().Add(150 * time.Millisecond)
		w := NewEndpoint(&voter{until: time.Now()}, noHint)
		standBack := func() time.Duration { return time.Until(turn) }
		w.Campaigning(func(uint64) bool { return true }, func() time.Duration { return time.Minute }, standBack)
		granted, err := preVote(w)
		require.NoError(t, err)
		require.True(t, granted)
		require.Equal(t, turn, time.Now())

		turn = time.Now().Add(time.Second)
		won := time.Now().Add(time.Millisecond)
		w.Campaigning(func(uint64) bool { return time.Now().Before(won) }, func() time.Duration { return time.Minute }, standBack)
		granted, err = preVote(w)
		require.ErrorIs(t, err, errNotCampaigning)
		require.False(t, granted)
	})
}

func preVote(w *Endpoint) (granted bool, err error) {
	var resp raft.RequestPreVoteResponse
	err = w.RequestPreVote("b", "b:1", &raft.RequestPreVoteRequest{Term: 7}, &resp)
	return resp.Granted, err
}

// voter does not agree until a moment.
type voter struct {
	Transport
	until time.Time
	err   error
}

func (v *voter) agrees() (bool, error) {
	if time.Now().Before(v.until) {
		return false, v.err
	}
	return true, nil
}

func (v *voter) RequestVote(_ raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) (err error) {
	resp.Term = args.Term
	resp.Granted, err = v.agrees()
	return err
}

func (v *voter) RequestPreVote(_ raft.ServerID, _ raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) (err error) {
	resp.Term = args.Term
	resp.Granted, err = v.agrees()
	return err
}
