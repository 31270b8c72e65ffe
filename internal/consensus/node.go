package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Node is one server of a cluster, or a cluster of one. Its methods may be
// called from any goroutine. Each of its parts has one job and a file of its own.
type Node struct {
	*core
	*proposer
	*reader
	*members
	*restorer
	*joiner
	*transfers
	disk      *diskGuard
	keeper    *keeper
	suspicion *suspicion
	pilot     *pilot

	peerServer *raftnet.Server // nil without a network
	closeOnce  sync.Once
	closeErr   error
}

// newNode returns a node of which nothing runs.
func newNode(cfg Config, st *store.Store) *Node {
	c := &core{cfg: cfg, st: st, leadership: newLeadership()}
	c.ready = make(chan struct{})
	n := &Node{core: c, reader: &reader{c}, transfers: &transfers{c}}
	n.disk = &diskGuard{core: c, transfers: n.transfers}
	n.keeper = &keeper{core: c}
	n.suspicion = &suspicion{core: c, keeper: n.keeper}
	n.proposer = &proposer{core: c, disk: n.disk, reader: n.reader, space: semaphore.NewWeighted(proposalBytes)}
	n.proposer.formats = &formats{core: c, known: map[raft.ServerID]knownFormat{}}
	n.proposer.entries, n.proposer.forwards = newEntries(c, n.proposer.formats), newForwards(c)
	n.members = &members{core: c, transfers: n.transfers, contacts: newContacts(), changing: make(chan struct{}, 1)}
	n.restorer = &restorer{core: c, reader: n.reader, restorePart: defaultRestorePart}
	n.joiner = &joiner{core: c, members: n.members, reader: n.reader}
	n.pilot = &pilot{node: n}
	return n
}

// Open starts a node on its data directory and restores the store, which must
// be new, from it; a directory without a log becomes a cluster of this one
// server. The store is up to date once Ready is closed. ctx bounds the start
// only.
//
// Errors: ErrDataDirInUse, ErrDataDirReadOnly, ErrForeignDataDir, ErrCorrupt,
// ErrNewerLog, ErrAddrInUse, or what Config.Validate says. After an error nothing runs, and
// a directory that was new is as it was.
func Open(ctx context.Context, cfg Config, st *store.Store) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := newNode(cfg, st)
	if n.dir, err = openDataDir(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.abandon()
			err = startError(cfg, n.dir.Name(), err)
		}
	}()
	if n.network, err = openNetwork(ctx, cfg, n.wasRemoved, n.revoked); err != nil {
		return nil, err
	}
	n.peers = raftnet.NewPeers(n.network, n.ClusterID, func() raft.ServerID { return n.dir.ID().ServerID() })
	if n.network == nil {
		n.transport = raftnet.Loopback(cfg.NodeID)
	} else {
		n.transport = n.network.Transport(n.identity)
	}
	n.endpoint = raftnet.NewEndpoint(n.transport, n.joiner.hint)
	if err = n.dir.Claim(cfg.owner()); err != nil {
		return nil, err
	}
	n.id = n.dir.ID().ServerID()
	if n.log, err = raftlog.OpenLog(n.dir, n.noteFormat); err != nil {
		return nil, err
	}
	if err = n.newerLog; err != nil {
		return nil, err
	}
	if err = finishRecovery(n.dir, n.log); err != nil {
		return nil, err
	}
	snapshots, err := raftlog.OpenSnapshots(n.dir, n.log, cfg.Snapshots.Retain, raftnet.NewLogger(cfg.Logger))
	if err != nil {
		return nil, err
	}
	if err = snapshots.Check(n.dir.ID()); err != nil {
		return nil, err
	}
	if err = n.bootstrap(snapshots); err != nil {
		return nil, err
	}
	if err = n.awaitMembership(); err != nil {
		return nil, err
	}
	background := context.WithoutCancel(ctx)
	n.stopping, n.stop = context.WithCancel(background)
	n.aborting, n.abort = context.WithCancel(background)
	n.upkeeping, n.stopUpkeep = context.WithCancel(background)
	n.disk.reserve = newReserve(cfg.NodeID, n.dir)
	notify := make(chan bool, 16)
	if err = n.startRaft(snapshots, notify); err != nil {
		return nil, err
	}
	n.dir.Keep()
	n.run(notify)
	return n, nil
}

