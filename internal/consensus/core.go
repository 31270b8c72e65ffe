package consensus

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/store"
)

// core is what all parts of a node share: raft, what lies below it, and who leads.
// It has more fields than most types because they are set once, by Open, and read
// by every part.
type core struct {
	lifecycle
	learned
	cfg       Config
	st        *store.Store
	dir       *raftlog.DataDir
	log       *raftlog.Log
	network   raftnet.Network // nil: none
	transport raftnet.Transport
	// id is what raft knows this server by.
	id   raft.ServerID
	raft *raft.Raft
	// running is raft once it runs, for what it calls from its own goroutines.
	running atomic.Pointer[raft.Raft]
	peers   *raftnet.Peers
	// endpoint is the transport as raft sees it.
	endpoint *raftnet.Endpoint
	// writes are held back while the state is replaced or another server takes
	// over.
	writes     gate
	leadership *leadership
	// moved wakes when the leader that raft knows, or this server's lead, changes.
	moved        raftnet.Signal
	transferring transferWatch
	unanswered   unanswered
}

// lifecycle is the beginning and the end of a node.
type lifecycle struct {
	ready     chan struct{}
	readyOnce sync.Once

	// stopping ends when Close begins to stop the node's own goroutines, aborting
	// when it can wait no longer for the answers of peers.
	stopping, aborting context.Context
	// leaving says that the process was told to stop (Leave).
	leaving     atomic.Bool
	stop, abort context.CancelFunc
	// background and upkeep are the node's own goroutines, requests the calls in
	// progress. Upkeep makes requests of its own, so it ends first. Answers are
	// waited for from raft, which gives them at its end at the latest.
	background, upkeep, requests, answers sync.WaitGroup
	upkeeping                             context.Context
	stopUpkeep                            context.CancelFunc
	// mu orders the beginning of requests and Close; it guards closed.
	mu     sync.RWMutex
	closed bool

	fatalOnce sync.Once
	// raftEnd is the end of raft, once it was asked for.
	raftOnce sync.Once
	raftEnd  raft.Future
}

// learned is what a server learns from the entries of its log.
type learned struct {
	roster roster
	// formatInUse is the newest format of the entries that this server has applied
	// or had in its log when it started.
	formatInUse atomic.Uint32
	// newerLog is the first entry that the log had at the start and this release
	// cannot apply; nil for none.
	newerLog error
}
