package zonesync

import (
	"bytes"
	"fmt"
	"iter"

	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/parallel"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// contents is what a replica holds on disk.
type contents struct {
	state *syncv1.ReplicaState // nil: none, or lost
	// good is in the order of the keys where it was read in it, as it was read: a list that
	// grows to a million would be copied many times.
	good [][]record
	bad  []record
	// damage describes, for the operator, what is damaged; remove are the keys of
	// those records.
	damage []string
	remove []recordKey

	// decode makes typed resources of the records. Nil: their bytes alone are wanted.
	decode Decoder
	// pending are the next records, which are read together; they are in bytes.
	pending []sealedRecord
	bytes   []byte
}

// record is what was read of a key. There may be a million: of one that can be used, unless
// it was in quarantine, no more is kept than what is served.
type record struct {
	sum store.Digest // of the bytes
	// typed is what decoding made of them, and term its own term in a digest; problem is
	// why it failed.
	typed   *resource.Resource
	term    store.Digest
	problem error
	bytes   *change // nil where they are not kept
}

func (r *record) key() resource.Key {
	if r.bytes != nil {
		return r.bytes.meta.Key
	}
	return r.typed.Key()
}

func (r *record) revision() resource.Revision {
	if r.bytes != nil {
		return r.bytes.meta.Revision
	}
	return r.typed.Meta().Revision
}

type recordKey struct {
	bucket string
	key    []byte
}

// sealedRecord is an entry of the file as it is there, valid until finish returns.
type sealedRecord struct {
	bucket     string
	key, value []byte
}

// What is read together, on all processors: at most so many records, or so many bytes.
const (
	readAtOnce = 8192
	readBytes  = 8 << 20
)

// visit takes one entry of the file. After the last one, finish is called.
func (c *contents) visit(bucket string, key, value []byte) {
	switch bucket {
	case string(aboutBucket):
		if bytes.Equal(key, stateKey) {
			c.readState(value)
		}
	case string(recordsBucket), string(quarantineBucket):
		size := len(key) + len(value)
		if len(c.pending) == readAtOnce || len(c.bytes)+size > cap(c.bytes) {
			c.finish()
		}
		if size > cap(c.bytes) {
			c.bytes = make([]byte, 0, max(size, readBytes))
		}
		c.pending = append(c.pending, sealedRecord{bucket, c.keep(key), c.keep(value)})
	}
}

// keep copies bytes into those that are read together, which have space for them.
func (c *contents) keep(b []byte) []byte {
	from := len(c.bytes)
	c.bytes = append(c.bytes, b...)
	return c.bytes[from:len(c.bytes):len(c.bytes)]
}

func (c *contents) readState(raw []byte) {
	payload, err := openRecord(stateKey, raw)
	if err == nil {
		s := &syncv1.ReplicaState{}
		if err = proto.Unmarshal(payload, s); err == nil {
			c.state = s
			return
		}
	}
	c.damage = append(c.damage, fmt.Sprintf("the record of revision and epoch: %v", err))
}

// finish reads the records that were visited.
func (c *contents) finish() {
	if len(c.pending) == 0 {
		return
	}
	all, errs := make([]record, len(c.pending)), make([]error, len(c.pending))
	parallel.For(len(all), func(from, to int) {
		for i := from; i < to; i++ {
			all[i], errs[i] = c.read(&c.pending[i])
		}
	})
	good := all[:0]
	for i, err := range errs {
		r := &c.pending[i]
		switch {
		case err != nil:
			c.damage = append(c.damage, fmt.Sprintf("%s: %v", readableKey(r.key), err))
			c.remove = append(c.remove, recordKey{bucket: r.bucket, key: bytes.Clone(r.key)})
		case r.bucket == string(quarantineBucket):
			c.bad = append(c.bad, all[i])
		default:
			good = append(good, all[i])
		}
	}
	c.good = append(c.good, good)
	clear(c.pending)
	c.pending, c.bytes = c.pending[:0], c.bytes[:0]
}

// read verifies and decodes one record.
func (c *contents) read(r *sealedRecord) (record, error) {
	ch, err := readRecord(r.key, r.value)
	if err != nil {
		return record{}, err
	}
	rec := record{sum: ch.sum}
	if c.decode != nil {
		rec.typed, rec.problem = c.decode(ch.meta, ch.spec)
	}
	if rec.typed == nil || r.bucket == string(quarantineBucket) {
		kept := ch
		kept.raw = bytes.Clone(ch.raw)
		rec.bytes = &kept
	}
	if rec.typed == nil {
		return rec, nil
	}
	if rec.term = ch.sum; !bytes.Equal(rec.typed.Canonical(), ch.spec) { // written by other rules
		rec.term = store.Sum(rec.typed)
	}
	return rec, nil
}

func readRecord(k, v []byte) (change, error) {
	payload, err := openRecord(k, v)
	if err != nil {
		return change{}, err
	}
	ch, err := decodeChange(payload)
	if err != nil {
		return change{}, err
	}
	if ch.deleted || !bytes.Equal(diskKey(ch.meta.Key), k) {
		return change{}, fmt.Errorf("%w record: it is about %s", errMalformed, ch.meta.Key)
	}
	return ch, nil
}

// keys yields the keys of the records, each once.
func (c *contents) keys() iter.Seq[resource.Key] {
	return func(yield func(resource.Key) bool) {
		damaged := len(c.damage) > 0 // then the file may show a key twice
		seen, others := map[resource.Key]bool{}, map[resource.Key]bool{}
		for i := range c.bad {
			others[c.bad[i].key()] = true
		}
		for r := range c.eachGood() {
			key := r.key()
			delete(others, key)
			if damaged {
				if seen[key] {
					continue
				}
				seen[key] = true
			}
			if !yield(key) {
				return
			}
		}
		for key := range others {
			if !yield(key) {
				return
			}
		}
	}
}

// eachGood yields the records that were read, but for those in quarantine.
func (c *contents) eachGood() iter.Seq[*record] {
	return func(yield func(*record) bool) {
		for _, some := range c.good {
			for i := range some {
				if !yield(&some[i]) {
					return
				}
			}
		}
	}
}

// count returns how many those are.
func (c *contents) count() (n int) {
	for _, some := range c.good {
		n += len(some)
	}
	return n
}

// removals returns the changes that remove damaged records.
func (c *contents) removals() []Entry {
	out := make([]Entry, 0, len(c.remove))
	for _, s := range c.remove {
		out = append(out, Entry{Bucket: s.bucket, Key: s.key})
	}
	return out
}

// entriesOf returns everything that can be read of a damaged file, for a new one.
func entriesOf(path string) ([]Entry, error) {
	c := &contents{}
	if _, err := survey(path, c); err != nil {
		return nil, err
	}
	out := make([]Entry, 0, c.count()+len(c.bad)+1)
	for r := range c.eachGood() {
		out = append(out, recordEntry(recordsBucket, diskKey(r.key()), r.bytes.raw))
	}
	for _, r := range c.bad {
		out = append(out, recordEntry(quarantineBucket, diskKey(r.key()), r.bytes.raw))
	}
	if c.state == nil {
		return out, nil
	}
	about, err := stateEntry(c.state)
	return append(out, about), err
}
