package grpc_test

import (
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/stretchr/testify/require"
	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdsclient "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/world"
	"meridian/internal/xds/xdstest"
)

// mesh is a world with the dataplane web-1, which calls backend at port 4001, and two
// dataplanes of backend.
func mesh(t require.TestingT) policytest.World {
	w := policytest.NewWorld()
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{}`)
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"10.0.0.9","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}}],
		"outbound":[{"port":4001,"tags":{"kuma.io/service":"backend"}}]}}`)
	put(t, w, resource.KindDataplane, "backend-1", `{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"tags":{"kuma.io/service":"backend","version":"v1"}}]}}`)
	put(t, w, resource.KindDataplane, "backend-2", `{"networking":{"address":"10.0.0.2","inbound":[{"port":80,"tags":{"kuma.io/service":"backend","version":"v2"}}]}}`)
	return w
}

func put(t require.TestingT, w policytest.World, kind resource.Kind, name, spec string) {
	w.Put(t, resource.Meta{Key: resource.Key{Kind: kind, Mesh: "m", Name: name}}, spec)
}

// policyFrom puts a source/destination policy from web to backend.
func policyFrom(t require.TestingT, w policytest.World, kind resource.Kind, conf string) {
	put(t, w, kind, "p", `{"sources":[{"match":{"kuma.io/service":"web"}}],"destinations":[{"match":{"kuma.io/service":"backend"}}],"conf":`+conf+`}`)
}

// policyTo puts a targetRef policy on web, to backend.
func policyTo(t require.TestingT, w policytest.World, kind resource.Kind, conf string) {
	put(t, w, kind, "q", `{"targetRef":{"kind":"Service","name":"web"},"to":[{"targetRef":{"kind":"Service","name":"backend"},"default":`+conf+`}]}`)
}

func generate(t require.TestingT, w policytest.World, name string) *xds.Set {
	state := world.New("east")
	m := policy.NewMatcher(engines.All()...).Following(state)
	m.Reset(w.View())
	set, err := grpc.Proxy(m, state, policy.DataplaneKey("m", name), 1)
	require.NoError(t, err)
	return set
}

func message[M proto.Message](t require.TestingT, set *xds.Set, kind xds.Type, name string) M {
	r := set.Get(xds.Ref{Type: kind, Name: name})
	require.NotNil(t, r, "%s %s", kind, name)
	m, err := r.Message()
	require.NoError(t, err)
	return m.(M)
}

// routes prints the routes to backend, one on each line, without spaces that the
// encoding of JSON leaves to chance.
func routes(t require.TestingT, set *xds.Set) []string {
	var lines []string
	for _, r := range message[*routev3.RouteConfiguration](t, set, xds.Route, "out_backend_4001").GetVirtualHosts()[0].GetRoutes() {
		lines = append(lines, brief(t, set, r))
	}
	return lines
}

// brief prints a route, with the selector's versions in place of clusters.
func brief(t require.TestingT, set *xds.Set, r *routev3.Route) string {
	text, err := protojson.Marshal(r)
	require.NoError(t, err)
	out := strings.ReplaceAll(strings.ReplaceAll(string(text), " ", ""), `"`, "")
	for _, c := range set.Of(xds.Cluster) {
		eds := message[*clusterv3.Cluster](t, set, xds.Cluster, c.Name).GetEdsClusterConfig().GetServiceName()
		for _, version := range []string{"v1", "v2"} {
			if eds == world.KeyOf("m", resource.TagSelector{"kuma.io/service": "backend", "version": version}).Name() {
				out = strings.ReplaceAll(out, c.Name, version)
			}
		}
		if eds == world.KeyOf("m", resource.TagSelector{"kuma.io/service": "backend"}).Name() {
			out = strings.ReplaceAll(out, c.Name, "backend")
		}
		if eds == world.KeyOf("m", resource.TagSelector{"kuma.io/service": "other"}).Name() {
			out = strings.ReplaceAll(out, c.Name, "other")
		}
	}
	return out
}

const toV1, toV2 = `"destination":{"kuma.io/service":"backend","version":"v1"}`, `"destination":{"kuma.io/service":"*","version":"v2"}`

func TestRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		put  func(w policytest.World)
		want []string
	}{
		"without policies": {func(policytest.World) {}, []string{`{match:{prefix:},route:{cluster:backend}}`}},
		"a split, and any service is the outbound's": {
			func(w policytest.World) {
				policyFrom(t, w, resource.KindTrafficRoute, `{"split":[{"weight":90,`+toV1+`},{"weight":10,`+toV2+`},{"weight":0,"destination":{"kuma.io/service":"none"}}]}`)
			},
			[]string{`{match:{prefix:},route:{weightedClusters:{clusters:[{name:v1,weight:90},{name:v2,weight:10}]}}}`},
		},
		"shares of one destination are one, and a sum above the bound is scaled": {
			func(w policytest.World) {
				policyFrom(t, w, resource.KindTrafficRoute, `{"split":[{"weight":4294967295,`+toV1+`},{"weight":1,`+toV2+`},{"weight":4294967295,`+toV1+`}]}`)
			},
			[]string{`{match:{prefix:},route:{weightedClusters:{clusters:[{name:v1,weight:2147483646},{name:v2,weight:1}]}}}`},
		},
		"rules in order, and those that no gRPC call matches left out": {
			func(w policytest.World) {
				policyFrom(t, w, resource.KindTrafficRoute, `{"http":[
					{"match":{"method":{"exact":"GET"}},`+toV1+`},
					{"match":{"method":{"regex":"P.*"},"path":{"prefix":"/a"}},`+toV1+`},
					{"match":{"path":{"exact":"/a.S/M"},"headers":{"X-User":{"prefix":""},"env":{"regex":"dev|test"}}},`+toV2+`},
					{"match":{"headers":{"not a header":{"exact":"x"}}},`+toV2+`},
					{"match":{"path":{"regex":""}},`+toV2+`},
					{"match":{"path":{"regex":"/b.*"}},`+toV2+`}],`+toV1+`}`)
			},
			[]string{
				`{match:{prefix:/a},route:{cluster:v1}}`,
				`{match:{path:/a.S/M,headers:[{name:x-user,presentMatch:true},{name:env,stringMatch:{safeRegex:{regex:dev|test}}}]},route:{cluster:v2}}`,
				`{match:{safeRegex:{regex:/b.*}},route:{cluster:v2}}`,
				`{match:{prefix:},route:{cluster:v1}}`,
			},
		},
		"the successor's rules": {
			func(w policytest.World) {
				policyFrom(t, w, resource.KindTrafficRoute, `{`+toV1+`}`)
				policyTo(t, w, resource.KindMeshTrafficRoute, `{"rules":[
					{"matches":[{"path":{"value":"/a.S"}},{"queryParams":[{"name":"q","value":"1"}]}],"default":{"backendRefs":[{"kind":"ServiceSubset","name":"backend","tags":{"version":"v2"}}]}},
					{"matches":[{"headers":[{"type":"Absent","name":"user"}]}],"default":{"filters":[{"type":"RequestRedirect","requestRedirect":{"hostname":"a.example"}}]}}]}`)
			},
			[]string{
				`{match:{path:/a.S},route:{cluster:v2}}`, `{match:{prefix:/a.S/},route:{cluster:v2}}`,
				`{match:{prefix:,headers:[{name:user,presentMatch:true,invertMatch:true}]},directResponse:{status:500,body:{inlineString:novaliddestination}}}`,
				`{match:{prefix:},route:{cluster:backend}}`,
			},
		},
		"routes of the service in order of precedence; a call that matches none fails": {
			func(w policytest.World) {
				policyTo(t, w, resource.KindMeshTrafficRoute, `{`+toV1+`}`)
				put(t, w, resource.KindGRPCRoute, "b", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[
					{"matches":[{"method":{"service":"a.S"}},{"method":{"service":"a.S","method":"M"}}],"backendRefs":[{"name":"backend"}]},
					{"matches":[{"method":{"service":"a.S"},"headers":[{"name":"k","value":"v"}]}],"backendRefs":[{"name":"other","weight":3},{"name":"x","kind":"Bucket"},{"name":"backend","namespace":"elsewhere"}]},
					{"matches":[{"method":{"method":"N"}}],"backendRefs":[{"name":"backend","weight":0}]}]}`)
				put(t, w, resource.KindHTTPRoute, "a", `{"parentRefs":[{"kind":"MeshService","name":"backend"}],"rules":[
					{"matches":[{"path":{"type":"PathPrefix","value":"/a.S/M"},"method":"POST"},{"method":"GET"}],"timeouts":{"request":"2s"},"backendRefs":[{"name":"backend"}]}]}`)
			},
			[]string{
				`{match:{path:/a.S/M},route:{cluster:backend}}`,
				`{match:{path:/a.S/M},route:{cluster:backend,maxStreamDuration:{maxStreamDuration:2s}}}`,
				`{match:{prefix:/a.S/M/},route:{cluster:backend,maxStreamDuration:{maxStreamDuration:2s}}}`,
				`{match:{prefix:/a.S/,headers:[{name:k,stringMatch:{exact:v}}]},route:{weightedClusters:{clusters:[{name:other,weight:3},{name:cl_nowhere,weight:2}]}}}`,
				`{match:{prefix:/a.S/},route:{cluster:backend}}`,
				`{match:{safeRegex:{regex:/[^/]+/N}},directResponse:{status:500,body:{inlineString:novaliddestination}}}`,
			},
		},
		"the shortest timeout": {
			func(w policytest.World) {
				policyFrom(t, w, resource.KindTimeout, `{"http":{"requestTimeout":"3s","maxStreamDuration":"0s"},"grpc":{"maxStreamDuration":"1s"}}`)
			},
			[]string{`{match:{prefix:},route:{cluster:backend,maxStreamDuration:{maxStreamDuration:3s}}}`},
		},
		"the successor holds for the whole outbound": {
			func(w policytest.World) {
				policyFrom(t, w, resource.KindTimeout, `{"http":{"requestTimeout":"3s"}}`)
				policyTo(t, w, resource.KindMeshUpstreamTimeout, `{"connectTimeout":"1s"}`)
			},
			[]string{`{match:{prefix:},route:{cluster:backend}}`},
		},
		"retries with the defaults of the spec": {
			func(w policytest.World) { policyFrom(t, w, resource.KindRetry, `{"grpc":{}}`) },
			[]string{`{match:{prefix:},route:{cluster:backend,retryPolicy:{retryOn:cancelled,deadline-exceeded,internal,resource-exhausted,unavailable,numRetries:5}}}`},
		},
		"retries in full": {
			func(w policytest.World) {
				policyTo(t, w, resource.KindMeshRequestRetry, `{"grpc":{"numRetries":3,"retryOn":["Unavailable","Canceled"],"backOff":{"baseInterval":"10ms","maxInterval":"50ms"}}}`)
			},
			[]string{`{match:{prefix:},route:{cluster:backend,retryPolicy:{retryOn:unavailable,cancelled,numRetries:3,retryBackOff:{baseInterval:0.010s,maxInterval:0.050s}}}}`},
		},
		"no retries: none, an empty list, and those of HTTP": {
			func(w policytest.World) {
				policyTo(t, w, resource.KindMeshRequestRetry, `{"grpc":{"numRetries":0},"http":{"numRetries":4}}`)
			},
			[]string{`{match:{prefix:},route:{cluster:backend}}`},
		},
		"a route's own timeout": {
			func(w policytest.World) {
				put(t, w, resource.KindHTTPRoute, "r", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"backendRefs":[{"name":"backend"}]}]}`)
				put(t, w, resource.KindMeshUpstreamTimeout, "q", `{"targetRef":{"kind":"HTTPRoute","name":"r"},"to":[{"targetRef":{"kind":"Mesh"},"default":{"http":{"requestTimeout":"7s"}}}]}`)
			},
			[]string{`{match:{prefix:},route:{cluster:backend,maxStreamDuration:{maxStreamDuration:7s}}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := mesh(t)
			c.put(w)
			require.Equal(t, c.want, routes(t, generate(t, w, "web-1")))
		})
	}
}

func TestClusters(t *testing.T) {
	for name, c := range map[string]struct {
		kind       resource.Kind
		conf, want string
	}{
		"a breaker": {
			resource.KindCircuitBreaker,
			`{"interval":"1s","thresholds":{"maxRequests":7,"maxRetries":2},"detectors":{"standardDeviation":{"factor":1.5},"totalErrors":{}}}`,
			`circuitBreakers:{thresholds:[{maxRequests:7}]},outlierDetection:{interval:1s,enforcingSuccessRate:100,successRateStdevFactor:1500,enforcingFailurePercentage:0}`,
		},
		"a successor's breaker": {
			resource.KindMeshCircuitBreaker,
			`{"outlierDetection":{"interval":"1s","baseEjectionTime":"2s","maxEjectionPercent":50,"detectors":{"failurePercentage":{"threshold":40,"minimumHosts":2,"requestVolume":3}}}}`,
			`outlierDetection:{interval:1s,baseEjectionTime:2s,maxEjectionPercent:50,enforcingSuccessRate:0,failurePercentageThreshold:40,enforcingFailurePercentage:100,failurePercentageMinimumHosts:2,failurePercentageRequestVolume:3}`,
		},
		"one that is disabled": {resource.KindMeshCircuitBreaker, `{"outlierDetection":{"disabled":true,"detectors":{"successRate":{}}}}`, ``},
		"the least busy":       {resource.KindTrafficRoute, `{"loadBalancer":{"leastRequest":{"choiceCount":3}}}`, `lbPolicy:LEAST_REQUEST,leastRequestLbConfig:{choiceCount:3}`},
		"a ring within what a client accepts": {
			resource.KindTrafficRoute, `{"loadBalancer":{"ringHash":{"maxRingSize":100}}}`,
			`lbPolicy:RING_HASH,ringHashLbConfig:{minimumRingSize:100,maximumRingSize:100}`,
		},
		"in turns in place of what a client lacks": {resource.KindMeshTrafficRoute, `{"loadBalancer":{"maglev":{}}}`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			w := mesh(t)
			if strings.HasPrefix(string(c.kind), "Mesh") {
				policyTo(t, w, c.kind, c.conf)
			} else {
				policyFrom(t, w, c.kind, c.conf)
			}
			set := generate(t, w, "web-1")
			require.Len(t, set.Of(xds.Cluster), 1)
			cluster := message[*clusterv3.Cluster](t, set, xds.Cluster, set.Of(xds.Cluster)[0].Name)
			cluster.Name, cluster.ClusterDiscoveryType, cluster.EdsClusterConfig = "", nil, nil
			text, err := protojson.Marshal(cluster)
			require.NoError(t, err)
			require.Equal(t, "{"+c.want+"}", strings.ReplaceAll(strings.ReplaceAll(string(text), " ", ""), `"`, ""))
		})
	}
}

