package question

import (
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

// Route asks for the rules on every path to a route.
type Route struct{ Name string }

// Gateway asks for the rules on every path through a gateway.
type Gateway struct{ Name string }

func (q Route) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Route{Route: &meridianv1.RouteQuestion{Name: q.Name}}
}

// Ask implements Question.
func (q Route) Ask(m *policy.Matcher, at At) (any, error) {
	return answer.Route(m, at.Mesh, q.Name, at.AsOf)
}

// Render implements Question.
func (Route) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderRoute)
}

func (q Gateway) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Gateway{Gateway: &meridianv1.GatewayQuestion{Name: q.Name}}
}

// Ask implements Question.
func (q Gateway) Ask(m *policy.Matcher, at At) (any, error) {
	return answer.Gateway(m, at.Mesh, q.Name, at.AsOf)
}

// Render implements Question.
func (Gateway) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderGateway)
}

// About implements Question.
func (q Route) About(mesh resource.MeshName) []resource.Key {
	return []resource.Key{{Kind: resource.KindHTTPRoute, Mesh: mesh, Name: q.Name}, {Kind: resource.KindGRPCRoute, Mesh: mesh, Name: q.Name}}
}

// Restrict implements Question.
func (Route) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.RouteAnswer](document, may)
}

// About implements Question.
func (q Gateway) About(mesh resource.MeshName) []resource.Key {
	return []resource.Key{{Kind: resource.KindGateway, Mesh: mesh, Name: q.Name}}
}

// Restrict implements Question.
func (Gateway) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.GatewayAnswer](document, may)
}
