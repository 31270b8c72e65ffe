package dataplane

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/batch"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// Registrations take turns between tokens: a flood of one leaves places to another,
// and all of them come about.
func TestRegistrationsTakeTurns(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		const flood = 2 * maxRegistering
		release := make(chan struct{})
		var mu sync.Mutex
		proposed := map[string]int{}
		w.local.Before(func(txn store.Txn) error {
			mu.Lock()
			name, _, _ := strings.Cut(txn.Ops[0].Resource.Key().Name, "-")
			proposed[name]++
			mu.Unlock()
			<-release
			return nil
		})
		counts := func() [2]int {
			mu.Lock()
			defer mu.Unlock()
			return [2]int{proposed["flood"], proposed["web"]}
		}
		shared := w.token("")
		for i := range flood {
			defer w.connect(shared, fmt.Sprintf("flood-%d", i), dataplaneSpec("flood")).leave()
		}
		synctest.Wait()
		require.Equal(t, [2]int{maxRegistering / 2, 0}, counts())
		defer w.connect(w.token(""), "web-1", dataplaneSpec("web")).leave()
		synctest.Wait()
		require.Equal(t, [2]int{maxRegistering / 2, 1}, counts(), "another token has a place at once")
		close(release)
		synctest.Wait()
		require.Equal(t, [2]int{flood, 1}, counts(), "no registration is lost")
	})
}

// What registrations cost in processor time takes turns with the other requests of the
// server: while those have all places, none is decoded.
func TestRegistrationsAreDecodedInTurn(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		release := make(chan struct{})
		limits := turns.DefaultLimits()
		for i := range limits.AtOnce {
			busy := authn.WithPrincipal(t.Context(), authn.UserPrincipal(fmt.Sprint("busy-", i), nil))
			go func() {
				_ = w.turns.Work(busy, 1, func() error {
					<-release
					return nil
				})
			}()
		}
		synctest.Wait()
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		defer p.leave()
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.False(t, stored)
		work, _ := w.turns.Stats()
		require.Equal(t, 1, work.Waiting)
		close(release)
		synctest.Wait()
		_, stored = w.stored("web-1")
		require.True(t, stored)
	})
}

// Streams that are open and say nothing hold a bounded part of memory: the oldest of
// the same token make way, and other tokens keep theirs.
func TestHellosAreBoundedInBytes(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		const fit, more = maxCallerHelloBytes / batch.MaxMessage, 10
		shared := w.token("")
		first := w.dial(shared)
		defer first.leave()
		synctest.Wait() // it is the oldest
		client := meridianv1.NewDataplaneServiceClient(first.conn)
		var silent []grpc.BidiStreamingClient[meridianv1.ConnectRequest, meridianv1.ConnectResponse]
		for range fit + more - 1 {
			stream, err := client.Connect(t.Context(), grpc.PerRPCCredentials(token.Credentials(shared, true)))
			require.NoError(t, err)
			silent = append(silent, stream)
		}
		synctest.Wait()
		w.mu.Lock()
		limited := len(w.limited)
		w.mu.Unlock()
		require.Equal(t, more, limited)
		go first.follow()
		code, message := first.refused()
		require.Equal(t, codes.ResourceExhausted, code)
		require.Contains(t, message, "connect again in a moment")

		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		defer p.leave()
		synctest.Wait()
		require.Len(t, p.messages(), 1, "another token is not affected")
		<-time.After(helloTimeout)
		synctest.Wait()
		q := w.connect(shared, "web-2", dataplaneSpec("web"))
		defer q.leave()
		synctest.Wait()
		require.Len(t, q.messages(), 1, "and this one is not, once the silent ones are gone")
		require.NotEmpty(t, silent)
	})
}
