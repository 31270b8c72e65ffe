package resource_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

const noTags = "\nname: p\nmesh: mesh-1\n"

// targetRefExamples holds, for every targetRef kind, all fields of its
// configuration.
var targetRefExamples = map[string]string{
	"MeshTrafficPermission": `
from:
- targetRef: {kind: MeshSubset, tags: {kuma.io/zone: us-east}}
  action: ALLOW
- targetRef: {kind: MeshServiceSubset, name: backend, tags: {version: v2}}
  default: {action: Deny}
- targetRef: {kind: Mesh}
  action: DENY
`,
	"MeshTrafficRoute": `
to:
- targetRef: {kind: Service, name: backend}
  split:
  - {weight: 1, destination: {kuma.io/service: backend, version: v1}}
  - {weight: 9, destination: {kuma.io/service: backend, version: v2}}
  loadBalancer: {leastRequest: {choiceCount: 4}}
  http:
  - match: {path: {exact: /a}}
    destination: {kuma.io/service: a}
- targetRef: {kind: MeshHTTPRoute, name: r}
  default:
    rules:
    - matches:
      - path: {type: PathPrefix, value: /}
        method: GET
        headers: [{name: a, type: Present}]
        queryParams: [{name: q, value: v}]
      default:
        filters:
        - type: RequestHeaderModifier
          requestHeaderModifier: {set: [{name: x, value: y}]}
        backendRefs:
        - {kind: MeshServiceSubset, name: backend, tags: {version: v1}, weight: 90}
        - {kind: MeshService, name: other, weight: 10, port: 80}
`,
	"MeshCircuitBreaker": `
to:
- targetRef: {kind: Mesh}
  connectionLimits: {maxConnectionPools: 1, maxConnections: 2, maxPendingRequests: 3, maxRetries: 0, maxRequests: 4}
from:
- targetRef: {kind: Mesh}
  default:
    outlierDetection:
      disabled: false
      interval: 5s
      baseEjectionTime: 30s
      maxEjectionPercent: 20
      splitExternalAndLocalErrors: true
      healthyPanicThreshold: 20.5
      detectors:
        totalFailures: {consecutive: 10}
        gatewayFailures: {consecutive: 10}
        localOriginFailures: {consecutive: 10}
        successRate: {minimumHosts: 5, requestVolume: 10, standardDeviationFactor: 1.9}
        failurePercentage: {minimumHosts: 5, requestVolume: 10, threshold: 85}
`,
	"MeshHealthCheck": `
to:
- targetRef: {kind: Service, name: backend}
  interval: 10s
  timeout: 2s
  unhealthyThreshold: 3
  healthyThreshold: 1
  tcp: {disabled: true, send: Zm9v, receive: [YmFy]}
  http: {path: /health, requestHeadersToAdd: {set: [{name: a, value: b}]}, expectedStatuses: [200]}
  grpc: {disabled: false, serviceName: s, authority: a}
`,
	"MeshHTTPFault": `
from:
- targetRef: {kind: Service, name: web}
  http:
  - abort: {httpStatus: 500, percentage: 50}
  - delay: {value: 5s, percentage: 5}
to:
- targetRef: {kind: Mesh}
  http: []
`,
	"MeshRequestRetry": `
to:
- targetRef: {kind: Mesh}
  http:
    numRetries: 5
    perTryTimeout: 0s
    backOff: {baseInterval: 20ms, maxInterval: 1s}
    rateLimitedBackOff: {resetHeaders: [{name: retry-after, format: Seconds}], maxInterval: 5m}
    retryOn: [5XX, GatewayError, HttpMethodGet, "503"]
    retriableResponseHeaders: [{type: RegularExpression, name: a, value: b}]
    hostSelection: [{predicate: OmitHostsWithTags, tags: {version: v1}}, {predicate: OmitPreviousPriorities, updateFrequency: 2}]
    hostSelectionMaxAttempts: 3
  grpc: {numRetries: 1, retryOn: [Canceled, Unavailable]}
  tcp: {maxConnectAttempt: 3}
`,
	"MeshUpstreamTimeout": `
to:
- targetRef: {kind: Mesh}
  connectTimeout: 10s
  idleTimeout: 1h
  http: {requestTimeout: 5s, requestHeadersTimeout: 1s, streamIdleTimeout: 1h, idleTimeout: 0s, maxStreamDuration: 0s, maxConnectionDuration: 0s}
`,
	"MeshRateLimit": `
from:
- targetRef: {kind: Mesh}
  local:
    http:
      disabled: false
      requestRate: {num: 5, interval: 10s}
      onRateLimit: {status: 423, headers: {add: [{name: x, value: "true"}]}}
    tcp: {connectionRate: {num: 100, interval: 1s}}
`,
	"MeshTracing": `
conf:
  backends:
  - {name: jaeger}
  - {type: Zipkin, zipkin: {url: "http://z:9411/api/v2/spans", traceId128bit: true, apiVersion: httpProto, sharedSpanContext: false}}
  - {type: Datadog, datadog: {url: "http://d:8126", splitService: true}}
  - {type: OpenTelemetry, openTelemetry: {endpoint: "otel:4317"}}
  sampling: {overall: 80, client: 60, random: 0.5}
  tags:
  - {name: team, literal: core}
  - {name: env, header: {name: x-env, default: prod}}
`,
	"MeshLogging": `
to:
- targetRef: {kind: Service, name: web}
  backends:
  - name: logstash
from:
- targetRef: {kind: Mesh}
  default:
    backends:
    - {type: Tcp, tcp: {address: "logs:5000", format: {type: Json, json: [{key: a, value: "%START_TIME%"}], omitEmptyValues: true}}}
    - {type: File, file: {path: /dev/stdout, format: {type: Plain, plain: x}}}
    - {type: OpenTelemetry, openTelemetry: {endpoint: "otel:4317", attributes: [{key: a, value: b}], body: {kvlistValue: {values: []}}}}
`,
	"MeshMetrics": `
conf:
  sidecar:
    includeUnused: false
    profiles:
      appendProfiles: [{name: Basic}]
      exclude: [{type: Regex, match: "x.*"}]
      include: [{type: Exact, match: y}]
  applications: [{name: app, path: /m, port: 8080, address: 127.0.0.1}]
  backends:
  - {name: prom}
  - {type: Prometheus, prometheus: {clientId: main, port: 5670, path: /metrics, tls: {mode: Disabled}}}
  - {type: OpenTelemetry, openTelemetry: {endpoint: "otel:4317", refreshInterval: 30s}}
`,
	"MeshEnvoyTemplate": `
conf:
  imports: [default-proxy]
  modifications:
  - cluster: {operation: add, value: "name: test-cluster"}
`,
	"MeshVirtualOutbound": `
conf:
  host: "{{.service}}.mesh"
  port: "80"
  parameters: [{name: service, tagKey: kuma.io/service}]
`,
}

