package plan

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/analysis"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

const (
	// maxCompared bounds how many policies are compared on attachments in a mesh to find
	// what a change makes take effect nowhere.
	maxCompared = 200_000
	// maxStanding bounds what a zone tells of the findings before and after a change. A zone
	// with more tells of none.
	maxStanding = 500
)

// Sides is what dataplanes of one zone show: the findings of an analysis of the kinds of a
// change before and after it.
type Sides struct {
	Before *answer.AnalysisAnswer `json:"before"`
	After  *answer.AnalysisAnswer `json:"after"`
	zone   resource.ZoneName
}

func newSides() *Sides {
	empty := func() *answer.AnalysisAnswer {
		return &answer.AnalysisAnswer{Findings: []answer.Finding{}, Dataplanes: map[resource.MeshName]int{}, Incomplete: []answer.Absence{}}
	}
	return &Sides{Before: empty(), After: empty()}
}

// looks returns what looks at a mesh for policy.Matcher.CompareLooking.
func (f *Sides) looks(ctx context.Context) func(*policy.Reading, resource.MeshName, map[resource.Kind]bool) error {
	looked := map[resource.MeshName]bool{}
	cut := map[resource.MeshName]bool{}
	return func(r *policy.Reading, mesh resource.MeshName, kinds map[resource.Kind]bool) error {
		into := f.Before
		if looked[mesh] {
			into = f.After
		}
		looked[mesh] = true
		for range r.Dataplanes(mesh) {
			into.Dataplanes[mesh]++
		}
		if cut[mesh] {
			return nil
		}
		advice, more, err := analysis.OfKinds(ctx, r, mesh, kinds, maxCompared)
		if err != nil {
			return err
		}
		into.Add(advice)
		if more || len(into.Findings) > maxStanding {
			cut[mesh] = true
			for _, a := range []*answer.AnalysisAnswer{f.Before, f.After} {
				a.Cut = append(a.Cut, mesh)
				a.Findings = slices.DeleteFunc(a.Findings, func(of answer.Finding) bool { return of.Mesh == string(mesh) })
			}
		}
		return nil
	}
}

// settle adds the findings that hold with the change in every zone where that is asked of
// them, and did not without it. With the first dataplanes of a mesh there are none: before,
// nothing was known.
func (p *Plan) settle() {
	if len(p.parts) == 0 {
		return
	}
	var sides [2][]answer.Finding
	var known map[resource.MeshName]int
	for i := range sides {
		parts := []answer.Part{}
		for _, f := range p.parts {
			if f == nil {
				return // a zone of an older release: what holds there is not known
			}
			side := f.Before
			if i == 1 {
				side = f.After
			}
			encoded, err := json.Marshal(side)
			if err != nil {
				return
			}
			parts = append(parts, answer.Part{Zone: f.zone, JSON: encoded})
		}
		merged, err := answer.MergeAnalyses(parts, func([]answer.Rejected) []answer.Absence { return p.Incomplete })
		if err != nil {
			return
		}
		var all answer.AnalysisAnswer
		if err := answer.Unmarshal(merged, &all); err != nil {
			return
		}
		sides[i] = all.Findings
		if i == 0 {
			known = all.Dataplanes
		}
	}
	id := func(f *answer.Finding) string { return fmt.Sprint(f.Key(), "\x00", f.Code, "\x00", f.Field) }
	before := map[string]bool{}
	for i := range sides[0] {
		before[id(&sides[0][i])] = true
	}
	for i := range sides[1] {
		if f := &sides[1][i]; !before[id(f)] && known[resource.MeshName(f.Mesh)] > 0 {
			p.Findings = append(p.Findings, *f)
		}
	}
	p.parts = nil
}

// finds adds findings.
func (p *Plan) finds(advice []policy.Advice) {
	for _, a := range advice {
		p.Findings = append(p.Findings, answer.FindingOf(a))
	}
}

// Surveyed adds what a change makes of resources that is found without matching.
func (p *Plan) Surveyed(ctx context.Context, before policy.View, change *Batch) error {
	advice, err := analysis.Caused(ctx, before, change.On(before), change.Keys())
	p.finds(advice)
	return err
}

// order puts the findings in order, and leaves out what does not fit.
func (p *Plan) order() {
	slices.SortStableFunc(p.Findings, func(a, b answer.Finding) int {
		return cmp.Or(a.Key().Compare(b.Key()), strings.Compare(a.Field, b.Field), strings.Compare(a.Code, b.Code))
	})
	if more := len(p.Findings) - maxOthers; more > 0 {
		p.Findings = p.Findings[:maxOthers]
		p.Left.Findings += more
	}
}
