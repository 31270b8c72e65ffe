package resource_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// connection is the head of a policy between two services.
const connection = `
mesh: default
name: p
sources:
- match: {kuma.io/service: web}
destinations:
- match: {kuma.io/service: backend}
`

// selectors is the head of a policy on dataplanes.
const selectors = `
mesh: default
name: p
selectors:
- match: {kuma.io/service: web}
`

// decodeOne decodes one document that has to be valid.
func decodeOne(t *testing.T, document string) *resource.Resource {
	t.Helper()
	documents, err := resource.Decode("test.yaml", []byte(document), resource.DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, documents, 1)
	require.Empty(t, documents[0].Problems)
	return documents[0].Resource
}

// problems decodes one document and returns what is wrong with it, a line per
// error.
func problems(document string) string {
	_, err := resource.Decode("", []byte(document), resource.DecodeOptions{})
	var failed resource.DocumentErrors
	if !errors.As(err, &failed) {
		return ""
	}
	var lines []string
	for _, document := range failed {
		for _, p := range document.Problems {
			if p.Severity == resource.Error {
				lines = append(lines, p.String())
			}
		}
	}
	return strings.Join(lines, "\n")
}

// published holds, for every source/destination kind, a configuration with all
// of its published fields.
var published = map[string]string{
	"TrafficPermission": connection,
	"FaultInjection": connection + `
conf:
  abort: {httpStatus: 500, percentage: 50}
  delay: {percentage: 50.5, value: 5s}
  responseBandwidth: {limit: 50 mbps, percentage: 50}
`,
	"RateLimit": connection + `
conf:
  http:
    requests: 5
    interval: 10s
    onRateLimit:
      status: 423
      headers:
      - {key: x-kuma-rate-limited, value: "true", append: true}
`,
	"TrafficRoute": connection + `
conf:
  loadBalancer:
    ringHash: {hashFunction: MURMUR_HASH_2, minRingSize: 64, maxRingSize: 1024}
  split:
  - weight: 90
    destination: {kuma.io/service: backend, version: "1.0"}
  - weight: 10
    destination: {kuma.io/service: backend, version: "2.0"}
  http:
  - match:
      method: {exact: GET}
      path: {prefix: /offers}
      headers:
        x-version: {regex: "^v[12]$"}
    modify:
      path: {rewritePrefix: /new-offers}
      host: {fromPath: {pattern: "/(.*)", substitution: '\1'}}
      requestHeaders:
        add: [{name: x-a, value: a, append: true}]
        remove: [{name: x-b}]
      responseHeaders:
        remove: [{name: x-c}]
    destination: {kuma.io/service: offers}
`,
	"TrafficLog": connection + "conf: {backend: logstash}\n",
	"HealthCheck": connection + `
conf:
  interval: 10s
  timeout: 2s
  unhealthyThreshold: 3
  healthyThreshold: 1
  initialJitter: 5s
  intervalJitter: 6s
  intervalJitterPercent: 10
  healthyPanicThreshold: 60
  failTrafficOnPanic: true
  noTrafficInterval: 10s
  eventLogPath: /tmp/health-check.log
  alwaysLogHealthCheckFailures: true
  reuseConnection: false
  tcp:
    send: Zm9v
    receive: [YmFy, YmF6]
  http:
    path: /health
    requestHeadersToAdd:
    - append: false
      header: {key: Content-Type, value: application/json}
    - header: {key: Accept, value: application/json}
    expectedStatuses: [200, 201]
`,
	"CircuitBreaker": connection + `
conf:
  interval: 5s
  baseEjectionTime: 30s
  maxEjectionPercent: 20
  splitExternalAndLocalErrors: false
  thresholds: {maxConnections: 2, maxPendingRequests: 2, maxRequests: 2, maxRetries: 2}
  detectors:
    totalErrors: {consecutive: 20}
    gatewayErrors: {consecutive: 10}
    localErrors: {}
    standardDeviation: {requestVolume: 10, minimumHosts: 5, factor: 1.9}
    failure: {requestVolume: 10, minimumHosts: 5, threshold: 85}
`,
	"Retry": connection + `
conf:
  http:
    numRetries: 5
    perTryTimeout: 200ms
    backOff: {baseInterval: 20ms, maxInterval: 1s}
    retriableStatusCodes: [500, 504]
    retriableMethods: [GET, DELETE]
    retryOn: [all_5xx, gateway_error]
  grpc:
    numRetries: 5
    perTryTimeout: 200ms
    backOff: {baseInterval: 20ms, maxInterval: 1s}
    retryOn: [cancelled, deadline_exceeded, internal, resource_exhausted, unavailable]
  tcp: {maxConnectAttempts: 3}
`,
	"Timeout": connection + `
conf:
  connectTimeout: 10s
  tcp: {idleTimeout: 1h}
  http: {requestTimeout: 15s, idleTimeout: 0s, streamIdleTimeout: 30m, maxStreamDuration: 30m}
  grpc: {streamIdleTimeout: 5m, maxStreamDuration: 30m}
`,
	"TrafficTrace": selectors + "conf: {backend: jaeger}\n",
	"ProxyTemplate": selectors + `
conf:
  imports: [default-proxy]
  resources:
  - {name: raw, version: v1, resource: "name: raw"}
  modifications:
  - cluster:
      operation: add
      value: |
        name: test-cluster
        type: STATIC
  - cluster: {operation: remove, match: {name: other, origin: inbound}}
  - listener: {operation: patch, match: {origin: outbound, tags: {kuma.io/service: backend}}, value: "x: 1"}
  - networkFilter: {operation: addBefore, match: {name: a, listenerName: l}, value: "x: 1"}
  - httpFilter: {operation: addFirst, match: {listenerTags: {version: v1}}, value: "x: 1"}
  - virtualHost: {operation: add, match: {routeConfigurationName: r}, value: "x: 1"}
`,
	"VirtualOutbound": selectors + `
conf:
  host: "{{.service}}.{{.version}}.mesh"
  port: "{{.port}}"
  parameters:
  - {name: service, tagKey: kuma.io/service}
  - {name: version}
  - {name: port, tagKey: kuma.io/port}
`,
}

