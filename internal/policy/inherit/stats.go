package inherit

import (
	"maps"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// NoPolicies is the state of a target in a mesh without any policy of a kind. It is
// no reason of a condition: the target has no condition about that kind (§5.8).
const NoPolicies = "NoPolicies"

// Stats counts policies, their targets and rules (§5.9), over all meshes.
type Stats struct {
	// Policies counts policies by kind and by each of their conditions.
	Policies map[PolicyCount]int
	// Targets counts the gateways and routes, once for every kind of policy.
	Targets map[TargetCount]int
	// Rules counts the rules that policies write, once for every path that they
	// could take effect on.
	Rules map[RuleCount]int
}

// PolicyCount is what policies are counted by.
type PolicyCount struct {
	Kind resource.Kind
	// Condition is the type of a condition, Status and Reason its state.
	Condition, Status, Reason string
}

// TargetCount is what targets are counted by.
type TargetCount struct {
	// Kind is that of policies, Target that of the targets.
	Kind, Target resource.Kind
	// Reason is that of the target's condition about policies of the kind, or
	// NoPolicies.
	Reason string
}

// RuleCount is what rules are counted by.
type RuleCount struct {
	Kind  resource.Kind
	State policy.RuleState
}

// Stats counts everything. What was counted since the last change is not
// counted again.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stats == nil {
		x.stats = x.countLocked()
	}
	return Stats{Policies: maps.Clone(x.stats.Policies), Targets: maps.Clone(x.stats.Targets), Rules: maps.Clone(x.stats.Rules)}
}

func (x *Index) countLocked() *Stats {
	s := &Stats{Policies: map[PolicyCount]int{}, Targets: map[TargetCount]int{}, Rules: map[RuleCount]int{}}
	for _, m := range x.meshes {
		for _, c := range m.policies {
			conditions, rules := x.policyConditionsLocked(m, c, brief)
			for _, condition := range conditions {
				s.Policies[PolicyCount{c.key.Kind, condition.Type, condition.Status, condition.Reason}]++
			}
			s.count(c.key.Kind, policy.RuleEffective, rules.effective)
			s.count(c.key.Kind, policy.RuleOverridden, rules.overridden)
			s.count(c.key.Kind, policy.RuleUnset, rules.unset)
			s.count(c.key.Kind, policy.RuleSkipped, rules.skipped)
		}
		for name := range m.gateways {
			x.countTargetLocked(s, m, resource.KindGateway, name)
		}
		for key := range m.routes {
			x.countTargetLocked(s, m, key.Kind, key.Name)
		}
	}
	return s
}

func (x *Index) countTargetLocked(s *Stats, m *mesh, kind resource.Kind, name string) {
	for schema := range schemas {
		count := TargetCount{Kind: schemas[schema].kind, Target: kind, Reason: NoPolicies}
		if m.written[schema] > 0 {
			a := x.affectionsLocked(m, target{schema: schema, kind: kind, name: name})
			count.Reason = a.condition(count.Kind).Reason
		}
		s.Targets[count]++
	}
}

func (s *Stats) count(kind resource.Kind, state policy.RuleState, n int) {
	if n > 0 {
		s.Rules[RuleCount{kind, state}] += n
	}
}
