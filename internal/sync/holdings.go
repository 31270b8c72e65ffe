package zonesync

import (
	"iter"
	"maps"
	"time"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/rollout/overlay"
	"meridian/internal/store"
)

// Decoder turns stored content into a typed resource. An error quarantines the
// resource and is shown to the operator. It is called concurrently. The resource has the
// given meta: its digest is taken from the record where the content is the same.
type Decoder func(meta resource.Meta, spec []byte) (*resource.Resource, error)

// Quarantined is a resource that the zone keeps but cannot use (§7.4).
type Quarantined struct {
	Key     resource.Key
	Version uint64
	Message string
	created time.Time
}

// heldResource is what the replica has for one key.
type heldResource struct {
	// sum is the term of the newest bytes received, usable or not.
	sum store.Digest
	// good is what is served, unless a rollout changes it: the newest that could be
	// decoded, nil if none. term is its term in the digest of all that is served.
	good *resource.Resource
	term store.Digest
	// bad is set while the newest bytes cannot be used.
	bad bool
}

// holdings are what a replica has received: of every resource the newest bytes, and
// the newest that can be used, which are served but for what rollouts change in the zone.
type holdings struct {
	zone   resource.ZoneName
	decode Decoder

	epoch    store.Epoch
	revision resource.Revision
	held     map[resource.Key]*heldResource
	buckets  buckets
	digest   store.Digest
	// shown is the digest of what is served of it.
	shown store.Digest
	changed
	quarantine
}

// changed is what rollouts change in the zone.
type changed struct {
	rollouts map[resource.Key]*resource.Resource
	overlay  *overlay.Overlay
	// terms are those of what the overlay shows in the digest of all that is served.
	terms map[resource.Key]store.Digest
}

// newHoldings returns empty holdings of a zone, for about n resources.
func newHoldings(zone resource.ZoneName, decode Decoder, n int) holdings {
	return holdings{
		zone: zone, decode: decode, held: make(map[resource.Key]*heldResource, n),
		changed:    changed{rollouts: map[resource.Key]*resource.Resource{}, overlay: &overlay.Overlay{}},
		quarantine: quarantine{bad: map[resource.Key]*Quarantined{}, reported: map[resource.Key]bool{}},
	}
}

// restore takes one record from disk: newest last, so that quarantined bytes
// come after the last good ones. It reports whether the record is usable. After the
// last one, showRollouts is called.
func (r *holdings) restore(rec *record) bool {
	key := rec.key()
	h := r.held[key]
	if h == nil {
		h = &heldResource{}
		r.held[key] = h
	}
	r.count(key, h.sum, rec.sum)
	h.sum = rec.sum
	if rec.problem != nil {
		r.add(h, rec.bytes, rec.problem)
		return false
	}
	r.clear(key, h)
	r.serve(key, h, rec.typed, rec.term)
	return true
}

// count replaces one term of the digests.
func (r *holdings) count(key resource.Key, old, sum store.Digest) {
	r.buckets.replace(key, old, sum)
	r.digest = r.digest.Sub(old).Add(sum)
}

// serve replaces what readers see of one key, nil being nothing, unless a rollout
// changes it. sum is its term in a digest.
func (r *holdings) serve(key resource.Key, h *heldResource, res *resource.Resource, sum store.Digest) {
	if _, hidden := r.overlay.Get(key); !hidden {
		r.shown = r.shown.Sub(h.term).Add(sum)
	}
	h.good, h.term = res, sum
	switch {
	case key.Kind != resource.KindRollout:
	case res == nil:
		delete(r.rollouts, key)
	default:
		r.rollouts[key] = res
	}
}

// visible returns what readers see of one key, nil for nothing.
func (r *holdings) visible(key resource.Key) *resource.Resource {
	if res, ok := r.overlay.Get(key); ok {
		return res
	}
	if h := r.held[key]; h != nil {
		return h.good
	}
	return nil
}

