package wire

import (
	"net"
	"slices"
	"strconv"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"meridian/internal/xds"
)

// Running is what a proxy itself says that it runs.
type Running struct {
	Resources []RunningResource
	// Left is how many more there are.
	Left int
}

// RunningResource is a resource that a proxy has, or could not use.
type RunningResource struct {
	// Type is CDS, EDS, LDS or RDS.
	Type, Name string
	// Version is the one in use, and Warming the one that is to follow; empty for none, and
	// of endpoints.
	Version, Warming string
	// Failed is why the last version could not be used; empty if it could.
	Failed string
	// Endpoints are ADDRESS:PORT, in order: the first of EndpointCount.
	Endpoints     []string
	EndpointCount int
}

// The states of Live.
const (
	// LiveSame: the proxy runs what it is sent.
	LiveSame = "same"
	// LiveOther: it runs another version.
	LiveOther = "other"
	// LiveWarming: it has this version, and waits for what that needs.
	LiveWarming = "warming"
	// LiveMissing: it has nothing of this name.
	LiveMissing = "missing"
	// LiveUnknown: it has more than it said.
	LiveUnknown = "unknown"
)

// Live is what a proxy has in place of a resource.
type Live struct {
	State string `json:"state"`
	// Version is the one that it runs; absent of endpoints, and where there is none.
	Version string `json:"version,omitempty"`
	// Message says more, such as why it could not use the last version.
	Message string `json:"message,omitempty"`
}

// Extra is a resource that a proxy has and is not sent.
type Extra struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

type runningKey struct{ typ, name string }

// String is the state as pages have it.
func (l *Live) String() string {
	switch {
	case l == nil:
		return ""
	case l.State == LiveOther && l.Version != "":
		return l.State + ": " + l.Version
	}
	return l.State
}

// compare notes what a proxy runs of the resources of a set.
func (a *Answer) compare(set *xds.Set, kind string, running *Running) error {
	have := map[runningKey]*RunningResource{}
	for i := range running.Resources {
		r := &running.Resources[i]
		key := runningKey{r.Type, r.Name}
		if other := have[key]; other != nil { // a cluster is listed twice while the next one warms
			other.Version, other.Warming = other.Version+r.Version, other.Warming+r.Warming
			continue
		}
		have[key] = r
	}
	for i := range a.Resources {
		shown := &a.Resources[i]
		key := runningKey{shown.Type, shown.Name}
		r := have[key]
		delete(have, key)
		switch {
		case r == nil && running.Left > 0:
			shown.Live = &Live{State: LiveUnknown}
			continue
		case r == nil:
			shown.Live = &Live{State: LiveMissing}
			continue
		}
		shown.Live = &Live{State: LiveOther, Version: r.Version, Message: r.Failed}
		switch {
		case shown.Type == xds.Endpoints.String():
			wanted, err := endpointsIn(set.Get(xds.Ref{Type: xds.Endpoints, Name: shown.Name}))
			if err != nil {
				return err
			}
			shown.Live.State, shown.Live.Message = compareEndpoints(wanted, r)
		case r.Version == shown.Version:
			shown.Live.State = LiveSame
		case r.Warming == shown.Version:
			shown.Live.State = LiveWarming
		case r.Version == "":
			shown.Live.State = LiveMissing
		}
	}
	for key, r := range have {
		if kind != "" && kind != key.typ {
			continue
		}
		if key.typ == xds.Endpoints.String() && set.Get(xds.Ref{Type: xds.Cluster, Name: key.name}) != nil {
			continue // they are in the cluster of that name
		}
		a.Extra = append(a.Extra, Extra{key.typ, key.name, r.Version})
	}
	slices.SortFunc(a.Extra, func(x, y Extra) int {
		return slices.Compare([]string{x.Type, x.Name}, []string{y.Type, y.Name})
	})
	return nil
}

// endpointsIn are the endpoints of a resource as RunningResource has them.
func endpointsIn(r *xds.Resource) ([]string, error) {
	if r == nil {
		return nil, nil
	}
	m, err := r.Message()
	if err != nil {
		return nil, err
	}
	var list []string
	assignment, _ := m.(*endpointv3.ClusterLoadAssignment)
	for _, locality := range assignment.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			list = append(list, net.JoinHostPort(at.GetAddress(), strconv.FormatUint(uint64(at.GetPortValue()), 10)))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// compareEndpoints says how the endpoints that a proxy has stand to those that it is sent.
func compareEndpoints(wanted []string, r *RunningResource) (state, message string) {
	first := wanted[:min(len(wanted), len(r.Endpoints))]
	if len(wanted) == r.EndpointCount && slices.Equal(first, r.Endpoints) {
		return LiveSame, ""
	}
	message = "it has " + strconv.Itoa(r.EndpointCount) + " of endpoints, and is sent " + strconv.Itoa(len(wanted))
	for _, e := range wanted {
		if len(r.Endpoints) == r.EndpointCount && !slices.Contains(r.Endpoints, e) {
			return LiveOther, message + ": without " + e + ", for one"
		}
	}
	for _, e := range r.Endpoints {
		if !slices.Contains(wanted, e) {
			return LiveOther, message + ": also " + e + ", for one"
		}
	}
	return LiveOther, message
}
