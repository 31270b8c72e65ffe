package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Node is one server of a cluster, or a cluster of one. Its methods may be
// called from any goroutine.
type Node struct {
	cfg       Config
	st        *store.Store
	dir       *dataDir
	log       *logStore
	network   Network // nil: none
	transport Transport
	raft      *raft.Raft
	// running is raft once it runs, for what it calls from its own goroutines.
	running atomic.Pointer[raft.Raft]

	peers      *peers
	peerServer *grpc.Server   // nil without a network
	serving    sync.WaitGroup // what peerServer runs

	// writes are held back while the state is replaced.
	writes   gate
	contacts *contacts
	pilot    *pilot
	// changing holds a token while members are being changed.
	changing chan struct{}

	lead      *leadership
	ready     chan struct{}
	readyOnce sync.Once

	// stopping ends when Close begins.
	stopping context.Context
	stop     context.CancelFunc
	// background are the node's own goroutines, requests the calls in progress.
	background, requests sync.WaitGroup
	// mu orders the beginning of requests and Close; it guards closed.
	mu     sync.RWMutex
	closed bool

	fatalOnce sync.Once
	closeOnce sync.Once
	closeErr  error
}

// Open starts a node on its data directory and restores the store, which must
// be new, from it; a directory without a log becomes a cluster of this one
// server. The store is up to date once Ready is closed. ctx bounds the start
// only.
//
// Errors: ErrDataDirInUse, ErrDataDirReadOnly, ErrForeignDataDir, ErrCorrupt,
// ErrAddrInUse, or what Config.Validate says. After an error nothing runs, and
// a directory that was new is as it was.
func Open(ctx context.Context, cfg Config, st *store.Store) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, st: st, lead: newLeadership(), ready: make(chan struct{}),
		contacts: newContacts(), changing: make(chan struct{}, 1),
	}
	n.pilot = &pilot{node: n}
	if n.dir, err = openDataDir(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.abandon()
			err = startError(cfg, n.dir.Name(), err)
		}
	}()
	if n.network, err = openNetwork(ctx, cfg); err != nil {
		return nil, err
	}
	n.peers = newPeers(n.network)
	if n.network == nil {
		n.transport = alone(cfg.NodeID)
	} else {
		n.transport = n.network.Transport()
	}
	if err = n.dir.claim(cfg); err != nil {
		return nil, err
	}
	if n.log, err = openLogStore(n.dir); err != nil {
		return nil, err
	}
	snapshots, err := openSnapshots(n.dir, n.log, cfg)
	if err != nil {
		return nil, err
	}
	if err = snapshots.check(n.dir.id); err != nil {
		return nil, err
	}
	if err = n.bootstrap(snapshots); err != nil {
		return nil, err
	}
	n.stopping, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	notify := make(chan bool, 16)
	if err = n.startRaft(snapshots, notify); err != nil {
		return nil, err
	}
	n.dir.keep()
	n.background.Go(func() { n.followLeadership(n.stopping, notify) })
	if n.network != nil {
		n.servePeers()
		n.background.Go(func() { n.observeHeartbeats(n.stopping) })
		n.background.Go(func() { n.pilot.run(n.stopping) })
	}
	n.stand()
	return n, nil
}

// bootstrap begins the log of a new cluster with this server as its only
// member. Raft's own function would refuse to go on after a crash between its
// two writes; here the second makes the first count.
func (n *Node) bootstrap(snapshots raft.SnapshotStore) error {
	if n.dir.id.Bootstrapped {
		return nil
	}
	last, err := n.log.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 {
		if err := n.log.SetUint64(keyCurrentTerm, 0); err != nil {
			return fmt.Errorf("consensus: begin the log: %w", err)
		}
		members := raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.NodeID), Address: n.transport.LocalAddr(),
		}}}
		if err := raft.BootstrapCluster(n.cfg.raftConfig(nil), n.log, n.log, snapshots, n.transport, members); err != nil {
			return fmt.Errorf("consensus: begin the log: %w", err)
		}
	}
	return n.dir.markBootstrapped()
}

// startRaft restores the newest snapshot and starts raft. Raft panics on
// entries it cannot read; those have been looked for, but a start must not end
// a process.
func (n *Node) startRaft(snapshots *snapshotStore, notify chan<- bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if err = n.log.fail.get(); err == nil {
				err = corruptf("%s: %v", n.dir.Name(), p)
			}
		}
	}()
	n.watchStorage()
	machine := frozenFSM{fsm: fsm{n.st}, fail: n.log.fail, snapshots: snapshots}
	n.raft, err = raft.NewRaft(n.cfg.raftConfig(notify), machine, n.log, n.log, snapshots, n.transport)
	snapshots.opening.Store(false)
	if err == nil {
		n.running.Store(n.raft)
		n.log.fail.arm(n.storageFailed)
		return nil
	}
	if snapshots.damage != nil {
		return corruptf("%w", snapshots.damage)
	}
	if failed := n.log.fail.get(); failed != nil {
		return failed
	}
	return fmt.Errorf("consensus: start: %w", err)
}

