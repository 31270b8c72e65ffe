package raftnet

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func noHint(string) string { return "" }

// heldTransport answers heartbeats when it is told to, in the term it is told,
// and notes where they were sent.
type heldTransport struct {
	Transport
	answers chan uint64 // 0: an error
	sent    chan raft.ServerAddress
}

func (t heldTransport) AppendEntries(_ raft.ServerID, at raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.sent != nil {
		t.sent <- at
	}
	if resp.Term = <-t.answers; resp.Term == 0 {
		return errors.New("no answer")
	}
	resp.Success = true
	return nil
}

// TestOldAnswersProveNothing: an answer to a heartbeat that was sent before a
// read began does not send that the server still follows.
func TestOldAnswersProveNothing(t *testing.T) {
	servers := []raft.Server{
		{ID: "a", Suffrage: raft.Voter},
		{ID: "b", Suffrage: raft.Voter},
		{ID: "c", Suffrage: raft.Voter},
		{ID: "d", Suffrage: raft.Nonvoter},
	}
	synctest.Test(t, func(t *testing.T) {
		held := heldTransport{answers: make(chan uint64)}
		w := NewEndpoint(held, noHint)
		beat := func(to raft.ServerID) {
			go func() {
				_ = w.AppendEntries(to, "", &raft.AppendEntriesRequest{Term: 3}, &raft.AppendEntriesResponse{})
			}()
			synctest.Wait()
		}
		answer := func(term uint64) {
			held.answers <- term
			synctest.Wait()
		}
		beat("b")
		read := w.BeginRead()
		require.False(t, w.Confirmed("a", servers, 3, read))
		answer(3)
		require.False(t, w.Confirmed("a", servers, 3, read), "the heartbeat left before")
		beat("d")
		answer(3)
		require.False(t, w.Confirmed("a", servers, 3, read), "d has no vote")
		beat("b")
		answer(4)
		require.False(t, w.Confirmed("a", servers, 3, read), "b knows of a later term")
		beat("b")
		answer(0)
		require.False(t, w.Confirmed("a", servers, 3, read), "b did not answer")
		beat("b")
		moved := w.changed.Wait()
		answer(3)
		<-moved
		require.True(t, w.Confirmed("a", servers, 3, read))
		require.False(t, w.Confirmed("a", servers, 4, read), "of another term")
		require.False(t, w.Confirmed("a", servers, 3, w.BeginRead()), "the next read wants its own")
		require.True(t, w.Confirmed("a", servers[:1], 3, w.BeginRead()), "a single server needs no other")
	})
}

// TestWhatAServerHasTaken: a server has of the log what it said in this term that it
// took, in a message of its own or in a pipeline.
func TestWhatAServerHasTaken(t *testing.T) {
	there := &constant{answer: raft.AppendEntriesResponse{Term: 7, Success: true}}
	w := NewEndpoint(there, noHint)
	send := func(term, previous uint64, entries int) {
		request := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: previous}
		for i := range entries {
			request.Entries = append(request.Entries, &raft.Log{Index: previous + uint64(i) + 1}) //nolint:gosec // a few
		}
		require.NoError(t, w.AppendEntries("b", "b:1", request, new(raft.AppendEntriesResponse)))
	}
	require.False(t, w.HasTaken("b", 7, 1))
	more := w.TakenMore()
	send(7, 3, 2)
	<-more
	require.True(t, w.HasTaken("b", 7, 5))
	require.False(t, w.HasTaken("b", 7, 6))
	require.False(t, w.HasTaken("c", 7, 5))
	require.False(t, w.HasTaken("b", 8, 5), "a later leader's log may differ")
	send(7, 0, 0)
	require.True(t, w.HasTaken("b", 7, 5), "after a heartbeat")
	there.answer = raft.AppendEntriesResponse{Term: 7, NoRetryBackoff: true}
	send(7, 8, 1)
	require.False(t, w.HasTaken("b", 7, 6), "it refused")
	there.answer = raft.AppendEntriesResponse{Term: 8, Success: true}
	send(8, 2, 0)
	require.True(t, w.HasTaken("b", 8, 2))
	require.False(t, w.HasTaken("b", 8, 3))

	inner := newBarePipeline()
	w.Transport = bareTransport{pipeline: inner}
	p, err := w.AppendEntriesPipeline("b", "b:1")
	require.NoError(t, err)
	more = w.TakenMore()
	inner.answered <- taking{&answer{response: raft.AppendEntriesResponse{Term: 8, Success: true}}}
	<-more
	require.True(t, w.HasTaken("b", 8, 10))
	<-p.Consumer()
	require.NoError(t, p.Close())
}

// taking is an answer to a message with the entry 10.
type taking struct{ *answer }

func (taking) Request() *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: 8, PrevLogEntry: 9, Entries: []*raft.Log{{Index: 10}}}
}

// TestAddressHints: a server that does not answer at the address in the log is
// tried at the one that gossip knows, and the other way round.
func TestAddressHints(t *testing.T) {
	held := heldTransport{answers: make(chan uint64, 1), sent: make(chan raft.ServerAddress, 1)}
	hint := "b:2"
	w := NewEndpoint(held, func(string) string { return hint })
	beat := func(term uint64) raft.ServerAddress {
		held.answers <- term
		_ = w.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		return <-held.sent
	}
	require.EqualValues(t, "b:1", beat(1))
	require.EqualValues(t, "b:1", beat(0))
	require.EqualValues(t, "b:2", beat(1))
	require.EqualValues(t, "b:2", beat(0))
	require.EqualValues(t, "b:1", beat(0))
	require.EqualValues(t, "b:2", beat(0))
	hint = ""
	require.EqualValues(t, "b:1", beat(0))
	require.EqualValues(t, "b:1", beat(1))
}

