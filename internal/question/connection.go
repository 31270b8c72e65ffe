package question

import (
	"fmt"
	"io"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
)

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

func (q Connection) encode(r *meridianv1.InspectRequest) {
	r.Question = &meridianv1.InspectRequest_Connection{Connection: &meridianv1.ConnectionQuestion{
		From: q.From, FromTags: q.FromTags, To: q.To, Port: q.Port, Ends: q.Ends, Elsewhere: EncodeEnds(q.Elsewhere),
		FromZone: string(q.FromZone), ToZone: string(q.ToZone),
	}}
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

// About implements Question.
func (q Connection) About(mesh resource.MeshName) []resource.Key {
	return dataplanes(mesh, q.From, q.To)
}

// Restrict implements Question.
func (Connection) Restrict(document []byte, may answer.May) ([]byte, error) {
	return restrict[answer.ConnectionAnswer](document, may)
}
