package world

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"meridian/internal/resource"
)

// Endpoint is one address that takes requests for a service.
type Endpoint struct {
	// Address is an IP address or a host name.
	Address string
	Port    uint32
	// Dataplane is the name of the dataplane that offers it.
	Dataplane string
	// TLS is whether an outbound that can choose is to use mutual TLS to it.
	TLS bool
	// Envoy is whether an Envoy takes the requests.
	Envoy bool
}

// Locality is the endpoints of one zone, by address, then port.
type Locality struct {
	Zone resource.ZoneName
	// Priority is 0 for those that are used first. It is 1 for other zones than the
	// own one where the mesh prefers endpoints of the own zone and that has some.
	Priority  uint32
	Endpoints []Endpoint
}

// Endpoints is everything behind one selector in one mesh. Immutable; equal ones are
// the same pointer for as long as nothing changes.
type Endpoints struct {
	Key
	// Protocol is what all inbounds speak that the selector matches, also those that take
	// no requests at the moment. Of endpoints that are followed it stays when the last
	// inbound goes, until there is another one.
	Protocol Protocol
	// Localities are in order of priority, then zone. Each has endpoints, and no
	// address occurs twice.
	Localities []Locality

	once sync.Once
	made any
}

// Made returns what the first caller made of the endpoints, so that all proxies share
// it. Every caller makes the same.
func (e *Endpoints) Made(make func() any) any {
	e.once.Do(func() { e.made = make() })
	return e.made
}

// AllTLS reports whether there are endpoints, and an outbound that can choose is to use
// mutual TLS to each.
func (e *Endpoints) AllTLS() bool {
	return len(e.Localities) > 0 && !slices.ContainsFunc(e.Localities, func(l Locality) bool {
		return slices.ContainsFunc(l.Endpoints, func(at Endpoint) bool { return !at.TLS })
	})
}

// equal reports whether two have the same content.
func (e *Endpoints) equal(other *Endpoints) bool {
	return e.Protocol == other.Protocol && slices.EqualFunc(e.Localities, other.Localities, func(a, b Locality) bool {
		return a.Zone == b.Zone && a.Priority == b.Priority && slices.Equal(a.Endpoints, b.Endpoints)
	})
}

// Key names the endpoints behind a selector.
type Key struct {
	Mesh    resource.MeshName
	Service string
	// selector is the whole selector, spelled so that equal ones have equal spellings.
	selector string
}

// KeyOf returns the key of a selector, which names one service exactly.
func KeyOf(mesh resource.MeshName, selector resource.TagSelector) Key {
	return Key{mesh, selector[resource.ServiceTag], spell(selector)}
}

// hashBytes is how much of a hash stands in a name: enough that two selectors of a
// zone never share one.
const hashBytes = 10

var nameHash = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Hash returns a short text for a list of texts; two lists never share one.
func Hash(texts ...string) string {
	var b []byte
	for _, t := range texts {
		b = strconv.AppendQuote(b, t)
	}
	sum := sha256.Sum256(b)
	return nameHash.EncodeToString(sum[:hashBytes])
}

// Name is the name of the endpoints as a resource for proxies, the same in every
// zone.
func (k Key) Name() string {
	return "ep_" + Label(k.Service) + "_" + Hash(string(k.Mesh), k.selector)
}

// maxLabel bounds the part of a resource's name that is for people, in bytes.
const maxLabel = 64

// Label is a service's name as part of the name of a resource: without characters
// that separate parts of the names of statistics, and bounded. It is for people; two
// services may share one.
func Label(service string) string {
	label := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		default:
			return '_'
		}
	}, service)
	return label[:min(len(label), maxLabel)]
}

// spell writes a selector so that equal selectors, and only they, are spelled the
// same.
func spell(selector map[string]string) string {
	var b []byte
	for _, tag := range slices.Sorted(maps.Keys(selector)) {
		b = strconv.AppendQuote(b, tag)
		b = strconv.AppendQuote(b, selector[tag])
	}
	return string(b)
}

// instance is one inbound that takes requests.
type instance struct {
	Endpoint
	tags resource.Tags
	zone resource.ZoneName
	// away: it takes no requests. nameless: its dataplane can have no certificate.
	away, nameless bool
	// key is that of its dataplane.
	key resource.Key
}

// compare orders instances as endpoints are listed. Those that it calls equal are the
// same endpoint in the same zone: their other tags show nowhere.
func (a *instance) compare(b *instance) int {
	return cmp.Or(
		strings.Compare(string(a.zone), string(b.zone)), strings.Compare(a.Address, b.Address),
		cmp.Compare(a.Port, b.Port), strings.Compare(a.Dataplane, b.Dataplane),
	)
}

// tagValue is a tag with a value, which is resource.AnyValue for any.
type tagValue struct{ tag, value string }

