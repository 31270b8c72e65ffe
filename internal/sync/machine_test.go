package zonesync

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// done is a context that is done: a read from a feed returns what there is.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestReplicaEqualsSourceAfterAnyCut is §7.3: whatever is cut, killed
// or restored, at any frame, each zone sees exact states of the global only, and
// ends up with the newest.
func TestReplicaEqualsSourceAfterAnyCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]int{1, 600, 4000, 1 << 20}).Draw(rt, "feed bytes")
		g := newGlobalSim(rt, limit)
		zones := []*zoneSim{newZoneSim(rt, g, t.TempDir()), newNamedZoneSim(rt, g, "west", t.TempDir())}
		for _, z := range zones {
			z.pacing.coalesceAfter = rapid.IntRange(0, 6).Draw(rt, "coalesce")
			z.pacing.window = uint64(rapid.SampledFrom([]int{1, 500, 1 << 20}).Draw(rt, "window"))
			z.paced = rapid.Bool().Draw(rt, "paced")
		}
		views := []*store.View{g.store.View()}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			z := rapid.SampledFrom(zones).Draw(rt, "zone")
			n := rapid.IntRange(1, 5).Draw(rt, "n")
			switch rapid.SampledFrom([]string{"write", "write", "write", "rollout", "rollout", "rollout", "send", "send", "receive", "receive", "connect", "crash", "upgrade", "wait", "restart", "restore"}).Draw(rt, "step") {
			case "write":
				if ops := g.unblocked(drawOps(rt), rapid.IntRange(0, 9).Draw(rt, "forced") == 0); len(ops) > 0 {
					g.write(ops...)
				}
				views = append(views, g.store.View())
			case "rollout":
				drawRollout(rt, g)
				views = append(views, g.store.View())
			case "send":
				z.send(n)
			case "receive":
				z.receive(n)
			case "connect":
				z.connect()
			case "crash":
				z.crash()
			case "upgrade":
				z.decode = rapid.SampledFrom([]Decoder{decodeOld, decodeNew, decodeBefore}).Draw(rt, "decoder")
				z.crash()
			case "wait":
				g.now = g.now.Add(rapid.SampledFrom([]time.Duration{ackEvery / 2, ackEvery, time.Second, heartbeatEvery}).Draw(rt, "each") * time.Duration(n))
			case "restart":
				g.restart()
				for _, z := range zones {
					z.cut()
				}
			case "restore":
				g.restore(rapid.SampledFrom(views).Draw(rt, "view"))
				for _, z := range zones { // TestWipeGuard is about updates that are held
					z.acceptNow()
				}
				views = append(views[:0], g.store.View())
			}
		}
		for _, z := range zones {
			z.settle()
			z.check()
			require.Equal(rt, g.store.View().Epoch(), z.store.View().Epoch())
			require.Len(rt, z.nacks, len(z.replica.machine.bad))
			z.crash()
			z.close()
		}
	})
}

func drawOps(rt *rapid.T) []store.Op {
	names := rapid.SliceOfNDistinct(rapid.IntRange(0, 11), 1, 6, rapid.ID[int]).Draw(rt, "names")
	var ops []store.Op
	for _, n := range names {
		kind := policyKind
		if n%4 == 3 {
			kind = secretKind
		}
		key := resource.Key{Kind: kind, Mesh: "default", Name: fmt.Sprintf("p-%d", n)}
		switch rapid.IntRange(0, 5).Draw(rt, "what") {
		case 0:
			ops = append(ops, store.Delete(key))
		case 1:
			ops = append(ops, put(key, unusable))
		default:
			ops = append(ops, put(key, fmt.Sprintf(`{"n":%d}`, rapid.IntRange(0, 3).Draw(rt, "content"))))
		}
	}
	return ops
}

func lastMode(z *zoneSim) syncv1.Mode {
	for _, f := range z.down {
		if w := f.GetWelcome(); w != nil {
			return w.Mode
		}
	}
	return -1
}

// reconnect connects anew and returns the mode that the global chose.
func reconnect(z *zoneSim) syncv1.Mode {
	z.connect()
	z.send(2)
	return lastMode(z)
}

