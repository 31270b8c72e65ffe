package global

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/service/admin"
)

// Waits for one revision ask zones as often as one wait does, however many they are; and
// once all callers have gone, no question is asked.
func TestWaitsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var reply atomic.Value
		reply.Store(`{"items": [], "behind": {"asOf": 9, "count": 1, "rejected": 0, "some": []}}`)
		s := zonesThat(func(resource.ZoneName) (string, uint64, error) {
			asked.Add(1)
			return reply.Load().(string), 9, nil
		}, "east")
		ctx, leave := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		var ended, gone atomic.Int64
		wait := func(ctx context.Context) {
			waits.Go(func() {
				_, err := s.waitForProxies(ctx, admin.ZoneWait{Revision: 9}, func([]admin.PendingZone) error { return nil })
				switch {
				case err == nil:
					ended.Add(1)
				case errors.Is(err, context.Canceled):
					gone.Add(1)
				}
			})
		}
		for range 256 {
			wait(ctx)
			wait(t.Context())
		}
		<-time.After(time.Minute + time.Millisecond)
		synctest.Wait()
		const alone = 6 + 120 // the pauses double to half a second
		require.InDelta(t, alone, asked.Load(), 2)

		leave() // also of those that may be asking
		synctest.Wait()
		require.EqualValues(t, 256, gone.Load())
		before := asked.Load()
		<-time.After(time.Minute)
		synctest.Wait()
		require.InDelta(t, before+120, asked.Load(), 2, "the others continue")
		reply.Store(`{"items": [], "behind": {"asOf": 9, "count": 0, "rejected": 0, "some": []}}`)
		waits.Wait()
		require.EqualValues(t, 256, ended.Load())
		require.Empty(t, s.proxies.of, "nothing is kept")
		before = asked.Load()
		<-time.After(time.Minute)
		require.Equal(t, before, asked.Load())
	})
}

// Waits for many revisions ask less often each, so that they ask about as often together.
func TestRoundsOfManyRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		all := newProxyRounds()
		ctx, leave := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		const revisions = 512
		for i := range revisions {
			waits.Go(func() {
				w := all.join(resource.Revision(i))
				defer w.leave()
				for {
					if _, err := w.next(ctx, func(context.Context) proxyVerdict { asked.Add(1); return proxyVerdict{} }); err != nil {
						return
					}
				}
			})
		}
		synctest.Wait()
		<-time.After(time.Minute)
		begun := asked.Load()
		<-time.After(time.Minute)
		require.LessOrEqual(t, asked.Load()-begun, int64(time.Minute/roundSpacing)+revisions)
		leave()
		waits.Wait()
		require.Empty(t, all.of)
	})
}

// A round that ended because its caller has gone is run by another wait.
func TestARoundOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := rounds[int]{first: time.Second, last: time.Second}
		ctx, leave := context.WithCancel(t.Context())
		first, second := all.join(1), all.join(1)
		left := make(chan error, 1)
		go func() {
			_, err := first.next(ctx, func(ctx context.Context) int { <-ctx.Done(); return 1 })
			left <- err
		}()
		synctest.Wait()
		got := make(chan int, 1)
		go func() {
			value, err := second.next(t.Context(), func(context.Context) int { return 2 })
			if err == nil {
				got <- value
			}
		}()
		synctest.Wait()
		require.Empty(t, got)
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		require.Equal(t, 2, <-got)
	})
}

// A wait that ends while another one asks says what is known here.
func TestAWaitThatEndsBeforeItsFirstRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, "a", "b")
		east := f.zone("east", "a")
		f.reaches(east, f.write("one"))
		a := f.servers["a"].fleet
		f.servers["b"].lags = true
		rev := f.write("two")
		f.reaches(east, rev)
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = waitApplied(ctx, a, rev, "east") }() // it ends with the test
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := waitApplied(short, a, rev, "east")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, fmt.Sprintf("whether revision %d is applied is not known of the zones of b, which have not answered", rev))
		leave()
		east.stop()
	})
}