// TestPublishedExamples holds §3.1 and §1.2: the published
// configuration of every kind is accepted, kept as written and seen by engines.
func TestPublishedExamples(t *testing.T) {
	for kind, document := range published {
		t.Run(kind, func(t *testing.T) {
			r := decodeOne(t, "type: "+kind+document)
			d, ok := resource.Describe(r.Key().Kind)
			require.True(t, ok)
			require.Equal(t, resource.SourceDestination, d.Class)
			require.NotEmpty(t, d.Summary)

			if c, ok := r.Spec().(resource.ConnectionSpec); ok {
				require.Equal(t, []resource.TagSelector{{"kuma.io/service": "web"}}, c.SourceSelectors())
				require.Equal(t, []resource.TagSelector{{"kuma.io/service": "backend"}}, c.DestinationSelectors())
			} else {
				require.Equal(t, []resource.TagSelector{{"kuma.io/service": "web"}}, r.Spec().(resource.DataplaneSpec).DataplaneSelectors())
			}

			// The tree that engines merge is the document's own conf.
			var canonical struct {
				Conf json.RawMessage `json:"conf"`
			}
			require.NoError(t, json.Unmarshal(r.Canonical(), &canonical))
			tree := r.Spec().(resource.ConfSpec).ConfTree()
			if canonical.Conf == nil {
				require.Nil(t, tree)
				return
			}
			text, err := json.Marshal(tree)
			require.NoError(t, err)
			require.JSONEq(t, string(canonical.Conf), string(text))
		})
	}
	count := 0
	for _, d := range resource.Kinds() {
		if d.Class == resource.SourceDestination {
			count++
			require.Contains(t, published, string(d.Kind))
		}
	}
	require.Equal(t, 12, count)
}

// TestConfIsOptional holds §1.2: a conf is optional where a kind can
// do without.
func TestConfIsOptional(t *testing.T) {
	for kind := range published {
		head := connection
		switch kind {
		case "TrafficTrace", "ProxyTemplate":
			head = selectors
		case "VirtualOutbound":
			require.Equal(t, "conf: is required: it says how hosts and ports are made from tags", problems("type: "+kind+selectors))
			continue
		}
		r := decodeOne(t, "type: "+kind+head)
		require.Nil(t, r.Spec().(resource.ConfSpec).ConfTree(), kind)
	}
}

