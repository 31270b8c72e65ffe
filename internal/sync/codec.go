package zonesync

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// maxPart is the size in bytes that parts of a batch and chunks aim for: a zone that
// does not read holds a few chunks of its own in its server. A single larger resource
// travels in a part of its own.
const maxPart = 31 << 10 // a frame fits the 32 KiB of gRPC's buffers

// errMalformed means that bytes are not what they are said to be: the other end
// is broken, or something between them is.
var errMalformed = errors.New("malformed")

// change is one operation as it travels and is stored: decoded far enough to be
// kept, with the bytes it came as.
type change struct {
	meta    resource.Meta // only the key for a deletion
	spec    []byte        // canonical JSON
	deleted bool
	sum     store.Digest // zero for a deletion
	raw     []byte       // the encoded syncv1.Op
	// typed is what decoding made of meta and spec beforehand, problem why it failed; both
	// are nil when it was not tried.
	typed   *resource.Resource
	problem error
}

// build returns the typed resource of a change that is no deletion.
func (c *change) build(decode Decoder) (*resource.Resource, error) {
	if c.typed == nil && c.problem == nil {
		return decode(c.meta, c.spec)
	}
	return c.typed, c.problem
}

// encodePut encodes a resource as an Op.
func encodePut(r *resource.Resource) ([]byte, error) {
	m := r.Meta()
	rec := &syncv1.Record{
		Labels:   m.Labels,
		Version:  m.Version,
		Revision: uint64(m.Revision),
		Spec:     r.Canonical(),
	}
	if !m.CreationTime.IsZero() {
		rec.CreationTime = timestamppb.New(m.CreationTime)
	}
	if !m.ModificationTime.IsZero() {
		rec.ModificationTime = timestamppb.New(m.ModificationTime)
	}
	return encodeOp(m.Key, rec)
}

// encodeDelete encodes a deletion as an Op.
func encodeDelete(k resource.Key) ([]byte, error) { return encodeOp(k, nil) }

func encodeOp(k resource.Key, rec *syncv1.Record) ([]byte, error) {
	op := &syncv1.Op{Kind: string(k.Kind), Mesh: string(k.Mesh), Name: k.Name, Record: rec}
	// Deterministic, so that equal resources are equal bytes in tests and files.
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(op)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k, err)
	}
	return b, nil
}

// decodeChange decodes an Op. Fields it does not know stay in raw.
func decodeChange(raw []byte) (change, error) {
	var op syncv1.Op
	if err := proto.Unmarshal(raw, &op); err != nil {
		return change{}, fmt.Errorf("%w operation: %w", errMalformed, err)
	}
	if op.Kind == "" || op.Name == "" || strings.ContainsRune(op.Kind+op.Mesh+op.Name, 0) {
		return change{}, fmt.Errorf("%w operation: bad key %q/%q/%q", errMalformed, op.Kind, op.Mesh, op.Name)
	}
	c := change{raw: raw, deleted: op.Record == nil}
	c.meta.Key = resource.SharedKey(resource.Key{Kind: resource.Kind(op.Kind), Mesh: resource.MeshName(op.Mesh), Name: op.Name})
	if c.deleted {
		return c, nil
	}
	rec := op.Record
	c.meta.Labels = rec.Labels
	c.meta.CreationTime = timeOf(rec.CreationTime)
	c.meta.ModificationTime = timeOf(rec.ModificationTime)
	c.meta.Version = rec.Version
	c.meta.Revision = resource.Revision(rec.Revision)
	c.spec = rec.Spec
	c.sum = store.Sum(resource.New(c.meta, nil, c.spec))
	return c, nil
}

// decodeAtOnce is from how many operations on several goroutines decode them: fewer take
// less time than to begin one.
const decodeAtOnce = 16

// decodeChanges decodes operations, on all processors when they are many. then is called
// concurrently with each that is no deletion.
func decodeChanges(raws [][]byte, then func(*change)) ([]change, error) {
	out := make([]change, len(raws))
	decode := func(from, to int) error {
		for i := from; i < to; i++ {
			c, err := decodeChange(raws[i])
			if err != nil {
				return err
			}
			if out[i] = c; !c.deleted {
				then(&out[i])
			}
		}
		return nil
	}
	if len(raws) < decodeAtOnce {
		return out, decode(0, len(raws))
	}
	var group errgroup.Group
	parts := runtime.GOMAXPROCS(0)
	for i := range parts {
		group.Go(func() error { return decode(i*len(raws)/parts, (i+1)*len(raws)/parts) })
	}
	return out, group.Wait()
}

// timeOf converts a timestamp, nil meaning unknown.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// opsField is the number of the field ops in Batch.
const opsField protowire.Number = 6

// encodeBatch encodes a batch in as many parts as it needs. The operations in
// the result share memory with it: each returned op is a slice of a part.
func encodeBatch(head *syncv1.Batch, ops [][]byte) (parts, shared [][]byte, err error) {
	groups := splitOps(ops, maxPart)
	shared = make([][]byte, 0, len(ops))
	for i, group := range groups {
		var part []byte
		if part, shared, err = encodePart(head, i, len(groups), group, shared); err != nil {
			return nil, nil, err
		}
		parts = append(parts, part)
	}
	return parts, shared, nil
}

// encodePart encodes one of several groups of a batch, and appends the operations
// as they are in it.
func encodePart(head *syncv1.Batch, i, of int, group, shared [][]byte) (part []byte, _ [][]byte, err error) {
	h := proto.CloneOf(head)
	if of > 1 {
		h.Part, h.Parts = uint32(i+1), uint32(of)
	}
	size := proto.Size(h)
	for _, op := range group {
		size += protowire.SizeTag(opsField) + protowire.SizeBytes(len(op))
	}
	if part, err = (proto.MarshalOptions{}).MarshalAppend(make([]byte, 0, size), h); err != nil {
		return nil, nil, fmt.Errorf("encode batch %d: %w", head.Revision, err)
	}
	for _, op := range group {
		part = protowire.AppendTag(part, opsField, protowire.BytesType)
		part = protowire.AppendBytes(part, op)
		shared = append(shared, slices.Clip(part[len(part)-len(op):]))
	}
	return part, shared, nil
}

// splitOps cuts operations into groups of about so many bytes; at least one
// group, at least one operation in each of several.
func splitOps(ops [][]byte, most int) [][][]byte {
	var groups [][][]byte
	start, size := 0, 0
	for i, op := range ops {
		if i > start && size+len(op) > most {
			groups = append(groups, ops[start:i])
			start, size = i, 0
		}
		size += len(op)
	}
	return append(groups, ops[start:])
}

// diskKey is the key's form in a replica file: its three parts with a zero byte
// between them, which none of them may hold.
func diskKey(k resource.Key) []byte {
	b := make([]byte, 0, len(k.Kind)+len(k.Mesh)+len(k.Name)+2)
	b = append(b, k.Kind...)
	b = append(b, 0)
	b = append(b, k.Mesh...)
	b = append(b, 0)
	return append(b, k.Name...)
}