func TestOrigins(t *testing.T) {
	w := mesh(t)
	policyFrom(t, w, resource.KindTrafficRoute, `{"loadBalancer":{"leastRequest":{}},"http":[{"match":{"path":{"prefix":"/a"}},`+toV2+`}],`+toV1+`}`)
	policyTo(t, w, resource.KindMeshUpstreamTimeout, `{"http":{"requestTimeout":"3s"}}`)
	set := generate(t, w, "web-1")
	route := resource.Key{Kind: resource.KindTrafficRoute, Mesh: "m", Name: "p"}
	timeout := resource.Key{Kind: resource.KindMeshUpstreamTimeout, Mesh: "m", Name: "q"}
	require.Equal(t, []xds.Origin{
		{Path: "/virtualHosts/0/routes/0", Source: route, Field: "/http/0"},
		{Path: "/virtualHosts/0/routes/0/route/maxStreamDuration/maxStreamDuration", Source: timeout, Field: "/http/requestTimeout"},
		{Path: "/virtualHosts/0/routes/1", Source: route, Field: "/destination"},
		{Path: "/virtualHosts/0/routes/1/route/maxStreamDuration/maxStreamDuration", Source: timeout, Field: "/http/requestTimeout"},
	}, set.Get(xds.Ref{Type: xds.Route, Name: "out_backend_4001"}).Origins)
	require.Contains(t, set.Of(xds.Cluster)[0].Origins, xds.Origin{Path: "/lbPolicy", Source: route, Field: "/loadBalancer/leastRequest"})
	for _, c := range set.Of(xds.Cluster) {
		require.Equal(t, route, c.Origins[0].Source, "that there is the cluster")
	}
	require.Equal(t, []xds.Origin{{Path: "/endpoints/0/lbEndpoints/0", Source: policy.DataplaneKey("m", "backend-2")}},
		set.Get(set.Get(xds.Ref{Type: xds.Cluster, Name: clusterOf(t, set, 0)}).Uses[0]).Origins)
}

