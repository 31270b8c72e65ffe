package resource

import "slices"

// MeshGateway configures the listeners of gateway dataplanes.
type MeshGateway struct {
	DataplaneMatch
	Tags Tags             `json:"tags,omitzero" doc:"Tags that all listeners have, besides the gateway's own."`
	Conf *MeshGatewayConf `json:"conf,omitzero" doc:"The listeners; a gateway without conf serves nothing yet."`
}

// MeshGatewayConf holds listeners.
type MeshGatewayConf struct {
	Listeners []MeshListener `json:"listeners,omitzero" doc:"Ports and host names that the gateway serves."`
}

// MeshListener is one port and host name of a mesh gateway.
type MeshListener struct {
	Hostname  *string             `json:"hostname,omitzero" doc:"Host name served, *. in front for every subdomain; any when absent or *."`
	Port      uint32              `json:"port" required:"true" min:"1" max:"65535" doc:"Port of the listener."`
	Protocol  string              `json:"protocol" required:"true" enum:"TCP|UDP|TLS|HTTP|HTTPS" doc:"Protocol of the listener."`
	TLS       *MeshListenerTLS    `json:"tls,omitzero" doc:"TLS of the listener; with protocol HTTPS and TLS, which need it."`
	Tags      Tags                `json:"tags,omitzero" doc:"Tags by which routes select the listener, besides the gateway's."`
	CrossMesh *bool               `json:"crossMesh,omitzero" doc:"Serves other meshes only; false when absent."`
	Resources *MeshListenerLimits `json:"resources,omitzero" doc:"Bounds of the listener."`
}

// MeshListenerTLS is the TLS of a mesh gateway's listener.
type MeshListenerTLS struct {
	Mode         string       `json:"mode" required:"true" enum:"TERMINATE|PASSTHROUGH" doc:"Whether TLS ends at the gateway."`
	Certificates []DataSource `json:"certificates,omitzero" doc:"Where certificates and keys are, one or two; required with mode TERMINATE."`
	Options      *struct{}    `json:"options,omitzero" doc:"Nothing can be set here yet."`
}

// DataSource is where bytes are; one of its fields is written.
type DataSource struct {
	Secret       *string `json:"secret,omitzero" doc:"Name of a secret."`
	File         *string `json:"file,omitzero" doc:"Path of a file."`
	Inline       *string `json:"inline,omitzero" format:"base64" doc:"The bytes themselves, in base64."`
	InlineString *string `json:"inlineString,omitzero" doc:"The text itself."`
}

// MeshListenerLimits are bounds of a listener.
type MeshListenerLimits struct {
	ConnectionLimit *uint32 `json:"connectionLimit,omitzero" doc:"Highest number of open connections; unbounded when absent."`
}

// Serves reports whether the gateway has a listener on a port.
func (g *MeshGateway) Serves(port uint32) bool {
	return g.Conf != nil && slices.ContainsFunc(g.Conf.Listeners, func(l MeshListener) bool { return l.Port == port })
}

// Validate implements Spec.
func (g *MeshGateway) Validate(at Path, r *Report) {
	g.DataplaneMatch.Validate(at, r)
	checkTags(at.Field("tags"), g.Tags, r)
	if _, ok := g.Tags[ServiceTag]; ok {
		r.Errorf(at.Field("tags").Key(ServiceTag), "the service is the dataplane's; leave it out")
	}
	if g.Conf == nil {
		return
	}
	if len(g.Conf.Listeners) == 0 {
		r.Errorf(at.Field("conf").Field("listeners"), "is required: at least one listener")
	}
	for i := range g.Conf.Listeners {
		g.Conf.Listeners[i].check(at.Field("conf").Field("listeners").Index(i), r)
	}
}

func (l *MeshListener) check(at Path, r *Report) {
	if l.Hostname != nil && *l.Hostname != "" {
		checkHostname(at.Field("hostname"), *l.Hostname, r)
	}
	checkTags(at.Field("tags"), l.Tags, r)
	switch encrypted := l.Protocol == "HTTPS" || l.Protocol == "TLS"; {
	case encrypted && l.TLS == nil:
		r.Errorf(at.Field("tls"), "is required with protocol %s", l.Protocol)
	case !encrypted && l.TLS != nil:
		r.Errorf(at.Field("tls"), "belongs to protocol HTTPS or TLS, not %s", l.Protocol)
	case l.TLS != nil:
		l.TLS.check(at.Field("tls"), r)
	}
}

