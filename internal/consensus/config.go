package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"meridian/internal/atrest"
	"meridian/internal/gossip"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// Role is what a data directory is used for. It is written into the directory
// on first use and cannot be changed after that.
type Role string

// The roles of a node.
const (
	// RoleGlobal is a server of a global control plane.
	RoleGlobal Role = "global"
	// RoleZone is the store of what a zone itself owns.
	RoleZone Role = "zone"
)

// Config is how a node runs. DefaultConfig fills everything but what has no
// default: NodeID, Role and, where there is a network, Transport.Addr and TLS.
type Config struct {
	// DataDir holds everything the node keeps. It is made if missing. Not used
	// with a Storage.
	DataDir string
	// Storage is where the node keeps everything instead of in files below
	// DataDir, unless it is nil. It outlives the node: the next one opens it again.
	Storage raftlog.Storage
	// Encryption are the keys of what is on disk and of backups; nil encrypts
	// nothing. Each server has its own: what servers send each other is protected by
	// TLS.
	Encryption *atrest.Keys
	// NodeID names the server within its cluster, for as long as the data
	// directory lives.
	NodeID string
	// Role must agree with the data directory's.
	Role Role
	// ClusterID, unless empty, must agree with the data directory's; in an empty
	// directory it names the new cluster. Empty: take the directory's, or a
	// random one when it is empty.
	ClusterID string

	// Transport says how peers reach this node.
	Transport raftnet.Config
	// Network is used in place of Transport, unless nil.
	Network raftnet.Network
	// PeerServices, unless nil, registers services that other servers of this
	// cluster call through Node.PeerConn, before the first call arrives.
	PeerServices func(grpc.ServiceRegistrar)
	// Addresses, unless nil, are where this server serves beside raft. Peers are
	// told.
	Addresses func() Addresses
	// Peers, unless nil, is what gossip reports about the other servers. It is a
	// second opinion on which are dead, and has addresses of those that do not
	// answer.
	Peers func() []gossip.Peer
	// GossipKeys, unless nil, identifies the keys of gossip that this server has.
	// Members are told.
	GossipKeys func() string
	// Autopilot is how a leader looks after its members.
	Autopilot Autopilot
	// Join is how the node finds a cluster that exists.
	Join JoinConfig
	// Timing is when leadership is given up and won.
	Timing Timing
	// Snapshots says when the log is cut.
	Snapshots Snapshots

	// Zone is the zone whose state the node keeps; empty for a global. A backup is restored
	// into what it is of.
	Zone string

	// Fresh, unless nil, says whether a state holds nothing but what a first start
	// writes. Such a cluster takes over the identity of a backup that is restored
	// into it.
	Fresh func(*store.View) bool

	// KeepTrust, unless nil, returns the resources of a backup with what the running
	// state trusts, and counts what it took from the running state. It is called when
	// a backup of this cluster is restored into it.
	KeepTrust func(running *store.View, saved []*resource.Resource) ([]*resource.Resource, KeptTrust)
	// KeepOwn, unless nil, returns the resources of a backup with those of the running
	// state that are about the servers' own files, which no restore changes. It is
	// called for every backup.
	KeepOwn func(running *store.View, saved []*resource.Resource) []*resource.Resource

	// Register, unless nil, keeps in the state what all servers must know about each
	// other, beyond the members of the moment.
	Register Register

	// LogFormat is the newest format of log entries that the node applies and
	// proposes, store.NewestFormat when 0. A lower one makes it a node of an older
	// release, for tests of upgrades.
	LogFormat uint32

	// ApplyTimeout bounds Propose where its context does not.
	ApplyTimeout time.Duration
	// WritesAtOnce is how many batches are being written before others wait for them, and
	// then share one log entry, or one call to the leader. Nothing waits in order to share.
	// Where writes are quick there are fewer (see pace).
	WritesAtOnce int
	// LeaderTimeout is how long a request waits while there is no leader at all: a
	// caller who learns so can tell what is wrong, and try again. 0: ApplyTimeout.
	LeaderTimeout time.Duration
	// StallLimit is how long one write to the log may take before Events.Stalled
	// is called.
	StallLimit time.Duration

	// Logger gets raft's warnings and errors, and its progress at debug level.
	Logger *slog.Logger
	// Clock gives the time of a proposal that carries none (§1.1).
	Clock func() time.Time
	// Events are told what happens to the node.
	Events Events
}

