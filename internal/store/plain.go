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
func plainOp(data []byte) (op Op, ok bool) {
	found := false
	ok = plainFields(data, func(number protowire.Number, value plainValue) bool {
		if found || !value.isBytes() {
			return false
		}
		found = true
		switch number {
		case 1:
			op.Resource, ok = plainResource(value.bytes)
			if ok {
				op.Key = op.Resource.Key()
			}
		case 2:
			op.Key, ok = plainKey(value.bytes)
		default:
			return false
		}
		return ok && op.Key.Kind != resource.KindRollout // its entry is its own (see scopeOf)
	})
	return op, ok && found
}

// plainResource decodes a Resource without what is assigned when it is applied.
func plainResource(data []byte) (*resource.Resource, bool) {
	var (
		meta   resource.Meta
		labels map[string]string
		spec   []byte
	)
	ok := plainFields(data, func(number protowire.Number, value plainValue) bool {
		switch {
		case !value.isBytes():
			return false
		case number == 1 && meta.Key.Kind == "":
			var ok bool
			meta.Key, ok = plainKey(value.bytes)
			return ok
		case number == 2:
			if labels == nil {
				labels = map[string]string{}
			}
			return plainLabel(value.bytes, labels)
		case number == 7:
			return value.once(&spec)
		}
		return false
	})
	if !ok || meta.Key.Kind == "" {
		return nil, false
	}
	if labels != nil {
		meta.Labels = resource.SharedLabels(labels)
	}
	return Restore(meta, bytes.Clone(spec)), true
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
