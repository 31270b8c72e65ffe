package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"meridian/internal/atomicfile"
)

// maxRememberedPeers bounds the file of peers: names that were used once and
// never again would pile up in it.
const maxRememberedPeers = 64

// peersFile is what a server remembers of the others. It holds hints only: a
// damaged or missing file costs nothing but the time to be found.
type peersFile struct {
	FormatVersion int    `json:"formatVersion"`
	Peers         []Peer `json:"peers"`
}

// ReadPeers returns the servers that gossip remembered in a file, none when
// there is no such file.
func ReadPeers(path string) ([]Peer, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remembered peers: %w", err)
	}
	var file peersFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("remembered peers: %s: %w", path, err)
	}
	return file.Peers, nil
}

// remembered reads the peers of the last run.
func (g *Gossip) remembered() map[string]Peer {
	peers := map[string]Peer{}
	if g.cfg.PeersFile == "" {
		return peers
	}
	list, err := ReadPeers(g.cfg.PeersFile)
	if err != nil {
		g.cfg.Logger.Warn("the remembered peers cannot be read; they will be found anew", "error", err)
	}
	for _, p := range list {
		if p.Name != "" && p.Name != g.self.Name {
			peers[p.Name] = p
		}
	}
	return peers
}

// save writes the peers for the next start.
func (g *Gossip) save() {
	if g.cfg.PeersFile == "" {
		return
	}
	peers := g.Peers()
	if len(peers) > maxRememberedPeers { // those seen in this run first
		slices.SortStableFunc(peers, func(a, b Peer) int { return b.Since.Compare(a.Since) })
		peers = peers[:maxRememberedPeers]
		slices.SortFunc(peers, byName)
	}
	data, err := json.MarshalIndent(peersFile{FormatVersion: 1, Peers: peers}, "", "  ")
	if err == nil {
		err = atomicfile.Write(g.cfg.PeersFile, append(data, '\n'), 0o600)
	}
	if err != nil {
		g.cfg.Logger.Warn("the known peers could not be saved; a restart may take longer to find them", "error", err)
	}
}

// keep saves and reports what changes, and looks for peers that are out of
// sight, until ctx ends.
func (g *Gossip) keep(ctx context.Context) {
	every := g.cfg.rejoin
	if every == 0 {
		every = rejoinEvery
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	g.rejoin(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
			g.save()
			g.report()
		case <-ticker.C:
			g.rejoin(ctx)
		}
	}
}

// rejoin tries to reach every peer that is not considered alive.
func (g *Gossip) rejoin(ctx context.Context) {
	var missing []string
	for _, p := range g.Peers() {
		if p.State != Alive && p.Gossip != "" {
			missing = append(missing, p.Gossip)
		}
	}
	if _, err := g.Join(ctx, missing); err != nil {
		g.cfg.Logger.Debug("gossip", "message", err.Error())
	}
}

// report tells the listener what changed.
func (g *Gossip) report() {
	g.mu.Lock()
	news := g.news
	g.news = nil
	g.mu.Unlock()
	if g.cfg.Changed == nil {
		return
	}
	for _, p := range news {
		g.cfg.Changed(p)
	}
}

// observe notes what memberlist says about a server.
func (g *Gossip) observe(n *memberlist.Node, state State) {
	said, ok := decode(n)
	if g.cfg.Member != nil && !g.cfg.Member(n.Name, said.Server) {
		return // it was one when it was heard first
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if n.Name == g.self.Name {
		return
	}
	delete(g.refused, n.Name)
	p := Peer{Name: n.Name, State: state, Gossip: n.Address()}
	if ok {
		p.Server, p.GRPC, p.Raft, p.Cluster, p.Version = said.Server, said.GRPC, said.Raft, said.Cluster, said.Version
	}
	before := g.peers[n.Name]
	if p.Since = before.Since; before.State != state {
		p.Since = g.cfg.Clock()
	}
	g.peers[n.Name] = p
	g.news = append(g.news, p)
	g.changedLocked()
}

func (g *Gossip) changedLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
	select {
	case g.wake <- struct{}{}:
	default: // it has not looked yet
	}
}

