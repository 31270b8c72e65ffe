package global

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/gossip"
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
