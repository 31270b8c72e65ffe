package consensus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/store"
)

// leadership is what this server knows about its own lead. A term of zero means
// that it does not lead.
type leadership struct {
	mu sync.Mutex
	// term is the term in which this server leads and has applied everything
	// committed before.
	term uint64
	// changed is closed and replaced when term changes.
	changed chan struct{}
}

func newLeadership() *leadership { return &leadership{changed: make(chan struct{})} }

// get returns the term and a channel that is closed when it changes.
func (l *leadership) get() (uint64, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.changed
}

// set reports whether the term changed.
func (l *leadership) set(term uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == term {
		return false
	}
	l.term = term
	close(l.changed)
	l.changed = make(chan struct{})
	return true
}

// followLeadership runs until ctx ends: it turns raft's notifications into the
// leadership of a server that is ready to serve.
func (n *Node) followLeadership(ctx context.Context, notify <-chan bool) {
	defer n.setLeadership(0)
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case leading := <-notify:
			if !leading {
				n.setLeadership(0)
			}
		case <-retry:
		}
		retry = nil
		if n.raft.State() != raft.Leader || n.IsLeader() {
			continue
		}
		if err := n.acquireLeadership(); err != nil {
			n.cfg.Logger.Warn("could not take over leadership yet", "node", n.cfg.NodeID, "error", err)
			retry = time.After(leadershipRetry)
		}
	}
}

// leadershipRetry is how long a new leader waits after it failed to take over.
const leadershipRetry = 100 * time.Millisecond

// acquireLeadership waits until the store has applied everything that earlier leaders
// committed: raft returns from a restart at its snapshot, not at the end of its
// log, and a new leader does not know how far the log was committed until it
// has committed an entry of its own term.
//
// That entry is an empty batch, not raft's barrier: it passes through every
// server's store, so that what this server says is committed is a revision that
// the others reach too.
func (n *Node) acquireLeadership() error {
	term := n.raft.CurrentTerm()
	if err := n.proposeEmpty(); err != nil {
		return err
	}
	if err := n.nameEpoch(); err != nil {
		return err
	}
	if n.st.Restoring() && !n.restorer.restoring.Load() {
		n.restorer.abandonRestore(n.cfg.Clock()) // its leader is no more
	}
	if now := n.raft.CurrentTerm(); now != term {
		return fmt.Errorf("term changed from %d to %d", term, now)
	}
	n.setLeadership(term)
	n.becomeReady()
	return nil
}

// proposeEmpty writes a batch without operations: once it returns, everything
// before it is committed and applied here.
func (n *core) proposeEmpty() error {
	command, err := store.EncodeCommand(store.Txn{Time: n.cfg.Clock()})
	if err != nil {
		return fmt.Errorf("empty batch: %w", err)
	}
	if err := n.apply(command); err != nil {
		return fmt.Errorf("empty batch: %w", n.proposeError(err))
	}
	n.transferring.accepted()
	return nil
}

// apply writes a command, and returns once it is applied here. It fails, too, when the state
// machine could not apply it.
func (n *core) apply(command []byte) error {
	future := n.raft.Apply(command, n.cfg.ApplyTimeout)
	if err := n.answer(future); err != nil {
		return err
	}
	err, _ := future.Response().(error)
	return err
}

// answer returns raft's answer, or ErrClosed when this server stops: without a
// majority raft has none before its lease is over.
func (n *core) answer(future raft.Future) error {
	answered := make(chan error, 1)
	n.answers.Go(func() { answered <- future.Error() })
	select {
	case err := <-answered:
		return err
	case <-n.stopping.Done():
		return ErrClosed
	}
}

// nameEpoch gives a new cluster its first epoch, which every server and zone
// then tells it by. Should an earlier attempt have been committed meanwhile, the
// request id makes this one a repetition.
func (n *core) nameEpoch() error {
	if n.st.View().Epoch() != (store.Epoch{}) {
		return nil
	}
	command, err := store.EncodeCommand(store.Txn{
		RequestID: "epoch/" + n.ClusterID(),
		Time:      n.cfg.Clock(),
		SetEpoch: &store.Epoch{
			ClusterID:   n.ClusterID(),
			Incarnation: 1,
			Random:      randomID(),
		},
	})
	if err != nil {
		return fmt.Errorf("name the first epoch: %w", err)
	}
	if err := n.apply(command); err != nil {
		return fmt.Errorf("name the first epoch: %w", err)
	}
	return nil
}

// setLeadership records the leadership and notifies the listener when it begins
// or ends.
func (n *core) setLeadership(term uint64) {
	before, _ := n.leadership.get()
	if !n.leadership.set(term) {
		return
	}
	n.moved.Wake()
	if (before != 0) == (term != 0) {
		return
	}
	if n.cfg.Events.LeaderChanged != nil {
		n.cfg.Events.LeaderChanged(term != 0)
	}
}

// waitLeadership returns the term in which this server leads and may serve, waiting
// while it is about to, and a channel that is closed when that ends.
func (n *core) waitLeadership(ctx context.Context) (uint64, <-chan struct{}, error) {
	for {
		moved := n.moved.Wait()
		term, changed := n.leadership.get()
		if term != 0 {
			return term, changed, nil
		}
		if n.raft.State() != raft.Leader {
			return 0, nil, n.notLeader()
		}
		select {
		case <-changed:
		case <-moved:
		case <-n.stopping.Done():
			return 0, nil, ErrClosed
		case <-ctx.Done():
			return 0, nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
}

// observeLeader wakes the requests that wait for a leader whenever raft learns of
// another one, or that there is none. It runs on raft's goroutine.
func (n *core) observeLeader() {
	n.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			n.moved.Wake()
		}
		return false
	}))
}

// LeaderChanged returns a channel that is closed when Leader may return something
// else. Take it before asking.
func (n *core) LeaderChanged() <-chan struct{} { return n.moved.Wait() }

// becomeReady marks the moment at which the store held everything that was
// committed before the start.
func (n *core) becomeReady() { n.readyOnce.Do(func() { close(n.ready) }) }
