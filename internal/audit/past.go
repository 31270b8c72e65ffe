package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"hash/maphash"
	"slices"
	"strconv"
)

// disorder is by how much the revision of a record may at most be below that of
// one before it: no more batches are under way at a time.
const disorder = 1 << 14

// past is what was recorded before the log was opened.
type past struct {
	// writes are those of the file that was being written, sorted; first is its first
	// record.
	writes []recordedWrite
	first  uint64
	// older are the full files, oldest first.
	older []string
}

// recordedWrite identifies a write: by its revision and, since batches of different
// resources can share one (§7.2), by a hash of the first resource that it wrote.
type recordedWrite struct{ revision, first uint64 }

func (w recordedWrite) compare(other recordedWrite) int {
	return cmp.Or(cmp.Compare(w.revision, other.revision), cmp.Compare(w.first, other.first))
}

// targetSeed is of the hashes of this process, in which they are compared.
var targetSeed = maphash.MakeSeed()

// writeBy is the write that a record is of, as writeOf finds it in the record's line.
func writeBy(r Record) recordedWrite {
	w := recordedWrite{revision: r.Revision}
	if len(r.Targets) > 0 {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(boundedTarget(r.Targets[0])) // texts and a number
		w.first = hashOfTarget(b.Bytes())
	}
	return w
}

// hashOfTarget hashes the target that a text begins with, up to the first brace.
func hashOfTarget(text []byte) uint64 {
	before, _, _ := bytes.Cut(text, []byte("}"))
	return maphash.Bytes(targetSeed, before)
}

// had reports whether a write stands in the file that was being written when the log was
// opened. It never waits for a disk.
func (l *Log) had(w recordedWrite) bool {
	_, found := slices.BinarySearchFunc(l.past.writes, w, recordedWrite.compare)
	return found
}

// later writes a record at the next flush.
func (l *Log) later(r Record) {
	l.late.Lock()
	defer l.late.Unlock()
	l.late.records = append(l.late.records, r)
}

// laterUnlessHad does so, unless a record of its write was there when the log was opened.
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
		if !had(writeBy(r)) {
			out = append(out, r)
		}
	}
	return out
}

// hadSince returns what tells whether a write was recorded when the log was opened, for
// revisions from rev on.
func (l *Log) hadSince(rev uint64) func(recordedWrite) bool {
	known, first, older := l.past.writes, l.past.first, l.past.older
	for len(older) > 0 && (len(known) == 0 || known[0].revision+disorder > rev) {
		end, err := lastRecord(older[len(older)-1])
		if err != nil {
			l.cfg.Logger.Warn("what the audit log recorded earlier cannot be determined; some writes may be recorded twice", "error", err)
			break
		}
		known, first, older = append(end.writes, known...), end.first, older[:len(older)-1]
		slices.SortFunc(known, recordedWrite.compare)
	}
	return func(w recordedWrite) bool {
		if len(known) > 0 && w.revision < known[0].revision && len(older) == 0 && first > 1 {
			return true // in a file that has been removed
		}
		_, found := slices.BinarySearchFunc(known, w, recordedWrite.compare)
		return found
	}
}

// writeOf returns the write that a line records, the zero value for none: without decoding
// it, since there are many. No text within a record can look like a field, for its quotes
// would be escaped. A snapshot is of a revision that another wrote.
func writeOf(line []byte) recordedWrite {
	const revision, targets, snapshot = `,"revision":`, `,"targets":[`, `"kind":"snapshot"`
	i := bytes.LastIndex(line, []byte(revision))
	if i < 0 || bytes.Contains(line, []byte(snapshot)) {
		return recordedWrite{}
	}
	digits := line[i+len(revision):]
	if j := bytes.IndexAny(digits, ",}"); j >= 0 {
		digits = digits[:j]
	}
	rev, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return recordedWrite{}
	}
	w := recordedWrite{revision: rev}
	if _, target, ok := bytes.Cut(line, []byte(targets)); ok {
		w.first = hashOfTarget(target)
	}
	return w
}
