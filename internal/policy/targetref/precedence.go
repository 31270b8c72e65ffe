package targetref

import (
	"fmt"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// precedence is the place of a step: what it was sorted by, which explains the
// order afterwards. It implements policy.Remarker.
type precedence struct {
	*compiled
	order
	form form
	// item is nil for a policy that only unsets.
	item *item
	// sole is set when no other policy has a step.
	sole bool
	// effective is set when the policy's unset has taken something out.
	effective bool
	// held says which condition let the block in; empty when it has none.
	held  string
	notes *notes // nil unless an explanation was asked for
}

// Over implements policy.Precedence.
func (s *precedence) Over(other policy.Precedence) policy.Decision {
	loser := other.(*precedence)
	switch {
	case s.form == overrides && loser.form != overrides:
		return decision("4.10", "its overrides stand above defaults"+s.held,
			s.loses()+"overrides stand above defaults"+s.held)
	case s.key == loser.key:
		return s.overOwn(loser)
	case s.form == overrides && s.level != loser.level:
		return decision("4.10", fmt.Sprintf("overrides of %s stand above those of %s", s.target, loser.target),
			s.loses()+fmt.Sprintf("it targets %s, and overrides of the less specific %s stand higher", loser.target, s.target))
	case s.form == overrides && !s.created.Equal(loser.created):
		return decision("4.10", "overrides like "+loser.key.Name+" and is older", s.loses()+"both override, the winner is older")
	case s.form == overrides:
		return decision("4.10", "overrides like "+loser.key.Name+" and its name sorts first",
			s.loses()+"both override and are of one age, the winner's name sorts first")
	case s.level != loser.level:
		d := decision("4.2", fmt.Sprintf("targets %s, which stands above %s", s.target, loser.target),
			s.loses()+fmt.Sprintf("it targets %s, the winner %s", loser.target, s.target))
		d.WonRule = "4.3"
		return d
	default:
		return decision("4.3", fmt.Sprintf("targets a %s as %s does, and its name sorts %s", s.target.Kind, loser.key.Name, s.sorts()),
			s.loses()+fmt.Sprintf("both target a %s, the winner's name sorts %s", s.target.Kind, s.sorts()))
	}
}

// overOwn compares two items of one policy (§4.5).
func (s *precedence) overOwn(loser *precedence) policy.Decision {
	first := "first"
	if s.lastWins {
		first = "last"
	}
	return decision("4.5", fmt.Sprintf("%s stands above %s", s.where(), loser.where()),
		fmt.Sprintf("%s loses to %s of the same policy: the %s item that has a field sets it", loser.where(), s.where(), first))
}

// loses is how the sentence about a loser begins: with the item of the winner,
// where it is one of several.
func (s *precedence) loses() string {
	if s.item == nil || len(s.item.path) == 0 || s.item.target.Kind == "" {
		return fmt.Sprintf("loses to %s: ", s.key.Name)
	}
	return fmt.Sprintf("loses to %s (%s): ", s.key.Name, s.item.path)
}

// where names the step's item by its place in the policy.
func (s *precedence) where() string {
	if s.item == nil {
		return "unset"
	}
	return string(s.item.path)
}

func (s *precedence) sorts() string {
	if s.lastWins {
		return "first"
	}
	return "later"
}

// Alone implements policy.Precedence.
func (s *precedence) Alone() policy.Decision {
	switch {
	case s.form == overrides:
		return decision("4.10", "its overrides stand above defaults"+s.held, "")
	case s.item == nil:
		return decision("4.10", "only unsets", "")
	case s.sole:
		return decision("4.5", "no other policy configures this", "")
	default:
		return decision("4.5", "sets what nothing above it sets", "")
	}
}

// Remark implements policy.Remarker: the notes as the end of a sentence.
func (s *precedence) Remark() string {
	if s.notes == nil || len(s.notes.said) == 0 {
		return ""
	}
	return "; " + s.notes.String()
}

func decision(rule, won, lost string) policy.Decision {
	return policy.Decision{Rule: rule, Won: won, Lost: lost}
}

// Part implements policy.Placer.
func (s *precedence) Part() resource.Path {
	if s.item == nil {
		return "unset"
	}
	return s.item.path
}
