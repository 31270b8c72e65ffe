package policy

import (
	"cmp"
	"slices"

	"meridian/internal/resource"
)

// Step is one policy's contribution to a configuration, in the place its engine
// gave it.
type Step struct {
	Op Op
	// Conf is what the policy configures; nil is the same as empty.
	Conf Tree
	// Origin is the policy.
	Origin resource.Key
	// Match says for which callers the step holds, in a rule that differs per
	// caller. Nil or empty: for all.
	Match resource.TagSelector
	// Precedence explains the step's place. Never nil.
	Precedence Precedence
}

// Precedence is the place of a step in its engine's order: the data by which it
// was ranked, kept so that the reason can be rendered on request. The precedences
// of one rule are comparable with one another.
type Precedence interface {
	// Over explains why the receiver has priority over other. The zero Decision
	// means that there is nothing to tell, as between two entries of one policy.
	Over(other Precedence) Decision
	// Alone explains why the receiver takes effect when it has no rival.
	Alone() Decision
}

// Remarker is a Precedence with more to say about its policy as a whole, whatever
// field is asked about.
type Remarker interface {
	Precedence
	// Remark is the end of a sentence, or empty.
	Remark() string
}

// Decision is the outcome of one comparison, in words.
type Decision struct {
	// Rule is the number of the deciding rule in docs/semantics, such as "3.3".
	Rule string
	// Won is a short sentence about the winner: "4 tags beat 2".
	Won string
	// Lost is a short sentence about the loser that names the winner: "loses to
	// web-to-backend: matches 2 tags, the winner matches 4". Empty from Alone.
	Lost string
	// WonRule is the number that explains the winner's place where it is not
	// Rule's; empty otherwise.
	WonRule string
}

// won returns the rule and the sentence that explain the winner.
func (d Decision) won() (rule, reason string) { return cmp.Or(d.WonRule, d.Rule), d.Won }

// Unused is a policy that selects the dataplane and contributes no step to a
// rule: it does not reach the attachment, or lost before it could.
type Unused struct {
	Policy resource.Key
	// Missed is true when the policy does not reach the attachment, false when
	// it does and lost.
	Missed bool
	Rule   string
	Reason string
}

// Rule is everything that takes effect for one kind on one attachment: ordered
// steps, the highest priority first.
type Rule struct {
	Target
	// PerCaller marks a rule whose configuration differs per caller: its steps
	// are an ordered list, and a caller's configuration is the fold of those
	// that match it (§4.7).
	PerCaller bool
	Units     Units
	Steps     []Step
	// Unused is filled only when an explanation was asked for.
	Unused []Unused
	// Superseded is set in an explanation only: the rule has no steps, because a
	// rule of its successor holds for the complete attachment (§4.11).
	Superseded *Superseded
	// Warnings are things its operator should know about this rule.
	Warnings []string
}

// Fold merges every step, whatever its caller.
func (r *Rule) Fold() *Fold {
	f := NewFold(r.Units)
	for _, s := range r.Steps {
		f.Add(s)
	}
	return f
}

// ForCaller returns the part of the rule that holds for a caller, given as all
// the tag sets it has: a step matches it if it matches one.
func (r *Rule) ForCaller(caller []resource.Tags) *Rule {
	mine := *r
	mine.Steps = nil
	for _, s := range r.Steps {
		if matchesAny(s.Match, caller) {
			mine.Steps = append(mine.Steps, s)
		}
	}
	return &mine
}

// matchesAny reports whether a selector matches one of the tag sets. An empty
// selector matches every caller, also one without any tags.
func matchesAny(s resource.TagSelector, sets []resource.Tags) bool {
	return len(s) == 0 || slices.ContainsFunc(sets, s.Matches)
}

// Policies returns the policies that contribute, highest priority first.
func (r *Rule) Policies() []resource.Key {
	var used []resource.Key
	for _, v := range r.Verdicts() {
		if v.Used {
			used = append(used, v.Policy)
		}
	}
	return used
}

// Shadows returns for every step the index of the first earlier step that
// matches all its callers and sets all its fields, or -1. It is meant for rules
// that differ per caller. An override is never shadowed by what it overrides.
func (r *Rule) Shadows() []int {
	shadows := make([]int, len(r.Steps))
	earlier := map[pair][]int{}
	for i, s := range r.Steps {
		shadows[i] = -1
		if s.Op == Fill || s.Op == Unless {
			shadows[i] = r.firstShadow(i, earlier)
		}
		at := anchorOf(s.Match)
		earlier[at] = append(earlier[at], i)
	}
	return shadows
}

// firstShadow looks for the shadow of step i among the earlier steps that could
// match all its callers: those without any exact value, and those anchored to a
// value that step i wants too.
func (r *Rule) firstShadow(i int, earlier map[pair][]int) int {
	first := -1
	s := &r.Steps[i]
	leaves := Leaves(s.Conf, r.Units.Depth)
	try := func(at pair) {
		for _, j := range earlier[at] {
			if first >= 0 && j > first {
				return
			}
			if r.shadows(j, s, leaves) {
				first = j
				return
			}
		}
	}
	try(pair{})
	for tag, value := range s.Match {
		if value != resource.AnyValue {
			try(pair{tag, value})
		}
	}
	return first
}

// shadows reports whether step j, which comes before s, leaves nothing for it to
// do. An atomic default takes no fields from a later step unless it is first of
// all: it may itself have come too late.
func (r *Rule) shadows(j int, s *Step, leaves []Pointer) bool {
	t := &r.Steps[j]
	switch {
	case !coversCallers(t.Match, s.Match):
		return false
	case s.Op == Unless:
		return !r.Units.EmptyIsNone || len(t.Conf) > 0
	case t.Op == Unless && j > 0:
		return false
	}
	for _, leaf := range leaves {
		if _, has := At(t.Conf, leaf); !has {
			return false
		}
	}
	return true
}

// coversCallers reports whether every caller that narrow matches is matched by
// wide too.
func coversCallers(wide, narrow resource.TagSelector) bool {
	for tag, value := range wide {
		got, ok := narrow[tag]
		if !ok || (value != resource.AnyValue && got != value) {
			return false
		}
	}
	return true
}
