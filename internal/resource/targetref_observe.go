package resource

import "encoding/json"

// MeshLogging sends access logs.
type MeshLogging struct {
	BothPolicy[LoggingConf, *LoggingConf]
}

// LoggingConf is the configuration of a MeshLogging.
type LoggingConf struct {
	Backends []LogReceiver `json:"backends,omitzero" doc:"Where access logs go; an empty list turns them off."`
}

// LogReceiver is a backend of the Mesh by name, or one described in place.
type LogReceiver struct {
	Name          *string     `json:"name,omitzero" notEmpty:"true" doc:"Name of a logging backend of the Mesh."`
	Type          *string     `json:"type,omitzero" enum:"Tcp|File|OpenTelemetry" doc:"Kind of a backend described in place."`
	TCP           *LogTCP     `json:"tcp,omitzero" doc:"Sends entries to a TCP address; with type Tcp."`
	File          *LogFile    `json:"file,omitzero" doc:"Writes entries to a file; with type File."`
	OpenTelemetry *LogOpenTel `json:"openTelemetry,omitzero" doc:"Sends entries to an OpenTelemetry collector; with type OpenTelemetry."`
}

// LogTCP is a TCP receiver of access logs.
type LogTCP struct {
	Address string     `json:"address" required:"true" notEmpty:"true" doc:"Host and port of the receiver."`
	Format  *LogFormat `json:"format,omitzero" doc:"Format of an entry."`
}

// LogFile is a file of access logs.
type LogFile struct {
	Path   string     `json:"path" required:"true" format:"path" doc:"Path on the dataplane's host."`
	Format *LogFormat `json:"format,omitzero" doc:"Format of an entry."`
}

// LogOpenTel is an OpenTelemetry receiver of access logs.
type LogOpenTel struct {
	Endpoint   string          `json:"endpoint" required:"true" notEmpty:"true" doc:"Host and port of the collector."`
	Attributes []LogKeyValue   `json:"attributes,omitzero" doc:"Attributes of an entry."`
	Body       json.RawMessage `json:"body,omitzero" doc:"Body of an entry."`
}

// LogFormat is the format of an entry.
type LogFormat struct {
	Type            string        `json:"type" required:"true" enum:"Plain|Json" doc:"Whether an entry is a line of text or a JSON object."`
	Plain           *string       `json:"plain,omitzero" doc:"The line, with placeholders such as %START_TIME%; with type Plain."`
	JSON            []LogKeyValue `json:"json,omitzero" doc:"The members of the object, with placeholders; with type Json."`
	OmitEmptyValues *bool         `json:"omitEmptyValues,omitzero" doc:"Leaves out placeholders without a value."`
}

// LogKeyValue is a member of an entry.
type LogKeyValue struct {
	Key   string `json:"key" required:"true" doc:"Name of the member."`
	Value string `json:"value" required:"true" doc:"Its value, with placeholders."`
}

func (c *LoggingConf) check(at Path, r *Report) {
	for i, b := range c.Backends {
		path := at.Field("backends").Index(i)
		checkNamedOrTyped(path, b.Name, b.Type, r,
			typedMember{"Tcp", "tcp", b.TCP != nil}, typedMember{"File", "file", b.File != nil},
			typedMember{"OpenTelemetry", "openTelemetry", b.OpenTelemetry != nil})
		if b.TCP != nil {
			b.TCP.Format.check(path.Field("tcp").Field("format"), r)
		}
		if b.File != nil {
			b.File.Format.check(path.Field("file").Field("format"), r)
		}
	}
}

func (f *LogFormat) check(at Path, r *Report) {
	if f == nil {
		return
	}
	checkTypedMembers(at, f.Type, r, typedMember{"Plain", "plain", f.Plain != nil}, typedMember{"Json", "json", f.JSON != nil})
}

// typedMember is a member of an object that belongs to one value of its type.
type typedMember struct {
	typ, name string
	written   bool
}

// checkTypedMembers refuses members that do not belong to the type, and the
// absence of the one that does.
func checkTypedMembers(at Path, typ string, r *Report, members ...typedMember) {
	for _, m := range members {
		switch {
		case m.typ == typ && !m.written:
			r.Errorf(at.Field(m.name), "is required with type %s", typ)
		case m.typ != typ && m.written:
			r.Errorf(at.Field(m.name), "belongs to type %s, not %s", m.typ, typ)
		}
	}
}

