package audit

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
)

// disorder is by how much the revision of a record may at most be below that of
// one before it: no more batches are under way at a time.
const disorder = 1 << 14

// past is what was recorded before the log was opened.
type past struct {
	// revisions are those of the file that was being written, sorted; first is its
	// first record.
	revisions []uint64
	first     uint64
	// older are the full files, oldest first.
	older []string
}

// hadRevision reports whether a revision stands in the file that was being written
// when the log was opened. It never waits for a disk.
func (l *Log) hadRevision(rev uint64) bool {
	_, found := slices.BinarySearch(l.past.revisions, rev)
	return found
}

// later writes a record at the next flush.
func (l *Log) later(r Record) {
	l.late.Lock()
	defer l.late.Unlock()
	l.late.records = append(l.late.records, r)
}

// laterUnlessHad does so, unless a record of its revision was there when the log
// was opened.
func (l *Log) laterUnlessHad(r Record) {
	l.late.Lock()
	defer l.late.Unlock()
	l.late.unlessHad = append(l.late.unlessHad, r)
}

// takeLate returns the records that are to be written now.
func (l *Log) takeLate() []Record {
	l.late.Lock()
	out, candidates := l.late.records, l.late.unlessHad
	l.late.records, l.late.unlessHad = nil, nil
	l.late.Unlock()
	if len(candidates) == 0 {
		return out
	}
	slices.SortFunc(candidates, func(a, b Record) int { return cmp.Compare(a.Revision, b.Revision) })
	had := l.hadSince(candidates[0].Revision)
	for _, r := range candidates {
		if !had(r.Revision) {
			out = append(out, r)
		}
	}
	return out
}

// hadSince returns what tells whether a revision was recorded when the log was
// opened, for revisions from rev on.
func (l *Log) hadSince(rev uint64) func(uint64) bool {
	known, first, older := l.past.revisions, l.past.first, l.past.older
	for len(older) > 0 && (len(known) == 0 || known[0]+disorder > rev) {
		end, err := lastRecord(older[len(older)-1])
		if err != nil {
			l.cfg.Logger.Warn("what the audit log recorded earlier cannot be determined; some writes may be recorded twice", "error", err)
			break
		}
		known, first, older = append(end.revisions, known...), end.first, older[:len(older)-1]
		slices.Sort(known)
	}
	return func(rev uint64) bool {
		if len(known) > 0 && rev < known[0] && len(older) == 0 && first > 1 {
			return true // in a file that has been removed
		}
		_, found := slices.BinarySearch(known, rev)
		return found
	}
}

// revisionOf returns the revision of the write that a line records, or 0: without
// decoding it, since there are many. No text within a record can look like a field,
// for its quotes would be escaped. A snapshot is of a revision that another wrote.
func revisionOf(line []byte) uint64 {
	const field, snapshot = `,"revision":`, `"kind":"snapshot"`
	i := bytes.LastIndex(line, []byte(field))
	if i < 0 || bytes.Contains(line, []byte(snapshot)) {
		return 0
	}
	digits := line[i+len(field):]
	if j := bytes.IndexAny(digits, ",}"); j >= 0 {
		digits = digits[:j]
	}
	rev, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0
	}
	return rev
}