// TestNoMessageBeforeRelease: raft gets no message of others until Release, and
// every sender an answer.
func TestNoMessageBeforeRelease(t *testing.T) {
	inner := consuming{messages: make(chan raft.RPC)}
	w := NewEndpoint(inner, noHint)
	w.Hold()
	w.Start(everything)
	defer w.Stop()
	send := func() <-chan raft.RPCResponse {
		answered := make(chan raft.RPCResponse, 1)
		inner.messages <- raft.RPC{RespChan: answered}
		return answered
	}
	require.ErrorIs(t, (<-send()).Error, errNotMember)
	require.ErrorIs(t, (<-send()).Error, errNotMember)
	w.Release()
	w.Release()
	answered := send()
	message := <-w.Consumer()
	message.Respond("fine", nil)
	require.Equal(t, "fine", (<-answered).Response)
}

type consuming struct {
	Transport
	messages chan raft.RPC
}

func (c consuming) Consumer() <-chan raft.RPC { return c.messages }

// everything lets every message through, in term 7.
var everything = Screen{
	Examine: func(rpc raft.RPC) (raft.RPC, bool) { return rpc, true },
	State:   func() (term, last uint64) { return 7, 40 },
}

// TestHeartbeatsDuringAWrite: while raft works on a message of its leader, this
// leader's heartbeats are answered, and what else arrives waits for raft.
func TestHeartbeatsDuringAWrite(t *testing.T) {
	beat := func(leader string, term uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte(leader)}, Term: term}
	}
	entries := func(leader string, term uint64) *raft.AppendEntriesRequest {
		r := beat(leader, term)
		r.PrevLogEntry, r.Entries = 39, []*raft.Log{{Index: 40}}
		return r
	}
	snapshot := &raft.InstallSnapshotRequest{RPCHeader: raft.RPCHeader{ID: []byte("a")}, Term: 7}
	vote := &raft.RequestVoteRequest{RPCHeader: raft.RPCHeader{ID: []byte("a")}, Term: 7}
	for name, c := range map[string]struct {
		writing, arriving any
		answered          bool
	}{
		"the leader's heartbeat":          {entries("a", 7), beat("a", 7), true},
		"while a snapshot is installed":   {snapshot, beat("a", 7), true},
		"of another server":               {entries("a", 7), beat("b", 7), false},
		"of a later term":                 {entries("a", 7), beat("a", 8), false},
		"of an earlier term":              {entries("a", 7), beat("a", 6), false},
		"the term is not on the disk yet": {entries("a", 8), beat("a", 8), false},
		"a deposed leader's":              {entries("a", 6), beat("a", 6), false},
		"during a vote":                   {vote, beat("a", 7), false},
		"entries":                         {entries("a", 7), entries("a", 7), false},
		"how far entries are committed":   {entries("a", 7), &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("a")}, Term: 7, LeaderCommitIndex: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := consuming{messages: make(chan raft.RPC)}
				w := NewEndpoint(inner, noHint)
				w.Start(everything)
				defer w.Stop()
				send := func(command any) <-chan raft.RPCResponse {
					answered := make(chan raft.RPCResponse, 1)
					inner.messages <- raft.RPC{Command: command, RespChan: answered}
					return answered
				}
				wrote := send(c.writing)
				writing := <-w.Consumer()
				require.Equal(t, c.writing, writing.Command)
				waits := send(c.arriving)
				synctest.Wait()
				select {
				case answer := <-waits:
					require.True(t, c.answered, "answered without raft")
					require.NoError(t, answer.Error)
					response := answer.Response.(*raft.AppendEntriesResponse)
					require.True(t, response.Success)
					require.EqualValues(t, 7, response.Term)
					require.EqualValues(t, 40, response.LastLog)
				default:
					require.False(t, c.answered, "it waits for the disk")
				}
				writing.Respond("written", nil)
				require.Equal(t, "written", (<-wrote).Response)
				if !c.answered {
					later := <-w.Consumer()
					require.Equal(t, c.arriving, later.Command)
					later.Respond("later", nil)
					require.Equal(t, "later", (<-waits).Response)
				}
				idle := send(beat("a", 7))
				message := <-w.Consumer()
				message.Respond("raft", nil)
				require.Equal(t, "raft", (<-idle).Response, "raft answers itself when nothing holds it up")
			})
		})
	}
}

// TestOneMessageOfALeaderWaits: a leader that gives up waiting sends again, and
// what it gave up is not kept.
func TestOneMessageOfALeaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := consuming{messages: make(chan raft.RPC)}
		w := NewEndpoint(inner, noHint)
		w.Start(everything)
		defer w.Stop()
		send := func(term, previous uint64) <-chan raft.RPCResponse {
			answered := make(chan raft.RPCResponse, 1)
			inner.messages <- raft.RPC{RespChan: answered, Command: &raft.AppendEntriesRequest{
				RPCHeader: raft.RPCHeader{ID: []byte("a")}, Term: term, PrevLogEntry: previous, Entries: []*raft.Log{{Index: previous + 1}},
			}}
			synctest.Wait()
			return answered
		}
		first := send(7, 1)
		writing := <-w.Consumer()
		given := make([]<-chan raft.RPCResponse, 5)
		for i := range given {
			given[i] = send(7, uint64(i+2))
		}
		for _, earlier := range given[:4] {
			require.ErrorIs(t, (<-earlier).Error, errSuperseded)
		}
		writing.Respond(nil, nil)
		<-first
		last := <-w.Consumer()
		require.EqualValues(t, 6, last.Command.(*raft.AppendEntriesRequest).PrevLogEntry)
		last.Respond("stored", nil)
		require.Equal(t, "stored", (<-given[4]).Response)
	})
}
