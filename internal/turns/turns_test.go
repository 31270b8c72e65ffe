package turns

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/authn"
	"meridian/internal/rpcerr"
)

var (
	ann  = Caller{Name: "ann", Known: true}
	bob  = Caller{Name: "bob", Known: true}
	cat  = Caller{Name: "cat", Known: true}
	none = Caller{Name: "192.0.2.1"}
)

// stage runs pieces that end when they are told to, in a bubble of synctest.
type stage struct {
	t     *testing.T
	queue *Queue

	mu sync.Mutex
	// running has what began and has not ended, in order.
	running []*act
	ended   map[string]error
}

type act struct {
	name string
	end  chan struct{}
}

// ask has a caller ask for a turn.
func (s *stage) ask(ctx context.Context, who Caller, name string, bytes int64) {
	s.t.Helper()
	go func() {
		a := &act{name: name, end: make(chan struct{})}
		err := s.queue.DoFor(ctx, who, bytes, func() error {
			s.mu.Lock()
			s.running = append(s.running, a)
			s.mu.Unlock()
			<-a.end
			return nil
		})
		s.mu.Lock()
		s.ended[name] = err
		s.mu.Unlock()
	}()
	synctest.Wait()
}

// finish ends a piece that runs.
func (s *stage) finish(name string) {
	s.t.Helper()
	for i, a := range s.running {
		if a.name == name {
			s.running = append(s.running[:i:i], s.running[i+1:]...)
			close(a.end)
			synctest.Wait()
			return
		}
	}
	s.t.Fatalf("%s does not run", name)
}

func (s *stage) names() []string {
	var names []string
	for _, a := range s.running {
		names = append(names, a.name)
	}
	return names
}

func perform(t *testing.T, limits Limits, scene func(s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, queue: New(limits), ended: map[string]error{}}
		scene(s)
		for len(s.running) > 0 {
			s.finish(s.running[0].name)
		}
		require.Empty(t, s.queue.callers, "who has nothing here is forgotten")
		require.Equal(t, usage{}, s.queue.running)
		require.Zero(t, s.queue.queued+s.queue.queuedLarge+s.queue.waiting.Len())
	})
}

// Many requests of one caller delay another's by what runs already, no more.
func TestCallersTakeTurns(t *testing.T) {
	perform(t, Limits{AtOnce: 2, PerCaller: 2, Unauthenticated: 2, Large: 2, LargeBytes: 1 << 30, Waiting: 10, AllWaiting: 100}, func(s *stage) {
		for _, name := range []string{"a1", "a2", "a3", "a4", "a5"} {
			s.ask(s.t.Context(), ann, name, 1)
		}
		s.ask(s.t.Context(), bob, "b1", 1)
		s.ask(s.t.Context(), bob, "b2", 1)
		s.ask(s.t.Context(), cat, "c1", 1)
		require.Equal(t, []string{"a1", "a2"}, s.names())
		for _, want := range [][]string{{"a2", "a3"}, {"a3", "b1"}, {"b1", "c1"}, {"c1", "a4"}, {"a4", "b2"}, {"b2", "a5"}} {
			s.finish(s.running[0].name)
			require.Equal(t, want, s.names())
		}
	})
}

// One caller has its share, those without credentials have theirs together, and
// the others what is left.
func TestShares(t *testing.T) {
	perform(t, Limits{AtOnce: 4, PerCaller: 2, Unauthenticated: 1, Large: 1, LargeBytes: 1 << 30, Waiting: 10, AllWaiting: 100}, func(s *stage) {
		s.ask(s.t.Context(), none, "n1", 1)
		s.ask(s.t.Context(), Caller{Name: "192.0.2.2"}, "m1", 1)
		for _, name := range []string{"a1", "a2", "a3"} {
			s.ask(s.t.Context(), ann, name, 1)
		}
		s.ask(s.t.Context(), bob, "b1", 1)
		require.Equal(t, []string{"n1", "a1", "a2", "b1"}, s.names())
		s.finish("b1")
		require.Equal(t, []string{"n1", "a1", "a2"}, s.names(), "of no share is anything left")
		s.finish("n1")
		require.Equal(t, []string{"a1", "a2", "m1"}, s.names())
		s.finish("a1")
		require.Equal(t, []string{"a2", "m1", "a3"}, s.names())
	})
}