func (t *MeshListenerTLS) check(at Path, r *Report) {
	certificates := at.Field("certificates")
	switch n := len(t.Certificates); {
	case t.Mode == "TERMINATE" && n == 0:
		r.Errorf(certificates, "is required with mode TERMINATE")
	case n > 2:
		r.Errorf(certificates, "takes at most two certificates, with keys of different types, got %d", n)
	}
	for i, c := range t.Certificates {
		checkOneOf(certificates.Index(i), r, choice{"secret", c.Secret != nil}, choice{"file", c.File != nil},
			choice{"inline", c.Inline != nil}, choice{"inlineString", c.InlineString != nil})
	}
}

// MeshGatewayRoute routes the traffic of mesh gateways.
type MeshGatewayRoute struct {
	DataplaneMatch
	Conf *MeshGatewayRouteConf `json:"conf,omitzero" doc:"The rules, for one protocol; a route without conf routes nothing yet."`
}

// MeshGatewayRouteConf holds rules for one protocol.
type MeshGatewayRouteConf struct {
	HTTP *MeshRouteHTTP `json:"http,omitzero" doc:"Rules for HTTP requests."`
	TCP  *MeshRouteTCP  `json:"tcp,omitzero" doc:"Rules for TCP connections."`
}

// MeshRouteTCP holds rules for TCP connections.
type MeshRouteTCP struct {
	Rules []MeshRuleTCP `json:"rules,omitzero" doc:"Rules; the first takes all connections."`
}

// MeshRuleTCP is one rule for TCP connections.
type MeshRuleTCP struct {
	Backends []MeshBackend `json:"backends,omitzero" doc:"Services that share the connections by weight."`
}

// MeshBackend is one share of a rule's traffic.
type MeshBackend struct {
	Weight      *uint32     `json:"weight,omitzero" doc:"Share of the traffic, relative to the sum of all weights; 1 when absent, 0 takes none."`
	Destination TagSelector `json:"destination" required:"true" doc:"Tags of the destination, kuma.io/service among them."`
}

// MeshRouteHTTP holds rules for HTTP requests.
type MeshRouteHTTP struct {
	Hostnames []string       `json:"hostnames,omitzero" doc:"Host names of requests that the route is for, *. in front for every subdomain; any when absent."`
	Rules     []MeshRuleHTTP `json:"rules,omitzero" doc:"Rules, tried in order."`
}

// MeshRuleHTTP is one rule for HTTP requests.
type MeshRuleHTTP struct {
	Matches  []MeshHTTPMatch  `json:"matches,omitzero" doc:"Requests that the rule is for; one matching entry is enough."`
	Filters  []MeshHTTPFilter `json:"filters,omitzero" doc:"Changes to requests and answers, in order; a redirect stands alone."`
	Backends []MeshBackend    `json:"backends,omitzero" doc:"Services that share the requests by weight; none with a redirect."`
}

// MeshHTTPMatch holds conditions on a request; all must hold.
type MeshHTTPMatch struct {
	Path            *MeshPathMatch    `json:"path,omitzero" doc:"Condition on the path."`
	Method          *string           `json:"method,omitzero" enum:"CONNECT|DELETE|GET|HEAD|OPTIONS|PATCH|POST|PUT|TRACE" doc:"The method."`
	Headers         []MeshHeaderMatch `json:"headers,omitzero" doc:"Conditions on headers."`
	QueryParameters []MeshQueryMatch  `json:"queryParameters,omitzero" doc:"Conditions on query parameters."`
}

// MeshPathMatch compares a path.
type MeshPathMatch struct {
	Match *string `json:"match,omitzero" enum:"EXACT|PREFIX|REGEX" doc:"How the path is compared; EXACT when absent."`
	Value string  `json:"value" required:"true" doc:"What it is compared with."`
}

