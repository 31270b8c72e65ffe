package zone

import (
	"context"
	"encoding/json"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/plan"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/turns"
)

// plan answers a global what a change would do here.
func (s *inspectService) plan(ctx context.Context, who turns.Caller, q *meridianv1.PlanQuestion) (*meridianv1.InspectResponse, error) {
	matcher, asOf, err := s.matcher()
	if err != nil {
		return nil, err
	}
	var document any
	if len(q.GetCallers()) > 0 {
		meshes := make([]resource.MeshName, len(q.GetCallers()))
		for i, mesh := range q.GetCallers() {
			meshes[i] = resource.MeshName(mesh)
		}
		err = s.turns.Question(ctx, who, func() error {
			document = plan.Callers(matcher, meshes)
			return nil
		})
	} else {
		var batch *plan.Batch
		var elsewhere []plan.Caller
		if batch, elsewhere, err = s.change(q); err != nil {
			return nil, err
		}
		p := plan.New()
		document = p
		err = s.turns.Question(ctx, who, func() error { return p.Dataplanes(ctx, matcher, batch, s.zone, elsewhere) })
		asOf = p.AsOf
	}
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(document)
	switch {
	case err != nil:
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "encode the plan: %w", err)
	case len(encoded) > s.limit():
		return nil, rpcerr.New(rpcerr.TooLarge, "ANSWER_TOO_LARGE", "zone %q: the plan has %d bytes, more than the %d that are sent: plan less at a time", s.zone, len(encoded), s.limit())
	}
	return &meridianv1.InspectResponse{Json: encoded, AsOf: uint64(asOf)}, nil
}

// change is what a question of a global is about.
func (s *inspectService) change(q *meridianv1.PlanQuestion) (*plan.Batch, []plan.Caller, error) {
	batch := &plan.Batch{}
	for _, m := range q.GetWritten() {
		r, _, err := admin.Decode(m)
		if err != nil {
			return nil, nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "zone %q cannot use a resource of the change: %w", s.zone, err)
		}
		batch.Written = append(batch.Written, r)
	}
	for _, k := range q.GetDeleted() {
		batch.Deleted = append(batch.Deleted, resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()})
	}
	var elsewhere []plan.Caller
	if len(q.GetElsewhere()) > 0 {
		if err := answer.Unmarshal(q.GetElsewhere(), &elsewhere); err != nil {
			return nil, nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "callers of other zones: %w", err)
		}
	}
	return batch, elsewhere, nil
}

// matcher is the zone's own, with every change applied so far. A plan takes what it needs
// out of it, and no change waits until the plan is made.
func (s *inspectService) matcher() (matcher *policy.Matcher, asOf resource.Revision, err error) {
	err = s.matching.Read(func(m *policy.Matcher, at resource.Revision) error {
		matcher, asOf = m, at
		return nil
	})
	return matcher, asOf, err
}

// planned says what a change of the zone's own resources would do here.
func (s *inspectService) planned(ctx context.Context, batch *plan.Batch) (*plan.Plan, error) {
	matcher, asOf, err := s.matcher()
	if err != nil {
		return nil, err
	}
	p := plan.New()
	p.AsOf = asOf
	err = s.turns.Question(ctx, turns.CallerOf(ctx), func() error {
		if err := p.Dataplanes(ctx, matcher, batch, s.zone, nil); err != nil {
			return err
		}
		return p.RoutesOf(ctx, matcher, batch)
	})
	return p, err
}
