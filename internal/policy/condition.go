package policy

import (
	"fmt"

	"meridian/internal/resource"
)

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
	// ParentRef is set in the conditions of a route about one of its parents (§5.8).
	ParentRef ParentRef `json:"parentRef,omitzero"`
}

// ParentRef is a gateway that a route asks for, as a whole or some of its listeners.
type ParentRef struct {
	// Name is the stored name of the gateway.
	Name        string `json:"name"`
	SectionName string `json:"sectionName,omitempty"`
	Port        uint32 `json:"port,omitempty"`
}

// String prints NAME, NAME/SECTION, and the port after a colon.
func (p ParentRef) String() string {
	text := p.Name
	if p.SectionName != "" {
		text += "/" + p.SectionName
	}
	if p.Port != 0 {
		text += fmt.Sprintf(":%d", p.Port)
	}
	return text
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
