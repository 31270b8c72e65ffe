package question

import (
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Conditions asks for the conditions of all resources of a kind.
type Conditions struct{ Kind resource.Kind }

func (q Conditions) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Conditions{Conditions: &meridianv1.ConditionsQuestion{Kind: string(q.Kind)}}
}

// Ask implements Question.
func (q Conditions) Ask(m *policy.Matcher, at At) (any, error) {
	if at.EnforcedOf != nil {
		return &answer.ConditionsAnswer{Kind: q.Kind, Mesh: at.Mesh, AsOf: at.AsOf, Items: at.EnforcedOf}, nil
	}
	return answer.Conditions(m, q.Kind, at.Mesh, at.AsOf, at.held)
}

// Render implements Question. The conditions of a kind are columns of get, and have
// no page.
func (Conditions) Render(w io.Writer, document []byte, _ answer.Form) error {
	_, err := w.Write(document)
	return err
}

// About implements Question.
func (Conditions) About(resource.MeshName) []resource.Key { return nil }

// Restrict implements Question.
func (Conditions) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.ConditionsAnswer](document, may)
}

// Of implements List.
func (q Conditions) Of() resource.Kind { return q.Kind }

// Nothing implements List.
func (q Conditions) Nothing(mesh resource.MeshName, asOf resource.Revision) any {
	return &answer.ConditionsAnswer{Kind: q.Kind, Mesh: mesh, AsOf: asOf, Items: []answer.ConditionsItem{}}
}
