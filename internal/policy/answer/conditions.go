package answer

import (
	"fmt"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// ConditionsAnswer says in what condition everything of a kind is: inherited
// policies, or what they can target (§5.8).
type ConditionsAnswer struct {
	Kind resource.Kind `json:"kind"`
	// Mesh is the mesh that was asked about; empty for all.
	Mesh  resource.MeshName `json:"mesh"`
	AsOf  resource.Revision `json:"asOf"`
	Items []ConditionsItem  `json:"items"`
}

// ConditionsItem is one resource of the kind.
type ConditionsItem struct {
	Mesh       resource.MeshName  `json:"mesh"`
	Name       string             `json:"name"`
	Conditions []ConditionSummary `json:"conditions"`
}

// ConditionSummary is a condition without its message, which can be long and
// which the answer about a single policy has.
type ConditionSummary struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// Conditions answers in what condition everything of a kind is, in one mesh or,
// with an empty name, in all. more adds what is known of a resource besides; it
// may be nil. Conditions fails with ErrInvalid for a kind that has no conditions.
func Conditions(
	m *policy.Matcher, kind resource.Kind, mesh resource.MeshName, asOf resource.Revision,
	more func(resource.Key) []policy.Condition,
) (*ConditionsAnswer, error) {
	a := &ConditionsAnswer{Kind: kind, Mesh: mesh, AsOf: asOf, Items: []ConditionsItem{}}
	err := m.Read(func(r *policy.Reading) error {
		conditioner, ok := policy.FollowerOf[policy.Conditioner](m)
		if ok {
			_, ok = conditioner.States(resource.Key{Kind: kind})
		}
		if !ok {
			return fmt.Errorf("conditions of %s: %w: only inherited policies and what they target have conditions", kind, ErrInvalid)
		}
		for found := range r.View().List(kind, mesh) {
			key := found.Key()
			conditions, _ := conditioner.States(key)
			if more != nil {
				conditions = append(conditions, more(key)...)
			}
			item := ConditionsItem{Mesh: key.Mesh, Name: key.Name, Conditions: []ConditionSummary{}}
			for _, c := range conditions {
				item.Conditions = append(item.Conditions, ConditionSummary{c.Type, c.Status, c.Reason})
			}
			a.Items = append(a.Items, item)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}
