package limits

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An owner with much work delays another by one piece of it at most.
func TestTurnsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns("x", TurnsConfig{Running: 1, RunningEach: 1, Waiting: 100, WaitingEach: 50})
		var order []string
		next := make(chan struct{})
		work := func(owner string) {
			done, err := turns.Wait(t.Context(), owner)
			require.NoError(t, err)
			order = append(order, owner)
			<-next
			done()
		}
		for range 10 {
			go work("flood")
			synctest.Wait()
		}
		go work("a")
		synctest.Wait()
		go work("b")
		for range 12 {
			synctest.Wait()
			next <- struct{}{}
		}
		synctest.Wait()
		require.Equal(t, []string{"flood", "flood", "a", "b", "flood"}, order[:5])
		require.Empty(t, turns.owners)
	})
}

// An owner never has all of what may run.
func TestOneOwnerHasAPartOfTheTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns("x", TurnsConfig{Running: 4, RunningEach: 2, Waiting: 100, WaitingEach: 3})
		ctx, end := context.WithCancelCause(t.Context())
		running, refused := 0, 0
		for range 10 {
			go func() {
				_, err := turns.Wait(ctx, "flood")
				var full *Exceeded
				switch {
				case err == nil:
					running++
				case errors.As(err, &full):
					refused++
				default:
					require.ErrorContains(t, err, "gone")
				}
			}()
			synctest.Wait()
		}
		require.Equal(t, 2, running)
		require.Equal(t, 5, refused)
		for range 2 {
			_, err := turns.Wait(t.Context(), "other")
			require.NoError(t, err, "at once")
		}
		end(errors.New("gone"))
		synctest.Wait()
		require.Zero(t, turns.waiting)
		require.Zero(t, turns.line.Len())
	})
}

// Whatever is begun, ended and given up: the limits hold, and work that may run does.
func TestTurnsNeverExceedTheirLimits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := TurnsConfig{
				Running: rapid.IntRange(1, 5).Draw(rt, "running"), RunningEach: rapid.IntRange(1, 4).Draw(rt, "each"),
				Waiting: rapid.IntRange(1, 8).Draw(rt, "waiting"), WaitingEach: rapid.IntRange(1, 5).Draw(rt, "waiting each"),
			}
			turns := NewTurns("x", cfg)
			type work struct {
				done   func()
				err    error
				giveUp context.CancelFunc
				ended  bool
			}
			var all []*work
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				switch {
				case len(all) > 0 && rapid.Bool().Draw(rt, "end"):
					w := rapid.IntRange(0, len(all)-1).Draw(rt, "which")
					if all[w].done != nil && !all[w].ended {
						all[w].ended = true
						all[w].done()
					} else {
						all[w].giveUp()
					}
				default:
					owner := fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "owner"))
					ctx, giveUp := context.WithCancel(t.Context())
					made := &work{giveUp: giveUp}
					all = append(all, made)
					go func() { made.done, made.err = turns.Wait(ctx, owner) }()
				}
				synctest.Wait()
				require.LessOrEqual(t, turns.running, cfg.Running)
				require.LessOrEqual(t, turns.waiting, cfg.Waiting)
				for _, o := range turns.owners {
					require.LessOrEqual(t, o.running, cfg.RunningEach)
					require.LessOrEqual(t, o.waiting.Len(), cfg.WaitingEach)
					require.False(t, o.waiting.Len() > 0 && o.running < cfg.RunningEach && turns.running < cfg.Running, "work waits that could run")
				}
			}
			for _, w := range all {
				w.giveUp()
				synctest.Wait()
				if w.done != nil && !w.ended {
					w.done()
				}
			}
			require.Zero(t, turns.running)
			require.Empty(t, turns.owners)
		})
	})
}
