package dataplane

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
)

// A zone says that it takes what proxies counted of permissions that are tried, keeps the
// last of it, and ends the stream of a proxy that sends too much, or too often.
func TestTrialsAreKept(t *testing.T) {
	trial := func(counts int, caller string) *meridianv1.ConnectRequest {
		m := &meridianv1.DataplaneTrial{}
		for range counts {
			m.Counts = append(m.Counts, &meridianv1.DataplaneTrialCount{Port: 80, Caller: caller, Calls: 1})
		}
		return &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Trial{Trial: m}}
	}
	for name, sent := range map[string][]*meridianv1.ConnectRequest{
		"many":  {trial(maxTrialCounts+1, "web")},
		"large": {trial(maxTrialCounts, strings.Repeat("w", maxTrialBytes/maxTrialCounts))},
		"often": func() (all []*meridianv1.ConnectRequest) {
			for range maxTrials + 1 {
				all = append(all, trial(1, "web"))
			}
			return all
		}(),
		"well": {trial(maxTrialCounts, "web"), trial(2, "web")},
	} {
		inTime(t, func(t *testing.T, w *world) {
			p := w.connect(w.token("backend-1", "kuma.io/service", "backend"), "backend-1", dataplaneSpec("backend"))
			defer p.leave()
			synctest.Wait()
			require.True(t, p.messages()[0].GetTakesTrials())
			for _, m := range sent {
				p.send(m)
			}
			synctest.Wait()
			if name != "well" {
				code, _ := p.refused()
				require.Equal(t, codes.ResourceExhausted, code, name)
				return
			}
			require.False(t, p.over())
			require.Len(t, w.service.Trials("default")[policy.DataplaneKey("default", "backend-1")].GetCounts(), 2)
			require.Empty(t, w.service.Trials("other"))
		})
	}
}
