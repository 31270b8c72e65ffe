package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

// checksumVersion is the first byte of every checksum we store; the rest is a
// CRC32C, big-endian.
const (
	checksumVersion = 1
	checksumLen     = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// deleteChunk is how many entries one transaction removes: removing many holds
// the database's only write lock, and so every append, for as long as it takes.
const deleteChunk = 2048

// logStore is the raft log and raft's stable values (term and vote), each with a
// checksum that is checked on every read. Storage does not check what it returns
// (bbolt only its root pages), so without it a flipped bit would be replicated as
// truth.
//
// The log has no gaps (see IsMonotonic): a missing entry is always damage.
type logStore struct {
	file LogFile
	path string
	// floor returns the oldest index that must stay, because a snapshot would be
	// completed with the entries from there on; 0 means none must.
	floor func() (uint64, error)
	// stallLimit and stalled are Config.StallLimit and Events.Stalled.
	stallLimit time.Duration
	stalled    func(file string, since time.Duration)
	// chunk is deleteChunk, except in tests.
	chunk uint64
}

var (
	_ raft.LogStore          = (*logStore)(nil)
	_ raft.StableStore       = (*logStore)(nil)
	_ raft.MonotonicLogStore = (*logStore)(nil)
)

// openLogStore opens the log, or makes an empty one. An existing one is first
// read from end to end.
func openLogStore(dir *dataDir) (*logStore, error) {
	file, err := dir.OpenLog(verifyLog)
	if errors.Is(err, ErrCorrupt) && !dir.id.Bootstrapped {
		// The first start was cut short while it made the file: nothing was ever
		// acknowledged out of it.
		if err := dir.RemoveLog(); err != nil {
			return nil, err
		}
		file, err = dir.OpenLog(verifyLog)
	}
	if err != nil {
		return nil, err
	}
	return newLogStore(file), nil
}

func newLogStore(file LogFile) *logStore {
	return &logStore{file: file, path: file.Name(), floor: func() (uint64, error) { return 0, nil }, chunk: deleteChunk}
}

// verifyLog reads every entry and every stable value.
func verifyLog(file LogFile) error {
	s := newLogStore(file)
	for _, key := range [][]byte{keyCurrentTerm, keyLastVoteTerm, keyLastVoteCandidate} {
		if _, err := s.Get(key); err != nil && !isNotFound(err) {
			return err
		}
	}
	first, last, err := s.bounds()
	if err != nil || last == 0 {
		return err
	}
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := s.GetLog(index, &entry); errors.Is(err, raft.ErrLogNotFound) {
			return corruptLog(s.path, fmt.Errorf("entry %d is missing between %d and %d", index, first, last))
		} else if err != nil {
			return err
		}
	}
	return nil
}

// The keys under which raft keeps its stable values.
var (
	keyCurrentTerm       = []byte("CurrentTerm")
	keyLastVoteTerm      = []byte("LastVoteTerm")
	keyLastVoteCandidate = []byte("LastVoteCand")
)

func corruptLog(path string, err error) error {
	return corruptf("raft log %s: %w; restore the data directory from a backup or, in a cluster, start this server with an empty one", path, err)
}

func (s *logStore) bounds() (first, last uint64, err error) {
	if first, err = s.file.FirstIndex(); err != nil {
		return 0, 0, err
	}
	last, err = s.file.LastIndex()
	return first, last, err
}

// IsMonotonic says that the log must not have gaps: raft then empties it after
// it restored a snapshot instead of leaving a hole.
func (s *logStore) IsMonotonic() bool { return true }

// FirstIndex returns the first index of the log, 0 when it is empty.
func (s *logStore) FirstIndex() (uint64, error) { return s.file.FirstIndex() }

// LastIndex returns the last index of the log, 0 when it is empty.
func (s *logStore) LastIndex() (uint64, error) { return s.file.LastIndex() }

// GetLog reads an entry. It fails with raft.ErrLogNotFound, or with ErrCorrupt
// when what is stored is not what was written.
func (s *logStore) GetLog(index uint64, log *raft.Log) error {
	if err := s.file.GetLog(index, log); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return corruptLog(s.path, fmt.Errorf("entry %d: %w", index, err))
	}
	envelope := log.Extensions
	if len(envelope) < checksumLen || envelope[0] != checksumVersion {
		return corruptLog(s.path, fmt.Errorf("entry %d carries no checksum", index))
	}
	log.Extensions = envelope[checksumLen:]
	if len(log.Extensions) == 0 {
		log.Extensions = nil
	}
	if log.Index != index || entryChecksum(log) != binary.BigEndian.Uint32(envelope[1:]) {
		return corruptLog(s.path, fmt.Errorf("checksum mismatch in entry %d", index))
	}
	return nil
}