// TestTargetRefKinds holds §4.1: thirteen kinds, each with typed
// configuration, seen by engines as its author wrote it.
func TestTargetRefKinds(t *testing.T) {
	count := 0
	for _, d := range resource.Kinds() {
		if d.Class == resource.TargetRef {
			count++
			require.Contains(t, targetRefExamples, string(d.Kind))
		}
	}
	require.Equal(t, 13, count)
	for kind, example := range targetRefExamples {
		t.Run(kind, func(t *testing.T) {
			spec := decodeOne(t, "type: "+kind+noTags+example).Spec().(resource.TargetRefSpec)
			require.Equal(t, resource.Target{Kind: resource.TargetMesh}, spec.TopTarget())
			require.Nil(t, spec.Defaults())
			require.Nil(t, spec.Overrides())
			if kind == "MeshHTTPFault" { // an empty list is a value
				require.Equal(t, map[string]any{"http": []any{}}, spec.ToItems()[0].Conf)
			}
			for _, item := range append(spec.ToItems(), spec.FromItems()...) {
				require.NotEmpty(t, item.Conf)
				require.NotContains(t, item.Conf, "targetRef")
				require.NotContains(t, item.Conf, "default")
			}
		})
	}
}

// treeJSON prints a tree.
func treeJSON(t *testing.T, tree any) string {
	t.Helper()
	text, err := json.Marshal(tree)
	require.NoError(t, err)
	return string(text)
}

