package consensus

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
			atOnce: func() int { return atOnce },
			size:   func(int) int { return 1 },
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

// TestPace: fewer are served at once where what waits for them waits shortly, by the
// quickest of the last portions.
func TestPace(t *testing.T) {
	const most = 8
	var p pace
	require.Equal(t, most, p.atOnce(most), "nothing is known")
	p.took(soon + 1)
	require.Equal(t, most, p.atOnce(most))
	p.took(soon)
	require.Equal(t, atOnceWhenSoon, p.atOnce(most))
	require.Equal(t, 1, p.atOnce(1))
	for range paceWindow {
		p.took(time.Second)
	}
	require.Equal(t, atOnceWhenSoon, p.atOnce(most), "some were quick lately")
	for range paceWindow {
		p.took(time.Second)
	}
	require.Equal(t, most, p.atOnce(most), "none was quick lately")
	p.took(0)
	require.Equal(t, atOnceWhenSoon, p.atOnce(most))
}