// MeshHeaderMatch compares a header.
type MeshHeaderMatch struct {
	Match *string `json:"match,omitzero" enum:"EXACT|REGEX|ABSENT|PRESENT" doc:"How the value is compared; EXACT when absent."`
	Name  string  `json:"name" required:"true" notEmpty:"true" doc:"Name of the header."`
	Value *string `json:"value,omitzero" doc:"What the value is compared with; not with ABSENT and PRESENT."`
}

// MeshQueryMatch compares a query parameter.
type MeshQueryMatch struct {
	Match *string `json:"match,omitzero" enum:"EXACT|REGEX" doc:"How the value is compared; EXACT when absent."`
	Name  string  `json:"name" required:"true" notEmpty:"true" doc:"Name of the parameter."`
	Value string  `json:"value" required:"true" doc:"What the value is compared with."`
}

// MeshHTTPFilter is a step of handling a request; one of its fields is written.
type MeshHTTPFilter struct {
	RequestHeader  *HeaderModifier `json:"requestHeader,omitzero" doc:"Changes headers of the request."`
	ResponseHeader *HeaderModifier `json:"responseHeader,omitzero" doc:"Changes headers of the answer."`
	Mirror         *MeshMirror     `json:"mirror,omitzero" doc:"Sends a copy of the request elsewhere."`
	Redirect       *MeshRedirect   `json:"redirect,omitzero" doc:"Answers with a redirect."`
	Rewrite        *MeshRewrite    `json:"rewrite,omitzero" doc:"Rewrites the path or the host."`
}

// MeshMirror sends a copy of requests elsewhere.
type MeshMirror struct {
	Backend    MeshMirrorBackend `json:"backend" required:"true" doc:"Where copies go; their answers are ignored."`
	Percentage *Percentage       `json:"percentage,omitzero" doc:"Share of requests, from 0 to 100, that is copied; all when absent."`
}

// MeshMirrorBackend is where copies go.
type MeshMirrorBackend struct {
	Destination TagSelector `json:"destination" required:"true" doc:"Tags of the destination, kuma.io/service among them."`
}

// MeshRedirect answers with a redirect.
type MeshRedirect struct {
	Scheme     *string      `json:"scheme,omitzero" enum:"http|https" doc:"Scheme of the new address; the request's when absent."`
	Hostname   *string      `json:"hostname,omitzero" format:"host" doc:"Host of the new address; the request's when absent."`
	Port       *uint32      `json:"port,omitzero" min:"1" max:"65535" doc:"Port of the new address."`
	StatusCode uint32       `json:"statusCode" required:"true" min:"300" max:"308" doc:"HTTP status of the answer, from 300 to 308."`
	Path       *MeshRewrite `json:"path,omitzero" doc:"Path of the new address; the request's when absent."`
}

// MeshRewrite rewrites the path, the host or both.
type MeshRewrite struct {
	ReplaceFull           *string `json:"replaceFull,omitzero" doc:"The new path; not together with replacePrefixMatch."`
	ReplacePrefixMatch    *string `json:"replacePrefixMatch,omitzero" doc:"What stands in place of the matched prefix."`
	HostToBackendHostname *bool   `json:"hostToBackendHostname,omitzero" doc:"Sends the host name of the chosen endpoint; false when absent."`
}

// Validate implements Spec.
func (g *MeshGatewayRoute) Validate(at Path, r *Report) {
	g.DataplaneMatch.Validate(at, r)
	if g.Conf == nil {
		return
	}
	conf := at.Field("conf")
	checkOneOf(conf, r, choice{"http", g.Conf.HTTP != nil}, choice{"tcp", g.Conf.TCP != nil})
	if g.Conf.TCP != nil {
		rules := conf.Field("tcp").Field("rules")
		if len(g.Conf.TCP.Rules) == 0 {
			r.Errorf(rules, "is required: at least one rule")
		}
		for i, rule := range g.Conf.TCP.Rules {
			checkMeshBackends(rules.Index(i).Field("backends"), rule.Backends, true, r)
		}
	}
	if g.Conf.HTTP != nil {
		g.Conf.HTTP.check(conf.Field("http"), r)
	}
}