// TestItemForms holds §4.1: lists under conf or directly in the spec,
// configuration inline or under default, one meaning.
func TestItemForms(t *testing.T) {
	const inline = `[{targetRef: {kind: MeshService, name: backend}, connectTimeout: 20s, http: {idleTimeout: 0s}}]`
	const under = `[{targetRef: {kind: Service, name: backend}, default: {connectTimeout: 20s, http: {idleTimeout: 0s}}}]`
	for path, document := range map[resource.Path]string{
		"to[0]":      "type: UpstreamTimeout" + noTags + "to: " + inline,
		"conf.to[0]": "type: MeshUpstreamTimeout" + noTags + "conf: {to: " + under + "}",
	} {
		r := decodeOne(t, document)
		require.Equal(t, resource.Kind("MeshUpstreamTimeout"), r.Key().Kind)
		spec := r.Spec().(resource.TargetRefSpec)
		require.Nil(t, spec.FromItems())
		require.Nil(t, spec.OwnConf())
		require.Len(t, spec.ToItems(), 1)
		item := spec.ToItems()[0]
		require.Equal(t, path, item.Path)
		require.Equal(t, resource.Target{Kind: resource.TargetService, Name: "backend"}, item.Target)
		require.Equal(t, `{"connectTimeout":"20s","http":{"idleTimeout":"0s"}}`, treeJSON(t, item.Conf))
	}
}

// TestPermissionActions shows that both spellings of an action are one value.
func TestPermissionActions(t *testing.T) {
	spec := decodeOne(t, "type: MeshTrafficPermission"+noTags+targetRefExamples["MeshTrafficPermission"]).Spec().(resource.TargetRefSpec)
	var actions []any
	for _, item := range spec.FromItems() {
		actions = append(actions, item.Conf["action"])
	}
	require.Equal(t, []any{resource.ActionAllow, resource.ActionDeny, resource.ActionDeny}, actions)
}

// TestOwnConf holds §4.8: an empty list is a value.
func TestOwnConf(t *testing.T) {
	spec := decodeOne(t, `
type: MeshEnvoyTemplate
mesh: default
name: pt-2
spec:
  targetRef: {kind: Proxy, name: my-special-backend-dpp}
  conf:
    imports: [default-proxy]
    modifications: []
`).Spec().(resource.TargetRefSpec)
	require.Equal(t, resource.Target{Kind: resource.TargetProxy, Name: "my-special-backend-dpp"}, spec.TopTarget())
	require.Equal(t, `{"imports":["default-proxy"],"modifications":[]}`, treeJSON(t, spec.OwnConf()))
	later := decodeOne(t, "type: MeshTracing"+noTags+"default: {sampling: {random: 1}}").Spec().(resource.TargetRefSpec)
	require.Equal(t, `{"sampling":{"random":1}}`, treeJSON(t, later.OwnConf()))
}

// TestTargetBlocks holds the shape of §4.10.
func TestTargetBlocks(t *testing.T) {
	spec := decodeOne(t, "type: MeshUpstreamTimeout"+noTags+`
defaults:
  to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]
overrides:
  strategy: merge
  when: "self.http.requestTimeout > duration('10s')"
  onError: apply
  to: [{targetRef: {kind: Mesh}, http: {requestTimeout: 10s}}]
unset: [/connectTimeout, /http]
`).Spec().(resource.TargetRefSpec)
	require.Nil(t, spec.ToItems())
	require.Equal(t, []string{"/connectTimeout", "/http"}, spec.UnsetPointers())
	defaults, overrides := spec.Defaults(), spec.Overrides()
	require.Equal(t, resource.Atomic, defaults.Strategy)
	require.Equal(t, resource.SkipOnError, defaults.OnError)
	require.Empty(t, defaults.When)
	require.Equal(t, resource.Path("defaults.to[0]"), defaults.To[0].Path)
	require.Equal(t, resource.Merge, overrides.Strategy)
	require.Equal(t, resource.ApplyOnError, overrides.OnError)
	require.Equal(t, "self.http.requestTimeout > duration('10s')", overrides.When)
	require.Equal(t, `{"http":{"requestTimeout":"10s"}}`, treeJSON(t, overrides.To[0].Conf))

	own := decodeOne(t, "type: MeshTracing"+noTags+"overrides: {strategy: merge, sampling: {random: 1}}").Spec().(resource.TargetRefSpec)
	require.Nil(t, own.OwnConf())
	require.Equal(t, `{"sampling":{"random":1}}`, treeJSON(t, own.Overrides().Own))
}

