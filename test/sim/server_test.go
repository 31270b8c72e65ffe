package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/consensus"
	"meridian/internal/raftlog"
	"meridian/internal/raftnet"
	"meridian/internal/resource"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
	"meridian/test/history"
	"meridian/test/simnet"
)

// server is a machine of the global: an address, a disk, and the process that
// runs on it. As under a supervisor, a process that dies is started again.
type server struct {
	w    *world
	name string

	mu   sync.Mutex // guards what follows
	disk *simnet.Disk
	// boot counts the starts; p is the process of the last one, nil until it is
	// open and after it ended.
	boot int
	p    *process
	// wanted says that a process is to run.
	wanted bool
	// ended is why the last process that failed ended.
	ended error
	// damaged says that something on the disk may not be as it was written.
	damaged bool
	// dropped says that the machine was switched off for good; former, that it is no
	// member any more and runs all the same, started again whenever it ends.
	dropped, former bool
	skew            time.Duration
}

// process is one run of a server.
type process struct {
	s    *server
	boot int
	// ctx ends when the process does.
	ctx    context.Context
	cancel context.CancelFunc

	node  *consensus.Node
	store *store.Store
	zones *zonesync.Server
	calls *grpc.Server

	running sync.WaitGroup
}

func newServer(w *world, name string) *server {
	return &server{w: w, name: name, disk: simnet.NewDisk(name)}
}

// process returns the one that runs, or nil.
func (s *server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p
}

// start has a process run from now on.
func (s *server) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted || s.dropped {
		return
	}
	s.wanted = true
	s.bootLocked()
}

func (s *server) bootLocked() {
	s.boot++
	// Here and not when it runs: a process that is ended before it begins must not
	// take the address of the one after it.
	boot, disk, network := s.boot, s.disk, s.w.net.Node(s.name)
	s.w.running.Go(func() { s.run(boot, disk, network) })
}

// run opens a process, unless the server is stopped meanwhile.
func (s *server) run(boot int, disk *simnet.Disk, network raftnet.Network) {
	p := &process{s: s, boot: boot, store: store.New(storeOptions(s.name))}
	p.ctx, p.cancel = context.WithCancel(s.w.ctx)
	node, err := consensus.Open(p.ctx, s.config(p, disk, network), p.store)
	if err != nil {
		p.cancel()
		s.failed(boot, fmt.Errorf("start: %w", err))
		return
	}
	p.node = node
	p.prepare()
	s.mu.Lock()
	if s.boot != boot || !s.wanted {
		s.mu.Unlock()
		p.cancel()
		_ = node.Close()
		return
	}
	s.p = p
	lis := s.w.zoneNet.NodeAt(s.name, target(s.name))
	s.mu.Unlock()
	p.serve(lis)
}

func (s *server) config(p *process, disk *simnet.Disk, network raftnet.Network) consensus.Config {
	cfg := consensus.DefaultConfig("")
	cfg.Storage, cfg.NodeID, cfg.Role = disk.Mount(), s.name, consensus.RoleGlobal
	cfg.Network = network
	cfg.Join = consensus.JoinConfig{Fresh: s.w.begun.Load(), Addrs: s.w.names}
	cfg.Timing, cfg.Autopilot = s.w.plan.timing()
	cfg.ApplyTimeout, cfg.StallLimit = s.w.plan.times(cfg.ApplyTimeout), s.w.plan.times(cfg.StallLimit)
	cfg.WritesAtOnce = 1 // few clients: those that write at the same time share entries
	cfg.Snapshots = consensus.Snapshots{Threshold: 120, Bytes: 1 << 20, Interval: 10 * time.Second, TrailingLogs: 40, TrailingBytes: 1 << 20, Retain: 2}
	cfg.Logger = s.w.logger.With("server", s.name)
	cfg.Clock = func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Now().Add(s.skew)
	}
	cfg.Events = consensus.Events{
		LeaderChanged: func(leading bool) {
			if v := p.store.View(); leading && p.ctx.Err() == nil {
				s.w.rec.Lead(history.Lead{Server: s.name, Epoch: v.Epoch(), Revision: v.Revision()})
			}
		},
		Fatal: func(err error) { s.failed(p.boot, err) },
	}
	return cfg
}

