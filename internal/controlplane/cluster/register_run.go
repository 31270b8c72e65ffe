package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/store"
)

const (
	// registerInterval is how often the leader looks whether the register is complete,
	// and has the certificates of the others verified anew.
	registerInterval = time.Minute
	// gossipPause is how often it asks whether the others have followed while the gossip
	// key is replaced, and gossipPatience how long those that do not answer are waited
	// for: they follow the log when they are back.
	gossipPause    = time.Second
	gossipPatience = time.Minute
)

// keepRegister completes the register whenever this server leads, until ctx ends: with
// removals and certificates that it knows of, and with the next step of a replacement of
// the gossip key.
func (c *Server) keepRegister(ctx context.Context) error {
	met := time.Time{}
	for {
		if c.Node.IsLeader() {
			if c.cfg.CAFile != "" && c.Now().Sub(met) >= registerInterval {
				c.Node.Meet(ctx)
				met = c.Now()
			}
			if err := c.KeepHistory(ctx); err != nil && ctx.Err() == nil {
				c.Log.Debug("the contents of old revisions are not kept yet", "error", err)
			}
			if err := c.completeRegister(ctx); err != nil && ctx.Err() == nil {
				c.Log.Debug("what is known of the servers is not registered yet", "error", err)
			}
		}
		pause := registerInterval
		if reg := c.servers.current(); c.Node.IsLeader() && (reg.Gossip != nil && reg.Gossip.Phase != gossipDone || reg.replacesGossip(c.memberIDs())) {
			pause = gossipPause
		}
		changed, stop := context.WithTimeout(ctx, pause)
		select {
		case <-c.membersChanged:
		case <-changed.Done():
		}
		stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// completeRegister writes what the register lacks.
func (c *Server) completeRegister(ctx context.Context) error {
	followed := c.gossipFollowed(ctx)
	var current []byte
	if c.cfg.GossipKeyFile == "" {
		keys, err := gossipKeys(c.cfg, c.Encryption)
		if err != nil {
			return err
		}
		current = keys[0]
	}
	return c.servers.change(ctx, func(r *register) {
		for _, server := range c.Node.Gone() {
			r.gone(server)
		}
		if current != nil {
			r.followGossip(c.memberIDs(), current, followed)
		}
	})
}

// followGossip takes the replacement of the gossip key one step further, where followed
// identifies the keys that every server has, "" for none: the register may have changed
// since the others were asked.
func (r *register) followGossip(members []string, current []byte, followed string) {
	r.nextGossip(members, current, followed != "" && r.gossipKeys() == followed)
}

// gossipKeys identifies the gossip keys of the register, "" where they are not being
// replaced or cannot be read.
func (r register) gossipKeys() string {
	if r.Gossip == nil || r.Gossip.Phase == gossipDone {
		return ""
	}
	keys, err := r.Gossip.keys()
	if err != nil {
		return ""
	}
	return gossipDigest(keys)
}

// gossipFollowed identifies the gossip keys of the register if every server has them,
// and is "" otherwise. Servers that have not answered for a while are not waited for.
func (c *Server) gossipFollowed(ctx context.Context) string {
	want := c.servers.current().gossipKeys()
	if want == "" {
		c.gossipStep = ""
		return ""
	}
	now := c.Now()
	if c.gossipStep != want {
		c.gossipStep, c.gossipSince = want, now
	}
	late := now.Sub(c.gossipSince) >= gossipPatience
	missing := lackGossipKeys(c.Node.Members(ctx), c.gossipStep, late)
	if late && len(missing) > 0 && !slices.Equal(missing, c.gossipMissing) {
		c.Log.Warn("the gossip key is being replaced, and some servers have not followed: upgrade those of an older release", "servers", missing)
	}
	c.gossipMissing = missing
	if len(missing) > 0 {
		return ""
	}
	return c.gossipStep
}

// lackGossipKeys returns the names of the members that are waited for: they do not have
// the keys of a step. Those that do not answer are waited for until it is late; a server
// of an older release, which answers and does not follow, until it is upgraded.
func lackGossipKeys(members []consensus.Member, step string, late bool) (missing []string) {
	for _, m := range members {
		if m.GossipKeys != step && !(late && m.State == consensus.StateUnreachable) {
			missing = append(missing, m.Name)
		}
	}
	return missing
}

// gossipDigest identifies keys of gossip and the one that is used for what is sent.
func gossipDigest(keys [][]byte) string {
	if len(keys) == 0 {
		return ""
	}
	sorted := slices.Clone(keys)
	slices.SortFunc(sorted, bytes.Compare)
	hash := sha256.New()
	_, _ = hash.Write(keys[0]) // never fails
	for _, key := range sorted {
		_, _ = hash.Write(key)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

// gossipKeysInUse identifies the keys of gossip that this server has, where they are
// replaced by the register.
func (c *Server) gossipKeysInUse() string {
	if c.cfg.GossipKeyFile != "" {
		return ""
	}
	if digest := c.gossipUsed.Load(); digest != nil {
		return *digest
	}
	return ""
}

// followRegister takes over from the register, until ctx ends, which servers were removed
// and the keys of gossip. What fails is tried again.
func (c *Server) followRegister(ctx context.Context) error {
	for told := ""; ctx.Err() == nil; {
		view, now := c.Store.View(), ""
		if err := c.applyRegister(view); err != nil {
			now = err.Error()
			if now != told {
				c.Log.Error("this server does not follow what is registered of the servers", "error", err)
			}
		}
		told = now
		c.awaitSecrets(ctx, view, told != "")
	}
	return nil
}

// applyRegister makes what a view says of the servers that which this server uses.
func (c *Server) applyRegister(view *store.View) error {
	reg, stored, err := c.servers.in(view)
	if err != nil {
		return err
	}
	if stored != nil {
		c.Node.Recheck()
	}
	if reg.Gossip == nil || c.cfg.GossipKeyFile != "" {
		if last := len(reg.Removed) - 1; last >= 0 && c.cfg.GossipKeyFile != "" && c.warnedFor != reg.Removed[last] {
			c.warnedFor = reg.Removed[last]
			c.Log.Warn("a server was removed that knows the gossip key of --gossip-key-file: replace the key", "server", c.warnedFor)
		}
		return nil
	}
	keys, err := reg.Gossip.keys()
	if err != nil {
		return err
	}
	return c.useGossipKeys(keys)
}

// useGossipKeys stores keys and has gossip use them.
func (c *Server) useGossipKeys(keys [][]byte) error {
	have, err := readGossipKeys(filepath.Join(c.cfg.DataDir, gossipKeyFile), c.Encryption)
	if err != nil || !slices.EqualFunc(have, keys, bytes.Equal) {
		if err := writeGossipKeys(c.cfg.DataDir, c.Encryption, keys); err != nil {
			return err
		}
	}
	digest := gossipDigest(keys)
	if used := c.gossipUsed.Load(); used != nil && *used == digest {
		return nil
	}
	if err := c.gossip.Load().SetKeys(keys); err != nil {
		return err
	}
	c.gossipUsed.Store(&digest)
	c.Log.Info("the gossip key is being replaced, on account of a removed server", "keys", len(keys))
	return nil
}

// isGossipMember decides whether a server may take part in gossip: it is a member, on
// the disk that it names. A server that is no member yet accepts all: the others decide.
func (c *Server) isGossipMember(name, server string) bool {
	members := c.Node.Servers()
	self := c.serverID()
	if !slices.ContainsFunc(members, func(m consensus.Server) bool { return m.ID == self }) {
		return true
	}
	return slices.ContainsFunc(members, func(m consensus.Server) bool { return m.Name == name && (server == "" || m.ID == server) })
}

// notifyMembers has the register completed, and gossip look again at who takes part.
func (c *Server) notifyMembers() {
	select {
	case c.membersChanged <- struct{}{}:
	default: // it has been told and has not looked yet
	}
	select {
	case c.gossipChanged <- struct{}{}:
	default:
	}
}

// followMembers has gossip look again at who takes part whenever members change, until
// ctx ends.
func (c *Server) followMembers(ctx context.Context) error {
	for {
		c.gossip.Load().Recheck(ctx) // at first, those that are remembered
		select {
		case <-ctx.Done():
			return nil
		case <-c.gossipChanged:
		}
	}
}
