package policy

import "meridian/internal/resource"

// Path is one way that requests take through the hierarchy of §5.1.
type Path struct {
	Gateway string
	// Listener is empty for one without a name.
	Listener string
	// Route is an HTTPRoute or GRPCRoute.
	Route resource.Key
	// Rule is the name of the route's rule; rule-1, rule-2, … by its place when
	// it has none.
	Rule string
}

// String prints the path from the gateway down.
func (p Path) String() string {
	return p.Gateway + "/" + p.Listener + "/" + p.Route.Name + "/" + p.Rule
}

// PathRules is what the inherited policies of one kind come to on a path, and
// how (§5.4). Rules are named by their identity (§5.3): the path of
// `unset` without its first step. Shared: do not modify.
type PathRules struct {
	Path
	Kind resource.Kind
	// Rules are the effective rules by section and name, or limits by name.
	Rules Tree
	// Origins has the policy of every effective rule.
	Origins map[string]resource.Key
	// Overridden has every rule that some policy wrote and another kept out or
	// replaced, with the policy that won.
	Overridden map[string]resource.Key
	// OverriddenOf has the policies that wrote the rules in Overridden and lost.
	OverriddenOf map[string][]resource.Key
	// Unset has every default that was dropped, with the policy that unset it.
	Unset map[string]resource.Key
	// UnsetOf has the policies that wrote the defaults in Unset.
	UnsetOf map[string][]resource.Key
	// Decided has every condition that was evaluated, from the most specific
	// policy up.
	Decided []Decided
}

// Decided is the evaluation of one block's condition (§5.6).
type Decided struct {
	Policy resource.Key
	// Block is "defaults" or "overrides".
	Block string
	// Expression is the condition as it was written.
	Expression string
	// Matched is its truth value; false when it asked for something that is not
	// there, or could not be decided.
	Matched bool
	// Failed means that it could not be decided.
	Failed bool
	// Reason says why it did not match: "false", or what went wrong.
	Reason string
	// Used is whether the block was used: because it matched, or because it
	// failed and says to apply then.
	Used bool
}

// PathsState is everything that inherited policies do on the paths through a
// target: a gateway, or the routes of one name.
type PathsState struct {
	// Paths are in order of gateway name, listener, route kind, route name, rule
	// and kind; listeners and rules in the order they are written in. A path on
	// which no policy of a kind has a target is not among them.
	Paths []PathRules
	// Conditions are those of the target (§5.8).
	Conditions []Condition
	// Rejected are the routes that ask for the gateway and that it does not take.
	Rejected []RejectedRoute
	// Cut is set when there are more paths than fit into an answer.
	Cut bool
}

// RejectedRoute is a route that a gateway does not take.
type RejectedRoute struct {
	Route resource.Key
	// Condition is the route's about that parent.
	Condition Condition
}

// MaxPlaces and MaxPathBytes bound an answer about inherited policies, counted in
// rules of policies on paths and in bytes of the effective rules as JSON, so that a
// server can build and send it.
const (
	MaxPlaces    = 100_000
	MaxPathBytes = 16 << 20
)

// RuleState is what became of one rule of a policy on one path.
type RuleState string

// The states of a rule on a path.
const (
	// RuleEffective rules are enforced there.
	RuleEffective RuleState = "effective"
	// RuleOverridden rules lost to another policy.
	RuleOverridden RuleState = "overridden"
	// RuleUnset rules were taken out by a more specific policy.
	RuleUnset RuleState = "unset"
	// RuleSkipped rules stand in a block whose condition did not hold.
	RuleSkipped RuleState = "skipped"
)

// RuleReach is one rule of a policy on one path (§5.9).
type RuleReach struct {
	Path
	// ID is the rule's identity.
	ID string
	// Block is "defaults" or "overrides".
	Block string
	State RuleState
	// By is the policy that overrode or unset the rule; zero otherwise.
	By resource.Key
	// DecidedBy is the number of the deciding rule in docs/semantics, Reason a short
	// sentence about it.
	DecidedBy, Reason string
}

// Inheritance is a Follower that knows the paths of the inherited policies
// (§5).
type Inheritance interface {
	Conditioner
	// Route returns the state of the HTTPRoute and GRPCRoute of a name; false
	// when there is none.
	Route(mesh resource.MeshName, name string) (PathsState, bool)
	// Gateway returns the state of a gateway; false when there is none.
	Gateway(mesh resource.MeshName, name string) (PathsState, bool)
	// Reach returns every place of a policy's rules, or of the one with an
	// identity when id is not empty, and the identities that it has, sorted.
	// False when there is no such policy. It stops above MaxPlaces places.
	Reach(key resource.Key, id string) (places []RuleReach, ids []string, ok bool)
}
