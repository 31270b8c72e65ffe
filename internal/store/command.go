package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	storev1 "meridian/api/store/v1"
	"meridian/internal/resource"
)

// A command is an envelope around a storev1.Command: one byte of format, four
// of CRC32C (little-endian) over the format and the message, the message.
const (
	formatFirst = 1
	// formatKeepTimes: an operation says that it keeps its times.
	formatKeepTimes = 2
	// formatRetention: the command says which contents of old revisions are kept, after
	// which batches leave contents and snapshots have them, or on which revision or parts
	// of the state it was decided.
	formatRetention = 3
	// formatRollout: the command writes, or restores, a Rollout. Until it is finished, what
	// it is to change is held (see holds). A field that is added to Rollout, or that is
	// checked in another way, takes a format of its own.
	formatRollout = 4
	// formatShared: batches of several writers share the entry.
	formatShared = 5
	// latestFormat is the newest format that is defined. A command has the oldest
	// format that holds it, so that a release that knows no newer one can still apply
	// it. A field that is added to storev1.Command takes a format of its own, and a
	// case in formatOf; so does a change of what applying a command does: commands of
	// the formats before it are applied as they were.
	latestFormat = formatShared

	commandOverhead = 5
)

// FormatOfShared is the format of a command that has batches.
const FormatOfShared uint32 = formatShared

// formatOf returns the oldest format that holds a command.
func formatOf(command *storev1.Command) byte {
	if len(command.GetBatches()) > 0 {
		return formatShared
	}
	if writesRollout(command) {
		return formatRollout
	}
	if command.GetRetention() != nil || command.UnchangedSince != nil || len(command.GetParts()) > 0 {
		return formatRetention
	}
	for _, op := range command.GetOperations() {
		if op.GetKeepTimes() {
			return formatKeepTimes
		}
	}
	return formatFirst
}

// writesRollout reports whether a command writes or restores a Rollout.
func writesRollout(command *storev1.Command) bool {
	for _, op := range command.GetOperations() {
		if op.GetPut().GetKey().GetKind() == string(resource.KindRollout) {
			return true
		}
	}
	return slices.ContainsFunc(command.GetRestore().GetResources(), func(r *storev1.Resource) bool {
		return r.GetKey().GetKind() == string(resource.KindRollout)
	})
}

// FormatOf returns the format of an encoded command, 0 when it is none.
func FormatOf(data []byte) uint32 {
	if len(data) < commandOverhead {
		return 0
	}
	return uint32(data[0])
}

// EncodeCommand turns a batch into the bytes of a log entry. It fails only on
// text that is not UTF-8.
func EncodeCommand(txn Txn) ([]byte, error) {
	data, _, err := EncodeScoped(txn)
	return data, err
}

// EncodeScoped is EncodeCommand, with the scope of the batch.
func EncodeScoped(txn Txn) ([]byte, Scope, error) {
	command := commandToProto(txn)
	for i, b := range txn.Batches {
		shared, err := marshal(commandToProto(b))
		if err != nil {
			return nil, Scope{}, fmt.Errorf("encode batch %d: %w", i, err)
		}
		command.Batches = append(command.Batches, &storev1.SharedBatch{Command: shared, Note: b.Note})
	}
	scope, err := scopeOf(command)
	if err != nil {
		return nil, Scope{}, fmt.Errorf("encode command: %w", err)
	}
	data, err := sealCommand(command)
	return data, scope, err
}

func sealCommand(command *storev1.Command) ([]byte, error) {
	data, err := deterministic.MarshalAppend(make([]byte, commandOverhead, commandOverhead+deterministic.Size(command)), command)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return seal(formatOf(command), data), nil
}

// seal completes the envelope, for which there is space before the message.
func seal(format byte, data []byte) []byte {
	data[0] = format
	binary.LittleEndian.PutUint32(data[1:], commandSum(data))
	return data
}

