package raftlog

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Overlap returns a request as raft can take it: without entries that a snapshot
// has replaced here, which are committed and so the same; with the check that the
// rest continues the snapshot done, which raft cannot do (it takes an index of
// zero as nothing to check); and with a commit
// index that is not beyond its entries, since raft would apply it to any entries
// that its log holds.
func (s *Log) Overlap(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	known := *request
	previous := known.PrevLogEntry
	if s.replaced(previous) {
		base, term := s.host.LastSnapshot()
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
func (s *Log) replaced(index uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return index > 0 && (s.last == 0 || index < s.first)
}

// ErrRestart means that raft's state differs from the content of the log; a restart
// corrects that.
var ErrRestart = errors.New("this server has to be started again")

// continued is asked when the log is to be emptied from lo to last, because a
// snapshot was restored. It returns the snapshot's index when the log continues
// after it, 0 when it does not. A log that continues differently from the snapshot
// has to be emptied, but raft would not notice that its end has moved.
func (s *Log) continued(lo, last uint64) (uint64, error) {
	if s.host == nil {
		return 0, nil
	}
	base, term := s.host.LastSnapshot()
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
	return 0, s.failed(fmt.Errorf("%w: its log did not continue the snapshot of entry %d that it was sent", ErrRestart, base))
}
