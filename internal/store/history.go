package store

import (
	"cmp"
	"slices"

	"meridian/internal/resource"
)

// record is one retained batch and the state it made.
type record struct {
	batch Batch
	view  *View // without requests and history, see View
	size  int   // estimated bytes kept alive
}

// Estimates of what a batch and a change keep alive besides resources: copied
// tree nodes, tallies, times and versions.
const (
	batchOverhead  = 3 << 10
	changeOverhead = 512
)

func newRecord(b Batch, v *View) *record {
	r := &record{batch: b, view: v, size: batchOverhead}
	for _, c := range b.Changes {
		r.size += changeOverhead
		if c.Before != nil {
			r.size += c.Before.Size()
		}
		if c.After != nil {
			r.size += c.After.Size()
		}
	}
	return r
}

// history is the bounded past. Batches leave it oldest first, and the state
// that the oldest retained batch began from stays readable.
type history struct {
	bounds History
	window window[*record]
	base   *View
	bytes  int
}

func (h *history) add(r *record) {
	h.window.push(r)
	h.bytes += r.size
	for len(h.window.items) > 1 && h.over(r) {
		oldest := h.window.items[0]
		h.base = oldest.view
		h.bytes -= oldest.size
		h.window.pop()
	}
}

func (h *history) over(newest *record) bool {
	b := h.bounds
	return b.MaxBatches > 0 && len(h.window.items) > b.MaxBatches ||
		b.MaxBytes > 0 && h.bytes > b.MaxBytes ||
		b.MaxAge > 0 && newest.batch.Time.Sub(h.window.items[0].batch.Time) > b.MaxAge
}

// firstAfter returns the index of the first batch after a revision.
func firstAfter(past []*record, rev resource.Revision) int {
	i, found := slices.BinarySearchFunc(past, rev, func(r *record, rev resource.Revision) int {
		return cmp.Compare(r.batch.Revision, rev)
	})
	if found {
		return i + 1
	}
	return i
}
