package admin

import (
	"context"
	"errors"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/commit"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// Readers decides what the caller of a request may read (§6.1). *authz.Authorizer
// implements it; its errors are *rpcerr.Error of code Denied, and the same whether
// or not there is such a resource.
type Readers interface {
	// ReadsAll reports whether the caller reads everything but secret material.
	ReadsAll(ctx context.Context) bool
	// ReadsMesh reports whether the caller reads everything in a mesh but secret
	// material; for an empty mesh, everything in all of them and outside.
	ReadsMesh(ctx context.Context, mesh resource.MeshName) bool
	// CouldRead decides whether the caller may read anything of a kind in a mesh,
	// empty for any mesh.
	CouldRead(ctx context.Context, kind resource.Kind, mesh resource.MeshName) error
	// ReadKey decides by the identity alone.
	ReadKey(ctx context.Context, key resource.Key) error
	// Read decides whether a stored resource may be shown.
	Read(ctx context.Context, r *resource.Resource) error
}

// readable is what the caller of a request may read of a state. It is a
// policy.View and a store.Reader.
type readable struct {
	store.Reader
	ctx     context.Context
	readers Readers
}

// readableBy returns what the caller of a request may read of a state.
func readableBy(ctx context.Context, readers Readers, view store.Reader) store.Reader {
	if readers.ReadsAll(ctx) {
		return view
	}
	return readable{view, ctx, readers}
}

// Get returns a resource that may be read.
func (v readable) Get(key resource.Key) (*resource.Resource, bool) {
	r, ok := v.Reader.Get(key)
	if !ok || v.readers.Read(v.ctx, r) != nil {
		return nil, false
	}
	return r, true
}

// List yields the resources that may be read.
func (v readable) List(kind resource.Kind, mesh resource.MeshName) iter.Seq[*resource.Resource] {
	return func(yield func(*resource.Resource) bool) {
		for r := range v.Reader.List(kind, mesh) {
			if v.readers.Read(v.ctx, r) == nil && !yield(r) {
				return
			}
		}
	}
}

// ListBy yields the resources that may be read.
func (v readable) ListBy(kind resource.Kind, mesh resource.MeshName, prefix string) (iter.Seq[*resource.Resource], bool) {
	lister, ok := v.Reader.(policy.TermLister)
	if !ok {
		return nil, false
	}
	list, ok := lister.ListBy(kind, mesh, prefix)
	if !ok {
		return nil, false
	}
	return func(yield func(*resource.Resource) bool) {
		for r := range list {
			if v.readers.Read(v.ctx, r) == nil && !yield(r) {
				return
			}
		}
	}, true
}

// readsAround reports whether the caller reads everything that advice on a batch
// looks at: the meshes of its resources, and what is in them.
func (s *Service) readsAround(ctx context.Context, batch []*resource.Resource) bool {
	if s.cfg.Access.ReadsAll(ctx) {
		return true
	}
	for _, r := range batch {
		mesh := r.Key().Mesh
		if mesh == "" || !s.cfg.Access.ReadsMesh(ctx, mesh) || s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindMesh, Name: string(mesh)}) != nil {
			return false
		}
	}
	return true
}

// seen is a change as its reader sees it: what comes to be readable by it is
// created, and what ceases to be is deleted, as it was last seen.
func seen(c store.Change, shown func(*resource.Resource) bool) (before, after *resource.Resource) {
	if c.Before != nil && shown(c.Before) {
		before = c.Before
	}
	if c.After != nil && shown(c.After) {
		after = c.After
	}
	return before, after
}

// hideExample takes the name of a resource that the caller may not read out of a
// refusal.
func (s *Service) hideExample(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var held *store.HeldError
	if errors.As(err, &held) && held.Rollout != "" && s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindRollout, Name: held.Rollout}) != nil {
		return commit.Explain(&store.HeldError{Key: held.Key})
	}
	var notEmpty *store.MeshNotEmptyError
	if !errors.As(err, &notEmpty) || s.cfg.Access.ReadsMesh(ctx, notEmpty.Mesh) {
		return err
	}
	return rpcerr.WithEffect(rpcerr.New(rpcerr.Conflict, "MESH_NOT_EMPTY", "mesh %q still has resources", notEmpty.Mesh), rpcerr.EffectNone)
}

// zonesFor replaces the names of zones that the caller may not read. Why a zone
// failed may name resources: it is for callers who read everything.
func (s *Service) zonesFor(ctx context.Context, zones []PendingZone) []PendingZone {
	shown := slices.Clone(zones)
	everything := s.cfg.Access.ReadsMesh(ctx, "")
	for i := range shown {
		if !everything {
			shown[i].LastError, shown[i].Proxies = "", nil
		}
		if s.cfg.Access.ReadKey(ctx, resource.Key{Kind: resource.KindZone, Name: string(shown[i].Name)}) != nil {
			shown[i] = PendingZone{Name: hiddenZone, State: shown[i].State}
		}
	}
	return shown
}

// hiddenZone stands for the name of a zone that the caller may not read.
const hiddenZone = "another"

// Inspect answers questions by another service, leaving out what the caller may
// not read. The service gives whole answers to other servers, which do the same
// for their callers.
type Inspect struct {
	meridianv1.UnimplementedInspectServiceServer
	Answers meridianv1.InspectServiceServer
	Readers Readers
	// View returns everything that is known here.
	View func() store.Reader
	// Past returns an earlier state.
	Past func(ctx context.Context, at *meridianv1.PointInTime) (store.Reader, error)
}

