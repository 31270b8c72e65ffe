package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"maps"
	"math/bits"
	"slices"

	"meridian/internal/resource"
)

// Digest is an additive checksum of a set of resources: the sum, modulo 2^128,
// of a hash of each. It does not depend on order, changes in constant time with
// each resource, and the digest of a part is the difference of two others. The
// zero value is the digest of nothing.
//
// It detects divergence and damage (§7.5). It is not a signature: an attacker who
// can choose resources freely can make two sets of equal digest.
type Digest struct {
	Hi, Lo uint64
}

// Add returns the digest of the union of two disjoint sets.
func (d Digest) Add(o Digest) Digest {
	lo, carry := bits.Add64(d.Lo, o.Lo, 0)
	hi, _ := bits.Add64(d.Hi, o.Hi, carry)
	return Digest{Hi: hi, Lo: lo}
}

// Sub returns the digest of d's set without o's.
func (d Digest) Sub(o Digest) Digest {
	lo, borrow := bits.Sub64(d.Lo, o.Lo, 0)
	hi, _ := bits.Sub64(d.Hi, o.Hi, borrow)
	return Digest{Hi: hi, Lo: lo}
}

// Bytes returns the digest as 16 bytes, most significant first.
func (d Digest) Bytes() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, 16), d.Hi), d.Lo)
}

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d.Bytes()) }

// DigestFromBytes reads what Bytes wrote. It fails unless there are 16 bytes.
func DigestFromBytes(b []byte) (Digest, error) {
	if len(b) != 16 {
		return Digest{}, fmt.Errorf("digest of %d bytes, expected 16", len(b))
	}
	return Digest{Hi: binary.BigEndian.Uint64(b), Lo: binary.BigEndian.Uint64(b[8:])}, nil
}

// Sum returns one resource's term in a digest: the first 128 bits of SHA-256
// over its key, version, revision, labels and canonical bytes, each preceded by
// its length. The revision stands for the times, which follow from it within one
// epoch; the version alone would not do, since it starts again at 1 when a
// resource is deleted and created anew, and the times decide between policies
// (§3.4). The definition is spoken between releases and never changes.
func Sum(r *resource.Resource) Digest {
	m := r.Meta()
	buf := make([]byte, 0, 256)
	buf = appendKey(buf, m.Key)
	buf = binary.BigEndian.AppendUint64(buf, m.Version)
	buf = binary.BigEndian.AppendUint64(buf, uint64(m.Revision))
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(m.Labels)))
	if len(m.Labels) > 0 {
		for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
			buf = appendString(buf, name)
			buf = appendString(buf, m.Labels[name])
		}
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(r.Canonical())))
	hash := sha256.New()
	_, _ = hash.Write(buf) // a hash takes everything
	_, _ = hash.Write(r.Canonical())
	h := hash.Sum(buf[:0])
	return Digest{Hi: binary.BigEndian.Uint64(h), Lo: binary.BigEndian.Uint64(h[8:])}
}

// BucketCount is the number of hash buckets that keys are spread over, so that
// a difference between two states can be located without sending either.
const BucketCount = 256

// BucketOf returns the bucket of a key, less than BucketCount. As Sum, it is
// spoken between releases and never changes.
func BucketOf(key resource.Key) int {
	var buf [128]byte
	return int(byte(crc32.Checksum(appendKey(buf[:0], key), castagnoli)))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendKey(buf []byte, k resource.Key) []byte {
	buf = appendString(buf, string(k.Kind))
	buf = appendString(buf, string(k.Mesh))
	return appendString(buf, k.Name)
}

func appendString(buf []byte, s string) []byte {
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(s)))
	return append(buf, s...)
}
