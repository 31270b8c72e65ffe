package raftnet

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// bareTransport is a transport with a pipeline that does not buffer a message that
// is not received, as raft's by default.
type bareTransport struct {
	Transport
	pipeline *barePipeline
}

func (t bareTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.pipeline, nil
}

type barePipeline struct {
	sent     chan raft.AppendFuture
	answered chan raft.AppendFuture
	closed   chan struct{}
	once     sync.Once
}

func newBarePipeline() *barePipeline {
	return &barePipeline{sent: make(chan raft.AppendFuture), answered: make(chan raft.AppendFuture), closed: make(chan struct{})}
}

func (p *barePipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	select {
	case p.sent <- nil:
		return nil, nil
	case <-p.closed:
		return nil, raft.ErrPipelineShutdown
	}
}

func (p *barePipeline) Consumer() <-chan raft.AppendFuture { return p.answered }

func (p *barePipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// answer is how a message in a pipeline was answered.
type answer struct {
	raft.AppendFuture
	response raft.AppendEntriesResponse
	err      error
}

func (a *answer) Error() error                          { return a.err }
func (a *answer) Start() time.Time                      { return time.Time{} }
func (a *answer) Request() *raft.AppendEntriesRequest   { return &raft.AppendEntriesRequest{Term: 3} }
func (a *answer) Response() *raft.AppendEntriesResponse { return &a.response }

// Raft stops reading after an answer that is no success; a sender then gets an
// error.
func TestPipelineFreesItsSender(t *testing.T) {
	for name, last := range map[string]*answer{
		"a refusal":    {response: raft.AppendEntriesResponse{Term: 3}},
		"a later term": {response: raft.AppendEntriesResponse{Term: 4, Success: true}},
		"a failure":    {err: errors.New("the connection broke"), response: raft.AppendEntriesResponse{Term: 3, Success: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := newBarePipeline()
				w := NewEndpoint(bareTransport{pipeline: inner}, noHint)
				p, err := w.AppendEntriesPipeline("b", "b")
				require.NoError(t, err)
				good := &answer{response: raft.AppendEntriesResponse{Term: 3, Success: true}}
				for range 3 {
					inner.answered <- good
					require.Same(t, good, <-p.Consumer())
				}
				freed := make(chan error)
				go func() {
					_, err := p.AppendEntries(new(raft.AppendEntriesRequest), new(raft.AppendEntriesResponse))
					freed <- err
				}()
				synctest.Wait()
				inner.answered <- last
				require.Same(t, last, <-p.Consumer())
				require.ErrorIs(t, <-freed, raft.ErrPipelineShutdown)
				require.NoError(t, p.Close())
				w.Stop()
			})
		})
	}
	t.Run("closed by raft", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner := newBarePipeline()
			w := NewEndpoint(bareTransport{pipeline: inner}, noHint)
			p, err := w.AppendEntriesPipeline("b", "b")
			require.NoError(t, err)
			inner.answered <- &answer{response: raft.AppendEntriesResponse{Term: 3, Success: true}} // it is not read
			require.NoError(t, p.Close())
			w.Stop()
		})
	})
}