// clusterOf is the cluster of the n-th route to backend.
func clusterOf(t *testing.T, set *xds.Set, n int) string {
	return message[*routev3.RouteConfiguration](t, set, xds.Route, "out_backend_4001").GetVirtualHosts()[0].GetRoutes()[n].GetRoute().GetCluster()
}

// names lists the resources of a type.
func names(set *xds.Set, kind xds.Type) (list []string) {
	for _, r := range set.Of(kind) {
		list = append(list, r.Name)
	}
	return list
}

func TestNames(t *testing.T) {
	w := mesh(t)
	put(t, w, resource.KindDataplane, "web-1", `{"networking":{"address":"web.example","inbound":[{"port":8080,"tags":{"kuma.io/service":"web"}},{"port":8080,"address":"10.0.0.9","tags":{"kuma.io/service":"web-2"}}],
		"outbound":[{"port":4002,"tags":{"kuma.io/service":"backend"}},{"port":4001,"tags":{"kuma.io/service":"backend","version":"v1"}},{"port":4001,"tags":{"kuma.io/service":"backend","version":"v2"}},
		{"port":4002,"tags":{"kuma.io/service":"a:b.c"}},{"port":4002,"tags":{"kuma.io/service":"a_b_c"}},{"port":4001,"tags":{"kuma.io/service":"backend:4002"}},{"port":1,"tags":{"kuma.io/service":"in/[::]:8080"}}]}}`)
	set := generate(t, w, "web-1")
	require.Equal(t, []string{
		"a:b.c", "a:b.c:4002", "a_b_c", "a_b_c:4002", "backend", "backend:4001", "backend:4002", "backend:4002:4001",
		"in/0.0.0.0:8080", "in/10.0.0.9:8080", "in/[::]:8080",
	}, names(set, xds.Listener))
	listener := func(name string) []xds.Ref { return set.Get(xds.Ref{Type: xds.Listener, Name: name}).Uses }
	require.Equal(t, []xds.Ref{{Type: xds.Route, Name: "out_backend_4001"}}, listener("backend"), "the lowest port")
	require.Equal(t, []xds.Ref{{Type: xds.Route, Name: "out_backend_4002"}}, listener("backend:4002"), "an outbound comes before a service of that name")
	require.NotEqual(t, listener("a:b.c"), listener("a_b_c"))
	own := message[*listenerv3.Listener](t, set, xds.Listener, "in/[::]:8080")
	require.Equal(t, "::", own.GetAddress().GetSocketAddress().GetAddress())
	for _, kind := range []xds.Type{xds.Route, xds.Cluster, xds.Endpoints} {
		for _, name := range names(set, kind) {
			require.NotContains(t, name, ":")
			require.NotContains(t, name, ".")
		}
	}
}

