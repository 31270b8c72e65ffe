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
	w.Start(func(rpc raft.RPC) (raft.RPC, bool) { return rpc, true })
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
