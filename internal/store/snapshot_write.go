package store

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"time"

	storev1 "meridian/api/store/v1"
	"meridian/internal/resource"
)

// WriteSnapshot writes the newest state; see View.WriteSnapshot.
func (s *Store) WriteSnapshot(w io.Writer) error { return s.View().WriteSnapshot(w) }

// WriteSnapshot writes the state, record by record, in time proportional to its
// size and memory that does not depend on it. It delays no writer: the view
// is taken in constant time.
//
// A view returned by Store.View brings the request ids and the newest part of
// the history along (History.SnapshotBytes); a past one has neither. Equal
// histories give equal bytes.
func (v *View) WriteSnapshot(w io.Writer) error { return v.WriteSnapshotWith(w, nil) }

// WriteSnapshotWith is WriteSnapshot with something to say about the snapshot.
func (v *View) WriteSnapshotWith(w io.Writer, metadata map[string]string) error {
	buffered := bufio.NewWriterSize(w, 64<<10)
	if err := v.writeRecords(buffered, metadata); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// WriteBackup is WriteSnapshotWith for a file that is kept apart from the
// server: without request ids and history, which are of use only to the same
// history.
func (v *View) WriteBackup(w io.Writer, metadata map[string]string) error {
	bare := *v
	bare.requests, bare.forgotten, bare.history, bare.base, bare.tail, bare.past = nil, time.Time{}, nil, nil, 0, nil
	return bare.WriteSnapshotWith(w, metadata)
}

func (v *View) writeRecords(to io.Writer, metadata map[string]string) error {
	if _, err := io.WriteString(to, snapshotMagic); err != nil {
		return err
	}
	w := &recordWriter{w: to}
	header := &storev1.SnapshotHeader{
		Revision:       uint64(v.revision),
		Changed:        uint64(v.changed),
		AccessRevision: uint64(v.access),
		Time:           timeToProto(v.time),
		Epoch:          epochToProto(v.epoch),
		Metadata:       labelsToProto(metadata),
	}
	if v.past != nil {
		header.Retention = retentionToProto(v.past.retention)
	}
	if v.Count(resource.KindRollout) > 0 {
		// A release that does not know what rollouts hold would apply what others refuse.
		// It knows neither this field, and does not start from what it cannot read.
		header.CommandFormat = formatRollout
	}
	if v.past.shared() {
		header.CommandFormat = formatShared
	}
	err := w.write(headerRecord, header)
	if err != nil {
		return err
	}
	v.scan(resource.Key{}, func(it *item) bool {
		err = w.write(resourceRecord, resourceToProto(it.res))
		return err == nil
	})
	if err != nil {
		return err
	}
	for _, r := range v.requests {
		if err := w.write(requestRecord, requestToProto(r)); err != nil {
			return err
		}
	}
	batches, err := v.writeHistory(w)
	if err != nil {
		return err
	}
	if err := v.past.write(w); err != nil {
		return err
	}
	digest := v.DigestOf(nil)
	trailer := &storev1.SnapshotTrailer{
		Resources: uint64(v.Len()),         //nolint:gosec // a count
		Requests:  uint64(len(v.requests)), //nolint:gosec // a count
		Batches:   batches,
		Digest:    digest.Bytes(),
	}
	if v.past != nil {
		trailer.Past = uint64(len(v.past.batches))
	}
	if !v.forgotten.IsZero() {
		trailer.RequestsForgotten = timeToProto(v.forgotten)
	}
	return w.write(trailerRecord, trailer)
}

// writeHistory writes the newest batches that fit and returns how many.
func (v *View) writeHistory(w *recordWriter) (uint64, error) {
	written, space := uint64(0), v.tail
	for i, r := range slices.Backward(v.history) {
		if space -= r.size; space < 0 {
			break
		}
		if err := w.write(batchRecord, undoToProto(v.history, i, v.base)); err != nil {
			return written, err
		}
		written++
	}
	return written, nil
}

func requestToProto(r *request) *storev1.SnapshotRequest {
	out := &storev1.SnapshotRequest{RequestId: r.id, Revision: uint64(r.revision)}
	if !r.time.IsZero() {
		out.Time = timeToProto(r.time)
	}
	for _, res := range r.results {
		out.Results = append(out.Results, &storev1.SnapshotResult{
			Key: keyToProto(res.Key), Outcome: outcomeToProto(res.Outcome), Version: res.Version,
		})
	}
	return out
}

// outcomeToProto leaves space for the unspecified value.
func outcomeToProto(o Outcome) storev1.SnapshotOutcome { return storev1.SnapshotOutcome(o + 1) } //nolint:gosec // five values

func undoToProto(past []*record, i int, base *View) *storev1.SnapshotBatch {
	r, before := past[i], base
	if i > 0 {
		before = past[i-1].view
	}
	out := &storev1.SnapshotBatch{
		Revision:               uint64(r.batch.Revision),
		Time:                   timeToProto(r.batch.Time),
		Previous:               uint64(before.changed),
		PreviousTime:           timeToProto(before.time),
		PreviousAccessRevision: uint64(before.access),
	}
	if r.batch.Epoch != nil {
		out.PreviousEpoch = epochToProto(before.epoch)
	}
	for _, c := range r.batch.Changes {
		change := &storev1.SnapshotUndo{}
		if c.Before != nil {
			change.Before = &storev1.SnapshotUndo_Resource{Resource: resourceToProto(c.Before)}
		} else {
			change.Before = &storev1.SnapshotUndo_Created{Created: keyToProto(c.Key())}
		}
		out.Changes = append(out.Changes, change)
	}
	return out
}
