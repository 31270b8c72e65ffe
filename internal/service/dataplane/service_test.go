package dataplane

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
)

func TestFullOnceThenOnlyWhatChanged(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.global(timeoutTo(t, "to-backend", "*", "backend", "1s"), timeoutTo(t, "to-admin", "*", "admin", "2s"))
		p := w.connect(w.token("web-1", "kuma.io/service", "web"), "web-1", dataplaneSpec("web", "backend", "admin"))
		synctest.Wait()
		first := p.messages()
		require.Len(t, first, 1)
		require.True(t, first[0].GetFull())
		require.EqualValues(t, 1, first[0].GetSequence())
		require.EqualValues(t, w.replica.Revision(), first[0].GetRevision())
		require.Len(t, first[0].GetSet(), 2)
		require.Equal(t, []string{`{"connectTimeout":"1s"}`, `{"connectTimeout":"2s"}`}, p.confs("Timeout"))
		require.Equal(t, State{Connected: true, Registered: true, Acked: w.replica.Revision()}, w.state("web-1"))
		r, ok := w.stored("web-1")
		require.True(t, ok)
		require.Equal(t, "east", r.Spec().(*resource.Dataplane).TagSets()[0][resource.ZoneTag], "§1.5")

		w.global(timeoutTo(t, "to-backend", "*", "backend", "5s"))
		synctest.Wait()
		second := p.messages()[1:]
		require.Len(t, second, 1)
		require.False(t, second[0].GetFull())
		require.EqualValues(t, 2, second[0].GetSequence())
		require.Len(t, second[0].GetSet(), 1)
		require.Equal(t, []string{"to-backend"}, second[0].GetSet()[0].GetPolicies())
		require.Empty(t, second[0].GetRemoved())

		w.globalDelete(resource.Key{Kind: "Timeout", Mesh: "default", Name: "to-admin"})
		synctest.Wait()
		third := p.messages()[2:]
		require.Len(t, third, 1)
		require.Empty(t, third[0].GetSet())
		require.Len(t, third[0].GetRemoved(), 1)
		require.Equal(t, "admin", third[0].GetRemoved()[0].GetService())
		require.Equal(t, []string{`{"connectTimeout":"5s"}`}, p.confs("Timeout"))

		w.global(timeoutTo(t, "to-elsewhere", "*", "elsewhere", "9s"))
		synctest.Wait()
		require.Len(t, p.messages(), 3, "what does not concern it is not sent")
		p.leave()
	})
}

// A change is delivered to the proxies that it affects and to no other.
func TestOnlyAffectedProxiesReceiveAChange(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		web := w.connect(w.token(""), "web-1", dataplaneSpec("web", "backend"))
		api := w.connect(w.token(""), "api-1", dataplaneSpec("api", "backend"))
		synctest.Wait()
		sent := w.service.Sent()
		w.global(timeoutTo(t, "t", "web", "backend", "1s"))
		synctest.Wait()
		require.Equal(t, sent+1, w.service.Sent())
		require.Len(t, web.messages(), 2)
		require.Len(t, api.messages(), 1)
		web.leave()
		api.leave()
	})
}

