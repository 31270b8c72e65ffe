package answer

import (
	"fmt"
	"slices"
	"strconv"

	"meridian/internal/policy"
	"meridian/internal/policy/shadow"
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
	// Elsewhere is what is known of one of the two that is in another zone; nil when
	// both are here.
	Elsewhere *ConnectionEnds
}

// ConnectionEnds is what is known of the dataplanes of a connection that a matcher
// has, for a matcher that has the other one.
type ConnectionEnds struct {
	// Callers are the tag sets of the caller; empty when it is not here.
	Callers []resource.Tags
	// Called is set where the dataplane that is called is here. Inbounds are its.
	Called   bool
	Inbounds []policy.Attachment
}

// Ends returns what is known here of the dataplanes of a connection.
func Ends(m *policy.Matcher, mesh resource.MeshName, from, to string) *ConnectionEnds {
	var ends ConnectionEnds
	_ = m.Read(func(r *policy.Reading) error { // do returns no error
		if shape, err := r.Dataplane(policy.DataplaneKey(mesh, from)); err == nil && from != "" {
			ends.Callers = shape.Members
		}
		shape, err := r.Dataplane(policy.DataplaneKey(mesh, to))
		if err != nil {
			return nil //nolint:nilerr // it is not here
		}
		ends.Called = true
		for _, at := range shape.Attachments {
			if at.Type == policy.OnInbound {
				ends.Inbounds = append(ends.Inbounds, at)
			}
		}
		return nil
	})
	return &ends
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
	// DeniedBy are the policies on whose word the only inbound that was evaluated is
	// closed to the caller. It is no part of the document.
	DeniedBy []string `json:"-"`
	// Inbounds is set when more than one inbound was evaluated; Allowed is then
	// their conjunction.
	Inbounds  []InboundAccess `json:"inbounds,omitempty"`
	Effective []OnConnection  `json:"effective"`
	// Superseded is what does not take effect because its successor does (§4.11).
	Superseded []SupersededOnConnection `json:"superseded,omitempty"`
	// Shadow is what would be so if the permissions that are only tried were in effect,
	// where that differs.
	Shadow *ShadowAccess `json:"shadow,omitempty"`
	// Incomplete is what an answer about several zones lacks.
	Incomplete []Absence `json:"incomplete,omitempty"`
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

// Connection answers a ConnectionQuestion. With Elsewhere the answer is one side of
// it, for MergeConnections: that of the caller where the dataplane that is called is
// elsewhere, else that of the dataplane that is called. It fails with ErrNotFound
// when a dataplane or the inbound does not exist.
func Connection(m *policy.Matcher, q ConnectionQuestion, asOf resource.Revision) (*ConnectionAnswer, error) {
	var a *ConnectionAnswer
	err := m.Read(func(r *policy.Reading) error {
		a = &ConnectionAnswer{Mesh: q.Mesh, From: q.From, To: q.To, AsOf: asOf, AllowedBy: []string{}, Effective: []OnConnection{}}
		calledElsewhere := q.Elsewhere != nil && q.Elsewhere.Called
		var inbounds []*policy.Attachment
		var err error
		if calledElsewhere {
			inbounds = onPort(q.Elsewhere.Inbounds, q.Port)
		} else if inbounds, err = targets(r, q); err != nil {
			return err
		}
		caller := []resource.Tags{q.FromTags}
		switch {
		case q.Elsewhere != nil && !calledElsewhere:
			caller = q.Elsewhere.Callers
		case q.From != "":
			shape, err := findDataplane(r, q.Mesh, q.From)
			if err != nil {
				return err
			}
			caller = shape.Members
			if err := a.sending(r, inbounds); err != nil {
				return err
			}
		}
		if calledElsewhere {
			return nil
		}
		trial, _ := policy.FollowerOf[*shadow.Trial](m)
		return a.receiving(r, trial, inbounds, caller)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// targets returns the inbounds that are asked about.
func targets(r *policy.Reading, q ConnectionQuestion) ([]*policy.Attachment, error) {
	shape, err := findDataplane(r, q.Mesh, q.To)
	if err != nil {
		return nil, err
	}
	inbounds := onPort(shape.Attachments, q.Port)
	var ports []string
	for _, at := range onPort(shape.Attachments, 0) {
		ports = append(ports, strconv.FormatUint(uint64(at.Port), 10))
	}
	switch {
	case len(ports) == 0:
		return nil, fmt.Errorf("an inbound of dataplane %q: %w; it is a gateway", q.To, ErrNotFound)
	case len(inbounds) == 0:
		return nil, fmt.Errorf("inbound port %d of dataplane %q: %w; it has %s", q.Port, q.To, ErrNotFound, listed(slices.Compact(ports)))
	}
	return inbounds, nil
}

// onPort returns the inbounds with a port; 0 stands for any.
func onPort(attachments []policy.Attachment, port uint32) []*policy.Attachment {
	var inbounds []*policy.Attachment
	for i := range attachments {
		if at := &attachments[i]; at.Type == policy.OnInbound && (port == 0 || at.Port == port) {
			inbounds = append(inbounds, at)
		}
	}
	return inbounds
}

// sending adds the rules of the caller's outbounds that route to one of the inbounds,
// and what is superseded there.
func (a *ConnectionAnswer) sending(r *policy.Reading, inbounds []*policy.Attachment) error {
	rules, superseded, err := everything(r, a.Mesh, a.From)
	if err != nil {
		return err
	}
	for i := range rules {
		if routesTo(&rules[i].Attachment, inbounds) {
			a.add(&rules[i])
		}
	}
	for i := range superseded {
		if routesTo(&superseded[i].Attachment, inbounds) {
			a.supersede(&superseded[i])
		}
	}
	return nil
}

// everything returns what is in effect on a dataplane, and what is superseded.
func everything(r *policy.Reading, mesh resource.MeshName, name string) (rules, superseded []policy.Rule, err error) {
	key := policy.DataplaneKey(mesh, name)
	if rules, err = r.Effective(key); err == nil {
		superseded, err = r.Superseded(key)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("match %s: %w", name, err)
	}
	return rules, superseded, nil
}

// routesTo reports whether an attachment is an outbound to one of the inbounds: one
// whose tags the inbound has.
func routesTo(at *policy.Attachment, inbounds []*policy.Attachment) bool {
	selector := resource.TagSelector(at.Tags)
	return at.Type == policy.OnOutbound &&
		slices.ContainsFunc(inbounds, func(in *policy.Attachment) bool { return selector.Matches(in.Tags) })
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

// receiving adds the rules of the inbounds for the caller, what is superseded there,
// and whether its traffic is allowed. trial may be nil.
func (a *ConnectionAnswer) receiving(r *policy.Reading, trial *shadow.Trial, inbounds []*policy.Attachment, caller []resource.Tags) error {
	rules, superseded, err := everything(r, a.Mesh, a.To)
	if err != nil {
		return err
	}
	mesh := r.Mesh(a.Mesh)
	a.Allowed = true
	var now []permission
	for _, in := range inbounds {
		here := at(rules, in)
		p := permitted(mesh, here, caller)
		now = append(now, p)
		a.Allowed = a.Allowed && p.allowed
		for _, name := range p.allowedBy {
			if !slices.Contains(a.AllowedBy, name) {
				a.AllowedBy = append(a.AllowedBy, name)
			}
		}
		a.DeniedBy = p.deniedBy
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
	for i := range superseded {
		if slices.ContainsFunc(inbounds, func(in *policy.Attachment) bool { return in.Compare(&superseded[i].Attachment) == 0 }) {
			a.supersede(&superseded[i])
		}
	}
	if trial == nil {
		return nil
	}
	return a.tried(trial, mesh, inbounds, caller, now)
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
