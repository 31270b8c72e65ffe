package dataplane

import (
	"crypto/elliptic"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/resource/resourcetest"
)

// What a proxy takes without TLS is known where the mesh accepts that, for as long as the
// dataplane is registered; what it says elsewhere has no effect.
func TestWhatIsTakenInPlaintext(t *testing.T) {
	w := newWorld(t)
	w.open()
	defer w.stop()
	mesh := func(mode string) {
		w.global(resourcetest.Build(t, "Mesh", "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"`+mode+`"}]}}`))
	}
	mesh("STRICT")
	p := w.dial(w.token("web-1"))
	defer p.leave()
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: helloOf("web-1", "web")}})
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_CertificateRequest{
		CertificateRequest: &meridianv1.DataplaneCertificateRequest{Csr: certificateRequest(t, ecdsaKey(t, elliptic.P256()))},
	}})
	key := policy.DataplaneKey("default", "web-1")
	until := func(accepted bool) {
		t.Helper()
		for {
			m, err := p.stream.Recv()
			require.NoError(t, err)
			if i := m.GetIdentity(); i != nil && i.GetPlaintext() == accepted {
				return
			}
		}
	}
	say := func(connections, open uint64, quiet time.Duration) {
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Plaintext{Plaintext: &meridianv1.DataplanePlaintext{
			Connections: connections, Open: open, Quiet: durationpb.New(quiet),
		}}})
	}
	is := func(connections, open uint64, total float64) {
		t.Helper()
		require.Eventually(t, func() bool {
			got := w.service.State(key).Plaintext
			return got != nil && got.Connections == connections && got.Open == open
		}, time.Minute, time.Millisecond)
		require.Equal(t, []MeshPlaintext{{Mesh: "default", Connections: total, Open: float64(open), Counting: 1}}, w.service.Plaintext())
	}
	until(false)
	say(7, 7, 0)
	// This is taken after it.
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Drain{Drain: &meridianv1.DataplaneDrain{}}})
	require.Eventually(t, func() bool { return w.service.State(key).Draining }, time.Minute, time.Millisecond)
	mesh("PERMISSIVE")
	until(true)
	say(3, 1, 0)
	is(3, 1, 3)
	say(5, 0, time.Hour)
	is(5, 0, 5)
	got := w.service.State(key).Plaintext
	require.Equal(t, time.Hour, got.AsOf.Sub(got.Last))
	say(2, 0, -time.Hour) // its agent was started again
	is(2, 0, 7)
	got = w.service.State(key).Plaintext
	require.Equal(t, got.AsOf, got.Last)
	say(math.MaxUint64, 1, 0)
	is(math.MaxUint64, 1, 7+float64(math.MaxUint64-2))
	mesh("STRICT")
	until(false)
	require.Nil(t, w.service.State(key).Plaintext)
	require.Zero(t, w.service.Plaintext()[0].Counting)
}
