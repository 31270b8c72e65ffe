package consensus

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// Raft v1.7.3 needs three corrections on a follower that took a snapshot of entry
// S from its leader, whose log then begins after S. They are described in
// docs/adr/0020-raft-workarounds.md:
//
//   - a repeated snapshot, whose first copy timed out at the leader, would move
//     the follower back: it is answered here (screen);
//   - entries that follow on S would be refused, because S itself is in no log,
//     until the leader sends the snapshot again: that they follow is checked here
//     instead (logStore.overlap);
//   - the log would be emptied although it continues the snapshot, and raft would
//     not notice: what follows on S stays (logStore.DeleteRange).

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
// has replaced here, which are committed and so the same; with the check that the
// rest continues the snapshot done, which raft cannot do (it takes an index of
// zero as nothing to check); and without the word that more was committed than it
// tells about. Raft believes the latter of whatever its log holds.
func (s *logStore) overlap(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	known := *request
	previous := known.PrevLogEntry
	if s.replaced(previous) {
		base, term := s.host.lastSnapshot()
		if previous < base {
			previous = base
			for len(known.Entries) > 0 && known.Entries[0].Index <= base {
				known.Entries = known.Entries[1:]
			}
			known.PrevLogEntry, known.PrevLogTerm = 0, 0
		} else if previous == base && known.PrevLogTerm == term {
			known.PrevLogEntry, known.PrevLogTerm = 0, 0
		}
	}
	end := previous
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
		return 0, s.failed(err)
	}
	if entry.Term == term {
		return base, nil
	}
	return 0, s.failed(fmt.Errorf("%w: its log did not continue the snapshot of entry %d that it was sent", errStartAgain, base))
}
