package resource

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// Gateway is an entry for traffic, in the shape of the Gateway API
// (§5.1).
type Gateway struct {
	GatewayClassName *string           `json:"gatewayClassName,omitzero" doc:"Who implements the gateway."`
	Listeners        []GatewayListener `json:"listeners,omitzero" doc:"Ports and host names that the gateway serves."`
	Addresses        []GatewayAddress  `json:"addresses,omitzero" doc:"Addresses asked for."`
}

// GatewayListener is one port and host name of a gateway.
type GatewayListener struct {
	Name          string            `json:"name" required:"true" doc:"Name of the listener, by which policies and routes refer to it as a section."`
	Hostname      *string           `json:"hostname,omitzero" format:"wildcardHost" doc:"Host name served, *. in front for every subdomain; any when absent."`
	Port          uint32            `json:"port" required:"true" min:"1" max:"65535" doc:"Port of the listener."`
	Protocol      string            `json:"protocol" required:"true" enum:"HTTP|HTTPS|TLS|TCP|UDP" doc:"Protocol of the listener."`
	TLS           *GatewayTLS       `json:"tls,omitzero" doc:"TLS of the listener; with protocol HTTPS and TLS."`
	AllowedRoutes *GatewayRouteRule `json:"allowedRoutes,omitzero" doc:"Routes that may attach; those of the gateway's own namespace when absent."`
}

// GatewayTLS is the TLS of a listener.
type GatewayTLS struct {
	Mode            *string           `json:"mode,omitzero" enum:"Terminate|Passthrough" doc:"Whether TLS ends at the gateway; Terminate when absent."`
	CertificateRefs []CertificateRef  `json:"certificateRefs,omitzero" doc:"Certificates, with mode Terminate."`
	Options         map[string]string `json:"options,omitzero" doc:"Settings of the implementation."`
}

// CertificateRef points to a certificate.
type CertificateRef struct {
	Group     *string `json:"group,omitzero" doc:"API group of the object; empty for the core group."`
	Kind      *string `json:"kind,omitzero" doc:"Kind of the object; Secret when absent."`
	Name      string  `json:"name" required:"true" doc:"Name of the object."`
	Namespace *string `json:"namespace,omitzero" doc:"Namespace of the object; the gateway's when absent."`
}

// GatewayRouteRule says which routes may attach to a listener.
type GatewayRouteRule struct {
	Namespaces *RouteNamespaces `json:"namespaces,omitzero" doc:"Namespaces of routes that may attach."`
	Kinds      []RouteGroupKind `json:"kinds,omitzero" doc:"Kinds of routes that may attach; those that fit the protocol when absent."`
}

// RouteNamespaces selects namespaces.
type RouteNamespaces struct {
	From     *string        `json:"from,omitzero" enum:"All|Same|Selector|None" doc:"Which namespaces; Same when absent."`
	Selector *LabelSelector `json:"selector,omitzero" doc:"Labels of the namespaces, with from Selector."`
}

// LabelSelector selects by labels.
type LabelSelector struct {
	MatchLabels      map[string]string  `json:"matchLabels,omitzero" doc:"Labels that must all be present with these values."`
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitzero" doc:"Conditions that must all hold."`
}

// LabelRequirement is one condition on a label.
type LabelRequirement struct {
	Key      string   `json:"key" required:"true" doc:"Name of the label."`
	Operator string   `json:"operator" required:"true" enum:"In|NotIn|Exists|DoesNotExist" doc:"How the value is compared."`
	Values   []string `json:"values,omitzero" doc:"Values for In and NotIn."`
}

// Matches reports whether labels are selected. An operator that is not known, and In
// without values, select nothing.
func (s *LabelSelector) Matches(labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(q LabelRequirement) bool { return !q.holds(labels) })
}

func (q *LabelRequirement) holds(labels map[string]string) bool {
	value, has := labels[q.Key]
	switch q.Operator {
	case "In":
		return has && slices.Contains(q.Values, value)
	case "NotIn":
		return !has || !slices.Contains(q.Values, value)
	case "Exists":
		return has
	case "DoesNotExist":
		return !has
	default:
		return false
	}
}