// checkNamedOrTyped refuses backends that are neither a name in the Mesh nor a
// whole description, or both.
func checkNamedOrTyped(at Path, name, typ *string, r *Report, members ...typedMember) {
	if checkOneOf(at, r, choice{"name", name != nil}, choice{"type", typ != nil}); name != nil && typ != nil {
		return
	}
	switch {
	case name != nil:
		for _, m := range members {
			if m.written {
				r.Errorf(at.Field(m.name), "belongs to type %s; a backend of the Mesh is named without more", m.typ)
			}
		}
	case typ != nil:
		checkTypedMembers(at, *typ, r, members...)
	}
}

// BackendRefs implements BackendReferrer.
func (p *MeshLogging) BackendRefs() []BackendRef {
	var refs []BackendRef
	list := func(at Path, items []Item[LoggingConf]) {
		for i := range items {
			conf, path := items[i].conf(at.Index(i))
			if conf == nil {
				continue
			}
			for j, b := range conf.Backends {
				refs = appendBackend(refs, path.Field("backends").Index(j), b.Name, LoggingBackend)
			}
		}
	}
	for at, place := range p.places {
		list(at.Field("to"), place.To)
		list(at.Field("from"), place.From)
	}
	return refs
}

func appendBackend(refs []BackendRef, at Path, name *string, use BackendUse) []BackendRef {
	if name == nil {
		return refs
	}
	return append(refs, BackendRef{Path: at.Field("name"), Use: use, Name: *name})
}

// MeshTracing sends traces.
type MeshTracing struct {
	OwnPolicy[TracingConf, *TracingConf]
}

// TracingConf is the configuration of a MeshTracing.
type TracingConf struct {
	Backends []TraceReceiver `json:"backends,omitzero" doc:"Where spans go; an empty list turns tracing off."`
	Sampling *TraceSampling  `json:"sampling,omitzero" doc:"Which requests are traced."`
	Tags     []TraceTag      `json:"tags,omitzero" doc:"Tags to put on spans."`
}

// TraceReceiver is a backend of the Mesh by name, or one described in place.
type TraceReceiver struct {
	Name          *string       `json:"name,omitzero" notEmpty:"true" doc:"Name of a tracing backend of the Mesh."`
	Type          *string       `json:"type,omitzero" enum:"Zipkin|Datadog|OpenTelemetry" doc:"Kind of a backend described in place."`
	Zipkin        *TraceZipkin  `json:"zipkin,omitzero" doc:"Sends spans to Zipkin; with type Zipkin."`
	Datadog       *TraceDatadog `json:"datadog,omitzero" doc:"Sends spans to a Datadog agent; with type Datadog."`
	OpenTelemetry *TraceOpenTel `json:"openTelemetry,omitzero" doc:"Sends spans to an OpenTelemetry collector; with type OpenTelemetry."`
}

// TraceZipkin is a Zipkin receiver.
type TraceZipkin struct {
	URL               string  `json:"url" required:"true" doc:"Address of the collector."`
	TraceID128Bit     *bool   `json:"traceId128bit,omitzero" doc:"Makes trace ids 128 bits long; false when absent."`
	APIVersion        *string `json:"apiVersion,omitzero" enum:"httpJson|httpProto" doc:"Encoding of spans; httpJson when absent."`
	SharedSpanContext *bool   `json:"sharedSpanContext,omitzero" doc:"Client and server share one span; true when absent."`
}

// TraceDatadog is a Datadog agent.
type TraceDatadog struct {
	URL          string `json:"url" required:"true" doc:"Address of the agent."`
	SplitService *bool  `json:"splitService,omitzero" doc:"Reports inbound and outbound traffic as services of their own; false when absent."`
}

// TraceOpenTel is an OpenTelemetry receiver.
type TraceOpenTel struct {
	Endpoint string `json:"endpoint" required:"true" doc:"Host and port of the collector."`
}

