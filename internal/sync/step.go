package zonesync

import (
	"strings"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// apply makes the step: removals first, then changes in order.
func (r *holdings) apply(s *staging, epoch store.Epoch, gone []resource.Key) *commit {
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
	c.digest = r.digest
	if c.swap {
		c.whole = r.served()
	}
	return c
}

type serveFunc func(key resource.Key, before, after *resource.Resource)

func (r *holdings) remove(c *commit, key resource.Key, serve serveFunc) {
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

func (r *holdings) put(c *commit, ch *change, comparing bool, serve serveFunc) {
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
		r.add(h, ch, err)
		r.report(key)
		c.writes = append(c.writes, write{key: key, raw: ch.raw, bad: true})
		return
	}
	before := h.good
	r.serve(h, res)
	c.writes = append(c.writes, write{key: key, raw: ch.raw})
	serve(key, before, res)
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
