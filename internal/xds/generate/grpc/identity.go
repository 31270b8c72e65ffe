package grpc

import (
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	auditv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/audit_loggers/stream/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/identity"
	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// tlsSocket is the name of the transport socket that gRPC knows.
const tlsSocket = "envoy.transport_sockets.tls"

// The filters of a server's listener that decide about callers. Both refuse every call
// until the routes say whom to accept.
const (
	denyFilter  = "deny"
	allowFilter = "allow"
)

// commonTLS is what both sides present and trust: what the agent has in its files.
// Clients are given the names of servers to expect, in the field without types, the only
// one that gRPC reads; it refuses that field for servers.
func commonTLS(names ...string) *tlsv3.CommonTlsContext {
	validation := &tlsv3.CertificateValidationContext{
		CaCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{InstanceName: xds.CertificateProvider},
	}
	for _, n := range names {
		validation.MatchSubjectAltNames = append(validation.MatchSubjectAltNames, expression(n)) //nolint:staticcheck // see above
	}
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{InstanceName: xds.CertificateProvider},
		ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation},
	}
}

func expression(regex string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regex}}}
}

func socketOf(m proto.Message) (*corev3.TransportSocket, error) {
	packed, err := xds.Pack(m)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}, nil
}

// secure makes a cluster use mutual TLS, with servers whose names a selector matches.
func secure(c *clusterv3.Cluster, mesh resource.MeshName, selector resource.TagSelector) ([]xds.Origin, error) {
	names, err := identity.Pattern(mesh, selector)
	if err != nil {
		return nil, err
	}
	c.TransportSocket, err = socketOf(&tlsv3.UpstreamTlsContext{CommonTlsContext: commonTLS(names)})
	return []xds.Origin{generate.MeshOrigin(mesh, "/transportSocket")}, err
}

// serverSocket is the transport socket of a server, which demands a certificate.
func serverSocket() (*corev3.TransportSocket, error) {
	return socketOf(&tlsv3.DownstreamTlsContext{RequireClientCertificate: wrapperspb.Bool(true), CommonTlsContext: commonTLS()})
}

// guards are the filters of a listener that decide about callers, closed.
func guards() ([]*httpv3.HttpFilter, error) {
	var filters []*httpv3.HttpFilter
	for _, f := range []struct {
		name  string
		rules *rbacv3.RBAC
	}{
		{denyFilter, &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{generate.NoPolicy: about(everyCaller())}}},
		{allowFilter, &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW}},
	} {
		packed, err := xds.Pack(&httprbacv3.RBAC{Rules: f.rules})
		if err != nil {
			return nil, err
		}
		filters = append(filters, &httpv3.HttpFilter{Name: f.name, ConfigType: &httpv3.HttpFilter_TypedConfig{TypedConfig: packed}})
	}
	return filters, nil
}

// What an inbound's permissions may come to.
const (
	// maxEntries bounds the entries of all lists of a port, and maxTurns how often one
	// turns from allowing to denying. Each turn nests the expression by two messages,
	// and most implementations of protobuf decode at most 100. A port with more refuses
	// every call.
	maxEntries, maxTurns = 20_000, 40
	// maxNamed bounds the expressions that only name the policy in the client's error.
	// A denial beyond it is without a name.
	maxNamed = 2000
	// maxBytes bounds the permissions of a port as they are sent: gRPC takes messages of
	// at most 4 MiB, and one that is larger would end the stream and leave the last
	// permissions in effect. A port with more refuses every call; names go first.
	maxBytes = 3 << 20
)

// audited has a filter write a line to the standard output of its program for each call of
// which something is so. A program without that logger writes none.
func audited(when rbacv3.RBAC_AuditLoggingOptions_AuditCondition) (*rbacv3.RBAC_AuditLoggingOptions, error) {
	logger, err := xds.Pack(&auditv3.StdoutAuditLog{})
	if err != nil {
		return nil, err
	}
	return &rbacv3.RBAC_AuditLoggingOptions{AuditCondition: when, LoggerConfigs: []*rbacv3.RBAC_AuditLoggingOptions_AuditLoggerConfig{{
		AuditLogger: &corev3.TypedExtensionConfig{Name: "standard output", TypedConfig: logger}, IsOptional: true,
	}}}, nil
}

