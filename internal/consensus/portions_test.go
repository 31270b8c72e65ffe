package consensus

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestPortions: few are served at once, each by itself; what comes while many are served
// is one portion, and can be taken back before that.
func TestPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			goroutines sync.WaitGroup
			served     [][]int
			mu         sync.Mutex
		)
		proceed := make(chan struct{})
		const atOnce = 8
		p := portions[int]{
			atOnce: atOnce,
			take:   func(waiting []int) (portion, left []int) { return waiting, nil },
			serve: func(portion []int) {
				mu.Lock()
				served = append(served, portion)
				mu.Unlock()
				<-proceed
			},
			run: goroutines.Go,
		}
		for i := range atOnce + 4 {
			p.add(i)
		}
		synctest.Wait()
		require.Len(t, served, atOnce)
		require.True(t, p.remove(atOnce+1))
		require.False(t, p.remove(atOnce+1), "it has gone")
		require.False(t, p.remove(0), "it is being served")
		close(proceed)
		goroutines.Wait()
		require.Len(t, served, atOnce+1)
		require.Equal(t, []int{atOnce, atOnce + 2, atOnce + 3}, served[atOnce])
		require.True(t, p.empty())
		require.Zero(t, p.served)
		p.add(1)
		goroutines.Wait()
		require.Len(t, served, atOnce+2, "it continues after a pause")
	})
}