// DecodeCommand reads a log entry. Errors: ErrUnknownFormat, a newer release
// wrote it; ErrCorrupt, it is not what was written. Either way the log cannot
// be applied any further by this server (a log entry is never skipped).
//
// The resources keep data's bytes; it must not be modified afterwards.
func DecodeCommand(data []byte) (Txn, error) {
	message, err := unseal(data)
	if err != nil {
		return Txn{}, err
	}
	if txn, ok := decodePlain(message); ok {
		return txn, nil
	}
	return decodeAny(message)
}

// decodeAny decodes any Command.
func decodeAny(message []byte) (Txn, error) {
	var command storev1.Command
	if err := unmarshal(message, &command); err != nil {
		return Txn{}, fmt.Errorf("decode command: %w", err)
	}
	txn, err := commandFromProto(&command)
	if errors.Is(err, ErrUnknownFormat) {
		return Txn{}, fmt.Errorf("decode command: %w", err)
	}
	if err != nil {
		return Txn{}, fmt.Errorf("decode command: %w: %w", ErrCorrupt, err)
	}
	return txn, nil
}

// unseal returns the message in an envelope.
func unseal(data []byte) ([]byte, error) {
	if len(data) < commandOverhead {
		return nil, fmt.Errorf("decode command: %w: %d bytes", ErrCorrupt, len(data))
	}
	if data[0] < formatFirst || data[0] > NewestFormat {
		return nil, fmt.Errorf("decode command: %w: %d", ErrUnknownFormat, data[0])
	}
	if binary.LittleEndian.Uint32(data[1:]) != commandSum(data) {
		return nil, fmt.Errorf("decode command: %w: checksum", ErrCorrupt)
	}
	return data[commandOverhead:], nil
}

// Restamp returns a command with another time, the leader's, in a batch that another
// server decided (§1.1), and the scope of the batch. Errors: as DecodeCommand, so that a
// leader puts nothing into the log that it cannot apply itself.
func Restamp(data []byte, at time.Time) ([]byte, Scope, error) {
	message, err := unseal(data)
	if err != nil {
		return nil, Scope{}, err
	}
	if stamped, scope, ok := restampPlain(message, at); ok {
		return stamped, scope, nil
	}
	return restampAny(message, at)
}

// restampAny is Restamp of any Command.
func restampAny(message []byte, at time.Time) ([]byte, Scope, error) {
	var command storev1.Command
	if err := unmarshal(message, &command); err != nil {
		return nil, Scope{}, fmt.Errorf("decode command: %w", err)
	}
	scope, err := scopeOf(&command)
	if err != nil {
		return nil, Scope{}, fmt.Errorf("decode command: %w", err)
	}
	command.Time = timeToProto(at)
	stamped, err := sealCommand(&command)
	return stamped, scope, err
}

func commandSum(data []byte) uint32 {
	return crc32.Update(crc32.Checksum(data[:1], castagnoli), castagnoli, data[commandOverhead:])
}

func commandToProto(txn Txn) *storev1.Command {
	c := &storev1.Command{RequestId: txn.RequestID, Time: timeToProto(txn.Time)}
	for _, op := range txn.Ops {
		change := &storev1.Operation{}
		if op.Resource != nil {
			put := putToProto(op.Resource)
			if change.KeepTimes = op.KeepTimes; op.KeepTimes {
				m := op.Resource.Meta()
				put.CreationTime, put.ModificationTime = timeToProto(m.CreationTime), timeToProto(m.ModificationTime)
			}
			change.Change = &storev1.Operation_Put{Put: put}
		} else {
			change.Change = &storev1.Operation_Delete{Delete: keyToProto(op.Key)}
		}
		c.Operations = append(c.Operations, change)
	}
	for _, p := range txn.Preconditions {
		c.Preconditions = append(c.Preconditions, &storev1.Precondition{
			Key: keyToProto(p.Key), Version: p.Version, Revision: uint64(p.Revision),
		})
	}
	if txn.AccessRevision != nil {
		rev := uint64(*txn.AccessRevision)
		c.AccessRevision = &rev
	}
	if txn.UnchangedSince != nil {
		rev := uint64(*txn.UnchangedSince)
		c.UnchangedSince = &rev
	}
	for _, p := range txn.Parts {
		c.Parts = append(c.Parts, partToProto(p))
	}
	if txn.SetEpoch != nil {
		c.SetEpoch = epochToProto(*txn.SetEpoch)
	}
	if txn.Restore != nil {
		c.Restore = restoreToProto(txn.Restore)
	}
	if txn.Retention != nil {
		c.Retention = retentionToProto(*txn.Retention)
	}
	return c
}