// TestModes is which way a zone is brought up to date.
func TestModes(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))

	require.Equal(t, syncv1.Mode_MODE_SNAPSHOT, reconnect(z), "an empty replica takes everything")
	z.settle()
	require.Equal(t, syncv1.Mode_MODE_RESUME, reconnect(z), "nothing changed")
	z.settle()
	g.write(put(policyKey("b"), `{}`))
	require.Equal(t, syncv1.Mode_MODE_RESUME, reconnect(z), "the feed remembers")
	z.settle()

	g.limit = 1
	g.restart()
	z.cut()
	g.write(put(policyKey("c"), `{}`))
	g.write(put(policyKey("d"), `{}`))
	g.write(put(policyKey("e"), `{}`))
	require.Equal(t, syncv1.Mode_MODE_DIFF, reconnect(z), "the feed does not remember")
	z.settle()

	g.restore(g.store.View())
	require.Equal(t, syncv1.Mode_MODE_DIFF, reconnect(z), "a later incarnation is adopted")
	z.settle()
}

// TestRecreatedWhileAway: deleting a resource and creating it with the same
// content changes its times, which decide between policies (§3.4), so
// a zone that takes only the difference must be sent it.
func TestRecreatedWhileAway(t *testing.T) {
	g := newGlobalSim(t, 1)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	z.settle()
	z.cut()
	g.now = g.now.Add(time.Hour)
	g.write(store.Delete(policyKey("a")))
	g.write(put(policyKey("a"), `{}`))
	g.write(put(policyKey("b"), `{}`))
	require.Equal(t, syncv1.Mode_MODE_DIFF, reconnect(z))
	z.settle()
	require.Equal(t, imageOf(g.store.View()), imageOf(z.store.View()))
}

// TestReconnectUnchangedIsConstant: a zone that missed nothing is sent a welcome
// and a bookmark, however much it holds.
func TestReconnectUnchangedIsConstant(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	for i := range 50 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
	}
	z.settle()
	z.connect()
	for z.send(100) || z.receive(100) {
	}
	require.NoError(t, z.ended)
	require.Less(t, z.bytes, 64)
}

// TestCoalescedEqualsLast: a zone far behind gets one batch with the last change
// of each key, and is then exactly where the global is (§7.3).
func TestCoalescedEqualsLast(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	z.settle()
	for i := range 300 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i%7)), fmt.Sprintf(`{"i":%d}`, i)))
	}
	for z.send(100) {
	}
	require.Len(t, z.down, 1)
	z.receive(10)
	require.Equal(t, g.applied, z.store.Revision())
}

// TestZoneAheadOfServer: a server that has not applied the zone's revision sends
// nothing old; it waits, then sends the zone elsewhere.
func TestZoneAheadOfServer(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	z.settle()

	behind := newFeed(syncedInTests, 1<<20)
	v, err := g.store.ViewAt(1)
	require.NoError(t, err)
	behind.reset(v)
	z.connect()
	z.pub.feed = behind
	z.send(10)
	require.Empty(t, z.down)
	require.Equal(t, g.now.Add(z.pacing.behindGrace), z.pub.deadline())
	g.now = g.now.Add(z.pacing.behindGrace)
	z.send(10)
	var fence *fenceError
	require.ErrorAs(t, z.ended, &fence)
	require.Equal(t, syncv1.FenceReason_FENCE_REASON_BEHIND, fence.reason)
}

