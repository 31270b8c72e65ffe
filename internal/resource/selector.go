package resource

// ServiceTag is the tag that names a dataplane's service.
const ServiceTag = "kuma.io/service"

// DrainingLabel is the label of a Dataplane that is to be sent no requests, with the
// value Draining, though it has its configuration: its proxy is about to leave, or an
// operator wants it so. On a Zone it says that the zone is to take no dataplanes, and
// to have those that it has leave.
const (
	DrainingLabel = "meridian.io/draining"
	Draining      = "true"
)

// ZoneTag is the tag the zone adds to every inbound and gateway
// (§1.5).
const ZoneTag = "kuma.io/zone"

// ProtocolTag is the tag with the protocol that an inbound speaks: http, http2, grpc, or
// tcp, which it is when absent. Proxies treat it accordingly.
const ProtocolTag = "kuma.io/protocol"

// AnyValue in a selector matches every value of a tag that is present.
const AnyValue = "*"

// Tags is a set of tag values: what an inbound, outbound or gateway carries.
type Tags map[string]string

// TagSelector matches tag sets (§2.1): every tag in it must be
// present and equal, AnyValue accepting any value. An empty selector matches
// everything; the codec refuses one in a document.
type TagSelector map[string]string

// Matches reports whether tags satisfies the selector.
func (s TagSelector) Matches(tags Tags) bool {
	for tag, want := range s {
		got, ok := tags[tag]
		if !ok || (want != AnyValue && got != want) {
			return false
		}
	}
	return true
}

// Exact counts the tags that the selector wants with one particular value.
func (s TagSelector) Exact() int {
	n := 0
	for _, v := range s {
		if v != AnyValue {
			n++
		}
	}
	return n
}
