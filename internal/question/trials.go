package question

import (
	"fmt"
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Trials asks what permissions that are only tried would have decided otherwise than those
// in effect: of one dataplane with Name, of the inbounds of a service with Service.
type Trials struct{ Name, Service string }

func (q Trials) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Trials{Trials: &meridianv1.TrialsQuestion{Name: q.Name, Service: q.Service}}
}

// Ask implements Question.
func (q Trials) Ask(m *policy.Matcher, at At) (any, error) {
	if at.Trials == nil {
		return nil, fmt.Errorf("%w: only zones have proxies", answer.ErrInvalid)
	}
	return at.Trials(m, at.Mesh, q)
}

// Render implements Question.
func (Trials) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderTrials)
}

// Of implements List.
func (Trials) Of() resource.Kind { return resource.KindDataplane }

// Nothing implements List.
func (Trials) Nothing(resource.MeshName, resource.Revision) any {
	return &answer.TrialsAnswer{Items: []answer.TrialItem{}}
}

// About implements Question.
func (q Trials) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Name) }

// Restrict implements Question.
func (Trials) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.TrialsAnswer](document, may)
}