// storeOptions keep little, so that everyone who reads the past also meets its
// end. One server in three has hardly any whole states in memory, so that it reads the
// past from the contents that it keeps.
func storeOptions(server string) store.Options {
	o := store.DefaultOptions()
	o.History.MaxBatches, o.History.SnapshotBytes = 400, 64<<10
	if n, err := strconv.Atoi(strings.TrimPrefix(server, "g")); err == nil && n%3 == 0 {
		o.History.MaxBatches = 20
	}
	return o
}

// prepare makes what others may ask of the process as soon as they know it.
func (p *process) prepare() {
	w := p.s.w
	p.zones = zonesync.NewServer(zonesync.ServerConfig{
		Store: p.store, Synced: zonesync.SyncedKinds, Authorize: w.authorize,
		Reauthorize: func(k resource.Kind) bool { return k == "Zone" },
		Logger:      w.logger.With("server", p.s.name),
		Servers:     w.targets,
	})
	p.calls = grpc.NewServer(grpc.ForceServerCodecV2(zonesync.Codec()), grpc.InTapHandle(zonesync.Tap))
	syncv1.RegisterSyncServiceServer(p.calls, p.zones)
}

// serve begins what a process does beside consensus.
func (p *process) serve(lis raftnet.Network) {
	w := p.s.w
	p.running.Go(func() {
		select {
		case <-p.node.Ready():
		case <-p.ctx.Done():
			return
		}
		if p.s.isFormer() {
			return // zones are told of members only
		}
		p.running.Go(func() { _ = p.calls.Serve(lis.Listener()) })
		if err := p.zones.Run(p.ctx); err != nil {
			w.violate("sync", "%s: %v", p.s.name, err)
		}
	})
	p.running.Go(p.observe)
	p.running.Go(p.keep)
	p.running.Go(p.carryOn)
	p.running.Go(p.vouch)
	w.running.Go(func() { // the process ends when its context does
		<-p.ctx.Done()
		p.calls.Stop()
		_ = p.node.Close()
		_ = lis.Close()
		p.running.Wait()
	})
}

// vouch does as the global does: a server without a leader sends its
// zones elsewhere.
func (p *process) vouch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	alone := 0
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		patience := 5 * p.s.w.plan.slower
		if leader, _ := p.node.Leader(); leader != "" {
			if alone > patience {
				p.zones.Resume()
			}
			alone = 0
			continue
		}
		if alone++; alone == patience+1 {
			p.zones.Suspend("no leader")
		}
	}
}

// observe records every state that the store goes through.
func (p *process) observe() {
	var at *store.Feed
	var epoch store.Epoch
	rng := p.s.w.random(fmt.Sprintf("past %s %d", p.s.name, p.boot))
	for p.ctx.Err() == nil {
		p.recall(rng)
		if at == nil {
			v, err := p.store.ViewAt(p.store.Oldest())
			if err != nil {
				continue // it moved on just now
			}
			epoch = v.Epoch()
			p.s.w.rec.Commit(p.s.name, p.s.w.wholeCommit(v))
			at = p.store.Follow(v)
		}
		batches, err := at.Next(p.ctx)
		if err != nil {
			at = nil
			continue
		}
		for _, b := range batches {
			if b.Epoch != nil {
				epoch = *b.Epoch
			}
			v, err := p.store.ViewAt(b.Revision)
			if err != nil || v.Epoch() != epoch {
				at = nil // the store was rewound, or has run away
				break
			}
			p.s.w.rec.Commit(p.s.name, p.s.w.commitOf(b, v))
		}
	}
}

