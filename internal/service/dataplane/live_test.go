package dataplane

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/rpcerr"
)

// A proxy that can be asked what it runs is asked once for all who ask meanwhile; one that
// cannot, or does not answer in time, has them told so.
func TestAProxyIsAskedWhatItRuns(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		key := policy.DataplaneKey("default", "web-1")
		_, err := w.service.Live(t.Context(), key)
		require.ErrorContains(t, err, "no agent of dataplane")
		raw := w.token("web-1", "kuma.io/service", "web")
		old := w.connect(raw, "web-1", dataplaneSpec("web"))
		synctest.Wait()
		_, err = w.service.Live(t.Context(), key)
		require.ErrorContains(t, err, "of an earlier release")
		old.leave()
		<-old.ended
		synctest.Wait()

		p := w.dial(raw)
		hello := helloOf("web-1", "web")
		hello.AnswersLive = true
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: hello}})
		configuration, err := p.stream.Recv()
		require.NoError(t, err)
		p.answer(configuration.GetSequence(), "")
		ask := func(id uint64, answer *meridianv1.DataplaneLive) {
			m, err := p.stream.Recv()
			require.NoError(t, err)
			require.Equal(t, id, m.GetLiveRequest().GetId())
			if answer != nil {
				answer.Id = id
				p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Live{Live: answer}})
			}
		}
		var asking sync.WaitGroup
		for range 2 {
			asking.Go(func() {
				live, err := w.service.Live(t.Context(), key)
				require.NoError(t, err)
				require.Len(t, live.GetResources(), 2)
				require.Equal(t, "c", live.GetResources()[0].GetName())
			})
		}
		synctest.Wait()
		ask(1, &meridianv1.DataplaneLive{Resources: []*meridianv1.LiveResource{{Type: "CDS", Name: "c"}}, More: true})
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Live{Live: &meridianv1.DataplaneLive{Id: 1, Resources: []*meridianv1.LiveResource{{Type: "CDS", Name: "d"}}}}})
		asking.Wait()

		asking.Go(func() {
			_, err := w.service.Live(t.Context(), key)
			require.ErrorContains(t, err, "it is broken")
		})
		ask(2, &meridianv1.DataplaneLive{Error: "it is broken"})
		asking.Wait()

		begun := time.Now()
		_, err = w.service.Live(t.Context(), key)
		require.Equal(t, rpcerr.Timeout, rpcerr.CodeOf(err))
		require.Equal(t, liveTimeout, time.Since(begun))
		ask(3, nil)

		// A proxy that never answers has so many wait, and forgets those who have gone.
		for range maxLiveWaiting {
			asking.Go(func() {
				_, err := w.service.Live(t.Context(), key)
				require.Equal(t, rpcerr.Timeout, rpcerr.CodeOf(err))
			})
		}
		synctest.Wait()
		_, err = w.service.Live(t.Context(), key)
		require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
		asking.Wait()
		w.service.mu.Lock()
		require.Empty(t, w.service.proxies[key].session.live.waiting)
		w.service.mu.Unlock()

		// What was not asked for ends the stream.
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Live{Live: &meridianv1.DataplaneLive{Id: 4}}})
		_, err = p.stream.Recv()
		require.ErrorContains(t, err, "without having been asked for")
		p.leave()
		synctest.Wait()
		_, err = w.service.Live(t.Context(), key)
		require.ErrorContains(t, err, "no agent of dataplane")
	})
}
