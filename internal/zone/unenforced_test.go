package zone

import (
	"fmt"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
	"meridian/internal/turns"
	"meridian/internal/xds"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/world"
)

// following are proxies that are connected and have accepted what they were sent: by
// dataplane, their kind, with a reason why nothing is sent to them behind a space.
type following struct {
	proxyStreams
	kinds map[string]string
}

func (f following) Proxies() (keys []resource.Key) {
	for name := range f.kinds {
		keys = append(keys, policy.DataplaneKey("default", name))
	}
	return keys
}

func (f following) Follows(key resource.Key, dialect xds.Dialect) (string, bool) {
	var kind, reason string
	_, _ = fmt.Sscan(f.kinds[key.Name], &kind, &reason)
	return reason, kind == string(dialect)
}

func (f following) Dialects(key resource.Key) (list []xds.Dialect) {
	for _, d := range []xds.Dialect{xds.Envoy, xds.GRPC} {
		if _, ok := f.Follows(key, d); ok {
			list = append(list, d)
		}
	}
	return list
}

func (following) Deliveries(_ resource.Key, _ xds.Dialect, resources []*xds.Resource) []serve.Delivery {
	return slices.Repeat([]serve.Delivery{serve.Accepted}, len(resources))
}

// withheldFrom is a source that has nothing for Envoy, and a cluster for gRPC.
type withheldFrom struct{ xds.Source }

func (withheldFrom) Resources(_ resource.Key, d xds.Dialect) (*xds.Set, error) {
	if d == xds.Envoy {
		return xds.WithheldSet(7, "nothing"), nil
	}
	c, err := xds.New(&clusterv3.Cluster{Name: "c"}, xds.Origin{Source: resource.Key{Kind: "MeshCircuitBreaker", Mesh: "default", Name: "b"}})
	if err != nil {
		return nil, err
	}
	return xds.NewSet(7, c)
}

// With one look at each proxy it is known of every policy of a kind how many obey it.
func TestEnforcedOf(t *testing.T) {
	const breaker = `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1}}}]}`
	s := zoneWith(t, following{kinds: map[string]string{"web-1": "grpc", "web-2": "grpc", "web-3": "envoy"}}, map[string]string{
		"Mesh default": `{}`, "Dataplane web-1": caller, "Dataplane web-2": caller, "Dataplane web-3": caller, "Dataplane web-4": caller,
		"MeshCircuitBreaker b":    breaker,
		"MeshCircuitBreaker else": `{"targetRef": {"kind": "MeshService", "name": "other"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1}}}]}`,
	})
	req := &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Conditions{Conditions: &meridianv1.ConditionsQuestion{Kind: "MeshCircuitBreaker"}}}
	response, err := s.Inspect(t.Context(), req)
	require.NoError(t, err)
	var about answer.ConditionsAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &about))
	require.Equal(t, []answer.ConditionsItem{{Mesh: "default", Name: "b", Conditions: []answer.ConditionSummary{{
		Type: "Enforced", Status: "False", Reason: "SomeProxies", Proxies: []answer.ProxiesIn{{Zone: "east", Obey: 2, Proxies: 3}},
	}}}}, about.Items)
	s.xds = following{}
	response, err = s.Inspect(t.Context(), req)
	require.NoError(t, err)
	require.Contains(t, string(response.GetJson()), `"items": []`)
}

// zoneWith is the service of a zone with resources and proxies.
func zoneWith(t *testing.T, streams proxyStreams, resources map[string]string) *inspectService {
	t.Helper()
	txn := store.Txn{}
	for id, spec := range resources {
		var kind, name string
		_, err := fmt.Sscan(id, &kind, &name)
		require.NoError(t, err)
		mesh := resource.MeshName("default")
		if kind == "Mesh" {
			mesh = ""
		}
		txn.Ops = append(txn.Ops, store.Put(resourcetest.Build(t, resource.Kind(kind), mesh, name, spec)))
	}
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(7, txn).Err)
	w := world.New("east")
	return &inspectService{
		zone: "east", matching: livematch.New(engines.NewMatcher(nil).Following(w), s), world: w, turns: turns.NewServer(), xds: streams, resources: withheldFrom{},
		quarantined: func(resource.Key) (policy.Condition, bool) { return policy.Condition{}, false },
	}
}

