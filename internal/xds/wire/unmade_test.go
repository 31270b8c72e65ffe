package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/support"
	"meridian/internal/xds/wire"
	"meridian/internal/xds/world"
)

// struck is a world in which web-1 calls two dataplanes of backend, which have faults.
func struck(t *testing.T, of string) policytest.World {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, "{}")
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`)
	for _, v := range []string{"1", "2"} {
		put(t, w, resource.KindDataplane, "backend-"+v, fmt.Sprintf(`{"networking":{"address":"10.0.0.%[1]s","inbound":[{"port":80,"tags":{"kuma.io/service":"backend","v":%[1]q}}]}}`, v))
	}
	put(t, w, resource.KindMeshHTTPFault, "failing", `{"targetRef":`+of+`,"from":[{"targetRef":{"kind":"Mesh"},"default":{"http":[{"abort":{"percentage":100,"httpStatus":503}}]}}]}`)
	return w
}

const abort = `{"abort":{"percentage":1,"httpStatus":503}}`

// A client that makes no faults of inbounds, or not all, is told of: by the policies that it
// does not obey, and why.
func TestFaultsThatAClientDoesNotMake(t *testing.T) {
	const backend, second = `{"kind":"Service","name":"backend"}`, `{"kind":"ServiceSubset","name":"backend","tags":{"v":"2"}}`
	for name, c := range map[string]struct {
		of    string
		own   string // the faults that the client makes by itself
		envoy string // the dataplane that an Envoy serves
		named string
		says  string
	}{
		"all inbounds do the same":     {of: backend},
		"they differ":                  {of: second, named: "failing", says: "do not all do the same with this caller"},
		"an Envoy makes them":          {of: second, envoy: "backend-2"},
		"an Envoy makes some":          {of: backend, envoy: "backend-1", named: "failing", says: "an Envoy serves some of the inbounds"},
		"an Envoy has its own":         {of: second, envoy: "backend-1", named: "failing", says: "an Envoy serves some of the inbounds"},
		"as many as there may be":      {of: backend, own: strings.Repeat(","+abort, 3)[1:]},
		"the client has them before":   {of: backend, own: strings.Repeat(","+abort, 4)[1:], named: "failing", says: "makes the first four faults of a call"},
		"the client has more than all": {of: `{"kind":"Service","name":"none"}`, own: strings.Repeat(","+abort, 5)[1:], named: "own", says: "makes the first four faults of a call"},
	} {
		t.Run(name, func(t *testing.T) {
			w := struck(t, c.of)
			if c.own != "" {
				put(t, w, resource.KindMeshHTTPFault, "own", `{"to":[{"targetRef":{"kind":"Mesh"},"default":{"http":[`+c.own+`]}}]}`)
			}
			state := world.New("east")
			m := policy.NewMatcher(engines.All()...).Following(state)
			m.Reset(w.View())
			if c.envoy != "" {
				require.True(t, state.SetListening(policy.DataplaneKey("m", c.envoy), true, false))
			}
			a, err := wire.Ask(m, "m", "web-1", "", xds.GRPC, "east", 7)
			require.NoError(t, err)
			var told []string
			for _, g := range a.Gaps {
				if g.Attachment == "outbound backend:4001" {
					require.Contains(t, g.Note, c.says)
					told = append(told, g.Name)
				}
			}
			if c.named == "" {
				require.Empty(t, told)
				return
			}
			require.Equal(t, []string{c.named}, told)
		})
	}
}

// Permissions that are more than a proxy takes deny every caller, and those that are tried
// are not tried where there is no space for them: both is told by the policies.
func TestPermissionsThatAreTooLarge(t *testing.T) {
	const strict = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"STRICT"}]}}`
	for name, c := range map[string]struct {
		dialect  xds.Dialect
		policies int
		closed   bool
		untried  bool
	}{
		"a few":             {dialect: xds.Envoy, policies: 1},
		"none can be tried": {dialect: xds.Envoy, policies: 16, untried: true},
		"too many":          {dialect: xds.Envoy, policies: 41, closed: true, untried: true},
		"a few on gRPC":     {dialect: xds.GRPC, policies: 0},
		"too many turns":    {dialect: xds.GRPC, policies: 1, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := policytest.NewWorld()
			w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, strict)
			put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"http"}}]}}`)
			allowed := func(i int) string {
				return fmt.Sprintf(`{"targetRef":{"kind":"MeshService","name":"s%d"},"default":{"action":%q}}`, i, [2]string{"ALLOW", "DENY"}[i%2])
			}
			put(t, w, resource.KindMeshTrafficPermission, "few", `{"targetRef":{"kind":"Mesh"},"from":[`+allowed(0)+`]}`)
			for p := range c.policies {
				var from []string
				for i := range 500 {
					from = append(from, allowed(p*500+i))
				}
				put(t, w, resource.KindMeshTrafficPermission, fmt.Sprintf("p%02d", p), `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`)
			}
			w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMeshTrafficPermission, Mesh: "m", Name: "z"}, Labels: map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}},
				`{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"MeshService","name":"z"},"default":{"action":"ALLOW"}}]}`)
			m := policy.NewMatcher(engines.All()...).Following(world.New("east")).Following(engines.Trial())
			m.Reset(w.View())
			a, err := wire.Ask(m, "m", "backend-1", "", c.dialect, "east", 7)
			require.NoError(t, err)
			var closed, untried []string
			for _, g := range a.Gaps {
				require.Equal(t, "inbound backend:80", g.Attachment)
				switch {
				case strings.Contains(g.Note, "every caller of this inbound is denied"):
					closed = append(closed, g.Name)
				case strings.Contains(g.Note, "nothing is tried there"):
					untried = append(untried, g.Name)
				}
			}
			if c.closed {
				require.Len(t, closed, c.policies+1)
			} else {
				require.Empty(t, closed)
			}
			if c.untried {
				require.Equal(t, []string{"z"}, untried)
			} else {
				require.Empty(t, untried)
			}
		})
	}
}

// Of a MeshLogging with more entries than an inbound takes, or with longer conditions, the
// policies are told of whose entries log nothing.
func TestEntriesOfLogsThatAreTooMany(t *testing.T) {
	const strict = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"STRICT"}]}}`
	for name, c := range map[string]struct {
		entries, length int
		told            bool
	}{
		"as many as there may be": {entries: 20, length: 10},
		"too many":                {entries: 65, length: 1, told: true},
		"too long":                {entries: 30, length: 200, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := policytest.NewWorld()
			w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, strict)
			put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"http"}}]}}`)
			var from []string
			for i := range c.entries {
				from = append(from, fmt.Sprintf(`{"targetRef":{"kind":"MeshService","name":"s%d%s"},"default":{"backends":[{"type":"File","file":{"path":"/tmp/%d"}}]}}`, i, strings.Repeat("x", c.length), i))
			}
			put(t, w, resource.KindMeshLogging, "many", `{"targetRef":{"kind":"Mesh"},"from":[`+strings.Join(from, ",")+`]}`)
			m := policy.NewMatcher(engines.All()...).Following(world.New("east"))
			m.Reset(w.View())
			a, err := wire.Ask(m, "m", "backend-1", "", xds.Envoy, "east", 7)
			require.NoError(t, err)
			told := false
			for _, g := range a.Gaps {
				if g.Status == support.Unsupported && strings.Contains(g.Note, "those after them, in the order in which they are looked for, have none") {
					require.Equal(t, "many", g.Name)
					require.Equal(t, "inbound backend:80", g.Attachment)
					told = true
				}
			}
			require.Equal(t, c.told, told)
		})
	}
}
