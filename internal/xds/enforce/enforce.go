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
	"meridian/internal/xds/wire"
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

// Effects returns what the proxy of a dataplane does with the rules on it, in their
// order, and after them with the routes of the services that it sends to. set is what
// the proxy is to have.
func Effects(dialect xds.Dialect, set *xds.Set, rules []policy.Rule, routes []*resource.Resource, deliveries Deliveries) []Effect {
	all := slices.Collect(set.All())
	d := delivered{set: set, bySource: map[resource.Key]serve.Delivery{}}
	for i, delivery := range deliveries(all) {
		d.overall = max(d.overall, delivery)
		for _, o := range all[i].Origins {
			d.bySource[o.Source] = max(d.bySource[o.Source], delivery)
		}
	}
	effects := make([]Effect, 0, len(rules)+len(routes))
	for i := range rules {
		r := &rules[i]
		e := Effect{Attachment: r.Attachment, Kind: r.Kind}
		e.fill(d, wire.Coverage(dialect, r))
		effects = append(effects, e)
	}
	for _, r := range routes {
		e := Effect{Attachment: policy.Attachment{Type: policy.OnOutbound}, Kind: r.Key().Kind}
		e.fill(d, []wire.Covered{wire.RouteCoverage(dialect, r)})
		effects = append(effects, e)
	}
	return effects
}

// delivered is how far what a proxy is to have has come.
type delivered struct {
	set *xds.Set
	// bySource is by the policy that values of a resource are from.
	bySource map[resource.Key]serve.Delivery
	overall  serve.Delivery
}

func (e *Effect) fill(d delivered, covered []wire.Covered) {
	none, some := true, false
	var worst State
	for _, c := range covered {
		state := d.state(c)
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

// state is that of one policy, from what proxies do with its fields.
func (d *delivered) state(c wire.Covered) State {
	// A permission is in what a proxy is sent, or has no effect: in a mesh where it is not
	// known who calls, every caller is accepted.
	delivery, sent := d.bySource[c.Policy]
	permission := c.Policy.Kind == resource.KindTrafficPermission || c.Policy.Kind == resource.KindMeshTrafficPermission
	if d.set.Withheld != "" || c.Fields > 0 && c.Unsupported == c.Fields || permission && !sent {
		return Unsupported
	}
	if !sent { // no value is from it: what there is, is as it says
		delivery = min(d.overall, serve.Pending)
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
	if c.Unsupported+c.Approximated > 0 {
		return Approximated
	}
	return Enforced
}
