package answer

import (
	"cmp"
	"slices"
	"strings"
)

// MergePolicies puts the PolicyAnswers that several zones gave about one policy
// together: the dataplanes of all, and the conditions of the first that has
// any. The answer holds for the oldest revision among them. parts must not be
// empty.
func MergePolicies(parts [][]byte) ([]byte, error) {
	answers, err := unmarshalAll[PolicyAnswer](parts)
	if err != nil {
		return nil, err
	}
	merged := answers[0]
	for _, a := range answers[1:] {
		merged.AsOf = min(merged.AsOf, a.AsOf)
		merged.Dataplanes = append(merged.Dataplanes, a.Dataplanes...)
		if len(merged.Conditions) == 0 {
			merged.Conditions = a.Conditions
		}
	}
	slices.SortStableFunc(merged.Dataplanes, func(a, b PolicyDataplane) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.Zone), string(b.Zone)))
	})
	return Marshal(merged)
}

// MergeDataplanes puts the lists of several zones together. parts must not be
// empty.
func MergeDataplanes(parts [][]byte) ([]byte, error) {
	answers, err := unmarshalAll[DataplanesAnswer](parts)
	if err != nil {
		return nil, err
	}
	merged := answers[0]
	for _, a := range answers[1:] {
		merged.Items = append(merged.Items, a.Items...)
	}
	slices.SortStableFunc(merged.Items, func(a, b DataplaneSummary) int {
		return cmp.Or(strings.Compare(string(a.Mesh), string(b.Mesh)), strings.Compare(a.Name, b.Name),
			strings.Compare(string(a.Zone), string(b.Zone)))
	})
	return Marshal(merged)
}

func unmarshalAll[T any](parts [][]byte) ([]T, error) {
	all := make([]T, len(parts))
	for i, part := range parts {
		if err := Unmarshal(part, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}
