package resource

// HTTPMatch holds conditions on a request; all must hold.
type HTTPMatch struct {
	Path        *PathMatch    `json:"path,omitzero" doc:"Condition on the path; every path matches when absent."`
	Headers     []HeaderMatch `json:"headers,omitzero" doc:"Conditions on headers."`
	QueryParams []QueryMatch  `json:"queryParams,omitzero" doc:"Conditions on query parameters."`
	Method      *string       `json:"method,omitzero" enum:"CONNECT|DELETE|GET|HEAD|OPTIONS|PATCH|POST|PUT|TRACE" doc:"The method."`
}

// PathMatch compares a path.
type PathMatch struct {
	Type  *string `json:"type,omitzero" enum:"Exact|PathPrefix|RegularExpression" doc:"How the path is compared; PathPrefix, by whole segments, when absent."`
	Value *string `json:"value,omitzero" doc:"What it is compared with; / when absent."`
}

// HeaderMatch compares a header.
type HeaderMatch struct {
	Type  *string `json:"type,omitzero" enum:"Exact|RegularExpression|Present|Absent|Prefix" doc:"How the value is compared; Exact when absent."`
	Name  string  `json:"name" required:"true" notEmpty:"true" doc:"Name of the header."`
	Value *string `json:"value,omitzero" doc:"What the value is compared with; not with Present and Absent."`
}

// QueryMatch compares a query parameter.
type QueryMatch struct {
	Type  *string `json:"type,omitzero" enum:"Exact|RegularExpression" doc:"How the value is compared; Exact when absent."`
	Name  string  `json:"name" required:"true" notEmpty:"true" doc:"Name of the parameter."`
	Value string  `json:"value" required:"true" doc:"What the value is compared with."`
}

// HTTPFilter is a step of handling a request; the member named for its type is
// written.
type HTTPFilter struct {
	Type                   string           `json:"type" required:"true" enum:"RequestHeaderModifier|ResponseHeaderModifier|RequestMirror|RequestRedirect|URLRewrite|ExtensionRef" doc:"What the filter does."`
	RequestHeaderModifier  *HeaderModifier  `json:"requestHeaderModifier,omitzero" doc:"Changes headers of the request."`
	ResponseHeaderModifier *HeaderModifier  `json:"responseHeaderModifier,omitzero" doc:"Changes headers of the answer."`
	RequestMirror          *RequestMirror   `json:"requestMirror,omitzero" doc:"Sends a copy of the request elsewhere."`
	RequestRedirect        *RequestRedirect `json:"requestRedirect,omitzero" doc:"Answers with a redirect."`
	URLRewrite             *URLRewrite      `json:"urlRewrite,omitzero" doc:"Rewrites the host or the path."`
	ExtensionRef           *ObjectRef       `json:"extensionRef,omitzero" doc:"An object that describes the filter."`
}

// HeaderModifier sets, adds and removes headers.
type HeaderModifier struct {
	Set    []HeaderSetting `json:"set,omitzero" doc:"Headers to set, replacing those that are there."`
	Add    []HeaderSetting `json:"add,omitzero" doc:"Headers to add to those that are there."`
	Remove []string        `json:"remove,omitzero" notEmpty:"true" doc:"Names of headers to remove."`
}

// HeaderSetting is a header by its name.
type HeaderSetting struct {
	Name  string `json:"name" required:"true" notEmpty:"true" doc:"Name of the header."`
	Value string `json:"value" required:"true" doc:"Value of the header."`
}

// RequestMirror sends a copy of requests elsewhere.
type RequestMirror struct {
	BackendRef RouteBackendRef `json:"backendRef" required:"true" doc:"Where copies go; their answers are ignored."`
	Percentage *Percentage     `json:"percentage,omitzero" doc:"Share of requests, from 0 to 100, that is copied; all when absent."`
}

// RequestRedirect answers with a redirect.
type RequestRedirect struct {
	Scheme     *string      `json:"scheme,omitzero" enum:"http|https" doc:"Scheme of the new address; the request's when absent."`
	Hostname   *string      `json:"hostname,omitzero" format:"host" doc:"Host of the new address; the request's when absent."`
	Path       *PathRewrite `json:"path,omitzero" doc:"Path of the new address; the request's when absent."`
	Port       *uint32      `json:"port,omitzero" min:"1" max:"65535" doc:"Port of the new address."`
	StatusCode *uint32      `json:"statusCode,omitzero" doc:"HTTP status of the answer, 301, 302, 303, 307 or 308; 302 when absent."`
}

// URLRewrite rewrites where a request goes.
type URLRewrite struct {
	Hostname *string      `json:"hostname,omitzero" format:"host" doc:"The new host."`
	Path     *PathRewrite `json:"path,omitzero" doc:"The new path."`
}

// PathRewrite replaces a path or the prefix that matched.
type PathRewrite struct {
	Type               string  `json:"type" required:"true" enum:"ReplaceFullPath|ReplacePrefixMatch" doc:"What is replaced."`
	ReplaceFullPath    *string `json:"replaceFullPath,omitzero" doc:"The new path; with type ReplaceFullPath."`
	ReplacePrefixMatch *string `json:"replacePrefixMatch,omitzero" doc:"What stands in place of the matched prefix; with type ReplacePrefixMatch."`
}

