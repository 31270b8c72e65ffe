package inherit

import (
	"maps"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Stats counts policies and rules (§5.9), over all meshes.
type Stats struct {
	// Policies counts policies by kind and by each of their conditions.
	Policies map[PolicyCount]int
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
	return Stats{Policies: maps.Clone(x.stats.Policies), Rules: maps.Clone(x.stats.Rules)}
}

func (x *Index) countLocked() *Stats {
	s := &Stats{Policies: map[PolicyCount]int{}, Rules: map[RuleCount]int{}}
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
	}
	return s
}

func (s *Stats) count(kind resource.Kind, state policy.RuleState, n int) {
	if n > 0 {
		s.Rules[RuleCount{kind, state}] += n
	}
}
