package rows

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/store"
	"meridian/internal/xds"
	"meridian/internal/xds/feed"
	"meridian/internal/xds/support"
	"meridian/internal/xds/wire"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

// sample is a document that writes fields which some proxies do not obey.
type sample struct {
	kind resource.Kind
	// from has conf configure an item of from.
	from bool
	// conf is what a policy configures, or the spec of another kind.
	conf string
	// rest is conf without what is not obeyed, where a document cannot be without that alone;
	// else empty.
	rest string
}

// spec is the spec of the sample's document with a configuration.
func (s *sample) spec(conf string) string {
	d, _ := resource.Describe(s.kind)
	switch {
	case s.from:
		return `{"targetRef":{"kind":"Mesh"},"from":[{"targetRef":{"kind":"Mesh"},"default":` + conf + `}]}`
	case d.Class == resource.TargetRef || d.Class == resource.SourceDestination:
		return xdstest.Spec(s.kind, conf)
	}
	return conf
}

// key is where the sample's document is.
func (s *sample) key() resource.Key {
	switch s.kind {
	case resource.KindMesh:
		return resource.Key{Kind: s.kind, Name: "m"}
	case resource.KindDataplane:
		return policy.DataplaneKey("m", "web-1")
	}
	return resource.Key{Kind: s.kind, Mesh: "m", Name: "sample"}
}

const (
	mesh      = `"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}`
	parents   = `"parentRefs":[{"kind":"Service","name":"backend"}],`
	toBackend = `"backendRefs":[{"name":"backend"}]`
)

