package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
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

// Log is the raft log and raft's stable values (term and vote), each with a
// checksum that is checked on every read. Storage does not check what it returns
// (bbolt only its root pages), so without it a flipped bit would be
// replicated.
//
// The log has no gaps (see IsMonotonic): a missing entry is always damage, and an
// entry that would leave a gap is refused.
//
// A write that fails is never tried again, except where there was no space and
// nothing has changed (isNoSpace). Any other failure ends the process: see failed.
type Log struct {
	file LogFile
	path string
	// floor returns the oldest index that must stay, because a snapshot would be
	// completed with the entries from there on; 0 means none must.
	floor func() (uint64, error)
	// chunk is deleteChunk, except in tests.
	chunk uint64
	// host is the node once raft is about to run, nil before.
	host Host
	// running says that raft runs, so that no failure is returned any more.
	running atomic.Bool
	stall   stallWatch

	// mu guards what the log is known to hold.
	mu sync.Mutex
	// first and last are its bounds, zeros when it is empty.
	first, last uint64
	// values are what is stored beside the log, as far as it was read or written.
	values map[string][]byte
	// shortened says that the end of the log was truncated, and that raft assumes
	// otherwise until something is appended.
	shortened bool
	// recent is the end of the log, sizes are those of all of it.
	recent recentEntries
	sizes  entrySizes
	// ahead is what of it is not on disk yet.
	ahead ahead
	// failure is the first one of the storage: see failed.
	failure error
}

