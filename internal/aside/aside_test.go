package aside

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoWaits(t *testing.T) {
	done := false
	Do(func() { done = true })
	require.True(t, done)
}

func TestDoPanicsWhereItIsWaitedFor(t *testing.T) {
	defer func() {
		failed, ok := recover().(*Panic)
		require.True(t, ok)
		require.Equal(t, "broken", failed.Value)
		require.ErrorContains(t, failed, "broken")
		require.ErrorContains(t, failed, "TestDoPanicsWhereItIsWaitedFor", "it says where")
	}()
	Do(func() { panic("broken") })
	require.Fail(t, "it continued")
}

// Work that ends its goroutine, as a failed test does, ends the wait too.
func TestDoReturnsAfterGoexit(t *testing.T) {
	Do(runtime.Goexit)
}
