package answer

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// DataplaneAnswer says everything that takes effect on a dataplane.
type DataplaneAnswer struct {
	Partial
	Mesh      resource.MeshName `json:"mesh"`
	Dataplane string            `json:"dataplane"`
	Zone      resource.ZoneName `json:"zone"`
	// AsOf is the revision the answer holds for; 0 offline.
	AsOf      resource.Revision `json:"asOf"`
	Effective []Effective       `json:"effective"`
	Warnings  []string          `json:"warnings"`
	// Proxy is shown on the page when it is known; it is no part of the document.
	Proxy *ProxyState `json:"-"`
	// Wire is what a proxy that follows its zone over xDS does with each row of the page,
	// in the words of docs/contract.md; nil where none does. It is no part of the
	// document either.
	Wire map[WireKey]string `json:"-"`
}

// Effective is what one kind does on one attachment.
type Effective struct {
	Attachment policy.Attachment `json:"attachment"`
	Kind       resource.Kind     `json:"kind"`
	// Conf is nil where it differs per caller: see Rules.
	Conf       policy.Tree               `json:"conf"`
	Fields     map[policy.Pointer]string `json:"fields"`
	Policies   []string                  `json:"policies"`
	Considered []Considered              `json:"considered"`
	// Rules is nil where the configuration does not differ per caller.
	Rules []CallerRule `json:"rules"`
	// SupersededBy is set where nothing of the kind takes effect, because its
	// successor does (§4.11).
	SupersededBy *Successor `json:"supersededBy,omitempty"`
}

// Dataplane answers what takes effect on a dataplane. zone is shown for a
// dataplane whose tags name none. It fails with ErrNotFound.
func Dataplane(m *policy.Matcher, mesh resource.MeshName, name string, zone resource.ZoneName, asOf resource.Revision) (*DataplaneAnswer, error) {
	var a *DataplaneAnswer
	err := m.Read(func(r *policy.Reading) error {
		shape, err := findDataplane(r, mesh, name)
		if err != nil {
			return err
		}
		key := policy.DataplaneKey(mesh, name)
		rules, err := r.Explain(key)
		if err != nil {
			return fmt.Errorf("explain %s: %w", key, err)
		}
		a = &DataplaneAnswer{
			Mesh: mesh, Dataplane: name, Zone: zoneOf(shape, zone), AsOf: asOf,
			Effective: make([]Effective, len(rules)), Warnings: []string{},
		}
		for i := range rules {
			a.Effective[i] = effective(&rules[i])
		}
		if !r.Mesh(mesh).Exists {
			a.Warnings = append(a.Warnings, fmt.Sprintf("mesh %q does not exist: no policy is matched", mesh))
		}
		var warnings []string
		for i := range rules {
			warnings = append(warnings, rules[i].Warnings...)
		}
		slices.Sort(warnings)
		a.Warnings = append(a.Warnings, slices.Compact(warnings)...)
		return nil
	})
	return a, err
}

func zoneOf(shape *policy.Shape, otherwise resource.ZoneName) resource.ZoneName {
	if zone := shape.Zone(); zone != "" {
		return zone
	}
	return otherwise
}

func effective(rule *policy.Rule) Effective {
	e := Effective{
		Attachment: rule.Attachment,
		Kind:       rule.Kind,
		Fields:     map[policy.Pointer]string{},
		Considered: considered(rule),
		Policies:   []string{},

		SupersededBy: successor(rule.Superseded),
	}
	for _, c := range e.Considered {
		if c.Used {
			e.Policies = append(e.Policies, c.Policy)
		}
	}
	if rule.PerCaller {
		e.Rules = callerRules(rule)
		return e
	}
	fold := rule.Fold()
	e.Conf, e.Fields = fold.Conf(), fieldNames(fold)
	return e
}

// DataplanesAnswer lists the dataplanes of a zone.
type DataplanesAnswer struct {
	Items []DataplaneSummary `json:"items"`
	// Incomplete is what a list of several zones lacks.
	Incomplete []Absence `json:"incomplete"`
}

// DataplaneSummary is one dataplane in a list.
type DataplaneSummary struct {
	Mesh     resource.MeshName `json:"mesh"`
	Name     string            `json:"name"`
	Zone     resource.ZoneName `json:"zone"`
	Gateway  bool              `json:"gateway"`
	Services []string          `json:"services"`
	// Outbounds are the services it consumes.
	Outbounds []string `json:"outbounds"`
	// Policies counts the distinct policies that take effect on it; nil for a reader
	// who may not read all of them.
	Policies *int `json:"policies"`
	// Unmatched says why no policy is matched to it; empty when they are.
	Unmatched string `json:"unmatched,omitempty"`
	// ProxyState is absent where proxies are not known.
	*ProxyState
}

// Dataplanes lists the dataplanes of a mesh, of every mesh when it is empty.
func Dataplanes(m *policy.Matcher, mesh resource.MeshName, zone resource.ZoneName) (*DataplanesAnswer, error) {
	a := &DataplanesAnswer{Items: []DataplaneSummary{}, Incomplete: []Absence{}}
	err := m.Read(func(r *policy.Reading) error {
		for key, shape := range r.Dataplanes(mesh) {
			rules, err := r.Effective(key)
			if err != nil {
				return fmt.Errorf("match %s: %w", key, err)
			}
			a.Items = append(a.Items, summary(r, key, shape, zone, rules))
		}
		return nil
	})
	return a, err
}

func summary(r *policy.Reading, key resource.Key, shape *policy.Shape, zone resource.ZoneName, rules []policy.Rule) DataplaneSummary {
	s := DataplaneSummary{
		Mesh: key.Mesh, Name: key.Name, Zone: zoneOf(shape, zone), Gateway: shape.Gateway,
		Services: []string{}, Outbounds: []string{},
	}
	for _, tags := range shape.Members {
		s.Services = append(s.Services, tags[resource.ServiceTag])
	}
	for i := range shape.Attachments {
		if at := &shape.Attachments[i]; at.Type == policy.OnOutbound {
			s.Outbounds = append(s.Outbounds, at.Service)
		}
	}
	slices.Sort(s.Services)
	slices.Sort(s.Outbounds)
	s.Services, s.Outbounds = slices.Compact(s.Services), slices.Compact(s.Outbounds)
	used := map[resource.Key]struct{}{}
	for i := range rules {
		for _, p := range rules[i].Policies() {
			used[p] = struct{}{}
		}
	}
	count := len(used)
	s.Policies = &count
	if !r.Mesh(key.Mesh).Exists {
		s.Unmatched = fmt.Sprintf("mesh %s does not exist", key.Mesh)
	}
	return s
}

// listed joins words for people: "a, b and c".
func listed(words []string) string {
	switch len(words) {
	case 0:
		return "none"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
	}
}