// samples write every field that some proxy does not obey, beside those that tests of
// proxies share.
func samples() []sample {
	all := []sample{
		{resource.KindMesh, false, `{"mtls":{"enabledBackend":"ca","skipValidation":true,"backends":[{"name":"ca","type":"builtin","dpCert":{"requestTimeout":"3s"},"rootChain":{"requestTimeout":"3s"}}]}}`, ""},
		{resource.KindMesh, false, `{` + mesh + `,"networking":{"outbound":{"passthrough":true}},"routing":{"zoneEgress":true,"defaultForbidMeshExternalServices":true},
			"constraints":{"dataplaneProxy":{"requirements":[{"tags":{"kuma.io/service":"*"}}]}},
			"logging":{"defaultBackend":"l","backends":[{"name":"l","type":"file","sampling":50,"format":"x","conf":{"path":"/dev/null"}}]},
			"tracing":{"defaultBackend":"t","backends":[{"name":"t","type":"zipkin","format":"x","conf":{"url":"http://h.test/"}}]},
			"metrics":{"enabledBackend":"p","backends":[{"name":"p","type":"prometheus","format":"x","sampling":50,"conf":{"port":5670}}]}}`, ""},
		{resource.KindDataplane, false, web(`,"advertisedAddress":"10.9.9.9"`, `,"serviceProbe":{"interval":"1s","timeout":"1s","tcp":{}},"serviceAddress":"127.0.0.1"`, `,"address":"127.0.0.1"`), ""},
		{resource.KindFaultInjection, false, `{"abort":{"percentage":50,"httpStatus":418},"responseBandwidth":{"percentage":100,"limit":"1 mbps"}}`, ""},
		{resource.KindMeshHTTPFault, true, `{"http":[{"abort":{"percentage":50,"httpStatus":418},"responseBandwidth":{"percentage":100,"limit":"1 mbps"}}]}`, ""},
		{resource.KindMeshHTTPFault, false, `{"http":[{"abort":{"percentage":50,"httpStatus":418},"responseBandwidth":{"percentage":100,"limit":"1 mbps"}}]}`, ""},
		{resource.KindMeshRequestRetry, false, `{"grpc":{"numRetries":2,"retryOn":["Unavailable"],"perTryTimeout":"1s","rateLimitedBackOff":{"resetHeaders":[{"name":"x-after","format":"Seconds"}]}}}`, ""},
		{resource.KindTrafficRoute, false, `{"loadBalancer":{"ringHash":{"hashFunction":"MURMUR_HASH_2","minRingSize":5}},"destination":{"kuma.io/service":"backend"}}`, ""},
		{resource.KindMeshTrafficRoute, false, `{"loadBalancer":{"ringHash":{"hashFunction":"MURMUR_HASH_2","minRingSize":5}},"destination":{"kuma.io/service":"backend"}}`, ""},
		{resource.KindTrafficRoute, false, `{"loadBalancer":{"random":{}},"destination":{"kuma.io/service":"backend"}}`, `{"destination":{"kuma.io/service":"backend"}}`},
		{resource.KindMeshTrafficRoute, false, `{"loadBalancer":{"random":{}},"destination":{"kuma.io/service":"backend"}}`, `{"destination":{"kuma.io/service":"backend"}}`},
		{resource.KindTrafficRoute, false, `{"loadBalancer":{"maglev":{}},"destination":{"kuma.io/service":"backend"}}`, `{"destination":{"kuma.io/service":"backend"}}`},
		{resource.KindMeshTrafficRoute, false, `{"loadBalancer":{"maglev":{}},"destination":{"kuma.io/service":"backend"}}`, `{"destination":{"kuma.io/service":"backend"}}`},
		{resource.KindMeshTrafficRoute, false, `{"http":[{"match":{"path":{"prefix":"/a"}},"modify":{"path":{"rewritePrefix":"/b"}},"destination":{"kuma.io/service":"backend"}}]}`, ""},
		{
			resource.KindDataplane, false, `{"networking":{"address":"10.0.0.1","gateway":{"type":"BUILTIN","tags":{"kuma.io/service":"web","kuma.io/zone":"east"}},"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`,
			`{"networking":{"address":"10.0.0.1","gateway":{"tags":{"kuma.io/service":"web","kuma.io/zone":"east"}},"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`,
		},
		{
			resource.KindMeshTrafficRoute, false, `{"rules":[{"default":{"filters":[{"type":"ExtensionRef","extensionRef":{"kind":"X","name":"x"}}],"backendRefs":[{"kind":"Service","name":"backend"}]}}]}`,
			`{"rules":[{"default":{"backendRefs":[{"kind":"Service","name":"backend"}]}}]}`,
		},
		{resource.KindHTTPRoute, false, `{` + parents + `"rules":[{"filters":[{"type":"ExtensionRef","extensionRef":{"kind":"X","name":"x"}}],` + toBackend + `}]}`, `{` + parents + `"rules":[{` + toBackend + `}]}`},
		{resource.KindGRPCRoute, false, `{` + parents + `"rules":[{"filters":[{"type":"ExtensionRef","extensionRef":{"kind":"X","name":"x"}}],` + toBackend + `}]}`, `{` + parents + `"rules":[{` + toBackend + `}]}`},
		{resource.KindGRPCRoute, false, `{` + parents + `"rules":[{"filters":[{"type":"RequestRedirect","requestRedirect":{"hostname":"h.test"}}]}]}`, `{` + parents + `"rules":[{` + toBackend + `}]}`},
		{resource.KindGRPCRoute, false, `{` + parents + `"rules":[{"filters":[{"type":"URLRewrite","urlRewrite":{"hostname":"h.test"}}],` + toBackend + `}]}`, `{` + parents + `"rules":[{` + toBackend + `}]}`},
		{
			resource.KindHTTPRoute, false, `{` + parents + `"rules":[{"backendRefs":[{"name":"backend","filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}},{"type":"RequestMirror","requestMirror":{"backendRef":{"name":"other"}}}]}]}]}`,
			`{` + parents + `"rules":[{"backendRefs":[{"name":"backend","filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}]}]}]}`,
		},
		{
			resource.KindGRPCRoute, false, `{` + parents + `"rules":[{"backendRefs":[{"name":"backend","filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}},{"type":"RequestMirror","requestMirror":{"backendRef":{"name":"other"}}}]}]}]}`,
			`{` + parents + `"rules":[{"backendRefs":[{"name":"backend","filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}]}]}]}`,
		},
		{resource.KindRateLimit, false, `{"http":{"requests":3,"interval":"1s"}}`, ""},
		{resource.KindMeshRateLimit, true, `{"local":{"http":{"requestRate":{"num":3,"interval":"1s"},"onRateLimit":{"status":429,"headers":{"remove":["x"]}}}}}`, ""},
		{resource.KindMeshRateLimit, false, `{"local":{"http":{"requestRate":{"num":3,"interval":"1s"},"onRateLimit":{"status":429,"headers":{"remove":["x"]}}},"tcp":{"connectionRate":{"num":3,"interval":"1s"}}}}`, ""},
		{resource.KindMeshCircuitBreaker, true, `{"connectionLimits":{"maxRequests":1},"outlierDetection":{"detectors":{"totalFailures":{"consecutive":2}}}}`, ""},
		{resource.KindMeshCircuitBreaker, false, `{"outlierDetection":{"healthyPanicThreshold":10}}`, ""},
		{resource.KindHealthCheck, false, `{"eventLogPath":"/dev/null","tcp":{}}`, ""},
		{resource.KindMeshHealthCheck, false, `{"eventLogPath":"/dev/null","tcp":{}}`, ""},
		{resource.KindMeshMetrics, false, `{"backends":[{"type":"Prometheus","prometheus":{"clientId":"a","port":5670,"path":"/m"}}]}`, ""},
		{resource.KindProxyTemplate, false, `{"imports":["default-proxy"]}`, ""},
		{resource.KindMeshEnvoyTemplate, false, `{"imports":["default-proxy"]}`, ""},
		{resource.KindVirtualOutbound, false, `{"host":"{{.service}}.mesh","port":"80","parameters":[{"name":"service","tagKey":"kuma.io/service"}]}`, ""},
		{resource.KindMeshVirtualOutbound, false, `{"host":"{{.service}}.mesh","port":"80","parameters":[{"name":"service","tagKey":"kuma.io/service"}]}`, ""},
		{resource.KindGateway, false, `{"listeners":[{"name":"http","port":80,"protocol":"HTTP"}]}`, ""},
		{resource.KindMeshGateway, false, `{"selectors":[{"match":{"kuma.io/service":"web"}}],"conf":{"listeners":[{"port":8080,"protocol":"HTTP"}]}}`, ""},
		{resource.KindMeshGatewayRoute, false, `{"selectors":[{"match":{"kuma.io/service":"web"}}],"conf":{"http":{"rules":[{"matches":[{"path":{"match":"PREFIX","value":"/"}}],"backends":[{"destination":{"kuma.io/service":"backend"}}]}]}}}`, ""},
		{resource.KindAuthPolicy, false, `{"targetRef":{"kind":"Gateway","name":"gw"},"rules":{"authentication":{"a":{"from":"gateway"}}}}`, ""},
		{resource.KindRateLimitPolicy, false, `{"targetRef":{"kind":"Gateway","name":"gw"},"limits":{"a":{"rates":[{"limit":100,"duration":1,"unit":"minute"}]}}}`, ""},
		{resource.KindMeshTrafficRoute, false, `{"rules":[{"default":{"filters":[{"type":"RequestMirror","requestMirror":{"backendRef":{"kind":"Service","group":"g","namespace":"n","name":"other","port":80}}}],
			"backendRefs":[{"kind":"Service","name":"backend","port":80}]}}]}`, ""},
		{resource.KindHTTPRoute, false, `{"parentRefs":[{"kind":"Service","name":"backend","port":80},{"kind":"Gateway","name":"gw","sectionName":"s"}],"hostnames":["h.test"],"rules":[{"sessionPersistence":{"sessionName":"s"},
			"timeouts":{"request":"2s","backendRequest":"1s"},"retry":{"attempts":2,"codes":[503]},"filters":[{"type":"RequestMirror","requestMirror":{"backendRef":{"name":"other","port":80}}}],"backendRefs":[{"name":"backend","port":80}]}]}`, ""},
		{resource.KindHTTPRoute, false, `{"parentRefs":[{"group":"","kind":"Service","namespace":"n","name":"backend"}],"rules":[{` + toBackend + `}]}`, ""},
		{resource.KindGRPCRoute, false, `{"parentRefs":[{"kind":"Service","name":"backend","port":80},{"kind":"Gateway","name":"gw","sectionName":"s"}],"hostnames":["h.test"],"rules":[{"sessionPersistence":{"sessionName":"s"},
			"filters":[{"type":"RequestMirror","requestMirror":{"backendRef":{"name":"other","port":80}}}],"backendRefs":[{"name":"backend","port":80}]}]}`, ""},
		{resource.KindGRPCRoute, false, `{"parentRefs":[{"group":"","kind":"Service","namespace":"n","name":"backend"}],"rules":[{` + toBackend + `}]}`, ""},
		{resource.KindHTTPRoute, false, `{` + parents + `"rules":[{"filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}],"backendRefs":[{"name":"backend","filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}]}]}]}`, ""},
		{resource.KindGRPCRoute, false, `{` + parents + `"rules":[{"filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}],"backendRefs":[{"name":"backend","filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"remove":["a"]}}]}]}]}`, ""},
	}
	for _, p := range slices.Concat(xdstest.Policies(), xdstest.Routes()) {
		all = append(all, sample{p.Kind, false, p.Conf, ""})
	}
	return all
}