const caller = `{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "web"}}], "outbound": [{"port": 4001, "tags": {"kuma.io/service": "backend"}}]}}`

// Of what is written, what proxies cannot do is told of those that it holds on and that
// are connected.
func TestUnenforced(t *testing.T) {
	resources := map[string]string{
		"Mesh default":    `{}`,
		"Dataplane web-1": caller, "Dataplane web-2": caller, "Dataplane web-3": caller, "Dataplane web-4": caller,
		"Dataplane db-1":              `{"networking": {"address": "10.0.0.9", "inbound": [{"port": 80, "tags": {"kuma.io/service": "db"}}]}}`,
		"Timeout all":                 `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"connectTimeout": "1s", "tcp": {"idleTimeout": "1s"}, "http": {"requestTimeout": "1s"}}}`,
		"Timeout else":                `{"sources": [{"match": {"kuma.io/service": "other"}}], "destinations": [{"match": {"kuma.io/service": "*"}}], "conf": {"tcp": {"idleTimeout": "1s"}}}`,
		"TrafficPermission p":         `{"sources": [{"match": {"kuma.io/service": "*"}}], "destinations": [{"match": {"kuma.io/service": "*"}}]}`,
		"MeshCircuitBreaker b":        `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1}}}], "from": [{"targetRef": {"kind": "Mesh"}, "default": {"connectionLimits": {"maxRequests": 1, "maxConnections": 2}}}]}`,
		"HTTPRoute r":                 `{"parentRefs": [{"kind": "Service", "name": "backend"}], "hostnames": ["a"], "rules": [{"backendRefs": [{"name": "backend"}]}]}`,
		"HTTPRoute gateway":           `{"parentRefs": [{"name": "g"}], "rules": [{"matches": [{"method": "GET"}]}]}`,
		"MeshTrafficPermission later": `{"targetRef": {"kind": "MeshService", "name": "other"}, "from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "ALLOW"}}]}`,
	}
	streams := following{kinds: map[string]string{"web-1": "grpc", "web-2": "grpc", "web-3": "envoy", "db-1": "grpc"}}
	s := zoneWith(t, streams, resources)
	const anyCaller = "who calls is known only in a mesh with mutual TLS whose mode is STRICT: every caller is accepted"
	for of, want := range map[string][]string{
		"Timeout all":                 {"conf.connectTimeout: has no effect on 2 gRPC proxies in zone east: ", "conf.tcp.idleTimeout: has no effect on 2 gRPC proxies in zone east: ", "conf.http.requestTimeout: is only approximated on 2 gRPC proxies in zone east: "},
		"Timeout else":                nil, // it holds on none
		"TrafficPermission p":         {"has no effect on 3 gRPC proxies in zone east: " + anyCaller, "has no effect on 1 Envoy proxy in zone east: "},
		"MeshCircuitBreaker b":        {"from[0].default.connectionLimits: has no effect on 3 gRPC proxies in zone east: "},
		"HTTPRoute r":                 {"hostnames: has no effect on 2 gRPC proxies in zone east: ", "hostnames: has no effect on 1 Envoy proxy in zone east: "},
		"HTTPRoute gateway":           nil,
		"MeshTrafficPermission later": nil,
		"Mesh default":                nil,
		"Dataplane web-4":             nil,
	} {
		t.Run(of, func(t *testing.T) {
			require.ElementsMatch(t, want, prefixes(standing(t, s, of), want))
		})
	}
	s.xds = following{kinds: map[string]string{"web-1": "grpc mTLS", "web-2": "grpc"}}
	want := []string{
		"has no effect on 1 gRPC proxy in zone east: nothing is sent to them: mTLS", "conf.connectTimeout: has no effect on 1 gRPC proxy",
		"conf.tcp.idleTimeout: has no effect on 1 gRPC proxy", "conf.http.requestTimeout: is only approximated on 1 gRPC proxy",
	}
	require.ElementsMatch(t, want, prefixes(standing(t, s, "Timeout all"), want))
	s.xds = following{}
	require.Empty(t, standing(t, s, "Timeout all"), "nothing is connected")

	resources["Mesh default"] = `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"PERMISSIVE"}]}}`
	s = zoneWith(t, streams, resources)
	want = []string{
		"has no effect on 3 gRPC proxies in zone east: " + anyCaller,
		"is only approximated on 1 Envoy proxy in zone east: in mode PERMISSIVE they decide about callers with a certificate",
	}
	require.ElementsMatch(t, want, prefixes(standing(t, s, "TrafficPermission p"), want))
}

