package answer

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// Part is the answer that one zone gave to a question that was put to several.
type Part struct {
	Zone resource.ZoneName
	JSON []byte
}

// Rejected is why the part of a zone is not in a merged answer.
type Rejected struct {
	Zone resource.ZoneName
	Err  error
}

// MergePolicies puts the PolicyAnswers that several zones gave about one policy
// together: the dataplanes of all, each as one of the zone that was asked, and the
// conditions of the first that has any, and the warnings that hold for all. The answer holds at the oldest revision
// among them. A part that cannot be read is left out and returned. Error: no part
// can be read.
func MergePolicies(parts []Part) ([]byte, []Rejected, error) {
	return merge(parts, func(a *PolicyAnswer, zone resource.ZoneName) {
		for i := range a.Dataplanes {
			a.Dataplanes[i].Zone = zone
		}
		for i := range a.Superseded {
			a.Superseded[i].Zone = zone
		}
		a.said = []said{{a.Warnings, a.MeshDataplanes}}
	}, func(merged, a *PolicyAnswer) {
		merged.AsOf = min(merged.AsOf, a.AsOf)
		merged.Dataplanes = append(merged.Dataplanes, a.Dataplanes...)
		merged.Superseded = append(merged.Superseded, a.Superseded...)
		if len(merged.Conditions) == 0 {
			merged.Conditions = a.Conditions
		}
		merged.said = append(merged.said, a.said...)
		merged.MeshDataplanes += a.MeshDataplanes
	}, func(merged *PolicyAnswer) {
		merged.Warnings = together(merged.said)
		slices.SortStableFunc(merged.Dataplanes, comparePlaces)
		slices.SortStableFunc(merged.Superseded, func(a, b SupersededDataplane) int {
			return comparePlaces(a.PolicyDataplane, b.PolicyDataplane)
		})
	})
}

func comparePlaces(a, b PolicyDataplane) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.Zone), string(b.Zone)))
}

// MergeDataplanes puts the lists of several zones together, as MergePolicies does.
func MergeDataplanes(parts []Part) ([]byte, []Rejected, error) {
	return merge(parts, func(a *DataplanesAnswer, zone resource.ZoneName) {
		for i := range a.Items {
			a.Items[i].Zone = zone
		}
	}, func(merged, a *DataplanesAnswer) {
		merged.Items = append(merged.Items, a.Items...)
	}, func(merged *DataplanesAnswer) {
		slices.SortStableFunc(merged.Items, func(a, b DataplaneSummary) int {
			return cmp.Or(strings.Compare(string(a.Mesh), string(b.Mesh)), strings.Compare(a.Name, b.Name),
				strings.Compare(string(a.Zone), string(b.Zone)))
		})
	})
}

func merge[T any](parts []Part, stamp func(*T, resource.ZoneName), add func(merged, part *T), finish func(*T)) ([]byte, []Rejected, error) {
	var merged *T
	var rejected []Rejected
	for _, part := range parts {
		a := new(T)
		if err := Unmarshal(part.JSON, a); err != nil {
			rejected = append(rejected, Rejected{part.Zone, err})
			continue
		}
		stamp(a, part.Zone)
		if merged == nil {
			merged = a
		} else {
			add(merged, a)
		}
	}
	if merged == nil {
		return nil, rejected, errors.New("no zone gave an answer that can be read")
	}
	finish(merged)
	encoded, err := Marshal(merged)
	return encoded, rejected, err
}
