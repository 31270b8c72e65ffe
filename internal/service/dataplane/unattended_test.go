package dataplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource/resourcetest"
)

// The agent of a dataplane that an operator applied has the grace period to come for a
// certificate: from when it was applied, or the zone started.
func TestDataplanesThatNoAgentComesFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.global(resourcetest.Build(t, "Mesh", "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
		w.operator("alone", dataplaneSpec("alone"))
		w.operator("attended", dataplaneSpec("attended"))
		left := func() []string {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.unattended)
		}
		comes := func() {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			require.NoError(t, err)
			got, err := w.askForCertificates(w.token("attended", "kuma.io/service", "attended"),
				&meridianv1.DataplaneHello{Mesh: "default", Name: "attended", RegistrationOnly: true}, certificateRequest(t, key))
			require.NoError(t, err)
			require.NotEmpty(t, got[0].GetCertificate())
		}
		w.open()
		comes()
		<-time.After(DefaultGrace - time.Second)
		require.Empty(t, left())
		w.operator("later", dataplaneSpec("later"))
		w.operator("gone", dataplaneSpec("gone"))
		<-time.After(2 * time.Second)
		require.Equal(t, []string{"alone"}, left())
		w.operatorDelete("gone")
		<-time.After(DefaultGrace)
		require.Equal(t, []string{"alone", "later"}, left())

		// What is deleted and applied again has its time again.
		w.operatorDelete("alone")
		w.operator("alone", dataplaneSpec("alone"))
		<-time.After(DefaultGrace - time.Second)
		require.Equal(t, []string{"alone", "later"}, left())
		<-time.After(2 * time.Second)
		require.Equal(t, []string{"alone", "later", "alone"}, left())

		// An agent that is away has the grace period once more when the zone has restarted.
		w.stop()
		w.unattended = nil
		w.open()
		<-time.After(DefaultGrace + time.Second)
		require.ElementsMatch(t, []string{"alone", "attended", "later"}, left())
		w.stop()
	})
}
