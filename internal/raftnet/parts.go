package raftnet

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"
)

const (
	// maxMessage is how many bytes of entries a message holds: raft counts them only.
	// One entry may be larger.
	maxMessage = 4 << 20
	// maxData is how many bytes of data an entry of a message holds; more follow in the
	// next ones. The decoder of a message gets memory for 256 KiB at a time of one
	// value, and copies all of it each time: 480 MB for a value of 16 MB.
	maxData = 256 << 10
	// continued marks the type of an entry whose data continues in the next one.
	continued raft.LogType = 0x40
)

// part returns the entries of a request from one on, as many as a message holds,
// and how many of them that leaves for later ones. A follower that stores the
// parts one after the other holds what it would hold after the whole request. A
// request that is one message is returned as it is. The receiver has to put its
// entries together (see joined).
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
		same = same && entry == whole.Entries[from] && len(entry.Data) <= maxData
		out.Entries = appendDivided(out.Entries, entry)
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

// appendDivided appends an entry as those of a message: one, or more with the parts of
// its data.
func appendDivided(to []*raft.Log, entry *raft.Log) []*raft.Log {
	data := entry.Data
	for len(data) > maxData {
		to = append(to, &raft.Log{Index: entry.Index, Term: entry.Term, Type: continued, Data: data[:maxData:maxData]})
		data = data[maxData:]
	}
	if len(data) < len(entry.Data) {
		last := *entry
		last.Data = data
		entry = &last
	}
	return append(to, entry)
}

// errDivided is the answer to a message whose entries are not those that part makes.
var errDivided = errors.New("the data of an entry is not complete in its message")

// joined returns a request with the data of each entry in one piece.
func joined(request *raft.AppendEntriesRequest) (*raft.AppendEntriesRequest, error) {
	if !slices.ContainsFunc(request.Entries, func(entry *raft.Log) bool { return entry.Type == continued }) {
		return request, nil
	}
	out := *request
	out.Entries = make([]*raft.Log, 0, len(request.Entries))
	begin := -1 // of the entry that is continued
	for i, entry := range request.Entries {
		if begin >= 0 && (entry.Index != request.Entries[begin].Index || entry.Term != request.Entries[begin].Term) {
			return nil, fmt.Errorf("%w: entry %d is followed by %d", errDivided, request.Entries[begin].Index, entry.Index)
		}
		switch {
		case entry.Type == continued && begin < 0:
			begin = i
		case entry.Type == continued:
		case begin < 0:
			out.Entries = append(out.Entries, entry)
		default:
			out.Entries, begin = append(out.Entries, join(request.Entries[begin:i+1])), -1
		}
	}
	if begin >= 0 {
		return nil, fmt.Errorf("%w: entry %d is the last", errDivided, request.Entries[begin].Index)
	}
	return &out, nil
}

// join returns the last of some entries with the data of all.
func join(parts []*raft.Log) *raft.Log {
	size := 0
	for _, entry := range parts {
		size += len(entry.Data)
	}
	whole := *parts[len(parts)-1]
	whole.Data = make([]byte, 0, size)
	for _, entry := range parts {
		whole.Data = append(whole.Data, entry.Data...)
	}
	return &whole
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
