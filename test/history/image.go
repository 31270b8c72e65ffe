package history

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"

	"meridian/internal/resource"
)

// Image identifies a state by everything that is stored of it. It is computed
// from the resources themselves, apart from the digests that the product keeps.
type Image [16]byte

func (i Image) String() string { return hex.EncodeToString(i[:4]) }

// ContentOf is ImageOf without what depends on when and how often a resource was written.
func ContentOf(resources iter.Seq[*resource.Resource], keep func(resource.Kind) bool) Image {
	return ImageOf(func(yield func(*resource.Resource) bool) {
		for r := range resources {
			if !yield(r.WithMeta(resource.Meta{Key: r.Key(), Labels: r.Meta().Labels})) {
				return
			}
		}
	}, keep)
}

// ImageOf returns the image of the resources of the kinds that keep accepts, nil
// meaning all. They must come in key order.
func ImageOf(resources iter.Seq[*resource.Resource], keep func(resource.Kind) bool) Image {
	h := sha256.New()
	var buf []byte
	for r := range resources {
		m := r.Meta()
		if keep != nil && !keep(m.Key.Kind) {
			continue
		}
		buf = fmt.Appendf(buf[:0], "%s\x00%s\x00%s\x00%d\x00%d\x00%d\x00%d\x00%d\x00", m.Key.Kind, m.Key.Mesh, m.Key.Name,
			m.Version, m.Revision, m.CreationTime.UnixNano(), m.ModificationTime.UnixNano(), len(m.Labels))
		for _, label := range slices.Sorted(maps.Keys(m.Labels)) {
			buf = fmt.Appendf(buf, "%s\x00%s\x00", label, m.Labels[label])
		}
		buf = fmt.Appendf(buf, "%d\x00%s", len(r.Canonical()), r.Canonical())
		_, _ = h.Write(buf) // never fails
	}
	var out Image
	copy(out[:], h.Sum(nil))
	return out
}
