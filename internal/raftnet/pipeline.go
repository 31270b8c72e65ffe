package raftnet

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline is a way for entries that ends with the first answer that is no
// success. Raft reads no answer after that one, while its sender may be in the
// middle of AppendEntries; with as few messages under way as raft's transport
// allows by default nothing would take the sender's next one, and the sender,
// which is to close the pipeline, would wait for ever: that follower would get
// no entry any more, and the server could not be shut down.
//
// It also ends raft's reader when the sender ends first, which happens when the
// sender could not read an entry (logStore.failed).
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
	// done is closed when raft has ended.
	done <-chan struct{}
}

var _ raft.AppendPipeline = (*pipeline)(nil)

// AppendEntriesPipeline opens a way for entries.
func (w *Endpoint) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	at, _ := w.addresses.find(id, target)
	inner, err := w.Transport.AppendEntriesPipeline(id, at)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), closed: make(chan struct{}), done: w.done}
	w.forwarding.Go(p.pass)
	return p, nil
}

// pass hands answers to raft until one ends the pipeline or raft closes it.
func (p *pipeline) pass() {
	for {
		select {
		case answer := <-p.AppendPipeline.Consumer():
			last := answer.Error() != nil || !answer.Response().Success || answer.Response().Term > answer.Request().Term
			select {
			case p.answers <- answer:
			case <-p.closed:
				return
			}
			if last {
				_ = p.AppendPipeline.Close() // frees the sender; it never fails
				return
			}
		case <-p.closed:
			p.endReader()
			return
		}
	}
}

// endReader gives raft's reader a last answer, if it still waits for one.
func (p *pipeline) endReader() {
	patience := time.NewTimer(RPCTimeout)
	defer patience.Stop()
	select {
	case p.answers <- closedAnswer(time.Now()):
	case <-patience.C:
	case <-p.done:
	}
}

// closedAnswer is the answer of a pipeline that is closed, with the time of that.
type closedAnswer time.Time

// Error implements raft.AppendFuture.
func (closedAnswer) Error() error { return raft.ErrPipelineShutdown }

// Start implements raft.AppendFuture.
func (a closedAnswer) Start() time.Time { return time.Time(a) }

// Request implements raft.AppendFuture.
func (closedAnswer) Request() *raft.AppendEntriesRequest { return new(raft.AppendEntriesRequest) }

// Response implements raft.AppendFuture: no success.
func (closedAnswer) Response() *raft.AppendEntriesResponse { return new(raft.AppendEntriesResponse) }

// Consumer returns the answers.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close ends the pipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}
