// Package enforce says what the proxy of a dataplane does with the policies on it: of
// each configuration that is in effect whether the proxy has it, and whether proxies of
// its kind do what it says.
//
// Guarantees. It rests on the same data as what is sent: the rules of matching, the
// origins of the values in resources, the table of package support, and what clients
// answered. Nothing is called enforced that a proxy has not accepted.
//
// Non-goals: whether a proxy that accepted a configuration works as it should.
package enforce

import (
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/support"
	"meridian/internal/xds/wire"
	"meridian/internal/xds/world"
)

// State is what a proxy does with one configuration, in the words of docs/contract.md.
type State string

// The states. Of several, the later one is that with the more to be looked at.
const (
	// Unused: the proxy has not asked for anything that it is in.
	Unused State = "unused"
	// Enforced: the proxy has accepted it.
	Enforced State = "enforced"
	// Approximated: it has accepted it, and does some of it not, or not quite, as written.
	Approximated State = "approx"
	// Pending: it has not accepted it yet.
	Pending State = "pending"
	// Rejected: it has rejected it.
	Rejected State = "rejected"
	// Unsupported: proxies of its kind do nothing of it.
	Unsupported State = "no"
)

var order = []State{Unused, Enforced, Approximated, Pending, Rejected, Unsupported}

// Worse returns the state of the two that has the more to be looked at.
func Worse(a, b State) State {
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}

// Holds reports whether a proxy obeys a configuration in a state.
func (s State) Holds() bool { return s == Enforced || s == Approximated }

// Effect is what becomes of one kind on one attachment.
type Effect struct {
	Attachment policy.Attachment
	Kind       resource.Kind
	State      State
	// Policies are those that are in effect there, each with its own state.
	Policies []Policy
}

// Policy is what becomes of one policy.
type Policy struct {
	Key   resource.Key
	State State
}

// Deliveries says how far resources have come to a proxy.
type Deliveries func(resources []*xds.Resource) []serve.Delivery

// Reader reads what proxies do. What the proxies of several dataplanes share it looks at
// once: use one Reader for one question, while the proxies change little. The zero value is
// ready to use; it is not safe for concurrent use.
type Reader struct {
	sources map[*xds.Resource][]resource.Key
	covered map[coverageOf][]wire.Covered
}

type coverageOf struct {
	rule    *policy.Rule
	dialect xds.Dialect
}

// Effects returns what the proxy of a dataplane does with the rules on it, in their
// order, and after them with the routes of the services that it sends to. mesh is the
// dataplane's, and set is what the proxy is to have. With only, it looks at nothing but what has that policy.
func (r *Reader) Effects(dialect xds.Dialect, mesh world.Mesh, set *xds.Set, rules []policy.Rule, routes []*resource.Resource, only *resource.Key, deliveries Deliveries) []Effect {
	var effects []Effect
	var covered [][]wire.Covered
	d := delivered{reader: r, set: set, permissions: wire.Permissions(mesh, dialect).Status, deliveries: deliveries, bySource: map[resource.Key]*source{}}
	add := func(at policy.Attachment, kind resource.Kind, c []wire.Covered) {
		effects, covered = append(effects, Effect{Attachment: at, Kind: kind}), append(covered, c)
		for i := range c {
			if only == nil || c[i].Policy == *only {
				d.bySource[c[i].Policy] = &source{}
			}
		}
	}
	for i := range rules {
		if rule := &rules[i]; only == nil || has(rule, only) {
			add(rule.Attachment, rule.Kind, r.coverage(dialect, rule))
		}
	}
	for _, route := range routes {
		if only == nil || route.Key() == *only {
			add(policy.Attachment{Type: policy.OnOutbound}, route.Key().Kind, []wire.Covered{wire.RouteCoverage(dialect, route)})
		}
	}
	if len(effects) == 0 {
		return nil
	}
	d.read(only)
	for i := range effects {
		effects[i].fill(&d, covered[i])
	}
	return effects
}

func has(r *policy.Rule, only *resource.Key) bool {
	for i := range r.Steps {
		if r.Steps[i].Origin == *only {
			return true
		}
	}
	return false
}

// coverage is what proxies do with a rule, which dataplanes may share.
func (r *Reader) coverage(dialect xds.Dialect, rule *policy.Rule) []wire.Covered {
	at := coverageOf{rule, dialect}
	c, known := r.covered[at]
	if !known {
		if c = wire.Coverage(dialect, rule); r.covered == nil {
			r.covered = map[coverageOf][]wire.Covered{}
		}
		r.covered[at] = c
	}
	return c
}

