package dataplane

import (
	"iter"
	"time"

	"meridian/internal/resource"
)

// maxHolders bounds the dataplanes whose certificates are remembered one by one.
const maxHolders = 100_000

// holders are the dataplanes that were sent a certificate since the zone started, also
// those that have gone: who has a valid one is to trust the roots that sign. Beyond
// maxHolders, the others of a mesh are one, which has no name and acknowledges nothing.
type holders map[resource.Key]holder

type holder struct {
	// until is when the last of its certificates ends.
	until time.Time
	// acked is the stamp of the last identity that it acknowledged.
	acked string
}

// issued notes a certificate before it is sent.
func (h holders) issued(key resource.Key, until time.Time) {
	was, known := h[key]
	if !known && len(h) >= maxHolders {
		key = resource.Key{Mesh: key.Mesh}
		was = h[key]
	}
	if until.After(was.until) {
		was.until = until
		h[key] = was
	}
}

// acknowledged notes that a dataplane has the identity of a stamp.
func (h holders) acknowledged(key resource.Key, stamp string) {
	if was, known := h[key]; known {
		was.acked = stamp
		h[key] = was
	}
}

// without lists the dataplanes of a mesh with a valid certificate that have not
// acknowledged a stamp. It forgets whose certificates have ended.
func (h holders) without(mesh resource.MeshName, stamp string, now time.Time) iter.Seq[resource.Key] {
	return func(yield func(resource.Key) bool) {
		for key, one := range h {
			switch {
			case !now.Before(one.until):
				delete(h, key)
			case key.Mesh == mesh && one.acked != stamp && !yield(key):
				return
			}
		}
	}
}
