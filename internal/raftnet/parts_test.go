package raftnet

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// follower stores the entries of messages as a server does, and refuses what does
// not follow on its log.
type follower struct {
	Transport
	log      []*raft.Log
	messages []int // the bytes of each
	refuse   int   // the message that it refuses, counted from 1
}

func (f *follower) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	size := 0
	for _, entry := range args.Entries {
		if len(entry.Data) > maxData {
			return errors.New("the decoder would copy the data again and again")
		}
		size += len(entry.Data)
	}
	args, err := joined(args)
	if err != nil {
		return err
	}
	f.messages = append(f.messages, size)
	resp.Term, resp.LastLog = args.Term, uint64(len(f.log))
	if len(f.messages) == f.refuse {
		return nil
	}
	if args.PrevLogEntry != uint64(len(f.log)) {
		return errors.New("a gap")
	}
	if n := len(f.log); n > 0 && f.log[n-1].Term != args.PrevLogTerm {
		return errors.New("another term")
	}
	f.log = append(f.log, args.Entries...)
	if args.LeaderCommitIndex > uint64(len(f.log)) {
		return errors.New("more is committed than was sent")
	}
	resp.Success = true
	return nil
}

// AppendEntriesPipeline opens a pipeline that answers each message at once.
func (f *follower) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return followerPipeline{f, make(chan raft.AppendFuture, 100)}, nil
}

type followerPipeline struct {
	*follower
	answers chan raft.AppendFuture
}

func (p followerPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	a := sentAnswer{args, resp, p.follower.AppendEntries("", "", args, resp)}
	p.answers <- a
	return a, nil
}

func (p followerPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }
func (p followerPipeline) Close() error                       { return nil }

type sentAnswer struct {
	args *raft.AppendEntriesRequest
	resp *raft.AppendEntriesResponse
	err  error
}

func (a sentAnswer) Error() error                          { return a.err }
func (a sentAnswer) Start() time.Time                      { return time.Time{} }
func (a sentAnswer) Request() *raft.AppendEntriesRequest   { return a.args }
func (a sentAnswer) Response() *raft.AppendEntriesResponse { return a.resp }

// outlines are n entries without data, completed by entries of so many bytes.
func outlines(n, size int) (*raft.AppendEntriesRequest, func(*raft.Log) (*raft.Log, error)) {
	request := &raft.AppendEntriesRequest{Term: 9, LeaderCommitIndex: uint64(n)}
	for i := range n {
		request.Entries = append(request.Entries, &raft.Log{Index: uint64(i + 1), Term: uint64(1 + i/10)})
	}
	return request, func(entry *raft.Log) (*raft.Log, error) {
		whole := *entry
		whole.Data = bytes.Repeat([]byte{byte(entry.Index)}, size)
		whole.Extensions = []byte("note")
		return &whole, nil
	}
}

// TestMessagesAreBoundedInBytes: 64 entries of a megabyte each, and of ten bytes
// each, are sent in messages of a bounded size, after which the follower has all
// of them and raft knows.
func TestMessagesAreBoundedInBytes(t *testing.T) {
	for _, c := range []struct{ size, messages int }{{10, 1}, {1 << 20, 16}, {maxMessage - 10, 32}, {maxMessage + 1, 64}} {
		for name, send := range map[string]func(*Endpoint, *raft.AppendEntriesRequest) (*raft.AppendEntriesRequest, *raft.AppendEntriesResponse){
			"one by one": func(w *Endpoint, r *raft.AppendEntriesRequest) (*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) {
				resp := new(raft.AppendEntriesResponse)
				require.NoError(t, w.AppendEntries("b", "b", r, resp))
				return r, resp
			},
			"pipeline": func(w *Endpoint, r *raft.AppendEntriesRequest) (*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) {
				p, err := w.AppendEntriesPipeline("b", "b")
				require.NoError(t, err)
				_, err = p.AppendEntries(r, new(raft.AppendEntriesResponse))
				require.NoError(t, err)
				answer := <-p.Consumer()
				require.NoError(t, answer.Error())
				require.NoError(t, p.Close())
				return answer.Request(), answer.Response()
			},
		} {
			t.Run(name, func(t *testing.T) {
				there := &follower{}
				w := NewEndpoint(there, noHint)
				request, complete := outlines(64, c.size)
				w.Complete(complete)
				of, resp := send(w, request)
				require.Same(t, request, of, "raft finds its own request")
				require.True(t, resp.Success)
				require.Len(t, there.log, 64)
				require.Len(t, there.messages, c.messages)
				for _, size := range there.messages {
					require.LessOrEqual(t, size, maxMessage+c.size)
				}
				for i, entry := range there.log {
					require.EqualValues(t, i+1, entry.Index)
					require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i + 1)}, c.size), entry.Data))
					require.Equal(t, "note", string(entry.Extensions))
					require.Empty(t, request.Entries[i].Data, "raft holds no data meanwhile")
				}
				close(w.done)
			})
		}
	}
}

