package raftlog

import "github.com/hashicorp/raft"

// How much of the log is kept in memory: what followers that keep up are sent,
// and what is applied once it is committed. The last entry may be larger than that:
// every follower is sent it.
const (
	recentCount = 1024
	recentBytes = 4 << 20
)

// recentEntries are the last entries of the log, without gaps.
type recentEntries struct {
	logs  []raft.Log
	bytes int
}

// add appends entries that were written, which share their contents with the
// caller, and forgets the oldest beyond what is kept.
func (r *recentEntries) add(logs []*raft.Log) {
	if n := len(r.logs); n > 0 && logs[0].Index != r.logs[n-1].Index+1 {
		r.clear() // entries were written over
	}
	for _, log := range logs {
		r.logs = append(r.logs, *log)
		r.bytes += entryBytes(log)
	}
	excess := 0
	for len(r.logs)-excess > recentCount || r.bytes > recentBytes && len(r.logs)-excess > 1 {
		r.bytes -= entryBytes(&r.logs[excess])
		excess++
	}
	r.drop(excess)
}

// get reads an entry, if it is among them.
func (r *recentEntries) get(index uint64, log *raft.Log) bool {
	if len(r.logs) == 0 || index < r.logs[0].Index || index > r.logs[len(r.logs)-1].Index {
		return false
	}
	*log = r.logs[index-r.logs[0].Index]
	return true
}

// cut forgets what lies before an index.
func (r *recentEntries) cut(first uint64) {
	n := 0
	for n < len(r.logs) && r.logs[n].Index < first {
		r.bytes -= entryBytes(&r.logs[n])
		n++
	}
	r.drop(n)
}

// drop lets go of the first n entries, which are not counted any more.
func (r *recentEntries) drop(n int) {
	clear(r.logs[:n])
	r.logs = r.logs[n:]
}

func (r *recentEntries) clear() { *r = recentEntries{} }

func entryBytes(log *raft.Log) int { return len(log.Data) + len(log.Extensions) }
