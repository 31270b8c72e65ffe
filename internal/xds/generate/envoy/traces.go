package envoy

import (
	"encoding/json"
	"net"
	"net/url"
	"strconv"
	"strings"

	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
)

// What is written after a dataplane's service in the names under which Datadog has the
// two directions of its requests, where they are to be services of their own.
const inboundSuffix, outboundSuffix = "_INBOUND", "_OUTBOUND_"

// traced is where the spans of a dataplane's requests go, and which.
type traced struct {
	c        *generate.Conf
	receiver *resource.TraceReceiver
	// origins are those of the receiver, with no path.
	origins  []xds.Origin
	sampling resource.TraceSampling
	tags     []resource.TraceTag
}

// tracing is what the policies on a dataplane say about its spans; nil when they go
// nowhere. Envoy sends spans to one receiver: the first that can be used.
func (b *builder) tracing(rules []policy.Rule) (*traced, error) {
	var c *generate.Conf
	for i := range rules {
		r := &rules[i]
		if r.Attachment.Type != policy.OnDataplane || len(r.Steps) == 0 {
			continue
		}
		switch {
		case r.Kind == resource.KindMeshTracing, r.Kind == resource.KindTrafficTrace && (c == nil || c.Kind != resource.KindMeshTracing):
			c = generate.NewConf(r)
		}
	}
	if c == nil {
		return nil, nil
	}
	t := &traced{c: c}
	if c.Kind == resource.KindTrafficTrace {
		t.receiver, t.sampling.Overall, t.origins = b.namedTracing(textAt(c, "/backend", ""))
		t.origins = append(c.Origin("", "/backend"), t.origins...)
		if t.receiver == nil {
			return nil, nil
		}
		return t, nil
	}
	var receivers []resource.TraceReceiver
	if _, err := c.Decode("/backends", &receivers); err != nil {
		return nil, err
	}
	if _, err := c.Decode("/sampling", &t.sampling); err != nil {
		return nil, err
	}
	if _, err := c.Decode("/tags", &t.tags); err != nil {
		return nil, err
	}
	for i := range receivers {
		from := c.Origin("", policy.Pointer("/backends/"+strconv.Itoa(i)))
		r, overall := &receivers[i], (*resource.Percentage)(nil)
		if r.Name != nil {
			var more []xds.Origin
			r, overall, more = b.namedTracing(*r.Name)
			from = append(from, more...)
		}
		if r == nil || !reachable(r) {
			continue
		}
		if t.sampling.Overall == nil {
			t.sampling.Overall = overall
		}
		t.receiver, t.origins = r, from
		return t, nil
	}
	return nil, nil
}

// namedTracing returns a backend of the Mesh as it would be described in place, with the
// share of requests that it takes; the default backend for no name. nil: there is none,
// or it has not what it needs.
func (b *builder) namedTracing(name string) (*resource.TraceReceiver, *resource.Percentage, []xds.Origin) {
	backend, i := backendOf(b.settings.Tracing, name)
	if backend == nil {
		return nil, nil, nil
	}
	var conf struct {
		resource.TraceZipkin
		Address      string
		Port         uint16
		SplitService *bool
	}
	if json.Unmarshal(backend.Conf, &conf) != nil {
		return nil, nil, nil
	}
	r := &resource.TraceReceiver{}
	switch backend.Type {
	case "zipkin":
		r.Zipkin = &conf.TraceZipkin
	case "datadog":
		at := net.JoinHostPort(conf.Address, strconv.Itoa(int(conf.Port)))
		r.Datadog = &resource.TraceDatadog{URL: "http://" + at, SplitService: conf.SplitService}
	}
	if !reachable(r) {
		return nil, nil, nil
	}
	return r, backend.Sampling, []xds.Origin{{
		Source: resource.Key{Kind: resource.KindMesh, Name: string(b.Mesh)}, Field: "/tracing/backends/" + strconv.Itoa(i),
	}}
}

// reachable reports whether a receiver has an address that spans can be sent to.
func reachable(r *resource.TraceReceiver) bool {
	ok := false
	switch {
	case r.Zipkin != nil:
		_, _, ok = addressOf(r.Zipkin.URL)
	case r.Datadog != nil:
		_, _, ok = addressOf(r.Datadog.URL)
	case r.OpenTelemetry != nil:
		_, _, ok = hostPort(r.OpenTelemetry.Endpoint, otelPort)
	}
	return ok
}

