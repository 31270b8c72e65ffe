package raftnet

import (
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// raftOf is raft behind an endpoint, as a test sees it: what it is given, and what it
// answers.
type raftOf struct {
	t     *testing.T
	inner consuming
	w     *Endpoint
	term  uint64
}

// behind runs a test with raft in term 7.
func behind(t *testing.T, test func(r *raftOf)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &raftOf{t: t, inner: consuming{messages: make(chan raft.RPC)}, term: 7}
		r.w = NewEndpoint(r.inner, noHint)
		r.w.Start(Screen{Examine: everything.Examine, State: func() (term, last uint64) { return r.term, 0 }})
		defer r.w.Stop()
		test(r)
	})
}

// append has the leader of a term send entries up to an index, behind another, and raft
// take them or not. It returns up to where raft was told that they are committed.
func (r *raftOf) append(term, previous, last, committed uint64, takes bool) uint64 {
	r.t.Helper()
	request := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ID: []byte("a"), Addr: []byte("a:1")}, Term: term,
		PrevLogEntry: previous, PrevLogTerm: term, LeaderCommitIndex: committed,
	}
	for index := previous + 1; index <= last; index++ {
		request.Entries = append(request.Entries, &raft.Log{Index: index, Term: term})
	}
	answered := make(chan raft.RPCResponse, 1)
	r.inner.messages <- raft.RPC{Command: request, RespChan: answered}
	given := r.answer(term, takes)
	<-answered
	require.Equal(r.t, committed, request.LeaderCommitIndex, "the sender's message is not changed")
	require.Equal(r.t, request.Entries, given.Entries)
	synctest.Wait()
	return given.LeaderCommitIndex
}

// answer takes the next message and answers it.
func (r *raftOf) answer(term uint64, takes bool) *raft.AppendEntriesRequest {
	message := <-r.w.Consumer()
	message.Respond(&raft.AppendEntriesResponse{Term: term, Success: takes}, nil)
	return message.Command.(*raft.AppendEntriesRequest)
}

// told reports what raft is told to be committed without a message of its leader, 0 when
// it is told nothing.
func (r *raftOf) told(takes bool) uint64 {
	r.t.Helper()
	synctest.Wait()
	select {
	case message := <-r.w.Consumer():
		message.Respond(&raft.AppendEntriesResponse{Term: r.term, Success: takes}, nil)
		request := message.Command.(*raft.AppendEntriesRequest)
		require.Empty(r.t, request.Entries)
		require.Equal(r.t, raft.RPCHeader{ID: []byte("a"), Addr: []byte("a:1")}, request.RPCHeader)
		require.Equal(r.t, r.term, request.Term)
		require.Equal(r.t, r.term, request.PrevLogTerm)
		require.GreaterOrEqual(r.t, request.PrevLogEntry, request.LeaderCommitIndex)
		return request.LeaderCommitIndex
	default:
		return 0
	}
}

