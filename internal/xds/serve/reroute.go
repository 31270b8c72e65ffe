package serve

import (
	"maps"
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"meridian/internal/xds"
)

const (
	// patience bounds how long routes wait for a client to take on the clusters that are
	// new in them, or to give up those that come back in them.
	patience = 5 * time.Second
	// maxSpares bounds how many clusters one route configuration names without sending
	// calls to them.
	maxSpares = 64
)

// variant is how a client has routes that name clusters beside those that calls go to.
// The zero value is that of routes that do not.
type variant struct {
	// base are the routes without them: where calls go.
	base *xds.Resource
	// spares are the clusters that only routes which never match name, and since when.
	spares map[string]time.Time
	// delayed: calls by routes to clusters that are new to the client wait for a moment.
	delayed bool
}

// live returns the routes that the client's calls follow, or any other resource that it
// has; nil for none.
func (e *entry) live() *xds.Resource {
	if e.variant.base != nil {
		return e.variant.base
	}
	return e.held
}

// has reports whether the client has a version of a resource, or routes that come to it.
func (e *entry) has(r *xds.Resource) bool {
	live := e.live()
	return live != nil && live.Version == r.Version
}

// follows reports whether the client asks for the clusters that its routes name, as gRPC
// does. One that receives all clusters has them before its routes, and keeps those that
// routes have left for the time Drain.
func (s *Stream) follows() bool { return !s.types[xds.Cluster].wildcard }

// reroute returns what to send to a client that follows references, to have routes in the
// place of others: nothing if it has them. wait means that something of the client has to
// come first.
//
// gRPC sends calls by new routes a moment before it can use the clusters that are new in
// them: such calls fail. So clusters are introduced by routes that never match. A cluster
// that no route names any more it gives up once the calls that chose it are under way. If
// routes name it again meanwhile, it can lose count of who uses it, and fail calls when
// the cluster is left the next time. So routes name a cluster for the time Drain
// after calls have left it, and one that they do not name any more is not introduced
// before the client has unsubscribed from it.
func (s *Stream) reroute(name string, e *entry, target *xds.Resource) (c *change, wait bool) {
	if e.has(target) && e.variant.delayed && e.maybe == nil {
		if e.awaits.IsZero() {
			e.awaits = s.now
		}
		if due := e.awaits.Add(patience); s.now.Before(due) && slices.ContainsFunc(target.Uses, func(used xds.Ref) bool {
			return used.Type == xds.Cluster && s.set.Get(used) != nil && !s.usable(used)
		}) {
			s.wakeAt(due)
			return nil, true
		}
		return &change{name: name, entry: e, to: target}, false
	}
	if e.has(target) {
		e.awaits = time.Time{}
		spares := s.undue(e.variant.spares)
		if len(spares) == len(e.variant.spares) && !e.force && !e.again && e.maybe == nil {
			return nil, false
		}
		if ready, stuck := s.ready(target); !ready {
			return nil, !stuck
		}
		return s.with(name, e, target, target, spares), false
	}
	if s.types[xds.Route].out != nil {
		return nil, true
	}
	if e.refused != target.Version {
		if e.awaits.IsZero() {
			e.awaits = s.now
		}
		due := e.awaits.Add(patience)
		unknown, missing := s.missing(e, target)
		if missing && s.now.Before(due) {
			s.wakeAt(due)
			return nil, true
		}
		if len(unknown) > 0 {
			spares := maps.Clone(e.variant.spares)
			for _, used := range unknown {
				spares = spared(spares, used.Name, s.now)
			}
			if c := s.with(name, e, target, e.live(), spares); c.target != nil {
				return c, true
			}
		}
	}
	if ready, stuck := s.ready(target); !ready {
		return nil, !stuck
	}
	spares := s.undue(e.variant.spares)
	for _, used := range e.live().Uses {
		if used.Type == xds.Cluster {
			spares = spared(spares, used.Name, s.now)
		}
	}
	for _, used := range target.Uses {
		delete(spares, used.Name)
	}
	return s.with(name, e, target, target, spares), false
}

// delay is how long a call waits by a route to a cluster that a client has not been able to
// take on first.
const delay = 100 * time.Millisecond

// startOver returns what to send to a client that has routes which are not known here: its
// version carries none, or too much. That is the target, with clusters that are new to the
// client. Nothing can introduce them. So calls by routes to them wait for a moment between
// the choice of the cluster and that of a server: gRPC can use the cluster by then. Routes to
// no cluster, such as those of a server with its permissions, wait for nothing.
func (s *Stream) startOver(name string, e *entry, target *xds.Resource) (c *change, wait bool) {
	clusters := &s.types[xds.Cluster]
	toCluster := func(used xds.Ref) bool { return used.Type == xds.Cluster }
	if !clusters.asked && slices.ContainsFunc(target.Uses, toCluster) && s.early() {
		return nil, true
	}
	if ready, stuck := s.ready(target); !ready {
		return nil, !stuck
	}
	var unknown []string
	for _, used := range target.Uses {
		if toCluster(used) && !s.subscribed(clusters, used.Name) {
			unknown = append(unknown, used.Name)
		}
	}
	if len(unknown) > 0 && e.refused != target.Version {
		if to, err := withDelays(target, unknown); err == nil && to.Version != target.Version {
			return &change{name: name, entry: e, to: to, target: target, variant: variant{base: target, delayed: true}}, false
		}
	}
	return &change{name: name, entry: e, to: target}, false
}

