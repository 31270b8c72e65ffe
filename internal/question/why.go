package question

import (
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Why asks who decided the fields of a kind on a dataplane.
type Why struct {
	Dataplane string
	Kind      resource.Kind
	Field, To string
	From      map[string]string
}

func (q Why) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Why{Why: &meridianv1.WhyQuestion{
		Dataplane: q.Dataplane, Kind: string(q.Kind), Field: q.Field, To: q.To, FromTags: q.From,
	}}
}

// Ask implements Question.
func (q Why) Ask(m *policy.Matcher, at At) (any, error) {
	return answer.Why(m, answer.WhyQuestion{
		Mesh: at.Mesh, Dataplane: q.Dataplane, Kind: q.Kind, Field: q.Field, To: q.To, From: q.From,
	}, at.Zone, at.AsOf)
}

// Render implements Question.
func (Why) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderWhy)
}

// About implements Question.
func (q Why) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Dataplane) }

// Restrict implements Question.
func (Why) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.WhyAnswer](document, may)
}
