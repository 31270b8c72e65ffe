package deepstack_test

import (
	"runtime"
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
