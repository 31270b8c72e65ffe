package raftnet

import (
	"errors"

	"github.com/hashicorp/raft"
)

// Screen is how the messages of others reach raft.
type Screen struct {
	// Examine looks at a message before raft does. It returns what raft is to be
	// given, or false when the message has been or will be answered.
	Examine func(raft.RPC) (raft.RPC, bool)
	// State returns raft's current term, as it is on the disk, and the last index
	// of its log.
	State func() (term, last uint64)
}

// inbound hands the messages of others to raft, one at a time and in the order of
// their arrival. Raft takes no message while it works on one, and a heartbeat that
// waited for a slow disk would cost the leader its lease. So while raft works on
// a message of a leader, heartbeats of this leader in this term are answered
// here. The answer is true: the term in it is on the disk, and no vote in a later
// one was given before. And raft misses nothing: the message that it works on
// has told it the leader and the term, and counts as contact when it is done.
//
// Every other heartbeat goes to raft, in line with the other messages: it may
// change the term, which must not happen while raft appends entries
// (hashicorp/raft#695).
//
// All of it belongs to the goroutine of run.
type inbound struct {
	endpoint *Endpoint
	screen   Screen
	// waiting are messages that raft has not taken, the oldest first.
	waiting []raft.RPC
	// next is the message that raft gets next, once it was examined; nil: none.
	next *handed
	// current is the message that raft works on, nil when none is known.
	current *handed
	// taken is the last message of a leader that raft took, without its entries and as
	// one that follows them; nil: none was. told is what raft was told to be committed.
	taken *raft.AppendEntriesRequest
	told  uint64
}

// handed is a message in the hands of raft.
type handed struct {
	raft.RPC
	// answered takes raft's answer, sender what is sent back.
	answered chan raft.RPCResponse
	sender   chan<- raft.RPCResponse
	// request is the message before it was examined, where it is one of a leader.
	request *raft.AppendEntriesRequest
}

// errSuperseded is the answer to a message whose sender has sent the next one, and
// so waits for this one no more.
var errSuperseded = errors.New("a later message of the same leader has arrived")

// run passes messages until the endpoint is done.
func (q *inbound) run() {
	w := q.endpoint
	for {
		q.answerHeartbeats()
		q.advance()
		q.confirm()
		var consumer chan<- raft.RPC
		var message raft.RPC
		if q.next != nil {
			consumer, message = w.consumer, q.next.RPC
		}
		var answered <-chan raft.RPCResponse
		if q.current != nil {
			answered = q.current.answered
		}
		select {
		case <-w.done:
			return
		case rpc := <-w.Transport.Consumer():
			q.arrived(rpc)
		case <-w.committedMore:
		case consumer <- message:
			if q.current != nil { // raft answers a message before it takes another
				q.finish(<-answered)
			}
			q.current, q.next = q.next, nil
		case answer := <-answered:
			q.finish(answer)
		}
	}
}

// finish sends raft's answer to the message that it worked on.
func (q *inbound) finish(answer raft.RPCResponse) {
	q.current.sender <- answer
	q.noteTaken(q.current, answer)
	q.current = nil
}

// arrived queues a message. A leader waits for the answer to one before it sends
// the next of its kind; what still waits is given up, so that a slow disk
// gathers no messages.
func (q *inbound) arrived(rpc raft.RPC) {
	if !q.endpoint.released() {
		rpc.Respond(nil, errNotMember)
		return
	}
	if later, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
		whole, err := joined(later)
		if err != nil {
			rpc.Respond(nil, err)
			return
		}
		later, rpc.Command = whole, whole
		q.answer(func(waits *raft.AppendEntriesRequest) bool {
			return string(waits.ID) == string(later.ID) && waits.Term <= later.Term && isHeartbeat(waits) == isHeartbeat(later)
		}, func(rpc raft.RPC) { rpc.Respond(nil, errSuperseded) })
	}
	q.waiting = append(q.waiting, rpc)
}

// advance prepares the message that raft gets next. It is examined when it is the
// first in line, since the one before may change what becomes of it.
func (q *inbound) advance() {
	for q.next == nil && len(q.waiting) > 0 {
		rpc := q.waiting[0]
		q.waiting[0] = raft.RPC{}
		q.waiting = q.waiting[1:]
		request, ofLeader := rpc.Command.(*raft.AppendEntriesRequest)
		if ofLeader {
			request = q.raised(request)
			rpc.Command = request
		}
		if examined, forRaft := q.screen.Examine(rpc); forRaft {
			q.next = &handed{RPC: examined, answered: make(chan raft.RPCResponse, 1), sender: rpc.RespChan, request: request}
			q.next.RespChan = q.next.answered
		}
	}
}

// answerHeartbeats answers those of the leader whose message raft works on.
func (q *inbound) answerHeartbeats() {
	if q.current == nil {
		return
	}
	leader, leaderTerm, ok := leaderOf(q.current.Command)
	if !ok {
		return
	}
	term, last := q.screen.State()
	if term != leaderTerm {
		return // raft has not yet made the leader's term its own, or refuses it
	}
	q.answer(func(beat *raft.AppendEntriesRequest) bool {
		return isHeartbeat(beat) && beat.Term == term && string(beat.ID) == leader
	}, func(rpc raft.RPC) {
		rpc.Respond(&raft.AppendEntriesResponse{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term, LastLog: last, Success: true,
		}, nil)
	})
}

// answer takes from the queue what raft need not see, and responds to it.
func (q *inbound) answer(which func(*raft.AppendEntriesRequest) bool, respond func(raft.RPC)) {
	kept := q.waiting[:0]
	for _, rpc := range q.waiting {
		if request, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && which(request) {
			respond(rpc)
		} else {
			kept = append(kept, rpc)
		}
	}
	clear(q.waiting[len(kept):])
	q.waiting = kept
	if q.next == nil {
		return
	}
	if request, ok := q.next.Command.(*raft.AppendEntriesRequest); ok && which(request) {
		respond(raft.RPC{RespChan: q.next.sender})
		q.next = nil
	}
}

// leaderOf returns who sent a message as a leader, and in which term.
func leaderOf(command any) (id string, term uint64, ok bool) {
	switch request := command.(type) {
	case *raft.AppendEntriesRequest:
		return string(request.ID), request.Term, true
	case *raft.InstallSnapshotRequest:
		return string(request.ID), request.Term, true
	}
	return "", 0, false
}

// isHeartbeat says that a message holds nothing but the leader and the term.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}
