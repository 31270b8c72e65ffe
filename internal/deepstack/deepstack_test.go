package deepstack_test

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/deepstack"
)

func TestTheCallIsOverWhenRunReturns(t *testing.T) {
	done := false
	deepstack.Run(func() { done = true })
	require.True(t, done)
}

// The function is called on another goroutine: to end that one ends no caller.
func TestTheStackIsAnother(t *testing.T) {
	called := false
	deepstack.Run(func() {
		called = true
		runtime.Goexit()
	})
	require.True(t, called)
}

func TestAPanicIsPassedOnWithItsStack(t *testing.T) {
	defer func() {
		err, ok := recover().(error)
		require.True(t, ok)
		require.ErrorContains(t, err, "no such thing")
		require.ErrorContains(t, err, "TestAPanicIsPassedOnWithItsStack")
	}()
	deepstack.Run(func() { panic("no such thing") })
	require.Fail(t, "the panic is lost")
}

// A stack that is reserved has the space before it is needed.
func TestReserveGrowsTheStack(t *testing.T) {
	const goroutines, size = 500, 12 << 10
	stacks := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := stacks()
	end := make(chan struct{})
	var reserved, ended sync.WaitGroup
	for range goroutines {
		reserved.Add(1)
		ended.Go(func() {
			deepstack.Reserve()
			reserved.Done()
			<-end
		})
	}
	reserved.Wait()
	require.GreaterOrEqual(t, stacks(), before+goroutines*size)
	close(end)
	ended.Wait()
}