// TestTargetRefBackends holds §1.4 for the second generation.
func TestTargetRefBackends(t *testing.T) {
	refs := func(kind, body string) []resource.BackendRef {
		return decodeOne(t, "type: "+kind+noTags+body).Spec().(resource.BackendReferrer).BackendRefs()
	}
	require.Equal(t, []resource.BackendRef{{Path: "to[0].backends[0].name", Use: resource.LoggingBackend, Name: "logstash"}},
		refs("MeshLogging", targetRefExamples["MeshLogging"]))
	require.Equal(t, []resource.BackendRef{{Path: "conf.backends[0].name", Use: resource.TracingBackend, Name: "jaeger"}},
		refs("MeshTracing", targetRefExamples["MeshTracing"]))
	require.Equal(t, []resource.BackendRef{{Path: "conf.backends[0].name", Use: resource.MetricsBackend, Name: "prom"}},
		refs("MeshMetrics", targetRefExamples["MeshMetrics"]))
	require.Equal(t, []resource.BackendRef{{Path: "overrides.from[0].default.backends[0].name", Use: resource.LoggingBackend, Name: "x"}},
		refs("MeshLogging", "overrides: {from: [{targetRef: {kind: Mesh}, default: {backends: [{name: x}]}}]}"))
}

// TestSpecsEncodeAsTheyAreDecoded holds for Go's encoder, too: what stands inline has
// no name of its own.
func TestSpecsEncodeAsTheyAreDecoded(t *testing.T) {
	for kind, body := range targetRefExamples {
		r := decodeOne(t, "type: "+kind+"\nname: p\n"+body)
		text, err := json.Marshal(r.Spec())
		require.NoError(t, err)
		again, _, err := resource.Build(resource.Meta{Key: r.Key()}, text)
		require.NoError(t, err, "%s: %s", kind, text)
		require.JSONEq(t, string(r.Canonical()), string(again.Canonical()))
	}
}

