package cluster

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/authn/token"
	"meridian/internal/consensus"
	"meridian/internal/gossip"
	"meridian/internal/raftlog"
	"meridian/internal/resource"
)

// What is registered of servers is bounded, and a server that is remembered as removed
// keeps its keys for as long.
func TestTheRegisterIsBounded(t *testing.T) {
	var r register
	for i := range maxRemoved + 5 {
		id := fmt.Sprintf("s%d", i)
		r.record(id, "key-"+id)
		r.remove(id)
		r.remove(id)
	}
	require.Len(t, r.Removed, maxRemoved)
	require.Len(t, r.Servers, maxRemoved)
	require.Equal(t, "s5", r.Removed[0])
	require.Empty(t, r.holders("key-s4"))
	require.Equal(t, []string{"s5"}, r.holders("key-s5"))

	for i := range maxServerKeys + 3 {
		r.record("s5", fmt.Sprintf("renewed-%d", i))
	}
	require.Empty(t, r.holders("renewed-1"))
	require.Equal(t, []string{"s5"}, r.holders("renewed-3"))

	for i := range 3 * maxPending {
		r.record(fmt.Sprintf("pending%d", i), "key")
	}
	r.record("member", "key")
	r.forgetPending([]string{"member"})
	require.Len(t, r.holders("key"), maxPending+1)
	require.Len(t, r.Servers, maxRemoved+maxPending+1)
	require.NotContains(t, r.holders("key"), "pending0")

	secret, err := r.batch(nil, time.Now())
	require.NoError(t, err)
	back, err := decodeRegister(secret.Ops[0].Resource)
	require.NoError(t, err)
	require.True(t, equalRegisters(r, back))
	require.Less(t, len(secret.Ops[0].Resource.Canonical()), 1<<20)
}

// A removed server's certificates are refused with every key that it asked to join with,
// under whatever disk, also where it did not join. A server on a new disk keeps its keys.
func TestKeysOfJoinsThatFailedAreRevoked(t *testing.T) {
	id := func(name, disk string) string { return string(raftlog.ServerID(name, disk)) }
	for name, tc := range map[string]struct {
		recorded          [][2]string // server, key
		removed, replaced string
		members           []string
		revoked, kept     []string
	}{
		"another key, before it joined": {
			recorded: [][2]string{{id("a", "1"), "k1"}, {id("a", "2"), "k2"}}, members: []string{id("a", "2")},
			removed: id("a", "2"), revoked: []string{"k1", "k2"},
		},
		"the same key, before and after": {
			recorded: [][2]string{{id("a", "1"), "k"}, {id("a", "2"), "k"}, {id("a", "3"), "k"}}, members: []string{id("a", "2")},
			removed: id("a", "2"), revoked: []string{"k"},
		},
		"the same key, under another name": {
			recorded: [][2]string{{id("a", "2"), "k"}, {id("b", "1"), "k"}}, members: []string{id("a", "2")},
			removed: id("a", "2"), revoked: []string{"k"},
		},
		"that of a member as well": {
			recorded: [][2]string{{id("a", "2"), "k"}, {id("b", "1"), "k"}}, members: []string{id("a", "2"), id("b", "1")},
			removed: id("a", "2"), kept: []string{"k"},
		},
		"that of another server that asks": {
			recorded: [][2]string{{id("a", "2"), "k"}, {id("b", "1"), "l"}}, members: []string{id("a", "2")},
			removed: id("a", "2"), revoked: []string{"k"}, kept: []string{"l"},
		},
		"a new disk takes its place": {
			recorded: [][2]string{{id("a", "1"), "k"}, {id("a", "2"), "k"}, {id("a", "2"), "l"}}, members: []string{id("a", "1")},
			removed: id("a", "1"), replaced: id("a", "2"), kept: []string{"k", "l"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r register
			for _, known := range tc.recorded {
				r.record(known[0], known[1])
			}
			r.remove(tc.removed)
			r.revokePending(tc.removed, tc.replaced, tc.members)
			members := slices.DeleteFunc(tc.members, func(m string) bool { return m == tc.removed })
			revoked := func(key string) bool {
				holders := r.holders(key)
				return len(holders) > 0 && !slices.ContainsFunc(holders, func(s string) bool {
					return slices.Contains(members, s) || !slices.Contains(r.Removed, s)
				})
			}
			for _, key := range tc.revoked {
				require.True(t, revoked(key), "%s: %+v", key, r.Servers)
			}
			for _, key := range tc.kept {
				require.False(t, revoked(key), "%s: %+v", key, r.Servers)
			}
		})
	}

	// However many keys it asked with, its own are remembered.
	var r register
	r.record(id("a", "9"), "own")
	for i := range 2 * maxServerKeys {
		r.record(id("a", "1"), fmt.Sprintf("asked%d", i))
	}
	r.remove(id("a", "9"))
	r.revokePending(id("a", "9"), "", []string{id("a", "9")})
	require.Equal(t, []string{id("a", "9")}, r.holders("own"))
	require.Len(t, r.Servers, 1)
	require.Len(t, r.Servers[0].Keys, maxServerKeys)
}

