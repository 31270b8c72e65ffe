package envoy

import (
	"regexp"
	"strings"

	"meridian/internal/xds/world"
)

// command is a placeholder of Envoy: %NAME%, %NAME(ARGUMENT)% or %NAME(ARGUMENT):LENGTH%.
var command = regexp.MustCompile(`^%([A-Z0-9_]+)(\((.*?)\))?(:[0-9]{1,5})?%`)

// bare are the commands that take no argument. A name that Envoy does not know would
// have it refuse the listener; those that read files, secrets and the environment of
// Envoy are left out, as a policy is not to read them.
var bare = setOf(`START_TIME START_TIME_LOCAL EMIT_TIME REQUEST_HEADERS_BYTES RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES
	BYTES_RECEIVED BYTES_SENT DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT
	PROTOCOL UPSTREAM_PROTOCOL RESPONSE_CODE RESPONSE_CODE_DETAILS CONNECTION_TERMINATION_DETAILS RESPONSE_FLAGS RESPONSE_FLAGS_LONG
	DURATION REQUEST_DURATION REQUEST_TX_DURATION RESPONSE_DURATION RESPONSE_TX_DURATION ROUNDTRIP_DURATION DOWNSTREAM_HANDSHAKE_DURATION UPSTREAM_CONNECTION_POOL_READY_DURATION
	UPSTREAM_HOST UPSTREAM_HOST_NAME UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_TRANSPORT_FAILURE_REASON
	UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_LOCAL_PORT UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT UPSTREAM_REMOTE_PORT
	UPSTREAM_TLS_VERSION UPSTREAM_TLS_CIPHER UPSTREAM_PEER_URI_SAN UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_ISSUER
	DOWNSTREAM_REMOTE_ADDRESS DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_REMOTE_PORT
	DOWNSTREAM_DIRECT_REMOTE_ADDRESS DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_PORT
	DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_LOCAL_PORT
	DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_PEER_DNS_SAN DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_FINGERPRINT_256
	DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_TLS_VERSION DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TRANSPORT_FAILURE_REASON
	REQUESTED_SERVER_NAME ROUTE_NAME VIRTUAL_CLUSTER_NAME FILTER_CHAIN_NAME LISTENER_NAME CONNECTION_ID STREAM_ID TRACE_ID SPAN_ID UNIQUE_ID
	HOSTNAME GRPC_STATUS GRPC_STATUS_NUMBER LOCAL_REPLY_BODY ACCESS_LOG_TYPE`)

// argued are the commands that take an argument, with those that each accepts.
var argued = map[string]*regexp.Regexp{
	"REQ": headerArgument, "RESP": headerArgument, "TRAILER": headerArgument, "QUERY_PARAM": regexp.MustCompile(`^[A-Za-z0-9._-]+$`),
	"START_TIME": timeArgument, "START_TIME_LOCAL": timeArgument, "EMIT_TIME": timeArgument,
	"GRPC_STATUS": regexp.MustCompile(`^(CAMEL_STRING|SNAKE_STRING|NUMBER)$`),
}

var (
	headerArgument = regexp.MustCompile(`^:?[A-Za-z0-9_-]+(\?:?[A-Za-z0-9_-]+)?$`)
	timeArgument   = regexp.MustCompile(`^[A-Za-z0-9%.:/, _+-]+$`)
)

func setOf(words string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		set[w] = true
	}
	return set
}

// listened is what a listener is about, for the formats of its log.
type listened struct {
	// inbound is whether it is an inbound; else it is an outbound.
	inbound bool
	// mesh, and service, which is the one that is called.
	mesh, service string
	// caller is the service of the dataplane of an outbound.
	caller   string
	protocol world.Protocol
}

func (l *listened) direction() string {
	if l.inbound {
		return "INBOUND"
	}
	return "OUTBOUND"
}

// literal spells a text so that Envoy writes it as it is.
func literal(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// known returns what stands for the placeholders of Kuma's formats.
func (l *listened) known(name string) (string, bool) {
	switch name {
	case "KUMA_MESH":
		return literal(l.mesh), true
	case "KUMA_DESTINATION_SERVICE":
		return literal(l.service), true
	case "KUMA_SOURCE_SERVICE":
		if l.inbound {
			return "%DOWNSTREAM_PEER_URI_SAN%", true
		}
		return literal(l.caller), true
	case "KUMA_TRAFFIC_DIRECTION":
		return l.direction(), true
	case "KUMA_SOURCE_ADDRESS":
		return "%DOWNSTREAM_REMOTE_ADDRESS%", true
	case "KUMA_SOURCE_ADDRESS_WITHOUT_PORT":
		return "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", true
	}
	return "", false
}

// expand makes of a format one that Envoy accepts: a placeholder that is none of Envoy's
// or Kuma's, and a percent sign by itself, are written as they are.
func (l *listened) expand(format string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(format, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if strings.HasPrefix(rest, "%") { // written twice, it is one
			b.WriteString("%%")
			format = rest[1:]
			continue
		}
		m := command.FindStringSubmatch("%" + rest)
		if m == nil {
			b.WriteString("%%")
			format = rest
			continue
		}
		format = rest[len(m[0])-1:]
		argument := argued[m[1]]
		value, ours := l.known(m[1])
		switch {
		case ours && m[2] == "" && m[4] == "":
			b.WriteString(value)
		case m[2] == "" && m[4] == "" && bare[m[1]], m[2] != "" && argument != nil && argument.MatchString(m[3]) && (m[4] == "" || argument == headerArgument):
			b.WriteString(m[0])
		default:
			b.WriteString(literal(m[0]))
		}
	}
}

// plain is the format of an entry where none is written.
func (l *listened) plain() string {
	head := "[%START_TIME%] " + literal(l.mesh) + " " + l.direction() + " " + literal(l.service) + " "
	if l.protocol == world.TCP {
		return head + "%DOWNSTREAM_REMOTE_ADDRESS% %UPSTREAM_HOST% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION%"
	}
	return head + `"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION%` +
		` "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`
}
