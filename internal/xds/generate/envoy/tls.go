package envoy

import (
	"math"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	inspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	connectionlimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/connection_limit/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/internal/identity"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// The protocols that are agreed on within TLS.
const (
	alpnHTTP2, alpnHTTP1 = "h2", "http/1.1"
)

// undecided is how long a caller who sends nothing may be one that uses TLS, where both
// are accepted.
const undecided = time.Second

// plainSuffix ends the names of statistics of callers without TLS, where both are
// accepted.
const plainSuffix = "_plaintext"

// countOpen is a filter that counts the connections that are open, which Envoy's proxy of
// connections does not. It limits nothing.
func countOpen(statistics string) (*listenerv3.Filter, error) {
	packed, err := xds.Pack(&connectionlimitv3.ConnectionLimit{StatPrefix: statistics, MaxConnections: wrapperspb.UInt64(math.MaxInt64)})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Filter{Name: "envoy.filters.network.connection_limit", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}}, nil
}

// secret refers to a file of the agent.
func secret(name, file string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
			Path: file, WatchedDirectory: &corev3.WatchedDirectory{Path: xds.EnvoyIdentity},
		}},
	}}
}

// commonTLS is what both sides present and trust. The other side's name has to match one
// of some expressions.
func commonTLS(names, protocols []string) *tlsv3.CommonTlsContext {
	validation := &tlsv3.CertificateValidationContext{}
	for _, n := range names {
		validation.MatchTypedSubjectAltNames = append(validation.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: n}}},
		})
	}
	return &tlsv3.CommonTlsContext{
		TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		AlpnProtocols:                  protocols,
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(xds.CertificateSecret, xds.EnvoyCertificate)},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         validation,
			ValidationContextSdsSecretConfig: secret(xds.RootsSecret, xds.EnvoyRoots),
		}},
	}
}

func socketOf(name string, m proto.Message) (*corev3.TransportSocket, error) {
	packed, err := xds.Pack(m)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}, nil
}

// serverSocket is the transport socket of an inbound, which demands a certificate whose
// name matches one of some expressions. Sessions are not resumed: everyone who connects
// shows a certificate that is valid then.
func serverSocket(protocol world.Protocol, names []string) (*corev3.TransportSocket, error) {
	// A stock gRPC client demands that HTTP/2 is agreed on, whatever is behind.
	protocols := []string{alpnHTTP2}
	if protocol != world.TCP {
		protocols = []string{alpnHTTP2, alpnHTTP1}
	}
	return socketOf("envoy.transport_sockets.tls", &tlsv3.DownstreamTlsContext{
		RequireClientCertificate: wrapperspb.Bool(true), CommonTlsContext: commonTLS(names, protocols),
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
	})
}

// secure makes a cluster use mutual TLS, with servers whose names a selector matches: with
// all of its endpoints, or, where plaintext is accepted beside it, with those that are
// known to accept it.
func (b *builder) secure(c *clusterv3.Cluster, protocol world.Protocol, selector resource.TagSelector) ([]xds.Origin, error) {
	name, err := identity.Pattern(b.Mesh, selector)
	if err != nil {
		return nil, err
	}
	var protocols []string
	switch protocol {
	case world.HTTP2, world.GRPC:
		protocols = []string{alpnHTTP2}
	case world.HTTP:
		protocols = []string{alpnHTTP1}
	}
	socket, err := socketOf("envoy.transport_sockets.tls", &tlsv3.UpstreamTlsContext{
		CommonTlsContext: commonTLS([]string{name}, protocols), MaxSessionKeys: wrapperspb.UInt32(0),
	})
	if b.settings.Offers {
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{{
			Name: "tls", TransportSocket: socket, Match: generate.AcceptsTLS(),
		}}
		return []xds.Origin{generate.MeshOrigin(b.Mesh, "/transportSocketMatches/0")}, err
	}
	c.TransportSocket = socket
	return []xds.Origin{generate.MeshOrigin(b.Mesh, "/transportSocket")}, err
}

// served makes the filters of an inbound's connections, for callers with a certificate or
// without: their statistics begin with a name.
type served func(statistics string, certified bool) ([]*listenerv3.Filter, error)

// chains makes the filter chains of an inbound: plaintext in a mesh without mutual TLS,
// TLS in one with, and both where both are accepted.
func (b *builder) chains(l *listenerv3.Listener, name string, protocol world.Protocol, names []string, filters served) ([]xds.Origin, error) {
	plain := func(statistics string) (*listenerv3.FilterChain, error) {
		made, err := filters(statistics, false)
		return &listenerv3.FilterChain{Filters: made}, err
	}
	if !b.settings.Certified() {
		chain, err := plain(name)
		l.FilterChains = []*listenerv3.FilterChain{chain}
		return nil, err
	}
	origins := []xds.Origin{generate.MeshOrigin(b.Mesh, "/filterChains/0/transportSocket")}
	socket, err := serverSocket(protocol, names)
	if err != nil {
		return nil, err
	}
	made, err := filters(name, true)
	if err != nil {
		return nil, err
	}
	l.FilterChains = []*listenerv3.FilterChain{{TransportSocket: socket, Filters: made}}
	if b.settings.Secure() {
		if b.settings.Revoked != nil {
			// Another chain: Envoy asks callers to connect again, so that those that have
			// another certificate since are not denied for that of the connection.
			l.FilterChains[0].Name = "tls_" + b.settings.Revoked.Stamp()
		}
		return origins, nil
	}
	l.FilterChains[0].Name, l.FilterChains[0].FilterChainMatch = "tls", &listenerv3.FilterChainMatch{TransportProtocol: "tls"}
	other, err := plain(name + plainSuffix)
	if err != nil {
		return nil, err
	}
	other.Name, other.FilterChainMatch = "plaintext", &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}
	l.FilterChains = append(l.FilterChains, other)
	inspector, err := xds.Pack(&inspectorv3.TlsInspector{})
	if err != nil {
		return nil, err
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name: "envoy.filters.listener.tls_inspector", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: inspector},
	}}
	if protocol == world.TCP { // the application may be the first to send something
		counted, err := countOpen(name + plainSuffix)
		if err != nil {
			return nil, err
		}
		other.Filters = append([]*listenerv3.Filter{counted}, other.GetFilters()...)
		l.ListenerFiltersTimeout, l.ContinueOnListenerFiltersTimeout = durationpb.New(undecided), true
	}
	return append(origins, generate.MeshOrigin(b.Mesh, "/filterChains/1")), nil
}
