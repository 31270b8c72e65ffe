package limits

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Who has been on the way for longest is given up for who needs the room.
func TestTheOldestIsGivenUp(t *testing.T) {
	in := New(100)
	var stopped []string
	begin := func(name string, n int64) *Request {
		t.Helper()
		r, err := in.Begin(n, func() { stopped = append(stopped, name) })
		require.NoError(t, err)
		return r
	}
	first, second, third := begin("first", 10), begin("second", 10), begin("third", 10)
	require.NoError(t, second.Grow(70))
	require.Empty(t, stopped, "all of them have room")
	require.NoError(t, third.Grow(1))
	require.Equal(t, []string{"first"}, stopped)
	require.True(t, first.GivenUp())
	require.ErrorIs(t, first.Grow(1), ErrGivenUp)
	require.ErrorIs(t, first.Received(1), ErrGivenUp)
	first.Done()
	require.NoError(t, third.Grow(80), "the second is older and larger")
	require.Equal(t, []string{"first", "second"}, stopped)
	second.Done()
	third.Done()
	third.Done()
	begin("fourth", 100)
	require.Len(t, stopped, 2, "all the room is back")
}

// What has been received is being worked on, and newcomers are refused.
func TestWhatWasReceivedStays(t *testing.T) {
	in := New(100)
	r, err := in.Begin(60, func() { t.Error("given up") })
	require.NoError(t, err)
	require.NoError(t, r.Received(90))
	_, err = in.Begin(20, func() { t.Error("it never began") })
	require.ErrorIs(t, err, ErrFull)
	_, err = in.Begin(10, nil)
	require.NoError(t, err)
	r.Done()
	_, err = in.Begin(90, nil)
	require.NoError(t, err)
}

// A request that is alone in its need is refused, not given up by itself.
func TestNobodyGivesUpHimself(t *testing.T) {
	in := New(100)
	r, err := in.Begin(50, func() { t.Error("given up") })
	require.NoError(t, err)
	require.ErrorIs(t, r.Grow(51), ErrFull)
	require.False(t, r.GivenUp())
	require.NoError(t, r.Grow(50))
}

// Whatever is done, no more is charged than there is, and all of it comes back.
func TestNeverMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 1000
		in := New(limit)
		var all []*Request
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := rapid.Int64Range(0, 400).Draw(t, "n")
			if len(all) == 0 || rapid.Bool().Draw(t, "begin") {
				if r, err := in.Begin(n, func() {}); err == nil {
					all = append(all, r)
				}
			} else {
				r := rapid.SampledFrom(all).Draw(t, "request")
				switch rapid.IntRange(0, 2).Draw(t, "what") {
				case 0:
					_ = r.Grow(n)
				case 1:
					_ = r.Received(n)
				case 2:
					r.Done()
				}
			}
			held := int64(0)
			for _, r := range all {
				require.GreaterOrEqual(t, r.held, int64(0))
				held += r.held
			}
			require.Equal(t, int64(limit), held+in.free)
			require.GreaterOrEqual(t, in.free, int64(0))
		}
		for _, r := range all {
			r.Done()
		}
		require.Equal(t, int64(limit), in.free)
		require.Zero(t, in.arriving.Len())
	})
}