// spelled is a field with a point before each [].
func spelled(field string) string { return strings.ReplaceAll(field, "[]", ".[]") }

// inside reports whether a place is that of a field, or below it.
func inside(at, field string) bool {
	return field == "" || at == field || strings.HasPrefix(at, field+".")
}

// without takes what a row is about, and no other row, out of a value at a place. It
// reports whether anything was there.
func without(value any, at string, of *support.Row, others []string) (found bool) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			found = without(item, at+".[]", of, others) || found
		}
	case map[string]any:
		for name, member := range v {
			place := strings.TrimPrefix(at+"."+name, ".")
			other := slices.ContainsFunc(others, func(o string) bool { return inside(o, place) || inside(place, o) })
			if inside(place, spelled(of.Field)) && !other {
				delete(v, name)
				found = true
			} else {
				found = without(member, place, of, others) || found
			}
		}
	}
	return found
}

// narrower are the fields of rows inside a row.
func narrower(d xds.Dialect, r *support.Row) (fields []string) {
	for o := range support.Rows(d) {
		if o.Kind == r.Kind && o.From == r.From && o.Field != r.Field && inside(spelled(o.Field), spelled(r.Field)) {
			fields = append(fields, spelled(o.Field))
		}
	}
	return fields
}

// proxies are the dataplanes of a zone.
var proxies = []string{"web-1", "backend-1", "other-1"}

