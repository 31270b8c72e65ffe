package answer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/shadow"
	"meridian/internal/resource"
)

// WhyQuestion asks who decided a dataplane's configuration.
type WhyQuestion struct {
	Mesh      resource.MeshName
	Dataplane string
	Kind      resource.Kind
	// Field narrows the answer to a field and what lies below it: a JSON
	// pointer ("/http/requestTimeout") or dotted ("http.requestTimeout").
	Field string
	// To narrows the answer to the outbounds to a service.
	To string
	// From narrows the answer to inbounds, as they are for one caller.
	From resource.Tags
}

// WhyAnswer says who decided each field of what one kind does on a dataplane.
type WhyAnswer struct {
	Partial
	Mesh      resource.MeshName `json:"mesh"`
	Dataplane string            `json:"dataplane"`
	Zone      resource.ZoneName `json:"zone"`
	AsOf      resource.Revision `json:"asOf"`
	Kind      resource.Kind     `json:"kind"`
	Entries   []WhyEntry        `json:"entries"`
	// Elsewhere are policies of the kind that select the dataplane without
	// reaching any of the attachments asked about.
	Elsewhere []string `json:"elsewhere"`
	// Shadow are the attachments of which something is only tried, as if it were in
	// effect.
	Shadow []WhyEntry `json:"shadow,omitempty"`
}

// WhyEntry is one attachment.
type WhyEntry struct {
	Attachment policy.Attachment `json:"attachment"`
	// SupersededBy is set where nothing of the kind takes effect, because its
	// successor does (§4.11).
	SupersededBy *Successor `json:"supersededBy,omitempty"`
	// Fields has every leaf field that is set. It is empty where the
	// configuration differs per caller and the question names none.
	Fields []WhyField `json:"fields"`
	// Rules is the ordered list of an inbound, for every caller; null when the
	// question names one.
	Rules      []CallerRule `json:"rules"`
	Considered []Considered `json:"considered"`
}

// WhyField is who decided one field.
type WhyField struct {
	Field  policy.Pointer `json:"field"`
	Value  any            `json:"value"`
	Policy string         `json:"policy"`
	Rule   string         `json:"rule"`
	Reason string         `json:"reason"`
	Losers []WhyLoser     `json:"losers"`
}

// WhyLoser is a policy that would have set the field, or would have been used
// in its winner's place.
type WhyLoser struct {
	Policy string `json:"policy"`
	// Value is what it has there; absent when it leaves the field alone.
	Value  any    `json:"value,omitempty"`
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
}

// Why answers a WhyQuestion. It fails with ErrNotFound when the dataplane or its
// outbound does not exist, and with ErrInvalid for a kind that is not matched to
// dataplanes.
func Why(m *policy.Matcher, q WhyQuestion, zone resource.ZoneName, asOf resource.Revision) (*WhyAnswer, error) {
	var a *WhyAnswer
	err := m.Read(func(r *policy.Reading) error {
		shape, err := findDataplane(r, q.Mesh, q.Dataplane)
		if err != nil {
			return err
		}
		if err := q.check(r, shape); err != nil {
			return err
		}
		key := policy.DataplaneKey(q.Mesh, q.Dataplane)
		rules, err := r.Explain(key, q.Kind)
		if err != nil {
			return fmt.Errorf("explain %s: %w", key, err)
		}
		a = &WhyAnswer{
			Mesh: q.Mesh, Dataplane: q.Dataplane, Zone: zoneOf(shape, zone), AsOf: asOf, Kind: q.Kind,
			Entries: []WhyEntry{},
		}
		reaching := map[string]bool{}
		for i := range rules {
			if !q.wants(&rules[i].Attachment) {
				continue
			}
			a.Entries = append(a.Entries, q.entry(&rules[i]))
			for _, name := range origins(rules[i].Steps) {
				reaching[name] = true
			}
			for _, p := range rules[i].Unused {
				reaching[p.Policy.Name] = reaching[p.Policy.Name] || !p.Missed
			}
		}
		selecting := names(r.Selecting(key, q.Kind))
		a.Elsewhere = slices.DeleteFunc(selecting, func(name string) bool { return reaching[name] })
		if trial, ok := policy.FollowerOf[*shadow.Trial](m); ok {
			return a.tried(trial, &q)
		}
		return nil
	})
	return a, err
}

// check refuses questions that could only be answered with nothing.
func (q *WhyQuestion) check(r *policy.Reading, shape *policy.Shape) error {
	if !r.Matches(q.Kind) {
		return fmt.Errorf("%s: %w: policies of this kind are not matched to dataplanes", q.Kind, ErrInvalid)
	}
	if q.To == "" {
		return nil
	}
	services := map[string]bool{}
	for i := range shape.Attachments {
		if at := &shape.Attachments[i]; at.Type == policy.OnOutbound {
			services[at.Service] = true
		}
	}
	if services[q.To] {
		return nil
	}
	known := slices.Sorted(maps.Keys(services))
	hint := "; it has outbounds to " + listed(known)
	return notFound(fmt.Sprintf("outbound of dataplane %q to service %q", q.Dataplane, q.To), q.To, known, hint)
}

// wants reports whether an attachment is asked about.
func (q *WhyQuestion) wants(at *policy.Attachment) bool {
	switch {
	case q.To != "":
		return at.Type == policy.OnOutbound && at.Service == q.To
	case q.From != nil:
		return at.Type == policy.OnInbound
	default:
		return true
	}
}

func (q *WhyQuestion) entry(rule *policy.Rule) WhyEntry {
	e := WhyEntry{
		Attachment: rule.Attachment, Fields: []WhyField{}, Considered: considered(rule),
		SupersededBy: successor(rule.Superseded),
	}
	switch {
	case !rule.PerCaller:
		e.Fields = q.fields(rule)
	case q.From == nil:
		e.Rules = callerRules(rule)
	default:
		mine := rule.ForCaller([]resource.Tags{q.From})
		mine.PerCaller = false
		e.Fields, e.Considered = q.fields(mine), considered(mine)
	}
	return e
}

func (q *WhyQuestion) fields(rule *policy.Rule) []WhyField {
	fields := []WhyField{}
	within := q.pointer()
	for _, v := range rule.FieldVerdicts() {
		if !within.Covers(v.Field) {
			continue
		}
		f := WhyField{
			Field: v.Field, Value: v.Winner.Value, Policy: v.Winner.Policy.Name,
			Rule: v.Winner.Rule, Reason: v.Winner.Reason, Losers: []WhyLoser{},
		}
		for _, l := range v.Losers {
			f.Losers = append(f.Losers, WhyLoser{Policy: l.Policy.Name, Value: l.Value, Rule: l.Rule, Reason: l.Reason})
		}
		fields = append(fields, f)
	}
	return fields
}

// pointer reads Field in either spelling.
func (q *WhyQuestion) pointer() policy.Pointer {
	if q.Field == "" || strings.HasPrefix(q.Field, "/") {
		return policy.Pointer(strings.TrimSuffix(q.Field, "/"))
	}
	p := policy.Pointer("")
	for name := range strings.SplitSeq(q.Field, ".") {
		p = p.Field(name)
	}
	return p
}