// TestAnEmptyConfIsAcceptedWithAWarning holds §1.2, for the first example of the
// source document of targetRef policies among others.
func TestAnEmptyConfIsAcceptedWithAWarning(t *testing.T) {
	for document, want := range map[string]string{
		"type: Timeout" + connection + "conf: {}":                     "conf: is empty: the policy configures nothing",
		"type: TrafficRoute" + connection + "conf: {}":                "conf: is empty: the policy configures nothing",
		"type: TrafficTrace" + selectors + "conf: {}":                 "conf: is empty: the policy configures nothing",
		"type: MeshTracing\nname: p\nconf: {}":                        "conf: is empty: the policy configures nothing",
		"type: MeshUpstreamTimeout\nname: p\nconf: {}":                "configures nothing: write `to`, `defaults`, `overrides` or `unset`",
		"type: MeshUpstreamTimeout\nname: p\ntargetRef: {kind: Mesh}": "configures nothing: write `to`, `defaults`, `overrides` or `unset`",
		"type: UpstreamTimeout\nmesh: mesh-1\nname: timeouts\nspec:\n  targetRef:\n    kind: Service\n    name: backend\n  conf:\n    # timeouts configuration\n": "configures nothing: write `to`, `defaults`, `overrides` or `unset`",
	} {
		documents, err := resource.Decode("", []byte(document), resource.DecodeOptions{})
		require.NoError(t, err, document)
		var warnings []string
		for _, p := range documents[0].Problems {
			if p.Severity == resource.Warning {
				warnings = append(warnings, p.String())
			}
		}
		require.Equal(t, []string{want}, warnings, document)
	}
}

// TestBackendRefs holds §1.4: what names a backend can be found.
func TestBackendRefs(t *testing.T) {
	log := decodeOne(t, "type: TrafficLog"+published["TrafficLog"]).Spec().(resource.BackendReferrer)
	require.Equal(t, []resource.BackendRef{{Path: "conf.backend", Use: resource.LoggingBackend, Name: "logstash"}}, log.BackendRefs())
	trace := decodeOne(t, "type: TrafficTrace"+published["TrafficTrace"]).Spec().(resource.BackendReferrer)
	require.Equal(t, []resource.BackendRef{{Path: "conf.backend", Use: resource.TracingBackend, Name: "jaeger"}}, trace.BackendRefs())
	none := decodeOne(t, "type: TrafficLog"+connection).Spec().(resource.BackendReferrer)
	require.Empty(t, none.BackendRefs())
}