func (w *world) commitOf(b store.Batch, v *store.View) *history.Commit {
	c := &history.Commit{Epoch: v.Epoch(), Revision: b.Revision, Prev: b.Prev, Changes: changesOf(b.Changes)}
	for _, ch := range b.Changes {
		if ch.After != nil && ch.Key().Kind == resource.KindRollout {
			c.Rollouts = append(c.Rollouts, rolloutState(ch.After))
		}
	}
	for _, ch := range c.Changes {
		if ch.Key.Kind == markerKind && strings.HasPrefix(ch.Key.Name, "client-") {
			c.Requests = append(c.Requests, ch.State.Value)
		}
	}
	if b.Epoch != nil { // what it begins with
		c.Base = w.wholeCommit(v)
	}
	return w.portray(c, v)
}

func (w *world) wholeCommit(v *store.View) *history.Commit {
	c := &history.Commit{Epoch: v.Epoch(), Revision: v.Changed(), Whole: true}
	for r := range v.All() {
		c.Changes = append(c.Changes, history.Change{Key: r.Key(), State: stateOf(r)})
	}
	for r := range v.List(resource.KindRollout, "") {
		c.Rollouts = append(c.Rollouts, rolloutState(r))
	}
	return w.portray(c, v)
}

// portray adds what identifies the state after a commit.
func (w *world) portray(c *history.Commit, v *store.View) *history.Commit {
	c.All = history.ImageOf(v.All(), nil)
	c.Synced = history.ImageOf(v.All(), synced)
	c.Sum = v.DigestOf(synced)
	c.Content = history.ContentOf(v.All(), func(k resource.Kind) bool { return synced(k) && k != resource.KindRollout })
	c.Shown = w.shownOf(v)
	return c
}

func changesOf(in []store.Change) []history.Change {
	out := make([]history.Change, 0, len(in))
	for _, ch := range in {
		out = append(out, history.Change{Key: ch.Key(), State: stateOf(ch.After)})
	}
	return out
}

// failed is a process that failed: it exits, and is started again. A disk
// that is damaged is exchanged for an empty one, as the message asks for.
func (s *server) failed(boot int, err error) {
	s.mu.Lock()
	if s.boot != boot || !s.wanted {
		s.mu.Unlock()
		return
	}
	s.w.rec.Note("%s fails: %v", s.name, err)
	s.ended = err
	s.exitLocked(false)
	if !s.former && (errors.Is(err, raftlog.ErrCorrupt) || errors.Is(err, consensus.ErrRemoved)) {
		s.exchangeLocked()
	}
	again := s.boot
	s.mu.Unlock()
	s.w.running.Go(func() {
		if !s.w.pause(s.w.plan.times(2 * time.Second)) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.boot == again && s.wanted {
			s.bootLocked()
		}
	})
}

// exchangeLocked puts an empty disk in. The server joins anew.
func (s *server) exchangeLocked() {
	s.w.rec.Note("%s gets an empty disk", s.name)
	s.disk, s.damaged = simnet.NewDisk(s.name), false
}

// exitLocked ends the process at once, as a loss of power does.
func (s *server) exitLocked(torn bool) {
	s.boot++
	s.w.net.Stop(s.name)
	s.w.zoneNet.Stop(s.name)
	if torn {
		s.disk.CrashTorn()
	} else {
		s.disk.Crash()
	}
	if s.p != nil {
		s.p.cancel()
		s.p = nil
	}
}

// crash ends the process at once, until start.
func (s *server) crash(torn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = false
	s.exitLocked(torn)
}

// stop ends the process in good order, until start.
func (s *server) stop() {
	s.mu.Lock()
	p := s.p
	s.wanted, s.p = false, nil
	s.mu.Unlock()
	if p == nil {
		s.crash(false)
		return
	}
	_ = p.node.Close()
	p.cancel()
	s.crash(false)
}

func (s *server) isFormer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.former
}

func (s *server) String() string { return s.name }

// up says whether a process runs that is ready.
func (s *server) up() bool {
	p := s.process()
	if p == nil {
		return false
	}
	select {
	case <-p.node.Ready():
		return true
	default:
		return false
	}
}

var discard = slog.New(slog.DiscardHandler)
