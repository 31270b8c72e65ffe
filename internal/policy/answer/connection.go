package answer

import (
	"fmt"
	"slices"
	"strconv"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// ConnectionQuestion asks whether one dataplane may talk to another, and with
// which configuration.
type ConnectionQuestion struct {
	Mesh resource.MeshName
	// From is the calling dataplane; empty when FromTags describes a caller
	// that has no dataplane here.
	From     string
	FromTags resource.Tags
	To       string
	// Port is the inbound's; 0 stands for every inbound.
	Port uint32
}

// ConnectionAnswer says whether a caller may talk to a dataplane, and what takes
// effect on the way.
type ConnectionAnswer struct {
	Partial
	Mesh      resource.MeshName `json:"mesh"`
	From      string            `json:"from"`
	To        string            `json:"to"`
	AsOf      resource.Revision `json:"asOf"`
	Allowed   bool              `json:"allowed"`
	AllowedBy []string          `json:"allowedBy"`
	// Inbounds is set when more than one inbound was evaluated; Allowed is then
	// their conjunction.
	Inbounds  []InboundAccess `json:"inbounds,omitempty"`
	Effective []OnConnection  `json:"effective"`
	// Superseded is what does not take effect because its successor does (§4.11).
	Superseded []SupersededOnConnection `json:"superseded,omitempty"`
}

// SupersededOnConnection is a kind that its successor supersedes on one side of a
// connection.
type SupersededOnConnection struct {
	Side policy.AttachmentType `json:"side"`
	Port uint32                `json:"port"`
	Kind resource.Kind         `json:"kind"`
	// Policies would take effect, or lost to one that would.
	Policies []string   `json:"policies"`
	By       *Successor `json:"by"`
}

// InboundAccess says whether a caller may talk to one inbound.
type InboundAccess struct {
	Port      uint32   `json:"port"`
	Service   string   `json:"service"`
	Allowed   bool     `json:"allowed"`
	AllowedBy []string `json:"allowedBy"`
	DeniedBy  []string `json:"deniedBy"`
}

// OnConnection is what one kind does on one side of a connection.
type OnConnection struct {
	Side policy.AttachmentType `json:"side"`
	Port uint32                `json:"port"`
	// Route is set for what holds on one route of an outbound only.
	Route    string                    `json:"route,omitempty"`
	Kind     resource.Kind             `json:"kind"`
	Conf     policy.Tree               `json:"conf"`
	Fields   map[policy.Pointer]string `json:"fields"`
	Policies []string                  `json:"policies"`
}

// Connection answers a ConnectionQuestion. It fails with ErrNotFound when a
// dataplane or the inbound does not exist.
func Connection(m *policy.Matcher, q ConnectionQuestion, asOf resource.Revision) (*ConnectionAnswer, error) {
	var a *ConnectionAnswer
	err := m.Read(func(r *policy.Reading) error {
		inbounds, err := targets(r, q)
		if err != nil {
			return err
		}
		caller := []resource.Tags{q.FromTags}
		var fromRules, superseded []policy.Rule
		if q.From != "" {
			shape, err := findDataplane(r, q.Mesh, q.From)
			if err != nil {
				return err
			}
			caller = shape.Members
			if fromRules, err = r.Effective(policy.DataplaneKey(q.Mesh, q.From)); err != nil {
				return fmt.Errorf("match %s: %w", q.From, err)
			}
			if superseded, err = r.Superseded(policy.DataplaneKey(q.Mesh, q.From)); err != nil {
				return fmt.Errorf("match %s: %w", q.From, err)
			}
		}
		toRules, err := r.Effective(policy.DataplaneKey(q.Mesh, q.To))
		if err != nil {
			return fmt.Errorf("match %s: %w", q.To, err)
		}
		a = &ConnectionAnswer{Mesh: q.Mesh, From: q.From, To: q.To, AsOf: asOf, Effective: []OnConnection{}}
		a.sending(fromRules, inbounds)
		a.receiving(r.Mesh(q.Mesh), toRules, inbounds, caller)
		a.supersededSending(superseded, inbounds)
		if superseded, err = r.Superseded(policy.DataplaneKey(q.Mesh, q.To)); err != nil {
			return fmt.Errorf("match %s: %w", q.To, err)
		}
		a.supersededReceiving(superseded, inbounds)
		return nil
	})
	return a, err
}

// targets returns the inbounds that are asked about.
func targets(r *policy.Reading, q ConnectionQuestion) ([]*policy.Attachment, error) {
	shape, err := findDataplane(r, q.Mesh, q.To)
	if err != nil {
		return nil, err
	}
	var inbounds []*policy.Attachment
	var ports []string
	for i := range shape.Attachments {
		at := &shape.Attachments[i]
		if at.Type != policy.OnInbound {
			continue
		}
		ports = append(ports, strconv.FormatUint(uint64(at.Port), 10))
		if q.Port == 0 || at.Port == q.Port {
			inbounds = append(inbounds, at)
		}
	}
	switch {
	case len(ports) == 0:
		return nil, fmt.Errorf("an inbound of dataplane %q: %w; it is a gateway", q.To, ErrNotFound)
	case len(inbounds) == 0:
		return nil, fmt.Errorf("inbound port %d of dataplane %q: %w; it has %s", q.Port, q.To, ErrNotFound, listed(slices.Compact(ports)))
	}
	return inbounds, nil
}

// sending adds the rules of the caller's outbounds that route to one of the
// inbounds.
func (a *ConnectionAnswer) sending(rules []policy.Rule, inbounds []*policy.Attachment) {
	for i := range rules {
		if routesTo(&rules[i].Attachment, inbounds) {
			a.add(&rules[i])
		}
	}
}

// routesTo reports whether an attachment is an outbound to one of the inbounds: one
// whose tags the inbound has.
func routesTo(at *policy.Attachment, inbounds []*policy.Attachment) bool {
	selector := resource.TagSelector(at.Tags)
	return at.Type == policy.OnOutbound &&
		slices.ContainsFunc(inbounds, func(in *policy.Attachment) bool { return selector.Matches(in.Tags) })
}

// supersededSending adds what is superseded on the caller's outbounds to one of the
// inbounds.
func (a *ConnectionAnswer) supersededSending(rules []policy.Rule, inbounds []*policy.Attachment) {
	for i := range rules {
		if routesTo(&rules[i].Attachment, inbounds) {
			a.supersede(&rules[i])
		}
	}
}

// supersededReceiving adds what is superseded on the inbounds.
func (a *ConnectionAnswer) supersededReceiving(rules []policy.Rule, inbounds []*policy.Attachment) {
	for i := range rules {
		if slices.ContainsFunc(inbounds, func(in *policy.Attachment) bool { return in.Compare(&rules[i].Attachment) == 0 }) {
			a.supersede(&rules[i])
		}
	}
}

func (a *ConnectionAnswer) supersede(rule *policy.Rule) {
	s := SupersededOnConnection{
		Side: rule.Attachment.Type, Port: rule.Attachment.Port, Kind: rule.Kind,
		Policies: []string{}, By: successor(rule.Superseded),
	}
	for _, u := range rule.Unused {
		if !u.Missed {
			s.Policies = append(s.Policies, u.Policy.Name)
		}
	}
	a.Superseded = append(a.Superseded, s)
}

// receiving adds the rules of the inbounds for the caller, and whether its traffic
// is allowed.
func (a *ConnectionAnswer) receiving(mesh *policy.Mesh, rules []policy.Rule, inbounds []*policy.Attachment, caller []resource.Tags) {
	a.Allowed, a.AllowedBy = true, []string{}
	for _, in := range inbounds {
		var here []*policy.Rule
		for i := range rules {
			if rules[i].Attachment.Compare(in) == 0 {
				here = append(here, &rules[i])
			}
		}
		p := permitted(mesh, here, caller)
		a.Allowed = a.Allowed && p.allowed
		for _, name := range p.allowedBy {
			if !slices.Contains(a.AllowedBy, name) {
				a.AllowedBy = append(a.AllowedBy, name)
			}
		}
		if len(inbounds) > 1 {
			a.Inbounds = append(a.Inbounds, InboundAccess{in.Port, in.Service, p.allowed, p.allowedBy, p.deniedBy})
		}
		if !a.Allowed {
			a.AllowedBy = []string{}
		}
		for _, rule := range here {
			if mine := rule.ForCaller(caller); rule.Kind != resource.KindTrafficPermission && len(mine.Steps) > 0 {
				mine.PerCaller = false
				a.add(mine)
			}
		}
	}
}

// add appends what a rule comes to. TrafficPermission never gets here: it has
// no configuration, its whole effect is whether the caller is allowed.
func (a *ConnectionAnswer) add(rule *policy.Rule) {
	fold := rule.Fold()
	a.Effective = append(a.Effective, OnConnection{
		Side: rule.Attachment.Type, Port: rule.Attachment.Port, Route: rule.Attachment.Route, Kind: rule.Kind,
		Conf: fold.Conf(), Fields: fieldNames(fold), Policies: names(rule.Policies()),
	})
}