// permissions are the overrides of the guards for one port, from the lists of its
// attachments: all of them have to allow a caller, whose credential is not revoked. Denials
// are logged, and where logged is set, every call is.
func permissions(mesh resource.MeshName, revoked *world.Revoked, lists []permission.List, logged bool) (_ map[string]*anypb.Any, _ []resource.Key, err error) {
	deny := &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	allow := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: map[string]*rbacv3.Policy{}}
	var sources []resource.Key
	if fits(lists) {
		c := &compiler{mesh: mesh, deny: deny.Policies, left: maxNamed, sources: map[resource.Key]bool{}}
		var all []*rbacv3.Principal
		for i := range lists {
			allowed, err := c.list(&lists[i])
			if err != nil {
				return nil, nil, err
			}
			all = append(all, allowed)
		}
		if !slices.Contains(all, nil) {
			allow.Policies[allowFilter] = about(and(all...))
		}
		sources = slices.SortedFunc(maps.Keys(c.sources), resource.Key.Compare)
	}
	if proto.Size(allow)+proto.Size(deny) > maxBytes {
		clear(deny.Policies)
	}
	if !fits(lists) || proto.Size(allow) > maxBytes {
		sources = nil
		clear(allow.Policies)
		deny.Policies = map[string]*rbacv3.Policy{generate.TooMany: about(everyCaller())}
	}
	if revoked != nil { // last: it is not among what may be left out
		pattern, err := identity.CredentialsPattern(mesh, revoked.Credentials)
		if err != nil {
			return nil, nil, err
		}
		deny.Policies[generate.RevokedToken] = about(named(pattern))
	}
	if deny.AuditLoggingOptions, err = audited(rbacv3.RBAC_AuditLoggingOptions_ON_DENY); err != nil {
		return nil, nil, err
	}
	allow.AuditLoggingOptions = deny.GetAuditLoggingOptions()
	if logged { // of two filters one logs who is allowed
		if allow.AuditLoggingOptions, err = audited(rbacv3.RBAC_AuditLoggingOptions_ON_DENY_AND_ALLOW); err != nil {
			return nil, nil, err
		}
	}
	out := map[string]*anypb.Any{}
	for name, rules := range map[string]*rbacv3.RBAC{denyFilter: deny, allowFilter: allow} {
		packed, err := xds.Pack(&httprbacv3.RBACPerRoute{Rbac: &httprbacv3.RBAC{Rules: rules}})
		if err != nil {
			return nil, nil, err
		}
		out[name] = packed
	}
	return out, sources, nil
}

// Oversized lists the inbounds whose permissions are more than a server takes, so that every
// caller is denied.
func Oversized(mesh resource.MeshName, settings world.Mesh, spec *resource.Dataplane, rules []policy.Rule) ([]xds.Omission, error) {
	if !settings.Secure() {
		return nil, nil
	}
	var found []xds.Omission
	for _, port := range slices.Sorted(maps.Keys(addressesOf(spec))) {
		lists := listsOn(spec, rules, port, settings.MTLS)
		_, sources, err := permissions(mesh, nil, lists, false)
		if err != nil {
			return nil, err
		}
		if len(sources) > 0 {
			continue
		}
		for _, in := range spec.Inbounds() {
			o := xds.Omission{Attachment: (&policy.Attachment{Type: policy.OnInbound, Port: in.Port, Service: in.Service(), Tags: in.Tags}).String(), Why: generate.Closed}
			for i := range lists {
				for j := range lists[i].Entries {
					if p := lists[i].Entries[j].Policy; !slices.Contains(o.Sources, p) {
						o.Sources = append(o.Sources, p)
					}
				}
			}
			if in.Port == port && len(o.Sources) > 0 {
				found = append(found, o)
			}
		}
	}
	return found, nil
}

// fits reports whether the lists of a port are within the bounds.
func fits(lists []permission.List) bool {
	entries := 0
	for i := range lists {
		turns := 0
		for j := range lists[i].Entries {
			e := &lists[i].Entries[j]
			entries += 1 + len(e.Except)
			if j > 0 && e.Allow != lists[i].Entries[j-1].Allow {
				turns++
			}
		}
		if turns > maxTurns {
			return false
		}
	}
	return entries <= maxEntries
}

// compiler makes expressions over callers.
type compiler struct {
	mesh resource.MeshName
	// deny are the policies that name who denied.
	deny map[string]*rbacv3.Policy
	// left is how many expressions may still be spent on names.
	left    int
	sources map[resource.Key]bool
}