// TestInvalidTargetRefs shows each refusal in the words its author reads.
func TestInvalidTargetRefs(t *testing.T) {
	const timeout, permission = "MeshUpstreamTimeout", "MeshTrafficPermission"
	for _, c := range []struct{ kind, body, want string }{
		{timeout, "from: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]", "from: unknown field `from`; the kind configures outbounds only: use `to`"},
		{timeout, "conf: {from: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]}", "conf.from: unknown field `from`; the kind configures outbounds only: use `to`"},
		{permission, "to: [{targetRef: {kind: Mesh}, action: ALLOW}]", "to: unknown field `to`; the kind configures inbounds only: use `from`"},
		{"MeshTracing", "to: []", "to: unknown field `to`; the kind configures whole dataplanes: write its fields under `conf`"},
		{timeout, "targetRef: {kind: Mesh, name: a}\nto: []", "targetRef.name: is not taken by kind Mesh; leave it out, or use Service"},
		{timeout, "targetRef: {kind: Service}\nto: []", "targetRef.name: is required with kind Service"},
		{timeout, "targetRef: {kind: Service, name: a, tags: {a: b}}\nto: []", "targetRef.tags: is not taken by kind Service; use ServiceSubset"},
		{timeout, "targetRef: {kind: MeshSubset}\nto: []", "targetRef.tags: is required with kind MeshSubset: at least one tag"},
		{timeout, "targetRef: {kind: MeshSubset, tags: {}}\nto: []", "targetRef.tags: is required with kind MeshSubset: at least one tag"},
		{timeout, "targetRef: {kind: Servise, name: a}\nto: []", "targetRef.kind: unknown value \"Servise\"; did you mean `Service`?"},
		{timeout, "to: [{targetRef: {kind: MeshSubset, tags: {a: b}}, connectTimeout: 1s}]", "to[0].targetRef.kind: MeshSubset cannot be targeted here; use one of Mesh, Service, HTTPRoute"},
		{permission, "from: [{targetRef: {kind: HTTPRoute, name: r}, action: ALLOW}]", "from[0].targetRef.kind: HTTPRoute cannot be targeted here; use one of Mesh, MeshSubset, Service, ServiceSubset"},
		{permission, "from: [{targetRef: {kind: Mesh}, action: MAYBE}]", "from[0].action: unknown value \"MAYBE\"; use one of ALLOW, DENY, Allow, Deny"},
		{timeout, "to: [{connectTimeout: 1s}]", "to[0].targetRef: is required"},
		{timeout, "to: [{targetRef: {kind: Mesh}}]", "to[0]: configures nothing: add configuration beside targetRef or under default"},
		{timeout, "to: [{targetRef: {kind: Mesh}, default: {}}]", "to[0]: configures nothing: add configuration beside targetRef or under default"},
		{timeout, "to: [{targetRef: {kind: Mesh}, connectTimeout: 1s, default: {connectTimeout: 1s}}]", "to[0]: has configuration both beside targetRef and under default; keep one of them"},
		{timeout, "targetRef: {kind: Service, name: '*'}\nto: []", "targetRef.name: '*' is not the name of a service; use kind Mesh without a name"},
		{timeout, "to: [{targetRef: {kind: MeshService, name: '*'}, connectTimeout: 1s}]", "to[0].targetRef.name: '*' is not the name of a service; use kind Mesh without a name"},
		{timeout, "targetRef: {kind: ServiceSubset, name: '*', tags: {version: v1}}\nto: []", "targetRef.name: '*' is not the name of a service; use kind MeshSubset without a name"},
		{timeout, "to: []\nconf: {to: []}", "conf: the items stand both here and directly in the spec; keep them in one place"},
		{timeout, "to: []\noverrides: {to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]}", "overrides: cannot stand beside bare `to`; move them into `defaults`, or leave the block out"},
		{timeout, "defaults: {strategy: merge}", "defaults: is empty: write `to`, or leave the block out"},
		{timeout, "defaults: {strategy: mix, to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]}", "defaults.strategy: unknown value \"mix\"; use one of atomic, merge"},
		{timeout, "defaults: {when: ' ', to: [{targetRef: {kind: Mesh}, connectTimeout: 1s}]}", "defaults.when: must not be empty; leave it out for a block that always applies"},
		{timeout, "unset: [/http/requestTimeuot]", "unset[0]: /http/requestTimeuot: there is no field `requestTimeuot`; did you mean `requestTimeout`?"},
		{timeout, "unset: [connectTimeout]", "unset[0]: expected a JSON pointer such as /http/requestTimeout, got \"connectTimeout\""},
		{timeout, "unset: [/connectTimeout/x]", "unset[0]: /connectTimeout/x leads into a single value; it can only be unset as a whole"},
		{"MeshTracing", "conf: {}\ndefault: {}", "default: is another place for `conf`; keep one of them"},
		{"MeshTracing", "overrides: {strategy: merge}", "overrides: is empty: write what `conf` would hold, or leave the block out"},
		{"MeshTracing", "conf: {backends: [{name: a, type: Zipkin}]}", "conf.backends[0]: has name and type; keep one of them"},
		{"MeshTracing", "conf: {backends: [{type: Zipkin, datadog: {url: a}}]}", "conf.backends[0].zipkin: is required with type Zipkin\nconf.backends[0].datadog: belongs to type Datadog, not Zipkin"},
		{"MeshRequestRetry", "to: [{targetRef: {kind: Mesh}, http: {retryOn: [GatewayEror, 99]}}]", "to[0].http.retryOn[1]: expected a string, got the number 99; put it in quotes\nto[0].http.retryOn[0]: unknown condition \"GatewayEror\"; did you mean `GatewayError`?"},
		{"MeshHTTPFault", "to: [{targetRef: {kind: Mesh}, http: [{}]}]", "to[0].http[0]: needs at least one of delay, abort, responseBandwidth"},
		{"MeshRateLimit", "to: [{targetRef: {kind: Mesh}, local: {http: {requestRate: {num: 0, interval: 1ms}}}}]", "to[0].local.http.requestRate.num: must be at least 1, got 0\nto[0].local.http.requestRate.interval: must be at least 50ms, got 1ms"},
	} {
		require.Equal(t, c.want, problems("type: "+c.kind+noTags+c.body), c.body)
	}
}

// TestFromItemsOnRoutes holds §4.2: what cannot take effect is said.
func TestFromItemsOnRoutes(t *testing.T) {
	documents, err := resource.Decode("", []byte("type: MeshTrafficPermission"+noTags+
		"targetRef: {kind: HTTPRoute, name: r}\nfrom: [{targetRef: {kind: Mesh}, action: ALLOW}]"), resource.DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, documents[0].Problems, 1)
	require.Equal(t, "targetRef.kind: a policy on one HTTPRoute configures outbounds; its from items never take effect", documents[0].Problems[0].String())
}
