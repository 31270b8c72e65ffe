package simnet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// snapshot is one on a Disk. It is replaced, never changed.
type snapshot struct {
	id    string
	index uint64
	meta  []byte // JSON
	data  []byte
}

// diskSnapshots is a node's way to the snapshots of a Disk.
type diskSnapshots struct {
	disk    *Disk
	session *session
	retain  int
}

var _ raftlog.SnapshotFiles = (*diskSnapshots)(nil)

// Name says which disk they are on.
func (s *diskSnapshots) Name() string { return s.disk.name + "/snapshots" }

// Newest returns the index of the newest snapshot, 0 when there is none.
func (s *diskSnapshots) Newest() (newest uint64, err error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	for _, have := range s.disk.snapshots {
		newest = max(newest, have.index)
	}
	return newest, nil
}

// Create begins a snapshot, which exists once its sink is closed.
func (s *diskSnapshots) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if err := s.disk.before(WriteSnapshot, 1, s.session.crashed); err != nil {
		return nil, err
	}
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.disk.nextID++
	id := fmt.Sprintf("%d-%d-%d", term, index, s.disk.nextID)
	return &diskSink{snapshots: s, meta: raft.SnapshotMeta{
		Version: version, ID: id, Index: index, Term: term, Configuration: members, ConfigurationIndex: membersIndex,
	}}, nil
}

// List returns the readable snapshots, the newest first.
func (s *diskSnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	metas := []*raft.SnapshotMeta{}
	for _, have := range s.disk.snapshots {
		meta := new(raft.SnapshotMeta)
		if json.Unmarshal(have.meta, meta) == nil {
			metas = append(metas, meta)
		}
	}
	return metas, nil
}

// Open returns a snapshot as it is on the disk.
func (s *diskSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := s.disk.before(ReadSnapshot, 0, s.session.crashed); err != nil {
		return nil, nil, err
	}
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	for _, have := range s.disk.snapshots {
		meta := new(raft.SnapshotMeta)
		if json.Unmarshal(have.meta, meta) == nil && meta.ID == id {
			return meta, &diskSource{snapshots: s, content: bytes.NewReader(have.data)}, nil
		}
	}
	return nil, nil, fmt.Errorf("snapshot %s/%s does not exist", s.Name(), id)
}

// diskSource reads a snapshot.
type diskSource struct {
	snapshots *diskSnapshots
	content   *bytes.Reader
}

func (r *diskSource) Read(b []byte) (int, error) {
	if err := r.snapshots.disk.before(ReadSnapshot, 0, r.snapshots.session.crashed); err != nil {
		return 0, err
	}
	return r.content.Read(b)
}

func (r *diskSource) Close() error { return nil }

// diskSink is a snapshot that is being written.
type diskSink struct {
	snapshots *diskSnapshots
	meta      raft.SnapshotMeta
	data      []byte
	done      bool
}

func (k *diskSink) ID() string { return k.meta.ID }

func (k *diskSink) Write(b []byte) (int, error) {
	if err := k.snapshots.disk.before(WriteSnapshot, len(b), k.snapshots.session.crashed); err != nil {
		return 0, err
	}
	k.data = append(k.data, b...)
	return len(b), nil
}

// Cancel forgets the snapshot.
func (k *diskSink) Cancel() error {
	k.done = true
	return nil
}

// Close makes the snapshot exist, and removes the oldest beyond those kept.
func (k *diskSink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	d := k.snapshots.disk
	if err := d.before(WriteSnapshot, 1, k.snapshots.session.crashed); err != nil {
		return err
	}
	k.meta.Size = int64(len(k.data))
	meta, err := json.Marshal(k.meta)
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", k.meta.ID, err)
	}
	return d.change(k.snapshots.session, func() {
		// Of equals the later one is the newer.
		all := append([]*snapshot{{id: k.meta.ID, index: k.meta.Index, meta: meta, data: k.data}}, d.snapshots...)
		slices.SortStableFunc(all, func(a, b *snapshot) int { return newerFirst(a.meta, b.meta) })
		d.snapshots = all[:min(len(all), k.snapshots.retain)]
	})
}

// newerFirst orders snapshots by term and index, as raft's files are.
func newerFirst(a, b []byte) int {
	var x, y raft.SnapshotMeta
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return 0
	}
	switch {
	case x.Term != y.Term:
		return order(x.Term > y.Term)
	case x.Index != y.Index:
		return order(x.Index > y.Index)
	}
	return 0
}

func order(first bool) int {
	if first {
		return -1
	}
	return 1
}