// A document with many fields is told of in few lines.
func TestUnenforcedIsBounded(t *testing.T) {
	var detectors string
	for i := range 40 {
		detectors += fmt.Sprintf(`, {"default": {"filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b%d"}}}]}, "matches": [{"queryParams": [{"name": "a", "value": "b"}], "method": "GET"}]}`, i)
	}
	s := zoneWith(t, following{kinds: map[string]string{"web-1": "grpc"}}, map[string]string{
		"Mesh default": `{}`, "Dataplane web-1": caller,
		"MeshTrafficRoute many": `{"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": [` + detectors[2:] + `]}]}`,
	})
	got := standing(t, s, "MeshTrafficRoute many")
	require.Len(t, got, maxShortfalls+1)
	require.Contains(t, got[maxShortfalls], "more fields: `meridian inspect proxy web-1` lists")
}

// standing are the warnings about proxies of a zone's answer.
func standing(t *testing.T, s *inspectService, of string) (lines []string) {
	t.Helper()
	var kind, name string
	_, err := fmt.Sscan(of, &kind, &name)
	require.NoError(t, err)
	req := &meridianv1.InspectRequest{Mesh: "default", Question: &meridianv1.InspectRequest_Policy{Policy: &meridianv1.PolicyQuestion{Kind: kind, Name: name, Brief: true}}}
	if kind == "Mesh" {
		req.Mesh = ""
	}
	response, err := s.Inspect(t.Context(), req)
	require.NoError(t, err)
	var about answer.PolicyAnswer
	require.NoError(t, answer.Unmarshal(response.GetJson(), &about))
	for _, w := range about.Warnings {
		if w.Unenforced != nil {
			lines = append(lines, w.String())
		}
	}
	return lines
}

// prefixes cuts lines to those that are wanted of them.
func prefixes(lines, want []string) []string {
	out := []string{}
	for _, line := range lines {
		for _, w := range want {
			if len(line) >= len(w) && line[:len(w)] == w {
				line = w
			}
		}
		out = append(out, line)
	}
	return out
}

// gRPC servers do not try permissions, which is said of those on which one would hold.
func TestUnenforcedOfATriedPermission(t *testing.T) {
	s := zoneWith(t, following{kinds: map[string]string{"web-1": "grpc", "web-3": "envoy"}}, map[string]string{
		"Mesh default": `{}`, "Dataplane web-1": caller, "Dataplane web-3": caller,
	})
	r := resourcetest.Build(t, "MeshTrafficPermission", "default", "p", `{"targetRef": {"kind": "Mesh"}, "from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "DENY"}}]}`)
	meta := r.Meta()
	meta.Labels = map[string]string{resource.EnforcementLabel: resource.EnforcementShadow}
	st := store.New(store.DefaultOptions())
	require.NoError(t, st.Apply(7, store.Txn{Ops: []store.Op{
		store.Put(r.WithMeta(meta)), store.Put(resourcetest.Build(t, "Mesh", "", "default", `{}`)),
		store.Put(resourcetest.Build(t, "Dataplane", "default", "web-1", caller)), store.Put(resourcetest.Build(t, "Dataplane", "default", "web-3", caller)),
	}}).Err)
	s.matching = livematch.New(engines.NewMatcher(nil).Following(s.world), st)
	got := standing(t, s, "MeshTrafficPermission p")
	require.Contains(t, got, "has no effect on 1 gRPC proxy in zone east: gRPC servers try no permissions: what this one would deny is not counted or logged")
}
