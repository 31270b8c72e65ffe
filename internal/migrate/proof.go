package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/engines"
	"meridian/internal/policy/permission"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

// maxConnections bounds the pairs of dataplanes and inbounds that a proof compares.
const maxConnections = 1_000_000

// ErrTooMany means that there are more connections than a proof compares.
var ErrTooMany = errors.New("there are more connections than are compared")

// Proof is what a comparison of two states found.
type Proof struct {
	// Dataplanes and Connections count what was compared.
	Dataplanes  int `json:"dataplanes"`
	Connections int `json:"connections"`
	// Counterexample is the first place that differs; nil where all is equal.
	Counterexample *Counterexample `json:"counterexample,omitempty"`
}

// Counterexample is a place whose configuration is not what it was.
type Counterexample struct {
	Mesh      resource.MeshName `json:"mesh"`
	Dataplane string            `json:"dataplane"`
	// From is the caller, where what differs holds for calls.
	From       string        `json:"from,omitempty"`
	Attachment string        `json:"attachment"`
	Kind       resource.Kind `json:"kind"`
	Before     Side          `json:"before"`
	After      Side          `json:"after"`
}

// Side is one of the two states at a place.
type Side struct {
	// Conf is the configuration as the kind of the counterexample has it, or whether the
	// caller is allowed; null for none.
	Conf any `json:"conf"`
	// Why are the policies that were considered, and the rules by which they won or lost.
	Why []string `json:"why"`
}

// String tells the counterexample in a few lines.
func (c *Counterexample) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s of dataplane %s/%s", c.Kind, c.Attachment, c.Mesh, c.Dataplane)
	if c.From != "" {
		fmt.Fprintf(&b, ", called by %s", c.From)
	}
	for _, s := range []struct {
		name string
		side *Side
	}{{"before", &c.Before}, {"after", &c.After}} {
		text, _ := json.Marshal(s.side.Conf)
		fmt.Fprintf(&b, "\n  %s: %s", s.name, text)
		for _, why := range s.side.Why {
			b.WriteString("\n    " + why)
		}
	}
	return b.String()
}

// state is one of two states that are compared.
type state struct{ reading *policy.Reading }

// Prove compares two sets of resources on the dataplanes of the first; zone is that of
// dataplanes that name none. Errors: ErrTooMany,
// and that of ctx.
func Prove(ctx context.Context, zone resource.ZoneName, before, after []*resource.Resource) (*Proof, error) {
	proof := &Proof{}
	matchers := make([]*policy.Matcher, 2)
	for i, all := range [][]*resource.Resource{before, after} {
		matchers[i] = policy.NewMatcher(engines.All()...)
		view, err := policy.Offline(all, zone, false)
		if err != nil {
			return nil, err
		}
		matchers[i].Reset(view)
	}
	return proof, matchers[0].Read(func(was *policy.Reading) error {
		return matchers[1].Read(func(is *policy.Reading) error {
			return proof.compare(ctx, &state{was}, &state{is})
		})
	})
}

func (p *Proof) compare(ctx context.Context, was, is *state) error {
	callers := map[resource.MeshName][]resource.Key{}
	for key := range was.reading.Dataplanes("") {
		callers[key.Mesh] = append(callers[key.Mesh], key)
	}
	for key, shape := range was.reading.Dataplanes("") {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.Dataplanes++
		a, err := was.rules(key)
		if err != nil {
			return err
		}
		b, err := is.rules(key)
		if err != nil {
			return err
		}
		for i := range shape.Attachments {
			at := &shape.Attachments[i]
			if at.Type == policy.OnInbound {
				if p.Connections += len(callers[key.Mesh]); p.Connections > maxConnections {
					return ErrTooMany
				}
			}
			if p.attachment(was, is, key, at, a, b, callers[key.Mesh]); p.Counterexample != nil {
				return nil
			}
		}
	}
	return nil
}

// rules are those in effect on a dataplane.
func (s *state) rules(key resource.Key) ([]policy.Rule, error) { return s.reading.Effective(key) }

// successors are the kinds of §4 by those of §3.
var successors = (*targetref.Engine)(nil).Successors()

