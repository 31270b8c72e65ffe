package consensus_test

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// notesOf is what the events of a server received of notes.
type notesOf struct {
	mu        sync.Mutex
	revisions map[string]resource.Revision // guarded by mu, by note
	kept      resource.Revision            // guarded by mu: of the newest snapshot
}

func (h *notesOf) attach(cfg *consensus.Config) {
	cfg.Events.Applied = func(note []byte, result store.Result) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.revisions == nil {
			h.revisions = map[string]resource.Revision{}
		}
		h.revisions[string(note)] = result.Revision
	}
	cfg.Events.Snapshotting = func(rev resource.Revision) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.kept = rev
	}
}

func (h *notesOf) of(note string) resource.Revision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revisions[note]
}

// What travels with a batch comes back on every server, whichever took it, and
// again after a restart unless a snapshot holds it, which is announced.
func TestNotesComeBackWithTheirBatches(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		received := map[string]*notesOf{"a": {}, "b": {}, "c": {}}
		listen := func(name string, join ...string) *server {
			return c.start(name, func(cfg *consensus.Config) {
				received[name].attach(cfg)
				if len(join) > 0 {
					joining(join...)(cfg)
				}
			})
		}
		a := listen("a")
		c.ready(a)
		b, d := listen("b", "a"), listen("c", "a")
		c.ready(b, d)
		c.voters("a", "b", "c")
		revisions := map[string]resource.Revision{}
		for _, s := range []*server{a, b, d} {
			result, err := s.node.Propose(context.Background(), store.Txn{
				RequestID: rand.Text(), Ops: []store.Op{put("k", s.name)}, Note: []byte("by " + s.name),
			})
			require.NoError(t, err)
			revisions["by "+s.name] = result.Revision
			s.write(t, "other", "has no note")
		}
		for name, h := range received {
			c.eventually(name+" has applied them", func() bool { return h.of("by c") != 0 })
			require.Equal(t, revisions, h.revisions, name)
		}

		c.crash(b)
		received["b"] = &notesOf{}
		c.open(b, received["b"].attach)
		c.ready(b)
		c.eventually("they come back after a crash", func() bool { return received["b"].of("by c") != 0 })
		require.Equal(t, revisions, received["b"].revisions)
		require.Zero(t, received["b"].kept)

		last := b.write(t, "other", "is in the snapshot").Revision
		require.NoError(t, b.node.Snapshot())
		require.GreaterOrEqual(t, received["b"].kept, last, "a listener is notified of a snapshot before it counts")
		c.crash(b)
		received["b"] = &notesOf{}
		c.open(b, received["b"].attach)
		c.ready(b)
		c.eventually("the state is there", func() bool { return value(b.store, "other") == "is in the snapshot" })
		require.Empty(t, received["b"].revisions)
	})
}
