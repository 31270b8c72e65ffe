package resource

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// Dataplane is the content of a Dataplane (§1.5).
type Dataplane struct {
	Networking Networking `json:"networking,omitzero" required:"true" doc:"The proxy's address and what it offers and consumes."`
}

// Networking is where a dataplane is and which traffic passes through it.
type Networking struct {
	Address           string            `json:"address,omitzero" required:"true" doc:"IP address or host name by which other proxies reach this one."`
	AdvertisedAddress string            `json:"advertisedAddress,omitzero" doc:"IP address or host name to use instead from outside the proxy's network."`
	Inbound           []Inbound         `json:"inbound,omitzero" doc:"The services the proxy offers."`
	Outbound          []Outbound        `json:"outbound,omitzero" doc:"The services it consumes."`
	Gateway           *DataplaneGateway `json:"gateway,omitzero" doc:"Makes the proxy a gateway, which has no inbounds."`
}

// Inbound is one service that a dataplane offers. Several may share a port
// (§1.5).
type Inbound struct {
	Port           uint32         `json:"port,omitzero" required:"true" min:"1" max:"65535" doc:"The port that other proxies connect to."`
	ServicePort    uint32         `json:"servicePort,omitzero" max:"65535" doc:"The port of the service behind the proxy; the same as port when absent."`
	Address        string         `json:"address,omitzero" doc:"The address to listen on, when it is not the proxy's."`
	ServiceAddress string         `json:"serviceAddress,omitzero" doc:"The address of the service behind the proxy."`
	Tags           Tags           `json:"tags,omitzero" required:"true" doc:"The tags by which policies select the inbound; kuma.io/service is required."`
	ServiceProbe   *ServiceProbe  `json:"serviceProbe,omitzero" doc:"How the proxy checks the service behind it."`
	Health         *InboundHealth `json:"health,omitzero" doc:"Whether the service behind the proxy is ready."`
}

// ServiceProbe is how a proxy checks the service behind it.
type ServiceProbe struct {
	Interval           *Duration `json:"interval,omitzero" doc:"The time between two checks."`
	Timeout            *Duration `json:"timeout,omitzero" doc:"How long a check may take."`
	UnhealthyThreshold *uint32   `json:"unhealthyThreshold,omitzero" doc:"Failed checks that make the service unhealthy."`
	HealthyThreshold   *uint32   `json:"healthyThreshold,omitzero" doc:"Passed checks that make it healthy again."`
	TCP                *struct{} `json:"tcp,omitzero" doc:"Check that the port accepts connections."`
}

// InboundHealth is whether the service behind the proxy is ready.
type InboundHealth struct {
	Ready bool `json:"ready,omitzero" doc:"Whether it takes traffic."`
}

// Outbound is one service that a dataplane consumes.
type Outbound struct {
	Port    uint32 `json:"port,omitzero" required:"true" min:"1" max:"65535" doc:"The local port that stands for the service."`
	Address string `json:"address,omitzero" doc:"The local address to listen on."`
	Tags    Tags   `json:"tags,omitzero" required:"true" doc:"The tags of the service; kuma.io/service is required."`
}

// DataplaneGateway makes a dataplane a gateway.
type DataplaneGateway struct {
	Type string `json:"type,omitzero" enum:"DELEGATED|BUILTIN" doc:"Who runs the gateway's proxy: DELEGATED (default) or BUILTIN."`
	Tags Tags   `json:"tags,omitzero" required:"true" doc:"The tags by which policies select the gateway; kuma.io/service is required."`
}

// Service returns the name of the service the inbound offers.
func (i *Inbound) Service() string { return i.Tags[ServiceTag] }

// Service returns the name of the service the outbound stands for.
func (o *Outbound) Service() string { return o.Tags[ServiceTag] }

// Inbounds returns the services that the dataplane offers, in document order.
func (d *Dataplane) Inbounds() []Inbound { return d.Networking.Inbound }

// Outbounds returns the services that it consumes, in document order.
func (d *Dataplane) Outbounds() []Outbound { return d.Networking.Outbound }

// IsGateway reports whether the dataplane is a gateway.
func (d *Dataplane) IsGateway() bool { return d.Networking.Gateway != nil }

// GatewayTags returns the gateway's tags, nil when it is none.
func (d *Dataplane) GatewayTags() Tags {
	if d.Networking.Gateway == nil {
		return nil
	}
	return d.Networking.Gateway.Tags
}

// TagSets returns the tag sets by which policies select the dataplane: those of
// its inbounds in document order, or the gateway's (§3.2).
func (d *Dataplane) TagSets() []Tags {
	if d.IsGateway() {
		return []Tags{d.Networking.Gateway.Tags}
	}
	sets := make([]Tags, len(d.Networking.Inbound))
	for i := range d.Networking.Inbound {
		sets[i] = d.Networking.Inbound[i].Tags
	}
	return sets
}

