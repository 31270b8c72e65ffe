package admin

import (
	"context"
	"errors"
	"iter"

	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/past"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// A page of History holds at most so many writes, and maxPageBytes of their contents.
const maxHistoryPage = 1000

// maySeePast decides whether the caller may see an old content of a resource: it may read
// that, and what is stored now, if anything is. The rules are those of now (§6.1).
func (s *Service) maySeePast(ctx context.Context, r *resource.Resource) error {
	now, _ := s.cfg.View().Get(r.Key())
	return s.maySeeBoth(ctx, r, now)
}

// maySeeBoth is maySeePast where it is known what is stored now, nil for nothing.
func (s *Service) maySeeBoth(ctx context.Context, then, now *resource.Resource) error {
	if now != nil && now != then {
		if err := s.cfg.Access.Read(ctx, now); err != nil {
			return err
		}
	}
	return s.cfg.Access.Read(ctx, then)
}

// noContents is why what a secret was is not answered.
func noContents(kind resource.Kind) error {
	return rpcerr.New(rpcerr.Invalid, "NO_HISTORY", "%s: the contents of old revisions of secrets and keys are not kept", kind)
}

// getAt returns one resource as it was.
func (s *Service) getAt(ctx context.Context, key resource.Key, req *meridianv1.GetRequest) (*meridianv1.GetResponse, error) {
	if err := s.fresh(ctx, req.GetConsistency()); err != nil {
		return nil, err
	}
	d, _ := resource.Describe(key.Kind)
	state, err := past.Read(ctx, s.cfg.Source(d), req.GetAt(), s.cfg.Now())
	if err != nil {
		return nil, s.ofHistory(d, err)
	}
	r, ok := state.Get(key)
	if !ok {
		if err := s.cfg.Access.ReadKey(ctx, key); err != nil {
			return nil, err // as if there had been one
		}
		if store.Withheld(key.Kind) {
			return nil, noContents(key.Kind)
		}
		return nil, rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s did not exist at revision %d", describeKey(key), state.Revision())
	}
	if err := s.maySeePast(ctx, r); err != nil {
		return nil, err
	}
	return &meridianv1.GetResponse{Resource: Encode(r), Revision: uint64(state.Revision()), AtRevision: uint64(state.Revision())}, nil
}

// pastKinds reads kinds at a point in time, each from the store that holds it.
type pastKinds struct {
	of map[resource.Kind]*store.Past
	// revision is that of the first store.
	revision resource.Revision
}

// Get implements store.Reader.
func (p pastKinds) Get(key resource.Key) (*resource.Resource, bool) {
	if state := p.of[key.Kind]; state != nil {
		return state.Get(key)
	}
	return nil, false
}

// List implements store.Reader.
func (p pastKinds) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	if state := p.of[kind]; state != nil {
		return state.List(kind, mesh)
	}
	return func(func(*resource.Resource) bool) {}
}

// Revision implements store.Reader.
func (p pastKinds) Revision() resource.Revision { return p.revision }

// readPast returns what a list of kinds reads at a point in time, and where that stands:
// a revision of each store that holds one of the kinds, 0 for the others.
func (s *Service) readPast(ctx context.Context, kinds []*resource.Descriptor, req *meridianv1.ListRequest, from *pageToken) (store.Reader, store.Position, error) {
	var at store.Position
	if err := s.fresh(ctx, req.GetConsistency()); err != nil {
		return nil, at, err
	}
	out := pastKinds{of: map[resource.Kind]*store.Past{}}
	histories := map[Source]bool{}
	for _, d := range kinds {
		histories[s.cfg.Source(d)] = true
	}
	if len(histories) > 1 && req.GetAt().GetRevision() != 0 {
		return nil, at, rpcerr.New(rpcerr.Invalid, "TWO_HISTORIES",
			"a zone has two histories, its own and the global's, whose revisions differ: name a kind to read at a revision, or give a duration")
	}
	for i, st := range s.cfg.Stores() {
		at.Revisions, at.Histories = append(at.Revisions, 0), append(at.Histories, st.View().Epoch().Random)
		var state *store.Past
		for _, d := range kinds {
			if s.cfg.Source(d) != Source(st) {
				continue
			}
			if state == nil {
				var err error
				if state, err = s.pastOf(ctx, st, i, req, from); err != nil {
					return nil, at, s.ofHistory(d, err)
				}
				at.Revisions[i] = state.Revision()
				if out.revision == 0 {
					out.revision = state.Revision()
				}
			}
			out.of[d.Kind] = state
		}
	}
	return out, at, nil
}

// ofHistory says of a state that a zone cannot read which revisions are counted.
func (s *Service) ofHistory(d *resource.Descriptor, err error) error {
	var said *rpcerr.Error
	if len(s.cfg.Stores()) < 2 || rpcerr.CodeOf(err) != rpcerr.OutOfRange || !errors.As(err, &said) {
		return err
	}
	if s.cfg.Owns(d) == nil {
		return rpcerr.New(said.Code, said.Reason, "%w; of a %s, which this zone owns, the revisions are the zone's own, as `meridian history` lists them", err, d.Kind)
	}
	return rpcerr.New(said.Code, said.Reason, "%w; of a %s the revisions are those of the global, which may have older ones than this zone has kept: ask it", err, d.Kind)
}