// zone makes what proxies are sent.
type zone struct {
	t        *testing.T
	store    *store.Store
	feed     *feed.Feed
	revision resource.Revision
}

func newZone(t *testing.T) *zone {
	z := &zone{t: t, store: store.New(store.DefaultOptions())}
	w := world.New("east")
	z.feed = feed.New(livematch.New(policy.NewMatcher(engines.All()...).Following(w).Following(engines.Trial()), z.store), w)
	for _, name := range proxies {
		t.Cleanup(z.feed.Follow(policy.DataplaneKey("m", name)))
	}
	put := func(kind resource.Kind, mesh resource.MeshName, name, spec string) store.Op {
		return store.Put(resourcetest.Build(t, kind, mesh, name, spec))
	}
	z.apply(
		put(resource.KindMesh, "", "m", `{`+mesh+`}`),
		put(resource.KindDataplane, "m", "web-1", web("", "", "")),
		put(resource.KindDataplane, "m", "backend-1", `{"networking":{"address":"10.0.1.1","inbound":[{"port":80,"servicePort":81,"tags":{"kuma.io/service":"backend","kuma.io/zone":"east","kuma.io/protocol":"http"}}]}}`),
		put(resource.KindDataplane, "m", "other-1", `{"networking":{"address":"10.0.2.1","inbound":[{"port":80,"tags":{"kuma.io/service":"other","kuma.io/zone":"east","kuma.io/protocol":"http"}}]}}`),
	)
	return z
}

