package question

import (
	"errors"
	"io"
	"slices"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Policy asks where a policy takes effect; with Rule, where one of its rules does.
// Brief asks for the conditions and warnings alone, of a resource of any kind.
type Policy struct {
	Kind       resource.Kind
	Name, Rule string
	Brief      bool
}

func (q Policy) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Policy{Policy: &meridianv1.PolicyQuestion{
		Kind: string(q.Kind), Name: q.Name, Rule: q.Rule, Brief: q.Brief,
	}}
}

// Ask implements Question. A policy in quarantine is answered for as well, by what its
// last usable version does (§5.8); survey adds its condition.
func (q Policy) Ask(m *policy.Matcher, at At) (any, error) {
	held := at.held(resource.Key{Kind: q.Kind, Mesh: at.Mesh, Name: q.Name})
	if q.Rule != "" {
		a, err := answer.PolicyRules(m, q.Kind, at.Mesh, q.Name, q.Rule, at.Zone, at.AsOf)
		if err != nil {
			return nil, err
		}
		a.Conditions = append(append(a.Conditions, held...), at.Enforced...)
		return a, nil
	}
	if q.Brief {
		return answer.About(m, resource.Key{Kind: q.Kind, Mesh: at.Mesh, Name: q.Name}, at.AsOf)
	}
	a, err := answer.Policy(m, q.Kind, at.Mesh, q.Name, at.Zone, at.AsOf)
	// A zone keeps apart what it cannot use: its matcher may know no version.
	if at.Zone != "" && len(held) > 0 && errors.Is(err, answer.ErrNotFound) {
		a, err = &answer.PolicyAnswer{
			Kind: q.Kind, Mesh: at.Mesh, Name: q.Name, AsOf: at.AsOf, Dataplanes: []answer.PolicyDataplane{}, Warnings: []answer.Warning{},
		}, nil
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// survey adds what takes a look at every policy of the mesh, and the conditions of a
// policy in quarantine.
func (q Policy) survey(document any, view policy.View, at At) {
	a := document.(*answer.PolicyAnswer)
	a.Warn(view, surveyors()...)
	a.Warnings = append(a.Warnings, at.Unenforced...)
	a.Conditions = append(append(a.Conditions, at.held(resource.Key{Kind: q.Kind, Mesh: at.Mesh, Name: q.Name})...), at.Enforced...)
}

// Render implements Question.
func (q Policy) Render(w io.Writer, document []byte, form answer.Form) error {
	if q.Rule != "" {
		return Page(w, document, form, answer.RenderRules)
	}
	return Page(w, document, form, answer.RenderPolicy)
}

// About implements Question.
func (q Policy) About(mesh resource.MeshName) []resource.Key {
	return []resource.Key{{Kind: q.Kind, Mesh: mesh, Name: q.Name}}
}

// Restrict implements Question.
func (q Policy) Restrict(document []byte, may answer.May) ([]byte, error) {
	if q.Rule != "" {
		return restrict[answer.RuleAnswer](document, may)
	}
	return restrict[answer.PolicyAnswer](document, may)
}

// AsksProxies reports whether an answer about a resource of a kind rests on proxies: what
// they do not obey of it is a warning.
func AsksProxies(kind resource.Kind) bool {
	d, ok := resource.Describe(kind)
	switch {
	case !ok:
		return false
	case d.Class == resource.SourceDestination || d.Class == resource.TargetRef:
		return true
	}
	return slices.Contains([]resource.Kind{resource.KindMesh, resource.KindDataplane, resource.KindHTTPRoute, resource.KindGRPCRoute}, kind)
}
