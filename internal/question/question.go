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
	// Unenforced are the warnings about proxies of the zone that do not obey what is asked
	// about.
	Unenforced []answer.Warning
	// EnforcedOf says of the policies of a kind that attach to dataplanes what proxies do
	// with them; nil where there are no proxies to know of.
	EnforcedOf []answer.ConditionsItem
	// Running is what the proxy that is asked about says that it runs; nil where it was not
	// asked.
	Running *wire.Running
	// Dataplanes lists the dataplanes of a mesh, or of all; nil where the question
	// is not taken.
	Dataplanes func(*policy.Matcher, resource.MeshName) (any, error)
	// Proxies lists the proxies of a mesh, or of all, that follow the zone over xDS, or
	// one of them by name; nil where the question is not taken.
	Proxies func(m *policy.Matcher, mesh resource.MeshName, q Proxies, asOf resource.Revision) (any, error)
	// Trials lists what the proxies of a mesh, or of all, have counted of permissions that
	// are only tried; nil where the question is not taken.
	Trials func(m *policy.Matcher, mesh resource.MeshName, q Trials) (any, error)
}

func (at At) held(key resource.Key) []policy.Condition {
	if at.Held == nil {
		return nil
	}
	return at.Held(key)
}

// surveyors know what authors are warned of.
var surveyors = sync.OnceValue(engines.Surveyors)

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
	case *meridianv1.InspectRequest_Analysis:
		return Analysis{}, nil
	case *meridianv1.InspectRequest_Proxies:
		return Proxies{q.Proxies.GetName(), resource.Revision(q.Proxies.GetBehind())}, nil
	case *meridianv1.InspectRequest_Trials:
		return Trials{q.Trials.GetName(), q.Trials.GetService()}, nil
	case *meridianv1.InspectRequest_Proxy:
		return Proxy{q.Proxy.GetName(), q.Proxy.GetType(), xds.Dialect(q.Proxy.GetDialect()), q.Proxy.GetLive()}, nil
	default:
		return nil, fmt.Errorf("%w: this release does not know it", answer.ErrInvalid)
	}
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
	a.Document, err = answer.WithRolledOut(a.Document, answer.RolledOutIn(view, at.Mesh, at.Zone, a.Document))
	return a, err
}

// surveyOf returns what completes the document of a question from a view; nil where Ask
// does all.
func surveyOf(q Question) func(document any, view policy.View, at At) {
	switch about := q.(type) {
	case Policy:
		if about.Rule == "" {
			return about.survey
		}
	case Analysis:
		return about.survey
	}
	return nil
}

// Internal reports whether a request is one of those that only a global and its zones
// send each other.
func Internal(request *meridianv1.InspectRequest) bool {
	c := request.GetConnection()
	return c.GetEnds() || c.GetElsewhere() != nil || request.GetProxies().GetBehind() != 0 || request.GetThenFrom() != 0 || len(request.GetThenWritten())+len(request.GetThenDeleted())+len(request.GetThenName()) > 0 || request.GetThenQuestion() != nil || request.GetPlan() != nil || len(request.GetInvariant().GetElsewhere()) > 0
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

// HideZones takes out of an encoded document the names of absent zones that the
// reader may not read, and why they are absent.
func HideZones(q Question, document []byte, may answer.May) ([]byte, error) {
	switch q := q.(type) {
	case Connection:
		return hideZones[answer.ConnectionAnswer](document, may)
	case Dataplanes:
		return hideZones[answer.DataplanesAnswer](document, may)
	case Analysis:
		return hideZones[answer.AnalysisAnswer](document, may)
	case Proxies:
		return hideZones[answer.ProxiesAnswer](document, may)
	case Trials:
		return hideZones[answer.TrialsAnswer](document, may)
	case Conditions:
		return hideZones[answer.ConditionsAnswer](document, may)
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
