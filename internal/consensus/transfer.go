package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
)

const (
	// transferLimit is how long another server may take to take over.
	transferLimit = 5 * time.Second
	// yieldTimeout is how long Close waits for that.
	yieldTimeout = 2 * time.Second
)

// transfers hands leadership over to other servers.
type transfers struct{ *core }

// TransferLeadership makes another voter the leader, the one named or, when to
// is empty, whichever is furthest along, and returns the new leader's name. Any
// server takes the request. Writes wait meanwhile; none is lost.
//
// Errors: ErrUnavailable (there is no leader, or the other server did not take
// over; the old leader continues), ErrClosed, or why the server named cannot lead.
func (n *transfers) TransferLeadership(ctx context.Context, to string) (string, error) {
	if err := n.begin(); err != nil {
		return "", err
	}
	defer n.requests.Done()
	if id, addr := n.Leader(); id != n.cfg.NodeID && n.network != nil {
		if id == "" {
			return "", ErrUnavailable
		}
		request := &peerv1.TransferLeadershipRequest{To: to}
		response, err := peerv1.NewRaftServiceClient(n.PeerConn(addr)).TransferLeadership(ctx, request)
		if err != nil {
			return "", fmt.Errorf("ask the leader %s to hand over: %w", id, err)
		}
		return response.GetLeader(), nil
	}
	return n.handOver(ctx, to)
}

// handOver makes another server the leader in place of this one. Writes that
// have no outcome yet finish first, and new ones wait: raft would answer those
// that are under way with an unknown outcome.
func (n *transfers) handOver(ctx context.Context, to string) (string, error) {
	if n.raft.State() != raft.Leader {
		return "", n.notLeader()
	}
	if to == n.cfg.NodeID {
		return to, nil
	}
	candidates, err := n.successors(to)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, transferLimit, errors.New("no server took over in time"))
	defer cancel()
	drain, cancel := context.WithTimeout(ctx, 2*n.cfg.Timing.Heartbeat)
	defer cancel()
	switch err := n.writes.hold(drain, whileHandingOver); {
	case err == nil:
		defer n.writes.release()
	case drain.Err() == nil || ctx.Err() != nil:
		return "", err
	default: // a majority is slow, which is no reason to stay; some outcomes may be unknown
	}

	next, err := n.caughtUp(ctx, candidates)
	if err != nil {
		return "", err
	}
	n.transferring.begun(n.raft.CurrentTerm(), n.stuckTransfer())
	moved := n.moved.Wait()
	future := n.raft.LeadershipTransferToServer(next.ID, next.Address)
	answered := make(chan error, 1)
	n.unanswered.begin()
	go func() { // raft may have ended without an answer: see unanswered
		defer n.unanswered.end()
		answered <- future.Error()
	}()
	select {
	case err = <-answered:
	case <-ctx.Done():
		return "", fmt.Errorf("%w: hand over the leadership: %w", ErrUnavailable, context.Cause(ctx))
	}
	if err != nil {
		return "", fmt.Errorf("%w: hand over the leadership: %w", ErrUnavailable, err)
	}
	return n.nextLeader(ctx, moved)
}

