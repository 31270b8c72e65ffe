package inherit

import (
	"fmt"

	"meridian/internal/policy"
)

// Levels of the hierarchy, from the rule up (§5.1).
const (
	levelRule = iota
	levelRoute
	levelListener
	levelGateway
)

// levelNames are the levels in words.
var levelNames = [...]string{"the rule", "the route", "the listener", "the gateway"}

// precedence is the place of a block in the fold: on which level, as what.
type precedence struct {
	link
	block *block
}

// Over implements policy.Precedence.
func (s precedence) Over(other policy.Precedence) policy.Decision {
	o, ok := other.(precedence)
	if !ok || o.key == s.key {
		return policy.Decision{}
	}
	as := s.block.op.String()
	if s.level != o.level {
		return policy.Decision{
			Rule: "5.4",
			Won:  fmt.Sprintf("%s on %s beats %s on %s", as, levelNames[s.level], o.block.op, levelNames[o.level]),
			Lost: fmt.Sprintf("%s on %s is overridden by the %s of %s on %s", o.block.op, levelNames[o.level], as, s.label, levelNames[s.level]),
		}
	}
	than := "newer"
	if s.higherThan(o.link) {
		than = "established"
	}
	return policy.Decision{
		Rule: "5.5",
		Won:  fmt.Sprintf("on %s, the %s policy wins as %s", levelNames[s.level], than, as),
		Lost: fmt.Sprintf("on %s as well, the %s policy %s wins as %s", levelNames[s.level], than, s.label, as),
	}
}

// higherThan reports whether a link is established over another of its level.
func (l link) higherThan(other link) bool { return compareSpecific(l.compiled, other.compiled) > 0 }

// Alone implements policy.Precedence.
func (s precedence) Alone() policy.Decision {
	return policy.Decision{Rule: "5.4", Won: fmt.Sprintf("%s on %s", s.block.op, levelNames[s.level])}
}
