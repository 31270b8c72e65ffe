package raftnet

import "github.com/hashicorp/raft"

// maxMessage is how many bytes of entries a message holds: raft counts them only.
// One entry may be larger.
const maxMessage = 4 << 20

// part returns the entries of a request from one on, as many as a message holds,
// and how many of them that leaves for later ones. A follower that stores the
// parts one after the other holds what it would hold after the whole request. A
// request that is one message is returned as it is.
// complete adds the data of entries that come without.
func part(whole *raft.AppendEntriesRequest, from int, complete func(*raft.Log) (*raft.Log, error)) (_ *raft.AppendEntriesRequest, rest int, err error) {
	out := *whole
	out.Entries = make([]*raft.Log, 0, len(whole.Entries)-from)
	if from > 0 {
		before := whole.Entries[from-1]
		out.PrevLogEntry, out.PrevLogTerm = before.Index, before.Term
	}
	same := from == 0
	for bytes := 0; from < len(whole.Entries) && bytes < maxMessage; from++ {
		entry, err := complete(whole.Entries[from])
		if err != nil {
			return nil, 0, err
		}
		same = same && entry == whole.Entries[from]
		out.Entries = append(out.Entries, entry)
		bytes += len(entry.Data) + len(entry.Extensions)
	}
	if same && from == len(whole.Entries) {
		return whole, 0, nil
	}
	if from < len(whole.Entries) {
		out.LeaderCommitIndex = min(out.LeaderCommitIndex, out.Entries[len(out.Entries)-1].Index)
	}
	return &out, len(whole.Entries) - from, nil
}

// Complete is told how entries get the data that raft passes on without: see
// raftlog.Log. To be called before raft runs.
func (w *Endpoint) Complete(complete func(*raft.Log) (*raft.Log, error)) { w.complete = complete }

// inParts sends a request in as many messages as it takes, each of which is
// answered before the next. The answer is that to the last, or the first that is
// no success.
func (w *Endpoint) inParts(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, send func(*raft.AppendEntriesRequest) error) error {
	for from := 0; ; {
		message, rest, err := part(args, from, w.complete)
		if err != nil {
			return err
		}
		if err := send(message); err != nil || rest == 0 || !resp.Success || resp.Term != args.Term {
			return err
		}
		from = len(args.Entries) - rest
		*resp = raft.AppendEntriesResponse{}
	}
}