// A removed server knows the authority that signed while it was a member, and the one
// that was being brought in, until each is replaced.
func TestWhoKnowsTheAuthority(t *testing.T) {
	var r register
	require.Empty(t, r.knowAuthority("first", []string{"a"}))
	r.remove("b#1")
	r.remove("c#1")
	members := []string{"a#1", "c#1"} // the removal of c failed
	require.Equal(t, []string{"b"}, r.knowAuthority("first", members))
	r.makeAuthority("second", members)
	require.Equal(t, []string{"b"}, r.knowAuthority("first", members), "until the rotation is finished")
	require.Empty(t, r.knowAuthority("second", members))
	members = []string{"a#1"}
	require.Equal(t, []string{"b", "c"}, r.knowAuthority("first", members))
	require.Equal(t, []string{"c"}, r.knowAuthority("second", members), "it was a member when the key was made")

	r.makeAuthority("third", members)
	require.Equal(t, []string{"c"}, r.knowAuthority("second", members))
	require.Empty(t, r.knowAuthority("third", members))
	r.remove("a#1")
	r.remove("d#1")
	require.Equal(t, []string{"a", "d"}, r.knowAuthority("third", nil))
	r.makeAuthority("fourth", nil)
	require.Len(t, r.Authorities, maxAuthorities)

	stored, err := r.batch(nil, time.Now())
	require.NoError(t, err)
	back, err := decodeRegister(stored.Ops[0].Resource)
	require.NoError(t, err)
	require.True(t, equalRegisters(r, back))
	for i := range maxRemoved { // the last one that did not know it is forgotten
		r.remove(fmt.Sprintf("more%d#1", i))
	}
	require.Len(t, r.knowAuthority("fourth", nil), maxRemoved)
}

// The gossip key is replaced in three steps, each once every server has taken the one
// before, and again for the next removal.
func TestTheGossipKeyIsReplacedWithoutAGap(t *testing.T) {
	old := bytes.Repeat([]byte{1}, gossip.KeyBytes)
	var r register
	step := func(everywhere bool, members ...string) (keys []string, phase gossipPhase) {
		r.nextGossip(members, old, everywhere)
		if r.Gossip == nil {
			return nil, gossipDone
		}
		return r.Gossip.Keys, r.Gossip.Phase
	}
	keys, _ := step(true, "a", "b", "c")
	require.Nil(t, keys, "no server was removed")
	r.remove("c")
	keys, _ = step(true, "a", "b", "c")
	require.Nil(t, keys, "it is still a member, and would learn the key")

	keys, phase := step(true, "a", "b")
	require.Equal(t, gossipAdd, phase)
	first := base64.StdEncoding.EncodeToString(old)
	require.Equal(t, first, keys[0])
	second := keys[1]
	r.remove("b#2")
	keys, phase = step(false, "a", "b")
	require.Equal(t, []string{first, second}, keys, "not everywhere, and one removal at a time")
	require.Equal(t, gossipAdd, phase)
	keys, phase = step(true, "a", "b")
	require.Equal(t, []string{second, first}, keys)
	require.Equal(t, gossipUse, phase)
	keys, _ = step(false, "a", "b")
	require.Equal(t, []string{second, first}, keys)
	keys, phase = step(true, "a", "b")
	require.Equal(t, []string{second}, keys)
	require.Equal(t, gossipDone, phase)

	keys, phase = step(true, "a", "b")
	require.Equal(t, gossipAdd, phase, "the other removal")
	require.Equal(t, second, keys[0])
	require.NotContains(t, []string{first, second}, keys[1])
	_, _ = step(true, "a", "b")
	keys, _ = step(true, "a", "b")
	require.Len(t, keys, 1)
	again, phase := step(true, "a", "b")
	require.Equal(t, keys, again)
	require.Equal(t, gossipDone, phase)
}

