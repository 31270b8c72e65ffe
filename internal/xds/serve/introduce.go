package serve

import (
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meridian/internal/xds"
)

// introduction bounds how long routes wait for a client to take on the clusters that
// are new in them.
const introduction = 5 * time.Second

// introduced is what a client has in the place of routes with clusters that are new to
// it: the routes it had, with the new clusters in routes that never match.
type introduced struct {
	// base are the routes that it had.
	base *xds.Resource
	// to is the version of the routes that are to follow, since when they wait.
	to    string
	since time.Time
}

// introduce returns what to send to a client in the place of routes that are to be sent
// to it: nil for nothing in their place, or routes that introduce what is new to it.
// wait means that it is to take on first what has been introduced. A client that
// receives all clusters has them before their routes anyway. One that follows
// references has not, and gRPC sends calls by new routes a moment before it can
// use clusters that are new in them: such calls fail.
func (s *Stream) introduce(e *entry, to *xds.Resource) (instead *xds.Resource, wait bool) {
	if e == nil || known(e.held) == nil || s.types[xds.Cluster].wildcard || to.Version == e.held.Version {
		return nil, false
	}
	var unknown []string
	cold := false
	for _, used := range to.Uses {
		switch {
		case used.Type != xds.Cluster || s.set.Get(used) == nil:
		case !slices.Contains(e.held.Uses, used):
			unknown = append(unknown, used.Name)
		case e.introduced.base != nil && !s.usable(used):
			cold = true
		}
	}
	if len(unknown) == 0 {
		if due := e.introduced.since.Add(introduction); cold && s.now.Before(due) {
			s.wakeAt(due)
			return nil, true
		}
		return nil, false
	}
	base := e.introduced.base
	if base == nil {
		base = e.held
	}
	if e.introduced.to == to.Version {
		return nil, false // the client refused the introduction
	}
	instead, err := withUnmatched(base, to.Uses)
	if err != nil {
		return nil, false // what cannot be read is not the client's to wait for
	}
	return instead, false
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

// withUnmatched returns routes with routes to clusters after them that match nothing.
func withUnmatched(routes *xds.Resource, clusters []xds.Ref) (*xds.Resource, error) {
	m, err := routes.Message()
	if err != nil {
		return nil, err
	}
	config := m.(*routev3.RouteConfiguration)
	for _, host := range config.GetVirtualHosts() {
		for _, used := range clusters {
			if slices.Contains(routes.Uses, used) {
				continue
			}
			host.Routes = append(host.Routes, &routev3.Route{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}, Headers: []*routev3.HeaderMatcher{
					{Name: never, HeaderMatchSpecifier: contains(never)},
					{Name: never, HeaderMatchSpecifier: contains(never), InvertMatch: true},
				}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: used.Name}}},
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
