package answer

import (
	"fmt"
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// PolicyAnswer says where a policy takes effect and in what condition it is.
type PolicyAnswer struct {
	Partial
	Kind       resource.Kind      `json:"kind"`
	Mesh       resource.MeshName  `json:"mesh"`
	Name       string             `json:"name"`
	AsOf       resource.Revision  `json:"asOf"`
	Dataplanes []PolicyDataplane  `json:"dataplanes"`
	Conditions []policy.Condition `json:"conditions"`
	// Superseded are the dataplanes on which it would take effect, if its successor
	// did not (§4.11).
	Superseded []SupersededDataplane `json:"superseded,omitempty"`
	// Warnings are what its author would be warned of if it were written now.
	Warnings []Warning `json:"warnings"`
	// MeshDataplanes is how many dataplanes of the mesh were looked at.
	MeshDataplanes int `json:"meshDataplanes"`

	// Incomplete is what an answer about several zones lacks.
	Incomplete []Absence `json:"incomplete,omitempty"`

	// said is what each zone said, in an answer that is put together.
	said []said
}

// Warning is something that is accepted and probably not meant.
type Warning struct {
	// Path is the place in the spec; empty for the whole.
	Path    string `json:"path"`
	Message string `json:"message"`
	// OfDataplanes is set where it rests on the dataplanes that there are.
	OfDataplanes bool `json:"ofDataplanes,omitempty"`
	// Unenforced is set where it is about proxies that do not obey the place.
	Unenforced *Unenforced `json:"unenforced,omitempty"`
}

// String prints "path: message", as apply does.
func (w Warning) String() string {
	return resource.Problem{Path: resource.Path(w.Path), Message: w.Message}.String()
}

// WarningLines are the warnings for people. Of one that rests on dataplanes, in an answer
// that lacks zones, the line says that it holds for the others alone.
func (a *PolicyAnswer) WarningLines() []string {
	lines := make([]string, len(a.Warnings))
	for i, w := range a.Warnings {
		lines[i] = w.String()
		if w.OfDataplanes && w.Unenforced == nil && len(a.Incomplete) > 0 {
			lines[i] += " (in the zones that answered)"
		}
	}
	return lines
}

// About answers in what condition a resource of any kind is: Policy without the
// dataplanes. It fails with ErrNotFound.
func About(m *policy.Matcher, key resource.Key, asOf resource.Revision) (*PolicyAnswer, error) {
	a := &PolicyAnswer{
		Kind: key.Kind, Mesh: key.Mesh, Name: key.Name, AsOf: asOf,
		Dataplanes: []PolicyDataplane{}, Conditions: []policy.Condition{}, Warnings: []Warning{},
	}
	err := m.Read(func(r *policy.Reading) error {
		if _, ok := r.View().Get(key); !ok {
			return missing(r, string(key.Kind), key.Mesh, key.Name, key.Kind)
		}
		conditions, _ := conditionsOf(m, key)
		tried, err := triedPolicy(m, key)
		a.Conditions = append(append(a.Conditions, conditions...), tried...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Warn adds what surveyors know of the resource: warnings, and conditions. They look at
// every policy of a mesh, which takes long: view does not change, and is that of the
// matcher that the answer is of.
func (a *PolicyAnswer) Warn(view policy.View, surveyors ...policy.Surveyor) {
	found, ok := view.Get(resource.Key{Kind: a.Kind, Mesh: a.Mesh, Name: a.Name})
	if !ok {
		return // it is in quarantine
	}
	always, fleet, conditions := policy.Standing(view, found, surveyors...)
	for _, p := range always {
		a.Warnings = append(a.Warnings, Warning{Path: string(p.Path), Message: p.Message})
	}
	for _, p := range fleet {
		a.Warnings = append(a.Warnings, Warning{Path: string(p.Path), Message: p.Message, OfDataplanes: true})
	}
	a.Conditions = append(a.Conditions, conditions...)
	if a.Mesh != "" {
		for range view.List(resource.KindDataplane, a.Mesh) {
			a.MeshDataplanes++
		}
	}
}

// said is what one zone, or the global itself, warns of, and from how many dataplanes.
type said struct {
	own        bool // of the global
	zone       resource.ZoneName
	warnings   []Warning
	dataplanes int
}

// maxWarning bounds the message of a zone's warning, in bytes.
const maxWarning = 2 << 10

// together are the warnings that hold for a fleet: those that do not rest on
// dataplanes, and of the others the places that every zone with dataplanes of the mesh
// warns of. Of several messages about one place the longest is kept, which names what
// was probably meant. What does not rest on dataplanes the global knows itself: where
// it has said it, what zones say of it does not count. Messages of zones that are longer
// than any that this release writes are left out. What proxies do not obey is counted by
// zone.
func together(all []said) []Warning {
	warnings := []Warning{}
	own := slices.ContainsFunc(all, func(s said) bool { return s.own })
	counts, longest, zones := map[string]int{}, map[string]Warning{}, 0
	for _, s := range all {
		if s.dataplanes > 0 {
			zones++
		}
		seen := map[string]bool{}
		for _, w := range s.warnings {
			if w.Unenforced != nil || !s.own && len(w.Message) > maxWarning {
				continue
			}
			if !w.OfDataplanes {
				if s.own == own && !slices.Contains(warnings, w) {
					warnings = append(warnings, w)
				}
				continue
			}
			if !seen[w.Path] {
				seen[w.Path] = true
				counts[w.Path]++
			}
			if known, again := longest[w.Path]; !again || len(w.Message) > len(known.Message) {
				longest[w.Path] = w
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(longest)) {
		if counts[path] == zones {
			warnings = append(warnings, longest[path])
		}
	}
	return append(warnings, unenforced(all)...)
}

// SupersededDataplane is a dataplane on which the successor holds in place of a
// policy.
type SupersededDataplane struct {
	PolicyDataplane
	By *Successor `json:"by"`
}

// PolicyDataplane is a dataplane on which a policy contributes to what is
// effective.
type PolicyDataplane struct {
	Name        string              `json:"name"`
	Zone        resource.ZoneName   `json:"zone"`
	Attachments []policy.Attachment `json:"attachments"`
}

// Policy answers where a policy takes effect. A policy that loses everywhere has
// no dataplanes. zone is shown for dataplanes whose tags name none. It fails
// with ErrNotFound, and with ErrInvalid for a kind that is no policy.
func Policy(m *policy.Matcher, kind resource.Kind, mesh resource.MeshName, name string, zone resource.ZoneName, asOf resource.Revision) (*PolicyAnswer, error) {
	a := &PolicyAnswer{
		Kind: kind, Mesh: mesh, Name: name, AsOf: asOf,
		Dataplanes: []PolicyDataplane{}, Conditions: []policy.Condition{}, Warnings: []Warning{},
	}
	err := m.Read(func(r *policy.Reading) error {
		key := resource.Key{Kind: kind, Mesh: mesh, Name: name}
		conditions, inherited := conditionsOf(m, key)
		if !inherited && !r.Matches(kind) {
			return fmt.Errorf("%s: %w: it is not a kind of policy", kind, ErrInvalid)
		}
		if _, ok := r.View().Get(key); !ok {
			var others []string
			for other := range r.View().List(kind, mesh) {
				others = append(others, other.Key().Name)
			}
			return notFound(fmt.Sprintf("%s %q in mesh %q", kind, name, mesh), name, others, "")
		}
		a.Conditions = append(a.Conditions, conditions...)
		if !r.Matches(kind) {
			return nil
		}
		tried, err := triedPolicy(m, key)
		if err != nil {
			return err
		}
		a.Conditions = append(a.Conditions, tried...)
		placed, err := r.Placements(key)
		if err != nil {
			return fmt.Errorf("place %s: %w", key, err)
		}
		for _, p := range placed {
			at := PolicyDataplane{Name: p.Dataplane.Name, Zone: p.Zone, Attachments: p.Attachments}
			if at.Zone == "" {
				at.Zone = zone
			}
			if p.Superseded != nil {
				a.Superseded = append(a.Superseded, SupersededDataplane{at, successor(p.Superseded)})
			} else {
				a.Dataplanes = append(a.Dataplanes, at)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func conditionsOf(m *policy.Matcher, key resource.Key) ([]policy.Condition, bool) {
	if c, ok := policy.FollowerOf[policy.Conditioner](m); ok {
		return c.Conditions(key)
	}
	return nil, false
}
