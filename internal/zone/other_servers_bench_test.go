package zone

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/controlplane"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/service/dataplane"
	"meridian/internal/store"
)

// serverWith is what a server of several knows of its proxies, which follow it over xDS.
func serverWith(t testing.TB, proxies int) *otherServers {
	t.Helper()
	inspect := connectedZone(t, proxies)
	local := store.New(localOptions(true))
	var ops []store.Op
	keys := inspect.xds.Proxies()
	for _, key := range keys {
		ops = append(ops, store.Put(resourcetest.Build(t, resource.KindDataplane, key.Mesh, key.Name, `{"networking":{"address":"10.0.0.1","inbound":[{"port":1,"tags":{"kuma.io/service":"web"}}]}}`)))
	}
	require.NoError(t, local.Apply(1, store.Txn{Ops: ops}).Err)
	inspect.proxies = dataplane.New(dataplane.Config{Matching: inspect.matching, Local: local, Now: time.Now})
	for _, key := range keys {
		_, err := inspect.proxies.Hold(key)
		require.NoError(t, err)
	}
	z := &zone{Base: &controlplane.Base{}, inspect: inspect, dataplanes: inspect.proxies}
	z.others = newOtherServers(z)
	return z.others
}

// BenchmarkProxiesTold is what a server of several does for each of the others: once a second
// while nothing happens, when 100 of its proxies may have changed, and every two minutes.
func BenchmarkProxiesTold(b *testing.B) {
	for _, proxies := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("proxies=%d", proxies), func(b *testing.B) {
			o := serverWith(b, proxies)
			sent := map[resource.Key]*peerv1.ProxyReport{}
			require.Len(b, o.difference(sent).GetProxies(), proxies)
			f := &follower{dirty: map[resource.Key]struct{}{}}
			o.told[f] = struct{}{}
			some := inspectKeys(o, 100)
			for name, look := range map[string]func() *peerv1.ProxiesResponse{
				"nothing": func() *peerv1.ProxiesResponse { return o.differenceOf(sent, o.takeDirty(f)) },
				"100": func() *peerv1.ProxiesResponse {
					for _, key := range some {
						o.changed(key)
					}
					return o.differenceOf(sent, o.takeDirty(f))
				},
				"all": func() *peerv1.ProxiesResponse { return o.difference(sent) },
			} {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						require.Empty(b, look().GetProxies())
					}
				})
			}
		})
	}
}

func inspectKeys(o *otherServers, n int) []resource.Key { return o.zone.inspect.xds.Proxies()[:n] }
