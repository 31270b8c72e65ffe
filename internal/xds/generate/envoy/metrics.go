package envoy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

const (
	// metricsPort and metricsPath are where metrics are read if nothing else is written.
	metricsPort, metricsPath = 5670, "/metrics"
	// maxMetricsPath bounds the path, in bytes.
	maxMetricsPath = 1 << 10
	// maxApplications bounds the applications beside a dataplane that are asked for metrics.
	maxApplications = 16
	// maxMetricsSettings bounds what an agent is told of metrics, in bytes: Envoy takes no
	// header that is longer.
	maxMetricsSettings = 16 << 10
	// maxReaders bounds those who read the metrics of a dataplane at the same time.
	maxReaders = 8
	// reading bounds an answer with metrics, and asking the headers of who asks.
	reading, asking = 30 * time.Second, 10 * time.Second
	// The names that begin the listeners of metrics, that of the cluster of the agent, and
	// the one that begins those of the clusters by which it is told to send metrics.
	metricsListener, metricsCluster, collectorCluster = "metrics_", "metrics", "metrics_to_"
	// maxCollectors bounds the collectors that the metrics of a dataplane are sent to.
	maxCollectors = 8
	// shortestReport is the shortest time between two reports to a collector, and report the
	// one if none is written.
	shortestReport, report = time.Second, time.Minute
)

// exposed is an endpoint at which metrics are read.
type exposed struct {
	place
	path string
	// mutual is whether mutual TLS is demanded.
	mutual  bool
	origins []xds.Origin
	// filter and unused are those of xds.MetricsSettings.
	filter string
	unused bool
}

// collected is a collector that metrics are sent to.
type collected struct {
	// at is HOST:PORT, and every the time between two reports.
	at      string
	every   time.Duration
	origins []xds.Origin
}

// Unexposed is a part of what is written about metrics that has no effect.
type Unexposed struct {
	// Source has it in Field, a JSON pointer inside of what it configures.
	Source resource.Key
	Field  string
	// Why is a sentence about the reason.
	Why string
}

// exposure is which metrics of a dataplane are read, and where.
type exposure struct {
	settings   xds.MetricsSettings
	endpoints  []exposed
	collectors []collected
	unexposed  []Unexposed
	// origins are those of the settings, with no path.
	origins []xds.Origin
}

// metricsConf is the conf of a metrics backend of a Mesh.
type metricsConf struct {
	Port     *uint32
	Path     *string
	SkipMTLS bool
	TLS      *struct{ Mode string }
	Envoy    struct {
		FilterRegex string
		UsedOnly    *bool
	}
	Aggregate []struct {
		resource.MetricsApp
		Enabled *bool
	}
}

// exposes is what a dataplane's policies, and its mesh, say about its metrics.
func exposes(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule) (*exposure, error) {
	e := &exposure{}
	var c *generate.Conf
	for i := range rules {
		if r := &rules[i]; r.Attachment.Type == policy.OnDataplane && len(r.Steps) > 0 && r.Kind == resource.KindMeshMetrics {
			c = generate.NewConf(r)
		}
	}
	var all resource.MeshMetricsConf
	if settings.Metrics != "" {
		if err := json.Unmarshal([]byte(settings.Metrics), &all); err != nil {
			return nil, fmt.Errorf("metrics of mesh %s: %w", mesh, err)
		}
	}
	var receivers []resource.MetricsReceiver
	var from func(i int) []xds.Origin
	written := false
	if c != nil {
		var err error
		if written, err = c.Decode("/backends", &receivers); err != nil {
			return nil, err
		}
		if _, err := c.Decode("/sidecar", &e.settings.Sidecar); err != nil {
			return nil, err
		}
		if _, err := c.Decode("/applications", &e.settings.Applications); err != nil {
			return nil, err
		}
		e.origins = append(c.Origin("", "/sidecar"), c.Origin("", "/applications")...)
		from = func(i int) []xds.Origin { return c.Origin("", policy.Pointer("/backends/"+strconv.Itoa(i))) }
	}
	if !written {
		if all.EnabledBackend == "" {
			return e, nil
		}
		receivers = []resource.MetricsReceiver{{Name: &all.EnabledBackend}}
		from = func(int) []xds.Origin { return nil }
	}
	for i := range receivers {
		e.receiver(mesh, settings, spec, &all, &receivers[i], from(i), c == nil || !c.Has("/applications"))
	}
	return e, e.bounded(spec)
}

