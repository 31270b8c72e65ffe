package dataplane

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
)

// What ten thousand idle proxies cost is goroutines more than anything else: one
// that waits for the end of the session and one that receives.
func TestAnIdleProxyHasTwoGoroutines(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		const proxies = 20
		for i := range proxies {
			p := w.connect(w.token(""), fmt.Sprintf("web-%d", i), dataplaneSpec("web"))
			defer p.leave()
		}
		synctest.Wait()
		stacks := make([]byte, 4<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		waiting, receiving, other := 0, 0, 0
		for g := range strings.SplitSeq(string(stacks), "\n\n") {
			switch {
			case strings.Contains(g, "dataplane.(*Service).Connect("):
				waiting++
			case strings.Contains(g, "dataplane.(*session).receiveAcks("):
				receiving++
			case strings.Contains(g, "dataplane.(*session)."):
				other++
			}
		}
		require.Equal(t, []int{proxies, proxies, 0}, []int{waiting, receiving, other})
	})
}

// A proxy that says it has what it never read holds up what is sent to it, and
// neither the others nor its own end, however many do so.
func TestAnswersWithoutReading(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		template := func(n int) *resource.Resource {
			return resourcetest.Build(t, "ProxyTemplate", "default", "big", fmt.Sprintf(`{"selectors": [{"match": {"kuma.io/service": "web"}}],
				"conf": {"imports": ["default-proxy"], "resources": [{"name": "r%d", "version": "v1", "resource": "%s"}]}}`, n, make999(1<<19)))
		}
		w.global(template(0))
		liars := 2 * runtime.GOMAXPROCS(0)
		for i := range liars {
			liar := w.dial(w.token(""))
			defer liar.leave()
			liar.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{
				Hello: &meridianv1.DataplaneHello{Mesh: "default", Name: fmt.Sprintf("liar-%d", i), Spec: []byte(dataplaneSpec("web"))},
			}})
			synctest.Wait()
			liar.answer(1, "")
		}
		synctest.Wait()
		w.global(template(1))
		synctest.Wait()
		require.EqualValues(t, 2*liars, w.service.Sent(), "each has a send that waits for it")

		other := w.connect(w.token(""), "api-1", dataplaneSpec("api", "backend"))
		defer other.leave()
		synctest.Wait()
		w.global(timeoutTo(t, "t", "api", "backend", "1s"))
		synctest.Wait()
		require.Equal(t, []string{`{"connectTimeout":"1s"}`}, other.confs("Timeout"), "others are served")

		newer := w.connect(w.token(""), "liar-0", dataplaneSpec("web"))
		defer newer.leave()
		synctest.Wait()
		require.Len(t, newer.messages(), 1, "its place can be taken")
		start := time.Now()
		w.service.endAll()
		w.service.streams.Wait()
		require.Zero(t, time.Since(start), "ending waits for no client")
	})
}

// A panic over one configuration ends that stream and no other.
func TestPanicOverAConfiguration(t *testing.T) {
	service := &Service{cfg: Config{Log: slog.New(slog.DiscardHandler)}} // without the Matching to ask
	var outcome error
	s := &session{
		service: service, token: &token.Token{}, proxy: &proxy{key: policy.DataplaneKey("default", "web-1")}, end: func(err error) { outcome = err },
	}
	service.deliver(s)
	service.streams.Wait()
	require.Equal(t, rpcerr.Internal, rpcerr.CodeOf(outcome))
	require.ErrorContains(t, outcome, "its log says more")
}
