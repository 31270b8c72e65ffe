package zonesync

import (
	"errors"
	"fmt"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// digestSize is the length of an encoded digest in bytes.
const digestSize = 16

// errDigestSize means that a frame or a record carries digests of the wrong
// length.
var errDigestSize = errors.New("digest has the wrong length")

func parseDigest(b []byte) (store.Digest, error) {
	if len(b) != digestSize {
		return store.Digest{}, fmt.Errorf("%w: %d bytes", errDigestSize, len(b))
	}
	return store.DigestFromBytes(b)
}

// buckets holds the digest of each part of the key space.
type buckets [store.BucketCount]store.Digest

// total is the digest of the whole.
func (b *buckets) total() store.Digest {
	var d store.Digest
	for _, part := range b {
		d = d.Add(part)
	}
	return d
}

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
		return nil, fmt.Errorf("%w: %d bytes for %d buckets", errDigestSize, len(in), len(b))
	}
	for i := range b {
		d, err := parseDigest(in[i*digestSize : (i+1)*digestSize])
		if err != nil {
			return nil, err
		}
		b[i] = d
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