// The gossip key is replaced once for every server that goes, in whatever order
// removals are recorded, fail and succeed.
func TestARemovalThatFailedAtFirstReplacesTheGossipKey(t *testing.T) {
	type event struct {
		// what is record for a removal that is about to be tried, and goes for one that
		// is done, seen for one that the leader knows from its log.
		what, server string
		// unseen: the leader has not looked at it before the next one.
		unseen   bool
		replaced bool
	}
	for name, events := range map[string][]event{
		"tried again after another one": {
			{what: "record", server: "a"},
			{what: "record", server: "b"},
			{what: "goes", server: "b", replaced: true},
			{what: "record", server: "a"},
			{what: "goes", server: "a", replaced: true},
		},
		"tried again, and not recorded again": {
			{what: "record", server: "a"},
			{what: "record", server: "b"},
			{what: "goes", server: "b", replaced: true},
			{what: "goes", server: "a", replaced: true},
			{what: "seen", server: "a"},
		},
		"recorded before the other one went": {
			{what: "record", server: "b"},
			{what: "record", server: "a"},
			{what: "goes", server: "b", replaced: true},
			{what: "goes", server: "a", replaced: true},
		},
		"before one that failed": {
			{what: "record", server: "a"},
			{what: "goes", server: "a", unseen: true},
			{what: "record", server: "b", replaced: true},
			{what: "record", server: "b"},
			{what: "goes", server: "b", replaced: true},
		},
		"seen only later": {
			{what: "record", server: "b"},
			{what: "goes", server: "a"},
			{what: "seen", server: "a", replaced: true},
			{what: "seen", server: "a"},
			{what: "goes", server: "b", replaced: true},
			{what: "seen", server: "b"},
			{what: "seen", server: "a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r register
			members := []string{"a", "b", "c", "d"}
			for i, e := range events {
				switch e.what {
				case "record":
					r.remove(e.server)
				case "seen":
					r.gone(e.server)
				case "goes":
					members = slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == e.server })
				}
				if e.unseen {
					continue
				}
				before := r.clone()
				for range 6 {
					r.nextGossip(members, bytes.Repeat([]byte{1}, gossip.KeyBytes), true)
				}
				if !e.replaced {
					require.True(t, equalRegisters(before, r), "%d: %s %s", i, e.what, e.server)
					continue
				}
				require.Equal(t, gossipDone, r.Gossip.Phase)
				require.Len(t, r.Gossip.Keys, 1)
				if before.Gossip != nil {
					require.NotEqual(t, before.Gossip.Keys, r.Gossip.Keys, "%d: %s %s", i, e.what, e.server)
				}
				require.False(t, r.replacesGossip(members))
			}
		})
	}
}

// That every server has the keys of one step says nothing of the next, which another
// leader may have taken since.
func TestAGossipKeyStepIsTakenOnce(t *testing.T) {
	old, members := bytes.Repeat([]byte{1}, gossip.KeyBytes), []string{"a", "b"}
	var r register
	require.Empty(t, r.gossipKeys())
	r.remove("c")
	r.followGossip(members, old, "")
	require.Equal(t, gossipAdd, r.Gossip.Phase)
	r.followGossip(members, old, "")
	require.Equal(t, gossipAdd, r.Gossip.Phase, "not every server has the new key")
	added := r.gossipKeys()
	for range 2 {
		r.followGossip(members, old, added)
		require.Equal(t, gossipUse, r.Gossip.Phase)
	}
	r.followGossip(members, old, r.gossipKeys())
	require.Equal(t, gossipDone, r.Gossip.Phase)
	require.Empty(t, r.gossipKeys())
}