// §6.8: what a token must say for a dataplane to be registered.
func TestRegistrationRule(t *testing.T) {
	const gateway = `{"networking": {"address": "10.0.0.1", "gateway": {"tags": {"kuma.io/service": "edge"}}}}`
	const two = `{"networking": {"address": "10.0.0.1", "inbound": [
		{"port": 80, "tags": {"kuma.io/service": "web", "version": "v1"}}, {"port": 81, "tags": {"kuma.io/service": "web-admin"}}]}}`
	tests := map[string]struct {
		mesh, name string
		tags       []string
		spec       string
		says       string // empty: registered
	}{
		"any name and tags":               {mesh: "default", spec: two},
		"its name":                        {mesh: "default", name: "dp-1", spec: two},
		"every value of every inbound":    {mesh: "default", tags: []string{"kuma.io/service", "web", "kuma.io/service", "web-admin"}, spec: two},
		"a tag on one inbound":            {mesh: "default", tags: []string{"version", "v1"}, spec: two},
		"the zone's own tag":              {mesh: "default", tags: []string{"kuma.io/zone", "east"}, spec: two},
		"gateway":                         {mesh: "default", tags: []string{"kuma.io/service", "edge"}, spec: gateway},
		"other mesh":                      {mesh: "other", spec: two, says: `the token is for another mesh: it names "other", not "default"`},
		"other name":                      {mesh: "default", name: "dp-2", spec: two, says: `it names "dp-2", not "dp-1"`},
		"a value that is not in the list": {mesh: "default", tags: []string{"kuma.io/service", "web"}, spec: two, says: `kuma.io/service is "web-admin", and the token allows ["web"]`},
		"a tag on no inbound":             {mesh: "default", tags: []string{"team", "a"}, spec: two, says: `the dataplane has no tag team`},
		"gateway of another service":      {mesh: "default", tags: []string{"kuma.io/service", "web"}, spec: gateway, says: `kuma.io/service is "edge"`},
		"the tag of another zone":         {mesh: "default", tags: []string{"kuma.io/zone", "west"}, spec: two, says: `kuma.io/zone is "east", and the token allows ["west"]`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				token, _ := w.tokenWithID(tt.mesh, tt.name, tt.tags...)
				p := w.connect(token, "dp-1", tt.spec)
				defer p.leave()
				if tt.says == "" {
					synctest.Wait()
					require.Len(t, p.messages(), 1)
					return
				}
				code, message := p.refused()
				require.Equal(t, codes.PermissionDenied, code, message)
				require.Contains(t, message, "Access Denied: ")
				require.Contains(t, message, tt.says)
				_, stored := w.stored("dp-1")
				require.False(t, stored)
			})
		})
	}
}

func TestWhatIsNoDataplaneIsRefused(t *testing.T) {
	tests := map[string]struct {
		mesh, name, spec string
		code             codes.Code
		says             string
	}{
		"another zone": {
			"default", "web-1", `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web", "kuma.io/zone": "west"}}]}}`,
			codes.InvalidArgument, `says "west", but this is zone "east"`,
		},
		"not JSON":        {"default", "web-1", `{`, codes.InvalidArgument, "not valid JSON"},
		"unknown field":   {"default", "web-1", `{"networkin": {}}`, codes.InvalidArgument, "networking"},
		"name":            {"default", "Web_1", dataplaneSpec("web"), codes.InvalidArgument, "Web_1"},
		"no mesh":         {"nowhere", "web-1", dataplaneSpec("web"), codes.NotFound, `cannot be registered yet: mesh "nowhere" does not exist`},
		"not there":       {"default", "web-1", "", codes.InvalidArgument, "does not exist: send its spec with the hello"},
		"name of nothing": {"default", "", dataplaneSpec("web"), codes.InvalidArgument, "name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				token, _ := w.tokenWithID(tt.mesh, "")
				p := w.dial(token)
				defer p.leave()
				p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{
					Hello: &meridianv1.DataplaneHello{Mesh: tt.mesh, Name: tt.name, Spec: []byte(tt.spec)},
				}})
				go p.follow()
				code, message := p.refused()
				require.Equal(t, tt.code, code, message)
				require.Contains(t, message, tt.says)
			})
		})
	}
}

func TestUnauthenticatedProxiesAreRefused(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.dial("")
		go p.follow()
		code, message := p.refused()
		require.Equal(t, codes.Unauthenticated, code)
		require.Contains(t, message, "present a dataplane token")
		p.leave()

		p = w.dial("nonsense")
		go p.follow()
		code, message = p.refused()
		require.Equal(t, codes.Unauthenticated, code)
		require.Contains(t, message, "malformed")
		p.leave()
	})
}

// A stream that says nothing, or the wrong thing, does not last.
func TestOutOfTurn(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		silent := w.dial(w.token(""))
		start := time.Now()
		go silent.follow()
		code, message := silent.refused()
		require.Equal(t, codes.DeadlineExceeded, code)
		require.Contains(t, message, "no hello came within 10s")
		require.Equal(t, helloTimeout, time.Since(start))
		silent.leave()

		rude := w.dial(w.token(""))
		rude.answer(1, "")
		go rude.follow()
		_, message = rude.refused()
		require.Contains(t, message, "the first message of a proxy is its hello")
		rude.leave()

		eager := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		eager.answer(7, "")
		code, message = eager.refused()
		require.Equal(t, codes.InvalidArgument, code)
		require.Contains(t, message, "configuration 7, which is not waiting")
		eager.leave()
	})
}

