package zonesync

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// TestAckPace: whatever a zone is sent and when, what is owed waits no longer than ackEvery
// since the acknowledgement before, less than ackBytes wait at any time, what is not to wait
// does not, and nothing else is acknowledged within ackEvery; where nothing is owed, there is
// a heartbeat after heartbeatEvery.
func TestAckPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_800_000_000, 0)
		var p AckPace
		due, wait := p.Due(now)
		require.False(t, due, "there was no Welcome")
		require.Zero(t, wait)
		var last time.Time
		var consumed, acked uint64
		for range rapid.IntRange(1, 100).Draw(t, "frames") {
			size := rapid.Uint64Range(1, ackBytes*5/4).Draw(t, "size")
			atOnce := rapid.IntRange(0, 9).Draw(t, "at once") == 0
			consumed += size
			p.Owe(consumed, atOnce)
			for passes := rapid.SampledFrom([]time.Duration{0, ackEvery / 7, ackEvery, 3 * heartbeatEvery}).Draw(t, "passes"); ; {
				due, wait := p.Due(now)
				every := heartbeatEvery
				if consumed > acked {
					every = ackEvery
				}
				require.Equal(t, atOnce || consumed-acked >= ackBytes || now.Sub(last) >= every, due)
				if due {
					p.Acknowledged(now)
					last, acked, atOnce = now, consumed, false
					continue
				}
				require.Equal(t, last.Add(every), now.Add(wait))
				step := min(passes, wait)
				if passes -= step; step == 0 {
					break
				}
				now = now.Add(step)
			}
		}
	})
}

// counted are the frames of a zone's connections.
type counted struct {
	acks, bookmarks atomic.Int64
	// before, unless nil, is called with each frame that the zone sends.
	before func(*syncv1.ZoneFrame)
}

func (n *counted) reset() {
	n.acks.Store(0)
	n.bookmarks.Store(0)
}

// count counts the frames of a zone.
func (n *counted) count() zoneOption {
	return func(_ *ReplicaConfig, cc *ClientConfig) {
		cc.DialOptions = append(cc.DialOptions, grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := streamer(ctx, desc, conn, method, opts...)
			return countedStream{stream, n}, err
		}))
	}
}

type countedStream struct {
	grpc.ClientStream
	n *counted
}

func (c countedStream) SendMsg(m any) error {
	f := m.(*syncv1.ZoneFrame)
	if f.GetAck() != nil {
		c.n.acks.Add(1)
	}
	if c.n.before != nil {
		c.n.before(f)
	}
	return c.ClientStream.SendMsg(m)
}

func (c countedStream) RecvMsg(m any) error {
	err := c.ClientStream.RecvMsg(m)
	if m.(*syncv1.GlobalFrame).GetBookmark() != nil {
		c.n.bookmarks.Add(1)
	}
	return err
}

// TestChangesShareAcknowledgements: a change is acknowledged at once, and changes that follow
// each other a few times a second, however many they are; while the zone keeps up with them
// it is in sync, and while it does not it lags.
func TestChangesShareAcknowledgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var n counted
		z := c.zone("east", t.TempDir(), n.count())
		c.synced(z)
		<-time.After(5 * time.Second)
		write := func(i int) { c.write(put(policyKey("p"), fmt.Sprintf(`{"n":%d}`, i))) }

		n.reset()
		write(0)
		synctest.Wait()
		require.EqualValues(t, 1, n.acks.Load(), "the first at once")
		require.Equal(t, c.global.applied, c.state("east").Revision)

		const changes, every, runs = 500, 5 * time.Millisecond, 500 * 5 * time.Millisecond
		n.reset()
		for i := range changes {
			write(i + 1)
			<-time.After(every)
			synctest.Wait()
			require.Equal(t, c.global.applied, z.store.Revision(), "every change is there at once")
			require.Equal(t, ZoneInSync, c.state("east").State)
			require.Zero(t, c.state("east").Lag)
		}
		bookmarks := int64(runs/c.server.pacing.bookmarkEvery) + 1
		require.LessOrEqual(t, n.acks.Load(), int64(runs/ackEvery)+1+bookmarks)
		<-time.After(ackEvery)
		synctest.Wait()
		require.Equal(t, c.global.applied, c.state("east").Revision, "without being asked")

		blocked := make(chan struct{})
		c.writing.Store(&blocked)
		for i := range 2 * int(withheldFor/every) {
			write(changes + i + 1)
			<-time.After(every)
		}
		require.Equal(t, ZoneLagging, c.state("east").State, "it does not keep up")
		c.writing.Store(nil)
		close(blocked)
		<-time.After(ackEvery)
		synctest.Wait()
		require.Equal(t, ZoneInSync, c.state("east").State)
		z.stop()
		c.stop()
	})
}

