package cluster

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"meridian/internal/authn/token"
	"meridian/internal/commit"
	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// register is what the servers of a cluster keep about each other in the state, as the
// GlobalSecret token.ServersKey. No client reads it, and a restore leaves it as it is.
// Servers are given as raft knows them, with the mark of their disk: one that was
// removed comes back as another one.
type register struct {
	FormatVersion int `json:"formatVersion"`
	// Removed are the servers that were removed, in the order in which that was tried
	// last. One that is a member all the same was about to be.
	Removed []string `json:"removed,omitempty"`
	// Servers are those whose certificates do not name them, with the keys that they
	// were seen with, the oldest first.
	Servers []registeredServer `json:"servers,omitempty"`
	// Gossip are the keys of gossip, once they were replaced for the first time.
	Gossip *registeredGossip `json:"gossip,omitempty"`
	// Authorities are the generated certificate authorities that were made last, the
	// newest at the end. One that is not among them is known to every removed server.
	Authorities []registeredAuthority `json:"authorities,omitempty"`
}

type registeredServer struct {
	Server string   `json:"server"`
	Keys   []string `json:"keys"`
}

// registeredGossip are the keys of gossip in base64. The first is used for what is
// sent, every one for what is received.
type registeredGossip struct {
	Keys  []string    `json:"keys"`
	Phase gossipPhase `json:"phase,omitempty"`
	// For is the removed server on whose account they were replaced last. Those that
	// were members then come after it in the order of removals.
	For string `json:"for"`
}

// registeredAuthority says which removed servers have no key of an authority.
type registeredAuthority struct {
	// Digest identifies the authority (pki.Digest).
	Digest string `json:"digest"`
	// After is the last server that had been removed when its key was made. Those that
	// come after it in the order of removals were members then, or later.
	After string `json:"after"`
}

// gossipPhase is how far the replacement of the gossip key has come.
type gossipPhase string

const (
	// gossipAdd: the new key is the second one, until every server has it.
	gossipAdd gossipPhase = "add"
	// gossipUse: the new key is the first one, until every server sends with it.
	gossipUse gossipPhase = "use"
	// gossipDone: the new key is the only one.
	gossipDone gossipPhase = ""
)

const (
	registerFormat = 1
	// maxRemoved bounds the removed servers that are remembered, and maxServerKeys the
	// keys of one server. maxPending bounds those whose keys are known and that are
	// neither members nor removed: they asked to join.
	maxRemoved, maxServerKeys, maxPending = 1000, 16, 16
	// maxAuthorities is how many authorities are remembered: the one that signs, and the
	// one that is to replace it.
	maxAuthorities = 2
)

// decodeRegister reads a register from the resource that holds it.
func decodeRegister(r *resource.Resource) (register, error) {
	secret, ok := r.Spec().(*resource.Secret)
	if !ok {
		return register{}, fmt.Errorf("%s is not a secret", r.Key())
	}
	var reg register
	if err := json.Unmarshal(secret.Bytes(), &reg); err != nil {
		return register{}, fmt.Errorf("%s cannot be read: %w", r.Key(), err)
	}
	if reg.FormatVersion != registerFormat {
		return register{}, fmt.Errorf("%s has format %d, this release reads %d", r.Key(), reg.FormatVersion, registerFormat)
	}
	return reg, nil
}

// batch stores the register in place of what is there.
func (r register) batch(stored *resource.Resource, now time.Time) (commit.Batch, error) {
	r.FormatVersion = registerFormat
	data, err := json.Marshal(r)
	if err != nil {
		return commit.Batch{}, fmt.Errorf("encode %s: %w", token.ServersKey, err)
	}
	spec, err := json.Marshal(resource.Secret{Data: base64.StdEncoding.EncodeToString(data)})
	if err != nil {
		return commit.Batch{}, fmt.Errorf("encode %s: %w", token.ServersKey, err)
	}
	secret, _, err := resource.Build(resource.Meta{Key: token.ServersKey}, spec)
	if err != nil {
		return commit.Batch{}, fmt.Errorf("build %s: %w", token.ServersKey, err)
	}
	precondition := store.Precondition{Key: token.ServersKey}
	if stored != nil {
		precondition.Version, precondition.Revision = stored.Meta().Version, stored.Meta().Revision
	}
	return commit.Batch{Txn: store.Txn{Time: now, Ops: []store.Op{store.Put(secret)}, Preconditions: []store.Precondition{precondition}}}, nil
}