func TestNothingIsSentUnprotected(t *testing.T) {
	w := mesh(t)
	w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}}, `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`)
	set := generate(t, w, "web-1")
	require.Zero(t, set.Len())
	require.Contains(t, set.Withheld, "mutual TLS")
}

// drawn puts random policies between web and backend.
func drawn(t *rapid.T, w policytest.World) {
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	condition := func(label string) string {
		return pick(label, `{"exact":"%s"}`, `{"prefix":"%s"}`, `{"regex":"%s"}`)
	}
	text := func(label string) string {
		return pick(label, "", "/", "/a.S/", "/a.S/M", "(a|b)+", "x y", "ü", "POST")
	}
	match := func(label string) string {
		var parts []string
		for _, field := range []string{"method", "path"} {
			if pick(label+" has "+field, "yes", "no") == "yes" {
				parts = append(parts, fmt.Sprintf(`%q:`+condition(label+field), field, text(label+field+" text")))
			}
		}
		parts = append(parts, fmt.Sprintf(`"headers":{%q:`+condition(label+"header")+`}`, pick(label+"name", "x", "X-A", "a b", ":authority", "x-bin", "ü"), text(label+"header text")))
		return "{" + strings.Join(parts, ",") + "}"
	}
	destination := func(label string) string {
		return pick(label, toV1, toV2, `"split":[{"weight":1,`+toV1+`},{"weight":4294967295,`+toV2+`},{"weight":0,`+toV1+`}]`, `"destination":{"kuma.io/service":"none"}`)
	}
	balancer := pick("balancer", `{"roundRobin":{}}`, `{"leastRequest":{}}`, `{"leastRequest":{"choiceCount":4294967295}}`, `{"ringHash":{"minRingSize":0,"maxRingSize":0}}`,
		`{"ringHash":{"minRingSize":18446744073709551615}}`, `{"random":{}}`, `{"maglev":{}}`)
	route := `{"loadBalancer":` + balancer + `,"http":[{"match":` + match("a") + `,` + destination("d1") + `},{"match":` + match("b") + `,` + destination("d2") + `}],` + destination("d3") + `}`
	number := func(label string) string { return pick(label, "0", "1", "50", "100") }
	large := func(label string) string { return pick(label, "0", "1", "4294967295") }
	span := func(label string) string { return pick(label, `"1ns"`, `"1s"`, `"87600h"`) }
	breaker := `{"interval":` + span("i") + `,"baseEjectionTime":` + span("b") + `,"maxEjectionPercent":` + number("m") + `,"thresholds":{"maxRequests":` + large("r") + `},"detectors":{
		"standardDeviation":{"factor":` + pick("f", "0.0001", "1.9", "1e300") + `,"minimumHosts":` + large("h") + `,"requestVolume":` + large("v") + `},"failure":{"threshold":` + number("t") + `}}}`
	retry := `{"grpc":{"numRetries":` + large("n") + `,"backOff":{"baseInterval":` + span("base") + `}}}`
	switch pick("generation", "first", "second", "routes") {
	case "first":
		policyFrom(t, w, resource.KindTrafficRoute, route)
		policyFrom(t, w, resource.KindCircuitBreaker, breaker)
		policyFrom(t, w, resource.KindRetry, retry)
		policyFrom(t, w, resource.KindTimeout, `{"http":{"requestTimeout":`+span("timeout")+`}}`)
	case "second":
		policyTo(t, w, resource.KindMeshTrafficRoute, route)
		policyTo(t, w, resource.KindMeshRequestRetry, `{"grpc":{"backOff":{"maxInterval":`+pick("longest", `"0s"`, `"1ns"`, `"1h"`)+`}}}`)
		policyTo(t, w, resource.KindMeshUpstreamTimeout, `{"http":{"requestTimeout":`+span("timeout")+`}}`)
	default:
		header := fmt.Sprintf(`{"type":%q,"name":%q%s}`, pick("type", "Present", "Absent"), pick("header", "x", "a b", "ü"), "")
		put(t, w, resource.KindGRPCRoute, "r", `{"parentRefs":[{"kind":"Service","name":"backend"}],"rules":[{"matches":[
			{"method":{"type":"RegularExpression","service":`+pick("service", `"a|b"`, `""`, `"("`[:1]+`x"`)+`},"headers":[`+header+`]},{"method":{"method":"M"}}],"backendRefs":[{"name":"backend"},{"name":"x","kind":"`+pick("kind", "Bucket", "Service")+`","weight":`+large("w")+`}]}]}`)
	}
}

// Whatever policies say, the resources are valid, the same again, and a stock gRPC
// client takes all of them.
func TestAClientTakesWhateverPoliciesSay(t *testing.T) {
	server := xdstest.Start(t)
	builder, err := xdsclient.NewXDSResolverWithConfigForTesting(xdstest.Bootstrap(server.Address, "m/web-1"))
	require.NoError(t, err)
	server.Set(generate(t, mesh(t), "web-1"))
	for _, target := range []string{"xds:///backend", "xds:///backend:4001"} {
		conn, err := ggrpc.NewClient(target, ggrpc.WithResolvers(builder), ggrpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		conn.Connect()
	}
	require.Empty(t, server.Settle())
	rapid.Check(t, func(t *rapid.T) {
		w := mesh(t)
		drawn(t, w)
		set := generate(t, w, "web-1")
		xdstest.RequireValid(t, set, generate(t, w, "web-1"))
		server.Set(set)
		require.Empty(t, server.Settle())
	})
}
