package envoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	otlpv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

const (
	// inFilter is the place of the one filter of a listener.
	inFilter = "/filterChains/0/filters/0/typedConfig"
	// maxLogEntries bounds the entries of from of an inbound, and maxLogConditions the
	// conditions that they come to, in bytes: each is one on the callers of all before it,
	// for each of its receivers.
	maxLogEntries, maxLogConditions = 64, 64 << 10
	// otelPort is the port of an OpenTelemetry collector where none is written.
	otelPort = 4317
	// sendLogs is how long an entry waits for others before it is sent.
	sendLogs = time.Second
)

// logs are the access loggers of a listener.
type logs struct {
	*builder
	about *listened
	list  []*accesslogv3.AccessLog
	// origins are for the listener.
	origins []xds.Origin
}

// listened is what the listener of an attachment is about.
func (b *builder) listened(a *policy.Attachment) *listened {
	l := &listened{mesh: string(b.Mesh), service: a.Service, inbound: a.Type == policy.OnInbound, caller: b.caller, protocol: b.own}
	if l.inbound {
		l.protocol = world.ProtocolOf(a.Tags)
	}
	return l
}

// outboundLogs are those of an outbound: for a route that has an entry of its own that
// one holds.
func (b *builder) outboundLogs(about *listened, rules generate.Rules) (*logs, error) {
	l := &logs{builder: b, about: about}
	own := map[string]bool{}
	for i := range rules {
		if r := &rules[i]; r.Kind == resource.KindMeshLogging && r.Attachment.Route != "" && len(r.Steps) > 0 {
			own[r.Attachment.Route] = true
		}
	}
	others := ""
	for _, route := range slices.Sorted(maps.Keys(own)) {
		is := "has(xds.route_name) && xds.route_name == " + strconv.Quote(route)
		if err := l.add(rules.On(route, resource.KindTrafficLog, resource.KindMeshLogging), is); err != nil {
			return nil, err
		}
		others = and(others, "!("+is+")")
	}
	return l, l.add(rules.On("", resource.KindTrafficLog, resource.KindMeshLogging), others)
}

// inboundLogs are those of an inbound: for a caller, the first entry of from holds that
// names receivers and matches it. Who calls is known by its certificate.
func (b *builder) inboundLogs(about *listened, rules generate.Rules, dataplane string, port uint32) (*logs, error) {
	l := &logs{builder: b, about: about}
	for i := range rules {
		r := &rules[i]
		if r.Kind != resource.KindMeshLogging || len(r.Steps) == 0 {
			continue
		}
		if !r.PerCaller {
			if err := l.add(generate.NewConf(r), ""); err != nil {
				return nil, err
			}
			continue
		}
		if err := l.perCaller(r); err != nil {
			return nil, err
		}
	}
	if b.settings.MTLS {
		return l, l.denials(dataplane, port)
	}
	return l, nil
}

// perCaller adds the loggers of a rule that differs per caller.
func (l *logs) perCaller(r *policy.Rule) error {
	held, _, err := l.conditions(r)
	if err != nil {
		return err
	}
	for i := range held {
		if err := l.add(held[i].conf, held[i].callers); err != nil {
			return err
		}
	}
	return nil
}

// held is an entry of from that decides about callers that meet a condition.
type held struct {
	conf    *generate.Conf
	callers string
}

// conditions lists the entries of a rule that some caller may meet, and the policies of
// those that are too many.
func (b *builder) conditions(r *policy.Rule) (list []held, left []resource.Key, err error) {
	before, bytes := "", 0
	entries := deciding(r.Steps)
	for i := range entries {
		e := &entries[i]
		who, err := b.callersOf(e)
		if err != nil {
			return nil, nil, err
		}
		one := *r
		one.Steps = []policy.Step{*e.step}
		one.Steps[0].Op, one.Steps[0].Match = policy.Fill, nil
		conf := generate.NewConf(&one)
		condition := and(before, who)
		var receivers []any
		if _, err := conf.Decode("/backends", &receivers); err != nil {
			return nil, nil, err
		}
		if bytes += len(condition) * len(receivers); i == maxLogEntries || bytes > maxLogConditions {
			for _, e := range entries[i:] {
				if !slices.Contains(left, e.step.Origin) {
					left = append(left, e.step.Origin)
				}
			}
			return list, left, nil
		}
		if who == never {
			continue
		}
		list = append(list, held{conf, condition})
		if who == "" {
			break
		}
		before = and(before, negated(who))
	}
	return list, nil, nil
}

// callersOf is the condition on the callers that an entry decides about.
func (b *builder) callersOf(e *entry) (string, error) {
	who, err := b.callersMatching(e.match)
	if err != nil {
		return "", err
	}
	for _, except := range e.except {
		not, err := b.callersMatching(except)
		if err != nil {
			return "", err
		}
		who = and(who, negated(not))
	}
	return who, nil
}