// sourcesOf are those that values of a resource are from, each once.
func (r *Reader) sourcesOf(of *xds.Resource) []resource.Key {
	keys, known := r.sources[of]
	if known {
		return keys
	}
	for i := range of.Origins {
		// Those of one policy are next to each other, or few.
		if o := &of.Origins[i]; i == 0 || o.Source != of.Origins[i-1].Source {
			keys = append(keys, o.Source)
		}
	}
	slices.SortFunc(keys, resource.Key.Compare)
	keys = slices.Compact(keys)
	if r.sources == nil {
		r.sources = map[*xds.Resource][]resource.Key{}
	}
	r.sources[of] = keys
	return keys
}

// delivered is how far what a proxy is to have has come.
type delivered struct {
	reader     *Reader
	set        *xds.Set
	deliveries Deliveries
	// permissions is what becomes of permissions.
	permissions support.Status
	// bySource is by the policy that values of a resource are from, for those that are
	// asked about.
	bySource map[resource.Key]*source
	// overall is what overallDelivery returned; nil before.
	overall *serve.Delivery
}

// source is how far the resources have come that have values of a policy.
type source struct {
	sent     bool // there are such resources
	delivery serve.Delivery
}

// read says how far the resources have come that have values of what is asked about.
// With only there is nothing else in bySource.
func (d *delivered) read(only *resource.Key) {
	var resources []*xds.Resource
	var from [][]*source
	for r := range d.set.All() {
		var here []*source
		for _, key := range d.reader.sourcesOf(r) {
			if only != nil && key != *only {
				continue
			}
			if s := d.bySource[key]; s != nil {
				here = append(here, s)
			}
		}
		if len(here) > 0 {
			resources, from = append(resources, r), append(from, here)
		}
	}
	for i, delivery := range d.deliveries(resources) {
		for _, s := range from[i] {
			s.sent, s.delivery = true, max(s.delivery, delivery)
		}
	}
}

// overallDelivery is how far everything has come.
func (d *delivered) overallDelivery() serve.Delivery {
	if d.overall == nil {
		var worst serve.Delivery
		for _, delivery := range d.deliveries(slices.Collect(d.set.All())) {
			worst = max(worst, delivery)
		}
		d.overall = &worst
	}
	return *d.overall
}

func (e *Effect) fill(d *delivered, covered []wire.Covered) {
	none, some := true, false
	var worst State
	for _, c := range covered {
		if d.bySource[c.Policy] == nil {
			continue // it is not asked about
		}
		state := Unsupported
		if !d.omits(e, c.Policy) {
			state = d.state(c)
		}
		e.Policies = append(e.Policies, Policy{Key: c.Policy, State: state})
		if state == Unsupported {
			some = true // of the others, there may be something
			continue
		}
		none = false
		worst = Worse(worst, state)
	}
	switch {
	case none && some:
		e.State = Unsupported
	case none:
		e.State = Unused
	case some:
		e.State = Worse(worst, Approximated)
	default:
		e.State = worst
	}
}

// omits reports whether a policy is about an outbound that is too large to be sent. A route
// of a service counts by itself, since its row is not that of one outbound.
func (d *delivered) omits(e *Effect, key resource.Key) bool {
	if len(d.set.Omitted) == 0 {
		return false
	}
	at := e.Attachment
	at.Route = ""
	return slices.ContainsFunc(d.set.Omitted, func(o xds.Omission) bool {
		return o.Attachment == at.String() || at.Service == "" && slices.Contains(o.Sources, key)
	})
}

// state is that of one policy, from what proxies do with its fields.
func (d *delivered) state(c wire.Covered) State {
	// A permission is in what a proxy is sent, or has no effect.
	from := *d.bySource[c.Policy]
	delivery, sent := from.delivery, from.sent
	permission := resource.Permission(c.Policy.Kind)
	if d.set.Withheld != "" || c.Fields > 0 && c.Unsupported == c.Fields || permission && (!sent || d.permissions == support.Unsupported) {
		return Unsupported
	}
	if !sent { // no value is from it: what there is, is as it says
		delivery = min(d.overallDelivery(), serve.Pending)
	}
	switch delivery {
	case serve.NotAsked:
		return Unused
	case serve.Pending:
		return Pending
	case serve.Refused:
		return Rejected
	case serve.Accepted:
	}
	if c.Unsupported+c.Approximated > 0 || permission && d.permissions == support.Approximated {
		return Approximated
	}
	return Enforced
}