// receiver adds the endpoint of one backend. A backend of the Mesh brings its applications
// with it where none are written.
func (e *exposure) receiver(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, all *resource.MeshMetricsConf, r *resource.MetricsReceiver, from []xds.Origin, applications bool) {
	refuse := func(why string) {
		e.unexposed = append(e.unexposed, Unexposed{from[0].Source, from[0].Field, why})
	}
	inMesh := func(field string) xds.Origin {
		return xds.Origin{Source: resource.Key{Kind: resource.KindMesh, Name: string(mesh)}, Field: field}
	}
	if len(from) == 0 {
		from = []xds.Origin{inMesh("/metrics/enabledBackend")}
	}
	if r.OpenTelemetry != nil {
		e.collector(r.OpenTelemetry, from, refuse)
		return
	}
	endpoint, mode := r.Prometheus, ""
	var chosen exposed
	if r.Name != nil {
		i := slices.IndexFunc(all.Backends, func(b resource.Backend) bool { return b.Name == *r.Name })
		if i < 0 {
			refuse("the mesh has no such metrics backend")
			return
		}
		b := &all.Backends[i]
		field := "/metrics/backends/" + strconv.Itoa(i)
		from = append(slices.Clip(from), inMesh(field))
		var conf metricsConf
		if len(b.Conf) > 0 {
			if err := json.Unmarshal(b.Conf, &conf); err != nil {
				refuse("its conf is not that of a backend of type prometheus: no metrics are exposed")
				return
			}
		}
		if b.Type != "prometheus" {
			refuse("no metrics are exposed with type " + b.Type + ": use prometheus")
			return
		}
		if _, err := regexp.Compile(conf.Envoy.FilterRegex); err != nil {
			refuse("envoy.filterRegex is no regular expression: no metrics are exposed")
			return
		}
		chosen.filter, chosen.unused = conf.Envoy.FilterRegex, conf.Envoy.UsedOnly != nil && !*conf.Envoy.UsedOnly
		endpoint = &resource.MetricsPrometheus{Port: conf.Port, Path: conf.Path}
		switch {
		case conf.TLS != nil:
			mode = conf.TLS.Mode
		case settings.MTLS && !conf.SkipMTLS:
			mode = mutualMetrics
		}
		if applications && len(conf.Aggregate) > 0 {
			e.origins = append(e.origins, inMesh(field))
			for _, a := range conf.Aggregate {
				if a.Enabled == nil || *a.Enabled {
					e.settings.Applications = append(e.settings.Applications, a.MetricsApp)
				}
			}
		}
	} else if endpoint != nil && endpoint.TLS != nil {
		mode = endpoint.TLS.Mode
	}
	if endpoint == nil {
		return // of another type, which the table of fields tells
	}
	made := exposed{place: place{spec.Networking.Address, metricsPort}, path: metricsPath, origins: from, filter: chosen.filter, unused: chosen.unused}
	if endpoint.Port != nil {
		made.port = *endpoint.Port
	}
	if endpoint.Path != nil {
		made.path = *endpoint.Path
	}
	mutual, why := demands(settings, mode)
	if made.mutual = mutual; why == "" {
		why = e.obstacle(spec, &made)
	}
	if why != "" {
		refuse(why)
		return
	}
	e.endpoints = append(e.endpoints, made)
}

// collector adds a collector that metrics are sent to.
func (e *exposure) collector(r *resource.MetricsOpenTel, from []xds.Origin, refuse func(why string)) {
	host, port, ok := hostPort(r.Endpoint, otelPort)
	if !ok {
		refuse("the endpoint of a collector is HOST:PORT, or HOST: no metrics are sent to it")
		return
	}
	made := collected{at: net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10)), every: report, origins: from}
	if r.RefreshInterval != nil {
		made.every = max(r.RefreshInterval.Value(), shortestReport)
	}
	switch {
	case slices.ContainsFunc(e.collectors, func(other collected) bool { return other.at == made.at }):
		refuse("a backend before it has the same endpoint")
	case len(e.collectors) == maxCollectors:
		refuse(fmt.Sprintf("the metrics of a dataplane are sent to the first %d collectors", maxCollectors))
	default:
		e.collectors = append(e.collectors, made)
	}
}

// readAt returns the settings with which an endpoint answers.
func (e *exposure) readAt(x *exposed) *xds.MetricsSettings {
	s := e.settings
	s.Filter, s.Unused = x.filter, x.unused
	return &s
}

// sentTo returns the settings with which metrics are sent to a collector.
func (e *exposure) sentTo(c *collected) *xds.MetricsSettings {
	s := e.settings
	s.Collector = c.at
	return &s
}

// mutualMetrics is the mode of TLS in which the certificates of the mesh are used. Modes
// of a Mesh are not written as those of policies are.
const mutualMetrics = "ActiveMTLSBackend"