// never is a condition that nothing meets.
const never = "false"

func and(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " && " + b
}

func negated(condition string) string {
	if condition == "" {
		return never
	}
	return "!(" + condition + ")"
}

// callersMatching is the condition on the callers that a selector matches; empty for every
// caller, and never where it is not known who calls.
func (b *builder) callersMatching(s resource.TagSelector) (string, error) {
	if len(s) == 0 {
		return "", nil
	}
	if !b.settings.MTLS {
		return never, nil
	}
	regex, err := identity.Pattern(b.Mesh, s)
	if err != nil {
		return "", err
	}
	return "(has(connection.uri_san_peer_certificate) && connection.uri_san_peer_certificate.matches(" + strconv.Quote(regex) + "))", nil
}

// entry is a step that decides about the callers that match matches and none of except.
type entry struct {
	match  resource.TagSelector
	except []resource.TagSelector
	step   *policy.Step
}

// deciding lists the steps that name receivers, in the order in which the first that
// matches a caller decides, as the merge of the steps does (§4.7).
func deciding(steps []policy.Step) []entry {
	var list []entry
	var before []resource.TagSelector
	for i := range steps {
		s := &steps[i]
		_, decides := s.Conf["backends"]
		e := entry{match: s.Match, step: s}
		switch {
		case !decides:
			if s.Op == policy.Replace {
				for j := range list {
					list[j].except = append(slices.Clip(list[j].except), s.Match)
				}
			}
			before = append(before, s.Match)
		case s.Op == policy.Fill:
			list = append(list, e)
		case s.Op == policy.Unless:
			e.except = slices.Clone(before)
			list = append(list, e)
		default:
			list = slices.Insert(list, 0, e)
		}
	}
	return list
}

// add adds the loggers that a configuration names, for what meets a condition, or for
// everything.
func (l *logs) add(c *generate.Conf, condition string) error {
	if c == nil {
		return nil
	}
	receivers, origins, err := l.receivers(c)
	if err != nil {
		return err
	}
	for i := range receivers {
		made, err := l.logger(&receivers[i])
		if err != nil {
			return err
		}
		if made == nil {
			continue
		}
		if err := l.append(made, condition); err != nil {
			return err
		}
		l.origins = generate.AppendAt(l.origins, inFilter+"/accessLog/"+strconv.Itoa(len(l.list)-1), origins[i])
	}
	return nil
}

// append adds a logger.
func (l *logs) append(config proto.Message, condition string) error {
	packed, err := xds.Pack(config)
	if err != nil {
		return err
	}
	made := &accesslogv3.AccessLog{
		Name: string(config.ProtoReflect().Descriptor().FullName()), ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: packed},
	}
	if condition != "" {
		packed, err := xds.Pack(&celv3.ExpressionFilter{Expression: condition})
		if err != nil {
			return err
		}
		made.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: "expression", ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: packed},
		}}}
	}
	l.list = append(l.list, made)
	return nil
}

// receivers are those that a configuration names, each described in place, and where
// each is from.
func (l *logs) receivers(c *generate.Conf) (list []resource.LogReceiver, origins [][]xds.Origin, err error) {
	if c.Kind == resource.KindTrafficLog {
		name := textAt(c, "/backend", "")
		if r, from := l.named(name); r != nil {
			list = append(list, *r)
			origins = append(origins, append(c.Origin("", "/backend"), from...))
		}
		return list, origins, nil
	}
	var written []resource.LogReceiver
	if _, err := c.Decode("/backends", &written); err != nil {
		return nil, nil, err
	}
	for i := range written {
		from := c.Origin("", policy.Pointer("/backends/"+strconv.Itoa(i)))
		r := &written[i]
		if r.Name != nil {
			var more []xds.Origin
			if r, more = l.named(*r.Name); r == nil {
				continue
			}
			from = append(from, more...)
		}
		list, origins = append(list, *r), append(origins, from)
	}
	return list, origins, nil
}

// named returns a backend of the Mesh as it would be described in place; the default
// backend for no name. nil: there is none, or it has not what it needs.
func (l *logs) named(name string) (*resource.LogReceiver, []xds.Origin) {
	b, i := backendOf(l.settings.Logging, name)
	if b == nil {
		return nil, nil
	}
	var conf struct{ Path, Address string }
	if json.Unmarshal(b.Conf, &conf) != nil {
		return nil, nil
	}
	var format *resource.LogFormat
	if b.Format != "" {
		format = &resource.LogFormat{Type: "Plain", Plain: &b.Format}
	}
	from := []xds.Origin{{Source: resource.Key{Kind: resource.KindMesh, Name: string(l.Mesh)}, Field: "/logging/backends/" + strconv.Itoa(i)}}
	switch b.Type {
	case "file":
		return &resource.LogReceiver{File: &resource.LogFile{Path: conf.Path, Format: format}}, from
	case "tcp":
		return &resource.LogReceiver{TCP: &resource.LogTCP{Address: conf.Address, Format: format}}, from
	}
	return nil, nil
}