// Large requests wait for one another, in order, and never hold up small ones.
func TestLargeRequests(t *testing.T) {
	perform(t, Limits{AtOnce: 8, PerCaller: 4, Unauthenticated: 4, Large: 2, LargeBytes: 10 * Small, Waiting: 10, AllWaiting: 100}, func(s *stage) {
		s.ask(s.t.Context(), ann, "a1", 20*Small)
		s.ask(s.t.Context(), bob, "b1", 2*Small)
		s.ask(s.t.Context(), bob, "small", Small)
		require.Equal(t, []string{"a1"}, s.names(), "one that exceeds the limit by itself runs, alone")
		s.ask(s.t.Context(), cat, "c small", 1)
		require.Equal(t, []string{"a1", "c small"}, s.names())
		s.finish("a1")
		require.ElementsMatch(t, []string{"c small", "b1", "small"}, s.names())
		s.ask(s.t.Context(), cat, "c1", 9*Small)
		s.ask(s.t.Context(), ann, "a2", 2*Small)
		require.ElementsMatch(t, []string{"c small", "b1", "small"}, s.names(), "what came later and would fit does not pass the one that waits")
		s.finish("b1")
		require.Equal(t, []string{"c small", "small", "c1"}, s.names())
		s.finish("c1")
		require.Equal(t, []string{"c small", "small", "a2"}, s.names())
	})
}

// Who sends more than may wait is told which limit that is; who goes away gives up
// the place.
func TestWaitingIsBounded(t *testing.T) {
	perform(t, Limits{AtOnce: 1, PerCaller: 1, Unauthenticated: 1, Large: 1, LargeBytes: 1, Waiting: 2, AllWaiting: 3}, func(s *stage) {
		s.ask(s.t.Context(), ann, "a1", 1)
		gone, leave := context.WithCancel(s.t.Context())
		s.ask(gone, ann, "a2", Small+1)
		s.ask(s.t.Context(), ann, "a3", 1)
		s.ask(s.t.Context(), ann, "a4", 1)
		require.True(t, rpcerr.HasReason(s.ended["a4"], ReasonWaiting), s.ended["a4"])
		require.ErrorContains(t, s.ended["a4"], "2 requests of this caller wait for their turn, the limit for one caller")
		s.ask(s.t.Context(), bob, "b1", 1)
		s.ask(s.t.Context(), cat, "c1", 1)
		require.True(t, rpcerr.HasReason(s.ended["c1"], ReasonAllWaiting), s.ended["c1"])
		require.Equal(t, Stats{Running: 1, Waiting: 3, Refused: 2}, s.queue.Stats())
		leave()
		synctest.Wait()
		require.ErrorIs(t, s.ended["a2"], context.Canceled)
		s.ask(s.t.Context(), cat, "c2", 1)
		s.finish("a1")
		require.Equal(t, []string{"a3"}, s.names())
		s.finish("a3")
		require.Equal(t, []string{"b1"}, s.names())
		s.finish("b1")
		require.Equal(t, []string{"c2"}, s.names())
	})
}

// A panic gives the turn back.
func TestAPanicEndsATurn(t *testing.T) {
	q := New(Limits{AtOnce: 1, PerCaller: 1, Unauthenticated: 1, Waiting: 1, AllWaiting: 1})
	require.Panics(t, func() { _ = q.DoFor(t.Context(), ann, 1, func() error { panic("x") }) })
	require.NoError(t, q.DoFor(t.Context(), ann, 1, func() error { return nil }))
	require.Empty(t, q.callers)
}

// The caller is the principal, or the address of one without credentials; the work
// of who has gone is not begun.
func TestTheCallerOfARequest(t *testing.T) {
	s := NewServer()
	ctx, cancel := context.WithCancel(authn.WithPrincipal(t.Context(), authn.UserPrincipal("ann", nil)))
	require.NoError(t, s.Work(ctx, 1, func() error {
		require.Contains(t, s.work.callers, ann)
		return nil
	}))
	failed := errors.New("failed")
	require.ErrorIs(t, s.Hold(ctx, 2*Small, func() error { return failed }), failed)
	cancel()
	require.ErrorIs(t, s.Work(ctx, 1, func() error { panic("it began") }), context.Canceled)
	work, held := s.Stats()
	require.Equal(t, Stats{Done: 2}, work)
	require.Equal(t, Stats{Done: 1}, held)
}

