package zone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/expectation"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/turns"
)

// invariantTime bounds the evaluation of an invariant, as of the tests that a mesh carries.
const invariantTime = 5 * time.Second

var errInvariantTime = fmt.Errorf("the invariant takes longer than %s", invariantTime)

// invariant says whether an expression holds for everything here that it is about.
func (s *inspectService) invariant(ctx context.Context, who turns.Caller, mesh resource.MeshName, q *meridianv1.InvariantQuestion) (*meridianv1.InspectResponse, error) {
	switch {
	case mesh == "":
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "an invariant is about one mesh: name it")
	case q.GetOver() != resource.OverConnections && q.GetOver() != resource.OverDataplanes:
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "an invariant is over %s or %s", resource.OverConnections, resource.OverDataplanes)
	}
	matcher, asOf, err := s.matcher()
	if err != nil {
		return nil, err
	}
	source := &expectation.Offline{Matcher: matcher, Zone: s.zone}
	if len(q.GetElsewhere()) > 0 {
		if err := answer.Unmarshal(q.GetElsewhere(), &source.Elsewhere); err != nil {
			return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "dataplanes of other zones: %w", err)
		}
	}
	var verdict *expectation.Verdict
	err = s.turns.Question(ctx, who, func() error {
		runner, err := expectation.New(source)
		if err != nil {
			return err
		}
		bounded, cancel := context.WithTimeoutCause(ctx, invariantTime, errInvariantTime)
		defer cancel()
		if verdict, err = runner.Judge(bounded, mesh, q.GetOver(), q.GetExpression()); err != nil && ctx.Err() == nil {
			reason := "INVARIANT"
			if errors.Is(err, errInvariantTime) {
				reason = "INVARIANT_TOO_LONG"
			}
			return rpcerr.New(rpcerr.Invalid, reason, "zone %q: %w", s.zone, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(verdict)
	switch {
	case err != nil:
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "encode a verdict: %w", err)
	case len(encoded) > s.limit():
		return nil, rpcerr.New(rpcerr.TooLarge, "ANSWER_TOO_LARGE", "zone %q: the verdict has %d bytes, more than the %d that are sent", s.zone, len(encoded), s.limit())
	}
	return &meridianv1.InspectResponse{Json: encoded, AsOf: uint64(asOf)}, nil
}