// ObjectRef points to an object by group, kind and name.
type ObjectRef struct {
	Group *string `json:"group,omitzero" doc:"API group of the object."`
	Kind  string  `json:"kind" required:"true" doc:"Kind of the object."`
	Name  string  `json:"name" required:"true" doc:"Name of the object."`
}

// RouteBackendRef points to a service that takes requests.
type RouteBackendRef struct {
	Group     *string     `json:"group,omitzero" doc:"API group of the service; empty for the core group."`
	Kind      *string     `json:"kind,omitzero" doc:"Kind of what takes the requests; Service when absent."`
	Name      string      `json:"name" required:"true" notEmpty:"true" doc:"Name of the service."`
	Namespace *string     `json:"namespace,omitzero" doc:"Namespace of the service; the route's when absent."`
	Port      *uint32     `json:"port,omitzero" min:"1" max:"65535" doc:"Port of the service."`
	Tags      TagSelector `json:"tags,omitzero" doc:"Tags that narrow a ServiceSubset."`
}

func checkHTTPMatches(at Path, matches []HTTPMatch, r *Report) {
	for i, m := range matches {
		match := at.Index(i)
		if m.Path != nil {
			m.Path.check(match.Field("path"), r)
		}
		checkHeaderMatches(match.Field("headers"), m.Headers, r)
		for j, q := range m.QueryParams {
			query := match.Field("queryParams").Index(j)
			if q.Type != nil && *q.Type == "RegularExpression" {
				checkRegex(query.Field("value"), q.Value, r)
			}
		}
	}
}

func (m *PathMatch) check(at Path, r *Report) {
	if m.Value == nil {
		return
	}
	if m.Type != nil && *m.Type == "RegularExpression" {
		checkRegex(at.Field("value"), *m.Value, r)
		return
	}
	checkPath(at.Field("value"), *m.Value, r)
}

func checkHeaderMatches(at Path, matches []HeaderMatch, r *Report) {
	for i, m := range matches {
		path := at.Index(i)
		bare := m.Type != nil && (*m.Type == "Present" || *m.Type == "Absent")
		switch {
		case bare && m.Value != nil:
			r.Errorf(path.Field("value"), "is not compared with type %s; leave it out", *m.Type)
		case !bare && m.Value == nil:
			r.Errorf(path.Field("value"), "is required")
		case m.Type != nil && *m.Type == "RegularExpression":
			checkRegex(path.Field("value"), *m.Value, r)
		}
	}
}

func checkHTTPFilters(at Path, filters []HTTPFilter, r *Report) {
	for i := range filters {
		f, path := &filters[i], at.Index(i)
		checkTypedMembers(path, f.Type, r,
			typedMember{"RequestHeaderModifier", "requestHeaderModifier", f.RequestHeaderModifier != nil},
			typedMember{"ResponseHeaderModifier", "responseHeaderModifier", f.ResponseHeaderModifier != nil},
			typedMember{"RequestMirror", "requestMirror", f.RequestMirror != nil},
			typedMember{"RequestRedirect", "requestRedirect", f.RequestRedirect != nil},
			typedMember{"URLRewrite", "urlRewrite", f.URLRewrite != nil},
			typedMember{"ExtensionRef", "extensionRef", f.ExtensionRef != nil})
		if f.RequestMirror != nil {
			f.RequestMirror.BackendRef.check(path.Field("requestMirror").Field("backendRef"), r)
		}
		if f.RequestRedirect != nil {
			f.RequestRedirect.check(path.Field("requestRedirect"), r)
		}
		if f.URLRewrite != nil {
			f.URLRewrite.check(path.Field("urlRewrite"), r)
		}
	}
}

func (d *RequestRedirect) check(at Path, r *Report) {
	d.Path.check(at.Field("path"), r)
	if d.StatusCode != nil {
		switch *d.StatusCode {
		case 301, 302, 303, 307, 308:
		default:
			r.Errorf(at.Field("statusCode"), "must be 301, 302, 303, 307 or 308, got %d", *d.StatusCode)
		}
	}
}

func (u *URLRewrite) check(at Path, r *Report) {
	if u.Hostname == nil && u.Path == nil {
		r.Errorf(at, "needs at least one of hostname, path")
	}
	u.Path.check(at.Field("path"), r)
}

func (p *PathRewrite) check(at Path, r *Report) {
	if p == nil {
		return
	}
	checkTypedMembers(at, p.Type, r,
		typedMember{"ReplaceFullPath", "replaceFullPath", p.ReplaceFullPath != nil},
		typedMember{"ReplacePrefixMatch", "replacePrefixMatch", p.ReplacePrefixMatch != nil})
}

func (b *RouteBackendRef) check(at Path, r *Report) {
	if b.Name == AnyValue {
		r.Errorf(at.Field("name"), "'*' is not the name of a service; name one")
	}
	checkTags(at.Field("tags"), b.Tags, r)
}

// checkHostname accepts what the format wildcardHost does, and '*' alone.
func checkHostname(at Path, name string, r *Report) {
	if problem := formats["wildcardHost"](name); name != AnyValue && problem != "" {
		r.Errorf(at, "%s", problem)
	}
}