// Whatever is asked for and ended, in whatever order, no limit is exceeded, nothing
// that fits waits, and all that is begun comes to an end.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6)
		l := Limits{
			AtOnce: n.Draw(t, "at once"), PerCaller: n.Draw(t, "per caller"), Unauthenticated: n.Draw(t, "unauthenticated"),
			Large: n.Draw(t, "large"), LargeBytes: int64(n.Draw(t, "large bytes")) * 2 * Small, Waiting: 1 << 10, AllWaiting: 1 << 10,
		}
		q := New(l)
		type started struct {
			c *caller
			p *piece
		}
		var all []started
		callers := []Caller{ann, bob, cat, none, {Name: "192.0.2.2"}}
		check := func() {
			got, per := usage{}, map[*caller]int{}
			for _, s := range all {
				if !s.p.given {
					continue
				}
				got.all++
				per[s.c]++
				if !s.c.Known {
					got.unauthenticated++
				}
				if s.p.bytes > Small {
					got.large++
					got.largeBytes += s.p.bytes
				}
			}
			require.Equal(t, got, q.running)
			require.LessOrEqual(t, got.all, l.AtOnce)
			require.LessOrEqual(t, got.unauthenticated, l.Unauthenticated)
			require.LessOrEqual(t, got.large, max(1, l.Large))
			require.True(t, got.large <= 1 || got.largeBytes <= l.LargeBytes)
			for c, n := range per {
				require.LessOrEqual(t, n, l.PerCaller)
				require.Equal(t, n, c.running)
			}
			require.True(t, got.all > 0 || q.queued == 0, "work waits and none runs")
			for e := q.waiting.Front(); e != nil; e = e.Next() {
				c := e.Value.(*caller)
				p := c.pieces.Front().Value.(*piece)
				require.False(t, p.bytes <= Small && q.slotLocked(c), "small work that fits waits")
			}
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if running := slicesOf(all, func(s started) bool { return s.p.given }); len(running) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.SampledFrom(running).Draw(t, "which")
				s := all[i]
				all = append(all[:i:i], all[i+1:]...)
				q.finishLocked(s.c, s.p.bytes)
			} else {
				who := rapid.SampledFrom(callers).Draw(t, "who")
				c, p, _ := q.beginLocked(who, rapid.SampledFrom([]int64{1, Small, Small + 1, 3 * Small}).Draw(t, "bytes"))
				all = append(all, started{c, p})
			}
			check()
		}
		for len(all) > 0 {
			i := slicesOf(all, func(s started) bool { return s.p.given })[0]
			s := all[i]
			all = append(all[:i:i], all[i+1:]...)
			q.finishLocked(s.c, s.p.bytes)
			check()
		}
		require.Empty(t, q.callers)
	})
}

// slicesOf returns the indices of those that fulfil a condition.
func slicesOf[T any](all []T, is func(T) bool) []int {
	var out []int
	for i, v := range all {
		if is(v) {
			out = append(out, i)
		}
	}
	return out
}

// Large requests are held up to a number of bytes together, small ones always.
func TestRequestsThatAreHeldAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, release := NewServer(), make(chan struct{})
		held := 0
		hold := func(bytes int64) {
			go func() {
				_ = turns.Hold(t.Context(), bytes, func() error {
					held++ // one at a time: the test waits for each
					<-release
					return nil
				})
			}()
			synctest.Wait()
		}
		hold(heldBytes / 2)
		hold(heldBytes / 2)
		require.Equal(t, 2, held)
		hold(Small + 1)
		require.Equal(t, 2, held, "it waits")
		hold(Small)
		require.Equal(t, 3, held, "a small one does not")
		release <- struct{}{}
		release <- struct{}{}
		synctest.Wait()
		require.Equal(t, 4, held)
		close(release)
		synctest.Wait()
	})
}
