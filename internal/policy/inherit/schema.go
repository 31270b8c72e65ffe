package inherit

import (
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// routeKinds in the order their paths are listed in.
var routeKinds = []resource.Kind{resource.KindHTTPRoute, resource.KindGRPCRoute}

// schema is how the rules of a kind are laid out.
type schema struct {
	kind resource.Kind
	// root is the member of the spec that holds the rules.
	root string
	// sections are the members of root that hold rules by name; nil when root
	// itself does.
	sections []string
}

// schemas are the kinds of §5.3, in bytewise order.
var schemas = [...]schema{
	{kind: resource.KindAuthPolicy, root: "rules", sections: []string{
		"authentication", "metadata", "authorization", "response", "callbacks", "patterns",
	}},
	{kind: resource.KindRateLimitPolicy, root: "limits"},
}

// schemaOf returns the place of a kind in schemas, or -1.
func schemaOf(kind resource.Kind) int {
	return slices.IndexFunc(schemas[:], func(s schema) bool { return s.kind == kind })
}

// depth is how many levels merge; what lies below is a rule's opaque body.
func (s *schema) depth() int {
	if s.sections == nil {
		return 1
	}
	return 2
}

// units are those of the fold: an effective policy without rules counts as
// none (§5.4).
func (s *schema) units() policy.Units {
	return policy.Units{Depth: s.depth(), EmptyIsNone: true}
}

// spec is the spec that a condition sees: the rules in their place, with every
// section present (§5.6). The rules are shared.
func (s *schema) spec(rules policy.Tree) map[string]any {
	if s.sections == nil {
		return map[string]any{s.root: rules}
	}
	complete := make(map[string]any, len(s.sections))
	for _, name := range s.sections {
		if section, ok := rules[name]; ok {
			complete[name] = section
		} else {
			complete[name] = map[string]any{}
		}
	}
	return map[string]any{s.root: complete}
}

// id is the identity of the rule at a leaf.
func (s *schema) id(leaf policy.Pointer) string {
	names := leaf.Names()
	if s.sections == nil {
		return resource.RuleID{Name: names[0]}.String()
	}
	return resource.RuleID{Section: names[0], Name: names[1]}.String()
}

// pointer is the leaf of the rule with an identity.
func pointer(id resource.RuleID) policy.Pointer {
	if id.Section == "" {
		return policy.Pointer("").Field(id.Name)
	}
	return policy.Pointer("").Field(id.Section).Field(id.Name)
}
