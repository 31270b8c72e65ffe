package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A worker that waits is given the next function, the same goroutine for all of them; it
// ends when nothing comes, and with the others.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers()
		ran := 0
		for range 3 {
			w.do(func() { ran++ })
			synctest.Wait()
			require.EqualValues(t, 1, w.idle.Load(), "one worker has run all so far")
		}
		require.Equal(t, 3, ran)

		block := make(chan struct{})
		for range 2 * maxIdleWorkers {
			w.do(func() { <-block })
		}
		synctest.Wait()
		require.Zero(t, w.idle.Load(), "all run at once")
		close(block)
		synctest.Wait()
		require.EqualValues(t, maxIdleWorkers, w.idle.Load(), "no more than these wait")

		time.Sleep(workerPatience) // of the bubble
		synctest.Wait()
		require.Zero(t, w.idle.Load(), "nothing came")
		w.do(func() { ran++ })
		synctest.Wait()
		require.Equal(t, 4, ran)
		require.EqualValues(t, 1, w.idle.Load())
		w.end()
		w.end()
		synctest.Wait() // the bubble fails where a goroutine is left
		require.Zero(t, w.idle.Load())
	})
}
