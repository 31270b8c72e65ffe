package zonesync

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/store"
)

// TestTheFeedEncodesForTheFirstStream: what no zone is sent is not encoded, what one is sent is
// encoded once for all, and the memory that the feed counts is about what it then has.
func TestTheFeedEncodesForTheFirstStream(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	publishing := func() *publisher {
		p := newPublisher(defaultPacing(), g.feed, g.store.View)
		require.NoError(t, p.greet(&syncv1.Hello{Protocol: protocolVersion, MinProtocol: minProtocolVersion, Zone: "east", Instance: "i"}, g.now))
		for f := p.take(t, g); f != nil; f = p.take(t, g) {
		}
		return p
	}
	one, other := publishing(), publishing()
	for i := range 3 {
		g.write(put(policyKey("a"), fmt.Sprint(i)), put(policyKey(fmt.Sprint("other-", i)), `{"x":"some more"}`), store.Delete(policyKey(fmt.Sprint("other-", i-1))))
	}
	for _, e := range g.feed.entries {
		require.Empty(t, e.batches, "no zone was sent it")
		require.Len(t, e.written, len(e.keys))
	}
	for _, e := range g.feed.entries {
		sent := one.take(t, g)
		require.NotEmpty(t, sent.GetBatch())
		require.Same(t, sent, other.take(t, g), "of all streams")
		require.Nil(t, e.written, "the resources are not kept beside it")
		require.InDelta(t, len(sent.GetBatch()), e.bytes, float64(batchEncoding+opEncoding*len(e.keys)))
	}
}

func (p *publisher) take(t *testing.T, g *globalSim) *syncv1.GlobalFrame {
	t.Helper()
	f, err := p.next(g.now)
	require.NoError(t, err)
	return f
}