// openDataDir opens the data directory, and says how to repair a damaged one.
func openDataDir(cfg Config) (*raftlog.DataDir, error) {
	storage := cfg.storage()
	dir, err := raftlog.OpenDataDir(storage, cfg.owner())
	if err != nil {
		return nil, startError(cfg, storage.Name(), err)
	}
	return dir, nil
}

// openNetwork returns the configured network, nil when there is none.
func openNetwork(ctx context.Context, cfg Config, removed func(raft.ServerID) bool, revoked func(string) bool) (raftnet.Network, error) {
	switch {
	case cfg.Network != nil:
		return cfg.Network, nil
	case cfg.Transport.Addr != "":
		cfg.Transport.Removed, cfg.Transport.Revoked = removed, revoked
		return raftnet.Listen(ctx, cfg.Transport, cfg.Logger)
	}
	return nil, nil
}

// run starts the node's own goroutines.
func (n *Node) run(notify <-chan bool) {
	n.observeLeader()
	n.background.Go(func() { n.disk.watchDisk(n.stopping) })
	n.background.Go(func() { n.keeper.cut(n.stopping) })
	n.background.Go(func() { n.keeper.follow(n.stopping) })
	n.background.Go(func() { n.followLeadership(n.stopping, notify) })
	if n.network != nil {
		n.servePeers()
		n.background.Go(func() { n.members.observeHeartbeats(n.stopping) })
		n.background.Go(func() { n.pilot.run(n.stopping) })
		n.background.Go(func() { n.suspicion.watch(n.stopping) })
		n.upkeep.Go(func() { n.joiner.catchUp(n.upkeeping) })
		n.upkeep.Go(func() { n.joiner.maintainMembership(n.upkeeping) })
	}
	n.campaign()
}

// bootstrap begins the log of a new cluster with this server as its only
// member. Raft's own function fails after a crash between its two writes; here
// the second makes the first count.
func (n *Node) bootstrap(snapshots raft.SnapshotStore) error {
	if n.dir.ID().Bootstrapped || n.dir.ID().Joining {
		return nil
	}
	last, err := n.log.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 {
		if err := n.log.SetCurrentTerm(0); err != nil {
			return fmt.Errorf("begin the log: %w", err)
		}
		members := raft.Configuration{Servers: []raft.Server{{
			Suffrage: raft.Voter, ID: n.id, Address: n.transport.LocalAddr(),
		}}}
		if err := raft.BootstrapCluster(n.cfg.raftConfig(n.id, nil), n.log, n.log, snapshots, n.transport, members); err != nil {
			return fmt.Errorf("begin the log: %w", err)
		}
	}
	return n.dir.MarkBootstrapped()
}

// awaitMembership keeps raft from hearing anything in a server that holds nothing
// yet, until the cluster that it joins has taken it in.
func (n *Node) awaitMembership() error {
	if !n.dir.ID().Joining {
		return nil
	}
	_, last, err := n.log.Bounds()
	if err != nil {
		return err
	}
	term, err := n.log.CurrentTerm()
	if err != nil {
		return err
	}
	if last == 0 && term == 0 {
		n.endpoint.Hold()
	}
	return nil
}