// base returns what was received of one key, usable or not.
func (r *holdings) base(key resource.Key) overlay.Base {
	h := r.held[key]
	switch {
	case h == nil:
		return overlay.Base{}
	case h.bad:
		bad := r.bad[key]
		return overlay.Base{Version: bad.Version, Created: bad.created}
	}
	meta := h.good.Meta()
	return overlay.Base{Version: meta.Version, Created: meta.CreationTime}
}

// showRollouts brings what rollouts change up to date with everything that was
// received. touch is called with each key of which readers may see something else from
// then on, before they do.
func (r *holdings) showRollouts(touch func(resource.Key)) {
	next := overlay.Of(r.zone, maps.Values(r.rollouts), r.base, r.overlay)
	for _, o := range []*overlay.Overlay{r.overlay, next} {
		for key := range o.All() {
			touch(key)
		}
	}
	for key := range r.overlay.All() {
		r.shown = r.shown.Sub(r.terms[key])
		if h := r.held[key]; h != nil {
			r.shown = r.shown.Add(h.term)
		}
	}
	terms := map[resource.Key]store.Digest{}
	for key, res := range next.All() {
		if h := r.held[key]; h != nil {
			r.shown = r.shown.Sub(h.term)
		}
		if res != nil {
			terms[key] = store.Sum(res)
			r.shown = r.shown.Add(terms[key])
		}
	}
	r.overlay, r.terms = next, terms
}

// served returns what readers see, in no order.
func (r *holdings) served() []*resource.Resource { return r.servedOf(maps.Keys(r.held)) }

// servedOf is served where keys are all that is held, each once: in their order, but for
// what rollouts change.
func (r *holdings) servedOf(keys iter.Seq[resource.Key]) []*resource.Resource {
	out := make([]*resource.Resource, 0, len(r.held))
	for key := range keys {
		h := r.held[key]
		if _, hidden := r.overlay.Get(key); h.good != nil && !hidden {
			out = append(out, h.good)
		}
	}
	for _, res := range r.overlay.All() {
		if res != nil {
			out = append(out, res)
		}
	}
	return out
}

// maxNacks is how many quarantine reports one Ack carries at most.
const maxNacks = 200

// quarantine is what cannot be used, and what the global has yet to hear of it.
type quarantine struct {
	bad        map[resource.Key]*Quarantined
	badChanges int // counts the changes of bad

	reports  []resource.Key // changes not yet reported
	reported map[resource.Key]bool
}

// add keeps bytes that cannot be used apart.
func (q *quarantine) add(h *heldResource, ch *change, err error) {
	h.bad = true
	q.bad[ch.meta.Key] = &Quarantined{Key: ch.meta.Key, Version: ch.meta.Version, Message: oneLine(err), created: ch.meta.CreationTime}
	q.badChanges++
}

// clear ends a key's quarantine, if it is in any.
func (q *quarantine) clear(key resource.Key, h *heldResource) {
	if h.bad {
		h.bad = false
		delete(q.bad, key)
		q.badChanges++
		q.report(key)
	}
}

// report notes that a key's quarantine changed.
func (q *quarantine) report(key resource.Key) {
	if !q.reported[key] {
		q.reported[key] = true
		q.reports = append(q.reports, key)
	}
}

// reportAll reports everything anew, to a global that knows nothing of it.
func (q *quarantine) reportAll() {
	q.reports, q.reported = nil, map[resource.Key]bool{}
	for key := range q.bad {
		q.report(key)
	}
}

// nacks takes the next of the reports.
func (q *quarantine) nacks() []*syncv1.Nack {
	n := min(len(q.reports), maxNacks)
	var nacks []*syncv1.Nack
	for _, key := range q.reports[:n] {
		delete(q.reported, key)
		nack := &syncv1.Nack{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name}
		if bad := q.bad[key]; bad != nil {
			nack.Version, nack.Message = bad.Version, bad.Message
		} else {
			nack.Cleared = true
		}
		nacks = append(nacks, nack)
	}
	q.reports = q.reports[n:]
	return nacks
}
