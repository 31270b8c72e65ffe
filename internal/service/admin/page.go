package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// A page of List holds at most so many resources, and so many bytes of them; one that
// is larger has a page of its own. It is collected before it is sent, so that a caller
// who reads slowly keeps no more than a page in memory.
const (
	maxPage      = 20_000
	maxPageBytes = 16 << 20
)

// maxPageToken bounds a page token: two revisions, two histories and a key.
const maxPageToken = 4 << 10

// ReasonPageExpired is the reason of a page whose revision is no longer retained.
const ReasonPageExpired = "PAGE_EXPIRED"

// pageToken is what next_page_token holds: where the list stands, and the last
// resource that it has passed. It grants nothing: what is shown is decided again.
type pageToken struct {
	At    store.Position
	After resource.Key
}

func (p pageToken) encode() (string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(text), nil
}

// readPageToken returns where a list continues; nil where it begins.
func readPageToken(text string) (*pageToken, error) {
	if text == "" {
		return nil, nil
	}
	var p pageToken
	decoded, err := base64.RawURLEncoding.DecodeString(text[:min(len(text), maxPageToken)])
	if err == nil {
		err = json.Unmarshal(decoded, &p)
	}
	if err != nil || len(text) > maxPageToken {
		return nil, rpcerr.New(rpcerr.Invalid, "PAGE_TOKEN", "page_token is not one that a list has returned")
	}
	return &p, nil
}

// readPage returns what a list reads, and where that stands: as fresh as asked for,
// or what the page before was read from.
func (s *Service) readPage(ctx context.Context, kinds []*resource.Descriptor, req *meridianv1.ListRequest, from *pageToken) (store.Reader, store.Position, error) {
	if req.GetAt() != nil {
		return s.readPast(ctx, kinds, req, from)
	}
	if from == nil {
		if err := s.fresh(ctx, req.GetConsistency()); err != nil {
			return nil, store.Position{}, err
		}
		return store.ReadAt(s.cfg.Stores(), nil)
	}
	stores := s.cfg.Stores()
	// Another server may have been a little further.
	limited, cancel := context.WithTimeout(ctx, catchUpGrace)
	defer cancel()
	for i, rev := range from.At.Revisions[:min(len(from.At.Revisions), len(stores))] {
		if err := stores[i].Wait(limited, rev); err != nil && ctx.Err() != nil {
			return nil, store.Position{}, err
		}
	}
	view, at, err := store.ReadAt(stores, &from.At)
	if errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrFuture) {
		return nil, at, rpcerr.New(rpcerr.OutOfRange, ReasonPageExpired, "the revision of the page before is no longer retained: list from the beginning")
	}
	return view, at, err
}

// page is one page of a list as it is collected.
type page struct {
	limit     int
	resources []*resource.Resource
	size      int
	// more: there is a resource that does not fit.
	more bool
	// past: the list is of an earlier state.
	past bool
}

func newPage(limit uint32) *page {
	if limit == 0 || limit > maxPage {
		limit = maxPage
	}
	return &page{limit: int(limit)}
}

// add takes in a resource, unless the page is full.
func (p *page) add(r *resource.Resource) bool {
	if len(p.resources) >= p.limit || len(p.resources) > 0 && p.size+r.Size() > maxPageBytes {
		p.more = true
		return false
	}
	p.resources = append(p.resources, r)
	p.size += r.Size()
	return true
}

// send sends a page in messages of a bounded size.
func (p *page) send(at store.Position, send func(*meridianv1.ListResponse) error) error {
	revision, atRevision := uint64(at.Revisions[0]), uint64(0)
	if p.past {
		revision = uint64(slices.Max(at.Revisions)) // of the only store, where a revision was asked for
		atRevision = revision
	}
	part, size := &meridianv1.ListResponse{Revision: revision, AtRevision: atRevision}, 0
	for i, r := range p.resources {
		if size > 0 && size+r.Size() > listPart {
			if err := send(part); err != nil {
				return err
			}
			part, size = &meridianv1.ListResponse{Revision: revision, AtRevision: atRevision}, 0
		}
		part.Resources = append(part.Resources, Encode(r))
		size += r.Size()
		if p.more && i == len(p.resources)-1 {
			token, err := pageToken{at, r.Key()}.encode()
			if err != nil {
				return err
			}
			part.NextPageToken = token
		}
	}
	return send(part)
}