// Validate implements Spec (§1.5).
func (d *Dataplane) Validate(at Path, r *Report) {
	at = at.Field("networking")
	network := &d.Networking
	checkAddress(at.Field("address"), network.Address, true, r)
	checkAddress(at.Field("advertisedAddress"), network.AdvertisedAddress, false, r)
	switch {
	case network.Gateway != nil && len(network.Inbound) > 0:
		r.Errorf(at.Field("gateway"), "a dataplane has `inbound` or `gateway`, not both")
	case network.Gateway == nil && len(network.Inbound) == 0:
		r.Errorf(at, "a dataplane needs at least one `inbound`, or a `gateway`")
	}
	for i := range network.Inbound {
		inbound, path := &network.Inbound[i], at.Field("inbound").Index(i)
		checkAddress(path.Field("address"), inbound.Address, false, r)
		checkAddress(path.Field("serviceAddress"), inbound.ServiceAddress, false, r)
		checkServiceTags(path.Field("tags"), inbound.Tags, r)
	}
	for i := range network.Outbound {
		outbound, path := &network.Outbound[i], at.Field("outbound").Index(i)
		checkAddress(path.Field("address"), outbound.Address, false, r)
		checkServiceTags(path.Field("tags"), outbound.Tags, r)
	}
	if network.Gateway != nil {
		checkServiceTags(at.Field("gateway").Field("tags"), network.Gateway.Tags, r)
	}
}

// checkAddress accepts an IP address or a host name.
func checkAddress(at Path, address string, required bool, r *Report) {
	if address == "" {
		if required {
			r.Errorf(at, "is required: an IP address or a host name")
		}
		return
	}
	if ip, err := netip.ParseAddr(address); err == nil {
		if ip.IsUnspecified() && required {
			r.Errorf(at, "%s is every address and none; write the one that other proxies reach", address)
		}
		return
	}
	if !hostName(address) {
		r.Errorf(at, "%q is neither an IP address nor a host name", doctree.Clip(address))
	}
}

// hostName reports whether s may be a DNS name. A name of digits and dots alone
// is a mistyped IP address.
func hostName(s string) bool {
	if len(s) > maxName || strings.Trim(s, "0123456789.") == "" {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range label {
			letter := (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
			if !letter && !(c >= '0' && c <= '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

func checkServiceTags(at Path, tags Tags, r *Report) {
	if tags[ServiceTag] == "" {
		r.Errorf(at.Key(ServiceTag), "is required: the name of the service")
	}
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		switch value := tags[tag]; {
		case tag == "":
			r.Errorf(at, "a tag needs a name")
		case strings.ContainsFunc(tag+value, unprintable):
			r.Errorf(doctree.MemberPath(at, tag), "a tag has no characters that do not print, got %q", doctree.Clip(value))
		case value == "" && tag != ServiceTag:
			r.Errorf(doctree.MemberPath(at, tag), "a tag needs a value")
		case value == AnyValue:
			r.Errorf(doctree.MemberPath(at, tag), "%q stands for any value in a selector; a dataplane has exact values", AnyValue)
		}
	}
}

// WithZone returns the dataplane r with kuma.io/zone on every inbound and on
// the gateway (§1.5), r itself when they have it already. The error is
// a *DocumentError that names each place where r claims another zone.
func WithZone(r *Resource, zone ZoneName) (*Resource, error) {
	dataplane, ok := r.Spec().(*Dataplane)
	if !ok {
		return nil, fmt.Errorf("%s is not a Dataplane", r.Key())
	}
	report, missing := &Report{}, false
	visit := func(at Path, tags Tags) {
		switch got, ok := tags[ZoneTag]; {
		case !ok:
			missing = true
		case got != string(zone):
			report.Errorf(at.Field("tags").Key(ZoneTag), "says %q, but this is zone %q; leave the tag out", doctree.Clip(got), zone)
		}
	}
	at := Root.Field("networking")
	for i, inbound := range dataplane.Networking.Inbound {
		visit(at.Field("inbound").Index(i), inbound.Tags)
	}
	if dataplane.IsGateway() {
		visit(at.Field("gateway"), dataplane.GatewayTags())
	}
	if report.Failed() {
		return nil, &DocumentError{Key: r.Key(), Problems: report.Problems}
	}
	if !missing {
		return r, nil
	}
	return tagZone(r, zone)
}

// addZoneTag adds the tag to the tree of a dataplane's spec, where there are tags without it.
// What has another shape than a dataplane's is left to what decodes it.
func addZoneTag(spec *doctree.Node, zone ZoneName) {
	networking := spec.Get("networking")
	if networking == nil {
		return
	}
	var places []*doctree.Node
	if inbounds := networking.Get("inbound"); inbounds != nil {
		places = append(places, inbounds.Items...)
	}
	if gateway := networking.Get("gateway"); gateway != nil {
		places = append(places, gateway)
	}
	for _, place := range places {
		tags := place.Get("tags")
		if tags != nil && tags.Shape == doctree.Object && tags.Get(ZoneTag) == nil {
			tags.Members = append(tags.Members, textMember(ZoneTag, string(zone)))
		}
	}
}

// tagZone adds the tag to the canonical form, so that nothing else changes, and
// decodes it again.
func tagZone(r *Resource, zone ZoneName) (*Resource, error) {
	values, _, err := doctree.ParseJSON(r.Canonical())
	if err != nil || len(values) != 1 {
		return nil, fmt.Errorf("the spec of %s is not a JSON object", r.Key())
	}
	addZoneTag(values[0], zone)
	descriptor, _ := Describe(r.Key().Kind)
	report := &Report{}
	spec, canonical := decodeSpec(descriptor, values[0], report)
	if report.Failed() {
		return nil, &DocumentError{Key: r.Key(), Problems: report.Problems}
	}
	return New(r.Meta(), spec, canonical), nil
}
