package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	storev1 "meridian/api/store/v1"
	"meridian/internal/parallel"
	"meridian/internal/resource"
)

// ReadSnapshot reads what WriteSnapshot wrote, and nothing after it: r must end
// there. Errors: a *SnapshotError that says where, for ErrCorrupt, the snapshot is
// damaged or truncated, and ErrUnknownFormat, a newer release wrote it; those of r.
// Nothing is used before its checksum is verified, and the complete state is
// checked against its count and digest.
func ReadSnapshot(r io.Reader) (*Snapshot, error) {
	records := &recordReader{r: bufio.NewReaderSize(r, 64<<10)}
	snap, err := records.snapshot()
	switch {
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrUnknownFormat):
		return nil, fmt.Errorf("read snapshot: %w", &SnapshotError{Offset: records.offset, Err: err})
	case err != nil:
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return snap, nil
}

// SnapshotError is what is wrong with a stored snapshot, and where.
type SnapshotError struct {
	// Offset is how many bytes had been read when it was noticed.
	Offset int64
	// Err is ErrCorrupt or ErrUnknownFormat, and what was found.
	Err error
}

func (e *SnapshotError) Error() string { return fmt.Sprintf("%s, before byte %d", e.Err, e.Offset) }
func (e *SnapshotError) Unwrap() error { return e.Err }

func (r *recordReader) snapshot() (*Snapshot, error) {
	if err := r.magic(); err != nil {
		return nil, err
	}
	p := &snapshotParser{snap: &Snapshot{}}
	for !p.done {
		kind, body, err := r.next()
		if err == nil && (kind != resourceRecord || len(p.bodies) == loadAtOnce || p.bytes > loadBytes) {
			err = p.resources()
		}
		if err != nil {
			return nil, err
		}
		if kind.order() < p.last.order() || (kind == p.last && (kind == headerRecord || kind == trailerRecord)) || (p.last == 0 && kind != headerRecord) {
			return nil, r.corrupt("a record of kind %d after one of kind %d", kind, p.last)
		}
		p.last = kind
		if err := p.record(kind, body); err != nil {
			return nil, err
		}
	}
	switch n, err := r.r.Read(make([]byte, 1)); {
	case n > 0:
		return nil, r.corrupt("something follows the trailer")
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	}
	p.snap.size = r.offset
	return p.snap, nil
}

func (r *recordReader) magic() error {
	magic := make([]byte, len(snapshotMagic))
	if err := r.fill(magic); err != nil {
		return err
	}
	name, format := len(snapshotMagic)-1, magic[len(magic)-1]
	if string(magic[:name]) != snapshotMagic[:name] {
		return r.corrupt("not a snapshot")
	}
	if format != snapshotMagic[name] {
		return fmt.Errorf("%w: %d", ErrUnknownFormat, format)
	}
	return nil
}

// snapshotParser fills in a snapshot as its records come by.
type snapshotParser struct {
	snap   *Snapshot
	last   recordKind
	digest Digest
	done   bool
	// bodies are the next records of resources, which are decoded together; bytes is what
	// they take.
	bodies [][]byte
	bytes  int
}

// loadBytes bounds what records that are decoded together take, in bytes.
const loadBytes = 16 << 20

func (p *snapshotParser) record(kind recordKind, body []byte) error {
	switch kind {
	case headerRecord:
		return p.header(body)
	case resourceRecord:
		p.bodies, p.bytes = append(p.bodies, body), p.bytes+len(body)
		return nil
	case requestRecord:
		return p.request(body)
	case batchRecord:
		return p.batch(body)
	case pastRecord:
		return p.past(body)
	case trailerRecord:
		return p.trailer(body)
	}
	return fmt.Errorf("%w: record of kind %d", ErrUnknownFormat, kind)
}

func (p *snapshotParser) header(body []byte) error {
	var h storev1.SnapshotHeader
	if err := unmarshal(body, &h); err != nil {
		return err
	}
	at, err := timeFromProto(h.GetTime())
	if err != nil {
		return fmt.Errorf("%w: header: %w", ErrCorrupt, err)
	}
	metadata, err := labelsFromProto(h.GetMetadata())
	if err != nil {
		return fmt.Errorf("%w: header: %w", ErrCorrupt, err)
	}
	if h.GetCommandFormat() > NewestFormat {
		return fmt.Errorf("%w: commands of format %d", ErrUnknownFormat, h.GetCommandFormat())
	}
	p.snap.format = h.GetCommandFormat()
	p.snap.Revision = resource.Revision(h.GetRevision())
	p.snap.Changed = resource.Revision(h.GetChanged())
	p.snap.AccessRevision = resource.Revision(h.GetAccessRevision())
	p.snap.Time = at
	p.snap.Epoch = epochFromProto(h.GetEpoch())
	p.snap.Metadata = metadata
	if h.GetRetention() != nil {
		r, err := retentionFromProto(h.GetRetention())
		if err != nil {
			return fmt.Errorf("%w: header: %w", ErrCorrupt, err)
		}
		p.snap.retention = &r
	}
	return nil
}

