package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// listPart bounds one message of List, in bytes of resources; one that is larger
// has a message of its own.
const listPart = 256 << 10

// Get returns one resource.
func (s *Service) Get(ctx context.Context, req *meridianv1.GetRequest) (*meridianv1.GetResponse, error) {
	key, err := lookupKey(req.GetKey())
	if err != nil {
		return nil, err
	}
	if req.GetAt() != nil {
		return s.getAt(ctx, key, req)
	}
	view, err := s.read(ctx, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	r, ok := view.Get(key)
	if !ok {
		if err := s.cfg.Access.ReadKey(ctx, key); err != nil {
			return nil, err // as if there were one
		}
		return nil, notFound(readableBy(ctx, s.cfg.Access, view), key)
	}
	if err := s.cfg.Access.Read(ctx, r); err != nil {
		return nil, err
	}
	return &meridianv1.GetResponse{Resource: Encode(r), Revision: uint64(view.Revision())}, nil
}

// List streams a page of resources in key order, all from one revision, leaving out
// what the caller may not read (§6.1).
func (s *Service) List(req *meridianv1.ListRequest, stream grpc.ServerStreamingServer[meridianv1.ListResponse]) error {
	kinds, err := descriptors(req.GetKinds())
	if err != nil {
		return rpcerr.New(rpcerr.Invalid, "UNKNOWN_KIND", "%w", err)
	}
	if err := s.couldRead(stream.Context(), req.GetKinds(), kinds, req.GetMesh()); err != nil {
		return err
	}
	from, err := readPageToken(req.GetPageToken())
	if err != nil {
		return err
	}
	found, at, err := s.collect(stream.Context(), req, kinds, from)
	if err != nil {
		return err
	}
	found.past = req.GetAt() != nil
	return found.send(at, stream.Send)
}

// collect returns a page of a list, and where it was read.
func (s *Service) collect(ctx context.Context, req *meridianv1.ListRequest, kinds []*resource.Descriptor, from *pageToken) (*page, store.Position, error) {
	view, at, err := s.readPage(ctx, kinds, req, from)
	if err != nil {
		return nil, at, err
	}
	slices.SortFunc(kinds, func(a, b *resource.Descriptor) int { return strings.Compare(string(a.Kind), string(b.Kind)) })
	found := newPage(req.GetLimit())
	for _, d := range slices.Compact(kinds) {
		mesh := resource.MeshName(req.GetMesh())
		if mesh != "" && d.Scope == resource.GlobalScoped || from != nil && d.Kind < from.After.Kind {
			continue
		}
		first := resource.Key{Kind: d.Kind, Mesh: mesh}
		if from != nil && first.Compare(from.After) < 0 {
			first = from.After // which is left out below
		}
		var withheld error
		shown := from != nil
		for r, err := range s.listed(ctx, view, d, first, mesh) {
			if from != nil && r.Key().Compare(from.After) <= 0 {
				continue
			}
			if err != nil {
				withheld = err
				continue
			}
			shown = true
			if !found.add(r) {
				return found, at, nil
			}
		}
		// Who asks for a kind by name and may see nothing of it is told so; a list
		// of everything leaves out what the caller may not see.
		if withheld != nil && !shown && d.Sensitive && len(req.GetKinds()) > 0 {
			return nil, at, withheld
		}
	}
	return found, at, nil
}

// listed yields what a list of a kind goes through, from a key on, each with why the caller
// may not see it, if so.
func (s *Service) listed(ctx context.Context, view store.Reader, d *resource.Descriptor, first resource.Key, mesh resource.MeshName) iter.Seq2[*resource.Resource, error] {
	return func(yield func(*resource.Resource, error) bool) {
		switch v := view.(type) {
		case pastKinds:
			state := v.of[d.Kind]
			if state == nil {
				return
			}
			for then, now := range state.ListBeside(s.cfg.Source(d).View(), first, mesh) {
				if !yield(then, s.maySeeBoth(ctx, then, now)) {
					return
				}
			}
		case *store.View:
			for r := range v.ListFrom(first, mesh) {
				if !yield(r, s.cfg.Access.Read(ctx, r)) {
					return
				}
			}
		default:
			for r := range view.List(d.Kind, mesh) {
				if !yield(r, s.cfg.Access.Read(ctx, r)) {
					return
				}
			}
		}
	}
}

// couldRead refuses callers who have no rule by which they could read anything of
// a kind that they name.
func (s *Service) couldRead(ctx context.Context, named []string, kinds []*resource.Descriptor, mesh string) error {
	if len(named) == 0 {
		return nil
	}
	for _, d := range kinds {
		in := resource.MeshName(mesh)
		if d.Scope == resource.GlobalScoped {
			in = ""
		}
		if err := s.cfg.Access.CouldRead(ctx, d.Kind, in); err != nil && !d.Sensitive {
			return err
		}
	}
	return nil
}

// read returns a view as fresh as asked for.
func (s *Service) read(ctx context.Context, c meridianv1.Consistency) (store.Reader, error) {
	if err := s.fresh(ctx, c); err != nil {
		return nil, err
	}
	return s.cfg.View(), nil
}

// fresh waits until what is read is as fresh as asked for.
func (s *Service) fresh(ctx context.Context, c meridianv1.Consistency) error {
	if c != meridianv1.Consistency_CONSISTENCY_STALE {
		if _, err := s.cfg.Writer.Read(ctx); err != nil {
			return rpcerr.New(rpcerr.Unavailable, "NO_LEADER", "cannot read the newest state: %w; a stale read needs no leader, and `meridian cluster members` shows why there is none", err)
		}
	}
	return nil
}

func lookupKey(k *meridianv1.ResourceKey) (resource.Key, error) {
	d, ok := resource.Lookup(k.GetKind())
	if !ok {
		return resource.Key{}, rpcerr.New(rpcerr.Invalid, "UNKNOWN_KIND", "%w", unknownKind(k.GetKind()))
	}
	key := resource.Key{Kind: d.Kind, Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
	switch {
	case key.Name == "":
		return key, rpcerr.New(rpcerr.Invalid, "NAME_MISSING", "the name of the %s is missing", d.Kind)
	case d.Scope == resource.GlobalScoped:
		key.Mesh = ""
	case key.Mesh == "":
		return key, rpcerr.New(rpcerr.Invalid, "MESH_MISSING", "%s %q lives in a mesh: name it", d.Kind, key.Name)
	}
	return key, nil
}

// notFound says that a key does not exist, and what is close to it.
func notFound(view store.Reader, key resource.Key) error {
	var names []string
	for r := range view.List(key.Kind, key.Mesh) {
		names = append(names, r.Key().Name)
	}
	message := fmt.Sprintf("%s does not exist", describeKey(key))
	if nearest, ok := resource.Nearest(key.Name, names); ok {
		message += fmt.Sprintf("; did you mean %q?", nearest)
	}
	return rpcerr.New(rpcerr.NotFound, "NOT_FOUND", "%s", message)
}

func describeKey(key resource.Key) string {
	if key.Mesh == "" {
		return fmt.Sprintf("%s %q", key.Kind, key.Name)
	}
	return fmt.Sprintf("%s %q in mesh %q", key.Kind, key.Name, key.Mesh)
}

// Watch streams changes until the client goes away. On a server whose kinds
// live in two stores, the stores' changes are interleaved, each store's in its
// own order; from_revision then needs kinds of one store. A watch of one store
// from now on begins with a response that has a revision and no changes, from
// which it can be taken up again before anything has changed.
func (s *Service) Watch(req *meridianv1.WatchRequest, stream grpc.ServerStreamingServer[meridianv1.WatchResponse]) error {
	kinds, err := descriptors(req.GetKinds())
	if err != nil {
		return rpcerr.New(rpcerr.Invalid, "UNKNOWN_KIND", "%w", err)
	}
	if err := s.couldRead(stream.Context(), req.GetKinds(), kinds, req.GetMesh()); err != nil {
		return err
	}
	sources := map[Source]map[resource.Kind]bool{}
	for _, d := range kinds {
		src := s.cfg.Source(d)
		if sources[src] == nil {
			sources[src] = map[resource.Kind]bool{}
		}
		sources[src][d.Kind] = true
	}
	if req.FromRevision != nil && len(sources) > 1 {
		return rpcerr.New(rpcerr.Invalid, "TWO_HISTORIES",
			"a zone has two histories, its own and the global's: name a kind to watch from a revision")
	}
	out := make(chan *meridianv1.WatchResponse)
	group, ctx := errgroup.WithContext(stream.Context())
	for src, wanted := range sources {
		now := src.View()
		feed := src.Follow(now)
		switch {
		case req.FromRevision != nil:
			if feed, err = feedFrom(ctx, src, resource.Revision(req.GetFromRevision())); err != nil {
				return err
			}
		case len(sources) == 1:
			if err := stream.Send(&meridianv1.WatchResponse{Revision: uint64(now.Revision())}); err != nil {
				return err
			}
		}
		group.Go(func() error {
			return s.follow(ctx, feed, wanted, resource.MeshName(req.GetMesh()), out)
		})
	}
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case response := <-out:
				if err := stream.Send(response); err != nil {
					return err
				}
			}
		}
	})
	if err := group.Wait(); err != nil && stream.Context().Err() == nil {
		return err
	}
	return nil
}

