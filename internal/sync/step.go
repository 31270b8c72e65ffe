package zonesync

import (
	"strings"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// apply makes the step: removals first, then changes in order.
func (r *replica) apply(s *staging, epoch store.Epoch, gone []resource.Key) *commit {
	c := &commit{
		epoch: epoch, revision: s.revision, time: s.time,
		swap: s.mode != syncv1.Mode_MODE_UNSPECIFIED && (epoch != r.epoch || s.revision <= r.revision),
	}
	served := map[resource.Key]store.Change{}
	order := make([]resource.Key, 0, len(gone)+len(s.changes))
	serve := func(key resource.Key, before, after *resource.Resource) {
		if before == after {
			return
		}
		if _, twice := served[key]; !twice {
			order = append(order, key)
		}
		served[key] = store.Change{Before: before, After: after}
	}
	for _, key := range gone {
		r.remove(c, key, serve)
	}
	for i := range s.changes {
		ch := &s.changes[i]
		if ch.deleted {
			r.remove(c, ch.meta.Key, serve)
		} else {
			r.put(c, ch, s.mode != syncv1.Mode_MODE_UNSPECIFIED, serve)
		}
	}
	for _, key := range order {
		if ch := served[key]; ch.Before != nil || ch.After != nil {
			c.changes = append(c.changes, ch)
		}
	}
	r.epoch, r.revision = epoch, s.revision
	r.head = max(r.head, r.revision)
	c.digest = r.digest
	if c.swap {
		c.whole = r.served()
	}
	return c
}

type serveFunc func(key resource.Key, before, after *resource.Resource)

func (r *replica) remove(c *commit, key resource.Key, serve serveFunc) {
	h := r.held[key]
	if h == nil {
		return // created and deleted between two coalesced revisions
	}
	r.count(key, h.sum, store.Digest{})
	r.clear(key, h)
	delete(r.held, key)
	c.writes = append(c.writes, write{key: key})
	serve(key, h.good, nil)
	r.serve(h, nil)
}

func (r *replica) put(c *commit, ch *change, comparing bool, serve serveFunc) {
	key := ch.meta.Key
	h := r.held[key]
	if h == nil {
		h = &heldResource{}
		r.held[key] = h
	} else if comparing && h.sum == ch.sum && !h.bad {
		return // the bucket differs, this resource does not
	}
	r.count(key, h.sum, ch.sum)
	h.sum = ch.sum
	r.clear(key, h)
	res, err := r.decode(ch.meta, ch.spec)
	if err != nil {
		r.quarantine(h, ch, err)
		r.report(key)
		c.writes = append(c.writes, write{key: key, raw: ch.raw, bad: true})
		return
	}
	before := h.good
	r.serve(h, res)
	c.writes = append(c.writes, write{key: key, raw: ch.raw})
	serve(key, before, res)
}

// quarantine keeps bytes that cannot be used apart.
func (r *replica) quarantine(h *heldResource, ch *change, err error) {
	h.bad = true
	r.bad[ch.meta.Key] = &Quarantined{Key: ch.meta.Key, Version: ch.meta.Version, Message: oneLine(err)}
	r.badChanges++
}

// clear ends a key's quarantine, if it is in any.
func (r *replica) clear(key resource.Key, h *heldResource) {
	if h.bad {
		h.bad = false
		delete(r.bad, key)
		r.badChanges++
		r.report(key)
	}
}

// count replaces one term of the digests.
func (r *replica) count(key resource.Key, old, sum store.Digest) {
	r.buckets.replace(key, old, sum)
	r.digest = r.digest.Sub(old).Add(sum)
}

// report notes that a key's quarantine changed.
func (r *replica) report(key resource.Key) {
	if !r.reported[key] {
		r.reported[key] = true
		r.reports = append(r.reports, key)
	}
}

// maxMessage bounds what is reported of one resource, in bytes.
const maxMessage = 300

// oneLine is an error as it is shown in a table.
func oneLine(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