// Register is what a cluster knows of its servers beside who is a member now.
// Servers are given as raft knows them, with the mark of their disk.
type Register interface {
	// Removed reports whether a server was to be removed at some time. It counts
	// while the server is no member.
	Removed(server string) bool
	// Removing records that a server is about to be removed. successor is the server
	// that takes its place in the same step, on another disk; empty where none does.
	// Called on the leader.
	Removing(ctx context.Context, server, successor string) error
	// Holders returns the servers that a key of a certificate was recorded for.
	Holders(key string) []string
	// Record records the key of the certificate of a server that is about to be a
	// member, where the certificate does not name it. Called on the leader.
	Record(ctx context.Context, server, key string) error
}

// KeptTrust counts what a restored state has from the state before it instead of
// the backup: revocations, signing keys, records of tokens, and keys of the backup
// that stay deleted.
type KeptTrust struct{ Revocations, Keys, Tokens, DeletedKeys int }

// Addresses are where a server serves, beside its raft address, as host:port.
// Empty: unknown, or not at all.
type Addresses struct {
	GRPC, Gossip string
}

// JoinConfig is how a node finds the other servers of its cluster.
type JoinConfig struct {
	// Fresh makes a new data directory join a cluster that exists. It does not
	// begin one of its own, however long that takes; nor does it after a restart
	// without Fresh, until it was a member once. A directory in use is what it
	// is.
	Fresh bool
	// Disk is what tells the new data directory from others (raftlog.NewDisk), drawn
	// when empty.
	Disk string
	// Addrs, unless nil, are raft addresses at which some server of the cluster
	// may be found, in addition to those of the members the node knows. It is
	// called whenever no leader is known, from one goroutine.
	Addrs func() []string
}

// Timing is raft's.
type Timing struct {
	// Heartbeat is how long a follower waits for a leader before it stands for
	// election, and how long an election lasts. A cluster of one does not wait.
	Heartbeat time.Duration
	// Lease is how long a leader continues without an answer of a majority. At
	// most Heartbeat.
	Lease time.Duration
	// Commit is, within a factor of two, how late a follower may learn that an
	// entry was committed when nothing else is written. Its zones wait for it; a
	// leader says something to every follower that often.
	Commit time.Duration
}

// Snapshots says when the log is cut. Entries are never removed that a kept
// snapshot would need to be completed with, whatever TrailingLogs says.
type Snapshots struct {
	// Threshold is the number of entries after which a snapshot is taken.
	Threshold uint64
	// Bytes is the size of the entries after which a snapshot is taken, or the size
	// of the last one if that is larger: a start applies what follows on the
	// newest snapshot. 0: no bound.
	Bytes uint64
	// Interval is how often, within a factor of two, Threshold is checked, and how
	// long another attempt waits after one that failed.
	Interval time.Duration
	// TrailingLogs is the number of entries kept before the end of the log, from
	// which slow followers catch up. At least one: then only raft's main loop
	// changes the end of the log.
	TrailingLogs uint64
	// TrailingBytes bounds the size of those entries. 0: no bound.
	TrailingBytes uint64
	// Retain is the number of snapshots kept.
	Retain int
}

// Events are callbacks. Each may be nil. They must return promptly and must not
// call the node.
type Events struct {
	// LeaderChanged says that this server started (having applied everything
	// before) or stopped leading.
	LeaderChanged func(leading bool)
	// Stalled says that a write to the log has been running for longer than
	// StallLimit: the disk hangs. Raft itself never gives up leadership over
	// that, because heartbeats do not touch the disk, so a server of several
	// should end its process. Called once per stalled write, on a
	// goroutine of its own that the write waits for.
	Stalled func(file string, since time.Duration)
	// Applied tells of every batch that carries a note (store.Txn.Note), whichever
	// server proposed it, once it was applied here: in the order of the log, and
	// after a restart again of those that the newest snapshot does not hold. Called
	// on the goroutine that applies, which waits for it.
	Applied func(note []byte, result store.Result)
	// Snapshotting says that everything up to a revision is about to be kept as a
	// snapshot, after which Applied does not tell of it again. The snapshot waits
	// for it.
	Snapshotting func(resource.Revision)
	// Members says that a change of membership was committed.
	Members func()
	// Fatal reports that the node cannot continue safely and why: the process must end
	// at once, without waiting for anything. Called once at most, on a goroutine
	// of its own. ErrRemoved and ErrCorrupt are among the reasons.
	Fatal func(error)
}