// demands tells whether a mode of TLS demands mutual TLS, or why it cannot be had.
func demands(settings world.Mesh, mode string) (mutual bool, why string) {
	switch {
	case mode == "" || strings.EqualFold(mode, "Disabled"):
		return false, ""
	case !strings.EqualFold(mode, mutualMetrics):
		return false, "there is no certificate for TLS mode " + mode + ", so that no metrics are exposed: use ActiveMTLSBackend, or Disabled"
	case !settings.Certified():
		return false, "dataplanes of the mesh have no certificates for it, so that no metrics are exposed: enable mutual TLS with a backend of type builtin"
	}
	return true, ""
}

// obstacle says why an endpoint cannot be had; empty if it can.
func (e *exposure) obstacle(spec *resource.Dataplane, x *exposed) string {
	if _, err := netip.ParseAddr(x.address); err != nil {
		return "Envoy listens on IP addresses, and " + x.address + " is a host name: write the IP address in networking.address"
	}
	if x.port == 0 || x.port > 65535 {
		return fmt.Sprintf("%d is no port: use one from 1 to 65535", x.port)
	}
	if !strings.HasPrefix(x.path, "/") || len(x.path) > maxMetricsPath || strings.ContainsFunc(x.path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '?' || r == '#' }) {
		return fmt.Sprintf("the path of metrics begins with a slash, has printable characters of ASCII but ? and #, and at most %d bytes", maxMetricsPath)
	}
	all := listenersOf(spec)
	used := slices.ContainsFunc(all.inbounds, func(in inbound) bool { return in.place == x.place }) ||
		slices.ContainsFunc(all.outbounds, func(out outbound) bool { return out.place == x.place })
	if used {
		return fmt.Sprintf("an inbound or outbound of the dataplane listens at port %d: use another port for metrics", x.port)
	}
	if slices.ContainsFunc(e.endpoints, func(other exposed) bool { return other.port == x.port }) {
		return fmt.Sprintf("a backend before it has port %d: use another port", x.port)
	}
	return ""
}

// bounded bounds what an agent is told.
func (e *exposure) bounded(spec *resource.Dataplane) error {
	refuse := func(why string) {
		for _, o := range e.origins {
			e.unexposed = append(e.unexposed, Unexposed{o.Source, o.Field, why})
		}
	}
	if n := len(e.settings.Applications); n > maxApplications {
		refuse(fmt.Sprintf("of the applications beside a dataplane the metrics of the first %d are exposed, and there are %d", maxApplications, n))
		e.settings.Applications = slices.Clip(e.settings.Applications[:maxApplications])
	}
	for i := range e.settings.Applications {
		if a := &e.settings.Applications[i]; a.Address == nil || *a.Address == "" {
			a.Address = &spec.Networking.Address
		}
	}
	longest := 0
	for i := range e.endpoints {
		text, err := headerOf(e.readAt(&e.endpoints[i]))
		if err != nil {
			return err
		}
		longest = max(longest, len(text))
	}
	for i := range e.collectors {
		text, err := headerOf(e.sentTo(&e.collectors[i]))
		if err != nil {
			return err
		}
		longest = max(longest, len(text))
	}
	if longest > maxMetricsSettings {
		refuse(fmt.Sprintf("what is written about metrics takes %d bytes, and Envoy passes on at most %d: no metrics are exposed; write fewer or shorter filters", longest, maxMetricsSettings))
		e.endpoints, e.collectors = nil, nil
	}
	return nil
}

// headerOf spells settings as JSON in ASCII, as a header in which Envoy replaces nothing.
func headerOf(s *xds.MetricsSettings) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode what is exposed of metrics: %w", err)
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return literal(b.String()), nil
}

// metrics adds the listeners at which the metrics of a dataplane are read, and the cluster
// of the agent that answers. Only who has a certificate of the mesh reads what demands
// mutual TLS.
func (b *builder) metrics(spec *resource.Dataplane, rules []policy.Rule) error {
	e, err := exposes(b.Mesh, b.settings, spec, rules)
	if err != nil {
		return err
	}
	for i := range e.collectors {
		if err := b.collected(&e.collectors[i], e.sentTo(&e.collectors[i]), e.origins); err != nil {
			return fmt.Errorf("metrics for %s: %w", e.collectors[i].at, err)
		}
	}
	if len(e.endpoints) == 0 {
		return nil
	}
	few := wrapperspb.UInt32(maxReaders)
	if err := b.Add(&clusterv3.Cluster{
		Name: metricsCluster, ConnectTimeout: durationpb.New(connecting),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: few, MaxPendingRequests: few, MaxRequests: few,
		}}},
		LoadAssignment: theAgent(metricsCluster),
	}); err != nil {
		return err
	}
	for i := range e.endpoints {
		text, err := headerOf(e.readAt(&e.endpoints[i]))
		if err != nil {
			return err
		}
		if err := b.exposed(&e.endpoints[i], text, e.origins); err != nil {
			return fmt.Errorf("metrics at port %d: %w", e.endpoints[i].port, err)
		}
	}
	return nil
}

