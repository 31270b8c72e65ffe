package raftlog

import "github.com/hashicorp/raft"

const (
	// entryOverhead estimates what an entry takes beside its data, in bytes.
	entryOverhead = 64
	// largeEntry is from how many bytes on an entry is read when it is needed and
	// not before (see GetLog).
	largeEntry = 64 << 10
	// pageEntries is how many entries, however large, bbolt writes again together
	// with one that is appended or removed beside them: it divides a page of five
	// entries or more, and leaves two at least in each part.
	pageEntries = 4
)

// entrySizes are the sizes of the log's entries. They bound what raft counts in
// entries, of which one may be a thousand times larger than another.
type entrySizes struct {
	// first is the index of the first of sizes, in bytes.
	first uint64
	sizes []uint32
	// terms are those of the large entries.
	terms map[uint64]uint64
}

// set notes entries that were written.
func (s *entrySizes) set(logs []*raft.Log) {
	for _, log := range logs {
		if len(s.sizes) == 0 {
			s.first = log.Index
		}
		at := log.Index - s.first
		if at > uint64(len(s.sizes)) {
			continue // the log has no gaps: see Log.StoreLogs
		}
		s.sizes = append(s.sizes[:at:cap(s.sizes)], uint32(entryOverhead+entryBytes(log))) //nolint:gosec // a message is smaller
		delete(s.terms, log.Index)
		if log.Type == raft.LogCommand && len(log.Data) >= largeEntry {
			if s.terms == nil {
				s.terms = map[uint64]uint64{}
			}
			s.terms[log.Index] = log.Term
		}
	}
}

// keep forgets all entries but those from first to last.
func (s *entrySizes) keep(first, last uint64) {
	if first > last {
		*s = entrySizes{}
		return
	}
	if len(s.sizes) == 0 {
		return
	}
	end := s.first + uint64(len(s.sizes))
	from, to := min(max(first, s.first), end), min(last+1, end)
	s.sizes, s.first = s.sizes[from-s.first:max(from, to)-s.first], from
	for index := range s.terms {
		if index < first || index > last {
			delete(s.terms, index)
		}
	}
}

// after returns the size of the entries that follow on an index.
func (s *entrySizes) after(index uint64) (bytes uint64) {
	from := uint64(0)
	if index+1 > s.first {
		from = min(index+1-s.first, uint64(len(s.sizes)))
	}
	for _, size := range s.sizes[from:] {
		bytes += uint64(size)
	}
	return bytes
}

// within returns how many entries at the end of the log have no more than so many
// bytes together.
func (s *entrySizes) within(bytes uint64) (count uint64) {
	for i := len(s.sizes) - 1; i >= 0 && uint64(s.sizes[i]) <= bytes; i-- {
		bytes -= uint64(s.sizes[i])
		count++
	}
	return count
}

// besideEnd returns the size of the large entries that bbolt writes again when one is
// appended, or the end of the log is removed, in bytes. Those in files of their own are
// not among them.
func (s *entrySizes) besideEnd() uint64 {
	return largeBytes(s.sizes[max(0, len(s.sizes)-pageEntries):])
}

// besideBeginning returns the size of the large entries that bbolt writes again when
// the entries before them are removed, in bytes.
func (s *entrySizes) besideBeginning() uint64 {
	return largeBytes(s.sizes[:min(pageEntries, len(s.sizes))])
}

func largeBytes(sizes []uint32) (bytes uint64) {
	for _, size := range sizes {
		if size >= largeEntry && size < ownFile {
			bytes += uint64(size)
		}
	}
	return bytes
}

// Since returns how many entries follow on an index in the log, and their size in
// bytes.
func (s *Log) Since(index uint64) (entries, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last > index {
		entries = s.last - index
	}
	return entries, s.sizes.after(index)
}

// Within returns how many entries at the end of the log have no more than so many
// bytes together.
func (s *Log) Within(bytes uint64) (entries uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizes.within(bytes)
}

// outline returns a large entry without its data.
func (s *Log) outline(index uint64, log *raft.Log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	term, ok := s.sizes.terms[index]
	if ok {
		*log = raft.Log{Index: index, Term: term, Type: raft.LogCommand}
	}
	return ok
}

// Complete returns an entry with the data that GetLog has left out. The entry
// itself is not changed. It fails with raft.ErrLogNotFound when the entry has been
// removed since; damage ends the process, as in GetLog.
func (s *Log) Complete(log *raft.Log) (*raft.Log, error) {
	if log.Type != raft.LogCommand || len(log.Data) > 0 {
		return log, nil // a command is never empty
	}
	whole := new(raft.Log)
	if err := s.getWhole(log.Index, whole); err != nil {
		return nil, err
	}
	if whole.Term != log.Term {
		return nil, raft.ErrLogNotFound // it was written over
	}
	return whole, nil
}
