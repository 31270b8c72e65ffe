package answer

import (
	"fmt"

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
		Dataplanes: []PolicyDataplane{}, Conditions: []policy.Condition{},
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
