package serve

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// require's and rapid's T.
type testT interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
}

func made(t testT, m proto.Message) *xds.Resource {
	t.Helper()
	r, err := xds.New(m)
	require.NoError(t, err)
	return r
}

// The resources of the tests: a number makes versions differ.

func clusterOf(t testT, name string, version int) *xds.Resource {
	return made(t, &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(time.Duration(version) * time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{ServiceName: "e" + name},
	})
}

func endpointsOf(t testT, cluster string, version int) *xds.Resource {
	return made(t, &endpointv3.ClusterLoadAssignment{
		ClusterName: "e" + cluster,
		Policy:      &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(uint32(version + 100))},
	})
}

func routesOf(t testT, name string, version int, clusters ...string) *xds.Resource {
	host := &routev3.VirtualHost{Name: fmt.Sprint(version)}
	for _, c := range clusters {
		host.Routes = append(host.Routes, &routev3.Route{Action: &routev3.Route_Route{
			Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: c}},
		}})
	}
	return made(t, &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}})
}

func listenerOf(t testT, name string, version int, routes string) *xds.Resource {
	manager, err := xds.Pack(&httpv3.HttpConnectionManager{
		StatPrefix:     fmt.Sprint(version),
		RouteSpecifier: &httpv3.HttpConnectionManager_Rds{Rds: &httpv3.Rds{RouteConfigName: routes}},
	})
	require.NoError(t, err)
	return made(t, &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: manager}})
}

func setOf(t testT, revision resource.Revision, resources ...*xds.Resource) *xds.Set {
	t.Helper()
	s, err := xds.NewSet(revision, resources...)
	require.NoError(t, err)
	return s
}

// id names one version of one resource.
type id struct {
	ref     xds.Ref
	version string
}

func idOf(r *xds.Resource) id { return id{r.Ref(), r.Version} }

// model is a client as the protocol describes it, with the network between it and
// the stream, and random sets.
type model struct {
	t       *rapid.T
	delta   bool
	follow  bool // it asks for clusters that routes name, as gRPC does, not for all
	patient bool // it answers clusters once it has been sent their endpoints after them, as Envoy does

	stream *Stream
	memory *Memory
	set    *xds.Set
	now    time.Time
	rev    resource.Revision

	poison   map[id]bool // what the client rejects
	accepted map[id]bool // what it has accepted
	toClient []Response
	toServer []Request

	// The client.
	cache   map[xds.Ref]*xds.Resource
	names   [len(xds.Types)]map[string]bool
	lastAck [len(xds.Types)]string // its last nonce
	version [len(xds.Types)]string // of the last response that it accepted, over streams
	open    [len(xds.Types)]int    // responses that it has not answered
	sent    int
	// warming are clusters whose endpoints have not come since, and answer is what waits for
	// them.
	warming map[string]bool
	answer  *Request
	// used is when the client last had routes to a cluster.
	used map[string]time.Time
	// ghosts are names that it subscribes to and that never exist; told are those it has
	// been told about.
	ghosts [len(xds.Types)]map[string]bool
	told   map[xds.Ref]bool
	// busy are clusters that calls under way have chosen, which a client that follows
	// references does not give up before.
	busy map[string]bool
	// abrupt: it may be sent routes that nothing introduces, since it has left responses
	// unread for a long time, or has routes of another stream.
	abrupt bool
}

const drain = 30 * time.Second

func newModel(t *rapid.T) *model {
	m := &model{
		t: t, delta: rapid.Bool().Draw(t, "delta"), follow: rapid.Bool().Draw(t, "follow"),
		memory: &Memory{}, now: time.Unix(1_000_000, 0), poison: map[id]bool{}, accepted: map[id]bool{}, cache: map[xds.Ref]*xds.Resource{},
		used: map[string]time.Time{}, busy: map[string]bool{},
	}
	m.patient = m.delta && !m.follow
	m.connect()
	return m
}