// Scope is what decides which batches may share a log entry.
type Scope struct {
	// Keys are those of the operations.
	Keys []resource.Key
	// Shareable says that the batch has nothing that a batch which shares an entry cannot
	// have (Txn.Batches).
	Shareable bool
}

// scopeOf returns the scope of a batch. What is written of rollouts is a revision of its
// own (ADR 76).
func scopeOf(c *storev1.Command) (Scope, error) {
	keys := make([]resource.Key, len(c.GetOperations()))
	for i, op := range c.GetOperations() {
		encoded := op.GetDelete()
		if op.GetPut() != nil {
			encoded = op.GetPut().GetKey()
		}
		key, err := keyFromProto(encoded)
		if err != nil {
			return Scope{}, fmt.Errorf("%w: operation %d: %w", ErrCorrupt, i, err)
		}
		keys[i] = key
	}
	shareable := !slices.ContainsFunc(keys, func(k resource.Key) bool { return k.Kind == resource.KindRollout }) &&
		c.UnchangedSince == nil && len(c.GetParts()) == 0 && c.GetSetEpoch() == nil && c.GetRetention() == nil && c.GetRestore() == nil && len(c.GetBatches()) == 0
	return Scope{keys, shareable}, nil
}

// CombineCommands returns the command that has the batches of these commands, each of a batch that
// is shareable and with its note. The keys of their operations are all different.
func CombineCommands(at time.Time, commands, notes [][]byte) ([]byte, error) {
	combined := &storev1.Command{Time: timeToProto(at), Batches: make([]*storev1.SharedBatch, len(commands))}
	for i, command := range commands {
		if len(command) < commandOverhead {
			return nil, fmt.Errorf("combine commands: %w: %d bytes", ErrCorrupt, len(command))
		}
		combined.Batches[i] = &storev1.SharedBatch{Command: command[commandOverhead:], Note: notes[i]}
	}
	return sealCommand(combined)
}

// sharedFromProto reads a batch that shares an entry, and the time, with others.
func sharedFromProto(in *storev1.SharedBatch, at time.Time) (Txn, error) {
	var command storev1.Command
	if err := unmarshal(in.GetCommand(), &command); err != nil {
		return Txn{}, err
	}
	if scope, err := scopeOf(&command); err != nil {
		return Txn{}, err
	} else if !scope.Shareable {
		return Txn{}, errors.New("it cannot share an entry")
	}
	txn, err := commandFromProto(&command)
	if err != nil {
		return Txn{}, err
	}
	txn.Time, txn.Note = at, in.GetNote()
	return txn, nil
}

// putToProto leaves out what Apply assigns.
func putToProto(r *resource.Resource) *storev1.Resource {
	m := r.Meta()
	return &storev1.Resource{Key: keyToProto(m.Key), Labels: labelsToProto(m.Labels), Spec: r.Canonical()}
}