// TestQuarantine is §7.4.
func TestQuarantine(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{"v":1}`), put(policyKey("b"), `{"v":1}`))
	z.settle()
	good := imageOf(z.store.View())[policyKey("a")]

	g.write(put(policyKey("a"), unusable), put(policyKey("b"), `{"v":2}`), put(policyKey("c"), unusable))
	z.settle()
	require.Equal(t, g.applied, z.acked, "the rest flows")
	require.Equal(t, good, imageOf(z.store.View())[policyKey("a")], "the last good version is served")
	require.NotContains(t, imageOf(z.store.View()), policyKey("c"))
	require.Equal(t, map[resource.Key]string{
		policyKey("a"): "spec.future: unknown field", policyKey("c"): "spec.future: unknown field",
	}, z.nacks)

	z.crash()
	require.Len(t, z.replica.Status().Quarantined, 2)
	require.Equal(t, good, imageOf(z.store.View())[policyKey("a")], "also after a restart")
	require.Empty(t, z.replica.Status().Damage)
	require.Equal(t, syncv1.Mode_MODE_RESUME, reconnect(z))

	z.decode = decodeNew // upgraded
	z.crash()
	require.Empty(t, z.replica.Status().Quarantined)
	require.Equal(t, imageOf(g.store.View()), imageOf(z.store.View()))
	z.decode = decodeOld // and back: what cannot be read is not served
	z.crash()
	require.Len(t, z.replica.Status().Quarantined, 2)

	g.write(store.Delete(policyKey("a")), put(policyKey("c"), `{}`))
	z.settle()
	require.Empty(t, z.nacks)
	require.Equal(t, imageOf(g.store.View()), imageOf(z.store.View()))
}

// TestDeletedWhileInQuarantine: a resource whose newest bytes are in quarantine is
// deleted with them.
func TestDeletedWhileInQuarantine(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{"v":1}`), put(policyKey("b"), `{}`))
	g.write(put(policyKey("a"), unusable), put(policyKey("c"), unusable))
	z.settle()
	require.Len(t, z.replica.Status().Quarantined, 2)
	g.write(store.Delete(policyKey("a")), store.Delete(policyKey("c")))
	z.settle()
	z.crash()
	require.Empty(t, z.replica.Status().Quarantined)
	require.Equal(t, imageOf(g.store.View()), imageOf(z.store.View()))
	require.Equal(t, syncv1.Mode_MODE_RESUME, reconnect(z))
}

// TestNackStorm: thousands of unusable resources neither block the stream nor
// make an acknowledgement large.
func TestNackStorm(t *testing.T) {
	g := newGlobalSim(t, 64<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	var ops []store.Op
	for i := range 3000 {
		ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), unusable))
	}
	g.write(ops...)
	z.connect()
	for z.send(100) || z.receive(100) {
	}
	require.Equal(t, g.applied, z.acked)
	require.LessOrEqual(t, len(z.nacks), maxNacks*3)
	for range 3000/maxNacks + 1 {
		g.now = g.now.Add(time.Second)
		for z.send(100) || z.receive(100) {
		}
	}
	require.Len(t, z.nacks, 3000)
}

// TestLargeBatch: a batch too large for one frame takes effect as one.
func TestLargeBatch(t *testing.T) {
	g := newGlobalSim(t, 64<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	z.settle()
	var ops []store.Op
	for i := range 9 {
		ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), fmt.Sprintf(`"%0600000d"`, i)))
	}
	g.write(append(ops, put(policyKey("huge"), fmt.Sprintf(`"%03000000d"`, 1)))...)
	parts := 0
	for ; z.store.View().Len() == 0; parts++ {
		for len(z.down) == 0 {
			require.True(t, z.send(1))
		}
		z.receive(1)
	}
	require.Greater(t, parts, 5)
	require.Equal(t, 10, z.store.View().Len())
	other := newZoneSim(t, g, t.TempDir()) // and as chunks, into an empty replica
	other.settle()
	require.Equal(t, imageOf(g.store.View()), imageOf(other.store.View()))
	other.close()
}

// TestFeedCounts is what zone status and --wait=zones are computed from.
func TestFeedCounts(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	first := g.write(put(policyKey("a"), `{}`), put(policyKey("b"), `{}`))
	secret := g.write(put(resource.Key{Kind: secretKind, Name: "s"}, `{}`))
	last := g.write(put(policyKey("c"), `{}`))
	e := g.store.View().Epoch()
	require.Equal(t, uint64(0), g.feed.lag(last, e))
	require.Equal(t, uint64(1), g.feed.lag(secret, e))
	require.Equal(t, uint64(1), g.feed.lag(first, e))
	require.Equal(t, uint64(3), g.feed.lag(first-1, e))
	require.Equal(t, uint64(3), g.feed.lag(last, store.Epoch{ClusterID: "c2"}), "everything")

	for rev, want := range map[resource.Revision]resource.Revision{first: first, secret: first, last - 1: first, last: last} {
		floor, reached := g.feed.floor(rev)
		require.True(t, reached)
		require.Equal(t, want, floor)
	}
	_, reached := g.feed.floor(last + 1)
	require.False(t, reached)
}

