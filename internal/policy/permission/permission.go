// Package permission makes of the rules on one inbound the ordered list by which its
// callers are allowed and denied, for those who decide about callers they have never
// seen, as proxies do.
//
// Guarantees. For every caller, the first entry of the list that holds for it, or the
// end of the list, decides as the merge of its rules does (§3.6, §4.7), on the word of
// the same policies.
//
// Non-goals: who supersedes whom, which matching has decided.
package permission

import (
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// List is who may call an inbound: the first entry that holds for a caller decides, and
// where none does, Allow.
type List struct {
	Entries []Entry
	Allow   bool
	// Policies are those on whose word the end of the list denies. None: it is so
	// because the mesh has mutual TLS enabled and no policy decides.
	Policies []resource.Key
}

// Entry decides about callers of which Match matches a tag set, unless one of Except
// does, too.
type Entry struct {
	Match  resource.TagSelector
	Except []resource.TagSelector
	Allow  bool
	Policy resource.Key
}

// Of returns the list of an inbound, from the rules in effect on it. mtls is whether the
// mesh has mutual TLS enabled.
func Of(mtls bool, rules []*policy.Rule) List {
	if rule := ofKind(rules, resource.KindMeshTrafficPermission); rule != nil {
		return List{Entries: fold(rule.Steps), Allow: !mtls}
	}
	if rule := ofKind(rules, resource.KindTrafficPermission); rule != nil {
		var l List
		for i := range rule.Steps {
			s := &rule.Steps[i]
			l.Entries = appendEntry(l.Entries, Entry{Match: s.Match, Allow: true, Policy: s.Origin})
			if !slices.Contains(l.Policies, s.Origin) {
				l.Policies = append(l.Policies, s.Origin)
			}
		}
		return l
	}
	return List{Allow: !mtls}
}

func ofKind(rules []*policy.Rule, kind resource.Kind) *policy.Rule {
	if i := slices.IndexFunc(rules, func(r *policy.Rule) bool { return r.Kind == kind }); i >= 0 {
		return rules[i]
	}
	return nil
}

// fold does for all callers at once what policy.Fold does for one: each step changes
// what the steps before it have decided about the callers that it holds for.
func fold(steps []policy.Step) []Entry {
	var entries []Entry
	// before are the callers of the steps that decide nothing and still came before.
	var before []resource.TagSelector
	for i := range steps {
		s := &steps[i]
		action, decides := s.Conf["action"].(string)
		e := Entry{Match: s.Match, Allow: strings.EqualFold(action, resource.ActionAllow), Policy: s.Origin}
		switch {
		case !decides:
			if s.Op == policy.Replace { // it takes away what was decided, and decides nothing
				for j := range entries {
					entries[j].Except = append(slices.Clip(entries[j].Except), s.Match)
				}
			}
			before = append(before, s.Match)
		case s.Op == policy.Fill:
			entries = appendEntry(entries, e)
		case s.Op == policy.Unless:
			// An entry before it wins in any case; a step that decided nothing keeps
			// it out, too.
			e.Except = slices.Clone(before)
			entries = appendEntry(entries, e)
		default:
			entries = slices.Insert(entries, 0, e)
		}
	}
	return entries
}

// appendEntry appends an entry, unless the same callers are decided about before.
func appendEntry(entries []Entry, e Entry) []Entry {
	const window = 64 // long lists seldom repeat themselves, and comparing all costs
	for i := max(0, len(entries)-window); i < len(entries); i++ {
		if len(entries[i].Except) == 0 && covers(entries[i].Match, e.Match) {
			return entries
		}
	}
	return append(entries, e)
}

// covers reports whether every caller that narrow matches is matched by wide too.
func covers(wide, narrow resource.TagSelector) bool {
	for tag, value := range wide {
		if got, ok := narrow[tag]; !ok || value != resource.AnyValue && got != value {
			return false
		}
	}
	return true
}

// Decide says whether a caller, given as its tag sets, is allowed, and on whose word it
// is denied or allowed.
func (l *List) Decide(caller []resource.Tags) (allow bool, by []resource.Key) {
	matches := func(s resource.TagSelector) bool { return len(s) == 0 || slices.ContainsFunc(caller, s.Matches) }
	for i := range l.Entries {
		if e := &l.Entries[i]; matches(e.Match) && !slices.ContainsFunc(e.Except, matches) {
			return e.Allow, []resource.Key{e.Policy}
		}
	}
	return l.Allow, l.Policies
}
