package serve

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/xds"
)

const (
	// maxCarriedBytes bounds what a version carries, as it is sent.
	maxCarriedBytes = 64 << 10
	// maxUnpackedBytes bounds that unpacked.
	maxUnpackedBytes = 512 << 10
	// maxCarriedHosts bounds the virtual hosts of carried routes: each of them names what
	// introduces a cluster. Routes of an outbound have one.
	maxCarriedHosts = 4
	// carries is between the hash of a version and what it carries.
	carries = "."
)

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // of a level that does not exist
	}
	return w
}}

// carried returns what the version of a response carries beside its hash: everything that
// the client has of a type once it has taken on some changes. It names that version on its
// next stream, also to a zone that has restarted. Empty if there is nothing to carry, or
// too much.
//
// Clusters and the routes to them are carried of a client that follows references, in the
// variant state of the world: see reroute. Clients take no notice of what a version is.
func (s *Stream) carried(typ xds.Type, changes []change) string {
	if s.cfg.Delta || !s.follows() || typ != xds.Cluster && typ != xds.Route {
		return ""
	}
	if slices.ContainsFunc(changes, func(c change) bool { return c.variant.delayed }) {
		return "" // the calls of these routes wait, which is not to be repeated
	}
	m, size, leads := &discoveryv3.DiscoveryResponse{}, 0, typ == xds.Cluster
	for _, r := range s.world(typ, changes) {
		if r.Body == nil {
			return ""
		}
		leads = leads || slices.ContainsFunc(r.Uses, func(used xds.Ref) bool { return used.Type == xds.Cluster })
		if size += sentBytes(r); size > maxUnpackedBytes {
			return ""
		}
		body := &anypb.Any{}
		if err := proto.Unmarshal(r.Body, body); err != nil {
			return ""
		}
		m.Resources = append(m.Resources, body)
	}
	if !leads { // routes of a server
		return ""
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		return ""
	}
	var packed bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&packed)
	if _, err := w.Write(raw); err != nil {
		return ""
	}
	if err := w.Close(); err != nil {
		return ""
	}
	text := carries + base64.RawURLEncoding.EncodeToString(packed.Bytes())
	if len(text) > maxCarriedBytes {
		return ""
	}
	return text
}

// unpacked returns what a version carries of a type, by name. It is what the client says,
// and is repeated to that client only. ok is false if the version carries nothing that can
// be read.
func (s *Stream) unpacked(typ xds.Type, carried string) (all map[string]had, ok bool) {
	if carried == "" || len(carried) > maxCarriedBytes || typ != xds.Cluster && typ != xds.Route {
		return nil, false
	}
	packed, err := base64.RawURLEncoding.DecodeString(carried)
	if err != nil {
		return nil, false
	}
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxUnpackedBytes+1))
	if err != nil || len(raw) > maxUnpackedBytes {
		return nil, false
	}
	m := &discoveryv3.DiscoveryResponse{}
	if proto.Unmarshal(raw, m) != nil {
		return nil, false
	}
	all = map[string]had{}
	for _, body := range m.GetResources() {
		message, err := body.UnmarshalNew()
		if err != nil {
			return nil, false
		}
		r, err := xds.New(message)
		if err != nil || r.Type != typ {
			return nil, false
		}
		h := had{held: r}
		if routes, is := message.(*routev3.RouteConfiguration); is {
			if len(routes.GetVirtualHosts()) > maxCarriedHosts {
				return nil, false
			}
			if h.variant, err = s.variantOf(routes, r); err != nil {
				return nil, false
			}
		}
		all[r.Name] = h
	}
	return all, true
}

// errSpares: this zone names fewer clusters that calls have left.
var errSpares = errors.New("too many clusters without calls")

// variantOf returns which of the clusters that routes name only routes name which never
// match, as withUnmatched makes them. They count as left by calls just now.
func (s *Stream) variantOf(config *routev3.RouteConfiguration, held *xds.Resource) (variant, error) {
	for _, host := range config.GetVirtualHosts() {
		host.Routes = slices.DeleteFunc(host.GetRoutes(), func(r *routev3.Route) bool {
			return slices.ContainsFunc(r.GetMatch().GetHeaders(), func(h *routev3.HeaderMatcher) bool { return h.GetName() == never })
		})
	}
	base, err := xds.New(config)
	if err != nil || base.Version == held.Version {
		return variant{}, err
	}
	v := variant{base: base}
	for _, used := range held.Uses {
		if _, calls := slices.BinarySearchFunc(base.Uses, used, xds.Ref.Compare); calls || used.Type != xds.Cluster {
			continue
		}
		if len(v.spares) == maxSpares {
			return variant{}, errSpares
		}
		v.spares = spared(v.spares, used.Name, s.now)
	}
	return v, nil
}

// resume has the client stand where it stood when its last stream ended, if the version
// that it names is that of then, or carries that. It may have dropped something since
// without a sign of it in its version: what it is to have is sent once more. What it has is
// what it asks for before it answers anything: gRPC asks for all that it has used before as
// the stream begins.
func (s *Stream) resume(typ xds.Type, version string) {
	t := &s.types[typ]
	if version == "" {
		return
	}
	version, carried, _ := strings.Cut(version, carries)
	t.version = version
	if s.answered {
		return
	}
	all := s.cfg.Memory.resume(typ, version)
	known := all != nil
	if !known {
		all, known = s.unpacked(typ, carried)
	}
	for name, e := range t.entries {
		if h, has := all[name]; has {
			e.held, e.variant, e.again = h.held, h.variant, true
		}
		e.brought = !known
	}
}

// begin notes the time of the first Next. What is carried by then has been left by calls
// until now.
func (s *Stream) begin(now time.Time) {
	s.begun = now
	for _, e := range s.types[xds.Route].entries {
		for name, since := range e.variant.spares {
			if since.IsZero() {
				e.variant.spares[name] = now
			}
		}
	}
}

// doubt forgets what is known of the routes that a client brought along if it brought a
// cluster along, too, of which nothing is known and which does not exist any more: there
// is no response with clusters that would leave it that one.
func (s *Stream) doubt() {
	if s.cfg.Delta || !s.lacks() {
		return
	}
	for _, e := range s.types[xds.Route].entries {
		if e.again {
			e.held, e.variant, e.brought, e.again = nil, variant{}, true, false
		}
	}
}

// lacks reports whether the client has a cluster that does not exist any more, and of which
// nothing is known.
func (s *Stream) lacks() bool {
	for name, e := range s.types[xds.Cluster].entries {
		if e.brought && !s.exists(xds.Cluster, name) {
			return true
		}
	}
	return false
}