// Host is what a log needs to know of its node.
type Host interface {
	// LastSnapshot is the last entry of the snapshot that raft took or restored
	// last, zeros when it did neither.
	LastSnapshot() (index, term uint64)
	// OnlyVoter says that no other server votes.
	OnlyVoter() bool
	// Leads says that this server leads.
	Leads() bool
	// DiskFull is called when there was no space.
	DiskFull()
	// StorageFailed is told of every failure. It ends the process.
	StorageFailed(err error)
	// ShutDownRaft has raft's goroutines end. It does not wait for them.
	ShutDownRaft()
	// Closing ends when the node is being closed.
	Closing() <-chan struct{}
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

// OpenLog opens the log, or makes an empty one. An existing one is first
// read from end to end; seen, unless nil, is given each entry, which it may not keep.
func OpenLog(dir *DataDir, seen func(*raft.Log)) (*Log, error) {
	var sizes entrySizes
	verify := func(file LogFile) (err error) {
		sizes, err = verifyLog(file, seen)
		return err
	}
	file, err := dir.OpenLog(verify, dir)
	if errors.Is(err, ErrCorrupt) && !dir.id.Bootstrapped {
		// The first start was cut short while it made the file: nothing was ever
		// acknowledged out of it.
		if err := dir.RemoveLog(); err != nil {
			return nil, err
		}
		file, err = dir.OpenLog(verify, dir)
	}
	if err != nil {
		return nil, err
	}
	s := newLog(file)
	if s.first, s.last, err = s.Bounds(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.sizes = sizes
	return s, nil
}

func newLog(file LogFile) *Log {
	return &Log{
		file: file, path: file.Name(), chunk: deleteChunk,
		floor:  func() (uint64, error) { return 0, nil },
		values: map[string][]byte{},
	}
}

// verifyLog reads every entry and every stable value. It returns the sizes of the
// entries.
func verifyLog(file LogFile, seen func(*raft.Log)) (sizes entrySizes, err error) {
	s := newLog(file)
	for _, key := range [][]byte{keyCurrentTerm, keyLastVoteTerm, keyLastVoteCandidate} {
		if _, err := s.Get(key); err != nil && !isNotFound(err) {
			return sizes, err
		}
	}
	if s.first, s.last, err = s.Bounds(); err != nil || s.last == 0 {
		return sizes, err
	}
	for index := s.first; index <= s.last; index++ {
		var log raft.Log
		if err := s.GetLog(index, &log); err != nil {
			return sizes, err
		}
		sizes.set([]*raft.Log{&log})
		if seen != nil {
			seen(&log)
		}
	}
	return sizes, nil
}

func corruptLog(path string, err error) error {
	return Corruptf("raft log %s: %w", path, err)
}

// Bounds returns the first and the last index of the log, zeros when it is empty.
func (s *Log) Bounds() (first, last uint64, err error) {
	if first, err = s.file.FirstIndex(); err != nil {
		return 0, 0, err
	}
	last, err = s.file.LastIndex()
	return first, last, err
}

// IsMonotonic says that the log must not have gaps: raft then empties it after
// it restored a snapshot instead of leaving a hole.
func (s *Log) IsMonotonic() bool { return true }

// FirstIndex returns the first index of the log, 0 when it is empty.
func (s *Log) FirstIndex() (uint64, error) { return s.file.FirstIndex() }

// LastIndex returns the last index of the log, 0 when it is empty.
func (s *Log) LastIndex() (uint64, error) { return s.file.LastIndex() }

// GetLog reads an entry. It fails with raft.ErrLogNotFound, or with ErrCorrupt
// when what is stored is not what was written.
//
// While raft runs, a large entry that is not in memory comes without its data:
// raft asks for many entries at a time, to send or to apply them, which together
// may be larger than the memory. To send or to apply one, call Complete.
func (s *Log) GetLog(index uint64, log *raft.Log) error {
	if s.remembered(index, log) || s.running.Load() && s.outline(index, log) {
		return nil
	}
	return s.getWhole(index, log)
}

// getWhole is GetLog of an entry with its data, from the disk. Without another file that
// may be opened it waits for one while raft runs.
func (s *Log) getWhole(index uint64, log *raft.Log) error {
	err := s.readBound(index, log)
	for isShortage(err) {
		if !s.running.Load() {
			return err
		}
		select {
		case <-time.After(shortageRetry):
			err = s.readBound(index, log)
		case <-s.host.Closing():
			return s.neverReturn(err)
		}
	}
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	return s.neverReturn(s.failed(err))
}

// readBound is readLog, and knows an entry that is missing from one that the log does
// not hold.
func (s *Log) readBound(index uint64, log *raft.Log) error {
	read := func() error { return s.guard(func() error { return s.readLog(index, log) }) }
	err := read()
	if !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	// The end of the log may have been cut off before the read, and written again since.
	// What is within the bounds is in the file: they are narrowed before entries are
	// removed and widened after entries were written, and stay as they are meanwhile.
	s.mu.Lock()
	defer s.mu.Unlock()
	if index < s.first || index > s.last {
		return err
	}
	if err = read(); errors.Is(err, raft.ErrLogNotFound) {
		err = corruptLog(s.path, fmt.Errorf("entry %d is missing between %d and %d", index, s.first, s.last))
	}
	return err
}

func (s *Log) readLog(index uint64, log *raft.Log) error {
	if err := s.file.GetLog(index, log); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		if isShortage(err) {
			return fmt.Errorf("raft log %s: entry %d: %w", s.path, index, err)
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

// guard turns a panic into damage: bbolt trusts its pages, and a page that
// cannot be read ends in a fault.
func (s *Log) guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = corruptLog(s.path, fmt.Errorf("%v", p))
		}
	}()
	return do()
}

// StoreLog writes one entry.
func (s *Log) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs writes entries and returns once they are on disk, on a leader with
// followers before that (see ahead). The entries are not modified: raft then sends them
// to followers.
//
// Without space it fails with ErrDiskFull and has no effect; a leader then steps
// down, for a server that has space. It waits for space where that is
// better: no server could take over, or raft would continue from an end of the
// log that was cut off.
func (s *Log) StoreLogs(logs []*raft.Log) error {
	s.Settle()
	last, wait, err := s.end()
	if err != nil {
		return s.failed(err)
	}
	for i, log := range logs {
		if last != 0 && log.Index > last+1 || i > 0 && log.Index != logs[i-1].Index+1 {
			return s.failed(corruptLog(s.path, fmt.Errorf("entry %d cannot follow entry %d", log.Index, last)))
		}
		last = max(last, log.Index)
	}
	out := seal(logs)
	s.mu.Lock()
	bytes := s.sizes.besideEnd()
	s.mu.Unlock()
	for _, log := range logs {
		bytes += uint64(entryBytes(log)) //nolint:gosec // a size
	}
	var sync func() error
	behind := s.mayRunAhead(logs)
	err = s.write(wait || s.host != nil && s.host.OnlyVoter(), writes, bytes, func() (err error) {
		if sync, err = s.file.WriteLogs(out); err != nil || sync == nil || behind {
			return err
		}
		return sync()
	})
	if errors.Is(err, ErrDiskFull) && s.host != nil && s.host.Leads() && changesMembers(logs) {
		// Raft has taken the new members into account and does not go back, though
		// they are in no log.
		return s.failed(err)
	}
	if err != nil || len(logs) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == 0 {
		s.first = logs[0].Index
	}
	s.last, s.shortened = last, false
	s.recent.add(logs)
	s.sizes.set(logs)
	if behind && sync != nil {
		s.syncBehindLocked(logs[0].Index, bytes, sync)
	}
	return nil
}

// remembered reads an entry that was written so lately that it is still in
// memory, as almost every entry is that raft asks for.
func (s *Log) remembered(index uint64, log *raft.Log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recent.get(index, log)
}

// end returns the last index, and whether raft assumes another one.
// It fails when the file disagrees: it may have gone back by a transaction, and
// continuing from there would hide that.
func (s *Log) end() (last uint64, shortened bool, err error) {
	var stored uint64
	err = s.guard(func() (err error) {
		stored, err = s.file.LastIndex()
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && stored != s.last {
		err = corruptLog(s.path, fmt.Errorf("it ends at entry %d, not at %d", stored, s.last))
	}
	return s.last, s.shortened, err
}

// seal returns copies of the entries with their checksums.
func seal(logs []*raft.Log) []*raft.Log {
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
	return out
}

func changesMembers(logs []*raft.Log) bool {
	return slices.ContainsFunc(logs, func(log *raft.Log) bool { return log.Type == raft.LogConfiguration })
}

// shortageRetry is how often a read is tried for which there was no file to be opened.
const shortageRetry = time.Second

// spaceRetry is how often a write that waits for space is tried.
const spaceRetry = time.Second

// write does one write of so many bytes, which has an effect or none. Without space it
// waits until there is some, or fails with ErrDiskFull; any other failure is the end.
func (s *Log) write(wait bool, op operation, bytes uint64, do func() error) error {
	for {
		if err := s.Failure(); err != nil {
			return s.failed(err)
		}
		end := s.stall.begin(op, bytes)
		err := s.guard(do)
		end()
		if err == nil {
			return nil
		}
		if !isNoSpace(err) {
			return s.failed(fmt.Errorf("write %s: %w", s.path, err))
		}
		err = fmt.Errorf("%w: write %s: %w", ErrDiskFull, s.path, err)
		if s.host == nil {
			return err
		}
		s.host.DiskFull()
		if !wait {
			return err
		}
		select {
		case <-time.After(spaceRetry):
		case <-s.host.Closing():
			return err
		}
	}
}

// DeleteRange removes entries from lo to hi, both included, in chunks. A crash
// between chunks must not leave a gap: the end of the log is removed from the
// end, its beginning from the beginning. The beginning is kept from the floor
// on.
func (s *Log) DeleteRange(lo, hi uint64) error {
	_, last, err := s.Bounds()
	if err != nil {
		return err
	}
	lo = max(lo, 1)
	if hi >= last {
		kept, err := s.continued(lo, last)
		if err != nil {
			return err
		}
		if kept == 0 {
			return s.cutEnd(lo, last)
		}
		hi = kept
	}
	floor, err := s.floor()
	if err != nil {
		return err
	}
	if floor > 0 {
		hi = min(hi, floor-1)
	}
	return s.cutBeginning(lo, hi)
}

// cutEnd removes everything from lo on. It waits for space: raft would not know
// how much of it had been removed.
func (s *Log) cutEnd(lo, last uint64) error {
	s.Settle()
	s.mu.Lock()
	s.shortened = true
	s.recent.clear()
	s.mu.Unlock()
	for hi := last; lo <= hi; {
		from := max(lo, hi-min(hi, s.chunk)+1)
		s.mu.Lock()
		if s.last = from - 1; s.last < s.first {
			s.first, s.last = 0, 0
		}
		s.sizes.keep(s.first, s.last)
		bytes := s.sizes.besideEnd()
		s.mu.Unlock()
		if err := s.write(s.host != nil, removes, bytes, func() error { return s.file.DeleteRange(from, hi) }); err != nil {
			return err
		}
		hi = from - 1
	}
	return nil
}

// cutBeginning removes what snapshots have made superfluous. Without space it may
// have removed a part of it, which is as well.
func (s *Log) cutBeginning(lo, hi uint64) error {
	for ; lo <= hi; lo += s.chunk {
		to := min(hi, lo+s.chunk-1)
		s.mu.Lock()
		s.first = max(s.first, to+1)
		s.recent.cut(s.first)
		s.sizes.keep(s.first, s.last)
		bytes := s.sizes.besideBeginning()
		s.mu.Unlock()
		if err := s.write(false, removes, bytes, func() error { return s.file.DeleteRange(lo, to) }); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the file. After a failure nothing more is written to it.
func (s *Log) Close() error {
	s.Settle()
	if s.Failure() == nil {
		// Nothing is lost where it fails: the next start finds the entries in the journal.
		_ = s.guard(s.file.Flush)
	}
	return s.file.Close()
}

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