// TestStalledZone: no acknowledgement for a minute with something outstanding
// ends the stream; an idle one stays.
func TestStalledZone(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	z.settle()
	g.now = g.now.Add(time.Hour)
	z.send(1)
	require.NoError(t, z.ended)
	g.now = g.now.Add(z.pacing.stallAfter)
	z.send(1)
	var fence *fenceError
	require.ErrorAs(t, z.ended, &fence)
	require.Equal(t, syncv1.FenceReason_FENCE_REASON_NO_PROGRESS, fence.reason)
}

// TestWindow: a zone that does not acknowledge is sent a window's worth, however
// much there is.
func TestWindow(t *testing.T) {
	g := newGlobalSim(t, 64<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	z.pacing.window = 64 << 10
	z.settle()
	big := fmt.Sprintf(`{"x":"%01000d"}`, 0)
	for i := range 60 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i)), big))
	}
	for range 300 {
		g.write(put(policyKey("p"), big))
		z.send(10)
	}
	require.LessOrEqual(t, int(z.pub.sent-z.pub.consumed), 128<<10)
	z.settle()
}

// movingFeed takes another batch right after it was read.
type movingFeed struct {
	*feed
	move func()
}

func (f movingFeed) after(r resource.Revision, max int, to []*feedEntry) ([]*feedEntry, bool) {
	entries, ok := f.feed.after(r, max, to)
	f.move()
	return entries, ok
}

// TestBookmarkOfWhatWasSent is I7: a batch that comes between the look for batches
// and the bookmark is sent before one, and no zone is told of a state that it
// was not sent.
func TestBookmarkOfWhatWasSent(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	z.settle()
	moves := 0
	z.pub.feed = movingFeed{g.feed, func() {
		if moves++; moves < 20 {
			g.write(put(policyKey("a"), fmt.Sprintf(`{"v":%d}`, moves)))
		}
	}}
	for range 40 {
		g.now = g.now.Add(z.pacing.quietEvery)
		z.send(1)
		z.receive(1)
	}
	require.GreaterOrEqual(t, moves, 20)
	z.settle()
	require.Zero(t, z.replica.Status().Repairs, "a digest of another state starts a repair")
	require.Equal(t, imageOf(g.store.View()), imageOf(z.store.View()))
}