// catchUpGrace is how long a watch waits for this server to reach the revision
// that it is to begin at: another one may have been a little further.
const catchUpGrace = 2 * time.Second

// feedFrom returns the changes after a revision, once that has been reached.
func feedFrom(ctx context.Context, src Source, after resource.Revision) (*store.Feed, error) {
	limited, cancel := context.WithTimeout(ctx, catchUpGrace)
	defer cancel()
	if err := src.Wait(limited, after); err != nil && ctx.Err() == nil {
		return nil, rpcerr.New(rpcerr.OutOfRange, "FUTURE_REVISION", "revision %d has not been written yet; the newest is %d", after, src.Revision())
	}
	return src.FollowFrom(after), nil
}

// follow sends the changes of one source to out until ctx ends.
func (s *Service) follow(ctx context.Context, feed *store.Feed, kinds map[resource.Kind]bool, mesh resource.MeshName, out chan<- *meridianv1.WatchResponse) error {
	for {
		after := feed.Revision()
		batches, err := feed.Next(ctx)
		if err != nil {
			return watchError(err, after)
		}
		for _, b := range batches {
			response := encodeBatch(b, kinds, mesh, func(r *resource.Resource) bool { return s.cfg.Access.Read(ctx, r) == nil })
			if len(response.Changes) == 0 {
				continue
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case out <- response:
			}
		}
	}
}

