package global

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
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

const (
	// maxThenBytes bounds what a zone is told of an earlier state: what has changed since.
	maxThenBytes = 4 << 20
	// keptTold and toldFor bound how many of these are kept for the questions that follow, and
	// for how long after the last question: zones keep as many (livematch.Earlier).
	keptTold = 2
	toldFor  = time.Minute
)

// pastStates are the earlier states of what a global owns.
type pastStates struct {
	store *store.Store
	now   func() time.Time
	// earlier matches inherited policies.
	earlier *livematch.Earlier

	mu         sync.Mutex // guards everything below
	told       []*told    // the one that was used last first
	used       time.Time
	forgetting *time.Timer
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
	if err := question.Absent(asked, resource.MeshName(req.GetMesh()), state, state.Revision()); err != nil {
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%w", err)
	}
	first, err := s.past.tell(state, nil)
	if err != nil {
		return nil, err
	}
	earlier := *s
	earlier.past = nil
	earlier.source = func() question.Source {
		var at livematch.State
		at.Of(s.past.store, state, state.History())
		return s.past.earlier.At(ctx, at)
	}
	earlier.then = &telling{states: s.past, state: state, told: first}
	about := proto.CloneOf(req)
	about.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(state.Revision())}}
	response, err := earlier.inspect(ctx, about)
	if err == nil {
		response.AtRevision, response.AsOf = uint64(state.Revision()), uint64(state.Revision())
	}
	return response, err
}

// told is what zones are told of an earlier state. It never changes.
type told struct {
	history  uint64
	revision resource.Revision
	// from is the revision that it counts back from.
	from resource.Revision
	name []byte
	// fields are then_from, then_written, then_deleted and then_name of a question, encoded.
	fields []byte
}

// tell returns what zones are told of an earlier state, as it was told last, or, if a zone
// refused that as past, counted from now.
func (p *pastStates) tell(state *store.Past, refused *told) (*told, error) {
	of := func(t *told) bool { return t.history == state.History() && t.revision == state.Revision() }
	now := p.store.View()
	p.mu.Lock()
	i := slices.IndexFunc(p.told, of)
	if i >= 0 && (p.told[i] != refused || refused.from == now.Changed()) {
		t := p.told[i]
		p.told = slices.Insert(slices.Delete(p.told, i, i+1), 0, t)
		p.keepLocked()
		p.mu.Unlock()
		return t, nil
	}
	p.mu.Unlock()
	t, err := p.encode(now, state)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = slices.Insert(slices.DeleteFunc(p.told, of), 0, t)
	p.told = slices.Delete(p.told, min(len(p.told), keptTold), len(p.told))
	p.keepLocked()
	return t, nil
}

// keepLocked keeps what zones are told for a while from now.
func (p *pastStates) keepLocked() {
	p.used = time.Now()
	if p.forgetting == nil {
		p.forgetting = time.AfterFunc(toldFor, p.forget)
	} else {
		p.forgetting.Reset(toldFor)
	}
}

func (p *pastStates) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.used) >= toldFor {
		p.told = nil
	}
}

// encode returns what was otherwise at an earlier state.
func (p *pastStates) encode(now *store.View, state *store.Past) (*told, error) {
	since := p.since(now, state).Part(func(key resource.Key) bool {
		d, ok := resource.Describe(key.Kind)
		return ok && d.Synced && !store.Withheld(key.Kind)
	})
	fields := &meridianv1.InspectRequest{ThenFrom: uint64(now.Changed())}
	for _, r := range since.Written {
		fields.ThenWritten = append(fields.ThenWritten, admin.Encode(r))
	}
	for _, key := range since.Deleted {
		fields.ThenDeleted = append(fields.ThenDeleted, &meridianv1.ResourceKey{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name})
	}
	if size := proto.Size(fields); size > maxThenBytes {
		return nil, rpcerr.New(rpcerr.TooLarge, "PAST_TOO_FAR", "since revision %d resources of %d bytes have changed; zones are told of at most %d: name a later revision", state.Revision(), size, maxThenBytes)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode what was otherwise: %w", err)
	}
	hash := sha256.New()
	var position [16]byte
	binary.BigEndian.PutUint64(position[:8], state.History())
	binary.BigEndian.PutUint64(position[8:], uint64(state.Revision()))
	_, _ = hash.Write(position[:])
	_, _ = hash.Write(encoded)
	t := &told{history: state.History(), revision: state.Revision(), from: now.Changed(), name: hash.Sum(nil)}
	// The fields of a message may follow each other as parts of it that are encoded alone.
	named, err := proto.MarshalOptions{}.MarshalAppend(encoded, &meridianv1.InspectRequest{ThenName: t.name})
	if err != nil {
		return nil, fmt.Errorf("encode what was otherwise: %w", err)
	}
	t.fields = named
	return t, nil
}

// telling is one question about an earlier state, to any number of zones.
type telling struct {
	states *pastStates
	state  *store.Past
	told   *told
}

// ask asks a zone, which may keep what it was told for a question before; if it does not, it
// is told everything.
func (t *telling) ask(about *meridianv1.InspectRequest, ask func(question []byte) ([]byte, error)) ([]byte, error) {
	short, err := proto.Marshal(&meridianv1.InspectRequest{ThenName: t.told.name, ThenQuestion: about})
	if err != nil {
		return nil, fmt.Errorf("encode a question: %w", err)
	}
	reply, err := ask(short)
	if failed := rpcerr.FromStatus(err); err == nil || !rpcerr.HasReason(failed, question.ReasonNotTold) && rpcerr.CodeOf(failed) != rpcerr.Invalid {
		return reply, err // a zone that knows no names finds no question
	}
	newest, err := t.states.tell(t.state, t.told)
	if err != nil {
		return nil, err
	}
	long, err := proto.Marshal(about)
	if err != nil {
		return nil, fmt.Errorf("encode a question: %w", err)
	}
	return ask(append(long, newest.fields...))
}