// noteRestricted is the note on an answer to who may not read a whole mesh.
const noteRestricted = "what rests on resources that you may not read is not in this answer"

// Inspect answers a question. A caller who reads a whole mesh gets the whole
// answer about it; another one must be able to read what it asks about, and gets
// the answer without what rests on resources that it may not read. A list of
// which it may read nothing is empty, and no zone is asked for it.
func (s *Inspect) Inspect(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	mesh := resource.MeshName(req.GetMesh())
	if question.Internal(req) {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "ends, elsewhere, behind, then and plan are for questions that a global asks its zones")
	}
	if s.Readers.ReadsAll(ctx) || mesh != "" && s.Readers.ReadsMesh(ctx, mesh) && s.Readers.ReadKey(ctx, resource.Key{Kind: resource.KindZone}) == nil {
		return s.Answers.Inspect(ctx, req)
	}
	if req.GetInvariant() != nil {
		return nil, rpcerr.New(rpcerr.Denied, "RESTRICTED", "what holds for everything in a mesh is for callers who may read the mesh and every zone")
	}
	asked, err := question.Parse(req)
	if err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_QUESTION", "%w", err)
	}
	view := s.View()
	var then store.Reader // nil for the state of now
	if req.GetAt() != nil {
		if then, err = s.Past(ctx, req.GetAt()); err != nil {
			return nil, err
		}
		req = proto.CloneOf(req) // which is answered from what is looked at here
		req.At = &meridianv1.PointInTime{Point: &meridianv1.PointInTime_Revision{Revision: uint64(then.Revision())}}
	}
	mayRead := func(key resource.Key) error { return s.readBoth(ctx, view, then, key) }
	may := func(key resource.Key) bool { return mayRead(key) == nil }
	known := func(key resource.Key) bool {
		_, ok := view.Get(key)
		if !ok && then != nil {
			_, ok = then.Get(key)
		}
		return ok
	}
	if list, ok := asked.(question.List); ok && s.Readers.CouldRead(ctx, list.Of(), mesh) != nil {
		nothing, err := answer.Marshal(list.Nothing(mesh, view.Revision()))
		return &meridianv1.InspectResponse{Json: nothing, Notes: []string{noteRestricted}}, err
	}
	about := asked.About(mesh)
	if _, route := asked.(question.Route); route {
		if open := slices.DeleteFunc(slices.Clone(about), func(key resource.Key) bool { return !may(key) }); len(open) > 0 {
			// Of a route that is there and may not be read nothing is told, nor that
			// it is there.
			if slices.ContainsFunc(about, known) && !slices.ContainsFunc(open, known) {
				return nil, withoutNames(rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "not found"))
			}
			about = open
		}
	}
	for _, key := range about {
		if err := mayRead(key); err != nil {
			return nil, err
		}
	}
	response, err := s.Answers.Inspect(ctx, req)
	if err != nil {
		return nil, withoutNames(err)
	}
	whole := mesh != "" && s.Readers.ReadsMesh(ctx, mesh)
	reads := func(key resource.Key) (read, exists bool) { return may(key), known(key) }
	if whole {
		response.Json, err = question.HideZones(asked, response.GetJson(), reads)
	} else {
		response.Json, err = asked.Restrict(response.GetJson(), reads)
	}
	if err != nil {
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "the answer cannot be read: %w", err)
	}
	if !whole {
		if response.GetConnection() != nil {
			response.Connection = proto.CloneOf(response.GetConnection())
			response.Connection.LastError, response.Connection.Wire = "", nil
		}
	}
	response.ShownNames = answer.Shown(view, mesh, response.GetJson(), may)
	absent, err := answer.Incomplete(response.GetJson())
	if err != nil {
		return nil, rpcerr.New(rpcerr.Internal, "BAD_ANSWER", "the answer cannot be read: %w", err)
	}
	incomplete := len(response.GetNotes()) > len(absent)
	response.Notes = nil
	for _, a := range absent {
		response.Notes = append(response.Notes, a.String())
	}
	if !whole {
		response.Notes = append(response.Notes, noteRestricted)
	}
	if incomplete {
		response.Notes = append(response.Notes, "some zones are not in this answer, or only with an earlier state")
	}
	return response, nil
}

// read decides by the content where the resource is known, else by the identity.
func (s *Inspect) read(ctx context.Context, view store.Reader, key resource.Key) error {
	if r, ok := view.Get(key); ok {
		return s.Readers.Read(ctx, r)
	}
	return s.Readers.ReadKey(ctx, key)
}

// readBoth is read of what there is, and of what there was in an earlier state that is not
// nil: who may not read one of them is not told of the other.
func (s *Inspect) readBoth(ctx context.Context, now, then store.Reader, key resource.Key) error {
	if err := s.read(ctx, now, key); err != nil || then == nil {
		return err
	}
	if r, ok := then.Get(key); ok {
		return s.Readers.Read(ctx, r)
	}
	return nil
}

// withoutNames keeps of an error what does not name resources or zones.
func withoutNames(err error) error {
	code := rpcerr.CodeOf(err)
	text := "this cannot be answered now"
	switch code {
	case rpcerr.NotFound:
		text = "not found"
	case rpcerr.Invalid:
		text = "this question cannot be answered as it is asked; with several zones, name one with --zone, or ask the global with --from-zone and --to-zone"
	}
	return rpcerr.New(code, "RESTRICTED", "%s; details are for callers who may read the mesh and every zone", text)
}