// clone returns a register that shares nothing with this one.
func (r register) clone() register {
	r.Removed, r.Servers, r.Authorities = slices.Clone(r.Removed), slices.Clone(r.Servers), slices.Clone(r.Authorities)
	for i := range r.Servers {
		r.Servers[i].Keys = slices.Clone(r.Servers[i].Keys)
	}
	if r.Gossip != nil {
		gossip := *r.Gossip
		gossip.Keys = slices.Clone(gossip.Keys)
		r.Gossip = &gossip
	}
	return r
}

// remove notes that a server is about to be removed, after all others: the removal may
// have failed before.
func (r *register) remove(server string) {
	r.Removed = append(slices.DeleteFunc(r.Removed, func(known string) bool { return known == server }), server)
	if more := len(r.Removed) - maxRemoved; more > 0 {
		forgotten := r.Removed[:more]
		r.Removed = slices.Clone(r.Removed[more:])
		r.Servers = slices.DeleteFunc(r.Servers, func(s registeredServer) bool { return slices.Contains(forgotten, s.Server) })
	}
}

// revokePending takes over the keys that a removed server may have asked to join with,
// and did not: on the disk of a server of its name that is no member, so that they are
// revoked with its own. Where another such server has one of its keys, that is no
// reason to accept the key. successor, unless empty, is a server of its name that takes
// its place and keeps its keys.
func (r *register) revokePending(server, successor string, members []string) {
	name := raftlog.NameOf(server)
	at := slices.IndexFunc(r.Servers, func(s registeredServer) bool { return s.Server == server })
	var own, asked []string
	if at >= 0 {
		own = r.Servers[at].Keys
	}
	r.Servers = slices.DeleteFunc(r.Servers, func(s registeredServer) bool {
		if s.Server == server || s.Server == successor || slices.Contains(members, s.Server) || slices.Contains(r.Removed, s.Server) {
			return false
		}
		if raftlog.NameOf(s.Server) == name {
			asked = append(asked, s.Keys...)
			return true
		}
		return slices.ContainsFunc(s.Keys, func(key string) bool { return slices.Contains(own, key) })
	})
	for _, key := range slices.Concat(asked, own) { // its own last: of too many, those are kept
		r.forgetKey(server, key)
		r.record(server, key)
	}
}

// forgetKey forgets that a server has a key.
func (r *register) forgetKey(server, key string) {
	for i, s := range r.Servers {
		if s.Server == server {
			r.Servers[i].Keys = slices.DeleteFunc(slices.Clone(s.Keys), func(known string) bool { return known == key })
		}
	}
}

// settle orders removals so that those which are done come before those that failed and
// may succeed later, and returns the last one that is done, "" for none.
func (r *register) settle(members []string) (last string) {
	var gone, left []string
	for _, server := range r.Removed {
		if slices.Contains(members, server) {
			left = append(left, server)
		} else {
			gone, last = append(gone, server), server
		}
	}
	r.Removed = slices.Concat(gone, left)
	return last
}

// makeAuthority notes that an authority is made now: no server that is gone has its key.
func (r *register) makeAuthority(digest string, members []string) {
	r.Authorities = append(r.Authorities, registeredAuthority{Digest: digest, After: r.settle(members)})
	r.Authorities = slices.Clone(r.Authorities[max(0, len(r.Authorities)-maxAuthorities):])
}

