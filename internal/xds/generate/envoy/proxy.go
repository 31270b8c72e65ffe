package envoy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/world"
)

// Proxy makes everything that a dataplane's Envoy is sent. The error wraps
// xds.ErrNoDataplane.
func Proxy(m *policy.Matcher, w *world.World, key resource.Key, asOf resource.Revision) (*xds.Set, error) {
	spec, rules, err := generate.Read(m, w, key)
	if err != nil {
		return nil, err
	}
	if reason := generate.Withheld(key, spec, w); reason != "" {
		return xds.WithheldSet(asOf, reason), nil
	}
	tried, err := generate.TriedOn(m, key)
	if err != nil {
		return nil, err
	}
	settings := w.MeshOf(key)
	endpoints := func(s resource.TagSelector) *world.Endpoints { return w.Endpoints(key.Mesh, s) }
	shared, err := Shared(key.Mesh, settings, spec, rules, tried,
		func(service string) []*resource.Resource { return w.Routes(key.Mesh, service) },
		func(s resource.TagSelector) world.Protocol { return endpoints(s).Protocol })
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	own, err := Inbounds(key, settings, spec, rules, tried)
	if err != nil {
		return nil, fmt.Errorf("dataplane %s: %w", key.Name, err)
	}
	return generate.Assemble(asOf, own, shared, xds.Envoy, endpoints)
}

// localhost is where applications are, and where their outbounds listen.
const localhost = "127.0.0.1"

// place is an address to listen on.
type place struct {
	address string
	port    uint32
}

// Unserved is an inbound or outbound for which Envoy has no listener.
type Unserved struct {
	Attachment policy.Attachment
	// Field is its place in the dataplane's spec, as a JSON pointer.
	Field string
	// Why is a sentence about the reason.
	Why string
}

// inbound is one listener for requests of others.
type inbound struct {
	place
	*resource.Inbound
	// name is that of the listener and its routes; cluster that of the application.
	name, cluster string
}

// placeOf is where the listener of an inbound is.
func placeOf(spec *resource.Dataplane, in *resource.Inbound) place {
	return place{cmp.Or(in.Address, spec.Networking.Address), in.Port}
}

func attachmentOf(in *resource.Inbound) policy.Attachment {
	return policy.Attachment{Type: policy.OnInbound, Port: in.Port, Service: in.Service(), Tags: in.Tags}
}

// outbound is one listener for requests of the application.
type outbound struct {
	place
	policy.Attachment
}

// listeners are those of a dataplane.
type listeners struct {
	inbounds  []inbound
	outbounds []outbound
	unserved  []Unserved
}

// listenersOf lists the listeners of a dataplane. Of several for one address and port the
// first has it; inbounds come before outbounds.
func listenersOf(spec *resource.Dataplane) listeners {
	var all listeners
	taken, clusters := map[place]string{}, map[string]bool{}
	for i := range spec.Inbounds() {
		in := &spec.Networking.Inbound[i]
		at, a := placeOf(spec, in), attachmentOf(in)
		refuse := func(why string) {
			all.unserved = append(all.unserved, Unserved{a, fmt.Sprintf("/networking/inbound/%d", i), why})
		}
		_, err := netip.ParseAddr(at.address)
		switch {
		case err != nil:
			refuse("Envoy listens on IP addresses, and " + at.address + " is a host name: write the IP address, in networking.address or in the inbound's")
		case application(in) == at:
			refuse(fmt.Sprintf("Envoy would connect to itself: the application has to listen at another address or port than %s:%d, with servicePort or serviceAddress", at.address, at.port))
		case taken[at] != "":
			// Inbounds may share a port: the first decides how it is served.
			if taken[at] != string(world.ProtocolOf(in.Tags))+" "+fmt.Sprint(application(in)) {
				refuse("an inbound before it has the same address and port, with another protocol or application")
			}
		default:
			taken[at] = string(world.ProtocolOf(in.Tags)) + " " + fmt.Sprint(application(in))
			port := strconv.FormatUint(uint64(in.Port), 10)
			made := inbound{at, in, xds.EnvoyInbound + port, "local_" + port}
			if at.address != spec.Networking.Address {
				made.name += "_" + world.Hash(at.address)
			}
			if clusters[made.cluster] {
				made.cluster += "_" + world.Hash(at.address)
			}
			clusters[made.cluster] = true
			all.inbounds = append(all.inbounds, made)
		}
	}
	for i, out := range spec.Outbounds() {
		at := place{cmp.Or(out.Address, localhost), out.Port}
		a := policy.Attachment{Type: policy.OnOutbound, Port: out.Port, Service: out.Service(), Tags: out.Tags}
		refuse := func(why string) {
			all.unserved = append(all.unserved, Unserved{a, fmt.Sprintf("/networking/outbound/%d", i), why})
		}
		_, err := netip.ParseAddr(at.address)
		switch {
		case err != nil:
			refuse("Envoy listens on IP addresses, and " + at.address + " is a host name")
		case taken[at] != "":
			refuse("an inbound or outbound before it has the same address and port")
		default:
			taken[at] = "outbound"
			all.outbounds = append(all.outbounds, outbound{at, a})
		}
	}
	return all
}

// NotServed lists the inbounds and outbounds of a dataplane for which Envoy has no
// listener.
func NotServed(spec *resource.Dataplane) []Unserved { return listenersOf(spec).unserved }

// application is where the application behind an inbound listens.
func application(in *resource.Inbound) place {
	return place{cmp.Or(in.ServiceAddress, localhost), cmp.Or(in.ServicePort, in.Port)}
}