// TraceSampling says which requests are traced.
type TraceSampling struct {
	Overall *Percentage `json:"overall,omitzero" doc:"Highest share of requests, from 0 to 100, that is traced in the end."`
	Client  *Percentage `json:"client,omitzero" doc:"Share of the requests whose client asks for it, from 0 to 100, that is traced."`
	Random  *Percentage `json:"random,omitzero" doc:"Share of all requests, from 0 to 100, that is traced at random."`
}

// TraceTag is a tag on spans.
type TraceTag struct {
	Name    string       `json:"name" required:"true" notEmpty:"true" doc:"Name of the tag."`
	Literal *string      `json:"literal,omitzero" doc:"Value of the tag."`
	Header  *TraceHeader `json:"header,omitzero" doc:"Header whose value is the value of the tag."`
}

// TraceHeader takes a tag's value from a header.
type TraceHeader struct {
	Name    string  `json:"name" required:"true" doc:"Name of the header."`
	Default *string `json:"default,omitzero" doc:"Value for requests without the header."`
}

func (c *TracingConf) check(at Path, r *Report) {
	for i, b := range c.Backends {
		checkNamedOrTyped(at.Field("backends").Index(i), b.Name, b.Type, r,
			typedMember{"Zipkin", "zipkin", b.Zipkin != nil}, typedMember{"Datadog", "datadog", b.Datadog != nil},
			typedMember{"OpenTelemetry", "openTelemetry", b.OpenTelemetry != nil})
	}
	for i, tag := range c.Tags {
		checkOneOf(at.Field("tags").Index(i), r, choice{"literal", tag.Literal != nil}, choice{"header", tag.Header != nil})
	}
}

func (c *TracingConf) backendRefs(refs []BackendRef, at Path) []BackendRef {
	for i, b := range c.Backends {
		refs = appendBackend(refs, at.Field("backends").Index(i), b.Name, TracingBackend)
	}
	return refs
}

// BackendRefs implements BackendReferrer.
func (p *MeshTracing) BackendRefs() []BackendRef { return ownBackends(&p.OwnPolicy) }

// referrerOf is a pointer to a configuration that may name backends.
type referrerOf[C any] interface {
	checkerOf[C]
	backendRefs(refs []BackendRef, at Path) []BackendRef
}

// ownBackends collects the references of a kind without items.
func ownBackends[C any, PC referrerOf[C]](p *OwnPolicy[C, PC]) []BackendRef {
	var refs []BackendRef
	if p.Conf != nil {
		refs = PC(p.Conf).backendRefs(refs, "conf")
	}
	if p.Default != nil {
		refs = PC(p.Default).backendRefs(refs, "default")
	}
	for name, block := range p.each {
		refs = PC(&block.Content).backendRefs(refs, Path(name))
	}
	return refs
}

// MeshMetrics exposes the metrics of dataplanes.
type MeshMetrics struct {
	OwnPolicy[MetricsConf, *MetricsConf]
}

// MetricsConf is the configuration of a MeshMetrics.
type MetricsConf struct {
	Sidecar      *MetricsSidecar   `json:"sidecar,omitzero" doc:"Metrics of the proxy itself."`
	Applications []MetricsApp      `json:"applications,omitzero" doc:"Applications beside the proxy whose metrics are exposed with its own."`
	Backends     []MetricsReceiver `json:"backends,omitzero" doc:"Where metrics go; an empty list exposes none."`
}

// MetricsSidecar chooses among the proxy's metrics.
type MetricsSidecar struct {
	Profiles      *MetricsProfiles `json:"profiles,omitzero" doc:"Which metrics are exposed."`
	IncludeUnused *bool            `json:"includeUnused,omitzero" doc:"Exposes metrics that never changed too; false when absent."`
}

// MetricsProfiles choose metrics: profiles, less exclude, plus include.
type MetricsProfiles struct {
	AppendProfiles []MetricsProfile `json:"appendProfiles,omitzero" doc:"Named sets of metrics."`
	Exclude        []MetricsFilter  `json:"exclude,omitzero" doc:"Metrics to leave out of those sets."`
	Include        []MetricsFilter  `json:"include,omitzero" doc:"Metrics to add in any case."`
}