// startRaft restores the newest snapshot and starts raft. Raft panics on
// entries it cannot read; those have been looked for, but a start must not end
// a process.
func (n *Node) startRaft(snapshots *raftlog.Snapshots, notify chan<- bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if err = n.log.Failure(); err == nil {
				err = raftlog.Corruptf("%s: %v", n.dir.Name(), p)
			}
		}
	}()
	n.watchStorage()
	n.keeper.snapshots = snapshots
	n.endpoint.Complete(n.log.Complete)
	n.endpoint.OnDisk(n.log.OnDisk)
	n.endpoint.Campaigning(n.campaigning, n.electionTimeout, n.suspicion.standBack)
	n.endpoint.Replicating(n.replicating)
	machine := fsm{halted: &halted{tell: n.fatal}, st: n.st, events: n.cfg.Events, configured: n.configured, format: n.cfg.logFormat(), used: &n.formatInUse, complete: n.log.Complete, synced: n.log.Synced}
	var newer error // why a snapshot is for a newer release to restore
	machine.unusable = func(err error) {
		if errors.Is(err, ErrNewerLog) {
			newer = err
		}
		snapshots.Unusable(err)
	}
	n.raft, err = raft.NewRaft(n.cfg.raftConfig(n.id, notify), machine, n.log, n.log, snapshots, n.endpoint)
	snapshots.Running()
	if err == nil {
		n.running.Store(n.raft)
		n.log.Running()
		n.endpoint.Start(raftnet.Screen{Examine: n.screen, State: func() (term, last uint64) { return n.raft.CurrentTerm(), n.raft.LastIndex() }})
		return nil
	}
	switch {
	case newer != nil:
		return newer // nothing is damaged
	case errors.Is(snapshots.Damage(), raftlog.ErrCorrupt):
		return snapshots.Damage()
	case snapshots.Damage() != nil:
		return raftlog.Corruptf("%w", snapshots.Damage())
	}
	if failed := n.log.Failure(); failed != nil {
		return failed
	}
	return fmt.Errorf("start raft: %w", err)
}

// campaign makes the only voter of a cluster campaign at once: there is no leader
// whose heartbeat it could wait for. It uses the message by which a leader
// hands over, which any server may act upon at any time. Should it not arrive,
// the heartbeat timeout does the same.
func (n *Node) campaign() {
	servers := n.servers()
	if len(servers) != 1 || servers[0].ID != n.id {
		return
	}
	id, addr := servers[0].ID, n.transport.LocalAddr()
	n.background.Go(func() {
		request := raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: n.transport.EncodePeer(id, addr),
		}}
		if err := n.transport.TimeoutNow(id, addr, &request, &raft.TimeoutNowResponse{}); err != nil {
			n.cfg.Logger.Debug("could not campaign at once", "node", n.cfg.NodeID, "error", err)
		}
	})
}

// campaigning says that this server campaigns in a term.
func (n *core) campaigning(term uint64) bool {
	r := n.running.Load()
	return r != nil && r.State() == raft.Candidate && r.CurrentTerm() == term
}

// electionTimeout is how long an election lasts before raft begins another.
func (n *core) electionTimeout() time.Duration {
	if r := n.running.Load(); r != nil {
		return r.ReloadableConfig().ElectionTimeout
	}
	return n.cfg.Timing.Heartbeat
}

// replicating says that this server leads in a term, and that the newest
// configuration has a member at an address.
func (n *core) replicating(term uint64, id raft.ServerID, at raft.ServerAddress) bool {
	r := n.running.Load()
	return r != nil && r.State() == raft.Leader && r.CurrentTerm() == term &&
		slices.ContainsFunc(n.servers(), func(s raft.Server) bool { return s.ID == id && s.Address == at })
}