// check warns of what selects nothing, or not what it seems to: gateways that are
// stored already are not refused.
func (n *RouteNamespaces) check(at Path, r *Report) {
	selects := n.From != nil && *n.From == "Selector"
	switch {
	case n.Selector == nil && selects:
		r.Findf(CodeNotAttached, at.Field("selector"), "is needed with from Selector: without it no route may attach")
	case n.Selector == nil:
		return
	case !selects:
		r.Findf(CodeNoEffect, at.Field("selector"), "has no effect: from is not Selector")
	}
	if n.Selector == nil {
		return
	}
	for i, q := range n.Selector.MatchExpressions {
		path := at.Field("selector").Field("matchExpressions").Index(i).Field("values")
		switch listed := q.Operator == "In" || q.Operator == "NotIn"; {
		case listed && len(q.Values) == 0:
			r.Warnf(path, "is needed with operator %s", q.Operator)
		case !listed && len(q.Values) > 0:
			r.Findf(CodeNoEffect, path, "has no effect with operator %s", q.Operator)
		}
	}
}

// RouteGroupKind is a kind of route.
type RouteGroupKind struct {
	Group *string `json:"group,omitzero" doc:"API group of the kind."`
	Kind  string  `json:"kind" required:"true" doc:"The kind."`
}

// GatewayAddress is an address asked for.
type GatewayAddress struct {
	Type  *string `json:"type,omitzero" enum:"IPAddress|Hostname" doc:"What the value is; IPAddress when absent."`
	Value string  `json:"value" required:"true" doc:"The address."`
}

// Validate implements Spec: listeners have distinct names and can be told apart.
func (g *Gateway) Validate(at Path, r *Report) {
	if len(g.Listeners) == 0 {
		r.Errorf(at.Field("listeners"), "is required: at least one listener")
	}
	checkCount(at.Field("listeners"), len(g.Listeners), maxListeners, r)
	names := map[string]int{}
	for i, l := range g.Listeners {
		path := at.Field("listeners").Index(i)
		checkSectionName(path.Field("name"), l.Name, names, i, "listener", r)
		if tls := l.Protocol == "HTTPS" || l.Protocol == "TLS"; l.TLS != nil && !tls {
			r.Errorf(path.Field("tls"), "belongs to protocol HTTPS or TLS, not %s", l.Protocol)
		}
		if rule := l.AllowedRoutes; rule != nil && rule.Namespaces != nil {
			rule.Namespaces.check(path.Field("allowedRoutes").Field("namespaces"), r)
		}
	}
}

// Bounds in the spirit of the Gateway API, whose are not above these. A route is followed through every listener that
// takes it, and answers have one entry for each of its rules there.
const (
	maxListeners  = 64
	maxParentRefs = 32
	maxHostnames  = 16
	maxRouteRules = 128
)

// checkCount refuses a list that is too long.
func checkCount(at Path, n, limit int, r *Report) {
	if n > limit {
		r.Errorf(at, "has %d entries; at most %d are allowed", n, limit)
	}
}

// checkSectionName refuses section names that are empty or used twice; seen
// remembers the index of each.
func checkSectionName(at Path, name string, seen map[string]int, i int, what string, r *Report) {
	if name == "" {
		r.Errorf(at, "must not be empty")
		return
	}
	if earlier, again := seen[name]; again {
		r.Errorf(at, "%q is already the name of %s %d; names must differ", doctree.Clip(name), what, earlier+1)
		return
	}
	seen[name] = i
}

// ParentRef attaches a route to a gateway, a mesh gateway or a service.
type ParentRef struct {
	Group       *string `json:"group,omitzero" doc:"API group of the parent."`
	Kind        *string `json:"kind,omitzero" enum:"Gateway|MeshGateway|Service|MeshService" doc:"Kind of the parent; Gateway when absent."`
	Namespace   *string `json:"namespace,omitzero" doc:"Namespace of the parent; the route's when absent."`
	Name        string  `json:"name" required:"true" notEmpty:"true" doc:"Name of the parent; of a Service, its kuma.io/service."`
	SectionName *string `json:"sectionName,omitzero" notEmpty:"true" doc:"Listener to attach to; every listener with a compatible host name when absent."`
	Port        *uint32 `json:"port,omitzero" min:"1" max:"65535" doc:"Port to attach to; every port when absent."`
}

