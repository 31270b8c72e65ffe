package raftnet

import "github.com/hashicorp/raft"

// Committed tells what a leader has answered to a call: the entry at an index is
// committed, and in the log of the leader of a term and of every later one.
//
// Raft learns up to where the log is committed from its leader's next message. Where
// nothing more is written, that comes after the commit timeout, for which a write that was
// sent to the leader, or a read, would have to wait. So raft is told at once: by the
// messages that arrive from now on or, when none is there, by one that is made here.
func (w *Endpoint) Committed(term, index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if term == 0 || index <= w.committed.index {
		return
	}
	w.committed = position{max(term, w.committed.term), index}
	select {
	case w.committedMore <- struct{}{}:
	default: // one is enough
	}
}

func (w *Endpoint) committedUpTo() position {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.committed
}

// OnDisk has this server, where it leads, say that entries are committed only as far as
// they are on its own disk. onDisk returns up to where they are, at most the given index.
// To be called before Start.
func (w *Endpoint) OnDisk(onDisk func(index uint64) uint64) { w.onDisk = onDisk }

// cautious returns a request that says no more to be committed than is on disk here: raft
// counts this server's copy of an entry before it is.
func (w *Endpoint) cautious(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	index := w.onDisk(r.LeaderCommitIndex)
	if index == r.LeaderCommitIndex {
		return r
	}
	out := *r
	out.LeaderCommitIndex = index
	return &out
}

// lastOf returns the last entry that a request is about: of those that it has, or the one
// that they follow.
func lastOf(r *raft.AppendEntriesRequest) position {
	if n := len(r.Entries); n > 0 {
		return position{r.Entries[n-1].Term, r.Entries[n-1].Index}
	}
	return position{r.PrevLogTerm, r.PrevLogEntry}
}

// raised returns a request with what is known to be committed of the entries that it is
// about, which are those of its leader's log.
func (q *inbound) raised(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	known := q.endpoint.committedUpTo()
	index := min(known.index, lastOf(r).index)
	if isHeartbeat(r) || r.Term < known.term || index <= r.LeaderCommitIndex {
		return r
	}
	out := *r
	out.LeaderCommitIndex = index
	return &out
}

// noteTaken notes how far raft's log is that of its leader, as it has answered.
func (q *inbound) noteTaken(h *handed, answer raft.RPCResponse) {
	response, ok := answer.Response.(*raft.AppendEntriesResponse)
	if h.request == nil || !ok || answer.Error != nil || !response.Success {
		return
	}
	last := lastOf(h.request)
	if last.index == 0 {
		return // a heartbeat
	}
	taken := *h.request
	taken.PrevLogEntry, taken.PrevLogTerm, taken.Entries = last.index, last.term, nil
	taken.LeaderCommitIndex = min(taken.LeaderCommitIndex, last.index)
	q.taken, q.told = &taken, max(q.told, taken.LeaderCommitIndex)
}

// confirm has raft told what is known to be committed of what it has taken, by a message
// that its leader might have sent: without entries, behind the last one that raft took
// from it in this term. Nothing else is there that would tell it.
func (q *inbound) confirm() {
	if q.current != nil || q.next != nil || len(q.waiting) > 0 || q.taken == nil {
		return
	}
	request := q.raised(q.taken)
	if request.LeaderCommitIndex <= q.told {
		return
	}
	if term, _ := q.screen.State(); term != request.Term {
		return // raft waits for another leader, whose messages will tell it
	}
	q.told = request.LeaderCommitIndex // whatever raft answers: it is told once
	q.waiting = append(q.waiting, raft.RPC{Command: request, RespChan: make(chan raft.RPCResponse, 1)})
	q.advance()
}
