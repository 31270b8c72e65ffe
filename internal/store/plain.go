package store

import (
	"bytes"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meridian/internal/resource"
)

// Almost every command writes or deletes some resources, alone or as one of those that share
// an entry, and every server decodes each. Such a command is read from its bytes without
// the messages between, which took two thirds of the time. Whatever is not plain, not in
// order or unknown is left to the general decoder, which says what is wrong with it.

// decodePlain decodes a Command that has operations, preconditions, the revision of the
// access rules, a request id and its time at most, or batches that have; false for
// any other. The result is what commandFromProto returns, and shares no memory with data.
func decodePlain(data []byte) (txn Txn, ok bool) {
	var batches [][]byte
	txn, batches, ok = plainCommand(data)
	if !ok || len(batches) == 0 {
		return txn, ok
	}
	if txn.RequestID != "" || len(txn.Ops)+len(txn.Preconditions) > 0 || txn.AccessRevision != nil {
		return Txn{}, false
	}
	txn.Batches = make([]Txn, len(batches))
	for i, batch := range batches {
		if txn.Batches[i], ok = plainBatch(batch, txn.Time); !ok {
			return Txn{}, false
		}
	}
	return txn, true
}

// restampPlain is Restamp of a Command without batches that writes and deletes resources and
// nothing else, as this release encodes it; false for any other. Of its bytes, only those of
// its time are written anew: what it returns decodes to what restampAny returns.
func restampPlain(data []byte, at time.Time) ([]byte, Scope, bool) {
	id, rest := plainFirst(data, 1)
	before, rest := plainFirst(rest, 2)
	scope := Scope{Keys: []resource.Key{}, Shareable: true}
	var was time.Time
	ok := plainFields(id, func(_ protowire.Number, value plainValue) bool { return utf8.Valid(value.bytes) }) &&
		plainFields(before, func(_ protowire.Number, value plainValue) bool { return value.time(&was) }) &&
		plainFields(rest, func(number protowire.Number, value plainValue) bool {
			ok := value.isBytes()
			switch {
			case number == 3 && ok:
				var c plainChange
				c, ok = plainChangeOf(value.bytes)
				scope.Keys = append(scope.Keys, c.meta.Key)
			case number == 4 && ok:
				_, ok = plainPrecondition(value.bytes)
			default:
				ok = number == 5 && value.isNumber()
			}
			return ok
		})
	stamp, err := deterministic.Marshal(timestamppb.New(at))
	if !ok || err != nil || at.IsZero() {
		return nil, Scope{}, false
	}
	out := append(make([]byte, commandOverhead, commandOverhead+len(data)+2+len(stamp)), id...)
	out = protowire.AppendBytes(protowire.AppendTag(out, 2, protowire.BytesType), stamp)
	return seal(formatFirst, append(out, rest...)), scope, true
}

// plainFirst cuts the first field off, where it is of this number and bytes.
func plainFirst(data []byte, number protowire.Number) (field, rest []byte) {
	if first, kind, n := protowire.ConsumeTag(data); n > 0 && first == number && kind == protowire.BytesType {
		if m := protowire.ConsumeFieldValue(number, kind, data[n:]); m >= 0 {
			return data[:n+m], data[n+m:]
		}
	}
	return nil, data
}

// plainBatch decodes a SharedBatch.
func plainBatch(data []byte, at time.Time) (txn Txn, ok bool) {
	var command, note []byte
	ok = plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch number {
		case 1:
			return value.once(&command)
		case 2:
			return value.once(&note)
		}
		return false
	})
	if !ok {
		return Txn{}, false
	}
	txn, batches, ok := plainCommand(command)
	if !ok || len(batches) > 0 {
		return Txn{}, false
	}
	txn.Time, txn.Note = at, bytes.Clone(note)
	return txn, true
}

// plainCommand decodes a Command. It returns the batches that it has as they are encoded.
func plainCommand(data []byte) (txn Txn, batches [][]byte, ok bool) {
	timed := false
	ok = plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch number {
		case 1:
			return value.text(&txn.RequestID)
		case 2:
			if timed {
				return false
			}
			timed = true
			return value.time(&txn.Time)
		case 3:
			return plainAppend(&txn.Ops, value, plainOp)
		case 4:
			return plainAppend(&txn.Preconditions, value, plainPrecondition)
		case 5:
			if txn.AccessRevision != nil || !value.isNumber() {
				return false
			}
			revision := resource.Revision(value.number)
			txn.AccessRevision = &revision
		case 11:
			if !value.isBytes() {
				return false
			}
			batches = append(batches, value.bytes)
		default:
			return false
		}
		return true
	})
	return txn, batches, ok
}

// plainAppend decodes a message and appends it.
func plainAppend[T any](to *[]T, value plainValue, decode func(data []byte) (T, bool)) bool {
	if !value.isBytes() {
		return false
	}
	one, ok := decode(value.bytes)
	*to = append(*to, one)
	return ok
}

