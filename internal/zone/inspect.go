package zone

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/service/dataplane"
)

// inspectService answers questions about this zone's dataplanes.
type inspectService struct {
	meridianv1.UnimplementedInspectServiceServer
	zone     resource.ZoneName
	matching *livematch.Matching
	// quarantined says why a resource that was received cannot be used here.
	quarantined func(key resource.Key) (policy.Condition, bool)
	// maxBytes bounds an answer; 0 is maxAnswerBytes.
	maxBytes int
	proxies  *dataplane.Service
}

// maxAnswerBytes leaves room for the envelope of the largest message.
const maxAnswerBytes = server.MaxMessageBytes - 1<<20

func (s *inspectService) limit() int { return cmp.Or(s.maxBytes, maxAnswerBytes) }

// Inspect answers one question, from everything this zone has applied.
func (s *inspectService) Inspect(_ context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	if z := resource.ZoneName(req.GetZone()); z != "" && z != s.zone {
		return nil, rpcerr.New(rpcerr.NotFound, "OTHER_ZONE", "this is zone %q: ask the global, or zone %q itself", s.zone, z)
	}
	var encoded []byte
	var revision resource.Revision
	err := s.matching.Read(func(m *policy.Matcher, asOf resource.Revision) error {
		document, err := s.answer(m, req, asOf)
		if err != nil {
			return err
		}
		revision = asOf
		encoded, err = answer.Marshal(document)
		return err
	})
	switch {
	case errors.Is(err, answer.ErrNotFound):
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "zone %q: %w", s.zone, err)
	case errors.Is(err, answer.ErrInvalid):
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	case err != nil:
		return nil, err
	case len(encoded) > s.limit():
		return nil, rpcerr.New(rpcerr.TooLarge, "ANSWER_TOO_LARGE",
			"zone %q: the answer has %d bytes, more than the %d that are sent: ask for less, with `meridian why DATAPLANE KIND` or `meridian inspect connection`",
			s.zone, len(encoded), s.limit())
	}
	return &meridianv1.InspectResponse{Json: encoded, AsOf: uint64(revision), Connection: s.connection(req)}, nil
}

// answerRelayed answers a question that came through the global: a request and a
// response as bytes.
func (s *inspectService) answerRelayed(ctx context.Context, question []byte) ([]byte, error) {
	var req meridianv1.InspectRequest
	if err := proto.Unmarshal(question, &req); err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "BAD_QUESTION", "the question cannot be read: %w", err)
	}
	response, err := s.Inspect(ctx, &req)
	if err != nil {
		return nil, rpcerr.ToStatus(err).Err()
	}
	return proto.Marshal(response)
}

func (s *inspectService) answer(m *policy.Matcher, req *meridianv1.InspectRequest, asOf resource.Revision) (any, error) {
	mesh := resource.MeshName(req.GetMesh())
	switch q := req.GetQuestion().(type) {
	case *meridianv1.InspectRequest_Dataplane:
		return answer.Dataplane(m, mesh, q.Dataplane.GetName(), s.zone, asOf)
	case *meridianv1.InspectRequest_Connection:
		return answer.Connection(m, answer.ConnectionQuestion{
			Mesh: mesh, From: q.Connection.GetFrom(), FromTags: q.Connection.GetFromTags(),
			To: q.Connection.GetTo(), Port: q.Connection.GetPort(),
		}, asOf)
	case *meridianv1.InspectRequest_Policy:
		kind, err := kindOf(q.Policy.GetKind())
		if err != nil {
			return nil, err
		}
		if rule := q.Policy.GetRule(); rule != "" {
			return answer.PolicyRules(m, kind, mesh, q.Policy.GetName(), rule, s.zone, asOf)
		}
		return s.policy(m, resource.Key{Kind: kind, Mesh: mesh, Name: q.Policy.GetName()}, asOf)
	case *meridianv1.InspectRequest_Route:
		return answer.Route(m, mesh, q.Route.GetName(), asOf)
	case *meridianv1.InspectRequest_Why:
		kind, err := kindOf(q.Why.GetKind())
		if err != nil {
			return nil, err
		}
		return answer.Why(m, answer.WhyQuestion{
			Mesh: mesh, Dataplane: q.Why.GetDataplane(), Kind: kind, Field: q.Why.GetField(),
			To: q.Why.GetTo(), From: q.Why.GetFromTags(),
		}, s.zone, asOf)
	case *meridianv1.InspectRequest_Conditions:
		kind, err := kindOf(q.Conditions.GetKind())
		if err != nil {
			return nil, err
		}
		return answer.Conditions(m, kind, mesh, asOf, s.quarantineConditions)
	case *meridianv1.InspectRequest_Dataplanes:
		return s.dataplaneList(m, mesh)
	default:
		return nil, fmt.Errorf("%w: this release does not know it", answer.ErrInvalid)
	}
}

// policy answers for one that is in quarantine too: it says so, beside what the
// last usable version does, if there is one (§5.8).
func (s *inspectService) policy(m *policy.Matcher, key resource.Key, asOf resource.Revision) (any, error) {
	a, err := answer.Policy(m, key.Kind, key.Mesh, key.Name, s.zone, asOf)
	held, quarantined := s.quarantined(key)
	if !quarantined || (err != nil && !errors.Is(err, answer.ErrNotFound)) {
		return a, err
	}
	if err != nil {
		a = &answer.PolicyAnswer{
			Kind: key.Kind, Mesh: key.Mesh, Name: key.Name, AsOf: asOf, Dataplanes: []answer.PolicyDataplane{},
		}
	}
	a.Conditions = append(a.Conditions, held)
	return a, nil
}

// quarantineConditions is the condition of a resource that is in quarantine, if it is.
func (s *inspectService) quarantineConditions(key resource.Key) []policy.Condition {
	if c, quarantined := s.quarantined(key); quarantined {
		return []policy.Condition{c}
	}
	return nil
}

func kindOf(name string) (resource.Kind, error) {
	d, ok := resource.Lookup(name)
	if !ok {
		return "", fmt.Errorf("%w: there is no kind %q", answer.ErrInvalid, name)
	}
	return d.Kind, nil
}