// TestARefusedPartEndsTheRequest: raft is given the first part that is refused, as
// the answer to its request, and nothing is sent after it.
func TestARefusedPartEndsTheRequest(t *testing.T) {
	there := &follower{refuse: 3}
	w := NewEndpoint(there, noHint)
	request, complete := outlines(10, maxMessage)
	w.Complete(complete)
	var resp raft.AppendEntriesResponse
	require.NoError(t, w.AppendEntries("b", "b", request, &resp))
	require.False(t, resp.Success)
	require.EqualValues(t, 2, resp.LastLog)
	require.Len(t, there.messages, 3)

	there = &follower{refuse: 3}
	w = NewEndpoint(there, noHint)
	w.Complete(complete)
	defer close(w.done)
	p, err := w.AppendEntriesPipeline("b", "b")
	require.NoError(t, err)
	_, _ = p.AppendEntries(request, new(raft.AppendEntriesResponse))
	answer := <-p.Consumer()
	require.Same(t, request, answer.Request())
	require.False(t, answer.Response().Success)
	require.NoError(t, p.Close())
}

// TestAnEntryThatCannotBeRead: what cannot be completed is not sent.
func TestAnEntryThatCannotBeRead(t *testing.T) {
	there := &follower{}
	w := NewEndpoint(there, noHint)
	request, _ := outlines(3, 1)
	w.Complete(func(entry *raft.Log) (*raft.Log, error) { return nil, raft.ErrLogNotFound })
	require.ErrorIs(t, w.AppendEntries("b", "b", request, new(raft.AppendEntriesResponse)), raft.ErrLogNotFound)
	require.Empty(t, there.messages)
}

// TestDividedEntries: what was divided for a message is put together again, and a
// message that lacks a part of an entry is refused, whatever else it has.
func TestDividedEntries(t *testing.T) {
	whole := &raft.Log{Index: 5, Term: 3, Type: raft.LogCommand, Data: bytes.Repeat([]byte("data"), maxData), Extensions: []byte("note"), AppendedAt: time.Unix(7, 0)}
	small := &raft.Log{Index: 6, Term: 3, Type: raft.LogNoop}
	parts := appendDivided(nil, whole)
	require.Len(t, parts, 4)
	all := appendDivided(parts[:4:4], small)
	got, err := joined(&raft.AppendEntriesRequest{Term: 4, Entries: all})
	require.NoError(t, err)
	require.Equal(t, &raft.AppendEntriesRequest{Term: 4, Entries: []*raft.Log{whole, small}}, got)
	require.Len(t, parts[0].Data, maxData, "the sender's entries are left alone")

	w := NewEndpoint(&follower{}, noHint)
	defer close(w.done)
	w.noteTaken("b", &raft.AppendEntriesRequest{Term: 4, PrevLogEntry: 4, Entries: all}, &raft.AppendEntriesResponse{Term: 4, Success: true})
	require.True(t, w.HasTaken("b", 4, 6))
	require.False(t, w.HasTaken("b", 4, 7), "parts are no entries")

	for name, entries := range map[string][]*raft.Log{
		"the end is missing":        parts[:3],
		"another entry follows":     {parts[0], small},
		"another entry's part":      {parts[0], {Index: 6, Term: 3, Type: continued}, whole},
		"of another term":           {parts[0], {Index: 5, Term: 2, Type: raft.LogCommand}},
		"the end, then a beginning": {whole, parts[0]},
		"a beginning and no data":   {{Index: 5, Term: 3, Type: continued}},
	} {
		_, err := joined(&raft.AppendEntriesRequest{Entries: entries})
		require.ErrorIs(t, err, errDivided, name)
	}
}
