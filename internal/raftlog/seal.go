package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"
)

// A snapshot ends with a seal: a mark, the length of what comes before it, its
// CRC32C, and a CRC32C of all that and of what is written about the snapshot
// elsewhere (its index, its term and the members). Numbers are big-endian. Raft
// does not see the seal, and it is not sent: who receives a snapshot seals it
// anew.
const (
	sealMark = "MSN1"
	sealLen  = 20
	// snapshotVersion is the only version that raft still writes.
	snapshotVersion = 1
)

// errUnsealed means that a snapshot is not as it was written.
var errUnsealed = errors.New("checksum mismatch")

func sealOf(length uint64, content uint32, meta raft.SnapshotMeta) []byte {
	seal := binary.BigEndian.AppendUint64([]byte(sealMark), length)
	seal = binary.BigEndian.AppendUint32(seal, content)
	about := binary.BigEndian.AppendUint64(nil, meta.Index)
	about = binary.BigEndian.AppendUint64(about, meta.Term)
	about = binary.BigEndian.AppendUint64(about, meta.ConfigurationIndex)
	for _, member := range meta.Configuration.Servers {
		about = binary.BigEndian.AppendUint32(about, uint32(member.Suffrage))
		for _, text := range []string{string(member.ID), string(member.Address)} {
			about = binary.BigEndian.AppendUint32(about, uint32(len(text)))
			about = append(about, text...)
		}
	}
	sum := crc32.Update(crc32.Update(0, castagnoli, seal), castagnoli, about)
	return binary.BigEndian.AppendUint32(seal, sum)
}

// unsealedMeta is what raft is told about a sealed snapshot.
func unsealedMeta(meta *raft.SnapshotMeta) *raft.SnapshotMeta {
	unsealed := *meta
	unsealed.Size = max(0, unsealed.Size-sealLen)
	return &unsealed
}

// sealedSink writes a snapshot, and the seal at its end.
type sealedSink struct {
	raft.SnapshotSink
	meta   raft.SnapshotMeta
	length uint64
	sum    uint32
	done   bool
	// finish calls complete, or returns why the snapshot must not count.
	finish func(index uint64, complete func() error) error
}

func newSealedSink(sink raft.SnapshotSink, meta raft.SnapshotMeta, finish func(uint64, func() error) error) *sealedSink {
	return &sealedSink{SnapshotSink: sink, meta: meta, finish: finish}
}

// Write writes the next part.
func (s *sealedSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	s.length += uint64(n)
	s.sum = crc32.Update(s.sum, castagnoli, b[:n])
	return n, err
}

// Close seals the snapshot; from then on it counts.
func (s *sealedSink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	if _, err := s.SnapshotSink.Write(sealOf(s.length, s.sum, s.meta)); err != nil {
		return errors.Join(fmt.Errorf("seal snapshot %s: %w", s.ID(), err), s.SnapshotSink.Cancel())
	}
	err := s.finish(s.meta.Index, s.SnapshotSink.Close)
	if errors.Is(err, errOutdated) {
		return errors.Join(err, s.SnapshotSink.Cancel())
	}
	return err
}

// Cancel forgets the snapshot.
func (s *sealedSink) Cancel() error {
	if s.done {
		return nil
	}
	s.done = true
	return s.SnapshotSink.Cancel()
}

// sealedSource reads a snapshot without its seal. Its last byte is not returned
// before the seal has been found to fit, so that no reader that counts what it
// receives takes a damaged snapshot for a whole one.
type sealedSource struct {
	io.ReadCloser
	meta         raft.SnapshotMeta
	length, left uint64
	sum          uint32
	// damage is told of what is wrong, and returns the error of Read.
	damage func(error) error
	// ended is what Read returns once the seal was checked.
	ended error
}

func newSealedSource(source io.ReadCloser, meta *raft.SnapshotMeta, damage func(error) error) (*sealedSource, error) {
	if meta.Version != snapshotVersion {
		return nil, fmt.Errorf("its version is %d, not %d", meta.Version, snapshotVersion)
	}
	if meta.Size < sealLen {
		return nil, fmt.Errorf("its %d bytes hold no seal", meta.Size)
	}
	length := uint64(meta.Size - sealLen)
	return &sealedSource{ReadCloser: source, meta: *meta, length: length, left: length, damage: damage}, nil
}

// Read reads the next part.
func (s *sealedSource) Read(b []byte) (int, error) {
	if s.ended != nil || len(b) == 0 {
		return 0, s.ended
	}
	n, err := s.ReadCloser.Read(b[:min(uint64(len(b)), s.left)])
	s.left -= uint64(n)
	s.sum = crc32.Update(s.sum, castagnoli, b[:n])
	switch {
	case s.left == 0:
		if err = s.check(); err == nil {
			s.ended = io.EOF
			return n, s.ended
		}
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("it ends %d bytes early", s.left)
	}
	if err != nil {
		s.ended = s.damage(err)
		return 0, s.ended
	}
	return n, nil
}

// check compares the seal.
func (s *sealedSource) check() error {
	seal := make([]byte, sealLen)
	if _, err := io.ReadFull(s.ReadCloser, seal); err != nil {
		return fmt.Errorf("read its seal: %v", err) //nolint:errorlint // an end that comes too soon is not the end
	}
	if string(seal) != string(sealOf(s.length, s.sum, s.meta)) {
		return errUnsealed
	}
	return nil
}
