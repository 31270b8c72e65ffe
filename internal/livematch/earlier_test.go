package livematch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/specificity"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// TestWhoGoesAwayStopsWaiting: a question about an earlier state that waits for others, for
// a matcher or for one that is being made, ends when its caller goes away, and takes no
// matcher from those that stay.
func TestWhoGoesAwayStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(store.DefaultOptions())
		forking := make(chan struct{})
		earlier := NewEarlier(func() (*policy.Matcher, State) {
			<-forking
			return policy.NewMatcher(specificity.Engine{}), State{}
		})
		at := func(ctx context.Context, rev resource.Revision) At {
			return earlier.At(ctx, State{View: s.View(), AsOf: rev, Bases: []Base{{Store: s}}})
		}
		gone := errors.New("the caller has gone away")
		wait := func(rev resource.Revision) {
			t.Helper()
			ctx, leave := context.WithCancelCause(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- at(ctx, rev).Read(func(*policy.Matcher, resource.Revision) error { return nil })
			}()
			synctest.Wait()
			require.Empty(t, ended)
			leave(gone)
			synctest.Wait()
			require.Len(t, ended, 1)
			require.ErrorIs(t, <-ended, gone)
		}
		finish := make(chan struct{})
		answered := make(chan resource.Revision, 3)
		ask := func(rev resource.Revision) {
			go func() {
				_ = at(t.Context(), rev).Read(func(_ *policy.Matcher, asOf resource.Revision) error {
					<-finish
					answered <- asOf
					return nil
				})
			}()
			synctest.Wait()
		}
		ask(1)
		wait(1) // for the matcher that is being made
		close(forking)
		ask(2)
		ask(3)
		wait(4) // for one that has no readers any more
		require.Equal(t, keptStates, earlier.Kept())
		close(finish)
		synctest.Wait()
		require.Len(t, answered, 3)
		require.NoError(t, at(t.Context(), 4).Read(func(*policy.Matcher, resource.Revision) error { return nil }))
	})
}
