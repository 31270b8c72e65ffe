//go:build !race

package zonesync

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStacksOfStreams: the goroutines that a stream has on the server, two here and three of
// gRPC, wait on stacks of 4 KiB. One call too deep before a goroutine waits makes its stack
// 8 KiB for as long as the stream lasts. The race detector needs larger ones.
func TestStacksOfStreams(t *testing.T) {
	const zones = 200
	stacks := func() uint64 {
		runtime.GC() // frees the stacks of goroutines that have ended
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse
	}
	var before uint64
	_, _, stop := zonesThatDoNotRead(t, zones, "resume", func() { before = stacks() })
	defer stop()
	require.LessOrEqual(t, float64(stacks()-before)/zones/1024, 22.25, "KiB for each stream")
}