// ParentKind returns the kind in its canonical spelling: Gateway, MeshGateway
// or Service.
func (p *ParentRef) ParentKind() string {
	switch {
	case p.Kind == nil:
		return "Gateway"
	case *p.Kind == "MeshService":
		return "Service"
	}
	return *p.Kind
}

// Section returns the listener the route asks for; empty means every listener.
func (p *ParentRef) Section() string {
	if p.SectionName == nil {
		return ""
	}
	return *p.SectionName
}

// RouteHead is what HTTPRoute and GRPCRoute share.
type RouteHead struct {
	ParentRefs []ParentRef `json:"parentRefs,omitzero" doc:"What the route attaches to."`
	Hostnames  []string    `json:"hostnames,omitzero" format:"wildcardHost" doc:"Host names of requests that the route is for, *. in front for every subdomain; any when absent."`
}

func (h *RouteHead) check(at Path, r *Report) {
	if len(h.ParentRefs) == 0 {
		r.Findf(CodeNotAttached, at.Field("parentRefs"), "names no gateway and no service: the route is attached to nothing")
	}
	checkCount(at.Field("parentRefs"), len(h.ParentRefs), maxParentRefs, r)
	checkCount(at.Field("hostnames"), len(h.Hostnames), maxHostnames, r)
	for i, p := range h.ParentRefs {
		if p.SectionName != nil && p.ParentKind() == "Service" {
			r.Errorf(at.Field("parentRefs").Index(i).Field("sectionName"), "is not taken by kind Service; leave it out")
		}
		if p.Name == AnyValue && p.ParentKind() == "Service" {
			r.Errorf(at.Field("parentRefs").Index(i).Field("name"), "'*' is not the name of a service; name the services, each in a parentRef of its own")
		}
	}
}

// RouteSpec is implemented by the kinds of routes that inherited policies reach
// (§5.1).
type RouteSpec interface {
	Spec
	// Parents and HostNames return the route's own lists; they must not be
	// modified.
	Parents() []ParentRef
	HostNames() []string
	// RuleNames returns the name of every rule in order; one without a name is
	// rule-1, rule-2, … by its place.
	RuleNames() []string
	// Backends returns every service that a rule sends or mirrors requests to, in the
	// order of the document.
	Backends() []RouteBackendAt
}

// RouteBackendAt is a service that a route names, and where.
type RouteBackendAt struct {
	RouteBackendRef
	Path Path
}

// ServiceKind returns the kind in its canonical spelling, Service or ServiceSubset;
// false for a kind that is no service.
func (b *RouteBackendRef) ServiceKind() (string, bool) {
	if b.Group != nil && *b.Group != "" && *b.Group != "kuma.io" {
		return "", false
	}
	if b.Kind == nil {
		return "Service", true
	}
	switch *b.Kind {
	case "Service", "MeshService":
		return "Service", true
	case "ServiceSubset", "MeshServiceSubset":
		return "ServiceSubset", true
	default:
		return "", false
	}
}

// backendsOf lists the services of one rule.
func backendsOf(at Path, filters []HTTPFilter, backends []WeightedBackend) (all []RouteBackendAt) {
	mirrored := func(at Path, filters []HTTPFilter) {
		for i := range filters {
			if m := filters[i].RequestMirror; m != nil {
				all = append(all, RouteBackendAt{m.BackendRef, at.Field("filters").Index(i).Field("requestMirror").Field("backendRef")})
			}
		}
	}
	mirrored(at, filters)
	for i := range backends {
		path := at.Field("backendRefs").Index(i)
		all = append(all, RouteBackendAt{backends[i].RouteBackendRef, path})
		mirrored(path, backends[i].Filters)
	}
	return all
}

// Parents implements RouteSpec.
func (h *RouteHead) Parents() []ParentRef { return h.ParentRefs }

// HostNames implements RouteSpec.
func (h *RouteHead) HostNames() []string { return h.Hostnames }

// ruleName is the name of the i-th rule (§5.1).
func ruleName(name *string, i int) string {
	if name == nil {
		return fmt.Sprintf("rule-%d", i+1)
	}
	return *name
}

// checkRuleNames refuses too many rules, and rules that could not be told apart
// by name.
func checkRuleNames(at Path, written []*string, r *Report) {
	checkCount(at, len(written), maxRouteRules, r)
	for i, name := range written {
		if name == nil {
			continue
		}
		path := at.Index(i).Field("name")
		if *name == "" {
			r.Errorf(path, "must not be empty; leave it out for rule-%d", i+1)
			continue
		}
		for j, other := range written {
			if j != i && ruleName(other, j) == *name && (j < i || other == nil) {
				r.Errorf(path, "%q is already the name of rule %d; names must differ", doctree.Clip(*name), j+1)
				break
			}
		}
	}
}

