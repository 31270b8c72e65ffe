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
// It sends a request in as many messages as it takes (see part), of which raft is
// given the answer to the last.
//
// It also ends raft's reader when the sender ends first, which happens when the
// sender could not read an entry (raftlog.Log.failed).
type pipeline struct {
	raft.AppendPipeline
	complete func(*raft.Log) (*raft.Log, error)
	cautious func(*raft.AppendEntriesRequest) *raft.AppendEntriesRequest
	answers  chan raft.AppendFuture
	closed   chan struct{}
	once     sync.Once
	// done is closed when raft has ended.
	done <-chan struct{}
	// took is told of each message that the server took.
	took func(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse)

	mu sync.Mutex
	// sent are the messages without an answer, in order.
	sent []sentPart
}

// sentPart is a message of a request; last says that it completes it.
type sentPart struct {
	request, message *raft.AppendEntriesRequest
	last             bool
}

var _ raft.AppendPipeline = (*pipeline)(nil)

// AppendEntriesPipeline opens a way for entries.
func (w *Endpoint) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	at, _ := w.addresses.find(id, target)
	inner, err := w.Transport.AppendEntriesPipeline(id, at)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, complete: w.complete, cautious: w.cautious, answers: make(chan raft.AppendFuture), closed: make(chan struct{}), done: w.done}
	p.took = func(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) { w.noteTaken(id, args, resp) }
	w.forwarding.Go(p.pass)
	return p, nil
}

// AppendEntries sends a request. It waits while too many are under way.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	args = p.cautious(args)
	for from := 0; ; {
		message, rest, err := part(args, from, p.complete)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		p.sent = append(p.sent, sentPart{args, message, rest == 0})
		p.mu.Unlock()
		if rest == 0 {
			return p.AppendPipeline.AppendEntries(message, resp)
		}
		if _, err := p.AppendPipeline.AppendEntries(message, new(raft.AppendEntriesResponse)); err != nil {
			return nil, err
		}
		from = len(args.Entries) - rest
	}
}

// answerOf is the answer to a request, which was sent in parts.
type answerOf struct {
	raft.AppendFuture
	request *raft.AppendEntriesRequest
}

// Request implements raft.AppendFuture.
func (a answerOf) Request() *raft.AppendEntriesRequest { return a.request }

// answered returns the answer to a message as one to its request, and whether the
// message completes that. Answers come in the order of the messages.
func (p *pipeline) answered(answer raft.AppendFuture) (raft.AppendFuture, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sent) == 0 {
		return answer, true
	}
	to := p.sent[0]
	p.sent = p.sent[1:]
	if to.message != to.request {
		answer = answerOf{answer, to.request}
	}
	return answer, to.last
}

// pass hands answers to raft until one ends the pipeline or raft closes it.
func (p *pipeline) pass() {
	for {
		select {
		case answer := <-p.AppendPipeline.Consumer():
			last := answer.Error() != nil || !answer.Response().Success || answer.Response().Term > answer.Request().Term
			if !last {
				p.took(answer.Request(), answer.Response())
			}
			whole, ok := p.answered(answer)
			if !ok && !last {
				continue
			}
			select {
			case p.answers <- whole:
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