// web is the spec of web-1 with more of its networking, inbound and outbound.
func web(networking, inbound, outbound string) string {
	return `{"networking":{"address":"10.0.0.1"` + networking + `,"inbound":[{"port":8080,"servicePort":8081,"tags":{"kuma.io/service":"web","kuma.io/zone":"east","kuma.io/protocol":"http"}` + inbound + `}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}` + outbound + `}]}}`
}

func (z *zone) apply(ops ...store.Op) {
	z.t.Helper()
	z.revision++
	require.NoError(z.t, z.store.Apply(z.revision, store.Txn{Ops: ops}).Err)
}

// sent is what every proxy of a kind is sent.
func (z *zone) sent(d xds.Dialect) map[string]string {
	z.t.Helper()
	all := map[string]string{}
	for _, name := range proxies {
		set, err := z.feed.Resources(policy.DataplaneKey("m", name), d)
		require.NoError(z.t, err)
		for r := range set.All() {
			all[name+" "+r.Ref().String()] = r.Version
		}
	}
	return all
}

// What the table calls unsupported has no effect on what a proxy is sent, and is reported
// where a document writes it. For each such row there is a document.
func TestWhatIsUnsupportedHasNoEffect(t *testing.T) {
	for _, d := range support.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			var missing []string
			for r := range support.Rows(d) {
				if r.Status != support.Unsupported {
					continue
				}
				at := row{r.Kind, r.From, r.Field}
				if !slices.ContainsFunc(samples(), func(s sample) bool { return s.kind == r.Kind && s.from == r.From && s.shows(t, d, &r) }) {
					missing = append(missing, at.String())
				}
			}
			slices.Sort(missing)
			require.Empty(t, strings.Join(missing, "\n"), "no sample writes what is unsupported")
		})
	}
}

// What else becomes of some fields, by the notes of their rows.
const (
	refused     = "a route with it is refused: it is not for gRPC calls"
	failsClosed = "requests of a rule with such a filter are answered 500"
)

// shows compares what proxies are sent with and without the field of a row; false if the
// sample does not write it.
func (s *sample) shows(t *testing.T, d xds.Dialect, r *support.Row) bool {
	var value any
	decoder := json.NewDecoder(strings.NewReader(s.conf))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&value), s.conf)
	if r.Field != "" && !without(value, "", r, narrower(d, r)) {
		return false
	}
	rest := s.rest
	if rest == "" {
		data, err := json.Marshal(value)
		require.NoError(t, err)
		rest = string(data)
	}
	meta := resource.Meta{Key: s.key()}
	written, _, err := resource.Build(meta, []byte(s.spec(s.conf)))
	if r.Note == refused {
		require.Error(t, err, s.conf)
		resourcetest.Build(t, s.kind, meta.Mesh, meta.Name, s.spec(rest))
		return true
	}
	if err != nil && s.rest != "" && s.kind == resource.KindGRPCRoute {
		return false // one of those that are refused
	}
	require.NoError(t, err, "%s %s", s.kind, s.conf)
	z := newZone(t)
	if r.Field != "" {
		left, _, err := resource.Build(meta, []byte(s.spec(rest)))
		if err != nil {
			return false // it cannot be without this alone
		}
		z.apply(store.Put(left))
	}
	before := z.sent(d)
	require.NotEmpty(t, before)
	z.apply(store.Put(written))
	same := maps.Equal(before, z.sent(d))
	require.Equal(t, r.Note != failsClosed, same, "%s %v %s: %s", r.Kind, r.From, r.Field, s.conf)
	reported, err := wire.Shortfalls(d, written)
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(reported, func(s wire.Shortfall) bool { return s.Status == support.Unsupported && s.Note == r.Note }),
		"%s %v %s is not reported of %s: %v", r.Kind, r.From, r.Field, s.conf, reported)
	return true
}
