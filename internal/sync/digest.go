package zonesync

import (
	"fmt"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// digestSize is the length of an encoded digest in bytes.
const digestSize = 16

// buckets holds the digest of each part of the key space.
type buckets [store.BucketCount]store.Digest

// replace takes one member's term out of its bucket and puts another's in; a
// zero term stands for no member.
func (b *buckets) replace(key resource.Key, old, sum store.Digest) {
	i := store.BucketOf(key)
	b[i] = b[i].Sub(old).Add(sum)
}

func (b *buckets) bytes() []byte {
	out := make([]byte, 0, len(b)*digestSize)
	for _, part := range b {
		out = append(out, part.Bytes()...)
	}
	return out
}

func parseBuckets(in []byte) (*buckets, error) {
	var b buckets
	if len(in) != len(b)*digestSize {
		return nil, fmt.Errorf("digests of %d buckets in %d bytes", len(b), len(in))
	}
	for i := range b {
		var err error
		if b[i], err = store.DigestFromBytes(in[i*digestSize : (i+1)*digestSize]); err != nil {
			return nil, err
		}
	}
	return &b, nil
}

// bucketSet is a set of bucket numbers, as a bit each.
type bucketSet [store.BucketCount / 8]byte

func (s *bucketSet) add(b int)      { s[b/8] |= 1 << (b % 8) }
func (s *bucketSet) has(b int) bool { return s[b/8]&(1<<(b%8)) != 0 }

// allBuckets is the set that a snapshot covers.
func allBuckets() *bucketSet {
	var s bucketSet
	for i := range s {
		s[i] = 0xff
	}
	return &s
}

// differing returns the buckets that are not the same in a and b.
func differing(a, b *buckets) *bucketSet {
	var s bucketSet
	for i := range a {
		if a[i] != b[i] {
			s.add(i)
		}
	}
	return &s
}