// indexByTag lists instances by their tags, in order.
func indexByTag(all map[string][]*instance) map[tagValue][]*instance {
	sorted := slices.Concat(slices.Collect(maps.Values(all))...)
	slices.SortFunc(sorted, (*instance).compare)
	index := map[tagValue][]*instance{}
	for _, in := range sorted {
		for tag, value := range in.tags {
			index[tagValue{tag, resource.AnyValue}] = append(index[tagValue{tag, resource.AnyValue}], in)
			if value != resource.AnyValue {
				index[tagValue{tag, value}] = append(index[tagValue{tag, value}], in)
			}
		}
	}
	return index
}

// matching lists the instances that a selector matches.
func matching(selector resource.TagSelector, of []*instance) (found []*instance) {
	for _, in := range of {
		if selector.Matches(in.tags) {
			found = append(found, in)
		}
	}
	return found
}

// replace returns instances in order without those that are gone and with those that
// came, in a new slice. It passes over them once.
func replace(instances, gone, came []*instance) []*instance {
	without := make(map[*instance]bool, len(gone))
	for _, in := range gone {
		without[in] = true
	}
	slices.SortFunc(came, (*instance).compare)
	next := make([]*instance, 0, max(0, len(instances)+len(came)-len(gone)))
	for _, in := range instances {
		if without[in] {
			continue
		}
		for len(came) > 0 && came[0].compare(in) < 0 {
			next, came = append(next, came[0]), came[1:]
		}
		next = append(next, in)
	}
	return append(next, came...)
}

// instancesOf lists the inbounds of a dataplane. One whose health says that it is not
// ready takes no requests, nor does a dataplane that is draining.
func (w *World) instancesOf(r *resource.Resource) []*instance {
	draining := r.Meta().Labels[resource.DrainingLabel] == resource.Draining
	spec := r.Spec().(*resource.Dataplane)
	nameless := w.unnamed(r) != ""
	var found []*instance
	for i := range spec.Inbounds() {
		in := &spec.Networking.Inbound[i]
		found = append(found, &instance{
			Endpoint: Endpoint{Address: cmp.Or(in.Address, spec.Networking.Address), Port: in.Port, Dataplane: r.Key().Name},
			tags:     in.Tags, zone: resource.ZoneName(in.Tags[resource.ZoneTag]), key: r.Key(), nameless: nameless, away: draining || in.Health != nil && !in.Health.Ready,
		})
	}
	return found
}

// assign makes the endpoints of instances, which are in order. Two dataplanes that claim
// one address are one endpoint, that of the name that sorts first in the first zone: a
// client refuses a list with an address twice. Where every connection is mutual TLS, a
// dataplane that has no certificate is no endpoint.
func (w *World) assign(key Key, instances []*instance, settings Mesh) *Endpoints {
	zone, preferOwn := w.zone, settings.PreferOwnZone
	type address struct {
		host string
		port uint32
	}
	e := &Endpoints{Key: key, Protocol: common(instances)}
	taken := make(map[address]bool, len(instances))
	for _, in := range instances {
		at := address{in.Address, in.Port}
		if in.away || taken[at] || settings.Secure() && (in.nameless || w.proxies[in.key].leftOut()) {
			continue
		}
		taken[at] = true
		last := len(e.Localities) - 1
		if last < 0 || e.Localities[last].Zone != in.zone {
			e.Localities = append(e.Localities, Locality{Zone: in.zone})
			last++
		}
		endpoint := in.Endpoint
		endpoint.TLS = settings.Certified() && (!settings.Permissive || w.proxies[in.key].certified && w.proxies[in.key].listening)
		endpoint.Envoy = w.proxies[in.key].envoy
		e.Localities[last].Endpoints = append(e.Localities[last].Endpoints, endpoint)
	}
	own := slices.ContainsFunc(e.Localities, func(l Locality) bool { return l.Zone == zone })
	if preferOwn && own {
		for i := range e.Localities {
			if e.Localities[i].Zone != zone {
				e.Localities[i].Priority = 1
			}
		}
		slices.SortStableFunc(e.Localities, func(a, b Locality) int { return cmp.Compare(a.Priority, b.Priority) })
	}
	return e
}

// Protocol is what the endpoints of a service speak, by their tag kuma.io/protocol.
type Protocol string

// The protocols that proxies know. Everything else is TCP to them.
const (
	TCP   Protocol = "tcp"
	HTTP  Protocol = "http"
	HTTP2 Protocol = "http2"
	GRPC  Protocol = "grpc"
)

// ProtocolOf is the protocol that an inbound's tags name.
func ProtocolOf(tags resource.Tags) Protocol {
	switch p := Protocol(tags[resource.ProtocolTag]); p {
	case HTTP, HTTP2, GRPC:
		return p
	}
	return TCP
}

// common is the most that all instances speak: gRPC is HTTP/2, which is HTTP, which is
// TCP. None speak TCP.
func common(instances []*instance) Protocol {
	order := []Protocol{TCP, HTTP, HTTP2, GRPC}
	least := len(order) - 1
	for _, in := range instances {
		least = min(least, slices.Index(order, ProtocolOf(in.tags)))
	}
	if len(instances) == 0 {
		return TCP
	}
	return order[least]
}
