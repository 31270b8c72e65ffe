package consensus

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/store"
)

// forwards sends batches to the leader. Those that wait at the same time share a call.
// Each connection has a queue of its own: calls on one that a leader does not answer keep
// nothing back that is sent to the next leader, or to the same one on another connection.
type forwards struct {
	*core

	mu     sync.Mutex
	queues map[*grpc.ClientConn]*portions[*forward] // those that are not empty; guarded by mu
	// pace is that of calls on paced, the connection that was used last; both are guarded by
	// mu.
	pace  *pace
	paced *grpc.ClientConn
}

// forward is a batch that is sent to the leader.
type forward struct {
	conn    *grpc.ClientConn
	request *peerv1.ProposeRequest
	// done is closed when it is known what the call has given, which is in what follows.
	done     chan struct{}
	response *peerv1.ProposeResponse
	sent     bool // the leader may have it
	err      error
}

func (w *forward) bytes() int { return len(w.request.GetCommand()) + len(w.request.GetNote()) }

func newForwards(c *core) *forwards {
	return &forwards{core: c, queues: map[*grpc.ClientConn]*portions[*forward]{}}
}

// add has a batch sent, and returns before that. remove takes it back while it waits, and
// reports whether it did.
func (f *forwards) add(w *forward) (remove func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	queue, ok := f.queues[w.conn]
	if !ok {
		if f.paced != w.conn {
			f.paced, f.pace = w.conn, &pace{}
		}
		pace := f.pace
		atOnce := func() int { return pace.atOnce(f.cfg.WritesAtOnce) }
		serve := func(batches []*forward) {
			began := time.Now()
			if f.call(batches) {
				pace.took(time.Since(began))
			}
		}
		queue = &portions[*forward]{atOnce: atOnce, size: (*forward).bytes, serve: serve, run: func(serve func()) {
			f.requests.Go(func() {
				serve()
				f.forget(w.conn, queue)
			})
		}}
		f.queues[w.conn] = queue
	}
	queue.add(w)
	return func() bool { return queue.remove(w) }
}

// forget forgets a queue that has become empty, unless that was done before: its place may
// be another's by now.
func (f *forwards) forget(conn *grpc.ClientConn, queue *portions[*forward]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queues[conn] == queue && queue.empty() {
		delete(f.queues, conn)
	}
}

// propose sends a batch and returns the leader's response, or an error and whether the
// leader may have the batch. When ctx ends it returns, though the leader may still write
// what it has.
func (f *forwards) propose(ctx context.Context, conn *grpc.ClientConn, request *peerv1.ProposeRequest) (response *peerv1.ProposeResponse, sent bool, err error) {
	if f.formatInUse.Load() < store.FormatOfShared { // the leader may not know of shared calls
		var reached peer.Peer
		response, err := peerv1.NewRaftServiceClient(conn).Propose(ctx, request, grpc.Peer(&reached))
		return response, reached.Addr != nil, err
	}
	w := &forward{conn: conn, request: request, done: make(chan struct{})}
	remove := f.add(w)
	select {
	case <-w.done:
		return w.response, w.sent, w.err
	case <-ctx.Done():
		return nil, !remove(), status.FromContextError(ctx.Err()).Err()
	}
}

// call sends batches and notes what became of each. It reports whether the leader
// answered.
func (f *forwards) call(batches []*forward) bool {
	ctx, cancel := context.WithTimeout(f.aborting, f.cfg.ApplyTimeout)
	defer cancel()
	var reached peer.Peer
	leader := peerv1.NewRaftServiceClient(batches[0].conn)
	if len(batches) == 1 {
		w := batches[0]
		w.response, w.err = leader.Propose(ctx, w.request, grpc.Peer(&reached))
		w.sent = reached.Addr != nil
		close(w.done)
		return w.err == nil
	}
	request := &peerv1.ProposeAllRequest{Proposals: make([]*peerv1.ProposeRequest, len(batches))}
	for i, w := range batches {
		request.Proposals[i] = w.request
	}
	response, err := leader.ProposeAll(ctx, request, grpc.Peer(&reached))
	outcomes := response.GetOutcomes()
	for i, w := range batches {
		w.sent, w.err = reached.Addr != nil, err
		if err == nil {
			var outcome *peerv1.ProposeOutcome // without one, what became of it is unknown
			if i < len(outcomes) {
				outcome = outcomes[i]
			}
			w.response, w.err = outcomeFromPeer(outcome)
		}
		close(w.done)
	}
	return err == nil
}