// TestLagOfOneChange: a change a while after the zone's last acknowledgement, which it would
// acknowledge at once, counts as lag at once.
func TestLagOfOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir())
		c.synced(z)
		<-time.After(2 * ackEvery)
		blocked := make(chan struct{})
		c.writing.Store(&blocked)
		c.write(put(policyKey("p"), `{}`))
		synctest.Wait()
		require.Equal(t, ZoneLagging, c.state("east").State)
		require.EqualValues(t, 1, c.state("east").Lag)
		c.writing.Store(nil)
		close(blocked)
		synctest.Wait()
		require.Equal(t, ZoneInSync, c.state("east").State)
		z.stop()
		c.stop()
	})
}

// TestWaitIsAcknowledgedAtOnce: while a client waits until zones have a change, no zone puts
// its acknowledgement off, and the bookmark that prompts it is in place of the next one.
func TestWaitIsAcknowledgedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var n counted
		east, west := c.zone("east", t.TempDir(), n.count()), c.zone("west", t.TempDir())
		c.synced(east)
		c.synced(west)
		<-time.After(5 * time.Second)
		n.reset()
		began := time.Now()
		for i := range 20 {
			c.write(put(policyKey("p"), fmt.Sprintf(`{"n":%d}`, i)))
			synctest.Wait() // the zones have it, and have acknowledged the first only
			require.NoError(t, c.applied(t.Context(), c.global.applied))
		}
		require.Zero(t, time.Since(began))
		require.LessOrEqual(t, n.acks.Load(), int64(20+1), "one for each wait")
		n.reset()
		<-time.After(heartbeatEvery - time.Second)
		require.Zero(t, n.acks.Load(), "there is nothing left to say")
		east.stop()
		west.stop()
		c.stop()
	})
}

// TestWindowIsAcknowledgedInTime: changes of any size and number arrive without waiting for
// an acknowledgement that was put off.
func TestWindowIsAcknowledgedInTime(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "large": 10 << 10, "larger than the window": 2 * firstWindow} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				z := c.zone("east", t.TempDir())
				c.synced(z)
				<-time.After(5 * time.Second)
				began := time.Now()
				for n := range 8*firstWindow/size + 8 {
					c.write(put(policyKey(fmt.Sprintf("p-%d", n)), fmt.Sprintf(`{"v":%q}`, strings.Repeat("x", size))))
					if n%2 == 0 {
						synctest.Wait() // each by itself, and two at a time
					}
				}
				require.NoError(t, c.visible(z))
				require.Zero(t, time.Since(began))
				z.stop()
				c.stop()
			})
		})
	}
}

// TestReportsAreNotPutOff: what a zone cannot accept, what holds it back, and the end of
// either is acknowledged at once.
func TestReportsAreNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir())
		c.synced(z)
		<-time.After(5 * time.Second)
		began := time.Now()
		for range 3 {
			c.write(put(policyKey("a"), `{}`))
			c.write(put(policyKey("b"), unusable))
			synctest.Wait()
			require.Len(t, c.state("east").Quarantined, 1)
			c.write(store.Delete(policyKey("b")))
			synctest.Wait()
			require.Empty(t, c.state("east").Quarantined)
		}
		require.Zero(t, time.Since(began))
		z.stop()
		c.stop()
	})
	g := newGlobalSim(t, 1<<20)
	z := newZoneSim(t, g, t.TempDir())
	defer z.close()
	m := z.replica.machine
	due := func() bool {
		m.owe(signal{ack: true})
		due, _ := m.pace.Due(g.now)
		m.acknowledge(g.now)
		return due
	}
	require.True(t, due(), "the first")
	require.False(t, due())
	m.problem = "held"
	require.True(t, due(), "what holds it back")
	require.False(t, due(), "as before")
	m.problem = ""
	require.True(t, due(), "nothing holds it back any more")
	require.True(t, func() bool {
		m.greet()
		return due()
	}(), "the first of a stream")
}

// TestWithheld is when a change does not count as lag.
func TestWithheld(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	f := newFeed(syncedInTests, 1<<20)
	f.reset(store.New(memory()).View())
	require.NoError(t, f.append(store.Batch{Revision: 1, Epoch: &thisEpoch}, now))
	at := resource.Revision(1)
	change := func(after time.Duration) {
		now = now.Add(after)
		require.NoError(t, f.append(store.Batch{Revision: at + 1, Prev: at, Changes: []store.Change{{After: put(policyKey("p"), `{}`).Resource}}}, now))
		at++
	}
	change(0)
	acked, last := at, now
	require.False(t, f.withheld(acked, thisEpoch, last, now), "nothing to acknowledge")
	change(ackEvery / 2)
	require.True(t, f.withheld(acked, thisEpoch, last, now))
	require.True(t, f.withheld(acked, thisEpoch, last, now.Add(withheldFor-1)))
	require.False(t, f.withheld(acked, thisEpoch, last, now.Add(withheldFor)), "for too long")
	require.False(t, f.withheld(acked, store.Epoch{ClusterID: "c2"}, last, now), "of another history")
	change(ackEvery)
	require.True(t, f.withheld(acked, thisEpoch, last, now), "the acknowledgement may be under way")
	change(ackEvery / 2)
	require.False(t, f.withheld(acked, thisEpoch, last, now), "it should be here")
	require.True(t, f.withheld(at-1, thisEpoch, now.Add(-1), now))
}