// kindsOn lists what is in effect on an attachment, in the words of §4.
func kindsOn(at *policy.Attachment, lists ...[]policy.Rule) []resource.Kind {
	var found []resource.Kind
	for _, rules := range lists {
		for i := range rules {
			if same := rules[i].Attachment; same.Type == at.Type && same.Port == at.Port && same.Service == at.Service {
				kind := rules[i].Kind
				if to, ok := successors[kind]; ok {
					kind = to
				}
				found = append(found, kind)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func (p *Proof) attachment(was, is *state, key resource.Key, at *policy.Attachment, a, b []policy.Rule, callers []resource.Key) {
	for _, kind := range kindsOn(at, a, b) {
		if at.Type != policy.OnInbound {
			before, after := confOf(a, at, kind, nil), confOf(b, at, kind, nil)
			if !equal(before, after) {
				p.Counterexample = &Counterexample{
					Mesh: key.Mesh, Dataplane: key.Name, Attachment: at.String(), Kind: kind,
					Before: Side{before, was.why(key, at, kind)}, After: Side{after, is.why(key, at, kind)},
				}
				return
			}
			continue
		}
		for _, caller := range callers {
			shape, err := was.reading.Dataplane(caller)
			if err != nil {
				continue
			}
			var before, after any
			if kind == resource.KindMeshTrafficPermission {
				before, after = allowed(was, key, at, a, shape.Members), allowed(is, key, at, b, shape.Members)
			} else {
				before, after = confOf(a, at, kind, shape.Members), confOf(b, at, kind, shape.Members)
			}
			if !equal(before, after) {
				p.Counterexample = &Counterexample{
					Mesh: key.Mesh, Dataplane: key.Name, From: caller.Name, Attachment: at.String(), Kind: kind,
					Before: Side{before, was.why(key, at, kind)}, After: Side{after, is.why(key, at, kind)},
				}
				return
			}
		}
	}
}

// allowed reports whether a caller may call an inbound.
func allowed(s *state, key resource.Key, at *policy.Attachment, rules []policy.Rule, caller []resource.Tags) any {
	var here []*policy.Rule
	for i := range rules {
		if rules[i].Attachment.Compare(at) == 0 {
			here = append(here, &rules[i])
		}
	}
	list := permission.Of(s.reading.Mesh(key.Mesh).MTLS, here)
	yes, _ := list.Decide(caller)
	return yes
}

// confOf is what a kind of §4, or the one that it succeeds, comes to on an attachment and
// on each route of it; for a caller where it is called.
func confOf(rules []policy.Rule, at *policy.Attachment, kind resource.Kind, caller []resource.Tags) any {
	routes := policy.Tree{}
	for i := range rules {
		rule := &rules[i]
		plain := rule.Attachment
		plain.Route = ""
		if plain.Compare(at) != 0 {
			continue
		}
		older := successors[rule.Kind] == kind
		if rule.Kind != kind && !older {
			continue
		}
		if caller != nil {
			rule = rule.ForCaller(caller)
		}
		conf := rule.Fold().Conf()
		if convert := kinds[rule.Kind]; older && convert != nil && len(conf) > 0 {
			if made, reason := convert(conf); reason == "" {
				conf = made
			}
		}
		if len(conf) > 0 {
			routes[rule.Attachment.Route] = conf
		}
	}
	if len(routes) == 1 && routes[""] != nil {
		return routes[""]
	}
	if len(routes) == 0 {
		return nil
	}
	return routes
}

// equal compares as JSON: numbers and texts are as they are written.
func equal(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// why explains what is in effect on an attachment.
func (s *state) why(key resource.Key, at *policy.Attachment, kind resource.Kind) []string {
	asked := []resource.Kind{kind}
	for older, newer := range successors {
		if newer == kind {
			asked = append(asked, older)
		}
	}
	rules, err := s.reading.Explain(key, asked...)
	if err != nil {
		return []string{}
	}
	why := []string{}
	for i := range rules {
		plain := rules[i].Attachment
		plain.Route = ""
		if plain.Compare(at) != 0 {
			continue
		}
		for _, v := range rules[i].Verdicts() {
			why = append(why, fmt.Sprintf("%s %s: %s (§%s)", v.Policy.Kind, v.Policy.Name, v.Reason, v.Rule))
		}
	}
	return why
}