// pastOf returns the state of one store that a list reads, or continues to read.
func (s *Service) pastOf(ctx context.Context, st *store.Store, i int, req *meridianv1.ListRequest, from *pageToken) (*store.Past, error) {
	if from == nil {
		return past.Read(ctx, st, req.GetAt(), s.cfg.Now())
	}
	if i >= len(from.At.Revisions) || i >= len(from.At.Histories) || from.At.Histories[i] != st.View().Epoch().Random {
		return nil, rpcerr.New(rpcerr.OutOfRange, ReasonPageExpired, "the revision of the page before is no longer retained: list from the beginning")
	}
	point := &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(from.At.Revisions[i])}}
	return past.Read(ctx, st, point, s.cfg.Now())
}

// History streams the kept writes of one resource, newest first.
func (s *Service) History(req *meridianv1.HistoryRequest, stream grpc.ServerStreamingServer[meridianv1.HistoryResponse]) error {
	ctx := stream.Context()
	key, err := lookupKey(req.GetKey())
	if err != nil {
		return err
	}
	if err := s.fresh(ctx, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE); err != nil {
		return err
	}
	d, _ := resource.Describe(key.Kind)
	if s.cfg.Owns(d) != nil {
		return keptElsewhere(d)
	}
	src := s.cfg.Source(d)
	view, oldest := src.View(), src.OldestState()
	if err := s.mayReadHistory(ctx, view, key); err != nil {
		return err
	}
	page := s.historyPage(ctx, view, key, req)
	if len(page.items) == 0 && page.first == nil && req.GetBefore() == 0 {
		if _, ok := view.Get(key); !ok {
			return notFound(readableBy(ctx, s.cfg.Access, view), key)
		}
	}
	return page.send(uint64(oldest), stream.Send)
}

// keptElsewhere says where the history of a kind is that is not written here.
func keptElsewhere(d *resource.Descriptor) error {
	if d.Owner == resource.OwnedByZone {
		return rpcerr.New(rpcerr.Invalid, "NOT_OWNED_HERE", "%s resources belong to a zone, which keeps their history: ask the zone's control plane", d.Kind)
	}
	return rpcerr.New(rpcerr.Invalid, "NOT_OWNED_HERE", "%s resources belong to the global control plane, which keeps their history: ask it", d.Kind)
}

// mayReadHistory decides by what is stored; of what was deleted, by what was there last.
func (s *Service) mayReadHistory(ctx context.Context, view *store.View, key resource.Key) error {
	r, ok := view.Get(key)
	if !ok {
		if r = view.Unedited(key); r == nil || store.Withheld(key.Kind) {
			r = nil
		}
		for e := range view.Edits(key) {
			if e.After != nil && !store.Withheld(key.Kind) {
				r = e.After
				break
			}
		}
	}
	if r == nil {
		return s.cfg.Access.ReadKey(ctx, key)
	}
	return s.cfg.Access.Read(ctx, r)
}

// historyPage is one page of a history.
type historyPage struct {
	items []*meridianv1.HistoryItem
	sizes []int
	more  bool
	first *meridianv1.Resource
}

// historyPage collects the writes that the caller may see.
func (s *Service) historyPage(ctx context.Context, view *store.View, key resource.Key, req *meridianv1.HistoryRequest) *historyPage {
	limit := int(req.GetLimit())
	if limit == 0 || limit > maxHistoryPage {
		limit = maxHistoryPage
	}
	p := &historyPage{}
	total := 0
	for e := range view.Edits(key) {
		if req.GetBefore() != 0 && uint64(e.Revision) >= req.GetBefore() {
			continue
		}
		if e.After != nil && s.cfg.Access.Read(ctx, e.After) != nil {
			continue
		}
		item, size := encodeEdit(key.Kind, e)
		if len(p.items) == limit || len(p.items) > 0 && total+size > maxPageBytes || ctx.Err() != nil {
			p.more = true
			return p
		}
		p.items, p.sizes = append(p.items, item), append(p.sizes, size)
		total += size
	}
	if first := view.Unedited(key); first != nil && !store.Withheld(key.Kind) && s.cfg.Access.Read(ctx, first) == nil {
		p.first = Encode(first)
	}
	return p
}

func encodeEdit(kind resource.Kind, e store.Edit) (*meridianv1.HistoryItem, int) {
	author := audit.AuthorOf(e.Note)
	item := &meridianv1.HistoryItem{
		Revision: uint64(e.Revision), Time: encodeTime(e.Time), Version: e.Version, Outcome: encodeOutcome(e.Outcome),
		User: author.Who.Name, Groups: author.Who.Groups, Batch: author.Request, Method: author.Method,
	}
	size := len(e.Note)
	if e.After != nil && !store.Withheld(kind) {
		item.Resource = Encode(e.After)
		size += e.After.Size()
	}
	return item, size
}

// send sends a page in messages of a bounded size.
func (p *historyPage) send(oldest uint64, send func(*meridianv1.HistoryResponse) error) error {
	part, size := &meridianv1.HistoryResponse{Oldest: oldest}, 0
	for i, item := range p.items {
		if size > 0 && size+p.sizes[i] > listPart {
			if err := send(part); err != nil {
				return err
			}
			part, size = &meridianv1.HistoryResponse{Oldest: oldest}, 0
		}
		part.Items = append(part.Items, item)
		size += p.sizes[i]
	}
	part.More, part.First = p.more, p.first
	return send(part)
}
