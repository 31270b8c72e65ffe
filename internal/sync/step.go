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
		swap:   s.mode != syncv1.Mode_MODE_UNSPECIFIED && (epoch != r.epoch || s.revision <= r.revision),
		writes: make([]write, 0, len(gone)+s.count),
	}
	// What readers see of the keys that are touched, before the step. A swap shows
	// everything instead.
	var before map[resource.Key]*resource.Resource
	var order []resource.Key
	if !c.swap {
		before = make(map[resource.Key]*resource.Resource, len(gone)+s.count)
		order = make([]resource.Key, 0, len(gone)+s.count)
	}
	follows := false
	touch := func(key resource.Key) {
		if _, twice := before[key]; !twice && !c.swap {
			before[key] = r.visible(key)
			order = append(order, key)
		}
		follows = follows || r.overlay.Follows(key)
	}
	for _, key := range gone {
		r.remove(c, key, touch)
	}
	for ch := range s.changes() {
		if ch.deleted {
			r.remove(c, ch.meta.Key, touch)
		} else {
			r.put(c, ch, s.mode != syncv1.Mode_MODE_UNSPECIFIED, touch)
		}
	}
	if follows {
		r.showRollouts(touch)
	}
	for _, key := range order {
		if after := r.visible(key); before[key] != after {
			c.changes = append(c.changes, store.Change{Before: before[key], After: after})
		}
	}
	r.epoch, r.revision = epoch, s.revision
	c.digest = r.digest
	if c.swap {
		c.whole = &store.Snapshot{Revision: c.revision, Time: c.time, Epoch: c.epoch, Resources: r.served()}
	}
	return c
}

func (r *holdings) remove(c *commit, key resource.Key, touch func(resource.Key)) {
	h := r.held[key]
	if h == nil {
		return // created and deleted between two coalesced revisions
	}
	touch(key)
	r.count(key, h.sum, store.Digest{})
	r.clear(key, h)
	r.serve(key, h, nil, store.Digest{})
	delete(r.held, key)
	c.writes = append(c.writes, write{key: key})
}

func (r *holdings) put(c *commit, ch *change, comparing bool, touch func(resource.Key)) {
	key := ch.meta.Key
	h := r.held[key]
	if h != nil && comparing && h.sum == ch.sum && !h.bad {
		return // the bucket differs, this resource does not
	}
	touch(key)
	if h == nil {
		h = &heldResource{}
		r.held[key] = h
	}
	r.count(key, h.sum, ch.sum)
	h.sum = ch.sum
	r.clear(key, h)
	res, err := ch.build(r.decode)
	if err != nil {
		r.add(h, ch, err)
		r.report(key)
		c.writes = append(c.writes, write{key: key, raw: ch.raw, bad: true})
		return
	}
	r.serve(key, h, res, store.Sum(res))
	c.writes = append(c.writes, write{key: key, raw: ch.raw})
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
