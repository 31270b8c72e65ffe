package answer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

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
	// Incomplete is what an answer about several zones lacks.
	Incomplete []Absence `json:"incomplete,omitempty"`
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
	// Proxies are those that use a policy on dataplanes, by zone; of other conditions
	// there are none.
	Proxies []ProxiesIn `json:"proxies,omitempty"`
}

// ProxiesIn counts the proxies of one zone that use a policy, and those that obey it.
type ProxiesIn struct {
	Zone    resource.ZoneName `json:"zone"`
	Obey    int               `json:"obey"`
	Proxies int               `json:"proxies"`
}

// EnforcedItem is a policy of which proxies obey some or all: at least one proxy uses it.
func EnforcedItem(key resource.Key, in []ProxiesIn) ConditionsItem {
	obey, all := 0, 0
	for _, z := range in {
		obey, all = obey+z.Obey, all+z.Proxies
	}
	c := ConditionSummary{Type: enforcedCondition, Status: "True", Reason: "AllProxies", Proxies: in}
	if obey < all {
		c.Status, c.Reason = "False", "SomeProxies"
		if obey == 0 {
			c.Reason = "NoProxy"
		}
	}
	return ConditionsItem{Mesh: key.Mesh, Name: key.Name, Conditions: []ConditionSummary{c}}
}

// ProxiesText says how many proxies obey a policy, in each of a few zones or in all.
func (c *ConditionSummary) ProxiesText() string {
	obey, all := 0, 0
	var zones []string
	for _, z := range c.Proxies {
		obey, all = obey+z.Obey, all+z.Proxies
		zones = append(zones, fmt.Sprintf("%d of %d in %s", z.Obey, z.Proxies, z.Zone))
	}
	if len(zones) > zonesNamed {
		return fmt.Sprintf("%d of %d in %d zones", obey, all, len(zones))
	}
	return strings.Join(zones, ", ")
}

// MergeConditions puts together what zones say of the policies of a kind on dataplanes,
// as MergePolicies does.
func MergeConditions(parts []Part, incomplete func([]Rejected) []Absence) ([]byte, error) {
	counts := map[resource.Key][]ProxiesIn{}
	return merge(parts, func(a *ConditionsAnswer, zone resource.ZoneName) {
		for _, item := range a.Items {
			for _, c := range item.Conditions {
				in := ProxiesIn{Zone: zone}
				for _, z := range c.Proxies {
					in.Obey, in.Proxies = in.Obey+z.Obey, in.Proxies+z.Proxies
				}
				if key := (resource.Key{Kind: a.Kind, Mesh: item.Mesh, Name: item.Name}); c.Type == enforcedCondition && in.Proxies > 0 {
					counts[key] = append(counts[key], in)
				}
			}
		}
	}, func(merged, a *ConditionsAnswer) {
		merged.AsOf = min(merged.AsOf, a.AsOf)
	}, func(merged *ConditionsAnswer, rejected []Rejected) {
		merged.Incomplete = incomplete(rejected)
		merged.Items = []ConditionsItem{}
		for _, key := range slices.SortedFunc(maps.Keys(counts), resource.Key.Compare) {
			merged.Items = append(merged.Items, EnforcedItem(key, counts[key]))
		}
	})
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
				item.Conditions = append(item.Conditions, ConditionSummary{Type: c.Type, Status: c.Status, Reason: c.Reason})
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
