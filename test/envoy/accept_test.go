package envoy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
	"meridian/internal/xds/xdstest"
)

// Envoy accepts what every field of every policy comes to, on outbounds of every
// protocol.
func TestEnvoyAcceptsEveryField(t *testing.T) {
	for _, protocol := range []string{"http", "http2", "grpc", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			one, two := start(t, "one"), start(t, "two")
			z, _ := outbound(t, protocol, one, two)
			try := func(key resource.Key, text string, op store.Op) {
				t.Helper()
				z.apply(op)
				require.Empty(t, z.settle("web-1"), "%s %s", key.Kind, text)
				z.apply(store.Delete(key))
			}
			for _, p := range xdstest.Policies() {
				op := z.policy(p.Kind, p.Conf)
				try(op.Key, p.Conf, op)
			}
			for _, r := range xdstest.Routes() {
				op := z.put(r.Kind, "m", "r", r.Conf)
				try(op.Key, r.Conf, op)
			}
			set, err := z.feed.Resources(policy.DataplaneKey("m", "web-1"), "envoy")
			require.NoError(t, err)
			require.Empty(t, set.Withheld)
		})
	}
}
