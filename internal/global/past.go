package global

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/past"
	"meridian/internal/plan"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/store"
)

// maxThenBytes bounds what a zone is told of an earlier state: what has changed since.
const maxThenBytes = 4 << 20

// pastStates are the earlier states of what a global owns.
type pastStates struct {
	store *store.Store
	now   func() time.Time
	// earlier matches inherited policies.
	earlier *livematch.Earlier
}

// read returns an earlier state, for who decides what a reader may see of it.
func (p *pastStates) read(ctx context.Context, at *meridianv1.PointInTime) (store.Reader, error) {
	state, err := past.Read(ctx, p.store, at, p.now())
	if err != nil {
		return nil, err
	}
	return state, nil
}

// since returns what was otherwise at an earlier state than now.
func (p *pastStates) since(now *store.View, state *store.Past) *plan.Batch {
	if keys, known := p.store.ChangedBetween(state.Revision(), now.Revision()); known {
		return plan.Among(now, state, keys)
	}
	return plan.Between(now, state)
}

// inspectThen answers a question about an earlier state: zones, which have the
// dataplanes, are told what was otherwise then.
func (s *inspectService) inspectThen(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	asked, err := question.Parse(req)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	}
	if s.past == nil || !question.HasPast(asked) {
		return nil, rpcerr.New(rpcerr.Invalid, "NO_PAST", "this question is about what is there now: leave --at out")
	}
	state, err := past.Read(ctx, s.past.store, req.GetAt(), s.past.now())
	if err != nil {
		return nil, err
	}
	now := s.past.store.View()
	earlier := *s
	earlier.past = nil
	earlier.source = func() question.Source {
		var at livematch.State
		at.Of(s.past.store, state, state.History())
		return s.past.earlier.At(at)
	}
	told := proto.CloneOf(req)
	told.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(state.Revision())}}
	told.ThenFrom = uint64(now.Changed())
	since := s.past.since(now, state).Part(func(key resource.Key) bool {
		d, ok := resource.Describe(key.Kind)
		return ok && d.Synced && !store.Withheld(key.Kind)
	})
	for _, r := range since.Written {
		told.ThenWritten = append(told.ThenWritten, admin.Encode(r))
	}
	for _, key := range since.Deleted {
		told.ThenDeleted = append(told.ThenDeleted, &meridianv1.ResourceKey{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name})
	}
	if size := proto.Size(told); size > maxThenBytes {
		return nil, rpcerr.New(rpcerr.TooLarge, "PAST_TOO_FAR", "since revision %d resources of %d bytes have changed; zones are told of at most %d: name a later revision", state.Revision(), size, maxThenBytes)
	}
	response, err := earlier.inspect(ctx, told)
	if err == nil {
		response.AtRevision, response.AsOf = uint64(state.Revision()), uint64(state.Revision())
	}
	return response, err
}