// plainOp decodes an Operation.
func plainOp(data []byte) (Op, bool) {
	c, ok := plainChangeOf(data)
	if !ok || !c.put {
		return Op{Key: c.meta.Key}, ok
	}
	r := Restore(c.meta, bytes.Clone(c.spec))
	return Op{Key: r.Key(), Resource: r}, true
}

// plainChange is an Operation: a resource to put without what is assigned when it is applied,
// or a key to delete. The spec is in the bytes that it was read from.
type plainChange struct {
	meta resource.Meta
	spec []byte
	put  bool
}

// plainChangeOf reads an Operation.
func plainChangeOf(data []byte) (c plainChange, ok bool) {
	found := false
	ok = plainFields(data, func(number protowire.Number, value plainValue) bool {
		if found || !value.isBytes() {
			return false
		}
		found = true
		switch number {
		case 1:
			c.put, ok = true, c.readResource(value.bytes)
		case 2:
			c.meta.Key, ok = plainKey(value.bytes)
		default:
			return false
		}
		return ok && c.meta.Key.Kind != resource.KindRollout // its entry is its own (see scopeOf)
	})
	return c, ok && found
}

// readResource reads a Resource.
func (c *plainChange) readResource(data []byte) bool {
	var labels map[string]string
	ok := plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch {
		case !value.isBytes():
			return false
		case number == 1 && c.meta.Key.Kind == "":
			var ok bool
			c.meta.Key, ok = plainKey(value.bytes)
			return ok
		case number == 2:
			if labels == nil {
				labels = map[string]string{}
			}
			return plainLabel(value.bytes, labels)
		case number == 7:
			return value.once(&c.spec)
		}
		return false
	})
	if labels != nil {
		c.meta.Labels = resource.SharedLabels(labels)
	}
	return ok && c.meta.Key.Kind != ""
}

// plainLabel decodes a Label into labels, which have none of its name.
func plainLabel(data []byte, labels map[string]string) bool {
	var name, text string
	ok := plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch number {
		case 1:
			return value.text(&name)
		case 2:
			return value.text(&text)
		}
		return false
	})
	_, twice := labels[name]
	labels[name] = text
	return ok && !twice
}

// plainKey decodes a Key, which has a kind and a name.
func plainKey(data []byte) (key resource.Key, ok bool) {
	var kind, mesh string
	ok = plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch number {
		case 1:
			return value.text(&kind)
		case 2:
			return value.text(&mesh)
		case 3:
			return value.text(&key.Name)
		}
		return false
	})
	if !ok || kind == "" || key.Name == "" {
		return resource.Key{}, false
	}
	key.Kind, key.Mesh = resource.Kind(kind), resource.MeshName(mesh)
	return resource.SharedKey(key), true
}

// plainPrecondition decodes a Precondition.
func plainPrecondition(data []byte) (p Precondition, ok bool) {
	ok = plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch {
		case number == 1 && p.Key.Kind == "" && value.isBytes():
			var ok bool
			p.Key, ok = plainKey(value.bytes)
			return ok
		case number == 2 && value.isNumber():
			p.Version = value.number
		case number == 3 && value.isNumber():
			p.Revision = resource.Revision(value.number)
		default:
			return false
		}
		return true
	})
	return p, ok && p.Key.Kind != ""
}

// plainValue is the value of a field: a number, or bytes.
type plainValue struct {
	kind   protowire.Type
	number uint64
	bytes  []byte
}

func (v plainValue) isNumber() bool { return v.kind == protowire.VarintType }

func (v plainValue) isBytes() bool { return v.kind == protowire.BytesType }

// once reads bytes that were not read before. None is how their absence is encoded.
func (v plainValue) once(to *[]byte) bool {
	if !v.isBytes() || len(v.bytes) == 0 || *to != nil {
		return false
	}
	*to = v.bytes
	return true
}

// text reads a string. It does not keep the bytes.
func (v plainValue) text(to *string) bool {
	if !v.isBytes() || !utf8.Valid(v.bytes) {
		return false
	}
	*to = string(v.bytes)
	return true
}

// time reads a Timestamp.
func (v plainValue) time(to *time.Time) bool {
	if !v.isBytes() {
		return false
	}
	var at timestamppb.Timestamp
	ok := plainFields(v.bytes, func(number protowire.Number, value plainValue) bool {
		switch {
		case number == 1 && value.isNumber():
			at.Seconds = int64(value.number) //nolint:gosec // its encoding
		case number == 2 && value.isNumber():
			at.Nanos = int32(value.number) //nolint:gosec // its encoding
		default:
			return false
		}
		return true
	})
	if !ok || at.CheckValid() != nil {
		return false
	}
	*to = at.AsTime()
	return true
}

// plainFields gives each field of a message to see, until one returns false.
func plainFields(data []byte, see func(number protowire.Number, value plainValue) bool) bool {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		value := plainValue{kind: kind}
		switch kind {
		case protowire.VarintType:
			value.number, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			value.bytes, n = protowire.ConsumeBytes(data)
		default:
			return false
		}
		if n < 0 || !see(number, value) {
			return false
		}
		data = data[n:]
	}
	return true
}
