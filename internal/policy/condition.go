package policy

import "meridian/internal/resource"

// Condition is one aspect of the state of a policy or of what it targets
// (§5.8).
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"` // "True" or "False"
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// RouteKind is set in answers about a name that an HTTPRoute and a GRPCRoute
	// share: of which of them the condition is.
	RouteKind resource.Kind `json:"routeKind,omitempty"`
}

// Conditioner is a Follower that knows the conditions of policies.
type Conditioner interface {
	Follower
	// Conditions returns the conditions of a policy in the order they are
	// shown in; false when it is not of a kind the follower answers for.
	Conditions(key resource.Key) ([]Condition, bool)
	// States is Conditions without the messages, which take longer than the rest:
	// it is for many policies at once.
	States(key resource.Key) ([]Condition, bool)
}
