package zonesync

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
)

// TestTurns: what is asked for is done by one call at a time, after the last one asked,
// and by none once a turn is over.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group sync.WaitGroup
		calls, hold := 0, make(chan struct{})
		u := &turn{group: &group, run: func() bool {
			calls++
			<-hold
			return calls == 3
		}}
		step := func(want int) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, want, calls)
		}
		u.ask()
		step(1)
		u.ask()
		u.ask()
		step(1)
		hold <- struct{}{}
		step(2) // once for both
		hold <- struct{}{}
		step(2)
		group.Wait() // nothing waits for the next
		u.ask()
		step(3)
		u.ask()
		hold <- struct{}{}
		group.Wait()
		u.ask()
		step(3) // it said that it was the last

		u = &turn{group: &group, run: func() bool { calls++; return false }}
		u.end()
		u.ask()
		step(3)
	})
}

// TestDispatcherWakesOnTime: each stream is woken at the time that it last asked for, by
// one timer, and not once it has ended.
func TestDispatcherWakesOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group sync.WaitGroup
		d := newDispatcher()
		began := time.Now()
		var mu sync.Mutex
		var woken []string
		stream := func(name string) *conn {
			c := &conn{}
			c.writer = turn{group: &group, run: func() bool {
				mu.Lock()
				defer mu.Unlock()
				woken = append(woken, fmt.Sprintf("%s@%s", name, time.Since(began)))
				return false
			}}
			d.add(c)
			return c
		}
		a, b, c, e := stream("a"), stream("b"), stream("c"), stream("e")
		group.Go(func() { d.wakeOnTime(t.Context()) })
		d.schedule(a, began.Add(5*time.Second))
		d.schedule(b, began.Add(3*time.Second))
		d.schedule(c, began.Add(4*time.Second))
		d.schedule(e, began.Add(time.Second))
		synctest.Wait()
		d.schedule(a, began.Add(2*time.Second)) // sooner
		d.schedule(b, began.Add(6*time.Second)) // later
		d.schedule(c, time.Time{})              // never
		d.remove(e)
		d.schedule(e, began.Add(time.Second))
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"a@2s", "b@6s"}, woken)
		d.schedule(c, began) // long ago
		synctest.Wait()
		require.Equal(t, []string{"a@2s", "b@6s", "c@10s"}, woken)
		require.Empty(t, d.times)
	})
}

// TestStreamsWithoutHello end when they have been open for a while.
func TestStreamsWithoutHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		stream, closed := c.openStream()
		began := time.Now()
		f, err := stream.Recv()
		require.NoError(t, err)
		require.Contains(t, f.GetFence().GetMessage(), "no Hello")
		require.Equal(t, helloTimeout, time.Since(began))
		_, err = stream.Recv()
		require.Equal(t, codes.Canceled, status.Code(err), "a zone that does not end the stream itself")
		require.Equal(t, helloTimeout+fenceTimeout, time.Since(began))
		closed()
		c.stop()
	})
}

// TestNothingWaitsToSend: between two frames a stream has no writer, and what one batch
// more costs a stream allocates nothing, where another stream was sent it.
func TestNothingWaitsToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		z := c.zone("east", t.TempDir())
		for i := range 3 {
			c.write(put(policyKey("a"), fmt.Sprint(i)))
			c.synced(z)
			synctest.Wait()
			streams := c.server.dispatcher.streams()
			require.Len(t, streams, 1)
			require.False(t, streams[0].writer.running)
			require.False(t, streams[0].checker.running)
		}
		z.stop()
		synctest.Wait()
		require.Empty(t, c.server.dispatcher.streams())
		require.Empty(t, c.server.dispatcher.times)
		c.stop()
	})

	g := newGlobalSim(t, 1<<20)
	p := newPublisher(defaultPacing(), g.feed, g.store.View)
	require.NoError(t, p.greet(&syncv1.Hello{Protocol: protocolVersion, MinProtocol: minProtocolVersion, Zone: "east", Instance: "i"}, g.now))
	next := func() *syncv1.GlobalFrame {
		f, err := p.next(g.now)
		require.NoError(t, err)
		return f
	}
	require.NotNil(t, next().GetWelcome())
	for f := next(); f != nil; f = next() {
		require.Nil(t, f.GetBatch())
	}
	p.pacing.coalesceBytes = 1 // one batch at a time
	const changes = 20
	for i := range changes + 1 {
		g.write(put(policyKey("a"), fmt.Sprint(i)))
	}
	for _, e := range g.feed.entries {
		_, err := e.encoded()
		require.NoError(t, err)
	}
	require.Zero(t, testing.AllocsPerRun(changes, func() {
		if next().GetBatch() == nil {
			t.Error("a batch is missing")
		}
	}))
	require.Nil(t, next(), "as many as there were changes")
}

// openStream opens a stream that says nothing by itself.
func (c *cluster) openStream() (stream syncv1.SyncService_StreamClient, closed func()) {
	conn, err := grpc.NewClient("passthrough:global", grpc.WithContextDialer(c.dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearerToken{token: func(context.Context) (string, error) { return "secret", nil }}))
	require.NoError(c.t, err)
	stream, err = syncv1.NewSyncServiceClient(conn).Stream(context.Background())
	require.NoError(c.t, err)
	return stream, func() { require.NoError(c.t, conn.Close()) }
}
