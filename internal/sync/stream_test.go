package zonesync

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/dial/dialtest"
	"meridian/internal/resource"
	"meridian/internal/store"
)

func TestStreamFollowsReconnectsAndRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`))
		z := c.zone("east", dir)
		c.synced(z)
		require.Equal(t, ZoneInSync, c.state("east").State)
		c.write(put(policyKey("b"), `{}`), put(resource.Key{Kind: secretKind, Name: "s"}, `{}`))
		c.synced(z)
		_, leaked := z.store.View().Get(resource.Key{Kind: secretKind, Name: "s"})
		require.False(t, leaked, "I11")

		c.stop() // the global goes away
		synctest.Wait()
		require.False(t, z.client.Status().Connected)
		require.Equal(t, 2, z.store.View().Len(), "I10: a disconnection deletes nothing")
		z.stop()
		z = c.zone("east", dir) // L3: a zone starts without it
		require.Equal(t, 2, z.store.View().Len())

		c.write(store.Delete(policyKey("a")))
		c.start()
		began := time.Now()
		c.synced(z)
		require.LessOrEqual(t, time.Since(began), backoffMost, "L2")
		require.Equal(t, 1, z.store.View().Len())
		z.stop()
		synctest.Wait()
		require.Equal(t, ZoneOffline, c.state("east").State)
		c.stop()
	})
}

// TestConnectedZoneFollowsARestore: a zone that is connected while a backup is
// restored is notified that the history was replaced, connects again and takes the
// state over by itself; one that would lose too much waits for its operator.
func TestConnectedZoneFollowsARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for i := range 20 {
			c.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
		}
		saved := c.global.store.View()
		c.write(put(policyKey("late"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)

		c.global.restore(saved)
		began := time.Now()
		c.synced(z)
		require.LessOrEqual(t, time.Since(began), backoffMost, "L2")
		require.Equal(t, c.global.store.View().Epoch(), z.replica.Status().Epoch)
		require.Equal(t, imageOf(c.global.store.View()), imageOf(z.store.View()))
		require.Equal(t, ZoneInSync, c.state("east").State)

		var many []store.Op
		for i := range 200 {
			many = append(many, put(policyKey(fmt.Sprintf("many-%d", i)), `{}`))
		}
		c.write(many...)
		c.synced(z)
		served := imageOf(z.store.View())
		c.global.restore(saved)
		<-time.After(time.Minute)
		require.Equal(t, served, imageOf(z.store.View()), "I10: held")
		require.Equal(t, ZoneLagging, c.state("east").State)
		require.Contains(t, c.state("east").LastError, "--accept-wipe")
		c.write(put(policyKey("another"), `{}`))
		<-time.After(time.Minute)
		require.Equal(t, served, imageOf(z.store.View()))
		z.replica.AcceptWipe(Wipe{Incarnation: c.global.store.View().Epoch().Incarnation, Revision: c.global.store.Revision()})
		c.synced(z)
		require.Equal(t, imageOf(c.global.store.View()), imageOf(z.store.View()))
		require.Equal(t, ZoneInSync, c.state("east").State)
		z.stop()
		c.stop()
	})
}

// TestBookmarksAreDueByTheMonotonicClock: a clock that is set back does not put bookmarks
// off, without which a zone gives its server up.
func TestBookmarksAreDueByTheMonotonicClock(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	p := newPublisher(defaultPacing(), g.feed, g.store.View)
	p.bookmarked = time.Now()
	due := p.bookmarkAt()
	require.NotEqual(t, due.Round(0), due, "it has no monotonic reading")
	require.Equal(t, due.Round(0), due.Truncate(p.pacing.align), "many are due together")
}

// TestBookmarksWhenDue: a bookmark follows within a second of a change, synced or not, and
// comes every second while the zone is awaited.
func TestBookmarksWhenDue(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := newPublisher(defaultPacing(), g.feed, g.store.View)
	// frames are what is sent at a time.
	frames := func() (bookmarks, others int) {
		for {
			f, err := p.next(now)
			require.NoError(t, err)
			switch {
			case f == nil:
				return bookmarks, others
			case f.GetBookmark() != nil:
				bookmarks++
			default:
				others++
			}
		}
	}
	// due is how long it takes to the next bookmark.
	due := func() time.Duration {
		began := now
		for now.Sub(began) < time.Minute {
			if now = p.deadline(); now.Before(began) {
				now = began
			}
			if n, _ := frames(); n > 0 {
				require.Equal(t, 1, n)
				return now.Sub(began)
			}
		}
		require.Fail(t, "no bookmark")
		return 0
	}
	require.NoError(t, p.greet(&syncv1.Hello{Protocol: protocolVersion, MinProtocol: minProtocolVersion, Zone: "east", Instance: "i"}, now))
	n, _ := frames()
	require.Equal(t, 1, n, "as soon as it is up to date")
	require.Equal(t, p.pacing.quietEvery, due())
	require.Equal(t, p.pacing.quietEvery, due())
	now = now.Add(2 * time.Second)
	g.write(put(policyKey("a"), `{}`))
	n, batches := frames()
	require.Equal(t, 1, batches)
	require.Zero(t, n, "a change is not followed at once by a second frame")
	require.Equal(t, p.pacing.quietEvery-2*time.Second, due(), "no later than without it")
	g.write(put(policyKey("b"), `{}`))
	frames()
	require.Equal(t, p.pacing.bookmarkEvery, due())
	g.write(put(resource.Key{Kind: secretKind, Name: "s"}, `{}`))
	require.Equal(t, p.pacing.bookmarkEvery, due(), "the head has moved")
	require.NoError(t, p.acknowledge(&syncv1.Ack{Nacks: []*syncv1.Nack{{}}}, now))
	require.Equal(t, p.pacing.bookmarkEvery, due(), "the zone has more to report")
	p.awaited = true
	require.Equal(t, p.pacing.bookmarkEvery, due())
	require.Equal(t, p.pacing.bookmarkEvery, due())
	p.awaited = false
	require.Equal(t, p.pacing.quietEvery, due())

	require.NoError(t, p.greet(&syncv1.Hello{Protocol: protocolVersion, MinProtocol: minProtocolVersion, Zone: "east", Instance: "i", Features: []string{FeatureHeartbeat}}, now))
	n, _ = frames()
	require.Equal(t, 1, n)
	due() // the first follows the state that it was sent
	require.Equal(t, p.pacing.signedEvery, due(), "it sends heartbeats")
	now = now.Add(2 * time.Second)
	g.write(put(policyKey("c"), `{}`))
	frames()
	require.Equal(t, p.pacing.bookmarkEvery, due())
	p.awaited = true
	require.Equal(t, p.pacing.bookmarkEvery, due())
}

// TestAcksThatChangeNothing wake no writer: one does when the zone was sent all that it may
// be, or reports what it could not accept.
func TestAcksThatChangeNothing(t *testing.T) {
	g := newGlobalSim(t, 1<<20)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := newPublisher(defaultPacing(), g.feed, g.store.View)
	c := &conn{server: &Server{registry: newRegistry()}, pub: p}
	ack := func(a *syncv1.Ack) bool {
		send, err := c.take(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: a}}, now)
		require.NoError(t, err)
		return send
	}
	// send is all that may be sent, and the bytes of it.
	send := func() uint64 {
		before := p.sent
		for {
			f, err := p.next(now)
			require.NoError(t, err)
			if f == nil {
				return p.sent - before
			}
		}
	}
	require.NoError(t, p.greet(&syncv1.Hello{Protocol: protocolVersion, MinProtocol: minProtocolVersion, Zone: "east", Instance: "i"}, now))
	send()
	require.False(t, ack(&syncv1.Ack{Consumed: p.sent}))
	g.write(put(policyKey("a"), `{}`))
	require.NotZero(t, send())
	require.False(t, ack(&syncv1.Ack{Consumed: p.sent}))
	require.Equal(t, p.consumed, p.burst, "it was up to date: what follows is a burst of its own")
	require.True(t, ack(&syncv1.Ack{Consumed: p.sent, Nacks: []*syncv1.Nack{{}}}))
	for i := range 8 {
		g.write(put(policyKey("a"), fmt.Sprintf(`{"v":%q}`, strings.Repeat(strconv.Itoa(i), 20<<10))))
	}
	sent := send()
	require.Less(t, sent, uint64(100<<10))
	require.True(t, ack(&syncv1.Ack{Consumed: p.sent}), "the rest may be sent now")
	require.NotZero(t, send())
}

// framesConn notes the types of the HTTP/2 frames that are written to a connection while
// notes is set. Every write has whole frames.
type framesConn struct {
	net.Conn
	notes *atomic.Bool
	types chan<- byte
}

// Write implements net.Conn.
func (c framesConn) Write(b []byte) (int, error) {
	for rest := b; c.notes.Load() && len(rest) > 0; {
		c.types <- rest[3]
		rest = rest[9+(int(rest[0])<<16|int(rest[1])<<8|int(rest[2])):]
	}
	return c.Conn.Write(b)
}

// TestABookmarkCostsOneFrame of the zone, the acknowledgement: gRPC adds no ping to measure
// the connection, which the global would have to answer.
func TestABookmarkCostsOneFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var notes atomic.Bool
		types := make(chan byte, 1000)
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				conn, err := c.dial(ctx, a)
				return framesConn{conn, &notes, types}, err
			})}
		})
		c.synced(z)
		<-time.After(10 * time.Second)
		synctest.Wait()
		notes.Store(true)
		<-time.After(20 * defaultPacing().quietEvery)
		synctest.Wait()
		notes.Store(false)
		z.stop()
		c.stop()
		close(types)
		acks := 0
		for frame := range types {
			require.Zero(t, frame, "only DATA")
			acks++
		}
		require.NotZero(t, acks)
	})
}

// TestHeartbeat: an idle stream carries an Ack every 3.25 seconds and a bookmark every six,
// or every three from a server of an earlier release; a zone that hears nothing for ten
// connects again.
func TestHeartbeat(t *testing.T) {
	t.Run("of this release", func(t *testing.T) { testHeartbeat(t, defaultPacing().signedEvery, nil) })
	t.Run("of an earlier server", func(t *testing.T) {
		testHeartbeat(t, defaultPacing().quietEvery, func(f *syncv1.ZoneFrame) {
			if h := f.GetHello(); h != nil {
				h.Features = nil // it does not know what they mean
			}
		})
	})
}

func testHeartbeat(t *testing.T, bookmarks time.Duration, before func(*syncv1.ZoneFrame)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var hung atomic.Bool
		n := counted{before: before}
		z := c.zone("east", t.TempDir(), n.count(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.DialOptions = append(cc.DialOptions, grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				conn, err := c.dial(ctx, a)
				return dialtest.Hanging(conn, hung.Load), err
			}))
		})
		c.synced(z)
		<-time.After(2 * time.Second) // the bookmark after the change
		n.reset()
		for range 60 {
			<-time.After(500 * time.Millisecond)
			synctest.Wait()
			require.LessOrEqual(t, time.Since(c.state("east").LastSeen), heartbeatEvery)
			require.Equal(t, ZoneInSync, c.state("east").State)
		}
		require.InDelta(t, 30*time.Second/bookmarks, n.bookmarks.Load(), 1)
		require.InDelta(t, 30*time.Second/(3*time.Second), n.acks.Load(), 1, "nothing happens, and little is said")
		require.Less(t, heartbeatEvery+time.Second, staleAfter, "a heartbeat may take a second")
		require.Less(t, bookmarks+3*time.Second, silenceAfter, "and a bookmark three")
		hung.Store(true) // the network swallows everything, both ways
		<-time.After(staleAfter + 1)
		synctest.Wait()
		require.Equal(t, ZoneStale, c.state("east").State)
		<-time.After(silenceAfter - staleAfter + time.Second)
		require.False(t, z.client.Status().Connected)
		require.Contains(t, z.client.Status().LastError, "nothing received")
		hung.Store(false)
		c.write(put(policyKey("a"), `{}`))
		c.synced(z)
		require.Len(t, c.state("east").Instances, 1, "the older connection was replaced")
		z.stop()
		c.stop()
	})
}

// TestDisabledZoneIsCutOff is §7.7: within a second, with the reason.
func TestDisabledZoneIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir())
		c.synced(z)
		other := "another"
		c.valid.Store(&other)
		began := time.Now()
		c.write(put(resource.Key{Kind: zoneKind, Name: "east"}, `{"enabled":false}`))
		synctest.Wait()
		require.Less(t, time.Since(began), time.Second)
		require.False(t, z.client.Status().Connected)
		require.Contains(t, z.client.Status().LastError, "no longer authorized")
		require.Contains(t, c.state("east").LastError, "no longer authorized")
		<-time.After(time.Minute)
		require.Contains(t, z.client.Status().LastError, "is not authorized: the token does not name zone east")

		token := "secret"
		c.valid.Store(&token)
		<-time.After(backoffMost + time.Second)
		require.True(t, z.client.Status().Connected)
		z.stop()
		c.stop()
	})
}

// TestAZonesStreamEndsWithItsToken: when that expires, and not before it, with the reason.
func TestAZonesStreamEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		expires := time.Now().Add(90*time.Minute + 500*time.Millisecond)
		var asked atomic.Int32
		c.server.cfg.Authorize = func(context.Context, string, resource.ZoneName) (time.Time, error) {
			asked.Add(1)
			if !time.Now().Before(expires) {
				return time.Time{}, errors.New("the token has expired")
			}
			return expires.Round(0), nil // as a token has it
		}
		z := c.zone("east", t.TempDir())
		c.synced(z)
		<-time.After(time.Until(expires) - time.Millisecond)
		synctest.Wait()
		require.True(t, z.client.Status().Connected)
		require.LessOrEqual(t, asked.Load(), int32(92), "once a minute and at the beginning")
		<-time.After(time.Millisecond)
		synctest.Wait()
		require.False(t, z.client.Status().Connected)
		require.Contains(t, z.client.Status().LastError, "zone east is no longer authorized: the token has expired")
		z.stop()
		c.stop()
	})
}

// Nothing is kept of a zone that was deleted, connected or not.
func TestADeletedZoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		key := func(zone string) resource.Key { return resource.Key{Kind: zoneKind, Name: zone} }
		c.write(put(key("east"), `{}`), put(key("west"), `{}`))
		east, west := c.zone("east", t.TempDir()), c.zone("west", t.TempDir())
		c.synced(east)
		c.synced(west)
		west.stop()
		synctest.Wait()
		require.Len(t, c.server.Zones(), 2, "one is away, and remembered")

		other := "another"
		c.valid.Store(&other)
		c.write(store.Delete(key("east")), store.Delete(key("west")))
		synctest.Wait()
		<-time.After(time.Minute)
		require.False(t, east.client.Status().Connected)
		require.Empty(t, c.server.Zones())
		require.Empty(t, c.server.registry.zones)
		east.stop()
		c.stop()
	})
}

// TestNewerConnectionReplacesOlder: one replica has one stream.
func TestNewerConnectionReplacesOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithPerRPCCredentials(bearerToken{token: func(context.Context) (string, error) { return "secret", nil }}))
		require.NoError(t, err)
		open := func(lease uint64) syncv1.SyncService_StreamClient {
			stream, err := syncv1.NewSyncServiceClient(conn).Stream(context.Background())
			require.NoError(t, err)
			require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{
				Hello: &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: "east", Instance: "i", Lease: lease},
			}}))
			return stream
		}
		fenced := func(s syncv1.SyncService_StreamClient) syncv1.FenceReason {
			for {
				f, err := s.Recv()
				require.NoError(t, err)
				if f.GetFence() != nil {
					return f.GetFence().Reason
				}
			}
		}
		first := open(5)
		_, err = first.Recv()
		require.NoError(t, err)
		second := open(6)
		require.Equal(t, syncv1.FenceReason_FENCE_REASON_REPLACED, fenced(first))
		delayed := open(5)
		require.Equal(t, syncv1.FenceReason_FENCE_REASON_REPLACED, fenced(delayed))
		f, err := second.Recv()
		require.NoError(t, err)
		require.NotNil(t, f.GetWelcome())
		require.NoError(t, conn.Close())
		c.stop()
	})
}

func TestRefusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		last := func(h *syncv1.Hello) codes.Code {
			stream, err := syncv1.NewSyncServiceClient(conn).Stream(context.Background())
			require.NoError(t, err)
			require.NoError(t, stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: h}}))
			for {
				if _, err := stream.Recv(); err != nil {
					return status.Code(err)
				}
			}
		}
		require.Equal(t, codes.PermissionDenied, last(&syncv1.Hello{Protocol: 1, Zone: "east", Instance: "i"}), "no token")
		empty := ""
		c.valid.Store(&empty)
		require.Equal(t, codes.InvalidArgument, last(&syncv1.Hello{Protocol: 1}), "no zone")
		require.Equal(t, codes.InvalidArgument, last(&syncv1.Hello{Protocol: 1, Zone: "east", Instance: "\x1b[2J"}), "a name that acts on terminals")
		require.Equal(t, codes.FailedPrecondition, last(&syncv1.Hello{Protocol: 9, MinProtocol: 9, Zone: "east", Instance: "i"}))
		require.NoError(t, conn.Close())
		c.stop()
	})
}

// TestSeveralAddresses: a zone finds a server that works.
func TestSeveralAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Addresses = []string{"dead-1:1", "global:1", "dead-2:1"}
			cc.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				if strings.HasPrefix(a, "dead") {
					return nil, errors.New("connection refused")
				}
				return c.dial(ctx, a)
			})}
		})
		c.synced(z)
		require.Equal(t, "global:1", z.client.Status().Address)
		z.stop()
		c.stop()
	})
}

// TestFailedDisk: what cannot be persisted is neither shown nor acknowledged,
// and is fetched again when the disk works again.
func TestFailedDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)
		c.diskFull.Store(true)
		at := z.store.Revision()
		for i := range 40 {
			c.write(put(policyKey(fmt.Sprintf("p-%d", i)), fmt.Sprintf(`"%04000d"`, i)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		require.ErrorIs(t, z.store.Wait(ctx, at+1), context.DeadlineExceeded, "no reader sees what is not on disk")
		full := c.state("east")
		require.Less(t, full.Revision, c.global.applied)
		require.Equal(t, at, z.store.Revision())
		require.Equal(t, at, z.replica.Status().Revision)
		c.diskFull.Store(false)
		c.synced(z)
		require.Equal(t, 41, z.store.View().Len())
		z.stop()
		c.stop()
	})
}

// TestAcknowledgedWhenDurable: while a zone's disk works on a write, the zone
// neither shows nor acknowledges it.
func TestAcknowledgedWhenDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)
		at := z.store.Revision()
		done := make(chan struct{})
		c.writing.Store(&done)
		c.write(put(policyKey("b"), `{}`))
		<-time.After(3 * time.Second)
		require.Equal(t, at, z.store.Revision())
		require.Equal(t, at, c.state("east").Revision)
		c.writing.Store(nil)
		close(done)
		c.synced(z)
		z.stop()
		c.stop()
	})
}

// TestFailedSync: a write is in the file although its sync failed. The zone
// shows what it adopts from there (I3), and acknowledges it only once a later
// write has made it durable (§7.4).
func TestFailedSync(t *testing.T) {
	for _, failures := range []int64{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.write(put(policyKey("a"), `{}`))
			z := c.zone("east", t.TempDir())
			c.synced(z)

			c.syncs.Store(failures)
			c.write(put(policyKey("b"), `{}`))
			c.synced(z)
			require.Negative(t, c.syncs.Load(), "acknowledged with a write that did not fail")
			require.Equal(t, 2, z.store.View().Len())
			require.Equal(t, c.global.applied, z.store.Revision())

			c.syncs.Store(failures)
			c.write(store.Delete(policyKey("a")), put(policyKey("b"), `{"later":true}`))
			c.synced(z)
			require.Equal(t, 1, z.store.View().Len())
			require.Zero(t, z.replica.Status().Repairs)
			z.stop()
			c.stop()
		})
	}
}

// TestServedDiffers: a reader of the store would see another state than the one
// that the replica holds, for whatever reason. It is noticed without a change
// and without the global, and shown anew.
func TestServedDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.write(put(policyKey("a"), `{}`), put(policyKey("b"), `{}`))
		z := c.zone("east", t.TempDir())
		c.synced(z)
		at := z.store.View()
		require.NoError(t, z.store.Reset(&store.Snapshot{Revision: at.Revision(), Time: at.Time(), Epoch: at.Epoch(), Resources: slices.Collect(at.All())[:1]}))
		require.Equal(t, 1, z.store.View().Len())
		<-time.After(defaultPacing().signedEvery + time.Second)
		require.Equal(t, 2, z.store.View().Len())
		require.Equal(t, at.Revision(), z.store.Revision())
		z.stop()
		c.stop()
	})
}

// TestRealSockets runs the same over TCP with nothing left behind.
func TestRealSockets(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := newCluster(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = c.grpc.Serve(lis) })
	z := c.zone("east", filepath.Join(t.TempDir()), func(_ *ReplicaConfig, cc *ClientConfig) {
		cc.Addresses, cc.DialOptions = []string{lis.Addr().String()}, nil
	})
	for i := range 50 {
		c.write(put(policyKey(fmt.Sprintf("p-%d", i)), `{}`))
	}
	c.synced(z)
	require.Equal(t, 50, z.store.View().Len())
	z.stop()
	c.stop()
	serving.Wait()
}