// What a proxy registered stays for the grace period after it has gone.
func TestGrace(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		p.leave()
		synctest.Wait()
		state := w.state("web-1")
		require.False(t, state.Connected)
		require.True(t, state.Registered)

		<-time.After(DefaultGrace - time.Second)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.True(t, stored, "within the grace period")

		// It comes back, and the time it was away is forgotten.
		p = w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		_, stored = w.stored("web-1")
		require.True(t, stored)
		p.leave()
		<-time.After(DefaultGrace + time.Second)
		synctest.Wait()
		_, stored = w.stored("web-1")
		require.False(t, stored)
		require.Empty(t, w.service.proxies)
		require.Empty(t, w.service.sessions)
	})
}

// A zone that restarts keeps what proxies registered until they are back, or the
// grace period is over.
func TestGraceThroughARestart(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.operator("by-hand", dataplaneSpec("manual"))
		for _, name := range []string{"back", "gone"} {
			p := w.connect(w.token(""), name, dataplaneSpec("web"))
			defer p.leave()
		}
		synctest.Wait()
		before, _ := w.stored("back")
		w.stop()
		<-time.After(time.Hour)
		w.open()
		synctest.Wait()
		_, stored := w.stored("gone")
		require.True(t, stored, "the time that the zone was away does not count")

		p := w.connect(w.token(""), "back", dataplaneSpec("web"))
		defer p.leave()
		<-time.After(DefaultGrace + time.Second)
		synctest.Wait()
		_, stored = w.stored("gone")
		require.False(t, stored)
		_, stored = w.stored("by-hand")
		require.True(t, stored, "what an operator applied is never removed")
		after, stored := w.stored("back")
		require.True(t, stored)
		require.Equal(t, before.Meta().Version, after.Meta().Version, "coming back as it was writes nothing")
	})
}

// The end of the zone is told to its proxies.
func TestStop(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		silent := w.dial(w.token(""))
		go silent.follow()
		synctest.Wait()
		start := time.Now()
		w.stop()
		require.Zero(t, time.Since(start), "shutdown waits for no client")
		for _, c := range []*proxyClient{p, silent} {
			code, message := c.refused()
			require.Equal(t, codes.Unavailable, code)
			require.Contains(t, message, "the zone is stopping")
			c.leave()
		}
		_, stored := w.stored("web-1")
		require.True(t, stored)
	})
}

func TestWhatAnOperatorAppliedIsItsOwn(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.global(timeoutTo(t, "t", "*", "*", "1s"))
		w.operator("web-1", dataplaneSpec("web", "backend"))

		p := w.connect(w.token("web-1"), "web-1", "")
		synctest.Wait()
		require.Len(t, p.confs("Timeout"), 1, "a proxy may take it as it is")
		require.Equal(t, State{Connected: true, Acked: w.replica.Revision()}, w.state("web-1"))
		p.leave()

		p = w.connect(w.token("web-1"), "web-1", dataplaneSpec("web", "other"))
		_, message := p.refused()
		require.Contains(t, message, "an operator applied dataplane")
		p.leave()

		p = w.connect(w.token("web-1", "kuma.io/service", "api"), "web-1", "")
		code, _ := p.refused()
		require.Equal(t, codes.PermissionDenied, code, "the token has to cover it all the same")
		p.leave()

		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.True(t, stored)
		require.Equal(t, State{}, w.state("web-1"))
	})
}

// An operator who applies what a proxy had registered takes it over.
func TestTakenOverByAnOperator(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		w.operator("web-1", dataplaneSpec("web", "backend"))
		synctest.Wait()
		require.True(t, w.state("web-1").Connected)
		p.leave()
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.True(t, stored)

		// Also while the proxy is away.
		p = w.connect(w.token(""), "api-1", dataplaneSpec("api"))
		synctest.Wait()
		p.leave()
		synctest.Wait()
		w.operator("api-1", dataplaneSpec("api", "backend"))
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		_, stored = w.stored("api-1")
		require.True(t, stored)
	})
}