// StoreLog writes one entry.
func (s *logStore) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs writes entries and returns once they are on disk. The entries are
// not modified: raft goes on to send them to followers.
func (s *logStore) StoreLogs(logs []*raft.Log) error {
	defer s.watch()()
	sealed := make([]raft.Log, len(logs))
	out := make([]*raft.Log, len(logs))
	for i, log := range logs {
		sealed[i] = *log
		envelope := make([]byte, checksumLen, checksumLen+len(log.Extensions))
		envelope[0] = checksumVersion
		binary.BigEndian.PutUint32(envelope[1:], entryChecksum(log))
		sealed[i].Extensions = append(envelope, log.Extensions...)
		out[i] = &sealed[i]
	}
	if err := s.file.StoreLogs(out); err != nil {
		return fmt.Errorf("consensus: write %s: %w", s.path, err)
	}
	return nil
}

// watch reports a write that takes longer than the limit. The function it
// returns ends the watch, and waits for a report that is being made.
func (s *logStore) watch() (done func()) {
	if s.stalled == nil {
		return func() {}
	}
	reported := make(chan struct{})
	timer := time.AfterFunc(s.stallLimit, func() {
		defer close(reported)
		s.stalled(s.path, s.stallLimit)
	})
	return func() {
		if !timer.Stop() {
			<-reported
		}
	}
}

// DeleteRange removes entries from lo to hi, both included, in chunks. A crash
// between chunks must not leave a gap: the end of the log is removed from the
// end, its beginning from the beginning. The beginning is kept from the floor
// on.
func (s *logStore) DeleteRange(lo, hi uint64) error {
	_, last, err := s.bounds()
	if err != nil {
		return err
	}
	lo = max(lo, 1)
	if hi >= last {
		hi = last
		for lo <= hi {
			from := max(lo, hi-min(hi, s.chunk)+1)
			if err := s.file.DeleteRange(from, hi); err != nil {
				return fmt.Errorf("consensus: cut %s: %w", s.path, err)
			}
			hi = from - 1
		}
		return nil
	}
	floor, err := s.floor()
	if err != nil {
		return err
	}
	if floor > 0 {
		hi = min(hi, floor-1)
	}
	for ; lo <= hi; lo += s.chunk {
		if err := s.file.DeleteRange(lo, min(hi, lo+s.chunk-1)); err != nil {
			return fmt.Errorf("consensus: cut %s: %w", s.path, err)
		}
	}
	return nil
}

// Set stores a value with its checksum.
func (s *logStore) Set(key, value []byte) error {
	defer s.watch()()
	sealed := append([]byte{checksumVersion}, binary.BigEndian.AppendUint32(nil, valueChecksum(key, value))...)
	return s.file.Set(key, append(sealed, value...))
}

// Get reads a value. It fails with the text "not found", which raft
// compares, or with ErrCorrupt.
func (s *logStore) Get(key []byte) ([]byte, error) {
	sealed, err := s.file.Get(key)
	if err != nil {
		return nil, err
	}
	if len(sealed) < checksumLen || sealed[0] != checksumVersion ||
		binary.BigEndian.Uint32(sealed[1:]) != valueChecksum(key, sealed[checksumLen:]) {
		return nil, corruptLog(s.path, fmt.Errorf("checksum mismatch in value %q", key))
	}
	return sealed[checksumLen:], nil
}

// SetUint64 is Set for a number.
func (s *logStore) SetUint64(key []byte, value uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 is Get for a number.
func (s *logStore) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, corruptLog(s.path, fmt.Errorf("value %q has %d bytes, not 8", key, len(value)))
	}
	return binary.BigEndian.Uint64(value), nil
}

// Close releases the file.
func (s *logStore) Close() error { return s.file.Close() }

// entryChecksum covers everything in an entry that raft acts on. The time of
// appending is left out: it informs operators only, and its encoding is the
// codec's business.
func entryChecksum(log *raft.Log) uint32 {
	var head [25]byte
	binary.BigEndian.PutUint64(head[:], log.Index)
	binary.BigEndian.PutUint64(head[8:], log.Term)
	head[16] = byte(log.Type)
	binary.BigEndian.PutUint64(head[17:], uint64(len(log.Data)))
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, log.Data)
	return crc32.Update(sum, castagnoli, log.Extensions)
}

func valueChecksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, value)
}
