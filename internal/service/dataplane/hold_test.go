package dataplane

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// A registration stays for as long as the stream that made it, or another that holds
// it, and the grace period after the last.
func TestHolds(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		key := policy.DataplaneKey("default", "web-1")
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		release, err := w.service.Hold(key)
		require.NoError(t, err)
		again, err := w.service.Hold(key)
		require.NoError(t, err)
		p.leave()
		again()
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		require.True(t, w.state("web-1").Connected)
		require.Zero(t, w.service.Behind())
		release()
		require.False(t, w.state("web-1").Connected)
		<-time.After(DefaultGrace - time.Second)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.True(t, stored)
		<-time.After(2 * time.Second)
		synctest.Wait()
		_, stored = w.stored("web-1")
		require.False(t, stored)
		require.Empty(t, w.service.proxies)
	})
}

// One that is held when its grace period began with an earlier departure stays.
func TestAHoldWithinTheGracePeriod(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		p.leave()
		synctest.Wait()
		release, err := w.service.Hold(policy.DataplaneKey("default", "web-1"))
		require.NoError(t, err)
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.True(t, stored)
		release()
	})
}

// A proxy that is configured over xDS registers and is sent nothing here.
func TestARegistrationOnly(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.dial(w.token(""))
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: &meridianv1.DataplaneHello{
			Mesh: "default", Name: "web-1", Spec: []byte(dataplaneSpec("web")), RegistrationOnly: true,
		}}})
		go p.follow()
		synctest.Wait()
		for range 2 {
			w.global(timeoutTo(t, "t", "web", "db", "1s"))
			synctest.Wait()
		}
		synctest.Wait()
		require.Len(t, p.messages(), 1)
		require.Empty(t, p.messages()[0].GetSet())
		state := w.state("web-1")
		require.True(t, state.Connected)
		require.Zero(t, state.Lag)
		require.Zero(t, w.service.Behind())
		p.leave()
	})
}

// A change that comes before such a proxy has answered the first message is not one that it
// has yet to take on.
func TestARegistrationThatIsAnsweredLate(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.dial(w.token(""))
		p.hold = true
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: &meridianv1.DataplaneHello{
			Mesh: "default", Name: "web-1", Spec: []byte(dataplaneSpec("web", "db")), RegistrationOnly: true,
		}}})
		go p.follow()
		synctest.Wait()
		require.Len(t, p.messages(), 1)
		w.global(timeoutTo(t, "t", "web", "db", "1s"))
		synctest.Wait()
		p.answer(1, "")
		synctest.Wait()
		require.Zero(t, w.state("web-1").Lag)
		require.Zero(t, w.service.Behind())
		p.leave()
	})
}

// A proxy that leaves for good is deregistered at once, whatever else holds it.
func TestLeaving(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		release, err := w.service.Hold(policy.DataplaneKey("default", "web-1"))
		require.NoError(t, err)
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Leave{Leave: &meridianv1.DataplaneLeave{}}})
		synctest.Wait()
		require.True(t, p.over())
		p.leave()
		_, stored := w.stored("web-1")
		require.False(t, stored)
		release()
		require.Empty(t, w.service.proxies)

		// It may come back, and then has a grace period again.
		p = w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		p.leave()
		synctest.Wait()
		_, stored = w.stored("web-1")
		require.True(t, stored)
	})
}

// A proxy that drains is labelled, so that others are not sent to it, and stays
// registered until it leaves, for its own streams.
func TestDraining(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		hello := &meridianv1.DataplaneHello{Mesh: "default", Name: "web-1", Spec: []byte(dataplaneSpec("web")), RegistrationOnly: true}
		drain := &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Drain{Drain: &meridianv1.DataplaneDrain{}}}
		register := func() *proxyClient {
			p := w.dial(w.token(""))
			p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: hello}})
			go p.follow()
			synctest.Wait()
			return p
		}
		labels := func() map[string]string {
			r, stored := w.stored("web-1")
			require.True(t, stored)
			return r.Meta().Labels
		}
		registered := map[string]string{LabelRegisteredBy: ByProxy}
		drains := map[string]string{LabelRegisteredBy: ByProxy, resource.DrainingLabel: resource.Draining}

		p := register()
		release, err := w.service.Hold(policy.DataplaneKey("default", "web-1"))
		require.NoError(t, err)
		require.Equal(t, registered, labels())
		p.send(drain)
		synctest.Wait()
		require.Equal(t, drains, labels())
		require.False(t, p.over())
		require.True(t, w.state("web-1").Connected)

		// It connects again, as after a restart of the zone.
		p.leave()
		hello.Draining = true
		p = register()
		require.Equal(t, drains, labels())
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Leave{Leave: &meridianv1.DataplaneLeave{}}})
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.False(t, stored)
		p.leave()
		release()

		// A hello that says so where nothing is registered.
		p = register()
		require.Equal(t, drains, labels())
		p.leave()

		// Its successor takes requests.
		hello.Draining = false
		p = register()
		require.Equal(t, registered, labels())
		p.send(drain)
		p.send(drain)
		synctest.Wait()
		require.True(t, p.over(), "it says so once")
		p.leave()
	})
}

// What an operator applied, its proxy does not change.
func TestDrainingOfWhatAnOperatorApplied(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.operator("web-1", dataplaneSpec("web"))
		before, _ := w.stored("web-1")
		p := w.connect(w.token(""), "web-1", "")
		synctest.Wait()
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Drain{Drain: &meridianv1.DataplaneDrain{}}})
		synctest.Wait()
		after, _ := w.stored("web-1")
		require.Same(t, before, after)
		require.False(t, p.over())
		p.leave()
	})
}

func TestCheck(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		key := policy.DataplaneKey("default", "web-1")
		use := token.KeyID{Use: token.ForDataplane}
		covering := token.Token{Key: use, Type: "dataplane", Mesh: "default", Tags: map[string][]string{"kuma.io/service": {"web"}}}
		err := w.service.Check(covering, key)
		require.Equal(t, rpcerr.NotFound, rpcerr.CodeOf(err), "%v", err)
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.NoError(t, w.service.Check(covering, key))
		for name, other := range map[string]token.Token{
			"another mesh":    {Key: use, Type: "dataplane", Mesh: "other"},
			"another name":    {Key: use, Type: "dataplane", Mesh: "default", Name: "web-2"},
			"another service": {Key: use, Type: "dataplane", Mesh: "default", Tags: map[string][]string{"kuma.io/service": {"db"}}},
		} {
			require.True(t, rpcerr.HasReason(w.service.Check(other, key), ReasonNotCovered), name)
		}
		p.leave()
	})
}