// knowAuthority returns the names of the removed servers that have the key of an
// authority, sorted.
func (r register) knowAuthority(digest string, members []string) (names []string) {
	since := 0
	for _, a := range r.Authorities {
		if a.Digest == digest {
			since = slices.Index(r.Removed, a.After) + 1
		}
	}
	for _, server := range r.Removed[since:] {
		if !slices.Contains(members, server) {
			names = append(names, raftlog.NameOf(server))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// gone notes that a server was removed, unless that is known.
func (r *register) gone(server string) {
	if !slices.Contains(r.Removed, server) {
		r.remove(server)
	}
}

// record notes the key of a server's certificate.
func (r *register) record(server, key string) {
	at := slices.IndexFunc(r.Servers, func(s registeredServer) bool { return s.Server == server })
	if at < 0 {
		at = len(r.Servers)
		r.Servers = append(r.Servers, registeredServer{Server: server})
	}
	known := &r.Servers[at]
	if slices.Contains(known.Keys, key) {
		return
	}
	known.Keys = append(known.Keys, key)
	if more := len(known.Keys) - maxServerKeys; more > 0 {
		known.Keys = slices.Clone(known.Keys[more:])
	}
}

// forgetPending forgets the keys of servers that asked to join and did not, beyond the
// newest maxPending.
func (r *register) forgetPending(members []string) {
	pending := 0
	for i := len(r.Servers) - 1; i >= 0; i-- {
		server := r.Servers[i].Server
		if slices.Contains(members, server) || slices.Contains(r.Removed, server) {
			continue
		}
		if pending++; pending > maxPending {
			r.Servers = slices.Delete(r.Servers, i, i+1)
		}
	}
}

// holders returns the servers that a key was recorded for.
func (r register) holders(key string) (servers []string) {
	for _, s := range r.Servers {
		if slices.Contains(s.Keys, key) {
			servers = append(servers, s.Server)
		}
	}
	return servers
}

// replacesGossip reports whether a server was removed since the gossip key was
// replaced, and is gone.
func (r register) replacesGossip(members []string) bool {
	since := 0
	if r.Gossip != nil {
		since = slices.Index(r.Removed, r.Gossip.For) + 1
	}
	return slices.ContainsFunc(r.Removed[since:], func(server string) bool { return !slices.Contains(members, server) })
}

// nextGossip takes the replacement of the gossip key one step further. current is the
// key in use where the register has none; everywhere says that every server has the
// keys of the register as they are.
func (r *register) nextGossip(members []string, current []byte, everywhere bool) {
	switch {
	case r.Gossip != nil && r.Gossip.Phase == gossipAdd && everywhere:
		slices.Reverse(r.Gossip.Keys)
		r.Gossip.Phase = gossipUse
	case r.Gossip != nil && r.Gossip.Phase == gossipUse && everywhere:
		r.Gossip.Keys, r.Gossip.Phase = r.Gossip.Keys[:1], gossipDone
	case (r.Gossip == nil || r.Gossip.Phase == gossipDone) && r.replacesGossip(members):
		key := make([]byte, gossip.KeyBytes)
		_, _ = rand.Read(key) // never fails
		if r.Gossip == nil {
			r.Gossip = &registeredGossip{Keys: []string{base64.StdEncoding.EncodeToString(current)}}
		}
		r.Gossip.Keys = append(r.Gossip.Keys[:1:1], base64.StdEncoding.EncodeToString(key))
		r.Gossip.Phase, r.Gossip.For = gossipAdd, r.settle(members)
	}
}

// keys decodes the keys.
func (c registeredGossip) keys() ([][]byte, error) {
	keys := make([][]byte, len(c.Keys))
	for i, text := range c.Keys {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != gossip.KeyBytes {
			return nil, fmt.Errorf("%s: a gossip key of it has not %d bytes", token.ServersKey, gossip.KeyBytes)
		}
		keys[i] = key
	}
	return keys, nil
}

// servers are what this server knows of the register, and the keys of certificates that
// it has seen. It implements consensus.Register; it is safe for concurrent use.
type servers struct {
	server *Server

	mu sync.Mutex
	// decoded is the register of the resource with a digest.
	decoded register
	of      store.Digest
	made    bool
	// seen are the keys of other servers' certificates, by server.
	seen map[string][]string
}

var _ consensus.Register = (*servers)(nil)

// current returns the register of a view; an empty one where there is none or it
// cannot be read, which is logged where the register is followed.
func (s *servers) current() register {
	reg, _, _ := s.in(s.server.Store.View())
	return reg
}

func (s *servers) in(view *store.View) (register, *resource.Resource, error) {
	stored, ok := view.Get(token.ServersKey)
	if !ok {
		return register{}, nil, nil
	}
	of := view.Digest(resource.KindGlobalSecret)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made && s.of == of {
		return s.decoded, stored, nil
	}
	reg, err := decodeRegister(stored)
	if err != nil {
		return register{}, stored, err
	}
	s.decoded, s.of, s.made = reg, of, true
	return reg, stored, nil
}

// Removed implements consensus.Register.
func (s *servers) Removed(server string) bool { return slices.Contains(s.current().Removed, server) }

// Holders implements consensus.Register.
func (s *servers) Holders(key string) []string { return s.current().holders(key) }

// Removing implements consensus.Register.
func (s *servers) Removing(ctx context.Context, server, successor string) error {
	return s.change(ctx, func(r *register) {
		r.remove(server)
		r.revokePending(server, successor, s.server.memberIDs())
	})
}

// Record implements consensus.Register.
func (s *servers) Record(ctx context.Context, server, key string) error {
	if slices.Contains(s.current().holders(key), server) {
		return nil
	}
	return s.change(ctx, func(r *register) { r.record(server, key) })
}

// see notes the key of a server's certificate, for the leader to record.
func (s *servers) see(server, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string][]string{}
	}
	if keys := s.seen[server]; !slices.Contains(keys, key) {
		keys = append(keys, key)
		s.seen[server] = keys[max(0, len(keys)-maxServerKeys):]
	}
}

// sight notes what this server has seen of the members.
func (s *servers) sight(members []string, r *register) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for server, keys := range s.seen {
		if !slices.Contains(members, server) {
			// It is recorded as it was removed, with what was seen until then.
			if !slices.Contains(r.Removed, server) {
				delete(s.seen, server)
				continue
			}
		}
		for _, key := range keys {
			r.record(server, key)
		}
	}
}