// decode reads what a server says about itself.
func decode(n *memberlist.Node) (announcement, bool) {
	var said announcement
	err := json.Unmarshal(n.Meta, &said)
	return said, err == nil
}

// foreign returns an error if a server says that it belongs to another cluster
// than this one. Two clusters that were given the same key must not mix: their
// servers may have the same names.
func (g *Gossip) foreign(n *memberlist.Node) error {
	said, ok := decode(n)
	g.mu.Lock()
	own := g.self.Cluster
	g.mu.Unlock()
	if ok && said.Cluster != "" && own != "" && said.Cluster != own {
		return fmt.Errorf("%s at %s is a server of another cluster that has the same gossip key", n.Name, n.Address())
	}
	return nil
}

// maxRefused bounds the servers that are remembered as refused.
const maxRefused = 64

// unknown returns an error if a server may not take part.
func (g *Gossip) unknown(n *memberlist.Node) error {
	said, _ := decode(n)
	if g.cfg.Member == nil || n.Name == g.cfg.Self.Name || g.cfg.Member(n.Name, said.Server) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.refused[n.Name]; known || len(g.refused) < maxRefused {
		if g.refused == nil {
			g.refused = map[string]string{}
		}
		g.refused[n.Name] = n.Address()
	}
	return fmt.Errorf("%s at %s is not a member of this cluster", n.Name, n.Address())
}

// gossipHooks is what memberlist calls. It holds memberlist's locks meanwhile,
// so nothing here may call it back.
type gossipHooks struct{ g *Gossip }

var (
	_ memberlist.Delegate         = gossipHooks{}
	_ memberlist.EventDelegate    = gossipHooks{}
	_ memberlist.ConflictDelegate = gossipHooks{}
	_ memberlist.MergeDelegate    = gossipHooks{}
	_ memberlist.AliveDelegate    = gossipHooks{}
)

// NodeMeta says what this server announces.
func (h gossipHooks) NodeMeta(int) []byte {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	return h.g.meta
}

// NotifyJoin, NotifyUpdate and NotifyLeave are about servers that appear, say
// something new, or are lost.
func (h gossipHooks) NotifyJoin(n *memberlist.Node) { h.g.observe(n, Alive) }

// NotifyUpdate implements memberlist.EventDelegate.
func (h gossipHooks) NotifyUpdate(n *memberlist.Node) { h.g.observe(n, Alive) }

// NotifyLeave implements memberlist.EventDelegate.
func (h gossipHooks) NotifyLeave(n *memberlist.Node) { h.g.observe(n, Dead) }

// NotifyConflict says that a name was announced from two addresses. After a move that
// ends by itself, once the old place is known to be silent.
func (h gossipHooks) NotifyConflict(existing, other *memberlist.Node) {
	if existing.Address() == other.Address() {
		return
	}
	h.g.cfg.Logger.Info("a server announces itself under a name that is in use elsewhere: it has moved, or two servers have one name",
		"name", existing.Name, "gossip", existing.Address(), "other_gossip", other.Address())
}

// NotifyMerge refuses an exchange with servers of another cluster.
func (h gossipHooks) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		if err := h.g.foreign(n); err != nil {
			return err
		}
	}
	return nil
}

// NotifyAlive refuses a single server of another cluster, and one that is no member.
func (h gossipHooks) NotifyAlive(n *memberlist.Node) error {
	if err := h.g.foreign(n); err != nil {
		return err
	}
	return h.g.unknown(n)
}

// The rest of memberlist.Delegate is about messages and state of our own, which
// are not sent this way.

// NotifyMsg implements memberlist.Delegate.
func (gossipHooks) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (gossipHooks) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (gossipHooks) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (gossipHooks) MergeRemoteState([]byte, bool) {}