// theAgent is the endpoint at which the agent answers for metrics.
func theAgent(cluster string) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: xds.EnvoyMetrics}}},
		}}}},
	}}}
}

// collected adds the cluster by which the agent is told to send metrics to a collector: at
// each check of its health, which says how. The agent answers at once, so that Envoy does not
// wait for a collector before it serves.
func (b *builder) collected(c *collected, settings *xds.MetricsSettings, from []xds.Origin) error {
	text, err := headerOf(settings)
	if err != nil {
		return err
	}
	every, once := durationpb.New(c.every), wrapperspb.UInt32(1)
	name := collectorCluster + world.Label(c.at) + "_" + world.Hash(c.at)
	return b.Add(&clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connecting),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment:       theAgent(name),
		HealthChecks: []*corev3.HealthCheck{{
			Timeout: durationpb.New(min(c.every, asking)), Interval: every, NoTrafficInterval: every, NoTrafficHealthyInterval: every,
			UnhealthyThreshold: once, HealthyThreshold: once, ReuseConnection: wrapperspb.Bool(false),
			HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
				Host: "agent", Path: "/",
				RequestHeadersToAdd: []*corev3.HeaderValueOption{{
					Header:       &corev3.HeaderValue{Key: xds.MetricsHeader, Value: text},
					AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
				}},
			}},
		}},
	}, slices.Concat(generate.AppendAt(nil, "/healthChecks/0", c.origins), generate.AppendAt(nil, "/healthChecks/0/httpHealthCheck/requestHeadersToAdd/0", from))...)
}

// exposed adds the listener of one endpoint. No other process can share its port.
func (b *builder) exposed(x *exposed, settings string, from []xds.Origin) error {
	name := metricsListener + strconv.FormatUint(uint64(x.port), 10)
	router, err := xds.Pack(&routerv3.Router{})
	if err != nil {
		return err
	}
	method := &routev3.HeaderMatcher{Name: ":method", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_Exact{Exact: http.MethodGet},
	}}}
	host := &routev3.VirtualHost{Name: name, Domains: []string{"*"}, Routes: []*routev3.Route{{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: x.path}, Headers: []*routev3.HeaderMatcher{method}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: metricsCluster}, Timeout: durationpb.New(reading), IdleTimeout: durationpb.New(reading),
		}},
		RequestHeadersToAdd: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: xds.MetricsHeader, Value: settings},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	}}}
	m := &httpv3.HttpConnectionManager{
		StatPrefix: name, RequestHeadersTimeout: durationpb.New(asking), StreamIdleTimeout: durationpb.New(reading),
		RouteSpecifier: &httpv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: name, ValidateClusters: wrapperspb.Bool(false), VirtualHosts: []*routev3.VirtualHost{host},
		}},
		HttpFilters: []*httpv3.HttpFilter{{Name: "router", ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: router}}},
	}
	const routes = inFilter + "/routeConfig/virtualHosts/0/routes/0"
	origins := slices.Concat(generate.AppendAt(nil, "/address", x.origins), generate.AppendAt(nil, routes+"/match", x.origins), generate.AppendAt(nil, routes+"/requestHeadersToAdd/0", from))
	chain := &listenerv3.FilterChain{}
	if x.mutual {
		everyone, err := identity.Pattern(b.Mesh, nil)
		if err != nil {
			return err
		}
		if chain.TransportSocket, err = serverSocket(world.HTTP, []string{everyone}); err != nil {
			return err
		}
		open := []permission.List{{Allow: true}}
		if err := guards(m, len(open)); err != nil {
			return err
		}
		var config map[string]*anypb.Any
		if config, _, err = overrides(b.Mesh, b.settings.Revoked, open, nil, nil); err != nil {
			return err
		}
		host.TypedPerFilterConfig = config
		origins = append(origins, generate.MeshOrigin(b.Mesh, "/filterChains/0/transportSocket"))
	}
	filter, err := filterOf(m)
	if err != nil {
		return err
	}
	chain.Filters = []*listenerv3.Filter{filter}
	return b.Add(&listenerv3.Listener{
		Name: name, Address: generate.Socket(x.address, x.port), EnableReusePort: wrapperspb.Bool(false), FilterChains: []*listenerv3.FilterChain{chain},
	}, origins...)
}

// NotExposed lists what of the metrics of a dataplane is not exposed as written, and why.
func NotExposed(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule) ([]Unexposed, error) {
	e, err := exposes(mesh, settings, spec, rules)
	if err != nil {
		return nil, err
	}
	return e.unexposed, nil
}