// While servers of two releases are in one cluster, the gossip key is not replaced: one
// of a release that does not follow the register keeps the old key, and is waited for,
// however late it is. It is replaced once the last server was upgraded.
func TestTheGossipKeyWaitsForTheLastUpgrade(t *testing.T) {
	old, ids := bytes.Repeat([]byte{1}, gossip.KeyBytes), []string{"a#1", "b#1", "c#1"}
	var r register
	r.remove("gone#1")
	r.followGossip(ids, old, "")
	leader := consensus.Member{Name: "a", State: "leader"}
	older := consensus.Member{Name: "b", State: "follower"} // it says nothing of its keys
	away := consensus.Member{Name: "c", State: consensus.StateUnreachable}
	take := func(late bool, want ...string) {
		t.Helper()
		step := r.gossipKeys()
		leader.GossipKeys = step
		missing := lackGossipKeys([]consensus.Member{leader, older, away}, step, late)
		require.Equal(t, want, missing)
		followed := step
		if len(missing) > 0 {
			followed = ""
		}
		r.followGossip(ids, old, followed)
	}
	take(false, "b", "c")
	take(true, "b")
	require.Equal(t, gossipAdd, r.Gossip.Phase, "both servers still send with the old key")
	require.Equal(t, base64.StdEncoding.EncodeToString(old), r.Gossip.Keys[0])

	older.GossipKeys = r.gossipKeys() // upgraded
	take(true)
	require.Equal(t, gossipUse, r.Gossip.Phase)
	take(true, "b")
	older.GossipKeys = r.gossipKeys()
	take(true)
	require.Equal(t, gossipDone, r.Gossip.Phase)
}

// A release reads what a newer one of the same format has registered, and what it does
// not know of that is lost when it writes: then every removed server counts as one that
// knows the authority.
func TestTheRegisterOfANewerRelease(t *testing.T) {
	secret := func(text string) *resource.Resource {
		r, _, err := resource.Build(resource.Meta{Key: token.ServersKey}, []byte(`{"data": "`+base64.StdEncoding.EncodeToString([]byte(text))+`"}`))
		require.NoError(t, err)
		return r
	}
	r, err := decodeRegister(secret(`{"formatVersion": 1, "removed": ["c#1"], "authorities": [{"digest": "d", "after": "c#1"}], "unknown": {"a": 1}}`))
	require.NoError(t, err)
	require.Empty(t, r.knowAuthority("d", nil))
	r, err = decodeRegister(secret(`{"formatVersion": 1, "removed": ["c#1"]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, r.knowAuthority("d", nil))
	_, err = decodeRegister(secret(`{"formatVersion": 2}`))
	require.ErrorContains(t, err, "has format 2, this release reads 1", "it is left as it is, and the log says so")
}

func TestGossipKeysAreToldApart(t *testing.T) {
	a, b := bytes.Repeat([]byte{1}, gossip.KeyBytes), bytes.Repeat([]byte{2}, gossip.KeyBytes)
	seen := map[string]bool{gossipDigest(nil): true}
	for _, keys := range [][][]byte{{a}, {b}, {a, b}, {b, a}} {
		require.False(t, seen[gossipDigest(keys)])
		seen[gossipDigest(keys)] = true
	}
}

func TestARegisterThatCannotBeRead(t *testing.T) {
	build := func(data string) *resource.Resource {
		batch, err := register{}.batch(nil, time.Now())
		require.NoError(t, err)
		r, _, err := resource.Build(batch.Ops[0].Resource.Meta(), []byte(`{"data": "`+base64.StdEncoding.EncodeToString([]byte(data))+`"}`))
		require.NoError(t, err)
		return r
	}
	_, err := decodeRegister(build(`{"formatVersion": 2}`))
	require.ErrorContains(t, err, "has format 2, this release reads 1")
	_, err = decodeRegister(build(`{`))
	require.ErrorContains(t, err, "cannot be read")
	_, err = (registeredGossip{Keys: []string{"AAAA"}}).keys()
	require.ErrorContains(t, err, "has not 32 bytes")
}
