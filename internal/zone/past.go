package zone

import (
	"context"
	"errors"
	"slices"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/livematch"
	"meridian/internal/past"
	"meridian/internal/plan"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/store"
	"meridian/internal/turns"
)

// pastStates are the earlier states of a zone: of what the global owns, or of all where
// the zone is standalone. What a zone of a global owns is that of now, its dataplanes
// among it.
type pastStates struct {
	// stores are those that the zone reads, the one first whose revision answers have.
	stores  []*store.Store
	now     func() time.Time
	earlier *livematch.Earlier
}

// from is the point that a question about an earlier state is answered from: that which it
// is about or, where the global says what was otherwise, that from which it counts back.
func from(req *meridianv1.InspectRequest) *meridianv1.PointInTime {
	if req.GetThenFrom() == 0 {
		return req.GetAt()
	}
	return &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: req.GetThenFrom()}}
}

// stateOf returns what a question about an earlier state is answered from, which has a
// name or none.
func (p *pastStates) stateOf(req *meridianv1.InspectRequest, name []byte) (livematch.State, error) {
	if len(name) > 0 {
		return p.named(req, name)
	}
	return p.at(req)
}

// at returns what a question about an earlier state is answered from.
func (p *pastStates) at(req *meridianv1.InspectRequest) (state livematch.State, err error) {
	first := p.stores[0]
	if req.GetThenFrom() == 0 {
		then, err := past.At(first, from(req), p.now())
		if err != nil {
			return state, err
		}
		return p.with(then), nil
	}
	// The global has the contents: it says what was otherwise.
	newest, err := past.At(first, from(req), p.now())
	if err != nil {
		return state, rpcerr.New(rpcerr.Unavailable, "BEHIND", "the zone does not have revision %d, from which the global counts back: %w", req.GetThenFrom(), err)
	}
	batch := &plan.Batch{}
	told := p.earlier.Told()
	for _, m := range req.GetThenWritten() {
		key := resource.Key{Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName()}
		if r := told[key]; r != nil && admin.Encodes(m, r) {
			batch.Written = append(batch.Written, r) // decoded for a question before
			continue
		}
		r, _, err := admin.Decode(m)
		if err != nil {
			return state, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "the zone cannot use a resource of the earlier state: %w", err)
		}
		batch.Written = append(batch.Written, r)
	}
	for _, k := range req.GetThenDeleted() {
		batch.Deleted = append(batch.Deleted, resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()})
	}
	state = p.with(newest)
	state.View, state.AsOf = batch.On(state.View), resource.Revision(req.GetAt().GetRevision())
	state.Otherwise, state.Without, state.Name = batch.Written, batch.Deleted, string(req.GetThenName())
	return state, nil
}

// named returns the state that the global told under a name, with what the zone itself owns
// as it is now.
func (p *pastStates) named(req *meridianv1.InspectRequest, name []byte) (state livematch.State, err error) {
	refused := rpcerr.New(rpcerr.OutOfRange, question.ReasonNotTold, "the zone does not keep what the global told of this earlier state")
	kept, found := p.earlier.Named(string(name))
	if !found || kept.AsOf != resource.Revision(req.GetAt().GetRevision()) {
		return state, refused
	}
	newest, err := p.stores[0].StateAt(kept.Bases[0].Revision)
	if err != nil {
		return state, refused
	}
	state = p.with(newest)
	switch {
	case slices.Equal(state.Bases, kept.Bases):
		return kept, nil
	case state.Bases[0] != kept.Bases[0]: // the global was restored
		return state, refused
	}
	batch := &plan.Batch{Written: kept.Otherwise, Deleted: kept.Without}
	view := batch.On(state.View)
	bases := state.Bases
	state = kept
	state.View, state.Bases = view, bases
	return state, nil
}

// with adds what the zone itself owns, as it is now.
func (p *pastStates) with(then *store.Past) livematch.State {
	var all livematch.State
	all.Of(p.stores[0], then, then.History())
	for _, s := range p.stores[1:] {
		view := s.View()
		all.Of(s, view, view.Epoch().Random)
	}
	return all
}

// read returns an earlier state, for who decides what a reader may see of it.
func (p *pastStates) read(ctx context.Context, at *meridianv1.PointInTime) (store.Reader, error) {
	state, err := past.Read(ctx, p.stores[0], at, p.now())
	if err != nil {
		return nil, err
	}
	return p.with(state).View, nil
}

// inspectThen answers a question about an earlier state, which has a name or none. What
// proxies do with it is not known.
func (s *inspectService) inspectThen(ctx context.Context, who turns.Caller, req *meridianv1.InspectRequest, asked question.Question, name []byte) (*meridianv1.InspectResponse, error) {
	if s.past == nil || !question.HasPast(asked) {
		return nil, rpcerr.New(rpcerr.Invalid, "NO_PAST", "this question is about what is there now: leave --at out")
	}
	if len(name) == 0 {
		if err := past.Await(ctx, s.past.stores[0], from(req)); err != nil { // others have their turn meanwhile
			return nil, err
		}
	}
	var answered question.Answered
	var revision resource.Revision
	err := s.turns.Question(ctx, who, func() error {
		state, err := s.past.stateOf(req, name)
		if err != nil {
			return err
		}
		revision = state.AsOf
		if err := question.Absent(asked, resource.MeshName(req.GetMesh()), state.View, revision); err != nil {
			return err
		}
		answered, err = question.Answer(asked, s.past.earlier.At(ctx, state), question.At{Mesh: resource.MeshName(req.GetMesh()), Zone: s.zone})
		return err
	})
	switch {
	case errors.Is(err, answer.ErrNotFound):
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "zone %q, revision %d: %w", s.zone, revision, err)
	case errors.Is(err, answer.ErrInvalid):
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	case err != nil:
		return nil, err
	case len(answered.Document) > s.limit():
		return nil, rpcerr.New(rpcerr.TooLarge, "ANSWER_TOO_LARGE", "zone %q: the answer has %d bytes, more than the %d that are sent", s.zone, len(answered.Document), s.limit())
	}
	return &meridianv1.InspectResponse{
		Json: answered.Document, AsOf: uint64(revision), AtRevision: uint64(revision),
		Ends: question.EncodeEnds(answered.Ends), ShownNames: answered.Shown,
	}, nil
}
