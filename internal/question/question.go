// Package question holds the questions of inspect, eval and why: one type for each,
// which knows how it is sent to a server, answered from a matcher, and shown.
//
// Guarantees. A server and the command answer from the same method, so that the
// answer to a question asked of a zone and from files is the same document.
//
// Non-goals: transport, and deciding which zone can answer.
package question

import (
	"errors"
	"fmt"
	"io"
	"sync"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/wire"
)

// Question is one question. Values are immutable.
type Question interface {
	// encode puts the question into a request.
	encode(request *meridianv1.InspectRequest)
	// Ask answers from a matcher: a document for answer.Marshal, which Answer may
	// complete. Errors: answer.ErrNotFound, answer.ErrInvalid.
	Ask(m *policy.Matcher, at At) (any, error)
	// About returns what is asked about: who may not read any of these resources is
	// not answered. It is empty for questions about all there is.
	About(mesh resource.MeshName) []resource.Key
	// Restrict takes out of an encoded document what rests on resources that the
	// reader may not read.
	Restrict(document []byte, may answer.May) ([]byte, error)
	// Render prints the page that people read, from an encoded document.
	Render(w io.Writer, document []byte, form answer.Form) error
}

// List is a question about all resources of a kind that there are.
type List interface {
	Question
	// Of returns the kind.
	Of() resource.Kind
	// Nothing is the answer that lists none of them: a document for answer.Marshal.
	Nothing(mesh resource.MeshName, asOf resource.Revision) any
}

// At is where and of what a question is asked.
type At struct {
	Mesh resource.MeshName
	// Zone is the zone of dataplanes that name none; empty on the global.
	Zone resource.ZoneName
	AsOf resource.Revision
	// Held are the conditions of a resource that is in quarantine; nil where
	// nothing can be.
	Held func(resource.Key) []policy.Condition
	// Enforced is what the proxies of the zone do with the policy that is asked about;
	// empty where none uses it.
	Enforced []policy.Condition
	// Dataplanes lists the dataplanes of a mesh, or of all; nil where the question
	// is not taken.
	Dataplanes func(*policy.Matcher, resource.MeshName) (any, error)
	// Proxies lists the proxies of a mesh, or of all, that follow the zone over xDS, or
	// one of them by name; nil where the question is not taken.
	Proxies func(m *policy.Matcher, mesh resource.MeshName, q Proxies, asOf resource.Revision) (any, error)
}

func (at At) held(key resource.Key) []policy.Condition {
	if at.Held == nil {
		return nil
	}
	return at.Held(key)
}

// Dataplane asks what takes effect on a dataplane.
type Dataplane struct{ Name string }

// Connection asks whether one dataplane may call another, and with which
// configuration.
type Connection struct {
	From, To string
	FromTags map[string]string
	Port     uint32
	// Ends and Elsewhere are for the global and its zones: the zone that has one of
	// the dataplanes only is asked what it knows of it, and then, with what is known
	// of the other one, for its side of the connection.
	Ends      bool
	Elsewhere *answer.ConnectionEnds
	// FromZone and ToZone are the zones that the dataplanes are in; empty where one zone
	// only has them.
	FromZone, ToZone resource.ZoneName
}

// here returns the dataplanes that a zone is asked about, of which one may be empty; all
// reports whether that is both.
func (q *Connection) here(zone resource.ZoneName) (from, to string, all bool) {
	from, to = q.From, q.To
	if q.FromZone != "" && q.FromZone != zone {
		from = ""
	}
	if q.ToZone != "" && q.ToZone != zone {
		to = ""
	}
	return from, to, from == q.From && to == q.To
}

// answeredIn returns an error unless a zone can answer as it is asked: without Ends and
// Elsewhere, it answers for dataplanes of its own, and the global for those of others.
func (q *Connection) answeredIn(zone resource.ZoneName) error {
	if q.Ends || q.Elsewhere != nil {
		return nil
	}
	return q.Within(zone)
}

// Within returns an error if a dataplane is in another zone than the one that is asked.
// It wraps answer.ErrInvalid.
func (q *Connection) Within(zone resource.ZoneName) error {
	for _, named := range []struct {
		flag string
		zone resource.ZoneName
	}{{"--from-zone", q.FromZone}, {"--to-zone", q.ToZone}} {
		if named.zone != "" && named.zone != zone {
			return fmt.Errorf("%w: zone %q is asked, and %s names zone %q: ask the global, without --zone", answer.ErrInvalid, zone, named.flag, named.zone)
		}
	}
	return nil
}

