package dataplane

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

var errTest = errors.New("no leader")

// reasonOf waits for the end of a stream.
func (p *proxyClient) reasonOf() (codes.Code, bool) {
	code, _ := p.refused()
	defer p.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	return code, rpcerr.HasReason(rpcerr.FromStatus(p.err), ReasonDraining)
}

// A zone that drains ends the streams of its proxies, withdraws what they registered
// from others, and takes no proxy until that ends.
func TestAZoneDrains(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.operator("manual", dataplaneSpec("db"))
		web := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		api := w.connect(w.token(""), "api-1", dataplaneSpec("api"))
		synctest.Wait()
		// Over xDS, too: what it holds stays.
		release, err := w.service.Hold(policy.DataplaneKey("default", "api-1"))
		require.NoError(t, err)

		w.service.Drain(true)
		synctest.Wait()
		for _, p := range []*proxyClient{web, api, w.connect(w.token(""), "web-2", dataplaneSpec("web")), w.connect(w.token(""), "web-1", dataplaneSpec("web"))} {
			code, draining := p.reasonOf()
			require.Equal(t, codes.Unavailable, code)
			require.True(t, draining)
		}
		require.True(t, w.service.Draining())
		_, stored := w.stored("web-2")
		require.False(t, stored)
		require.True(t, w.state("web-1").Draining)
		require.True(t, w.state("api-1").Draining)
		require.True(t, w.state("api-1").Connected)
		require.False(t, w.state("manual").Draining, "an operator's dataplane is not touched")
		all, applied := w.service.Left()
		require.Equal(t, []int{3, 1}, []int{all, applied})

		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		all, applied = w.service.Left()
		require.Equal(t, []int{2, 1}, []int{all, applied}, "what nothing holds has gone after its grace period")
		release()
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		all, _ = w.service.Left()
		require.Equal(t, 1, all)

		w.service.Drain(false)
		back := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.Equal(t, State{Connected: true, Registered: true, Acked: w.replica.Revision()}, w.state("web-1"))
		back.leave()
	})
}

// A zone that starts draining withdraws what was registered when it stopped; a proxy
// that comes back after the draining, within its grace period, is sent requests again.
func TestAZoneStartsDraining(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		web := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		w.stop()
		web.leave()
		w.open()
		w.service.Drain(true)
		synctest.Wait()
		require.True(t, w.state("web-1").Draining)
		w.service.Drain(false)
		web = w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.False(t, w.state("web-1").Draining)
		require.True(t, w.state("web-1").Connected)
		web.leave()
	})
}

// A draining that is ended before everything is withdrawn leaves nothing withdrawn: the
// proxies whose registration is labelled register again, and the others stay.
func TestADrainingThatIsEndedTooSoon(t *testing.T) {
	for name, when := range map[string]func(w *world){
		"during the write": func(w *world) { w.local.Once(func() { w.service.Drain(false) }) },
		"and the write fails": func(w *world) {
			w.local.Before(func(store.Txn) error { w.local.Before(nil); w.service.Drain(false); return errTest })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				web := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
				drains := w.connect(w.token(""), "api-1", dataplaneSpec("api"))
				synctest.Wait()
				drains.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Drain{Drain: &meridianv1.DataplaneDrain{}}})
				synctest.Wait()
				when(w)
				w.service.Drain(true)
				synctest.Wait()
				<-time.After(2 * retryRemoval)
				synctest.Wait()
				require.False(t, w.service.Draining())
				require.False(t, drains.over(), "it asked for its label")
				require.True(t, w.state("api-1").Draining)
				if w.state("web-1").Draining {
					code, draining := web.reasonOf()
					require.Equal(t, codes.Unavailable, code)
					require.False(t, draining, "it is to register here")
					web = w.connect(w.token(""), "web-1", dataplaneSpec("web"))
					synctest.Wait()
				}
				require.False(t, web.over())
				require.False(t, w.state("web-1").Draining)
				require.True(t, w.state("web-1").Connected)
				web.leave()
				drains.leave()
			})
		})
	}
}

// A zone that drained while a proxy was registering, and no longer does, has it register
// again when its registration was withdrawn.
func TestADrainingDuringARegistration(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.local.Answer(func(result store.Result) error {
			w.local.Answer(nil)
			w.service.Drain(true)
			for !w.state("web-1").Draining {
				<-time.After(time.Millisecond)
			}
			w.service.Drain(false)
			return result.Err
		})
		web := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		code, draining := web.reasonOf()
		require.Equal(t, codes.Unavailable, code)
		require.False(t, draining)
		web = w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.False(t, w.state("web-1").Draining)
		web.leave()
	})
}