// nextLeader waits until another server leads. Raft counts a transfer as done as
// soon as this one does not lead any more, for whatever reason.
func (n *transfers) nextLeader(ctx context.Context, moved <-chan struct{}) (string, error) {
	for {
		if id, _ := n.Leader(); id != "" && id != n.cfg.NodeID {
			return id, nil
		}
		select {
		case <-moved:
			moved = n.moved.Wait()
		case <-n.stopping.Done():
			return "", ErrClosed
		case <-ctx.Done():
			return "", fmt.Errorf("%w: hand over the leadership: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
}

// successors returns the servers that can lead instead: the one named, every other
// voter when to is empty, or why there is none.
func (n *transfers) successors(to string) (candidates []raft.Server, _ error) {
	for _, s := range n.servers() {
		switch {
		case to != "" && raftlog.NameOf(s.ID) != to, to == "" && (s.Suffrage != raft.Voter || s.ID == n.id):
		case s.Suffrage != raft.Voter:
			return nil, fmt.Errorf("%s has no vote yet and cannot lead", to)
		default:
			candidates = append(candidates, s)
		}
	}
	switch {
	case len(candidates) > 0:
		return candidates, nil
	case to != "":
		return nil, errors.New("no server of this cluster is called " + to)
	}
	return nil, errors.New("there is no other server that could lead")
}

// caughtUp waits until one of the candidates has every entry that the log has now, and
// has answered since, for an election timeout at most, as raft would: one that had all
// of them may have died. Raft is asked only after that: it leaves
// a request behind for a server that takes no entries, which nothing collects while
// the transport sends an entry again and again, and the next transfer to that server
// would wait for it without an end (hashicorp/raft#696).
func (n *transfers) caughtUp(ctx context.Context, candidates []raft.Server) (raft.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, n.raft.ReloadableConfig().ElectionTimeout)
	defer cancel()
	term, last, asked := n.raft.CurrentTerm(), n.raft.LastIndex(), n.endpoint.BeginRead()
	n.askFollowers()
	for {
		more, answer, moved := n.endpoint.TakenMore(), n.endpoint.Changed(), n.moved.Wait()
		if n.raft.State() != raft.Leader {
			return raft.Server{}, n.notLeader()
		}
		for _, s := range candidates {
			if n.endpoint.HasTaken(s.ID, term, last) && n.endpoint.Answered(s.ID, term, asked) {
				return s, nil
			}
		}
		select {
		case <-more:
		case <-answer:
		case <-moved:
		case <-ctx.Done():
			if len(candidates) == 1 {
				return raft.Server{}, fmt.Errorf("%w: %s does not take entries now, or does not answer, and cannot lead before it has all of them", ErrUnavailable, raftlog.NameOf(candidates[0].ID))
			}
			return raft.Server{}, fmt.Errorf("%w: no other server that answers has all entries now, without which it cannot lead", ErrUnavailable)
		}
	}
}

// yieldLeadership hands over before this server stops, so that the others need not
// find out that it is gone. Should no server take over in time, they will.
func (n *transfers) yieldLeadership() {
	if n.network == nil || n.raft.State() != raft.Leader {
		return
	}
	if _, err := n.successors(""); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), yieldTimeout)
	defer cancel()
	if _, err := n.handOver(ctx, ""); err != nil {
		n.cfg.Logger.Warn("stopping without having handed over the leadership", "node", n.cfg.NodeID, "error", err)
	}
}

// handoverGrace is how long a stop waits for raft's answers to transfers.
const handoverGrace = 2 * time.Second

// unanswered counts the transfers of leadership that raft was asked for and has not
// answered. Raft never answers one that it had not begun when it ended: a disk without
// space may end it, or keep it from beginning.
type unanswered struct {
	mu    sync.Mutex
	open  int
	ended raftnet.Signal
}

func (u *unanswered) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open++
}

func (u *unanswered) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open--
	u.ended.Wake()
}

// settle waits until every transfer is answered, or for some time.
func (u *unanswered) settle(within time.Duration) {
	patience := time.NewTimer(within)
	defer patience.Stop()
	for {
		u.mu.Lock()
		open, ended := u.open, u.ended.Wait()
		u.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-ended:
		case <-patience.C:
			return
		}
	}
}

// transferWatch notices a leader that refuses every write because of a transfer
// that never ends (hashicorp/raft#696).
type transferWatch struct {
	// refusing says that a write was refused and none accepted since, so that those
	// that are accepted need no lock.
	refusing atomic.Bool

	mu sync.Mutex
	// term and since are when the first of them was refused.
	term  uint64
	since time.Time
	// longest is how long a transfer that began in the term of transfers may take.
	transfers uint64
	longest   time.Duration
}

// begun notes that a transfer of a term begins, which may take so long. What raft
// is told of elections later does not change it.
func (w *transferWatch) begun(term uint64, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transfers != term {
		w.transfers, w.longest = term, 0
	}
	w.longest = max(w.longest, limit)
}

// allowed is how long writes of a term may be refused, where the limit is now.
func (w *transferWatch) allowed(term uint64, limit time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transfers == term {
		return max(w.longest, limit)
	}
	return limit
}

// accepted notes that the log takes writes.
func (w *transferWatch) accepted() {
	if w.refusing.Load() {
		w.refusing.Store(false)
	}
}

// refused notes a write that was refused at a moment of a term, and returns since
// when all of that term were.
func (w *transferWatch) refused(term uint64, at time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.refusing.Swap(true) || w.term != term {
		w.term, w.since = term, at
	}
	return w.since
}

// stuckTransfer is how long a leader may refuse writes because of a transfer.
// Raft gives up a transfer after an election timeout and then waits for the
// message to the successor, which takes at most RPCTimeout. The election timeout is
// longer while the disk is slow (keeper.tune).
func (n *core) stuckTransfer() time.Duration {
	return 2*max(n.cfg.Timing.Heartbeat, n.raft.ReloadableConfig().ElectionTimeout) + raftnet.RPCTimeout
}

// refusedByTransfer ends a leader that has refused writes for too long.
func (n *core) refusedByTransfer() {
	now, term := time.Now(), n.raft.CurrentTerm()
	since := n.transferring.refused(term, now)
	if now.Sub(since) < n.transferring.allowed(term, n.stuckTransfer()) {
		return
	}
	n.fatal(fmt.Errorf("a transfer of leadership that began %s ago never ended, and every write is refused; start this server again", now.Sub(since).Round(time.Millisecond)))
}