// Policy asks where a policy takes effect; with Rule, where one of its rules does.
// Brief asks for the conditions and warnings alone, of a resource of any kind.
type Policy struct {
	Kind       resource.Kind
	Name, Rule string
	Brief      bool
}

// surveyors know what authors are warned of.
var surveyors = sync.OnceValue(engines.Surveyors)

// Route asks for the rules on every path to a route.
type Route struct{ Name string }

// Gateway asks for the rules on every path through a gateway.
type Gateway struct{ Name string }

// Why asks who decided the fields of a kind on a dataplane.
type Why struct {
	Dataplane string
	Kind      resource.Kind
	Field, To string
	From      map[string]string
}

// Conditions asks for the conditions of all resources of a kind.
type Conditions struct{ Kind resource.Kind }

// Dataplanes asks for the list of dataplanes.
type Dataplanes struct{}

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
}

// Request is the question as a server takes it; zone may be empty.
func Request(q Question, mesh, zone string) *meridianv1.InspectRequest {
	request := &meridianv1.InspectRequest{Mesh: mesh, Zone: zone}
	q.encode(request)
	return request
}

// Parse reads the question of a request. Errors: answer.ErrInvalid.
func Parse(request *meridianv1.InspectRequest) (Question, error) {
	var kind resource.Kind
	lookup := func(name string) (err error) {
		d, ok := resource.Lookup(name)
		if !ok {
			return fmt.Errorf("%w: there is no kind %q", answer.ErrInvalid, name)
		}
		kind = d.Kind
		return nil
	}
	switch q := request.GetQuestion().(type) {
	case *meridianv1.InspectRequest_Dataplane:
		return Dataplane{q.Dataplane.GetName()}, nil
	case *meridianv1.InspectRequest_Connection:
		return Connection{
			From: q.Connection.GetFrom(), To: q.Connection.GetTo(), FromTags: q.Connection.GetFromTags(), Port: q.Connection.GetPort(),
			Ends: q.Connection.GetEnds(), Elsewhere: DecodeEnds(q.Connection.GetElsewhere()),
			FromZone: resource.ZoneName(q.Connection.GetFromZone()), ToZone: resource.ZoneName(q.Connection.GetToZone()),
		}, nil
	case *meridianv1.InspectRequest_Policy:
		err := lookup(q.Policy.GetKind())
		return Policy{kind, q.Policy.GetName(), q.Policy.GetRule(), q.Policy.GetBrief()}, err
	case *meridianv1.InspectRequest_Route:
		return Route{q.Route.GetName()}, nil
	case *meridianv1.InspectRequest_Gateway:
		return Gateway{q.Gateway.GetName()}, nil
	case *meridianv1.InspectRequest_Why:
		err := lookup(q.Why.GetKind())
		return Why{q.Why.GetDataplane(), kind, q.Why.GetField(), q.Why.GetTo(), q.Why.GetFromTags()}, err
	case *meridianv1.InspectRequest_Conditions:
		err := lookup(q.Conditions.GetKind())
		return Conditions{kind}, err
	case *meridianv1.InspectRequest_Dataplanes:
		return Dataplanes{}, nil
	case *meridianv1.InspectRequest_Proxies:
		return Proxies{q.Proxies.GetName(), resource.Revision(q.Proxies.GetBehind())}, nil
	case *meridianv1.InspectRequest_Proxy:
		return Proxy{q.Proxy.GetName(), q.Proxy.GetType(), xds.Dialect(q.Proxy.GetDialect())}, nil
	default:
		return nil, fmt.Errorf("%w: this release does not know it", answer.ErrInvalid)
	}
}

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

func (q Connection) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Connection{Connection: &meridianv1.ConnectionQuestion{
		From: q.From, FromTags: q.FromTags, To: q.To, Port: q.Port, Ends: q.Ends, Elsewhere: EncodeEnds(q.Elsewhere),
		FromZone: string(q.FromZone), ToZone: string(q.ToZone),
	}}
}

