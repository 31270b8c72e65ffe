package consensus

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// A server that took a snapshot of entry S from its leader has a log that begins
// after S, and raft v1.7.3 is at a loss when the leader, whose call timed out on
// a slow disk, repeats itself: it does not find S in its log, refuses what
// follows until the leader sends the snapshot again, goes back to it although it
// has applied more, and empties a log that must not have gaps, with entries in
// it that it has confirmed; and it goes on believing that they are there. What
// stands here keeps that from happening, in three places: messages from the past
// do not reach raft (screen), S is known (logStore.GetLog), and a log is emptied
// only when nothing in it follows on the snapshot (logStore.DeleteRange).

// screen looks at a message before raft does. It returns what raft is to be
// given, or false when the message has been answered.
func (n *Node) screen(rpc raft.RPC) (raft.RPC, bool) {
	r := n.running.Load()
	if r == nil {
		return rpc, true
	}
	switch request := rpc.Command.(type) {
	case *raft.InstallSnapshotRequest:
		if request.Term >= r.CurrentTerm() && request.LastLogIndex <= r.AppliedIndex() {
			// What is in it has been applied.
			_, _ = io.Copy(io.Discard, rpc.Reader) // the sender waits for it to be read
			rpc.Respond(&raft.InstallSnapshotResponse{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: request.Term, Success: true,
			}, nil)
			return rpc, false
		}
	case *raft.AppendEntriesRequest:
		if request.PrevLogEntry > 0 || len(request.Entries) > 0 {
			rpc.Command = n.log.overlap(request)
		}
	}
	return rpc, true
}

// overlap returns a request as raft can take it: without entries that a snapshot
// has replaced here, which are committed and so the same, and without the word
// that more was committed than it tells about. Raft believes the latter of
// whatever its log holds.
func (s *logStore) overlap(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	known := *request
	if s.replaced(known.PrevLogEntry) {
		if base, term := s.host.lastSnapshot(); known.PrevLogEntry < base {
			known.PrevLogEntry, known.PrevLogTerm = base, term
			for len(known.Entries) > 0 && known.Entries[0].Index <= base {
				known.Entries = known.Entries[1:]
			}
		}
	}
	end := known.PrevLogEntry
	if len(known.Entries) > 0 {
		end = known.Entries[len(known.Entries)-1].Index
	}
	known.LeaderCommitIndex = min(known.LeaderCommitIndex, end)
	return &known
}

// replaced says that an entry is not in the log because it comes before it.
func (s *logStore) replaced(index uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return index > 0 && (s.last == 0 || index < s.first)
}

// lastReplaced makes an entry known that only the newest snapshot knows of, as
// far as a follower needs it to see that what it is sent continues its log.
func (s *logStore) lastReplaced(index uint64, log *raft.Log) bool {
	if s.host == nil || !s.replaced(index) || !calledBy("(*Raft).appendEntries") {
		return false
	}
	base, term := s.host.lastSnapshot()
	if base != index {
		return false
	}
	*log = raft.Log{Index: index, Term: term, Type: raft.LogNoop}
	return true
}

// errStartAgain means that raft believes something else of the log than what it
// holds; a start sets that right.
var errStartAgain = errors.New("consensus: this server has to be started again")

// continued is asked when the log is to be emptied from lo to last, because a
// snapshot was restored. It returns the snapshot's index when the log goes on
// after it, 0 when it does not. A log that goes on otherwise than the snapshot
// does has to be emptied, but raft would not notice that its end has moved.
func (s *logStore) continued(lo, last uint64) (uint64, error) {
	if s.host == nil {
		return 0, nil
	}
	base, term := s.host.lastSnapshot()
	if base < lo || base >= last {
		return 0, nil
	}
	var entry raft.Log
	if err := s.guard(func() error { return s.readLog(base, &entry) }); err != nil {
		return 0, s.fail.set(err)
	}
	if entry.Term == term {
		return base, nil
	}
	return 0, s.fail.set(fmt.Errorf("%w: its log did not continue the snapshot of entry %d that it was sent", errStartAgain, base))
}
