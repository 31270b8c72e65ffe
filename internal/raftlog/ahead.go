package raftlog

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// A leader sends entries to its followers while it writes them to its own disk. Raft
// has it write first: it takes entries for written, counts its own copy towards the
// majority and sends them once StoreLogs has returned. So StoreLogs returns early on a
// leader, and what follows from its copy waits until that is on disk: nothing of it is
// applied (Synced) and no follower is told that it is committed (OnDisk). The next
// StoreLogs waits, too: so another leader, which counts the copies of entries of its own
// term only, is not answered before.
//
// Changes of membership, and the first entry of a term, are on disk before they are
// sent: raft itself acts on their being committed.

// ahead are the entries that are written and not yet on disk.
type ahead struct {
	// first is the index of the first of them, 0 when there are none.
	first uint64
	// ended is closed when they are on disk, or can not be brought there and the node is
	// being closed.
	ended chan struct{}
}

// mayRunAhead reports whether StoreLogs may return before entries are on disk.
func (s *Log) mayRunAhead(logs []*raft.Log) bool {
	if len(logs) == 0 || s.host == nil || !s.running.Load() || !s.host.Leads() || s.host.OnlyVoter() {
		return false
	}
	for _, log := range logs {
		if log.Type != raft.LogCommand {
			return false
		}
	}
	return true
}

// syncBehindLocked calls the sync of entries that were written, which have so many bytes.
func (s *Log) syncBehindLocked(first, bytes uint64, sync func() error) {
	ended := make(chan struct{})
	s.ahead = ahead{first, ended}
	end := s.stall.begin(writes, bytes)
	go func() {
		defer close(ended)
		err := s.guard(sync)
		end()
		if err != nil {
			_ = s.failed(fmt.Errorf("write %s: %w", s.path, err))
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ahead = ahead{}
	}()
}

func (s *Log) isAhead() ahead {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead
}

// Settle returns once all entries that were written are on disk. After a failure of the
// storage it returns when the node is closed.
func (s *Log) Settle() {
	if ahead := s.isAhead(); ahead.first > 0 {
		<-ahead.ended
	}
}

// Synced returns once the entry at an index is on disk. It fails when it could not be brought
// there, once the node is being closed.
func (s *Log) Synced(index uint64) error {
	ahead := s.isAhead()
	if ahead.first == 0 || index < ahead.first {
		return nil
	}
	<-ahead.ended
	if s.OnDisk(index) == index {
		return nil
	}
	return s.Failure()
}

// OnDisk returns the last index up to which all entries are on disk, at most the given one.
func (s *Log) OnDisk(index uint64) uint64 {
	if ahead := s.isAhead(); ahead.first > 0 {
		return min(index, ahead.first-1)
	}
	return index
}