func TestTheNewerReplacesTheOlder(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		older := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		newer := w.connect(w.token(""), "web-1", dataplaneSpec("web", "backend"))
		code, message := older.refused()
		require.Equal(t, codes.FailedPrecondition, code)
		require.Contains(t, message, "took the place of this one")
		synctest.Wait()
		require.Len(t, newer.messages(), 1)
		older.leave()
		<-time.After(2 * DefaultGrace)
		synctest.Wait()
		r, stored := w.stored("web-1")
		require.True(t, stored, "the end of the older one means nothing")
		require.Len(t, r.Spec().(*resource.Dataplane).Outbounds(), 1)
		newer.leave()

		// A proxy that may not register replaces no other.
		holder := w.connect(w.token("web-1"), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		thief := w.connect(w.token("web-2"), "web-1", dataplaneSpec("web"))
		code, _ = thief.refused()
		require.Equal(t, codes.PermissionDenied, code)
		require.True(t, w.state("web-1").Connected)
		thief.leave()
		other, _ := w.tokenWithID("default", "", "kuma.io/service", "backend")
		thief = w.connect(other, "web-1", dataplaneSpec("backend")) // covered, and the stored one is not
		code, message = thief.refused()
		require.Equal(t, codes.PermissionDenied, code)
		require.Contains(t, message, `kuma.io/service is "web"`)
		require.True(t, w.state("web-1").Connected)
		thief.leave()
		holder.leave()
	})
}

// §6.8: revocation ends live streams.
func TestRevokedTokenEndsTheStream(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		token, id := w.tokenWithID("default", "web-1")
		p := w.connect(token, "web-1", dataplaneSpec("web"))
		other := w.connect(w.token(""), "web-2", dataplaneSpec("web"))
		synctest.Wait()
		start := time.Now()
		w.revoke(id)
		code, message := p.refused()
		require.Less(t, time.Since(start), time.Second)
		require.Equal(t, codes.Unauthenticated, code)
		require.Contains(t, message, "revoked")
		synctest.Wait()
		require.True(t, w.state("web-2").Connected)
		p.leave()

		<-time.After(25 * time.Hour)
		code, message = other.refused()
		require.Equal(t, codes.Unauthenticated, code)
		require.Contains(t, message, "expired")
		other.leave()
	})
}

func TestDeletedDataplaneEndsTheStream(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		start := time.Now()
		w.operatorDelete("web-1")
		code, message := p.refused()
		require.Less(t, time.Since(start), time.Second)
		require.Equal(t, codes.NotFound, code)
		require.Contains(t, message, "the dataplane was deleted")
		p.leave()
		synctest.Wait()
		require.Empty(t, w.service.proxies)
	})
}

// A dataplane that changes into one that the token does not cover is no longer
// served to its holder.
func TestTokenHoldsForWhatIsStoredNow(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token("", "kuma.io/service", "web"), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		w.operator("web-1", dataplaneSpec("secret"))
		code, message := p.refused()
		require.Equal(t, codes.PermissionDenied, code)
		require.Contains(t, message, `kuma.io/service is "secret"`)
		p.leave()
	})
}

// A proxy that does not answer delays no other, and then gets the newest state.
func TestSlowProxyGetsTheNewestState(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		slow := w.connectWith(w.token(""), "slow", dataplaneSpec("web", "backend"), func(p *proxyClient) { p.hold = true })
		quick := w.connect(w.token(""), "quick", dataplaneSpec("web", "backend"))
		synctest.Wait()
		for _, connect := range []string{"1s", "2s", "3s"} {
			w.global(timeoutTo(t, "t", "*", "backend", connect))
			synctest.Wait()
		}
		require.Len(t, quick.messages(), 4)
		require.Len(t, slow.messages(), 1)
		require.EqualValues(t, 4, w.state("slow").Lag, "the first configuration and three changes")
		require.Zero(t, w.state("quick").Lag)
		require.Equal(t, 2, w.service.Connected())
		require.Equal(t, 1, w.service.Behind())

		slow.answer(1, "")
		synctest.Wait()
		require.Len(t, slow.messages(), 2)
		require.Equal(t, []string{`{"connectTimeout":"3s"}`}, slow.confs("Timeout"))
		slow.answer(2, "")
		synctest.Wait()
		require.Zero(t, w.state("slow").Lag)
		require.Zero(t, w.service.Behind())

		// There and back again is nothing to tell.
		w.global(timeoutTo(t, "t", "*", "backend", "4s"))
		synctest.Wait()
		require.Len(t, slow.messages(), 3)
		w.global(timeoutTo(t, "t", "*", "backend", "5s"))
		w.global(timeoutTo(t, "t", "*", "backend", "4s"))
		synctest.Wait()
		slow.answer(3, "")
		synctest.Wait()
		require.Len(t, slow.messages(), 3)
		require.Zero(t, w.state("slow").Lag)
		slow.leave()
		quick.leave()
	})
}

