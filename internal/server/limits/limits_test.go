package limits

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The request that has been arriving for longest is aborted for the one that
// needs its bytes.
func TestTheOldestIsAborted(t *testing.T) {
	in := New(100, 100)
	var stopped []string
	begin := func(name string, n int64) *Request {
		t.Helper()
		r, err := in.Begin("a", n, func() { stopped = append(stopped, name) })
		require.NoError(t, err)
		return r
	}
	first, second, third := begin("first", 10), begin("second", 10), begin("third", 10)
	require.NoError(t, second.Grow(70))
	require.Empty(t, stopped, "the limit holds all of them")
	require.NoError(t, third.Grow(1))
	require.Equal(t, []string{"first"}, stopped)
	require.True(t, first.Aborted())
	require.ErrorIs(t, first.Grow(1), ErrAborted)
	require.ErrorIs(t, first.Received(1), ErrAborted)
	first.Done()
	require.NoError(t, third.Grow(80), "the second is older and larger")
	require.Equal(t, []string{"first", "second"}, stopped)
	second.Done()
	third.Done()
	third.Done()
	begin("fourth", 100)
	require.Len(t, stopped, 2, "all bytes are given back")
}

// What has arrived is being worked on, and new requests are refused.
func TestWhatHasArrivedStays(t *testing.T) {
	in := New(100, 100)
	r, err := in.Begin("a", 60, func() { t.Error("aborted") })
	require.NoError(t, err)
	require.NoError(t, r.Received(90))
	_, err = in.Begin("a", 20, func() { t.Error("it never began") })
	require.ErrorIs(t, err, ErrFull)
	_, err = in.Begin("a", 10, nil)
	require.NoError(t, err)
	r.Done()
	_, err = in.Begin("a", 90, nil)
	require.NoError(t, err)
}

// A request that is too large by itself is refused, not aborted by itself.
func TestNoRequestAbortsItself(t *testing.T) {
	in := New(100, 100)
	r, err := in.Begin("a", 50, func() { t.Error("aborted") })
	require.NoError(t, err)
	require.ErrorIs(t, r.Grow(51), ErrFull)
	require.False(t, r.Aborted())
	require.NoError(t, r.Grow(50))
}

// Whatever is done, no more is charged than there is, and all of it comes back.
func TestNeverMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit, share = 1000, 600
		in := New(limit, share)
		var all []*Request
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := rapid.Int64Range(0, 400).Draw(t, "n")
			if len(all) == 0 || rapid.Bool().Draw(t, "begin") {
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "owner")
				if r, err := in.Begin(name, n, func() {}); err == nil {
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
			held, owned := int64(0), map[string]int64{}
			for _, r := range all {
				require.GreaterOrEqual(t, r.held, int64(0))
				held += r.held
				owned[r.name] += r.held
			}
			require.Equal(t, int64(limit), held+in.free)
			require.GreaterOrEqual(t, in.free, int64(0))
			for name, bytes := range owned {
				require.LessOrEqual(t, bytes, int64(share))
				if o := in.owners[name]; o != nil {
					require.Equal(t, bytes, o.held)
				}
			}
		}
		for _, r := range all {
			r.Done()
		}
		require.Equal(t, int64(limit), in.free)
		require.Zero(t, in.arriving.Len())
		require.Empty(t, in.owners)
	})
}

// One owner has at most its share, and aborts its own requests first.
func TestOneOwnerHasAShare(t *testing.T) {
	in := New(100, 60)
	var stopped []string
	begin := func(owner string, n int64) (*Request, error) {
		return in.Begin(owner, n, func() { stopped = append(stopped, owner) })
	}
	_, err := begin("known", 40)
	require.NoError(t, err)
	_, err = begin("flood", 60)
	require.NoError(t, err)
	_, err = begin("flood", 60)
	require.NoError(t, err)
	require.Equal(t, []string{"flood"}, stopped, "the older request of another owner stays")
	_, err = begin("flood", 61)
	require.ErrorIs(t, err, ErrFull)
}

// In a patient pool a request is aborted for another only after a time; the error says
// whose limit was reached.
func TestPatience(t *testing.T) {
	at := time.Unix(1000, 0)
	in := NewPatient(100, 60, 5*time.Second, func() time.Time { return at })
	aborted := ""
	begin := func(name string, n int64) error {
		_, err := in.Begin(name, n, func() { aborted += name })
		return err
	}
	require.NoError(t, begin("a", 60))
	at = at.Add(4 * time.Second)
	require.NoError(t, begin("b", 40))
	require.ErrorIs(t, begin("a", 1), ErrShare)
	err := begin("c", 1)
	require.ErrorIs(t, err, ErrFull)
	require.NotErrorIs(t, err, ErrShare)
	require.Empty(t, aborted)
	at = at.Add(time.Second)
	require.NoError(t, begin("c", 1))
	require.Equal(t, "a", aborted)
	require.ErrorIs(t, begin("c", 60), ErrShare)
	require.ErrorIs(t, begin("d", 60), ErrFull)
	require.Equal(t, "a", aborted, "b has four seconds left")
}
