package specificity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// rank is how specific a match is (§3.3).
type rank struct {
	tags, exact int
}

func (r rank) plus(other rank) rank { return rank{r.tags + other.tags, r.exact + other.exact} }

// compare orders ranks, the more specific first (§3.3): more tags,
// then more exact values.
func (r rank) compare(other rank) int {
	return cmp.Or(cmp.Compare(other.tags, r.tags), cmp.Compare(other.exact, r.exact))
}

// selector is one entry of sources, destinations or selectors, ready to match.
type selector struct {
	rank
	match resource.TagSelector
	wants []want
}

// want is one tag of a selector.
type want struct {
	tag, value string
}

func newSelector(match resource.TagSelector) selector {
	s := selector{rank: rank{tags: len(match)}, match: match, wants: make([]want, 0, len(match))}
	for tag, value := range match {
		s.wants = append(s.wants, want{tag, value})
		if value != resource.AnyValue {
			s.exact++
		}
	}
	return s
}

// matches is TagSelector.Matches without walking a map.
func (s *selector) matches(tags resource.Tags) bool {
	for _, w := range s.wants {
		if got, ok := tags[w.tag]; !ok || (w.value != resource.AnyValue && got != w.value) {
			return false
		}
	}
	return true
}

func (s *selector) matchesAny(sets []resource.Tags) bool { return slices.ContainsFunc(sets, s.matches) }

// side is the entries of one section of a policy: any of them suffices, and the
// best-ranked one that matches counts (§3.2).
type side struct {
	written []selector // in document order
	ranked  []selector // the most specific first
}

func newSide(selectors []resource.TagSelector) side {
	s := side{written: make([]selector, len(selectors))}
	for i, match := range selectors {
		s.written[i] = newSelector(match)
	}
	if s.ranked = s.written; len(selectors) < 2 {
		return s
	}
	s.ranked = slices.Clone(s.written)
	slices.SortStableFunc(s.ranked, func(a, b selector) int { return a.compare(b.rank) })
	return s
}

// best returns the rank of the best entry that matches one of the tag sets.
func (s *side) best(sets []resource.Tags) (rank, bool) {
	for i := range s.ranked {
		if s.ranked[i].matchesAny(sets) {
			return s.ranked[i].rank, true
		}
	}
	return rank{}, false
}

// bestOf is best for a single tag set.
func (s *side) bestOf(tags resource.Tags) (rank, bool) {
	for i := range s.ranked {
		if s.ranked[i].matches(tags) {
			return s.ranked[i].rank, true
		}
	}
	return rank{}, false
}

// bid is a matching policy with its rank: what is sorted, and what explains the
// order afterwards. It implements policy.Precedence.
type bid struct {
	*compiled
	rank
	// byTime breaks ties by time (KongMesh), else by name (Kuma2020).
	byTime bool
	// together is set where all bids take effect (§3.5).
	together bool
	// runnerUp is the best policy that was left out altogether, if any.
	runnerUp *bid
	// perCaller is set where several policies share an inbound's callers; first
	// marks the one that ranks best.
	perCaller, first bool
	// source is what a bid for some callers matches them by.
	source *selector
}

// compareBids puts the bid that wins first: rank (§3.3), then the
// tie-break of the mesh (§3.4).
func compareBids(a, b *bid) int {
	if c := a.rank.compare(b.rank); c != 0 {
		return c
	}
	if a.byTime {
		if c := b.modified.Compare(a.modified); c != 0 {
			return c
		}
	}
	return strings.Compare(a.key.Name, b.key.Name)
}

// Over implements policy.Precedence.
func (b *bid) Over(other policy.Precedence) policy.Decision {
	loser := other.(*bid)
	switch {
	case b.key == loser.key:
		return policy.Decision{}
	case b.together:
		return together()
	case b.tags != loser.tags:
		return policy.Decision{
			Rule: "3.3",
			Won:  beats(b.tags, "tag", loser.tags),
			Lost: fmt.Sprintf("loses to %s: matches %s, the winner matches %d", b.key.Name, count(loser.tags, "tag"), b.tags),
		}
	case b.exact != loser.exact:
		return policy.Decision{
			Rule: "3.3",
			Won:  beats(b.exact, "exact value", loser.exact),
			Lost: fmt.Sprintf("loses to %s: matches %s, the winner matches %d", b.key.Name, count(loser.exact, "exact value"), b.exact),
		}
	case b.byTime && !b.modified.Equal(loser.modified):
		return policy.Decision{
			Rule: "3.4",
			Won:  "as specific as " + loser.key.Name + " and modified later",
			Lost: fmt.Sprintf("loses to %s: equally specific, the winner was modified later", b.key.Name),
		}
	default:
		return policy.Decision{
			Rule: "3.4",
			Won:  "as specific as " + loser.key.Name + " and its name sorts first",
			Lost: fmt.Sprintf("loses to %s: equally specific, the winner's name sorts first", b.key.Name),
		}
	}
}

// Alone implements policy.Precedence.
func (b *bid) Alone() policy.Decision {
	switch {
	case b.together:
		return together()
	case b.perCaller && b.first:
		return policy.Decision{Rule: "3.5", Won: "ranks first for the callers it matches"}
	case b.perCaller:
		return policy.Decision{Rule: "3.5", Won: "holds for the callers that no rule above matches"}
	case b.runnerUp != nil:
		d := b.Over(b.runnerUp)
		return policy.Decision{Rule: d.Rule, Won: d.Won}
	default:
		return policy.Decision{Rule: "3.2", Won: "no other policy matches"}
	}
}

func together() policy.Decision {
	return policy.Decision{Rule: "3.5", Won: "all permissions that match take effect together"}
}

func beats(n int, what string, fewer int) string {
	verb := "beat"
	if n == 1 {
		verb = "beats"
	}
	return fmt.Sprintf("%s %s %d", count(n, what), verb, fewer)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
