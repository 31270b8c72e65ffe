package global

import (
	"context"
	"slices"
	"time"
)

// meetEvery is how often a server that has heard of no other tries to.
const meetEvery = 2 * time.Second

// raftAddresses are where some server of this global may be found: those that
// the operator named, those that let this server in, and those that gossip knows
// or remembers. It is called from a goroutine of the node.
func (g *global) raftAddresses() []string {
	var all []string
	add := func(addr string) {
		if addr != "" && !slices.Contains(all, addr) {
			all = append(all, addr)
		}
	}
	for _, addr := range g.cfg.Join {
		add(addr)
	}
	if g.joined != nil {
		for _, p := range g.joined.Peers {
			add(p.Raft)
		}
	}
	if gossip := g.gossip.Load(); gossip != nil {
		for _, p := range gossip.Peers() {
			add(p.Raft)
		}
	}
	return all
}

// gossipAddresses are where gossip of this global may be heard for the first
// time; after that it remembers by itself.
func (g *global) gossipAddresses() []string {
	all := slices.Clone(g.cfg.Join)
	if g.joined != nil {
		for _, p := range g.joined.Peers {
			if p.Gossip != "" {
				all = append(all, p.Gossip)
			}
		}
	}
	return all
}

// meet gets in touch with gossip until somebody was heard, or ctx ends.
func (g *global) meet(ctx context.Context) error {
	addrs := g.gossipAddresses()
	if len(addrs) == 0 {
		return nil
	}
	gossip := g.gossip.Load()
	again := time.NewTicker(meetEvery)
	defer again.Stop()
	for len(gossip.Peers()) == 0 {
		if _, err := gossip.Join(ctx, addrs); err != nil && ctx.Err() == nil {
			g.log.Debug("nobody answers gossip yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
	return nil
}