func commandFromProto(c *storev1.Command) (Txn, error) {
	at, err := timeFromProto(c.GetTime())
	if err != nil {
		return Txn{}, fmt.Errorf("time: %w", err)
	}
	txn := Txn{RequestID: c.GetRequestId(), Time: at}
	for i, change := range c.GetOperations() {
		op, err := opFromProto(change)
		if err != nil {
			return Txn{}, fmt.Errorf("operation %d: %w", i, err)
		}
		txn.Ops = append(txn.Ops, op)
	}
	for i, p := range c.GetPreconditions() {
		key, err := keyFromProto(p.GetKey())
		if err != nil {
			return Txn{}, fmt.Errorf("precondition %d: %w", i, err)
		}
		txn.Preconditions = append(txn.Preconditions, Precondition{
			Key: key, Version: p.GetVersion(), Revision: resource.Revision(p.GetRevision()),
		})
	}
	for i, b := range c.GetBatches() {
		shared, err := sharedFromProto(b, at)
		if err != nil {
			return Txn{}, fmt.Errorf("batch %d: %w", i, err)
		}
		txn.Batches = append(txn.Batches, shared)
	}
	if c.AccessRevision != nil {
		rev := resource.Revision(c.GetAccessRevision())
		txn.AccessRevision = &rev
	}
	if c.UnchangedSince != nil {
		rev := resource.Revision(c.GetUnchangedSince())
		txn.UnchangedSince = &rev
	}
	for i, p := range c.GetParts() {
		part, err := partFromProto(p)
		if err != nil {
			return Txn{}, fmt.Errorf("part %d: %w", i, err)
		}
		txn.Parts = append(txn.Parts, part)
	}
	if c.GetSetEpoch() != nil {
		e := epochFromProto(c.GetSetEpoch())
		txn.SetEpoch = &e
	}
	if c.GetRestore() != nil {
		if txn.Restore, err = restoreFromProto(c.GetRestore()); err != nil {
			return Txn{}, fmt.Errorf("restore: %w", err)
		}
	}
	if c.GetRetention() != nil {
		r, err := retentionFromProto(c.GetRetention())
		if err != nil {
			return Txn{}, err
		}
		txn.Retention = &r
	}
	return txn, nil
}

func partToProto(p Part) *storev1.Part {
	out := &storev1.Part{Mesh: string(p.Mesh), Digest: p.Digest.Bytes()}
	for _, kind := range p.Kinds {
		out.Kinds = append(out.Kinds, string(kind))
	}
	return out
}

func partFromProto(in *storev1.Part) (Part, error) {
	digest, err := DigestFromBytes(in.GetDigest())
	p := Part{Mesh: resource.MeshName(in.GetMesh()), Digest: digest}
	for _, kind := range in.GetKinds() {
		p.Kinds = append(p.Kinds, resource.Kind(kind))
	}
	return p, err
}

func restoreToProto(part *RestorePart) *storev1.Restore {
	out := &storev1.Restore{Id: part.ID, Number: uint64(part.Number)} //nolint:gosec // counts from 0
	for _, r := range part.Resources {
		out.Resources = append(out.Resources, resourceToProto(r))
	}
	if end := part.End; end != nil {
		out.End = &storev1.RestoreEnd{
			Replaces: epochToProto(end.Replaces), Epoch: epochToProto(end.Epoch), Time: timeToProto(end.Time),
			Resources: uint64(end.Resources), Digest: end.Digest.Bytes(), //nolint:gosec // a count
		}
	}
	return out
}

func restoreFromProto(in *storev1.Restore) (*RestorePart, error) {
	part := &RestorePart{ID: in.GetId(), Number: int(in.GetNumber())} //nolint:gosec // a number that does not fit follows no other
	for i, m := range in.GetResources() {
		r, err := resourceFromProto(m)
		if err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
		part.Resources = append(part.Resources, r)
	}
	if in.GetEnd() == nil {
		return part, nil
	}
	at, err := timeFromProto(in.GetEnd().GetTime())
	if err != nil {
		return nil, fmt.Errorf("time: %w", err)
	}
	digest, err := DigestFromBytes(in.GetEnd().GetDigest())
	if err != nil {
		return nil, err
	}
	part.End = &RestoreEnd{
		Replaces: epochFromProto(in.GetEnd().GetReplaces()), Epoch: epochFromProto(in.GetEnd().GetEpoch()), Time: at,
		Resources: int(in.GetEnd().GetResources()), Digest: digest, //nolint:gosec // compared with what there is
	}
	return part, nil
}

func opFromProto(in *storev1.Operation) (Op, error) {
	switch change := in.GetChange().(type) {
	case *storev1.Operation_Put:
		r, err := resourceFromProto(change.Put)
		if err != nil {
			return Op{}, err
		}
		return Op{Key: r.Key(), Resource: r, KeepTimes: in.GetKeepTimes()}, nil
	case *storev1.Operation_Delete:
		key, err := keyFromProto(change.Delete)
		return Delete(key), err
	}
	return Op{}, fmt.Errorf("neither a resource nor a key")
}