// stand makes the only voter of a cluster stand for election at once: there is
// no leader it could wait to hear from. It uses the message by which a leader
// hands over, which any server may act upon at any time. Should it not arrive,
// the heartbeat timeout does the same.
func (n *Node) stand() {
	servers := n.raft.GetConfiguration().Configuration().Servers
	if len(servers) != 1 || servers[0].ID != raft.ServerID(n.cfg.NodeID) {
		return
	}
	id, addr := servers[0].ID, n.transport.LocalAddr()
	n.background.Go(func() {
		request := raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: n.transport.EncodePeer(id, addr),
		}}
		if err := n.transport.TimeoutNow(id, addr, &request, &raft.TimeoutNowResponse{}); err != nil {
			n.cfg.Logger.Debug("could not stand for election at once", "node", n.cfg.NodeID, "error", err)
		}
	})
}

// abandon undoes what Open did so far.
func (n *Node) abandon() {
	if n.stop != nil {
		n.stop()
	}
	if n.transport != nil {
		_ = n.transport.Close()
	}
	if n.network != nil {
		_ = n.network.Close()
	}
	if n.log != nil {
		_ = n.log.Close()
	}
	n.dir.discard()
}

// Ready is closed when the store holds everything that was committed before the
// start, and this server can take requests.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// IsLeader says whether this server leads and is ready to serve.
func (n *Node) IsLeader() bool {
	term, _ := n.lead.get()
	return term != 0
}

// Leader returns the node id and raft address of the leader, empty when it is
// not known.
func (n *Node) Leader() (id, addr string) {
	address, server := n.raft.LeaderWithID()
	return string(server), string(address)
}

// RaftAddr is the address that peers dial, the node's id where there is no
// network.
func (n *Node) RaftAddr() string { return string(n.transport.LocalAddr()) }

// ClusterID names the cluster for as long as it lives.
func (n *Node) ClusterID() string { return n.dir.id.ClusterID }

// Status is a moment of a node's life, for people and metrics.
type Status struct {
	ClusterID, NodeID string
	// State is leader, follower, candidate or shutdown.
	State string
	// Leader is the leader's node id, empty when it is not known.
	Leader string
	Term   uint64
	// Last is the end of the log, Committed the part a majority has, Applied the
	// store's.
	Last, Committed, Applied resource.Revision
}

// Status returns the state of the node.
func (n *Node) Status() Status {
	leader, _ := n.Leader()
	return Status{
		ClusterID: n.dir.id.ClusterID, NodeID: n.cfg.NodeID,
		State:     stateName(n.raft.State()),
		Leader:    leader,
		Term:      n.raft.CurrentTerm(),
		Last:      resource.Revision(n.raft.LastIndex()),
		Committed: resource.Revision(n.raft.CommitIndex()),
		Applied:   n.st.Revision(),
	}
}

func stateName(s raft.RaftState) string {
	switch s {
	case raft.Leader:
		return "leader"
	case raft.Candidate:
		return "candidate"
	case raft.Shutdown:
		return "shutdown"
	default:
		return "follower"
	}
}

// Snapshot writes a snapshot now and cuts the log. It does nothing when nothing
// was written since the last one.
func (n *Node) Snapshot() error {
	if err := n.begin(); err != nil {
		return err
	}
	defer n.requests.Done()
	err := n.raft.Snapshot().Error()
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("consensus: snapshot: %w", err)
	}
	return nil
}

// fatal reports that the node cannot go on safely, once.
func (n *Node) fatal(err error) {
	n.fatalOnce.Do(func() {
		n.cfg.Logger.Error("this server cannot go on", "node", n.cfg.NodeID, "error", err)
		if n.cfg.Events.Fatal != nil {
			go n.cfg.Events.Fatal(err) // not waited for: a disk may hang
		}
	})
}

// begin registers a request, unless the node is closed.
func (n *Node) begin() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return ErrClosed
	}
	n.requests.Add(1)
	return nil
}

// closePatience is how long Close waits for what is under way. Only a disk that
// hangs takes longer.
const closePatience = 8 * time.Second

// Close stops the node, in this order: no new requests; our own goroutines and
// the requests in progress, which end by themselves (raft would leave some
// without an answer if it stopped first); raft and its connections; the log;
// last the lock, so that nobody opens a directory that is still written to.
// Calls after the first return what it returned.
//
// It fails when the disk hangs: then the directory stays locked, and only the
// end of the process helps.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

func (n *Node) close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.stop()
	stopped := make(chan error, 1)
	go func() { // ends with Close, unless the disk hangs
		n.background.Wait()
		n.requests.Wait()
		n.stopPeers()
		err := n.raft.Shutdown().Error()
		err = errors.Join(err, n.transport.Close())
		if n.network != nil {
			err = errors.Join(err, n.network.Close())
		}
		stopped <- errors.Join(err, n.log.Close())
	}()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case err := <-stopped:
		n.dir.release()
		if err != nil {
			return fmt.Errorf("consensus: close: %w", err)
		}
		return nil
	case <-patience.C:
		return fmt.Errorf("consensus: %s did not stop writing within %s; end the process", n.dir.Name(), closePatience)
	}
}