// MetricsProfile is a named set of metrics.
type MetricsProfile struct {
	Name string `json:"name" required:"true" enum:"All|Basic|None" doc:"Name of the set."`
}

// MetricsFilter selects metrics by name.
type MetricsFilter struct {
	Type  string `json:"type" required:"true" enum:"Regex|Prefix|Exact|Contains" doc:"How the name is compared."`
	Match string `json:"match" required:"true" doc:"What it is compared with."`
}

// MetricsApp is an application beside the proxy.
type MetricsApp struct {
	Name    *string `json:"name,omitzero" doc:"Name that its metrics carry."`
	Path    *string `json:"path,omitzero" format:"path" doc:"Path of its metrics; /metrics when absent."`
	Port    uint32  `json:"port" required:"true" min:"1" max:"65535" doc:"Port of its metrics."`
	Address *string `json:"address,omitzero" doc:"Address of its metrics; the dataplane's when absent."`
}

// MetricsReceiver is a backend of the Mesh by name, or one described in place.
type MetricsReceiver struct {
	Name          *string            `json:"name,omitzero" notEmpty:"true" doc:"Name of a metrics backend of the Mesh."`
	Type          *string            `json:"type,omitzero" enum:"Prometheus|OpenTelemetry" doc:"Kind of a backend described in place."`
	Prometheus    *MetricsPrometheus `json:"prometheus,omitzero" doc:"Lets Prometheus read the metrics; with type Prometheus."`
	OpenTelemetry *MetricsOpenTel    `json:"openTelemetry,omitzero" doc:"Sends the metrics to an OpenTelemetry collector; with type OpenTelemetry."`
}

// MetricsPrometheus is an endpoint for Prometheus.
type MetricsPrometheus struct {
	ClientID *string     `json:"clientId,omitzero" doc:"Which Prometheus the endpoint is for."`
	Port     *uint32     `json:"port,omitzero" min:"1" max:"65535" doc:"Port of the endpoint; 5670 when absent."`
	Path     *string     `json:"path,omitzero" format:"path" doc:"Path of the endpoint; /metrics when absent."`
	TLS      *MetricsTLS `json:"tls,omitzero" doc:"TLS of the endpoint."`
}

// MetricsTLS is the TLS of an endpoint.
type MetricsTLS struct {
	Mode string `json:"mode" required:"true" enum:"Disabled|ProvidedTLS|ActiveMTLSBackend" doc:"Whose certificates are used, if any."`
}

// MetricsOpenTel is an OpenTelemetry receiver.
type MetricsOpenTel struct {
	Endpoint        string    `json:"endpoint" required:"true" doc:"Host and port of the collector."`
	RefreshInterval *Duration `json:"refreshInterval,omitzero" above:"0s" doc:"Time between two reports; 60s when absent."`
}

func (c *MetricsConf) check(at Path, r *Report) {
	if c.Sidecar != nil && c.Sidecar.Profiles != nil {
		profiles := at.Field("sidecar").Field("profiles")
		checkMetricsFilters(profiles.Field("exclude"), c.Sidecar.Profiles.Exclude, r)
		checkMetricsFilters(profiles.Field("include"), c.Sidecar.Profiles.Include, r)
	}
	for i, b := range c.Backends {
		checkNamedOrTyped(at.Field("backends").Index(i), b.Name, b.Type, r,
			typedMember{"Prometheus", "prometheus", b.Prometheus != nil},
			typedMember{"OpenTelemetry", "openTelemetry", b.OpenTelemetry != nil})
	}
}

func checkMetricsFilters(at Path, filters []MetricsFilter, r *Report) {
	for i, f := range filters {
		if f.Type == "Regex" {
			checkRegex(at.Index(i).Field("match"), f.Match, r)
		}
	}
}

func (c *MetricsConf) backendRefs(refs []BackendRef, at Path) []BackendRef {
	for i, b := range c.Backends {
		refs = appendBackend(refs, at.Field("backends").Index(i), b.Name, MetricsBackend)
	}
	return refs
}

// BackendRefs implements BackendReferrer.
func (p *MeshMetrics) BackendRefs() []BackendRef { return ownBackends(&p.OwnPolicy) }
