package answer

import (
	"fmt"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// RouteAnswer says what inherited policies come to on every path through a
// route (§5).
type RouteAnswer struct {
	Partial
	Mesh  resource.MeshName `json:"mesh"`
	Route string            `json:"route"`
	// AsOf is the revision the answer holds for; 0 offline.
	AsOf       resource.Revision  `json:"asOf"`
	Paths      []RoutePath        `json:"paths"`
	Conditions []policy.Condition `json:"conditions"`
}

// GatewayAnswer says what inherited policies come to on every path through a
// gateway (§5).
type GatewayAnswer struct {
	Partial
	Mesh    resource.MeshName `json:"mesh"`
	Gateway string            `json:"gateway"`
	// AsOf is the revision the answer holds for; 0 offline.
	AsOf resource.Revision `json:"asOf"`
	// Paths have Route and RouteKind set.
	Paths      []RoutePath        `json:"paths"`
	Conditions []policy.Condition `json:"conditions"`
	// Rejected are the routes that ask for the gateway and are not attached to it.
	Rejected []RejectedRoute `json:"rejectedRoutes"`
}

// RejectedRoute is a route that is not attached to a gateway that it asks for.
type RejectedRoute struct {
	RouteKind resource.Kind `json:"routeKind"`
	Route     string        `json:"route"`
	// SectionName and Port are those of the listeners that it asks for.
	SectionName string `json:"sectionName,omitempty"`
	Port        uint32 `json:"port,omitempty"`
	Reason      string `json:"reason"`
	Message     string `json:"message"`
}

// RoutePath is what the policies of one kind come to on one path. Rules are
// named as `unset` names them, without the leading `rules.` or `limits.`.
type RoutePath struct {
	Gateway  string `json:"gateway"`
	Listener string `json:"listener"`
	// Route is set in answers about a gateway.
	Route string        `json:"route,omitempty"`
	Rule  string        `json:"rule"`
	Kind  resource.Kind `json:"kind"`
	// RouteKind is set in answers about a gateway, and where an HTTPRoute and a
	// GRPCRoute share the name.
	RouteKind resource.Kind `json:"routeKind,omitempty"`
	// Rules are the effective rules, by section and name, or limits by name.
	Rules   policy.Tree       `json:"rules"`
	Origins map[string]string `json:"origins"`
	// Overridden has the winner of every rule that another policy set too, or
	// excluded by an atomic block.
	Overridden map[string]string `json:"overridden"`
	// OverriddenOf has the policies that wrote the rules in Overridden and lost.
	OverriddenOf map[string][]string `json:"overriddenOf,omitempty"`
	// Unset has the policy that unset a default.
	Unset map[string]string `json:"unset"`
	// UnsetOf has the policies that wrote the defaults in Unset.
	UnsetOf map[string][]string `json:"unsetOf,omitempty"`
	Skipped []SkippedBlock      `json:"skipped"`
	// When has every condition that was evaluated for this path.
	When []WhenVerdict `json:"when,omitempty"`
}

// SkippedBlock is a block of a policy that is left out on a path.
type SkippedBlock struct {
	Policy string `json:"policy"`
	// Block is "defaults" or "overrides".
	Block  string `json:"block"`
	Reason string `json:"reason"`
}

// WhenVerdict is the truth value of a block's condition on a path.
type WhenVerdict struct {
	Policy     string `json:"policy"`
	Block      string `json:"block"`
	Expression string `json:"expression"`
	// Value is "true", "false", or "error" when it could not be decided.
	Value string `json:"value"`
	// Reason is the error, or the part of the condition that does not hold.
	Reason string `json:"reason,omitempty"`
	// Applied is whether the block was used.
	Applied bool `json:"applied"`
}

// Route answers what is effective on the paths through the HTTPRoute and
// GRPCRoute of a name. It fails with ErrNotFound.
func Route(m *policy.Matcher, mesh resource.MeshName, name string, asOf resource.Revision) (*RouteAnswer, error) {
	inheritance, err := inheritanceOf(m)
	if err != nil {
		return nil, fmt.Errorf("route %q: %w", name, err)
	}
	var a *RouteAnswer
	err = m.Read(func(r *policy.Reading) error {
		state, found := inheritance.Route(mesh, name)
		if !found {
			return missing(r, "route", mesh, name, resource.KindHTTPRoute, resource.KindGRPCRoute)
		}
		if state.Cut {
			return tooMuch("route", mesh, name, "ask about single policies and their rules")
		}
		a = &RouteAnswer{Mesh: mesh, Route: name, AsOf: asOf, Paths: []RoutePath{}, Conditions: state.Conditions}
		// Also where only one of the two has paths: whose they are decides who may
		// read them.
		shared := true
		for _, kind := range []resource.Kind{resource.KindHTTPRoute, resource.KindGRPCRoute} {
			_, exists := r.View().Get(resource.Key{Kind: kind, Mesh: mesh, Name: name})
			shared = shared && exists
		}
		for i := range state.Paths {
			p := routePath(&state.Paths[i])
			if shared {
				p.RouteKind = state.Paths[i].Route.Kind
			}
			a.Paths = append(a.Paths, p)
		}
		return nil
	})
	return a, err
}

// Gateway answers what is effective on the paths through a Gateway. It fails with
// ErrNotFound.
func Gateway(m *policy.Matcher, mesh resource.MeshName, name string, asOf resource.Revision) (*GatewayAnswer, error) {
	inheritance, err := inheritanceOf(m)
	if err != nil {
		return nil, fmt.Errorf("gateway %q: %w", name, err)
	}
	var a *GatewayAnswer
	err = m.Read(func(r *policy.Reading) error {
		state, found := inheritance.Gateway(mesh, name)
		if !found {
			return missing(r, "gateway", mesh, name, resource.KindGateway)
		}
		if state.Cut {
			return tooMuch("gateway", mesh, name, "ask about its routes")
		}
		a = &GatewayAnswer{Mesh: mesh, Gateway: name, AsOf: asOf, Paths: []RoutePath{}, Conditions: state.Conditions, Rejected: []RejectedRoute{}}
		for _, rejected := range state.Rejected {
			c := rejected.Condition
			a.Rejected = append(a.Rejected, RejectedRoute{
				RouteKind: rejected.Route.Kind, Route: rejected.Route.Name,
				SectionName: c.ParentRef.SectionName, Port: c.ParentRef.Port, Reason: c.Reason, Message: c.Message,
			})
		}
		for i := range state.Paths {
			p := routePath(&state.Paths[i])
			p.Route, p.RouteKind = state.Paths[i].Route.Name, state.Paths[i].Route.Kind
			a.Paths = append(a.Paths, p)
		}
		return nil
	})
	return a, err
}

// inheritanceOf returns what a matcher knows of inherited policies. It fails with
// ErrInvalid.
func inheritanceOf(m *policy.Matcher) (policy.Inheritance, error) {
	inheritance, ok := policy.FollowerOf[policy.Inheritance](m)
	if !ok {
		return nil, fmt.Errorf("%w: inherited policies are not followed here", ErrInvalid)
	}
	return inheritance, nil
}

// tooMuch refuses an answer about more paths than fit into it.
func tooMuch(what string, mesh resource.MeshName, name, instead string) error {
	return fmt.Errorf("%s %q in mesh %q: %w: its paths have more than %d rules, or %d MiB of them; %s",
		what, name, mesh, ErrInvalid, policy.MaxPlaces, policy.MaxPathBytes>>20, instead)
}

// missing says that there is no object of a name in the kinds, and the one that was
// probably meant.
func missing(r *policy.Reading, what string, mesh resource.MeshName, name string, kinds ...resource.Kind) error {
	var others []string
	for _, kind := range kinds {
		for other := range r.View().List(kind, mesh) {
			others = append(others, other.Key().Name)
		}
	}
	return notFound(fmt.Sprintf("%s %q in mesh %q", what, name, mesh), name, others, "")
}

func routePath(p *policy.PathRules) RoutePath {
	path := RoutePath{
		Gateway: p.Gateway, Listener: p.Listener, Rule: p.Rule, Kind: p.Kind, Rules: p.Rules,
		Origins: policyNames(p.Origins), Overridden: policyNames(p.Overridden), Unset: policyNames(p.Unset),
		OverriddenOf: policyLists(p.OverriddenOf), UnsetOf: policyLists(p.UnsetOf),
		Skipped: []SkippedBlock{},
	}
	for _, d := range p.Decided {
		if !d.Used {
			path.Skipped = append(path.Skipped, SkippedBlock{d.Policy.Name, d.Block, "when: " + d.Reason})
		}
		path.When = append(path.When, whenVerdict(d))
	}
	return path
}

func whenVerdict(d policy.Decided) WhenVerdict {
	v := WhenVerdict{
		Policy: d.Policy.Name, Block: d.Block, Expression: d.Expression,
		Value: "false", Reason: d.Reason, Applied: d.Used,
	}
	switch {
	case d.Matched:
		v.Value = "true"
	case d.Failed:
		v.Value = "error"
	case d.Reason == v.Value:
		v.Reason = ""
	}
	return v
}

// policyNames replaces policies by their names, never nil.
func policyNames(by map[string]resource.Key) map[string]string {
	named := make(map[string]string, len(by))
	for id, key := range by {
		named[id] = key.Name
	}
	return named
}

// policyLists replaces lists of policies by lists of their names.
func policyLists(of map[string][]resource.Key) map[string][]string {
	named := make(map[string][]string, len(of))
	for id, keys := range of {
		named[id] = names(keys)
	}
	return named
}

// RuleAnswer says where the rules of an inherited policy reach and what becomes
// of them there (§5.9).
type RuleAnswer struct {
	Partial
	Kind       resource.Kind      `json:"kind"`
	Mesh       resource.MeshName  `json:"mesh"`
	Name       string             `json:"name"`
	AsOf       resource.Revision  `json:"asOf"`
	Dataplanes []PolicyDataplane  `json:"dataplanes"`
	Conditions []policy.Condition `json:"conditions"`
	Rules      []RulePlace        `json:"rules"`
}

// RulePlace is a rule of a policy on a path.
type RulePlace struct {
	// ID is the rule's identity, such as authentication.a.
	ID       string `json:"id"`
	Block    string `json:"block"`
	Gateway  string `json:"gateway"`
	Listener string `json:"listener"`
	Route    string `json:"route"`
	Rule     string `json:"rule"`
	// State is effective, overridden, unset or skipped.
	State policy.RuleState `json:"state"`
	// By is the policy that overrode or unset the rule; empty otherwise.
	By string `json:"by"`
	// DecidedBy is the number of the deciding rule in docs/semantics.
	DecidedBy string `json:"decidedBy"`
	Reason    string `json:"reason"`
}

// Quarantined is the condition of a policy that a zone has received and cannot
// use (§5.8, §7.4).
func Quarantined(zone resource.ZoneName, version uint64, why string) policy.Condition {
	return policy.Condition{
		Type: "Quarantined", Status: "True", Reason: "ZoneCannotUse",
		Message: fmt.Sprintf("Zone %q cannot use version %d: %s", zone, version, why),
	}
}

// AllRules asks PolicyRules for every rule of a policy.
const AllRules = "*"

// PolicyRules answers where a rule of an inherited policy reaches, or all of
// them. It fails with ErrNotFound, and with ErrInvalid for a kind that has no
// named rules.
func PolicyRules(m *policy.Matcher, kind resource.Kind, mesh resource.MeshName, name, rule string, zone resource.ZoneName, asOf resource.Revision) (*RuleAnswer, error) {
	about, err := Policy(m, kind, mesh, name, zone, asOf)
	if err != nil {
		return nil, err
	}
	key := resource.Key{Kind: kind, Mesh: mesh, Name: name}
	inheritance, err := inheritanceOf(m)
	if err != nil {
		return nil, fmt.Errorf("rules of %s: %w", key, err)
	}
	if rule == AllRules {
		rule = ""
	}
	places, ids, ok := inheritance.Reach(key, rule)
	if !ok {
		return nil, fmt.Errorf("rules of %s: %w: only policies that are inherited along routes have named rules", key, ErrInvalid)
	}
	a := &RuleAnswer{
		Kind: kind, Mesh: mesh, Name: name, AsOf: asOf,
		Dataplanes: about.Dataplanes, Conditions: about.Conditions, Rules: []RulePlace{},
	}
	found := rule == ""
	for _, id := range ids {
		found = found || id == rule
	}
	if !found {
		hint := ""
		if len(ids) > 0 {
			hint = "; it has " + listed(ids)
		}
		return nil, notFound(fmt.Sprintf("rule %q of %s %q", rule, kind, name), rule, ids, hint)
	}
	if len(places) > policy.MaxPlaces {
		hint := "name one of its rules"
		if rule != "" {
			hint = "ask about single routes"
		}
		return nil, fmt.Errorf("rules of %s: %w: they are in more than %d places; %s", key, ErrInvalid, policy.MaxPlaces, hint)
	}
	for _, p := range places {
		a.Rules = append(a.Rules, RulePlace{
			ID: p.ID, Block: p.Block, Gateway: p.Gateway, Listener: p.Listener, Route: p.Route.Name, Rule: p.Rule,
			State: p.State, By: p.By.Name, DecidedBy: p.DecidedBy, Reason: p.Reason,
		})
	}
	return a, nil
}
