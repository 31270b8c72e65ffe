package question

import (
	"context"
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/analysis"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Analysis asks what is valid and probably not meant, of a mesh or of everything.
type Analysis struct{}

func (Analysis) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Analysis{Analysis: &meridianv1.AnalysisQuestion{}}
}

// Ask implements Question: the findings are added once the matcher is released.
func (Analysis) Ask(_ *policy.Matcher, at At) (any, error) {
	return &answer.AnalysisAnswer{Mesh: at.Mesh, AsOf: at.AsOf, Findings: []answer.Finding{}, Incomplete: []answer.Absence{}}, nil
}

// survey adds the findings.
func (Analysis) survey(document any, view policy.View, _ At) {
	a := document.(*answer.AnalysisAnswer)
	report, err := analysis.Stored(context.Background(), view)
	if err != nil { // which only the end of the context is
		return
	}
	a.Dataplanes, a.Cut = report.Dataplanes, report.Cut
	if a.Mesh != "" {
		a.Dataplanes, a.Cut = map[resource.MeshName]int{a.Mesh: report.Dataplanes[a.Mesh]}, nil
		for _, mesh := range report.Cut {
			if mesh == a.Mesh {
				a.Cut = append(a.Cut, mesh)
			}
		}
	}
	a.Add(report.Findings)
}

// Render implements Question.
func (Analysis) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderAnalysis)
}

// About implements Question.
func (Analysis) About(resource.MeshName) []resource.Key { return nil }

// Restrict implements Question.
func (Analysis) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.AnalysisAnswer](document, may)
}