// resources decodes the records of resources so far, on all processors.
func (p *snapshotParser) resources() error {
	type decoded struct {
		resource *resource.Resource
		sum      Digest
		err      error
	}
	all := make([]decoded, len(p.bodies))
	parallel.For(len(all), func(from, to int) {
		for i := from; i < to; i++ {
			d := &all[i]
			if d.resource, d.err = decodeResource(p.bodies[i]); d.err == nil {
				d.sum = Sum(d.resource)
			}
		}
	})
	for _, d := range all {
		if d.err != nil {
			return d.err
		}
		if n := len(p.snap.Resources); n > 0 && p.snap.Resources[n-1].KeyRef().Compare(*d.resource.KeyRef()) >= 0 {
			return fmt.Errorf("%w: %s after %s", ErrCorrupt, d.resource.Key(), p.snap.Resources[n-1].Key())
		}
		p.digest = p.digest.Add(d.sum)
		p.snap.Resources = append(p.snap.Resources, d.resource)
	}
	p.bodies, p.bytes = p.bodies[:0], 0
	return nil
}

func decodeResource(body []byte) (*resource.Resource, error) {
	var message storev1.Resource
	if err := unmarshal(body, &message); err != nil {
		return nil, err
	}
	r, err := resourceFromProto(&message)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return r, nil
}

func (p *snapshotParser) request(body []byte) error {
	var message storev1.SnapshotRequest
	if err := unmarshal(body, &message); err != nil {
		return err
	}
	r := &request{id: message.GetRequestId(), revision: resource.Revision(message.GetRevision())}
	if message.GetTime() != nil {
		at, err := timeFromProto(message.GetTime())
		if err != nil {
			return fmt.Errorf("%w: request %s: %w", ErrCorrupt, r.id, err)
		}
		r.time = at
	}
	for _, res := range message.GetResults() {
		key, err := keyFromProto(res.GetKey())
		if err != nil {
			return fmt.Errorf("%w: request %s: %w", ErrCorrupt, r.id, err)
		}
		outcome := res.GetOutcome()
		if _, known := storev1.SnapshotOutcome_name[int32(outcome)]; !known || outcome == storev1.SnapshotOutcome_SNAPSHOT_OUTCOME_UNSPECIFIED {
			return fmt.Errorf("%w: outcome %d", ErrUnknownFormat, outcome)
		}
		r.results = append(r.results, OpResult{Key: key, Outcome: Outcome(outcome - 1), Version: res.GetVersion()})
	}
	p.snap.requests = append(p.snap.requests, r)
	return nil
}

func (p *snapshotParser) batch(body []byte) error {
	var message storev1.SnapshotBatch
	if err := unmarshal(body, &message); err != nil {
		return err
	}
	at, err := timeFromProto(message.GetTime())
	if err != nil {
		return fmt.Errorf("%w: batch %d: %w", ErrCorrupt, message.GetRevision(), err)
	}
	before, err := timeFromProto(message.GetPreviousTime())
	if err != nil {
		return fmt.Errorf("%w: batch %d: %w", ErrCorrupt, message.GetRevision(), err)
	}
	u := undo{
		revision: resource.Revision(message.GetRevision()), time: at,
		before: View{
			changed: resource.Revision(message.GetPrevious()),
			access:  resource.Revision(message.GetPreviousAccessRevision()),
			time:    before,
			epoch:   epochFromProto(message.GetPreviousEpoch()),
		},
		epoch: message.GetPreviousEpoch() != nil,
	}
	for _, c := range message.GetChanges() {
		change, err := undoFromProto(c)
		if err != nil {
			return fmt.Errorf("%w: batch %d: %w", ErrCorrupt, u.revision, err)
		}
		u.changes = append(u.changes, change)
	}
	p.snap.past = append(p.snap.past, u)
	return nil
}

func undoFromProto(in *storev1.SnapshotUndo) (undoChange, error) {
	switch before := in.GetBefore().(type) {
	case *storev1.SnapshotUndo_Resource:
		r, err := resourceFromProto(before.Resource)
		if err != nil {
			return undoChange{}, err
		}
		return undoChange{key: r.Key(), before: r}, nil
	case *storev1.SnapshotUndo_Created:
		key, err := keyFromProto(before.Created)
		return undoChange{key: key}, err
	}
	return undoChange{}, fmt.Errorf("neither a resource nor a key")
}

func (p *snapshotParser) trailer(body []byte) error {
	var t storev1.SnapshotTrailer
	if err := unmarshal(body, &t); err != nil {
		return err
	}
	digest, err := DigestFromBytes(t.GetDigest())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	counts := [4]uint64{uint64(len(p.snap.Resources)), uint64(len(p.snap.requests)), uint64(len(p.snap.past)), uint64(len(p.snap.kept))}
	if counts != [4]uint64{t.GetResources(), t.GetRequests(), t.GetBatches(), t.GetPast()} {
		return fmt.Errorf("%w: the trailer counts other records than there are", ErrCorrupt)
	}
	if digest != p.digest {
		return fmt.Errorf("%w: digest %s, expected %s", ErrCorrupt, p.digest, digest)
	}
	if t.GetRequestsForgotten() != nil {
		if p.snap.forgotten, err = timeFromProto(t.GetRequestsForgotten()); err != nil {
			return fmt.Errorf("%w: the trailer: %w", ErrCorrupt, err)
		}
	}
	p.done = true
	return nil
}
