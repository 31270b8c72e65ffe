package policy

import (
	"slices"
	"strings"

	"meridian/internal/resource"
)

// Superseded says what holds for an attachment in place of a rule (§4.11).
type Superseded struct {
	// Kind is the successor.
	Kind resource.Kind
	// By are its policies that take effect on the attachment or on a route of it,
	// by name.
	By []resource.Key
}

// String names the successor for people: "MeshRequestRetry a, b". It is empty for
// nil.
func (s *Superseded) String() string {
	if s == nil {
		return ""
	}
	names := make([]string, len(s.By))
	for i, key := range s.By {
		names[i] = key.Name
	}
	return string(s.Kind) + " " + strings.Join(names, ", ")
}

func (s *Superseded) equal(t *Superseded) bool {
	if s == nil || t == nil {
		return s == t
	}
	return s.Kind == t.Kind && slices.Equal(s.By, t.By)
}

// superseded takes out of the rules of a kind on an attachment those that have steps;
// in an explanation they stay, without steps. by is nil where nothing supersedes the
// kind.
func superseded(rules []Rule, by *Superseded, explain bool) []Rule {
	if by == nil {
		return rules
	}
	if !explain {
		return nil
	}
	for i := range rules {
		if len(rules[i].Steps) > 0 {
			rules[i].supersede(by)
		}
	}
	return rules
}

// successorAtLocked returns what supersedes a kind on an attachment, given by its
// index, or nil.
func (m *Matcher) successorAtLocked(ms *meshState, dp *Dataplane, i int, kind resource.Kind, scratch *[]*Policy) *Superseded {
	successor, ok := m.successors[kind]
	if !ok {
		return nil
	}
	var by *Superseded
	for _, rule := range m.matchedAtLocked(ms, dp, i, successor, scratch) {
		if len(rule.Steps) == 0 {
			continue
		}
		if by == nil {
			by = &Superseded{Kind: successor}
		}
		by.By = append(by.By, rule.Policies()...)
	}
	if by != nil {
		slices.SortFunc(by.By, resource.Key.Compare)
		by.By = slices.Compact(by.By)
	}
	return by
}

// supersede takes the steps out of an explained rule: what would have taken effect
// is unused, and what lost to it has lost.
func (r *Rule) supersede(by *Superseded) {
	verdicts := r.Verdicts()
	steps := verdicts[:len(verdicts)-len(r.Unused)]
	var unused []Unused
	var used []string
	for _, v := range steps {
		u := Unused{Policy: v.Policy, Rule: v.Rule, Reason: v.Reason}
		if v.Used {
			used = append(used, v.Policy.Name)
			u.Rule, u.Reason = "4.11", "superseded by "+by.String()+", which holds for the complete "+string(r.Attachment.Type)
		}
		unused = append(unused, u)
	}
	r.Steps, r.Unused, r.Superseded = nil, append(unused, r.Unused...), by
	r.Warnings = append(slices.Clone(r.Warnings), r.Attachment.String()+": "+string(r.Kind)+" "+strings.Join(used, ", ")+" is superseded by "+by.String())
}