// Source is what questions are answered from: *livematch.Matching is one. Read calls ask
// with a matcher that does not change meanwhile, and its revision: changes wait until ask
// has returned.
type Source interface {
	Read(ask func(m *policy.Matcher, asOf resource.Revision) error) error
}

// Fixed is a Source that does not change.
type Fixed struct{ Matcher *policy.Matcher }

// Read implements Source.
func (f Fixed) Read(ask func(m *policy.Matcher, asOf resource.Revision) error) error {
	return ask(f.Matcher, 0)
}

// Answered is an answer as it is sent.
type Answered struct {
	// Document is encoded; nil where Ends is the answer.
	Document []byte
	// Ends is what a zone knows of the ends of a connection of which it does not have
	// both, where it was asked for that.
	Ends *answer.ConnectionEnds
	// Shown says how names in the document are shown.
	Shown answer.Names
	AsOf  resource.Revision
}

// Answer answers a question; at.AsOf is set from the source. What takes a look at every
// policy is done once the source has been released, from a view that does not change: no
// change of a policy waits for it. Errors: those of Question.Ask.
func Answer(q Question, from Source, at At) (Answered, error) {
	var a Answered
	var document any
	var view policy.View
	survey := surveyOf(q)
	err := from.Read(func(m *policy.Matcher, asOf resource.Revision) (err error) {
		at.AsOf, a.AsOf = asOf, asOf
		err = m.Read(func(r *policy.Reading) error {
			view = r.View()
			return nil
		})
		if err != nil {
			return err
		}
		c, ends := q.(Connection)
		if err := c.answeredIn(at.Zone); err != nil {
			return err
		}
		from, to, all := c.here(at.Zone)
		if ends = ends && c.Ends; !ends || all {
			document, err = q.Ask(m, at)
		}
		if ends && (!all || errors.Is(err, answer.ErrNotFound)) {
			a.Ends = answer.Ends(m, at.Mesh, from, to)
			return nil
		}
		if err == nil && survey == nil {
			a.Document, err = answer.Marshal(document)
		}
		return err
	})
	if err != nil || a.Ends != nil {
		return a, err
	}
	if survey != nil {
		survey(document, view, at)
		if a.Document, err = answer.Marshal(document); err != nil {
			return a, err
		}
	}
	a.Shown = answer.Shown(view, at.Mesh, a.Document, nil)
	return a, nil
}

// surveyOf returns what completes the document of a question from a view; nil where Ask
// does all.
func surveyOf(q Question) func(document any, view policy.View, at At) {
	if about, ok := q.(Policy); ok && about.Rule == "" {
		return about.survey
	}
	return nil
}

// Internal reports whether a request is one of those that only a global and its zones
// send each other.
func Internal(request *meridianv1.InspectRequest) bool {
	c := request.GetConnection()
	return c.GetEnds() || c.GetElsewhere() != nil || request.GetProxies().GetBehind() != 0
}

// EncodeEnds puts what is known of a connection's dataplanes into a message.
func EncodeEnds(ends *answer.ConnectionEnds) *meridianv1.ConnectionEnds {
	if ends == nil {
		return nil
	}
	out := &meridianv1.ConnectionEnds{Called: ends.Called}
	for _, tags := range ends.Callers {
		out.Callers = append(out.Callers, &meridianv1.TagSet{Tags: tags})
	}
	for _, in := range ends.Inbounds {
		out.Inbounds = append(out.Inbounds, &meridianv1.ConnectionInbound{Port: in.Port, Tags: in.Tags})
	}
	return out
}

// DecodeEnds reads such a message; nil for nil.
func DecodeEnds(message *meridianv1.ConnectionEnds) *answer.ConnectionEnds {
	if message == nil {
		return nil
	}
	ends := &answer.ConnectionEnds{Called: message.GetCalled()}
	for _, set := range message.GetCallers() {
		ends.Callers = append(ends.Callers, set.GetTags())
	}
	for _, in := range message.GetInbounds() {
		ends.Inbounds = append(ends.Inbounds, policy.Attachment{
			Type: policy.OnInbound, Port: in.GetPort(), Service: in.GetTags()[resource.ServiceTag], Tags: in.GetTags(),
		})
	}
	return ends
}