// TestInvalidPolicies shows each refusal in the words its author reads.
func TestInvalidPolicies(t *testing.T) {
	for _, c := range []struct{ kind, document, want string }{
		{"TrafficPermission", "\nname: p\n", "sources: is required: write at least one `- match:` with a tag, such as kuma.io/service: '*'\n" +
			"destinations: is required: write at least one `- match:` with a tag, such as kuma.io/service: '*'"},
		{"TrafficPermission", "\nname: p\nsources:\n- match: {}\ndestinations:\n- match: {version: v1}\n", "sources[0].match: needs at least one tag, such as kuma.io/service: '*'"},
		{
			"TrafficPermission", "\nname: p\nsources:\n- match: {kuma.io/service: web-*}\ndestinations:\n- match: {a: ''}\n",
			"sources[0].match[\"kuma.io/service\"]: '*' only stands alone and matches any value; \"web-*\" would never match\n" +
				"destinations[0].match.a: a tag needs a value; '*' matches any value",
		},
		{"TrafficPermission", connection + "conf: {}\n", "conf: unknown field `conf`; known here: sources, destinations"},
		{"TrafficTrace", "\nname: p\nselectors: []\n", "selectors: is required: write at least one `- match:` with a tag, such as kuma.io/service: '*'"},
		{"TrafficLog", "\nname: p\ntargetRef: {kind: Mesh}\n", "targetRef: unknown field `targetRef`; the kind that takes a targetRef is `MeshLogging`"},
		{"ProxyTemplate", "\nname: p\ntargetRef: {kind: Mesh}\n", "targetRef: unknown field `targetRef`; the kind that takes a targetRef is `MeshEnvoyTemplate`"},
		{"TrafficLog", connection + "conf: {backend: ''}\n", "conf.backend: must not be empty"},
		{"FaultInjection", connection + "conf: {delay: {percentage: 101, value: 5s}}\n", "conf.delay.percentage: a percentage lies between 0 and 100, got 101"},
		{"FaultInjection", connection + "conf: {delay: {percentage: 1}}\n", "conf.delay.value: is required"},
		{"FaultInjection", connection + "conf: {abort: {percentage: 1, httpStatus: 99}}\n", "conf.abort.httpStatus: must be between 100 and 599, got 99"},
		{"FaultInjection", connection + "conf: {responseBandwidth: {percentage: 1, limit: 50mb}}\n", "conf.responseBandwidth.limit: must be a number and kbps, mbps or gbps, such as \"50 mbps\", got \"50mb\""},
		{"RateLimit", connection + "conf: {http: {requests: 0, interval: 1ms}}\n", "conf.http.requests: must be at least 1, got 0\nconf.http.interval: must be at least 50ms, got 1ms"},
		{"RateLimit", connection + "conf: {http: {interval: 1s}}\n", "conf.http.requests: is required"},
		{"TrafficRoute", connection + "conf: {split: [{weight: 0, destination: {kuma.io/service: a}}]}\n", "conf.split: the weights add up to 0, so that no traffic goes anywhere"},
		{"TrafficRoute", connection + "conf: {split: [{weight: 1, destination: {version: a}}]}\n", "conf.split[0].destination: must name the service with the tag kuma.io/service"},
		{"TrafficRoute", connection + "conf: {destination: {kuma.io/service: a}, split: [{weight: 1, destination: {kuma.io/service: a}}]}\n", "conf: has split and destination; keep one of them"},
		{"TrafficRoute", connection + "conf: {destination: {kuma.io/service: a}, loadBalancer: {random: {}, maglev: {}}}\n", "conf.loadBalancer: has random and maglev; keep one of them"},
		{"TrafficRoute", connection + "conf: {destination: {kuma.io/service: a}, http: [{match: {path: {regex: '('}}, destination: {kuma.io/service: b}}]}\n", "conf.http[0].match.path.regex: is not a regular expression (RE2): missing closing ): `(`"},
		{"TrafficRoute", connection + "conf: {destination: {kuma.io/service: a}, http: [{match: {}, destination: {kuma.io/service: b}}]}\n", "conf.http[0].match: needs at least one of method, path, headers"},
		{"HealthCheck", connection + "conf: {interval: 0s, timeout: 2, tcp: {send: '!'}}\n", "conf.interval: must be longer than 0s\n" +
			"conf.timeout: expected a duration with its unit, such as 2s, got the number 2\nconf.tcp.send: must be base64 of the bytes, got \"!\""},
		{"HealthCheck", connection + "conf: {intervall: 1s}\n", "conf.intervall: unknown field `intervall`; did you mean `interval`?"},
		{"CircuitBreaker", connection + "conf: {maxEjectionPercent: 200, detectors: {totalErrors: {consecutive: 0}}}\n", "conf.maxEjectionPercent: must be between 0 and 100, got 200\nconf.detectors.totalErrors.consecutive: must be at least 1, got 0"},
		{"Retry", connection + "conf: {http: {backOff: {baseInterval: 2s, maxInterval: 1s}, retryOn: [5xx]}}\n", "conf.http.retryOn[0]: unknown value \"5xx\"; use one of all_5xx, gateway_error, reset, connect_failure, envoy_ratelimited, retriable_4xx, refused_stream, retriable_status_codes, retriable_headers, http3_post_connect_failure\n" +
			"conf.http.backOff.maxInterval: must not be shorter than baseInterval (2s)"},
		{"Timeout", connection + "conf: {connectTimeout: 0s}\n", "conf.connectTimeout: must be longer than 0s"},
		{"ProxyTemplate", selectors + "conf: {modifications: [{cluster: {operation: add}, listener: {operation: remove}}]}\n", "conf.modifications[0]: has cluster and listener; keep one of them\nconf.modifications[0].cluster.value: is required by add"},
		{"ProxyTemplate", selectors + "conf: {modifications: [{httpFilter: {operation: addBefore, value: a}}]}\n", "conf.modifications[0].httpFilter.match.name: is required by addBefore"},
		{"ProxyTemplate", selectors + "conf: {modifications: [{cluster: {operation: remove, value: a}}]}\n", "conf.modifications[0].cluster.value: is not used by remove; leave it out"},
		{"VirtualOutbound", selectors + "conf: {host: '{{.servise}}.mesh', port: '80', parameters: [{name: service, tagKey: kuma.io/service}]}\n", "conf.host: uses {{.servise}}, which no parameter defines; did you mean `service`?"},
		{"VirtualOutbound", selectors + "conf: {host: '{{range 5}}a{{end}}', port: '80', parameters: [{name: a, tagKey: b}]}\n", "conf.host: may only contain text and {{.parameter}}, got {{range 5}}a{{end}}\nconf.parameters: needs an entry with tagKey: kuma.io/service"},
	} {
		require.Equal(t, c.want, problems("type: "+c.kind+c.document), c.document)
	}
}

// TestEveryFieldIsDocumented keeps `meridian explain` complete.
func TestEveryFieldIsDocumented(t *testing.T) {
	for _, d := range resource.Kinds() {
		for _, f := range resource.Fields(d.Kind) {
			require.NotEmpty(t, f.Doc, "%s %s", d.Kind, f.Path)
			require.True(t, strings.HasSuffix(f.Doc, "."), "%s %s: %s", d.Kind, f.Path, f.Doc)
		}
	}
}
