package zonesync

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/rpcerr"
)

func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		hold := make(chan struct{})
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Answer = func(ctx context.Context, request []byte) ([]byte, error) {
				switch string(request) {
				case "fail":
					return nil, status.Error(codes.NotFound, "no such dataplane")
				case "wait":
					select {
					case <-hold:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				case "own":
					return nil, rpcerr.New(rpcerr.Timeout, "NOT_LIVE", "a proxy does not answer")
				case "late":
					return nil, fmt.Errorf("match: %w", context.DeadlineExceeded)
				case "large":
					return make([]byte, 3<<20), nil
				}
				return append([]byte("answer to "), request...), nil
			}
		})
		c.synced(z)
		ctx := context.Background()
		answer, err := c.server.Ask(ctx, "east", []byte("q"))
		require.NoError(t, err)
		require.Equal(t, "answer to q", string(answer))
		answer, err = c.server.Ask(ctx, "east", []byte("large"))
		require.NoError(t, err)
		require.Len(t, answer, 3<<20)
		_, err = c.server.Ask(ctx, "east", []byte("fail"))
		require.Equal(t, codes.NotFound, status.Code(err))
		_, err = c.server.Ask(ctx, "west", []byte("q"))
		require.ErrorIs(t, err, ErrZoneOffline)
		_, err = c.server.Ask(ctx, "east", []byte("late"))
		require.ErrorIs(t, err, context.DeadlineExceeded, "whichever clock runs out first")
		_, err = c.server.Ask(ctx, "east", []byte("own"))
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the zone still had time")
		require.ErrorContains(t, err, "a proxy does not answer")
		require.True(t, rpcerr.HasReason(err, "NOT_LIVE"))
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err = c.server.Ask(limited, "east", []byte("wait"))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait() // the zone has given up too

		failed := make(chan error)
		go func() {
			_, err := c.server.Ask(ctx, "east", []byte("wait"))
			failed <- err
		}()
		synctest.Wait()
		z.stop()
		require.ErrorIs(t, <-failed, ErrZoneOffline)
		c.stop()
	})
}

// frozenConn is the connection of a process that may be stopped: nothing goes in or
// out meanwhile.
type frozenConn struct {
	net.Conn
	// frozen is nil while the process runs, and otherwise closed when it continues.
	frozen *atomic.Pointer[chan struct{}]
}

func (c frozenConn) wait() {
	if frozen := c.frozen.Load(); frozen != nil {
		<-*frozen
	}
}

func (c frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c frozenConn) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

// TestAskOfAFrozenZone costs one wait, and little while the zone is known to be
// silent; a zone that works on an answer for long is waited for.
func TestAskOfAFrozenZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var frozen atomic.Pointer[chan struct{}]
		z := c.zone("east", t.TempDir(), func(_ *ReplicaConfig, cc *ClientConfig) {
			cc.Answer = func(_ context.Context, request []byte) ([]byte, error) {
				if string(request) == "slow" {
					<-time.After(9 * time.Second)
				}
				return request, nil
			}
			cc.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) {
				conn, err := c.dial(ctx, a)
				return frozenConn{conn, &frozen}, err
			})}
		})
		c.synced(z)
		ask := func(question string) (time.Duration, error) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := c.server.Ask(ctx, "east", []byte(question))
			return time.Since(began), err
		}
		took, err := ask("slow")
		require.NoError(t, err, "it says something every second")
		require.GreaterOrEqual(t, took, 9*time.Second)

		hold := make(chan struct{})
		frozen.Store(&hold)
		took, err = ask("first")
		require.ErrorIs(t, err, ErrZoneSilent)
		require.Equal(t, askedGrace, took, "it was not known to be silent")
		for range 5 {
			took, err = ask("again")
			require.ErrorIs(t, err, ErrZoneSilent)
			require.Equal(t, laterGrace, took)
		}
		require.Empty(t, c.server.registry.best("east", c.global.store.View().Epoch(), time.Now()).asks.pending)

		frozen.Store(nil)
		close(hold)
		synctest.Wait()
		took, err = ask("back")
		require.NoError(t, err)
		require.Zero(t, took)

		// Known to be silent before the question, it has the first grace.
		hold = make(chan struct{})
		frozen.Store(&hold)
		<-time.After(silentAfter + time.Second)
		took, err = ask("late")
		require.ErrorIs(t, err, ErrZoneSilent)
		require.Equal(t, firstGrace, took)
		took, err = ask("later")
		require.ErrorIs(t, err, ErrZoneSilent)
		require.Equal(t, laterGrace, took)
		frozen.Store(nil)
		close(hold)
		z.stop()
		c.stop()
	})
}

// TestGivenUpBeforeItWasSent: of a zone that does not read, no more questions are kept than
// wait for it.
func TestGivenUpBeforeItWasSent(t *testing.T) {
	var writers sync.WaitGroup
	c := &conn{writer: turn{group: &writers, run: func() bool { return false }}}
	kept := &syncv1.Ask{Request: []byte("kept")}
	_, err := c.ask(kept)
	require.NoError(t, err)
	for range 2 * maxPendingAsks {
		a := &syncv1.Ask{Request: []byte("given up")}
		_, err := c.ask(a)
		require.NoError(t, err)
		c.forget(a.Id)
	}
	writers.Wait()
	require.Equal(t, []*syncv1.Ask{kept}, c.asks.unsent)
	require.Same(t, kept, c.asks.next())
	require.Nil(t, c.asks.next())
}