func (h *MeshRouteHTTP) check(at Path, r *Report) {
	for i, name := range h.Hostnames {
		checkHostname(at.Field("hostnames").Index(i), name, r)
	}
	if len(h.Rules) == 0 {
		r.Errorf(at.Field("rules"), "is required: at least one rule")
	}
	for i := range h.Rules {
		rule, path := &h.Rules[i], at.Field("rules").Index(i)
		for j, m := range rule.Matches {
			m.check(path.Field("matches").Index(j), r)
		}
		redirects := slices.ContainsFunc(rule.Filters, func(f MeshHTTPFilter) bool { return f.Redirect != nil })
		switch {
		case redirects && len(rule.Filters) > 1:
			r.Errorf(path.Field("filters"), "a redirect answers by itself; remove the other filters")
		case redirects && len(rule.Backends) > 0:
			r.Errorf(path.Field("backends"), "a redirect answers by itself; remove the backends")
		}
		for j := range rule.Filters {
			rule.Filters[j].check(path.Field("filters").Index(j), r)
		}
		checkMeshBackends(path.Field("backends"), rule.Backends, !redirects, r)
	}
}

func checkMeshBackends(at Path, backends []MeshBackend, needed bool, r *Report) {
	if needed && len(backends) == 0 {
		r.Errorf(at, "is required: at least one backend")
	}
	sum := uint64(0)
	for i, b := range backends {
		checkDestination(at.Index(i).Field("destination"), b.Destination, r)
		sum += weightOf(b.Weight)
	}
	if len(backends) > 0 && sum == 0 {
		r.Errorf(at, "the weights add up to 0, so that no traffic goes anywhere")
	}
}

func (m *MeshHTTPMatch) check(at Path, r *Report) {
	if m.Path == nil && m.Method == nil && len(m.Headers) == 0 && len(m.QueryParameters) == 0 {
		r.Errorf(at, "needs at least one of path, method, headers, queryParameters")
	}
	if m.Path != nil {
		if m.Path.Match != nil && *m.Path.Match == "REGEX" {
			checkRegex(at.Field("path").Field("value"), m.Path.Value, r)
		} else {
			checkPath(at.Field("path").Field("value"), m.Path.Value, r)
		}
	}
	for i, h := range m.Headers {
		path := at.Field("headers").Index(i)
		bare := h.Match != nil && (*h.Match == "ABSENT" || *h.Match == "PRESENT")
		switch {
		case bare && h.Value != nil && *h.Value != "":
			r.Errorf(path.Field("value"), "is not compared with match %s; leave it out", *h.Match)
		case !bare && h.Value == nil:
			r.Errorf(path.Field("value"), "is required")
		case h.Match != nil && *h.Match == "REGEX":
			checkRegex(path.Field("value"), *h.Value, r)
		}
	}
	for i, q := range m.QueryParameters {
		if q.Match != nil && *q.Match == "REGEX" {
			checkRegex(at.Field("queryParameters").Index(i).Field("value"), q.Value, r)
		}
	}
}

func (f *MeshHTTPFilter) check(at Path, r *Report) {
	checkOneOf(at, r, choice{"requestHeader", f.RequestHeader != nil}, choice{"responseHeader", f.ResponseHeader != nil},
		choice{"mirror", f.Mirror != nil}, choice{"redirect", f.Redirect != nil}, choice{"rewrite", f.Rewrite != nil})
	if f.Mirror != nil {
		checkDestination(at.Field("mirror").Field("backend").Field("destination"), f.Mirror.Backend.Destination, r)
	}
	if d := f.Redirect; d != nil {
		d.Path.check(at.Field("redirect").Field("path"), r)
	}
	f.Rewrite.check(at.Field("rewrite"), r)
}

func (w *MeshRewrite) check(at Path, r *Report) {
	if w != nil && w.ReplaceFull != nil && w.ReplacePrefixMatch != nil {
		r.Errorf(at, "has replaceFull and replacePrefixMatch; keep one of them")
	}
}