// HTTPRoute routes HTTP requests of a gateway or a service.
type HTTPRoute struct {
	RouteHead
	Rules []HTTPRouteRule `json:"rules,omitzero" doc:"Rules in order of precedence among equal matches."`
}

// HTTPRouteRule is one rule of an HTTPRoute.
type HTTPRouteRule struct {
	Name        *string             `json:"name,omitzero" doc:"Name of the rule, by which policies refer to it as a section; rule-1, rule-2, … by its place when absent."`
	Matches     []HTTPMatch         `json:"matches,omitzero" doc:"Requests that the rule is for; one matching entry is enough, none matches every request."`
	Filters     []HTTPFilter        `json:"filters,omitzero" doc:"Changes to requests and answers, in order."`
	BackendRefs []WeightedBackend   `json:"backendRefs,omitzero" doc:"Services that share the requests by weight."`
	Timeouts    *HTTPRouteTimeouts  `json:"timeouts,omitzero" doc:"Timeouts of the requests."`
	Retry       *HTTPRouteRetry     `json:"retry,omitzero" doc:"Repetition of failed requests."`
	Persistence *SessionPersistence `json:"sessionPersistence,omitzero" doc:"Keeps the requests of a session at one endpoint."`
}

// WeightedBackend is one share of a rule's requests.
type WeightedBackend struct {
	RouteBackendRef
	Weight  *uint32      `json:"weight,omitzero" doc:"Share of the requests, relative to the sum of all weights; 1 when absent."`
	Filters []HTTPFilter `json:"filters,omitzero" doc:"Changes to the requests of this share."`
}

// HTTPRouteTimeouts bounds requests of a rule.
type HTTPRouteTimeouts struct {
	Request        *Duration `json:"request,omitzero" doc:"Longest time for the whole request; 0s is unbounded."`
	BackendRequest *Duration `json:"backendRequest,omitzero" doc:"Longest time for one attempt at a service; 0s is unbounded."`
}

// HTTPRouteRetry repeats failed requests of a rule.
type HTTPRouteRetry struct {
	Codes    []uint32  `json:"codes,omitzero" min:"100" max:"599" doc:"HTTP statuses that are retried."`
	Attempts *uint32   `json:"attempts,omitzero" doc:"How often a request is repeated."`
	Backoff  *Duration `json:"backoff,omitzero" doc:"Shortest pause between attempts."`
}

// SessionPersistence keeps a session at one endpoint.
type SessionPersistence struct {
	SessionName     *string   `json:"sessionName,omitzero" doc:"Name of the cookie or header."`
	AbsoluteTimeout *Duration `json:"absoluteTimeout,omitzero" doc:"Longest life of a session."`
	IdleTimeout     *Duration `json:"idleTimeout,omitzero" doc:"Ends a session without requests after this time."`
	Type            *string   `json:"type,omitzero" enum:"Cookie|Header" doc:"What identifies the session; Cookie when absent."`
}

// Validate implements Spec.
func (h *HTTPRoute) Validate(at Path, r *Report) {
	h.RouteHead.check(at, r)
	names := make([]*string, len(h.Rules))
	for i := range h.Rules {
		rule, path := &h.Rules[i], at.Field("rules").Index(i)
		names[i] = rule.Name
		checkHTTPMatches(path.Field("matches"), rule.Matches, r)
		checkHTTPFilters(path.Field("filters"), rule.Filters, r)
		for j, b := range rule.BackendRefs {
			b.RouteBackendRef.check(path.Field("backendRefs").Index(j), r)
			checkHTTPFilters(path.Field("backendRefs").Index(j).Field("filters"), b.Filters, r)
		}
	}
	checkRuleNames(at.Field("rules"), names, r)
}

// RuleNames implements RouteSpec.
func (h *HTTPRoute) RuleNames() []string {
	names := make([]string, len(h.Rules))
	for i, rule := range h.Rules {
		names[i] = ruleName(rule.Name, i)
	}
	return names
}

