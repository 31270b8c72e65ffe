package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/rpcerr"
	"meridian/internal/version"
)

const (
	// membershipInterval is how often a server checks that it is a member at the address
	// where it is, without an event that says so.
	membershipInterval = time.Second
	// askAgain is how long a server that was told it is a member waits for the
	// leader to call before it asks again.
	askAgain = 3 * time.Second
	// askTimeout bounds asking one server to be taken in.
	askTimeout = 3 * time.Second
	// noLeaderHeartbeats is how many election timeouts a server waits to hear from a
	// leader before it asks the others whether it is still one of them.
	noLeaderHeartbeats = 4
)

// joiner makes this server a member, and keeps it one under the address where it
// is.
type joiner struct {
	*core
	members *members
	reader  *reader
	waiting waiting
}

// waiting is what a node that is not ready waits for.
type waiting struct {
	mu   sync.Mutex
	what string
}

// set reports whether it is something else than before.
func (w *waiting) set(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.what != what
	w.what = what
	return changed
}

// Waiting says, in a few words for people, what the node waits for before it is
// ready, or in order to find its leader; empty when it waits for nothing.
func (n *joiner) Waiting() string {
	n.waiting.mu.Lock()
	what := n.waiting.what
	n.waiting.mu.Unlock()
	if what != "" {
		return what
	}
	if id, _ := n.Leader(); id == "" {
		return "a leader: a majority of the servers has to be up and reach each other"
	}
	select {
	case <-n.ready:
		return ""
	default:
		return "this server to catch up with the leader"
	}
}

// catchUp makes a server that does not lead ready: once a read has succeeded,
// the store holds everything that was committed before the start.
func (n *joiner) catchUp(ctx context.Context) {
	for {
		select {
		case <-n.ready:
			n.joined()
			return
		case <-ctx.Done():
			return
		default:
		}
		if _, err := n.reader.read(ctx); err == nil {
			n.becomeReady()
		}
	}
}

// joined notes that this server holds the cluster's state: from now on an empty
// log is a lost one.
func (n *joiner) joined() {
	if err := n.dir.MarkJoined(); err != nil {
		n.fatal(fmt.Errorf("record that this server has joined: %w", err))
	}
}

// maintainMembership keeps this server a member of its cluster, under the address where it
// is, until ctx ends.
func (n *joiner) maintainMembership(ctx context.Context) {
	tick := time.NewTicker(membershipInterval)
	defer tick.Stop()
	heard := time.Now() // when a leader was last known
	var asked time.Time
	for {
		moved := n.moved.Wait()
		leader, _ := n.Leader()
		if leader != "" {
			heard = time.Now()
		}
		member, known := n.members.membership().disk(n.id)
		joining := n.dir.ID().Joining
		if known && joining {
			n.begun()
		}
		switch {
		case time.Since(asked) < askAgain:
		case joining && !known:
			// While a leader sends the log, this server only has not read that far.
			if leader == "" && n.askToJoin(ctx, true) {
				asked = time.Now()
			}
		case known && string(member.Address) != n.RaftAddr(), time.Since(heard) > noLeaderHeartbeats*n.cfg.Timing.Heartbeat:
			if n.askToJoin(ctx, false) {
				asked = time.Now()
			}
		}
		if leader != "" {
			n.waiting.set("")
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		case <-tick.C:
		}
	}
}

// begun notes that this server has a log.
func (n *joiner) begun() {
	if err := n.dir.MarkBootstrapped(); err != nil {
		n.fatal(fmt.Errorf("record that this server has begun to join: %w", err))
	}
}