// TestRaftIsToldWhatALeaderSays: what the leader has answered to a call to be committed,
// raft is told at once, once, and of the entries only that it has taken from a leader
// which has them.
func TestRaftIsToldWhatALeaderSays(t *testing.T) {
	behind(t, func(r *raftOf) {
		r.w.Committed(7, 40)
		require.Zero(t, r.told(true), "it has taken nothing")
		require.EqualValues(t, 40, r.append(7, 38, 42, 38, true), "the next message says it")
		require.Zero(t, r.told(true), "again")
		r.w.Committed(7, 41)
		require.EqualValues(t, 41, r.told(true))
		r.w.Committed(7, 41)
		r.w.Committed(7, 39)
		require.Zero(t, r.told(true), "again")
		r.w.Committed(7, 45)
		require.EqualValues(t, 42, r.told(true), "what it has of that")
		require.EqualValues(t, 44, r.append(7, 42, 44, 41, true))
		require.EqualValues(t, 45, r.append(7, 44, 46, 41, true))
		require.EqualValues(t, 46, r.append(7, 46, 46, 46, true), "the leader knows more")
		require.Zero(t, r.told(true))
	})
	behind(t, func(r *raftOf) {
		r.w.Committed(7, 40)
		require.EqualValues(t, 40, r.append(7, 38, 42, 38, false))
		require.Zero(t, r.told(true), "it has not taken what precedes it")
		require.EqualValues(t, 40, r.append(7, 30, 41, 30, true))
		r.w.Committed(7, 41)
		require.EqualValues(t, 41, r.told(false))
		require.Zero(t, r.told(true), "it is told once, whatever it answers")
		r.w.Committed(0, 42)
		require.EqualValues(t, 41, r.append(7, 41, 43, 0, true), "an older release does not say whose log it is")
	})
	behind(t, func(r *raftOf) {
		require.EqualValues(t, 38, r.append(7, 38, 42, 38, true))
		r.w.Committed(8, 42)
		require.Zero(t, r.told(true), "the leader of term 7 may have others")
		require.EqualValues(t, 38, r.append(7, 42, 43, 38, true))
		require.Zero(t, r.told(true))
		r.term = 9
		require.EqualValues(t, 42, r.append(9, 41, 43, 38, true))
		r.term = 10 // the one of term 9 leads no more
		r.w.Committed(9, 43)
		require.Zero(t, r.told(true))
	})
}

// TestALeadersMessageComesFirst: raft is told of what is committed after the messages that
// wait, which may say it.
func TestALeadersMessageComesFirst(t *testing.T) {
	behind(t, func(r *raftOf) {
		r.append(7, 38, 42, 38, true)
		beat := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("a")}, Term: 7}
		r.inner.messages <- raft.RPC{Command: beat, RespChan: make(chan raft.RPCResponse, 1)}
		r.w.Committed(7, 42)
		synctest.Wait()
		require.Same(t, beat, r.answer(7, true), "a heartbeat stays one")
		require.EqualValues(t, 42, r.told(true))
	})
}

// sending keeps the messages that it is given.
type sending struct {
	Transport
	sent chan *raft.AppendEntriesRequest
}

func (s sending) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, r *raft.AppendEntriesRequest, answer *raft.AppendEntriesResponse) error {
	s.sent <- r
	*answer = raft.AppendEntriesResponse{Term: r.Term, Success: true}
	return nil
}

func (s sending) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return sendingPipeline{newBarePipeline(), s.sent}, nil
}

type sendingPipeline struct {
	*barePipeline
	sent chan *raft.AppendEntriesRequest
}

func (p sendingPipeline) AppendEntries(r *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sent <- r
	return nil, nil
}

// TestALeaderSaysWhatIsOnItsDisk: a leader tells that entries are committed as far as they
// are on its own disk, one message after the other or several at once.
func TestALeaderSaysWhatIsOnItsDisk(t *testing.T) {
	inner := sending{sent: make(chan *raft.AppendEntriesRequest, 1)}
	w := NewEndpoint(inner, noHint)
	w.OnDisk(func(index uint64) uint64 { return min(index, 10) })
	pipeline, err := w.AppendEntriesPipeline("b", "b")
	require.NoError(t, err)
	for _, send := range []func(r *raft.AppendEntriesRequest) error{
		func(r *raft.AppendEntriesRequest) error {
			return w.AppendEntries("b", "b", r, new(raft.AppendEntriesResponse))
		},
		func(r *raft.AppendEntriesRequest) error {
			_, err := pipeline.AppendEntries(r, new(raft.AppendEntriesResponse))
			return err
		},
	} {
		for committed, told := range map[uint64]uint64{9: 9, 10: 10, 12: 10} {
			request := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 12, PrevLogTerm: 3, LeaderCommitIndex: committed}
			require.NoError(t, send(request))
			require.Equal(t, told, (<-inner.sent).LeaderCommitIndex)
			require.Equal(t, committed, request.LeaderCommitIndex, "raft's own message is not changed")
		}
	}
	require.NoError(t, pipeline.Close())
	w.Stop()
}
