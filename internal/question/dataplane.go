package question

import (
	"fmt"
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Dataplane asks what takes effect on a dataplane.
type Dataplane struct{ Name string }

// Dataplanes asks for the list of dataplanes.
type Dataplanes struct{}

func (q Dataplane) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Dataplane{Dataplane: &meridianv1.DataplaneQuestion{Name: q.Name}}
}

// Ask implements Question.
func (q Dataplane) Ask(m *policy.Matcher, at At) (any, error) {
	return answer.Dataplane(m, at.Mesh, q.Name, at.Zone, at.AsOf)
}

// Render implements Question.
func (Dataplane) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderDataplane)
}

func (Dataplanes) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Dataplanes{Dataplanes: &meridianv1.DataplanesQuestion{}}
}

// Ask implements Question.
func (Dataplanes) Ask(m *policy.Matcher, at At) (any, error) {
	if at.Dataplanes == nil {
		return nil, fmt.Errorf("%w: only zones list dataplanes", answer.ErrInvalid)
	}
	return at.Dataplanes(m, at.Mesh)
}

// Render implements Question.
func (Dataplanes) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderDataplanes)
}

// About implements Question.
func (q Dataplane) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Name) }

// Restrict implements Question.
func (Dataplane) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.DataplaneAnswer](document, may)
}

// Of implements List.
func (Dataplanes) Of() resource.Kind { return resource.KindDataplane }

// Nothing implements List.
func (Dataplanes) Nothing(resource.MeshName, resource.Revision) any {
	return &answer.DataplanesAnswer{Items: []answer.DataplaneSummary{}, Incomplete: []answer.Absence{}}
}

// About implements Question.
func (Dataplanes) About(resource.MeshName) []resource.Key { return nil }

// Restrict implements Question.
func (Dataplanes) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.DataplanesAnswer](document, may)
}
