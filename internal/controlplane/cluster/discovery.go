package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/dial"
	"meridian/internal/pki"
)

// discoveryInterval is how often a server without contact to others tries to reach them.
const discoveryInterval = 2 * time.Second

// knownAddresses is what a server has been told about where the others are. It is safe
// for concurrent use.
type knownAddresses struct {
	mu   sync.Mutex
	raft []string // guarded by mu
}

func (m *knownAddresses) learn(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.raft, addr) {
		m.raft = append(m.raft, addr)
	}
}

func (m *knownAddresses) learned() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.raft)
}

// raftAddresses are where some server of this cluster may be found: those that
// the operator named, those that let this server in, and those that gossip knows
// or remembers. It is called from a goroutine of the node.
func (c *Server) raftAddresses() []string {
	all := slices.Concat(c.cfg.Join, c.known.learned())
	if c.joinState != nil {
		for _, p := range c.joinState.Peers {
			all = append(all, p.Raft)
		}
	}
	if gossip := c.gossip.Load(); gossip != nil {
		for _, p := range gossip.Peers() {
			all = append(all, p.Raft)
		}
	}
	return distinct(all)
}

// gossipAddresses are where gossip of this cluster may be heard for the first
// time; after that it remembers by itself.
func (c *Server) gossipAddresses(ctx context.Context) []string {
	all := slices.Clone(c.cfg.Join)
	if c.joinState != nil {
		for _, p := range c.joinState.Peers {
			all = append(all, p.Gossip)
		}
	}
	for _, m := range c.Node.Members(ctx) {
		if m.Name != c.cfg.Name {
			all = append(all, m.Gossip)
		}
	}
	return distinct(all)
}

// distinct returns the addresses that are known, each once.
func distinct(addrs []string) []string {
	var out []string
	for _, addr := range addrs {
		if addr != "" && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// discover contacts the others until gossip has reached one, or ctx ends.
// An address that the operator named may be any of a server's: the node tries it
// as one of raft; here it is tried as one of gossip, and of the API.
func (c *Server) discover(ctx context.Context) error {
	gossip := c.gossip.Load()
	again := time.NewTicker(discoveryInterval)
	defer again.Stop()
	for len(gossip.Peers()) == 0 {
		if addrs := c.gossipAddresses(ctx); len(addrs) > 0 {
			if _, err := gossip.Join(ctx, addrs); err != nil && ctx.Err() == nil {
				c.Log.Debug("no server answers gossip yet", "error", err)
				c.learnMembers(ctx)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
	return nil
}

// learnMembers learns raft addresses from servers whose API was named.
func (c *Server) learnMembers(ctx context.Context) {
	for _, addr := range c.cfg.Join {
		members, err := c.membersAt(ctx, addr)
		if err != nil {
			c.Log.Debug("no server's API answers there", "address", addr, "error", err)
			continue
		}
		for _, m := range members {
			c.known.learn(m.GetRaft())
		}
	}
}

// membersAt asks a server of this cluster, which has to prove that it is one, for
// the servers that it knows. Every caller may.
func (c *Server) membersAt(ctx context.Context, addr string) ([]*meridianv1.ClusterMember, error) {
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{CAPEM: c.PKI.CAPEM(), Source: c.cfg.CAFile})
	if err != nil {
		return nil, err
	}
	conn, err := dial.Conn(dial.Config{Transport: transport, UserAgent: c.userAgent(), Log: dial.NewLog()}, addr)
	if err != nil {
		return nil, fmt.Errorf("ask %s for the servers that it knows: %w", addr, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, discoveryInterval)
	defer cancel()
	response, err := meridianv1.NewClusterServiceClient(conn).Members(ctx, &meridianv1.MembersRequest{})
	return response.GetMembers(), err
}