// encodeBatch returns the changes of a batch that were asked for, as far as they
// may be shown.
func encodeBatch(b store.Batch, kinds map[resource.Kind]bool, mesh resource.MeshName, shown func(*resource.Resource) bool) *meridianv1.WatchResponse {
	response := &meridianv1.WatchResponse{Revision: uint64(b.Revision), Time: encodeTime(b.Time)}
	for _, c := range b.Changes {
		key := cmp.Or(c.After, c.Before).Key()
		if !kinds[key.Kind] || mesh != "" && key.Mesh != mesh {
			continue
		}
		change := &meridianv1.Change{}
		var r *resource.Resource
		switch before, after := seen(c, shown); {
		case before == nil && after == nil:
			continue
		case after == nil:
			r, change.Outcome = before, meridianv1.Outcome_OUTCOME_DELETED
		case before == nil:
			r, change.Outcome = after, meridianv1.Outcome_OUTCOME_CREATED
		default:
			r, change.Outcome = after, meridianv1.Outcome_OUTCOME_UPDATED
		}
		change.Resource = Encode(r)
		response.Changes = append(response.Changes, change)
	}
	return response
}

// watchError explains why a watch cannot continue after a revision. A feed also
// ends when a backup replaced the state: that difference is not a change.
func watchError(err error, after resource.Revision) error {
	switch {
	case errors.Is(err, store.ErrCompacted):
		return rpcerr.New(rpcerr.OutOfRange, "COMPACTED",
			"what follows revision %d is no longer retained: list the resources, then watch from the list's revision", after)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil
	default:
		return err
	}
}