// connect begins a stream. Without the incremental variant a client that asks for
// everything has forgotten what it had.
func (m *model) connect() {
	known := false // what it had
	if m.stream != nil {
		m.stream.Leave(m.now)
		known = !m.delta && !m.memory.Empty()
	}
	known = known || !m.delta && m.follow && m.version[xds.Cluster] != "" // it brings along what it has
	m.stream = New(Config{Delta: m.delta, Drain: drain, Memory: m.memory})
	m.toClient, m.toServer = nil, nil
	if !m.delta && !m.follow {
		m.cache, m.version = map[xds.Ref]*xds.Resource{}, [len(xds.Types)]string{}
	}
	m.abrupt = m.abrupt || len(m.cache) > 0 && !known
	m.warming, m.answer, m.told = map[string]bool{}, nil, map[xds.Ref]bool{}
	for i := range m.names {
		m.names[i], m.ghosts[i] = map[string]bool{}, map[string]bool{}
	}
	m.lastAck, m.open = [len(xds.Types)]string{}, [len(xds.Types)]int{}
	if m.follow {
		for _, name := range []string{"l0", "l1"} {
			m.names[xds.Listener][name] = true
		}
		if !m.delta && rapid.Bool().Draw(m.t, "endpoints first") {
			m.subscribeAgain(xds.Endpoints)
		}
		m.request(xds.Listener, Request{Subscribe: []string{"l0", "l1"}})
		m.subscribeAgain(xds.Cluster)
	} else {
		m.request(xds.Cluster, Request{})
		m.request(xds.Listener, Request{})
	}
	if m.delta || m.follow {
		m.subscribeAgain(xds.Endpoints)
		m.subscribeAgain(xds.Route)
	}
	if m.set != nil {
		m.stream.SetTarget(m.set)
	}
}