// askToJoin asks the servers that may be there, one after the other, to take this one
// in, until one does, and reports whether one did.
func (n *joiner) askToJoin(ctx context.Context, fresh bool) bool {
	request := &peerv1.AddMemberRequest{
		Name: n.cfg.NodeID, Disk: raftlog.DiskOf(n.id), Raft: n.RaftAddr(), Fresh: fresh,
		ClusterId: n.ClusterID(), Version: version.String(), CommandFormat: n.cfg.logFormat(),
	}
	var failures []string
	var foreign string
	for _, addr := range n.candidateAddresses() {
		response, err := n.askAt(ctx, addr, request)
		if err == nil {
			n.accepted(response)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		failures = append(failures, fmt.Sprintf("%s: %v", addr, callFailure(err)))
		if rpcerr.HasReason(err, raftnet.ReasonForeignCluster) {
			// An address may have passed to another cluster, and a recovered one has
			// another name than those left behind: this says nothing about this server.
			foreign = addr
		}
		if n.refused(err) {
			return false
		}
	}
	why := strings.Join(failures, "; ")
	if why == "" {
		why = "no address of another server is known"
	}
	switch {
	case foreign != "":
		if n.waiting.set(fmt.Sprintf("a server of its own cluster to answer (%s)", why)) {
			n.cfg.Logger.Warn("a server of another cluster answers where one of this cluster was: this server waits for its own; keep its data directory, which may be the only copy of what it holds",
				"node", n.cfg.NodeID, "address", foreign, "cluster", n.ClusterID())
		}
	case len(n.servers()) > 1:
		n.waiting.set("") // a member waits for a majority, and Members says who of it is missing
	default:
		n.waiting.set(fmt.Sprintf("a server of the cluster to answer (%s)", why))
	}
	n.cfg.Logger.Debug("no server of the cluster answers", "node", n.cfg.NodeID, "error", why)
	return false
}

// askAt asks the server at an address, which may be this one.
func (n *joiner) askAt(ctx context.Context, addr string, request *peerv1.AddMemberRequest) (*peerv1.AddMemberResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if addr == n.RaftAddr() {
		err := n.members.addMember(ctx, addition{
			name: request.GetName(), disk: request.GetDisk(), addr: request.GetRaft(), own: true, cluster: request.GetClusterId(),
			format: request.GetCommandFormat(), version: request.GetVersion(),
		})
		return &peerv1.AddMemberResponse{ClusterId: n.ClusterID()}, err
	}
	return peerv1.NewRaftServiceClient(n.PeerConn(addr)).AddMember(ctx, request)
}

// candidateAddresses lists addresses, the likeliest first: the leader's, those of
// the members, those that gossip knows, those that were given. This
// server's own is among them only when it leads.
func (n *joiner) candidateAddresses() []string {
	var addrs []string
	add := func(addr string) {
		if addr != "" && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	_, leader := n.Leader()
	add(leader)
	for _, s := range n.servers() {
		if s.ID != n.id {
			add(string(s.Address))
		}
	}
	if n.cfg.Peers != nil {
		for _, p := range n.cfg.Peers() {
			if p.Name != n.cfg.NodeID {
				add(p.Raft)
			}
		}
	}
	if n.cfg.Join.Addrs != nil {
		for _, addr := range n.cfg.Join.Addrs() {
			if addr != n.RaftAddr() {
				add(addr)
			}
		}
	}
	return addrs
}

// accepted notes the answer of the leader: this server is a member.
func (n *joiner) accepted(response *peerv1.AddMemberResponse) {
	if err := n.dir.JoinCluster(response.GetClusterId()); err != nil {
		n.fatal(err)
		return
	}
	n.endpoint.Release()
	n.waiting.set("")
}

// refused deals with an answer that asking others will not change, and
// reports whether err is one.
func (n *joiner) refused(err error) bool {
	var said *rpcerr.Error
	if !errors.As(err, &said) {
		return false
	}
	switch said.Reason {
	case ReasonRemoved:
		if err := n.dir.MarkRemoved(); err != nil { // only Recovery reads it
			n.cfg.Logger.Warn("cannot note that this server was removed", "node", n.cfg.NodeID, "error", err)
		}
		n.fatal(fmt.Errorf("%w; to bring it back, let it join as a new server, with a new data directory", ErrRemoved))
	case ReasonTooOld, ReasonCertificateRevoked:
		n.fatal(errors.New(said.Message))
	case ReasonAlreadyRunning, ReasonAddressInUse:
		if n.waiting.set(said.Message) { // until the server that has it is gone
			n.cfg.Logger.Warn("cannot join yet", "node", n.cfg.NodeID, "error", said.Message)
		}
	default:
		return false
	}
	return true
}

// hint returns the last address of a server that gossip knows.
func (n *joiner) hint(name string) string {
	if n.cfg.Peers == nil {
		return ""
	}
	for _, p := range n.cfg.Peers() {
		if p.Name == name {
			return p.Raft
		}
	}
	return ""
}
