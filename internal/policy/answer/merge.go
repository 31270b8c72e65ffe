package answer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Part is the answer that one zone gave to a question that was put to several.
type Part struct {
	Zone resource.ZoneName
	JSON []byte
}

// Absence is a zone that an answer about several zones lacks or shows as it was, or a
// server of the global that could not be asked for its zones.
type Absence struct {
	Zone   resource.ZoneName `json:"zone,omitempty"`
	Server string            `json:"server,omitempty"`
	Reason string            `json:"reason"`
}

// String names what is absent, and why.
func (a Absence) String() string {
	if a.Server != "" {
		return fmt.Sprintf("server %s: %s", a.Server, a.Reason)
	}
	return fmt.Sprintf("zone %q: %s", a.Zone, a.Reason)
}

// Incomplete returns what a document lacks, of any kind of answer: nothing where it
// does not say.
func Incomplete(document []byte) ([]Absence, error) {
	var d struct {
		Incomplete []Absence `json:"incomplete"`
	}
	err := Unmarshal(document, &d)
	return d.Incomplete, err
}

// Rejected is why the part of a zone is not in a merged answer.
type Rejected struct {
	Zone resource.ZoneName
	Err  error
}

// MergePolicies puts the PolicyAnswers that several zones gave about one policy
// together: the dataplanes of all, each as one of the zone that was asked, and the
// conditions of the first that has any, and the warnings that hold for all. The
// answer holds at the oldest revision among them. A part that cannot be read is left
// out. incomplete is what the answer lacks, given those. Error: no part can be read.
func MergePolicies(parts []Part, incomplete func([]Rejected) []Absence) ([]byte, error) {
	return merge(parts, func(a *PolicyAnswer, zone resource.ZoneName) {
		for i := range a.Dataplanes {
			a.Dataplanes[i].Zone = zone
		}
		for i := range a.Superseded {
			a.Superseded[i].Zone = zone
		}
		a.said = []said{{zone == "", zone, a.Warnings, a.MeshDataplanes}}
	}, func(merged, a *PolicyAnswer) {
		merged.AsOf = min(merged.AsOf, a.AsOf)
		merged.Dataplanes = append(merged.Dataplanes, a.Dataplanes...)
		merged.Superseded = append(merged.Superseded, a.Superseded...)
		if len(merged.Conditions) == 0 {
			merged.Conditions = a.Conditions
		} else {
			merged.Conditions = append(merged.Conditions, slices.DeleteFunc(a.Conditions, func(c policy.Condition) bool { return c.Type != enforcedCondition })...)
		}
		merged.said = append(merged.said, a.said...)
		merged.MeshDataplanes += a.MeshDataplanes
	}, func(merged *PolicyAnswer, rejected []Rejected) {
		merged.Incomplete = incomplete(rejected)
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
func MergeDataplanes(parts []Part, incomplete func([]Rejected) []Absence) ([]byte, error) {
	return merge(parts, func(a *DataplanesAnswer, zone resource.ZoneName) {
		for i := range a.Items {
			a.Items[i].Zone = zone
		}
	}, func(merged, a *DataplanesAnswer) {
		merged.Items = append(merged.Items, a.Items...)
	}, func(merged *DataplanesAnswer, rejected []Rejected) {
		merged.Incomplete = append([]Absence{}, incomplete(rejected)...)
		slices.SortStableFunc(merged.Items, func(a, b DataplaneSummary) int {
			return cmp.Or(strings.Compare(string(a.Mesh), string(b.Mesh)), strings.Compare(a.Name, b.Name),
				strings.Compare(string(a.Zone), string(b.Zone)))
		})
	})
}

// MergeConnections puts the two sides of a connection together that ConnectionAnswers
// of two zones are about. It holds at the older revision of the two. Error: a part
// cannot be read.
func MergeConnections(from, to Part, incomplete []Absence) ([]byte, error) {
	sides := make([]ConnectionAnswer, 2)
	for i, part := range []Part{from, to} {
		if err := Unmarshal(part.JSON, &sides[i]); err != nil {
			return nil, fmt.Errorf("zone %q: %w", part.Zone, err)
		}
	}
	merged, sending := sides[1], sides[0]
	merged.AsOf = min(merged.AsOf, sending.AsOf)
	merged.Effective = slices.Concat(sending.Effective, merged.Effective)
	if merged.Effective == nil {
		merged.Effective = []OnConnection{}
	}
	merged.Superseded = slices.Concat(sending.Superseded, merged.Superseded)
	merged.Incomplete = incomplete
	document, err := Marshal(&merged)
	return keepRolledOut(document, err, from, to)
}

// WithIncomplete adds to a ConnectionAnswer what it lacks.
func WithIncomplete(document []byte, incomplete []Absence) ([]byte, error) {
	var a ConnectionAnswer
	if err := Unmarshal(document, &a); err != nil {
		return nil, err
	}
	a.Incomplete = incomplete
	whole, err := Marshal(&a)
	return keepRolledOut(whole, err, Part{JSON: document})
}

func merge[T any](parts []Part, stamp func(*T, resource.ZoneName), add func(merged, part *T), finish func(*T, []Rejected)) ([]byte, error) {
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
		return nil, errors.New("no zone gave an answer that can be read")
	}
	finish(merged, rejected)
	document, err := Marshal(merged)
	return keepRolledOut(document, err, parts...)
}
