package zone

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/discovery"
	"meridian/internal/turns"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/world"
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
	xds      proxyStreams
	// others are the other servers of the zone; nil in a zone of one.
	others *otherServers
	// resources are what proxies are to have, made of the matching and of world.
	resources xds.Source
	world     *world.World
	// past answers questions about earlier states; nil where there are none.
	past *pastStates
	// turns bound how many questions are answered at once, fairly between callers.
	turns *turns.Turns
}

// proxyStreams are the proxies that follow the zone over xDS: *discovery.Service.
type proxyStreams interface {
	Proxies() []resource.Key
	Dialects(resource.Key) []xds.Dialect
	Follows(resource.Key, xds.Dialect) (withheld string, ok bool)
	Status(resource.Key) []discovery.StreamStatus
	Deliveries(resource.Key, xds.Dialect, []*xds.Resource) []serve.Delivery
	Behind(resource.Revision) map[resource.Key]enforce.State
}

// maxAnswerBytes leaves space for the envelope of the largest message.
const maxAnswerBytes = server.MaxMessageBytes - 1<<20

func (s *inspectService) limit() int { return cmp.Or(s.maxBytes, maxAnswerBytes) }

// Inspect answers one question, from everything this zone has applied.
func (s *inspectService) Inspect(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	return s.inspect(ctx, turns.CallerOf(ctx), req)
}

// inspect answers a question from the proxies of all servers of the zone.
func (s *inspectService) inspect(ctx context.Context, who turns.Caller, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	if s.others == nil {
		return s.inspectHere(ctx, who, req, nil)
	}
	if response, err := s.others.forward(ctx, req); response != nil || err != nil {
		return response, err
	}
	return s.inspectHere(ctx, who, req, func(asked question.Question) elsewhere { return s.others.partsOf(ctx, req, asked) })
}

// inspectHere answers a question from the proxies of this server, and what others, unless
// nil, returns of those of the other servers of the zone.
func (s *inspectService) inspectHere(ctx context.Context, who turns.Caller, req *meridianv1.InspectRequest, others func(question.Question) elsewhere) (*meridianv1.InspectResponse, error) {
	if z := resource.ZoneName(req.GetZone()); z != "" && z != s.zone {
		return nil, rpcerr.New(rpcerr.NotFound, "OTHER_ZONE", "this is zone %q: ask the global, or zone %q itself", s.zone, z)
	}
	if q := req.GetPlan(); q != nil {
		return s.plan(ctx, who, q)
	}
	if q := req.GetInvariant(); q != nil && req.GetAt() == nil {
		return s.invariant(ctx, who, resource.MeshName(req.GetMesh()), q)
	}
	var named []byte
	if inner := req.GetThenQuestion(); inner != nil {
		if named, req = req.GetThenName(), inner; len(named) == 0 || req.GetAt() == nil {
			return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "a question about a named state needs the name and the revision")
		}
	}
	asked, err := question.Parse(req)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	}
	if req.GetAt() != nil {
		return s.inspectThen(ctx, who, req, asked, named)
	}
	running, err := s.running(ctx, resource.MeshName(req.GetMesh()), asked)
	if err != nil {
		return nil, err
	}
	var more elsewhere
	if others != nil { // before the turn: the others wait for turns, too
		more = others(asked)
	}
	var answered question.Answered
	err = s.turns.Question(ctx, who, func() (err error) {
		var enforced []policy.Condition
		var unenforced []answer.Warning
		var enforcedOf []answer.ConditionsItem
		if about, ok := asked.(question.Conditions); ok && s.attaches(about.Kind) {
			if enforcedOf, err = s.enforcedOf(about.Kind, resource.MeshName(req.GetMesh()), more.enforcement); err != nil {
				return err
			}
		}
		if about, ok := asked.(question.Policy); ok { // before the answer, which reads the matching itself
			key := resource.Key{Kind: about.Kind, Mesh: resource.MeshName(req.GetMesh()), Name: about.Name}
			if enforced, err = s.enforced(key, more.enforcement); err != nil {
				return err
			}
			if asksFields(about) {
				if unenforced, err = s.unenforced(key); err != nil {
					return err
				}
				unenforced = more.withUnenforced(s.zone, unenforced)
			}
		}
		answered, err = question.Answer(asked, s.matching, question.At{
			Mesh: resource.MeshName(req.GetMesh()), Zone: s.zone, Enforced: enforced, Unenforced: unenforced, EnforcedOf: enforcedOf,
			Running: running,
			Held:    s.quarantineConditions, Dataplanes: s.dataplaneList, Proxies: s.proxyList, Trials: s.trialList,
		})
		if err != nil || more.servers == 0 {
			return err
		}
		switch asked.(type) {
		case question.Proxies:
			answered.Document, err = more.withProxies(answered.Document)
		case question.Trials:
			answered.Document, err = more.withTrials(answered.Document)
		default:
		}
		return err
	})
	switch {
	case errors.Is(err, answer.ErrNotFound):
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "zone %q: %w", s.zone, err)
	case errors.Is(err, answer.ErrInvalid):
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	case err != nil:
		return nil, err
	case len(answered.Document) > s.limit():
		return nil, rpcerr.New(rpcerr.TooLarge, "ANSWER_TOO_LARGE",
			"zone %q: the answer has %d bytes, more than the %d that are sent: ask for less, with `meridian why DATAPLANE KIND` or `meridian inspect connection`",
			s.zone, len(answered.Document), s.limit())
	}
	connection, err := s.connection(req)
	if err != nil {
		return nil, err
	}
	return &meridianv1.InspectResponse{
		Json: answered.Document, AsOf: uint64(answered.AsOf), Connection: connection, Ends: question.EncodeEnds(answered.Ends),
		ShownNames: answered.Shown, Notes: more.notes(),
	}, nil
}

// answerRelayed answers a question that came through the global: a request and a
// response as bytes.
func (s *inspectService) answerRelayed(ctx context.Context, question []byte) ([]byte, error) {
	var req meridianv1.InspectRequest
	if err := proto.Unmarshal(question, &req); err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "BAD_QUESTION", "the question cannot be read: %w", err)
	}
	response, err := s.inspect(ctx, turns.Caller{Name: "the global", Known: true}, &req)
	if err != nil {
		return nil, rpcerr.ToStatus(err).Err()
	}
	return proto.Marshal(response)
}

// quarantineConditions is the condition of a resource that is in quarantine, if it is.
func (s *inspectService) quarantineConditions(key resource.Key) []policy.Condition {
	if c, quarantined := s.quarantined(key); quarantined {
		return []policy.Condition{c}
	}
	return nil
}
