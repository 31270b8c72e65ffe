package consensus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGateHoldsWritesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		require.NoError(t, g.enter(t.Context(), time.Minute))
		closed := make(chan error)
		go func() { closed <- g.hold(t.Context(), whileRestoring) }()
		synctest.Wait()
		select {
		case <-closed:
			require.Fail(t, "a write is still inside")
		default:
		}
		entered := make(chan error)
		go func() { entered <- g.enter(t.Context(), time.Minute) }()
		synctest.Wait()
		g.leave()
		require.NoError(t, <-closed)
		require.ErrorIs(t, g.hold(t.Context(), whileRestoring), ErrUnavailable, "one restore at a time")
		select {
		case <-entered:
			require.Fail(t, "it came in while the gate was closed")
		case <-time.After(time.Second):
		}
		g.release()
		require.NoError(t, <-entered)
		g.leave()
		require.NoError(t, g.hold(t.Context(), whileRestoring), "it can be closed again")
		g.release()
	})
}

func TestGateIsWaitedForWithinLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		require.NoError(t, g.hold(t.Context(), whileRestoring))
		began := time.Now()
		err := g.enter(t.Context(), 10*time.Second)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, err, errGateClosed)
		require.Equal(t, 10*time.Second, time.Since(began))
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, g.enter(canceled, time.Second), context.Canceled)
		g.release()

		// A write that does not end leaves the gate as it was.
		require.NoError(t, g.enter(t.Context(), time.Second))
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, g.hold(limited, whileRestoring), ErrUnavailable)
		require.NoError(t, g.enter(t.Context(), time.Second))
		g.leave()
		g.leave()
		require.NoError(t, g.hold(t.Context(), whileRestoring))
		g.release()
	})
}