// withDelays returns routes of which those to some clusters delay calls.
func withDelays(routes *xds.Resource, clusters []string) (*xds.Resource, error) {
	m, err := routes.Message()
	if err != nil {
		return nil, err
	}
	packed, err := xds.Pack(&faultv3.HTTPFault{Delay: &commonfaultv3.FaultDelay{
		FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: durationpb.New(delay)},
		Percentage:         &typev3.FractionalPercent{Numerator: 100},
	}})
	if err != nil {
		return nil, err
	}
	filter := xds.FaultFilter(xds.FaultFilters - 1)
	config := m.(*routev3.RouteConfiguration)
	for _, host := range config.GetVirtualHosts() {
		for _, route := range host.GetRoutes() {
			to := route.GetRoute()
			some := slices.Contains(clusters, to.GetCluster())
			for _, share := range to.GetWeightedClusters().GetClusters() {
				some = some || slices.Contains(clusters, share.GetName())
			}
			if !some {
				continue
			}
			if route.TypedPerFilterConfig == nil {
				route.TypedPerFilterConfig = map[string]*anypb.Any{}
			}
			route.TypedPerFilterConfig[filter] = packed
		}
	}
	return xds.New(config, routes.Origins...)
}

// missing returns the clusters of routes that those of the client do not name. missing
// means that the client has first to give up one of them, or to take on one of the
// others.
func (s *Stream) missing(e *entry, target *xds.Resource) (unknown []xds.Ref, missing bool) {
	cold := false
	for _, used := range target.Uses {
		switch {
		case used.Type != xds.Cluster || s.set.Get(used) == nil:
		case !slices.Contains(e.held.Uses, used):
			unknown = append(unknown, used)
			missing = missing || s.leaving(used)
		case !slices.Contains(e.live().Uses, used):
			cold = cold || !s.usable(used)
		}
	}
	return unknown, missing || cold && len(unknown) == 0
}

// leaving reports whether a client has a cluster that none of its routes name, or may
// have: it has not said yet which it has.
func (s *Stream) leaving(ref xds.Ref) bool {
	clusters := &s.types[xds.Cluster]
	if !clusters.asked {
		return len(s.usage(xds.Route).refs) > 0
	}
	return s.subscribed(clusters, ref.Name) && !s.inUse(ref, xds.Listener, xds.Route)
}

// usable reports whether a client has a cluster with its endpoints, or never will.
func (s *Stream) usable(ref xds.Ref) bool {
	cluster, _ := s.target(ref)
	if !s.subscribed(&s.types[xds.Cluster], ref.Name) {
		return false
	}
	if settled, stuck := s.settled(ref); !settled || cluster == nil {
		return stuck || settled
	}
	for _, used := range cluster.Uses {
		endpoints := &s.types[used.Type]
		if target, exists := s.target(used); exists && target == nil {
			continue // it has refused them
		}
		if e := endpoints.entries[used.Name]; e == nil || e.held == nil {
			return false
		}
	}
	return true
}

// undue returns the spare clusters that are to stay for now.
func (s *Stream) undue(spares map[string]time.Time) map[string]time.Time {
	var rest map[string]time.Time
	for name, since := range spares {
		if due := since.Add(s.cfg.Drain); s.now.Before(due) {
			s.wakeAt(due)
			rest = spared(rest, name, since)
		}
	}
	return rest
}

// spared adds a cluster to spare ones, if need be in the place of the oldest.
func spared(spares map[string]time.Time, name string, since time.Time) map[string]time.Time {
	if spares == nil {
		spares = map[string]time.Time{}
	}
	spares[name] = since
	if len(spares) > maxSpares {
		delete(spares, slices.MinFunc(slices.Sorted(maps.Keys(spares)), func(a, b string) int { return spares[a].Compare(spares[b]) }))
	}
	return spares
}

// with returns the change to routes with spare clusters, on the way to a target; to the
// target itself if the client refused such routes, or they cannot be made.
func (s *Stream) with(name string, e *entry, target, base *xds.Resource, spares map[string]time.Time) *change {
	if len(spares) > 0 && e.refused != target.Version {
		if to, err := withUnmatched(base, slices.Sorted(maps.Keys(spares))); err == nil && to.Version != base.Version {
			return &change{name: name, entry: e, to: to, target: target, variant: variant{base: base, spares: spares}}
		}
	}
	return &change{name: name, entry: e, to: target}
}

// withUnmatched returns routes with routes to clusters after them that match nothing.
func withUnmatched(routes *xds.Resource, clusters []string) (*xds.Resource, error) {
	m, err := routes.Message()
	if err != nil {
		return nil, err
	}
	config := m.(*routev3.RouteConfiguration)
	for _, host := range config.GetVirtualHosts() {
		for _, cluster := range clusters {
			host.Routes = append(host.Routes, &routev3.Route{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}, Headers: []*routev3.HeaderMatcher{
					{Name: never, HeaderMatchSpecifier: contains(never)},
					{Name: never, HeaderMatchSpecifier: contains(never), InvertMatch: true},
				}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
			})
		}
	}
	return xds.New(config, routes.Origins...)
}

// never is the name of a header of which a route demands both that it has a value and
// that it has not.
const never = "meridian-never"

func contains(text string) *routev3.HeaderMatcher_StringMatch {
	return &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}}
}

// wakeAt has Next called at a time, unless it is to be called before.
func (s *Stream) wakeAt(at time.Time) {
	if s.wake.IsZero() || at.Before(s.wake) {
		s.wake = at
	}
}