// TestDriftIsRepaired is §7.5: a replica that differs without knowing
// is found out by the next bookmark and repaired.
func TestDriftIsRepaired(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`), put(policyKey("b"), `{}`))
	z.settle()
	a := z.replica.machine.held[policyKey("a")]
	z.replica.machine.count(policyKey("a"), a.sum, store.Digest{})
	a.sum = store.Digest{}
	for range 2 {
		g.now = g.now.Add(z.pacing.quietEvery)
		for z.send(100) || z.receive(100) {
		}
	}
	require.NoError(t, z.ended)
	require.Equal(t, g.feed.position().digest, z.replica.machine.digest, "within two bookmarks")
	require.Empty(t, z.replica.Status().Problem)
	require.NotZero(t, z.replica.Status().Repairs)
	require.Equal(t, imageOf(g.store.View()), imageOf(z.store.View()))
}

// TestUnknownFramesAreIgnored: a later protocol may add frames.
func TestUnknownFramesAreIgnored(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	z.settle()
	c, sig, err := z.replica.machine.receive(&syncv1.GlobalFrame{}, g.now)
	require.NoError(t, err)
	require.Nil(t, c)
	require.Equal(t, signal{}, sig)
}

// TestNoCommonProtocol is refused with both ranges named.
func TestNoCommonProtocol(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	p := newPublisher(defaultPacing(), g.feed, g.store.View)
	err := p.greet(&syncv1.Hello{Protocol: 9, MinProtocol: 7}, g.now)
	require.ErrorIs(t, err, errNoCommonProtocol)
	require.ErrorContains(t, err, "7 to 9")
}

// TestResumeContinuesAtTheZonesRevision: a zone that reconnects is sent every batch
// that it missed, the first one chained to what it has (I6).
func TestResumeContinuesAtTheZonesRevision(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer func() { z.close() }()
	g.write(put(policyKey("a"), `{}`))
	reconnect(z)
	z.settle()
	has := uint64(z.replica.machine.revision)
	z.cut()
	g.write(put(policyKey("b"), `{}`))
	g.write(put(policyKey("c"), `{}`))
	z.connect()
	z.send(8)
	require.Equal(t, syncv1.Mode_MODE_RESUME, lastMode(z))
	var follows []uint64
	for _, f := range z.down {
		if raw := f.GetBatch(); raw != nil {
			var b syncv1.Batch
			require.NoError(t, proto.Unmarshal(raw, &b))
			require.LessOrEqual(t, b.GetPrevRevision(), has, "nothing between what the zone has and what it is sent")
			has = b.GetRevision()
			follows = append(follows, has)
		}
	}
	require.Len(t, follows, 2)
}

// TestSlowZonesShareMemory is I12: a zone that does not read costs its server less
// than 64 KiB, whether it resumes far behind, by large changes or by many small
// ones, or is sent a snapshot.
//
// The heap is that of the process. No test runs beside one that is not parallel, as
// this one, and what others left running does not decide the middle one of three
// figures.
func TestSlowZonesShareMemory(t *testing.T) {
	const zones, most = 200, 64 << 10
	g := newGlobalSim(t, 64<<20)
	big := func(v int) string { return fmt.Sprintf(`{"x":"%04000d"}`, v) }
	var ops []store.Op
	for i := range 500 {
		ops = append(ops, put(policyKey(fmt.Sprintf("p-%d", i)), big(0)))
	}
	oldest := g.write(ops...)
	for i := range 220 {
		g.write(put(policyKey(fmt.Sprintf("p-%d", i)), big(i)))
	}
	large := g.applied
	for i := range 6000 {
		at := g.feed.position()
		r := resource.New(resource.Meta{Key: policyKey(fmt.Sprintf("small-%d", i)), Version: 1, Revision: at.head + 1}, nil, []byte(`{}`))
		require.NoError(t, g.feed.append(store.Batch{Revision: at.head + 1, Prev: at.head, Changes: []store.Change{{After: r}}}, time.Time{}))
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for name, hello := range map[string]func(i int) *syncv1.Hello{
		"resume": func(i int) *syncv1.Hello {
			return &syncv1.Hello{Protocol: protocolVersion, Epoch: epochTo(g.feed.position().epoch), FromRevision: uint64(oldest) + uint64(i%100)}
		},
		"resume by many small changes": func(i int) *syncv1.Hello {
			return &syncv1.Hello{Protocol: protocolVersion, Epoch: epochTo(g.feed.position().epoch), FromRevision: uint64(large) + uint64(i)}
		},
		"snapshot": func(int) *syncv1.Hello { return &syncv1.Hello{Protocol: protocolVersion} },
	} {
		t.Run(name, func(t *testing.T) {
			var figures []int64
			for range 3 {
				before := heap()
				pubs := make([]*publisher, zones)
				held := make([][]*syncv1.GlobalFrame, zones) // a welcome, and one frame that the zone does not read
				for i := range pubs {
					pubs[i] = newPublisher(defaultPacing(), g.feed, g.store.View)
					require.NoError(t, pubs[i].greet(hello(i), g.now))
					for range 2 {
						f, err := pubs[i].next(g.now)
						require.NoError(t, err)
						require.NotNil(t, f)
						held[i] = append(held[i], f)
					}
				}
				figures = append(figures, (int64(heap())-int64(before))/zones)
				for i, p := range pubs {
					require.Len(t, held[i], 2)
					p.close()
				}
			}
			t.Logf("%d bytes for each zone", figures)
			slices.Sort(figures)
			require.LessOrEqual(t, figures[1], int64(most))
		})
	}
}
