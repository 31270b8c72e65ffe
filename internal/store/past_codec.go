package store

import (
	"errors"
	"fmt"
	"math"
	"time"

	storev1 "meridian/api/store/v1"
	"meridian/internal/resource"
)

func retentionToProto(r Retention) *storev1.Retention {
	return &storev1.Retention{Batches: uint64(r.Batches), Bytes: uint64(r.Bytes), Age: uint64(r.Age)} //nolint:gosec // not negative: the flags of the history are checked
}

func retentionFromProto(in *storev1.Retention) (Retention, error) {
	if max(in.GetBatches(), in.GetBytes(), in.GetAge()) > math.MaxInt64 {
		return Retention{}, errors.New("bounds of the history that are too large")
	}
	return Retention{Batches: int(in.GetBatches()), Bytes: int64(in.GetBytes()), Age: time.Duration(in.GetAge())}, nil //nolint:gosec // checked
}

// write writes the batches whose contents are kept, oldest first.
func (k *pastView) write(w *recordWriter) error {
	if k == nil {
		return nil
	}
	for _, b := range k.batches {
		if err := w.write(pastRecord, pastToProto(b)); err != nil {
			return err
		}
	}
	return nil
}

func pastToProto(b *pastBatch) *storev1.SnapshotPast {
	out := &storev1.SnapshotPast{
		Revision: uint64(b.revision), Time: timeToProto(b.time),
		Previous: uint64(b.before.changed), PreviousTime: timeToProto(b.before.time), PreviousAccessRevision: uint64(b.before.access),
	}
	if len(b.notes) == 1 {
		out.Note = b.notes[0]
	} else {
		out.Notes = b.notes
	}
	if b.before.epoch != nil {
		out.PreviousEpoch = epochToProto(*b.before.epoch)
	}
	for _, c := range b.changes {
		change := &storev1.PastChange{Key: keyToProto(c.key), Version: c.version, Note: uint32(c.note)} //nolint:gosec // counts from 0
		if c.before != nil {
			m := c.before.meta
			change.Before = &storev1.Resource{
				Key: keyToProto(m.Key), Labels: labelsToProto(m.Labels),
				CreationTime: timeToProto(m.CreationTime), ModificationTime: timeToProto(m.ModificationTime),
				Version: m.Version, Revision: uint64(m.Revision), Spec: c.before.canonical,
			}
		}
		out.Changes = append(out.Changes, change)
	}
	return out
}

// past reads one batch whose contents are kept.
func (p *snapshotParser) past(body []byte) error {
	var in storev1.SnapshotPast
	if err := unmarshal(body, &in); err != nil {
		return err
	}
	damaged := func(err error) error {
		return fmt.Errorf("%w: the contents of batch %d: %w", ErrCorrupt, in.GetRevision(), err)
	}
	at, err := timeFromProto(in.GetTime())
	if err != nil {
		return damaged(err)
	}
	before, err := timeFromProto(in.GetPreviousTime())
	if err != nil {
		return damaged(err)
	}
	previous := resource.Revision(in.GetPrevious())
	b := &pastBatch{
		revision: resource.Revision(in.GetRevision()), time: at, notes: in.GetNotes(),
		before: pastState{changed: previous, time: before, access: resource.Revision(in.GetPreviousAccessRevision())},
	}
	if in.GetPreviousEpoch() != nil {
		epoch := epochFromProto(in.GetPreviousEpoch())
		b.before.epoch = &epoch
	}
	if len(b.notes) == 0 {
		b.notes = [][]byte{in.GetNote()}
	}
	for _, c := range in.GetChanges() {
		key, err := keyFromProto(c.GetKey())
		if err != nil {
			return damaged(err)
		}
		if int(c.GetNote()) >= len(b.notes) {
			return damaged(fmt.Errorf("a note of %s that is not there", key))
		}
		change := pastChange{key: key, version: c.GetVersion(), note: int(c.GetNote())}
		if c.GetBefore() != nil {
			meta, err := metaFromProto(c.GetBefore())
			if err != nil {
				return damaged(err)
			}
			change.before = &pastResource{meta: meta, canonical: c.GetBefore().GetSpec()}
		}
		b.changes = append(b.changes, change)
	}
	b.withhold()
	p.snap.kept = append(p.snap.kept, b)
	return nil
}

// restorePast returns the contents that a snapshot has of the revisions before a state,
// nil where none are kept.
func (snap *Snapshot) restorePast(v *View) (*past, error) {
	if snap.retention == nil || snap.retention.Bytes == 0 {
		if len(snap.kept) > 0 {
			return nil, fmt.Errorf("%w: contents of old revisions without their bounds", ErrCorrupt)
		}
		return nil, nil
	}
	floor := v.changed
	if len(snap.kept) > 0 {
		floor = snap.kept[0].before.changed
	}
	out, last := newPast(*snap.retention, floor), floor
	for _, b := range snap.kept {
		if b.before.changed != last || b.revision <= last {
			return nil, fmt.Errorf("%w: the contents of batch %d, after %d, stand where %d is expected", ErrCorrupt, b.revision, b.before.changed, last)
		}
		out.push(b)
		last = b.revision
	}
	if last != v.changed {
		return nil, fmt.Errorf("%w: the contents end with batch %d, the state with %d", ErrCorrupt, last, v.changed)
	}
	out.publish()
	return out, nil
}