// Backends implements RouteSpec.
func (h *HTTPRoute) Backends() (all []RouteBackendAt) {
	for i := range h.Rules {
		all = append(all, backendsOf(Path("rules").Index(i), h.Rules[i].Filters, h.Rules[i].BackendRefs)...)
	}
	return all
}

// GRPCRoute routes gRPC calls of a gateway or a service.
type GRPCRoute struct {
	RouteHead
	Rules []GRPCRouteRule `json:"rules,omitzero" doc:"Rules in order of precedence among equal matches."`
}

// GRPCRouteRule is one rule of a GRPCRoute.
type GRPCRouteRule struct {
	Name        *string             `json:"name,omitzero" doc:"Name of the rule, by which policies refer to it as a section; rule-1, rule-2, … by its place when absent."`
	Matches     []GRPCMatch         `json:"matches,omitzero" doc:"Calls that the rule is for; one matching entry is enough, none matches every call."`
	Filters     []HTTPFilter        `json:"filters,omitzero" doc:"Changes to calls and answers, in order; no redirects and rewrites."`
	BackendRefs []WeightedBackend   `json:"backendRefs,omitzero" doc:"Services that share the calls by weight."`
	Persistence *SessionPersistence `json:"sessionPersistence,omitzero" doc:"Keeps the calls of a session at one endpoint."`
}

// GRPCMatch holds conditions on a call; all must hold.
type GRPCMatch struct {
	Method  *GRPCMethodMatch `json:"method,omitzero" doc:"Condition on the method."`
	Headers []HeaderMatch    `json:"headers,omitzero" doc:"Conditions on headers."`
}

// GRPCMethodMatch compares a method.
type GRPCMethodMatch struct {
	Type    *string `json:"type,omitzero" enum:"Exact|RegularExpression" doc:"How service and method are compared; Exact when absent."`
	Service *string `json:"service,omitzero" doc:"The service with its package."`
	Method  *string `json:"method,omitzero" doc:"The method."`
}

// Validate implements Spec.
func (g *GRPCRoute) Validate(at Path, r *Report) {
	g.RouteHead.check(at, r)
	names := make([]*string, len(g.Rules))
	for i := range g.Rules {
		rule, path := &g.Rules[i], at.Field("rules").Index(i)
		names[i] = rule.Name
		for j, m := range rule.Matches {
			m.check(path.Field("matches").Index(j), r)
		}
		checkHTTPFilters(path.Field("filters"), rule.Filters, r)
		for j, f := range rule.Filters {
			if slices.Contains([]string{"RequestRedirect", "URLRewrite"}, f.Type) {
				r.Errorf(path.Field("filters").Index(j).Field("type"), "%s is not for gRPC calls", f.Type)
			}
		}
		for j, b := range rule.BackendRefs {
			b.RouteBackendRef.check(path.Field("backendRefs").Index(j), r)
		}
	}
	checkRuleNames(at.Field("rules"), names, r)
}

func (m *GRPCMatch) check(at Path, r *Report) {
	checkHeaderMatches(at.Field("headers"), m.Headers, r)
	if m.Method == nil {
		return
	}
	method := at.Field("method")
	if m.Method.Service == nil && m.Method.Method == nil {
		r.Errorf(method, "needs at least one of service, method")
	}
	for _, part := range []struct {
		name  string
		value *string
	}{{"service", m.Method.Service}, {"method", m.Method.Method}} {
		switch {
		case part.value == nil:
		case m.Method.Type != nil && *m.Method.Type == "RegularExpression":
			checkRegex(method.Field(part.name), *part.value, r)
		case *part.value == "" || strings.Contains(*part.value, "/"):
			r.Errorf(method.Field(part.name), "must be a name without /, got %q", doctree.Clip(*part.value))
		}
	}
}

// RuleNames implements RouteSpec.
func (g *GRPCRoute) RuleNames() []string {
	names := make([]string, len(g.Rules))
	for i, rule := range g.Rules {
		names[i] = ruleName(rule.Name, i)
	}
	return names
}

// Backends implements RouteSpec.
func (g *GRPCRoute) Backends() (all []RouteBackendAt) {
	for i := range g.Rules {
		all = append(all, backendsOf(Path("rules").Index(i), g.Rules[i].Filters, g.Rules[i].BackendRefs)...)
	}
	return all
}