// DefaultConfig returns the settings of a node that keeps its data in dir.
func DefaultConfig(dir string) Config {
	return Config{
		DataDir: dir,
		Timing:  Timing{Heartbeat: 500 * time.Millisecond, Lease: 250 * time.Millisecond, Commit: 10 * time.Millisecond},
		Snapshots: Snapshots{
			Threshold: 16 << 10, Bytes: 64 << 20, Interval: 15 * time.Second,
			TrailingLogs: 64 << 10, TrailingBytes: 128 << 20, Retain: 3,
		},
		ApplyTimeout: 10 * time.Second,
		WritesAtOnce: 8,
		StallLimit:   5 * time.Second,
		Autopilot:    DefaultAutopilot(),
		Logger:       slog.New(slog.DiscardHandler),
		Clock:        time.Now,
	}
}

// Validate reports everything that is missing or impossible.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.DataDir != "" || c.Storage != nil, "a data directory is required")
	check(c.NodeID != "", "a node id is required")
	check(!strings.Contains(c.NodeID, raftlog.DiskMark), "node id %q contains %q", c.NodeID, raftlog.DiskMark)
	check(c.Role == RoleGlobal || c.Role == RoleZone, "role %q is neither %q nor %q", c.Role, RoleGlobal, RoleZone)
	check(c.ApplyTimeout > 0, "apply timeout %s must be positive", c.ApplyTimeout)
	check(c.WritesAtOnce > 0, "%d writes at once: one at least", c.WritesAtOnce)
	check(c.StallLimit > 0, "stall limit %s must be positive", c.StallLimit)
	check(c.Snapshots.Retain > 0, "at least one snapshot must be retained")
	check(c.Snapshots.Threshold > 0, "snapshot threshold must be positive")
	check(c.Snapshots.TrailingLogs > 0, "at least one entry must stay in the log")
	check(c.Logger != nil, "a logger is required")
	check(c.Clock != nil, "a clock is required")
	if c.NodeID != "" {
		if err := raft.ValidateConfig(c.raftConfig(raft.ServerID(c.NodeID), nil)); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.Transport.Validate(), c.Autopilot.validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configuration of the node: %w", err)
	}
	return nil
}

// raftConfig is raft's configuration. BatchApplyCh stays off: it buffers
// proposals that a shutdown would leave without an answer, and gains nothing,
// since the leader takes all waiting proposals into one write anyway.
func (c Config) raftConfig(id raft.ServerID, notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = id
	rc.HeartbeatTimeout = c.Timing.Heartbeat
	rc.ElectionTimeout = c.Timing.Heartbeat
	rc.LeaderLeaseTimeout = c.Timing.Lease
	rc.SnapshotThreshold = math.MaxUint64 // the keeper decides: raft counts from zero when the log is empty
	rc.TrailingLogs = c.Snapshots.TrailingLogs
	rc.MaxAppendEntries = maxAppendEntries
	rc.NotifyCh = notify
	rc.CommitTimeout = c.Timing.Commit
	rc.NoLegacyTelemetry = true
	rc.Logger = raftnet.NewLogger(c.Logger)
	return rc
}

// maxAppendEntries bounds how many entries one write to the log and one message
// to a follower hold.
const maxAppendEntries = 64

// logFormat is the newest format of log entries that the node applies.
func (c Config) logFormat() uint32 {
	if c.LogFormat != 0 {
		return c.LogFormat
	}
	return store.NewestFormat
}

// storage is where the node keeps everything.
func (c Config) storage() raftlog.Storage {
	storage := c.Storage
	if storage == nil {
		storage = raftlog.Files(c.DataDir)
	}
	return raftlog.Encrypted(storage, c.Encryption)
}

// owner is whose data directory it must be.
func (c Config) owner() raftlog.Owner {
	return raftlog.Owner{Role: string(c.Role), ClusterID: c.ClusterID, NodeID: c.NodeID, Joining: c.Join.Fresh, Disk: c.Join.Disk}
}