// subscribeAgain subscribes to what the cache has of a type.
func (m *model) subscribeAgain(typ xds.Type) {
	var names []string
	for ref := range m.cache {
		if ref.Type == typ {
			names = append(names, ref.Name)
			m.names[typ][ref.Name] = true
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		m.request(typ, Request{Subscribe: names})
	}
}

// request sends a request with the client's subscriptions.
func (m *model) request(typ xds.Type, r Request) {
	r.Type = typ
	first := !slices.ContainsFunc(m.toServer, func(o Request) bool { return o.Type == typ }) && !m.stream.types[typ].asked
	if !m.delta {
		r.Names, r.Subscribe, r.Unsubscribe = slices.Sorted(maps.Keys(m.names[typ])), nil, nil
		r.Version = m.version[typ]
		if r.Nonce == "" {
			r.Nonce = m.lastAck[typ]
		}
	} else if first {
		r.Initial = map[string]string{}
		for ref, have := range m.cache {
			if ref.Type == typ {
				r.Initial[ref.Name] = have.Version
			}
		}
	}
	m.toServer = append(m.toServer, r)
}

// deliverRequest has the stream take the oldest request.
func (m *model) deliverRequest() {
	r := m.toServer[0]
	m.toServer = m.toServer[1:]
	require.NoError(m.t, m.stream.Handle(r))
	m.pump()
}

// pump sends all that there is to send.
func (m *model) pump() {
	for {
		r, ok := m.stream.Next(m.now)
		if !ok {
			return
		}
		m.sent++
		m.open[r.Type]++
		if m.open[r.Type] != 1 {
			m.t.Fatalf("%s: a second unanswered response", r.Type)
		}
		for _, sent := range r.Resources {
			if _, rejected := m.memory.get(sent); rejected {
				held := m.stream.types[r.Type].entries[sent.Name].held
				if held == nil || held.Version != sent.Version {
					m.t.Fatalf("%s was rejected in this version", sent.Ref())
				}
			}
		}
		m.toClient = append(m.toClient, r)
	}
}

// deliverResponse has the client take the oldest response.
func (m *model) deliverResponse() {
	r := m.toClient[0]
	m.toClient = m.toClient[1:]
	answer := Request{Nonce: r.Nonce}
	named := map[string]bool{}
	for _, got := range r.Resources {
		named[got.Name] = true
		plain := m.matched(got)
		if m.poison[idOf(plain)] {
			answer.Rejected, answer.Detail = true, "poison"
			continue
		}
		if (m.follow || !r.Type.Implied()) && !m.names[r.Type][got.Name] {
			continue // not asked for any more
		}
		m.checkUsable(got)
		m.checkGivenUp(got)
		m.cache[got.Ref()] = got
		m.accepted[idOf(plain)] = true
		m.told[got.Ref()] = true
		switch r.Type {
		case xds.Cluster:
			m.warming[got.Name] = m.patient
		case xds.Endpoints:
			delete(m.warming, got.Name[1:])
		case xds.Listener, xds.Route:
		}
	}
	for _, name := range r.Removed {
		m.told[xds.Ref{Type: r.Type, Name: name}] = true
		m.remove(xds.Ref{Type: r.Type, Name: name})
	}
	if !m.delta && r.Type.Implied() {
		for ref := range m.cache {
			if ref.Type == r.Type && !named[ref.Name] {
				m.checkUnused(ref)
				m.remove(ref)
			}
		}
	}
	if !answer.Rejected {
		m.version[r.Type] = r.Version
	}
	if answer.Type = r.Type; r.Type == xds.Cluster {
		m.answer = &answer
	} else {
		m.reply(answer)
	}
	m.resubscribe()
	if m.answer != nil && !slices.Contains(slices.Collect(maps.Values(m.warming)), true) {
		m.reply(*m.answer)
		m.answer = nil
	}
	m.checkClosed()
	m.noteUse()
}

// reply answers a response.
func (m *model) reply(answer Request) {
	m.lastAck[answer.Type] = answer.Nonce
	m.open[answer.Type]--
	m.request(answer.Type, answer)
}

// remove has the client lose a resource. A cluster of Envoy goes when it has had no routes
// to it for the drain time.
func (m *model) remove(ref xds.Ref) {
	if ref.Type == xds.Cluster {
		delete(m.warming, ref.Name)
		if last, used := m.used[ref.Name]; used && m.patient && m.cache[ref] != nil && m.now.Sub(last) < drain {
			m.t.Fatalf("%s is removed %s after its last use", ref, m.now.Sub(last))
		}
	}
	delete(m.cache, ref)
}

// noteUse notes which clusters the client's routes lead to.
func (m *model) noteUse() {
	for _, r := range m.cache {
		for _, used := range r.Uses {
			if used.Type == xds.Cluster {
				m.used[used.Name] = m.now
			}
		}
	}
}

// resubscribe asks for what the cache refers to, and drops what it does not.
func (m *model) resubscribe() {
	for _, step := range []struct {
		by, of xds.Type
	}{{xds.Listener, xds.Route}, {xds.Route, xds.Cluster}, {xds.Cluster, xds.Endpoints}} {
		if step.of == xds.Cluster && !m.follow {
			continue
		}
		want := maps.Clone(m.ghosts[step.of])
		if step.of == xds.Cluster {
			for name := range m.busy {
				want[name] = true
			}
		}
		for ref, r := range m.cache {
			for _, used := range r.Uses {
				if ref.Type == step.by && used.Type == step.of {
					want[used.Name] = true
				}
			}
		}
		var r Request
		for name := range want {
			if !m.names[step.of][name] {
				r.Subscribe = append(r.Subscribe, name)
			}
		}
		for name := range m.names[step.of] {
			if !want[name] {
				r.Unsubscribe = append(r.Unsubscribe, name)
				delete(m.cache, xds.Ref{Type: step.of, Name: name})
			}
		}
		slices.Sort(r.Subscribe)
		slices.Sort(r.Unsubscribe)
		if len(r.Subscribe)+len(r.Unsubscribe) > 0 {
			m.names[step.of] = want
			m.request(step.of, r)
		}
	}
}

// matched returns routes without those that match nothing, and without delays.
func (m *model) matched(r *xds.Resource) *xds.Resource {
	if r.Type != xds.Route {
		return r
	}
	message, err := r.Message()
	require.NoError(m.t, err)
	config := message.(*routev3.RouteConfiguration)
	for _, host := range config.GetVirtualHosts() {
		host.Routes = slices.DeleteFunc(host.Routes, func(route *routev3.Route) bool { return len(route.GetMatch().GetHeaders()) > 0 })
		for _, route := range host.GetRoutes() {
			route.TypedPerFilterConfig = nil
		}
	}
	return made(m.t, config)
}

// named reports whether routes that the client has name a cluster.
func (m *model) named(cluster string) bool {
	for _, r := range m.cache {
		if r.Type == xds.Route && slices.Contains(r.Uses, xds.Ref{Type: xds.Cluster, Name: cluster}) {
			return true
		}
	}
	return false
}

// checkGivenUp: routes of a client that follows references name no cluster again that
// it is still to give up.
func (m *model) checkGivenUp(routes *xds.Resource) {
	if !m.follow || m.abrupt || len(m.poison) > 0 || routes.Type != xds.Route || m.cache[routes.Ref()] == nil {
		return
	}
	for _, used := range routes.Uses {
		if m.busy[used.Name] && !m.named(used.Name) {
			m.t.Fatalf("%s comes to name %s, which the client is still to give up", routes.Ref(), used)
		}
	}
}

// checkUsable: routes of a client that follows references, in the place of others, send
// to no cluster that it does not have yet, with its endpoints.
func (m *model) checkUsable(routes *xds.Resource) {
	before := m.cache[routes.Ref()]
	if !m.follow || m.abrupt || len(m.poison) > 0 || routes.Type != xds.Route || before == nil {
		return
	}
	matching := func(r *xds.Resource) (clusters []string) {
		for _, used := range m.matched(r).Uses {
			clusters = append(clusters, used.Name)
		}
		return clusters
	}
	had := matching(before)
	for _, name := range matching(routes) {
		if slices.Contains(had, name) {
			continue
		}
		for _, used := range []xds.Ref{{Type: xds.Cluster, Name: name}, {Type: xds.Endpoints, Name: "e" + name}} {
			if m.cache[used] == nil {
				m.t.Fatalf("%s sends to %s, and the client has no %s", routes.Ref(), name, used)
			}
		}
	}
}

// checkUnused: a client that follows references loses no cluster that its routes send to.
func (m *model) checkUnused(cluster xds.Ref) {
	if !m.follow || m.abrupt || len(m.poison) > 0 || cluster.Type != xds.Cluster {
		return
	}
	for _, r := range m.cache {
		if r.Type == xds.Route && m.listened(r.Name) && slices.Contains(m.matched(r).Uses, cluster) {
			m.t.Fatalf("%s is gone, and %s sends to it", cluster, r.Ref())
		}
	}
}

// listened reports whether the client has a listener with routes.
func (m *model) listened(routes string) bool {
	for _, r := range m.cache {
		if r.Type == xds.Listener && slices.Contains(r.Uses, xds.Ref{Type: xds.Route, Name: routes}) {
			return true
		}
	}
	return false
}

// checkClosed: a client that is sent all clusters never has routes to one that it
// lacks.
func (m *model) checkClosed() {
	if m.follow {
		return
	}
	for ref, r := range m.cache {
		for _, used := range r.Uses {
			if used.Type == xds.Cluster && m.cache[used] == nil {
				m.t.Fatalf("the client has %s, which refers to %s, and not that", ref, used)
			}
		}
	}
}

// change draws another set.
func (m *model) change() {
	t := m.t
	m.rev++
	var all []*xds.Resource
	var clusters []string
	version := rapid.IntRange(0, 3)
	for _, name := range []string{"a", "b", "c"} {
		if rapid.IntRange(0, 3).Draw(t, "cluster") > 0 {
			clusters = append(clusters, name)
			all = append(all, clusterOf(t, name, version.Draw(t, "v")), endpointsOf(t, name, version.Draw(t, "v")))
		}
	}
	for i, name := range []string{"r0", "r1"} {
		if len(clusters) == 0 || rapid.IntRange(0, 3).Draw(t, "routes") == 0 {
			continue
		}
		to := rapid.SliceOfNDistinct(rapid.SampledFrom(clusters), 1, -1, rapid.ID).Draw(t, "to")
		all = append(all, routesOf(t, name, version.Draw(t, "v"), to...))
		if rapid.IntRange(0, 3).Draw(t, "listener") > 0 {
			all = append(all, listenerOf(t, fmt.Sprintf("l%d", i), version.Draw(t, "v"), name))
		}
	}
	m.set = setOf(t, m.rev, all...)
	m.stream.SetTarget(m.set)
	m.pump()
}

// settle delivers everything until nothing is under way.
func (m *model) settle() {
	if m.set == nil {
		m.change()
	}
	before := m.sent
	for range 8 { // clusters go after routes, which may wait for others
		for len(m.toServer)+len(m.toClient) > 0 {
			if len(m.toServer) > 0 {
				m.deliverRequest()
			} else {
				m.deliverResponse()
			}
			if m.sent-before > 300 {
				m.t.Fatalf("it does not come to an end")
			}
		}
		for range 2 {
			m.now = m.now.Add(2 * drain)
			m.noteUse()
			m.pump()
		}
	}
}

// end has the calls under way end.
func (m *model) end() {
	clear(m.busy)
	m.resubscribe()
}

// checkSettled: the client has what it should.
func (m *model) checkSettled() {
	m.end()
	m.settle()
	blocked := func(r *xds.Resource) bool {
		for _, used := range r.Uses {
			routes := []xds.Ref{used}
			if used.Type == xds.Route {
				routes = m.set.Get(used).Uses
			}
			for _, c := range routes {
				if c.Type == xds.Cluster && m.poison[idOf(m.set.Get(c))] {
					return true
				}
			}
		}
		return false
	}
	for r := range m.set.All() {
		have := m.cache[r.Ref()]
		wanted := m.names[r.Type][r.Name] || !m.follow && r.Type.Implied()
		switch {
		case !wanted || m.poison[idOf(r)]:
			if have != nil && have.Version == r.Version && m.poison[idOf(r)] {
				m.t.Fatalf("%s: the client has what it rejects", r.Ref())
			}
		case blocked(r): // it may wait for ever
		default:
			if have == nil || have.Version != r.Version {
				m.t.Fatalf("%s: the client has not the latest version: %v", r.Ref(), have)
			}
		}
	}
	if len(m.poison) > 0 {
		return
	}
	for ref := range m.cache {
		if m.set.Get(ref) == nil && ref.Type != xds.Endpoints && (m.delta || ref.Type.Implied()) {
			m.t.Fatalf("%s is still there", ref)
		}
	}
	for _, typ := range xds.Types {
		for name := range m.ghosts[typ] {
			if ref := (xds.Ref{Type: typ, Name: name}); !m.told[ref] {
				m.t.Fatalf("%s: the client waits for an answer", ref)
			}
		}
	}
	for _, s := range m.stream.Status(m.now) {
		if s.State != NotSent && (s.State != Synced || s.Revision != m.rev) {
			m.t.Fatalf("%s is %s at %d, not %d", s.Type, s.State, s.Revision, m.rev)
		}
	}
}

// Whatever a client does that the protocol permits, and however the set changes
// meanwhile, it ends with what it should have.
func TestEveryClientConverges(t *testing.T) { rapid.Check(t, converge) }

// FuzzStream is the same with inputs that coverage finds.
func FuzzStream(f *testing.F) { f.Fuzz(rapid.MakeFuzz(converge)) }

func converge(t *rapid.T) {
	m := newModel(t)
	poisonous := rapid.Bool().Draw(t, "poisonous")
	t.Repeat(map[string]func(*rapid.T){
		"change": func(*rapid.T) { m.change() },
		// What cannot be done now does nothing: inputs that coverage finds may have
		// nothing else to offer.
		"poison": func(t *rapid.T) {
			if !poisonous || m.set == nil || m.set.Len() == 0 {
				return
			}
			all := slices.Collect(m.set.All())
			r := rapid.SampledFrom(all).Draw(t, "resource")
			if m.accepted[idOf(r)] || r.Type == xds.Endpoints {
				return // a client does not change its mind
			}
			m.poison[idOf(r)] = true
		},
		"request": func(*rapid.T) {
			if len(m.toServer) > 0 {
				m.deliverRequest()
			}
		},
		"response": func(*rapid.T) {
			if len(m.toClient) > 0 {
				m.deliverResponse()
			}
		},
		"stale nonce": func(*rapid.T) {
			typ := rapid.SampledFrom(xds.Types[:]).Draw(t, "type")
			if !m.stream.types[typ].asked {
				return
			}
			m.request(typ, Request{Nonce: "0", Rejected: true, Detail: "stale"})
		},
		"call": func(t *rapid.T) {
			var clusters []string
			for _, r := range m.cache {
				if m.follow && r.Type == xds.Route {
					for _, used := range m.matched(r).Uses {
						clusters = append(clusters, used.Name)
					}
				}
			}
			if slices.Sort(clusters); len(clusters) > 0 {
				m.busy[rapid.SampledFrom(clusters).Draw(t, "cluster")] = true
			}
		},
		"calls end": func(*rapid.T) { m.end() },
		"ghost": func(*rapid.T) {
			typ := rapid.SampledFrom(xds.Types[:]).Draw(t, "type")
			if !m.delta {
				typ = xds.Endpoints // the other variant cannot say it of others
			}
			m.ghosts[typ]["ghost"], m.names[typ]["ghost"] = true, true
			m.request(typ, Request{Subscribe: []string{"ghost"}})
		},
		"time": func(*rapid.T) {
			for len(m.toServer) > 0 { // requests do not take that long
				m.deliverRequest()
			}
			m.abrupt = m.abrupt || len(m.toClient)+len(m.busy) > 0
			m.now = m.now.Add(drain / 2)
			m.noteUse()
			m.pump()
		},
		"reconnect": func(*rapid.T) { m.connect(); m.pump() },
		"restart": func(*rapid.T) { // of the zone, which forgets what was rejected
			m.memory = &Memory{}
			m.stream = nil
			m.connect()
			m.pump()
		},
		"settle": func(*rapid.T) { m.checkSettled() },
	})
	m.checkSettled()
}
