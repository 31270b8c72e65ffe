package consensus

import (
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
//     instead (raftlog.Log.Overlap);
//   - the log would be emptied although it continues the snapshot, and raft would
//     not notice: what follows on S stays (raftlog.Log.DeleteRange).

// screen looks at a message before raft does. It returns what raft is to be
// given, or false when the message has been answered.
func (n *core) screen(rpc raft.RPC) (raft.RPC, bool) {
	r := n.running.Load()
	if r == nil {
		return rpc, true
	}
	switch request := rpc.Command.(type) {
	case *raft.InstallSnapshotRequest:
		if request.Term >= r.CurrentTerm() && request.LastLogIndex <= r.AppliedIndex() {
			// What is in it has been applied.
			n.answers.Go(func() { // beside other messages, for as long as the snapshot takes to arrive
				_, _ = io.Copy(io.Discard, rpc.Reader) // the sender waits for it to be read
				rpc.Respond(&raft.InstallSnapshotResponse{
					RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: request.Term, Success: true,
				}, nil)
			})
			return rpc, false
		}
	case *raft.AppendEntriesRequest:
		if request.PrevLogEntry > 0 || len(request.Entries) > 0 {
			rpc.Command = n.log.Overlap(request)
		}
	}
	return rpc, true
}
