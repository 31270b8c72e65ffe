package simnet

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/raftnet"
)

// transport carries raft's messages over a Network. Requests are copied, as a
// wire would: raft continues to use its own.
type transport struct{ *endpoint }

var _ raftnet.Transport = transport{}

// Consumer returns the messages of others.
func (t transport) Consumer() <-chan raft.RPC { return t.consumer }

// LocalAddr is this server's address.
func (t transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.addr) }

// EncodePeer returns an address as it is.
func (transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer returns an address as it is.
func (transport) DecodePeer(data []byte) raft.ServerAddress { return raft.ServerAddress(data) }

// SetHeartbeatHandler does nothing, so that heartbeats go through the main loop.
func (transport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close makes the server unreachable.
func (t transport) Close() error {
	t.detach()
	return nil
}

// AppendEntries sends entries, or a heartbeat.
func (t transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return call(t, id, target, copyOf(args), nil, resp)
}

// RequestVote asks for a vote.
func (t transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	request := *args
	return call(t, id, target, &request, nil, resp)
}

// RequestPreVote asks whether a vote would be given.
func (t transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	request := *args
	return call(t, id, target, &request, nil, resp)
}

// InstallSnapshot sends a snapshot. It may take as long as it moves.
func (t transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	request := *args
	return call(t, id, target, &request, data, resp)
}

// TimeoutNow makes another server campaign.
func (t transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	request := *args
	return call(t, id, target, &request, nil, resp)
}

// AppendEntriesPipeline returns a way to send entries without waiting for the
// answer to those before.
func (t transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if _, err := t.network.find(string(target)); err != nil {
		return nil, err
	}
	p := &pipeline{
		transport: t, id: id, target: target, closed: make(chan struct{}),
		sent: make(chan *appended, pipelined), done: make(chan raft.AppendFuture, pipelined),
	}
	if err := t.use(p.run); err != nil {
		return nil, err
	}
	return p, nil
}

// copyOf copies a request and its entries, except for their data, which never
// changes.
func copyOf(args *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	request := *args
	request.Entries = make([]*raft.Log, len(args.Entries))
	for i, entry := range args.Entries {
		e := *entry
		request.Entries[i] = &e
	}
	return &request
}

var errTimeout = errors.New("i/o timeout")

// call sends a request and waits for the answer.
func call[T any](t transport, id raft.ServerID, target raft.ServerAddress, request any, data io.Reader, resp *T) error {
	if err := gone(t.endpoint); err != nil {
		return err
	}
	to, err := t.network.find(string(target))
	if err != nil {
		return err
	}
	cluster, there := t.identity().Cluster, to.identity()
	if cluster == "" || there != (raftnet.Identity{Server: id, Cluster: cluster}) {
		return fmt.Errorf("%s is not server %s of cluster %s", target, id, cluster)
	}
	limit := newLimit()
	defer limit.stop()
	if err := t.network.travel(t.endpoint, to, time.Now(), limit.over); err != nil {
		return err
	}
	answered := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: request, RespChan: answered}
	if data != nil {
		rpc.Reader = &travelling{Reader: data, from: t.endpoint, to: to, limit: limit}
	}
	select {
	case to.consumer <- rpc:
	case <-limit.over:
		return errTimeout
	case <-to.detached:
		return errGone
	case <-t.detached:
		return errGone
	}
	select {
	case answer := <-answered:
		if err := t.network.travel(to, t.endpoint, time.Now(), limit.over); err != nil {
			return err
		}
		if response, ok := answer.Response.(*T); ok && response != nil {
			*resp = *response
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %w", target, answer.Error)
		}
		return nil
	case <-limit.over:
		return errTimeout
	case <-to.detached:
		return errGone
	case <-t.detached:
		return errGone
	}
}

// limit ends what makes no progress.
type limit struct {
	over  chan struct{}
	timer *time.Timer
}

func newLimit() *limit {
	l := &limit{over: make(chan struct{})}
	l.timer = time.AfterFunc(Timeout, func() { close(l.over) })
	return l
}

// moved notes progress.
func (l *limit) moved() {
	if l.timer.Stop() {
		l.timer.Reset(Timeout)
	}
}

func (l *limit) stop() { l.timer.Stop() }

// travelling is a snapshot on its way.
type travelling struct {
	io.Reader
	from, to *endpoint
	limit    *limit
}

// Read returns the next part once it has arrived.
func (r *travelling) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err := r.from.network.travel(r.from, r.to, time.Now(), r.limit.over); err != nil {
		return 0, err
	}
	r.limit.moved()
	return n, err
}

// pipelined bounds how many requests wait in a pipeline.
const pipelined = 2

// pipeline sends requests in order.
type pipeline struct {
	transport transport
	id        raft.ServerID
	target    raft.ServerAddress
	sent      chan *appended
	done      chan raft.AppendFuture
	closed    chan struct{}
	once      sync.Once
}

var _ raft.AppendPipeline = (*pipeline)(nil)

func (p *pipeline) run() {
	for {
		select {
		case next := <-p.sent:
			next.answer(call(p.transport, p.id, p.target, copyOf(next.request), nil, next.response))
			select {
			case p.done <- next:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}

// AppendEntries adds a request.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	next := &appended{request: args, response: resp, start: time.Now(), answered: make(chan struct{})}
	select {
	case p.sent <- next:
		return next, nil
	case <-p.closed:
		return nil, raft.ErrPipelineShutdown
	case <-p.transport.detached:
		return nil, errGone
	}
}

// Consumer returns the requests that were answered.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.done }

// Close ends the pipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// appended is a request of a pipeline.
type appended struct {
	request  *raft.AppendEntriesRequest
	response *raft.AppendEntriesResponse
	start    time.Time
	err      error
	answered chan struct{}
}

var _ raft.AppendFuture = (*appended)(nil)

func (a *appended) answer(err error) {
	a.err = err
	close(a.answered)
}

// Error waits for the answer.
func (a *appended) Error() error {
	<-a.answered
	return a.err
}

// Start is when the request was made.
func (a *appended) Start() time.Time { return a.start }

// Request is what was sent.
func (a *appended) Request() *raft.AppendEntriesRequest { return a.request }

// Response is the answer.
func (a *appended) Response() *raft.AppendEntriesResponse { return a.response }
