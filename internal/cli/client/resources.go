package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Encode turns a document's resource into what a server takes. Times,
// version and revision are the server's to assign.
func Encode(r *resource.Resource) *meridianv1.Resource {
	m := r.Meta()
	return &meridianv1.Resource{
		Kind: string(m.Kind), Mesh: string(m.Mesh), Name: m.Name, Labels: m.Labels, Spec: r.Canonical(),
	}
}

// EncodeTimes adds the times of a document, for a server that keeps them.
func EncodeTimes(to *meridianv1.Resource, r *resource.Resource) {
	m := r.Meta()
	if !m.CreationTime.IsZero() {
		to.CreationTime = timestamppb.New(m.CreationTime)
	}
	if !m.ModificationTime.IsZero() {
		to.ModificationTime = timestamppb.New(m.ModificationTime)
	}
}

// Decode turns what a server stored into a resource to print. The spec
// is kept as it came, without a Go type: a server newer than this command may
// know fields and kinds that are not known here.
func Decode(m *meridianv1.Resource) *resource.Resource {
	meta := resource.Meta{
		Key: resource.Key{
			Kind: resource.Kind(m.GetKind()), Mesh: resource.MeshName(m.GetMesh()), Name: m.GetName(),
		},
		Labels:   m.GetLabels(),
		Version:  m.GetVersion(),
		Revision: resource.Revision(m.GetRevision()),
		Rollout:  m.GetRollout(),
	}
	if t := m.GetCreationTime(); t != nil {
		meta.CreationTime = t.AsTime()
	}
	if t := m.GetModificationTime(); t != nil {
		meta.ModificationTime = t.AsTime()
	}
	return resource.New(meta, nil, m.GetSpec())
}

// maxListings is how often a list is begun again whose revision was not retained
// until its last page.
const maxListings = 3

// Resources reads all resources of the kinds, of one mesh or, when it is empty, of
// all, in key order, and the revision that they are of. It reads page by page.
func (c *Client) Resources(ctx context.Context, request *meridianv1.ListRequest) ([]*resource.Resource, uint64, error) {
	return list(ctx, c, request, func(r *resource.Resource) *resource.Resource { return r })
}

// Keys is Resources for their keys alone, which take less memory.
func (c *Client) Keys(ctx context.Context, request *meridianv1.ListRequest) ([]resource.Key, error) {
	keys, _, err := list(ctx, c, request, func(r *resource.Resource) resource.Key { return r.Key() })
	return keys, err
}

func list[T any](ctx context.Context, c *Client, request *meridianv1.ListRequest, of func(*resource.Resource) T) ([]T, uint64, error) {
	var revision uint64
	var found []T
	next, begun := proto.CloneOf(request), 1
	err := c.Call(ctx, func(ctx context.Context) error {
		for {
			page, err := c.page(ctx, next)
			if rpcerr.HasReason(rpcerr.FromStatus(err), "PAGE_EXPIRED") && begun < maxListings {
				begun++
				found, next.PageToken = nil, ""
				continue
			}
			if err != nil {
				return err // an attempt after this one continues with the page that it lacks
			}
			if request.GetAt() != nil && page.at == 0 {
				return ErrNoPast
			}
			for _, r := range page.resources {
				found = append(found, of(r))
			}
			revision, next.PageToken = page.revision, page.next
			if next.PageToken == "" {
				return nil
			}
		}
	})
	return found, revision, err
}

// ResourcesOfKnown is Resources, but for the kinds that the server does not know: one of an
// older release has fewer of them than this command.
func (c *Client) ResourcesOfKnown(ctx context.Context, request *meridianv1.ListRequest) ([]*resource.Resource, uint64, error) {
	found, revision, err := c.Resources(ctx, request)
	if !LacksKind(err) {
		return found, revision, err
	}
	known, failure := c.KnownKinds(ctx, request.GetKinds())
	if failure != nil || len(known) == 0 {
		return nil, 0, err
	}
	request = proto.CloneOf(request)
	request.Kinds = known
	return c.Resources(ctx, request)
}

// LacksKind reports whether a server refused a request for a kind that it does not know.
func LacksKind(err error) bool { return rpcerr.HasReason(rpcerr.FromStatus(err), "UNKNOWN_KIND") }

// KnownKinds returns those of the kinds that the server knows. It asks about each of them,
// since no release says which it knows, by a request for a resource without a name: the
// server refuses it before it looks for anything.
func (c *Client) KnownKinds(ctx context.Context, kinds []string) ([]string, error) {
	var known []string
	for _, kind := range kinds {
		_, err := Ask(ctx, c, (*Client).Get, &meridianv1.GetRequest{Key: &meridianv1.ResourceKey{Kind: kind}})
		switch code := rpcerr.CodeOf(err); {
		case LacksKind(err):
		case err == nil, code == rpcerr.Invalid, code == rpcerr.NotFound, code == rpcerr.Denied:
			known = append(known, kind)
		default:
			return nil, err
		}
	}
	return known, nil
}

// page is one page of a list.
type page struct {
	resources []*resource.Resource
	revision  uint64
	next      string
	at        uint64 // the revision of the past that it is of, 0 for none
}

// ErrNoPast means that a server does not know how to read the past: it answered with
// what is stored now.
var ErrNoPast = rpcerr.New(rpcerr.Unsupported, "NO_PAST", "the server runs a release that cannot read earlier states (--at): upgrade it")

// Edits reads the kept writes of a resource, newest first, at most limit unless that is
// zero; what was stored before the oldest of them, nil for nothing; and the oldest
// revision whose contents are kept. first is nil, too, where there are more than limit.
func (c *Client) Edits(ctx context.Context, key *meridianv1.ResourceKey, limit uint32) (items []*meridianv1.HistoryItem, first *meridianv1.Resource, oldest uint64, err error) {
	request := &meridianv1.HistoryRequest{Key: key, Limit: limit}
	err = c.Call(ctx, func(ctx context.Context) error {
		for {
			part, last, err := c.editsPage(ctx, request)
			if err != nil {
				return err // an attempt after this one continues with the page that it lacks
			}
			items, first, oldest = append(items, part...), last.GetFirst(), last.GetOldest()
			if !last.GetMore() || limit != 0 && len(items) >= int(limit) || len(part) == 0 {
				return nil
			}
			request.Before = items[len(items)-1].GetRevision()
			if limit != 0 {
				request.Limit = limit - uint32(len(items)) //nolint:gosec // fewer than limit
			}
		}
	})
	return items, first, oldest, err
}

func (c *Client) editsPage(ctx context.Context, request *meridianv1.HistoryRequest) (items []*meridianv1.HistoryItem, last *meridianv1.HistoryResponse, err error) {
	stream, err := c.History(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return items, last, nil
		}
		if err != nil {
			return nil, nil, err
		}
		items, last = append(items, part.GetItems()...), part
	}
}

func (c *Client) page(ctx context.Context, request *meridianv1.ListRequest) (page, error) {
	var p page
	stream, err := c.List(ctx, request)
	if err != nil {
		return p, err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
		p.revision, p.next, p.at = part.GetRevision(), part.GetNextPageToken(), part.GetAtRevision()
		for _, m := range part.GetResources() {
			p.resources = append(p.resources, Decode(m))
		}
	}
}