// addressOf takes a URL of HTTP without TLS apart.
func addressOf(text string) (address, path string, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" {
		return "", "", false
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	address = net.JoinHostPort(u.Hostname(), port)
	_, _, ok = hostPort(address, 0)
	path = u.RequestURI()
	return address, path, ok && !strings.ContainsAny(path, "\r\n\x00")
}

// traces has the requests of a listener traced.
func (b *builder) traces(m *httpv3.HttpConnectionManager, about *listened) ([]xds.Origin, error) {
	t := b.traced
	if t == nil {
		return nil, nil
	}
	provider, err := b.provider(t.receiver, about)
	if err != nil {
		return nil, err
	}
	packed, err := xds.Pack(provider)
	if err != nil {
		return nil, err
	}
	m.Tracing = &httpv3.HttpConnectionManager_Tracing{Provider: &tracev3.Tracing_Http{
		Name: string(provider.ProtoReflect().Descriptor().FullName()), ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: packed},
	}}
	const at = inFilter + "/tracing"
	origins := generate.AppendAt(nil, at+"/provider", t.origins)
	for _, s := range []struct {
		name  string
		share *resource.Percentage
		into  **typev3.Percent
	}{
		{"overall", t.sampling.Overall, &m.Tracing.OverallSampling},
		{"client", t.sampling.Client, &m.Tracing.ClientSampling},
		{"random", t.sampling.Random, &m.Tracing.RandomSampling},
	} {
		if s.share != nil {
			*s.into = &typev3.Percent{Value: float64(*s.share)}
			origins = append(origins, t.c.Origin(at+"/"+s.name+"Sampling", policy.Pointer("/sampling/"+s.name))...)
		}
	}
	for i := range t.tags {
		if made := customTag(&t.tags[i]); made != nil {
			m.Tracing.CustomTags = append(m.Tracing.CustomTags, made)
			origins = append(origins, t.c.Origin(at+"/customTags/"+strconv.Itoa(len(m.Tracing.CustomTags)-1), policy.Pointer("/tags/"+strconv.Itoa(i)))...)
		}
	}
	return origins, nil
}

// customTag is a tag on spans; nil for one that can have no value.
func customTag(t *resource.TraceTag) *tracingv3.CustomTag {
	made := &tracingv3.CustomTag{Tag: t.Name}
	switch {
	case t.Literal != nil && *t.Literal != "":
		made.Type = &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: *t.Literal}}
	case t.Header != nil && headerArgument.MatchString(t.Header.Name) && !strings.Contains(t.Header.Name, "?"):
		header := &tracingv3.CustomTag_Header{Name: t.Header.Name}
		if t.Header.Default != nil {
			header.DefaultValue = *t.Header.Default
		}
		made.Type = &tracingv3.CustomTag_RequestHeader{RequestHeader: header}
	default:
		return nil
	}
	return made
}

// provider sends spans to a receiver that is reachable.
func (b *builder) provider(r *resource.TraceReceiver, about *listened) (proto.Message, error) {
	service := about.caller
	switch {
	case r.Zipkin != nil:
		address, path, _ := addressOf(r.Zipkin.URL)
		cluster, err := b.receiver(address)
		z := &tracev3.ZipkinConfig{
			CollectorCluster: cluster, CollectorEndpoint: path, CollectorHostname: address, CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
			TraceId_128Bit: r.Zipkin.TraceID128Bit != nil && *r.Zipkin.TraceID128Bit, SharedSpanContext: wrapperspb.Bool(r.Zipkin.SharedSpanContext == nil || *r.Zipkin.SharedSpanContext),
		}
		if r.Zipkin.APIVersion != nil && *r.Zipkin.APIVersion == "httpProto" {
			z.CollectorEndpointVersion = tracev3.ZipkinConfig_HTTP_PROTO
		}
		return z, err
	case r.Datadog != nil:
		address, _, _ := addressOf(r.Datadog.URL)
		cluster, err := b.receiver(address)
		if split := r.Datadog.SplitService; split != nil && *split {
			if about.inbound {
				service += inboundSuffix
			} else {
				service += outboundSuffix + about.service
			}
		}
		return &tracev3.DatadogConfig{CollectorCluster: cluster, ServiceName: service, CollectorHostname: address}, err
	default:
		return &tracev3.OpenTelemetryConfig{GrpcService: agentFor(r.OpenTelemetry.Endpoint), ServiceName: service}, nil // see logs.collector
	}
}