// errNotOpen means that the server is starting and cannot write yet.
var errNotOpen = fmt.Errorf("%w: the server is starting", consensus.ErrUnavailable)

// change writes a change of the register, unless it changes nothing.
func (s *servers) change(ctx context.Context, change func(*register)) error {
	c := s.server
	if !c.opened.Load() {
		return errNotOpen
	}
	_, err := commit.WriteNewest(ctx, c.Writer, func() (commit.Batch, error) {
		reg, stored, err := s.in(c.Store.View())
		if err != nil {
			return commit.Batch{}, err
		}
		next := reg.clone()
		s.sight(c.memberIDs(), &next)
		change(&next)
		next.forgetPending(c.memberIDs())
		if equalRegisters(reg, next) {
			return commit.Batch{}, nil
		}
		return next.batch(stored, c.Now())
	})
	return err
}

func equalRegisters(a, b register) bool {
	sameGossip := a.Gossip == nil && b.Gossip == nil ||
		a.Gossip != nil && b.Gossip != nil && a.Gossip.Phase == b.Gossip.Phase && a.Gossip.For == b.Gossip.For && slices.Equal(a.Gossip.Keys, b.Gossip.Keys)
	return sameGossip && slices.Equal(a.Removed, b.Removed) && slices.Equal(a.Authorities, b.Authorities) &&
		slices.EqualFunc(a.Servers, b.Servers, func(a, b registeredServer) bool { return a.Server == b.Server && slices.Equal(a.Keys, b.Keys) })
}

// knowAuthority returns the names of the removed servers that have the key of the
// generated authority which signs without a rotation; nil where certificates were given.
func (c *Server) knowAuthority() []string {
	base := c.peers.Base()
	if base == nil || !c.opened.Load() {
		return nil
	}
	return c.servers.current().knowAuthority(pki.Digest(base.CertificatePEM()), c.memberIDs())
}

// memberIDs are the members as raft knows them.
func (c *Server) memberIDs() []string {
	all := c.Node.Servers()
	ids := make([]string, len(all))
	for i, m := range all {
		ids[i] = m.ID
	}
	return ids
}