// backendOf finds a backend among those of a Mesh, which are JSON, with its index; the
// default one for no name. nil for none.
func backendOf(text, name string) (*resource.Backend, int) {
	var all resource.MeshBackends
	if text == "" || json.Unmarshal([]byte(text), &all) != nil {
		return nil, 0
	}
	if name == "" {
		name = all.DefaultBackend
	}
	for i := range all.Backends {
		if name != "" && all.Backends[i].Name == name {
			return &all.Backends[i], i
		}
	}
	return nil, 0
}

// logger is the configuration that sends entries to a receiver; nil for one that cannot
// be used.
func (l *logs) logger(r *resource.LogReceiver) (proto.Message, error) {
	switch {
	case r.File != nil && strings.HasPrefix(r.File.Path, "/"):
		return &filev3.FileAccessLog{Path: r.File.Path, AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: l.format(r.File.Format)}}, nil
	case r.TCP != nil:
		if _, _, ok := hostPort(r.TCP.Address, 0); !ok {
			return nil, nil
		}
		return l.relayed(r.TCP), nil
	case r.OpenTelemetry != nil:
		return l.collector(r.OpenTelemetry)
	}
	return nil, nil
}

// format is that of entries in files.
func (l *logs) format(f *resource.LogFormat) *corev3.SubstitutionFormatString {
	s := &corev3.SubstitutionFormatString{OmitEmptyValues: omits(f)}
	if f != nil && f.Type == "Json" {
		object := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for _, m := range f.JSON {
			object.Fields[m.Key] = structpb.NewStringValue(l.about.expand(m.Value))
		}
		s.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: object}
		return s
	}
	line := l.line(f)
	if !strings.HasSuffix(line, "\n") {
		line += "\n"
	}
	s.Format = &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: line}}}
	return s
}

func omits(f *resource.LogFormat) bool {
	return f != nil && f.OmitEmptyValues != nil && *f.OmitEmptyValues
}

// line is the format of an entry that is a line.
func (l *logs) line(f *resource.LogFormat) string {
	if f != nil && f.Plain != nil {
		return l.about.expand(*f.Plain)
	}
	return l.about.plain()
}

func textValue(s string) *otlpv1.AnyValue {
	return &otlpv1.AnyValue{Value: &otlpv1.AnyValue_StringValue{StringValue: s}}
}

// pairs are members with placeholders.
func (l *logs) pairs(members []resource.LogKeyValue) *otlpv1.KeyValueList {
	list := &otlpv1.KeyValueList{}
	for _, m := range members {
		list.Values = append(list.Values, &otlpv1.KeyValue{Key: m.Key, Value: textValue(l.about.expand(m.Value))})
	}
	return list
}

// relayed sends entries to the agent, which passes them on as lines: Envoy itself sends
// none over TCP.
func (l *logs) relayed(r *resource.LogTCP) proto.Message {
	c := &otelv3.OpenTelemetryAccessLogConfig{
		GrpcService: grpcService(xds.AgentCluster), DisableBuiltinLabels: true, StatPrefix: "tcp.",
		BufferFlushInterval: durationpb.New(sendLogs),
		ResourceAttributes:  &otlpv1.KeyValueList{Values: []*otlpv1.KeyValue{{Key: xds.LogReceiver, Value: textValue(r.Address)}}},
	}
	if r.Format != nil && r.Format.Type == "Json" {
		if omits(r.Format) {
			c.ResourceAttributes.Values = append(c.ResourceAttributes.Values, &otlpv1.KeyValue{Key: xds.LogOmitsEmpty, Value: textValue("true")})
		}
		c.Body = &otlpv1.AnyValue{Value: &otlpv1.AnyValue_KvlistValue{KvlistValue: l.pairs(r.Format.JSON)}}
		return c
	}
	c.Body = textValue(strings.TrimSuffix(l.line(r.Format), "\n"))
	return c
}

// grpcService is a gRPC service in a cluster.
func grpcService(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster}}}
}

// agentFor is the agent that passes on what it is sent to a collector of OpenTelemetry at an
// address; nil if that is none.
func agentFor(address string) *corev3.GrpcService {
	host, port, ok := hostPort(address, otelPort)
	if !ok {
		return nil
	}
	agent := grpcService(xds.AgentCluster)
	agent.InitialMetadata = []*corev3.HeaderValue{{Key: xds.Collector, Value: net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))}}
	return agent
}