// A proxy that has stopped reading is got rid of like any other.
func TestStuckReaderCanBeReplaced(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.global(resourcetest.Build(t, "ProxyTemplate", "default", "big", `{"selectors": [{"match": {"kuma.io/service": "*"}}],
			"conf": {"imports": ["default-proxy"], "resources": [{"name": "r", "version": "v1", "resource": "`+string(make999(1<<19))+`"}]}}`))
		stuck := w.dial(w.token(""))
		stuck.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{
			Hello: &meridianv1.DataplaneHello{Mesh: "default", Name: "web-1", Spec: []byte(dataplaneSpec("web"))},
		}})
		synctest.Wait()
		other := w.connect(w.token(""), "web-2", dataplaneSpec("web"))
		synctest.Wait()
		require.Len(t, other.messages(), 1, "others are served")
		newer := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		require.Len(t, newer.messages(), 1)
		stuck.leave()
		newer.leave()
		other.leave()
	})
}

func make999(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = '9'
	}
	return b
}

// A proxy that refuses keeps what it had; the next configuration is full.
func TestRefusal(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.global(timeoutTo(t, "a", "*", "admin", "1s"))
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web", "backend", "admin"))
		synctest.Wait()
		took := w.replica.Revision()
		p.mu.Lock()
		p.refuse = "no such cluster"
		p.mu.Unlock()
		w.global(timeoutTo(t, "b", "*", "backend", "1s"))
		synctest.Wait()
		require.Equal(t, State{Connected: true, Registered: true, Acked: took, Lag: 1, LastError: "no such cluster", Refused: true}, w.state("web-1"))

		p.mu.Lock()
		p.refuse, p.hold = "", true
		p.mu.Unlock()
		w.global(timeoutTo(t, "b", "*", "backend", "2s"))
		synctest.Wait()
		require.Equal(t, State{Connected: true, Registered: true, Acked: took, Lag: 2, LastError: "no such cluster"}, w.state("web-1"), "it has not answered the newer one")
		p.answer(3, "")
		synctest.Wait()
		last := p.messages()[2]
		require.True(t, last.GetFull())
		require.Len(t, last.GetSet(), 2)
		require.Equal(t, State{Connected: true, Registered: true, Acked: w.replica.Revision()}, w.state("web-1"))
		p.leave()
	})
}

// A dataplane that is brought in with the mark of a registration waits for its
// proxy like any other.
func TestRestoredRegistration(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		r := resourcetest.Build(t, resource.KindDataplane, "default", "web-1", dataplaneSpec("web"))
		meta := r.Meta()
		meta.Labels = map[string]string{LabelRegisteredBy: ByProxy}
		_, err := w.local.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Put(r.WithMeta(meta))}})
		require.NoError(t, err)
		<-time.After(DefaultGrace + time.Second)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.False(t, stored)
	})
}

// A registration is removed even when the store could not be written to at first.
func TestRemovalIsTriedAgain(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		p := w.connect(w.token(""), "web-1", dataplaneSpec("web"))
		synctest.Wait()
		failures := 3
		w.local.Before(func(store.Txn) error {
			if failures--; failures >= 0 {
				return context.DeadlineExceeded
			}
			return nil
		})
		p.leave()
		<-time.After(DefaultGrace + retryRemoval + time.Second/2)
		synctest.Wait()
		_, stored := w.stored("web-1")
		require.True(t, stored)
		<-time.After(3 * retryRemoval)
		synctest.Wait()
		_, stored = w.stored("web-1")
		require.False(t, stored)
	})
}