// list returns who is allowed by a list, nil for no caller, and adds to deny who is not.
func (c *compiler) list(l *permission.List) (*rbacv3.Principal, error) {
	holds := make([]*rbacv3.Principal, len(l.Entries))
	for i := range l.Entries {
		e := &l.Entries[i]
		p, err := c.callers(e.Match)
		if err != nil {
			return nil, err
		}
		parts := []*rbacv3.Principal{p}
		for _, except := range e.Except {
			x, err := c.callers(except)
			if err != nil {
				return nil, err
			}
			parts = append(parts, not(x))
		}
		p = and(parts...)
		holds[i] = p
		c.sources[e.Policy] = true
		if !e.Allow {
			c.name(generate.Title(e.Policy), p, holds[:i])
		}
	}
	everyone, err := c.callers(nil)
	if err != nil {
		return nil, err
	}
	var allowed *rbacv3.Principal
	if l.Allow {
		allowed = everyone
	} else {
		for _, p := range l.Policies {
			c.sources[p] = true
		}
		c.name(generate.Ending(l), nil, holds)
	}
	for end := len(holds); end > 0; {
		start := end - 1
		for start > 0 && l.Entries[start-1].Allow == l.Entries[start].Allow {
			start--
		}
		switch run := or(holds[start:end]...); {
		case l.Entries[start].Allow:
			allowed = or(run, allowed)
		case allowed != nil:
			allowed = and(not(run), allowed)
		}
		end = start
	}
	return allowed, nil
}

// name has the client's error of a denial name who denied: those who are denied by
// nothing before, so that one denial has one name. denied is nil for all of these.
func (c *compiler) name(who string, denied *rbacv3.Principal, before []*rbacv3.Principal) {
	if c.left -= 1 + len(before); c.left < 0 {
		return
	}
	p := everyCaller()
	if len(before) > 0 {
		p = not(or(before...))
	}
	switch {
	case denied != nil && len(before) > 0:
		p = and(denied, p)
	case denied != nil:
		p = denied
	}
	if known := c.deny[who]; known != nil {
		known.Principals = append(known.Principals, p)
		return
	}
	c.deny[who] = about(p)
}

// callers are those with a certificate of the mesh whose name a selector matches.
func (c *compiler) callers(s resource.TagSelector) (*rbacv3.Principal, error) {
	regex, err := identity.Pattern(c.mesh, s)
	if err != nil {
		return nil, err
	}
	return named(regex), nil
}

// named are those with a certificate whose name an expression matches.
func named(regex string) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
		Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: expression(regex)},
	}}
}

func everyCaller() *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
}

func not(p *rbacv3.Principal) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: p}}
}

// or is the union of what is not nil.
func or(list ...*rbacv3.Principal) *rbacv3.Principal {
	list = slices.DeleteFunc(slices.Clone(list), func(p *rbacv3.Principal) bool { return p == nil })
	if len(list) == 1 {
		return list[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: list}}}
}

func and(list ...*rbacv3.Principal) *rbacv3.Principal {
	if len(list) == 1 {
		return list[0]
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: list}}}
}

// about is a policy for callers, whatever they call.
func about(callers *rbacv3.Principal) *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_Any{Any: true}}},
		Principals:  []*rbacv3.Principal{callers},
	}
}

// attachmentsAt are the attachments of a port.
func attachmentsAt(spec *resource.Dataplane, port uint32) (at []policy.Attachment) {
	for _, in := range spec.Inbounds() {
		if in.Port == port {
			at = append(at, policy.Attachment{Type: policy.OnInbound, Port: in.Port, Service: in.Service(), Tags: in.Tags})
		}
	}
	return at
}

// listsOn are the lists of the attachments of a port.
func listsOn(spec *resource.Dataplane, rules []policy.Rule, port uint32, mtls bool) []permission.List {
	return generate.Permissions(mtls, rules, attachmentsAt(spec, port))
}

// logsAll reports whether a policy has every call at a port logged: one that names receivers
// for all callers.
func logsAll(spec *resource.Dataplane, rules []policy.Rule, port uint32) bool {
	at := attachmentsAt(spec, port)
	for i := range at {
		for _, r := range generate.RulesOf(rules, &at[i]) {
			if r.Kind != resource.KindMeshLogging {
				continue
			}
			r.Steps = slices.DeleteFunc(slices.Clone(r.Steps), func(s policy.Step) bool { return len(s.Match) > 0 })
			backends, _ := generate.NewConf(&r).Get("/backends")
			if list, ok := backends.([]any); ok && len(list) > 0 {
				return true
			}
		}
	}
	return false
}