// Ask implements Question.
func (q Connection) Ask(m *policy.Matcher, at At) (any, error) {
	return answer.Connection(m, answer.ConnectionQuestion{
		Mesh: at.Mesh, From: q.From, FromTags: q.FromTags, To: q.To, Port: q.Port, Elsewhere: q.Elsewhere,
	}, at.AsOf)
}

// Render implements Question.
func (Connection) Render(w io.Writer, document []byte, form answer.Form) error {
	return Page(w, document, form, answer.RenderConnection)
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
	a.Conditions = append(append(a.Conditions, at.held(resource.Key{Kind: q.Kind, Mesh: at.Mesh, Name: q.Name})...), at.Enforced...)
}

// Render implements Question.
func (q Policy) Render(w io.Writer, document []byte, form answer.Form) error {
	if q.Rule != "" {
		return Page(w, document, form, answer.RenderRules)
	}
	return Page(w, document, form, answer.RenderPolicy)
}

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

func (q Conditions) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Conditions{Conditions: &meridianv1.ConditionsQuestion{Kind: string(q.Kind)}}
}

// Ask implements Question.
func (q Conditions) Ask(m *policy.Matcher, at At) (any, error) {
	return answer.Conditions(m, q.Kind, at.Mesh, at.AsOf, at.held)
}

// Render implements Question. The conditions of a kind are columns of get, and have
// no page.
func (Conditions) Render(w io.Writer, document []byte, _ answer.Form) error {
	_, err := w.Write(document)
	return err
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
	r.Question = &meridianv1.InspectRequest_Proxy{Proxy: &meridianv1.ProxyQuestion{Name: q.Name, Type: q.Type, Dialect: string(q.Dialect)}}
}

// Ask implements Question.
func (q Proxy) Ask(m *policy.Matcher, at At) (any, error) {
	return wire.Ask(m, at.Mesh, q.Name, q.Type, q.Dialect, at.Zone, at.AsOf)
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

// Page decodes a document and prints its page.
func Page[D any](w io.Writer, document []byte, form answer.Form, page func(io.Writer, *D, answer.Form) error) error {
	var d D
	if err := answer.Unmarshal(document, &d); err != nil {
		return err
	}
	form.Names.Apply(&d)
	return page(w, &d, form)
}

// About implements Question.
func (q Dataplane) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Name) }

// Restrict implements Question.
func (Dataplane) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.DataplaneAnswer](document, may)
}

// About implements Question.
func (q Connection) About(mesh resource.MeshName) []resource.Key {
	return dataplanes(mesh, q.From, q.To)
}

// Restrict implements Question.
func (Connection) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.ConnectionAnswer](document, may)
}

// About implements Question.
func (q Why) About(mesh resource.MeshName) []resource.Key { return dataplanes(mesh, q.Dataplane) }

// Restrict implements Question.
func (Why) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.WhyAnswer](document, may)
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

// HideZones takes out of an encoded document the names of absent zones that the
// reader may not read, and why they are absent.
func HideZones(q Question, document []byte, may answer.May) ([]byte, error) {
	switch q := q.(type) {
	case Connection:
		return hideZones[answer.ConnectionAnswer](document, may)
	case Dataplanes:
		return hideZones[answer.DataplanesAnswer](document, may)
	case Proxies:
		return hideZones[answer.ProxiesAnswer](document, may)
	case Policy:
		if q.Rule == "" {
			return hideZones[answer.PolicyAnswer](document, may)
		}
	}
	return document, nil
}

func hideZones[D any, P interface {
	*D
	HideZones(may answer.May)
}](document []byte, may answer.May) ([]byte, error) {
	var d D
	if err := answer.Unmarshal(document, &d); err != nil {
		return nil, err
	}
	P(&d).HideZones(may)
	return answer.Marshal(&d)
}

// dataplanes returns the keys of the dataplanes that are named.
func dataplanes(mesh resource.MeshName, names ...string) []resource.Key {
	var keys []resource.Key
	for _, name := range names {
		if name != "" {
			keys = append(keys, policy.DataplaneKey(mesh, name))
		}
	}
	return keys
}

// restrict decodes a document, restricts it and encodes it again.
func restrict[D any, P interface {
	*D
	Restrict(may answer.May)
}](document []byte, may answer.May) ([]byte, error) {
	var d D
	if err := answer.Unmarshal(document, &d); err != nil {
		return nil, err
	}
	P(&d).Restrict(may)
	return answer.Marshal(&d)
}
