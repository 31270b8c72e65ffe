package answer

import (
	"errors"
	"fmt"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/shadow"
	"meridian/internal/resource"
)

// ShadowAccess says whether a caller could talk to what it calls if the permissions that
// are only tried were in effect.
type ShadowAccess struct {
	Allowed   bool     `json:"allowed"`
	AllowedBy []string `json:"allowedBy"`
	DeniedBy  []string `json:"deniedBy"`
}

// text is what people are told.
func (s *ShadowAccess) text() string {
	switch {
	case s.Allowed && len(s.AllowedBy) > 0:
		return "would be allowed by " + listed(s.AllowedBy) + " (shadow)"
	case s.Allowed:
		return "would be allowed (shadow)"
	case len(s.DeniedBy) > 0:
		return "would be denied by " + listed(s.DeniedBy) + " (shadow)"
	default:
		return "would be denied: no permission would allow this caller (shadow)"
	}
}

// tried sets what would become of a connection, where that differs from what does.
func (a *ConnectionAnswer) tried(trial *shadow.Trial, mesh *policy.Mesh, inbounds []*policy.Attachment, caller []resource.Tags, now []permission) error {
	rules, tried, err := trial.Rules(policy.DataplaneKey(a.Mesh, a.To))
	if err != nil || !tried {
		return err
	}
	would := &ShadowAccess{Allowed: true, AllowedBy: []string{}, DeniedBy: []string{}}
	differs := false
	for i, in := range inbounds {
		p := permitted(mesh, at(rules, in), caller)
		differs = differs || p.allowed != now[i].allowed || !slices.Equal(p.allowedBy, now[i].allowedBy) || !slices.Equal(p.deniedBy, now[i].deniedBy)
		would.Allowed = would.Allowed && p.allowed
		would.AllowedBy, would.DeniedBy = union(would.AllowedBy, p.allowedBy), union(would.DeniedBy, p.deniedBy)
	}
	if !would.Allowed {
		would.AllowedBy = []string{}
	}
	if differs {
		a.Shadow = would
	}
	return nil
}

// at returns the rules of an attachment.
func at(rules []policy.Rule, in *policy.Attachment) (here []*policy.Rule) {
	for i := range rules {
		if rules[i].Attachment.Compare(in) == 0 {
			here = append(here, &rules[i])
		}
	}
	return here
}

// union appends the names that are not there.
func union(names, more []string) []string {
	for _, name := range more {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// tried appends what would be so on the attachments for which something is only tried.
func (a *WhyAnswer) tried(trial *shadow.Trial, q *WhyQuestion) error {
	if !resource.Permission(q.Kind) {
		return nil
	}
	rules, tried, err := trial.Explain(policy.DataplaneKey(q.Mesh, q.Dataplane), q.Kind)
	if err != nil || !tried {
		return err
	}
	for i := range rules {
		r := &rules[i]
		of := func(key resource.Key) bool { return trial.Tried(key) }
		involved := slices.ContainsFunc(r.Steps, func(s policy.Step) bool { return of(s.Origin) }) ||
			slices.ContainsFunc(r.Unused, func(u policy.Unused) bool { return !u.Missed && of(u.Policy) })
		if involved && q.wants(&r.Attachment) {
			a.Shadow = append(a.Shadow, q.entry(r))
		}
	}
	return nil
}

// shadowCondition is the condition of a policy that is only tried.
func shadowCondition(places int) policy.Condition {
	return policy.Condition{
		Type: "Shadow", Status: "True", Reason: "Label",
		Message: fmt.Sprintf("It has the label %s: %s: it is not in effect; it would be on %s.",
			resource.EnforcementLabel, resource.EnforcementShadow, counted(places, "dataplane")),
	}
}

func counted(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// triedPolicy returns the condition of a policy that is only tried, else none.
func triedPolicy(m *policy.Matcher, key resource.Key) ([]policy.Condition, error) {
	trial, ok := policy.FollowerOf[*shadow.Trial](m)
	if !ok || !trial.Tried(key) {
		return nil, nil
	}
	placed, err := trial.Placements(key)
	if err != nil && !errors.Is(err, policy.ErrNoPolicy) {
		return nil, fmt.Errorf("place %s: %w", key, err)
	}
	return []policy.Condition{shadowCondition(len(placed))}, nil
}