// abandon undoes what Open did so far.
func (n *Node) abandon() {
	if n.stop != nil {
		n.stop()
	}
	if n.endpoint != nil {
		n.endpoint.Stop()
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
	n.dir.Discard()
}

// Ready is closed when the store holds everything that was committed before the
// start, and this server can take requests.
func (n *core) Ready() <-chan struct{} { return n.ready }

// IsLeader says whether this server leads and is ready to serve.
func (n *core) IsLeader() bool {
	term, _ := n.leadership.get()
	return term != 0
}

// Leader returns the node id and raft address of the leader, empty when it is
// not known.
func (n *core) Leader() (id, addr string) {
	address, server := n.raft.LeaderWithID()
	return raftlog.NameOf(server), string(address)
}

// RaftAddr is the address that peers dial, the node's id where there is no
// network.
func (n *core) RaftAddr() string { return string(n.transport.LocalAddr()) }

// ClusterID names the cluster for as long as it lives. It is empty while a new
// server has not found the cluster that it joins.
func (n *core) ClusterID() string { return n.dir.ID().ClusterID }

// Status is a moment of a node's life, for people and metrics.
type Status struct {
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
func (n *core) Status() Status {
	leader, _ := n.Leader()
	return Status{
		State:     stateName(n.raft.State()),
		Leader:    leader,
		Term:      n.raft.CurrentTerm(),
		Last:      resource.Revision(n.raft.LastIndex()),
		Committed: n.committed(),
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
	err := n.log.Failure()
	if err == nil {
		err = n.raft.Snapshot().Error()
	}
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	return nil
}

// fatal reports, once, that the node cannot continue safely.
func (n *core) fatal(err error) {
	n.fatalOnce.Do(func() {
		if n.cfg.Events.Fatal == nil {
			n.cfg.Logger.Error("this server cannot continue", "node", n.cfg.NodeID, "error", err)
			return
		}
		go n.cfg.Events.Fatal(err) // not waited for: a disk may hang
	})
}

// begin registers a request, unless the node is closed.
func (n *core) begin() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return ErrClosed
	}
	n.requests.Add(1)
	return nil
}

const (
	// closeTimeout is how long Close waits for what is under way. Only a disk
	// that hangs takes longer.
	closeTimeout = 8 * time.Second
	// closeGrace is how long requests that wait for another server may continue.
	closeGrace = 2 * time.Second
)

// Leave tells the others, when they ask, that this server is about to stop: it may
// be removed without force.
func (n *core) Leave() { n.leaving.Store(true) }

// Close stops the node, in this order: another server takes over, if this one
// leads and there is one; no new requests; those in progress, which end by
// themselves (raft would leave some without an answer if it stopped first), and
// our own goroutines; the answers to peers; raft and its connections; the log;
// last the lock, so that no process opens a directory that is still written to.
// Calls after the first return what it returned.
//
// It fails when the disk hangs: then the directory stays locked, and only the
// end of the process helps.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

func (n *Node) close() error {
	stopped := make(chan error, 1)
	go func() { stopped <- n.shutDown() }() // ends with Close, unless the disk hangs
	patience := time.NewTimer(closeTimeout)
	defer patience.Stop()
	select {
	case err := <-stopped:
		n.dir.Close()
		if err != nil {
			return fmt.Errorf("close the log: %w", err)
		}
		return nil
	case <-patience.C:
		return fmt.Errorf("%s did not stop writing within %s; end the process", n.dir.Name(), closeTimeout)
	}
}

func (n *Node) shutDown() error {
	n.Leave()
	if n.log.Failure() == nil {
		n.transfers.yieldLeadership()
	}
	n.stopUpkeep()
	n.upkeep.Wait()
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	grace := time.AfterFunc(closeGrace, func() {
		n.abort()
		n.stop() // requests may wait for raft, and raft for a write that has failed
	})
	defer grace.Stop()
	if leader, _ := n.Leader(); n.network != nil && leader != "" && leader != n.cfg.NodeID {
		n.requests.Wait() // they may have to find the leader, which stop would end
	}
	n.stop()
	n.background.Wait()
	n.requests.Wait()
	n.abort()
	n.stopPeers()
	n.unanswered.settle(handoverGrace)
	// Raft waits for its messages under way, and those to a server that has gone
	// silent take as long as a message may: the connections are ended first.
	n.shutDownRaft()
	err := n.transport.Close()
	if n.network != nil {
		err = errors.Join(err, n.network.Close())
	}
	err = errors.Join(n.raftEnd.Error(), err)
	n.endpoint.Stop() // a message of a peer may begin an answer (screen)
	n.answers.Wait()
	return errors.Join(err, n.log.Close())
}