// collector sends entries to the agent, which passes them on to a collector of
// OpenTelemetry: Envoy sends what callers send as it came, and a collector refuses a message
// with a text that is no UTF-8, with the entries of all callers in it. nil if there is no
// such address.
func (l *logs) collector(r *resource.LogOpenTel) (proto.Message, error) {
	agent := agentFor(r.Endpoint)
	if agent == nil {
		return nil, nil
	}
	c := &otelv3.OpenTelemetryAccessLogConfig{
		GrpcService: agent, StatPrefix: "otel.", BufferFlushInterval: durationpb.New(sendLogs), Body: textValue(l.about.plain()),
	}
	if len(r.Attributes) > 0 {
		c.Attributes = l.pairs(r.Attributes)
	}
	if len(r.Body) > 0 {
		var err error
		if c.Body, err = l.body(r.Body); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// body is a body as it is written: what is no text in it becomes one, as Envoy takes
// texts, lists and objects only.
func (l *logs) body(written json.RawMessage) (*otlpv1.AnyValue, error) {
	decoder := json.NewDecoder(bytes.NewReader(written))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("read the body of a log entry: %w", err)
	}
	return l.anyValue(value), nil
}

func (l *logs) anyValue(value any) *otlpv1.AnyValue {
	switch v := value.(type) {
	case string:
		return textValue(l.about.expand(v))
	case []any:
		list := &otlpv1.ArrayValue{}
		for _, item := range v {
			list.Values = append(list.Values, l.anyValue(item))
		}
		return &otlpv1.AnyValue{Value: &otlpv1.AnyValue_ArrayValue{ArrayValue: list}}
	case map[string]any:
		list := &otlpv1.KeyValueList{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			list.Values = append(list.Values, &otlpv1.KeyValue{Key: key, Value: l.anyValue(v[key])})
		}
		return &otlpv1.AnyValue{Value: &otlpv1.AnyValue_KvlistValue{KvlistValue: list}}
	}
	return textValue(literal(fmt.Sprint(value)))
}

// denials logs those whom a permission denies, for `meridian why --log`.
func (l *logs) denials(dataplane string, port uint32) error {
	object := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for name, value := range map[string]string{
		"time": "%START_TIME%", "mesh": literal(l.about.mesh), "dataplane": literal(dataplane), "listener": "%LISTENER_NAME%",
		"caller": "%DOWNSTREAM_PEER_URI_SAN%", "address": "%DOWNSTREAM_REMOTE_ADDRESS%",
		"method": "%REQ(:METHOD)%", "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
		"details": "%RESPONSE_CODE_DETAILS%", "termination": "%CONNECTION_TERMINATION_DETAILS%",
	} {
		object.Fields[name] = structpb.NewStringValue(value)
	}
	object.Fields["port"] = structpb.NewNumberValue(float64(port))
	condition := `has(response.code_details) && response.code_details.startsWith("` + xds.DeniedDetails + `")`
	if l.about.protocol == world.TCP {
		condition = `has(connection.termination_details) && connection.termination_details.startsWith("` + xds.DeniedDetails + `")`
	}
	return l.append(&streamv3.StdoutAccessLog{AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: object}, OmitEmptyValues: true,
	}}}, condition)
}

// hostPort reads an address as HOST:PORT, or HOST with a port of its own kind, if that
// is not 0.
func hostPort(address string, otherwise uint32) (host string, port uint32, ok bool) {
	host, text, err := net.SplitHostPort(address)
	if err != nil && otherwise != 0 {
		host, text = strings.Trim(address, "[]"), strconv.FormatUint(uint64(otherwise), 10)
	} else if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/ \x00") {
		return "", 0, false
	}
	return host, uint32(n), true
}

// receiver makes the cluster of an address that something about requests is sent to,
// once; "" when it is no address.
func (b *builder) receiver(address string) (string, error) {
	host, port, ok := hostPort(address, 0)
	if !ok {
		return "", nil
	}
	at := net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
	name := "to_" + world.Label(at) + "_" + world.Hash(b.part, at)
	if b.receiving[name] {
		return name, nil
	}
	if b.receiving == nil {
		b.receiving = map[string]bool{}
	}
	b.receiving[name] = true
	c := &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connecting),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: generate.Socket(host, port),
			}}}},
		}}},
	}
	if _, err := netip.ParseAddr(host); err != nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	}
	if err := setProtocol(c, world.HTTP, nil); err != nil {
		return "", err
	}
	return name, b.Add(c)
}
