package question

import (
	"fmt"
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/wire"
)

// Proxies asks what proxies have accepted over xDS; with Name, that of one dataplane.
// With Behind, which is for the global and its zones, it asks for the proxies that have
// yet to accept a change of that revision.
type Proxies struct {
	Name   string
	Behind resource.Revision
}

// Proxy asks for the xDS resources that the proxy of a dataplane is sent; with Type,
// for those of one type. Dialect is the kind of proxy; empty for gRPC.
type Proxy struct {
	Name, Type string
	Dialect    xds.Dialect
	// Live: with what the proxy itself says that it runs.
	Live bool
}

func (q Proxies) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Proxies{Proxies: &meridianv1.ProxiesQuestion{Name: q.Name, Behind: uint64(q.Behind)}}
}

// Ask implements Question.
func (q Proxies) Ask(m *policy.Matcher, at At) (any, error) {
	if at.Proxies == nil {
		return nil, fmt.Errorf("%w: only zones have proxies", answer.ErrInvalid)
	}
	return at.Proxies(m, at.Mesh, q, at.AsOf)
}

// Render implements Question.
func (Proxies) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderProxies)
}

func (q Proxy) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Proxy{Proxy: &meridianv1.ProxyQuestion{Name: q.Name, Type: q.Type, Dialect: string(q.Dialect), Live: q.Live}}
}

// Ask implements Question.
func (q Proxy) Ask(m *policy.Matcher, at At) (any, error) {
	if q.Live && at.Running == nil {
		return nil, fmt.Errorf("%w: only zones have proxies that can be asked", answer.ErrInvalid)
	}
	return wire.AskLive(m, at.Mesh, q.Name, q.Type, q.Dialect, at.Zone, at.AsOf, at.Running)
}

// Render implements Question.
func (Proxy) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, wire.Render)
}

// About implements Question.
func (q Proxy) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Name) }

// Restrict implements Question.
func (Proxy) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[wire.Answer](document, may)
}

// Of implements List.
func (Proxies) Of() resource.Kind { return resource.KindDataplane }

// Nothing implements List.
func (Proxies) Nothing(resource.MeshName, resource.Revision) any {
	return &answer.ProxiesAnswer{Items: []answer.ProxyStatus{}}
}

// About implements Question.
func (q Proxies) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Name) }

// Restrict implements Question.
func (Proxies) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.ProxiesAnswer](document, may)
}
