package audit

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"meridian/internal/rpcerr"
)

const (
	// MaxPage is how many records List returns at most, and maxPageBytes how many bytes
	// after which it returns no further record.
	MaxPage      = 1000
	maxPageBytes = 256 << 10
	// checkEvery is how many lines are read between looks whether the caller is gone.
	checkEvery = 4096
)

// Place is the place of a record in the order of the records of several servers: by
// time, then by the others.
type Place struct {
	Time time.Time
	// Source stands for the server.
	Source string
	Chain  string
	Seq    uint64
}

// Compare orders places.
func (p Place) Compare(q Place) int {
	return cmp.Or(p.Time.Compare(q.Time), cmp.Compare(p.Source, q.Source), cmp.Compare(p.Chain, q.Chain), cmp.Compare(p.Seq, q.Seq))
}

// Query selects records: what is empty selects all.
type Query struct {
	// User is the name of the caller.
	User string
	// Since is the time of the oldest record.
	Since time.Time
	// Kind and Name are of one thing that a record is about.
	Kind, Name string
	Verdict    Decision
	// After is the place after which records are wanted, and Source what stands for
	// this log in it.
	After  Place
	Source string
	// Limit is how many records are wanted; MaxPage at most.
	Limit int
}

func (q *Query) selects(r *Record) bool {
	switch {
	case q.User != "" && r.Who.Name != q.User, q.Verdict != "" && r.Decision != q.Verdict:
		return false
	case q.Kind == "" && q.Name == "":
		return true
	}
	return slices.ContainsFunc(r.Targets, func(t Target) bool {
		return (q.Kind == "" || t.Kind == q.Kind) && (q.Name == "" || t.Name == q.Name)
	})
}

// List returns the oldest records that are wanted, as lines without their newlines,
// and whether there are more. Lines that are no records are left out: Verify is for
// these. One caller at a time is served: the error is an *rpcerr.Error of code
// Unavailable for the others, or says what cannot be read.
func (l *Log) List(ctx context.Context, q Query) (lines [][]byte, more bool, err error) {
	select {
	case l.listing <- struct{}{}:
		defer func() { <-l.listing }()
	case <-ctx.Done():
		return nil, false, rpcerr.New(rpcerr.Unavailable, "AUDIT_BUSY", "the audit log is being listed by others: %w", context.Cause(ctx))
	}
	if q.Limit <= 0 || q.Limit > MaxPage {
		q.Limit = MaxPage
	}
	found := &oldest{limit: q.Limit}
	for _, name := range chainNames {
		files, err := rotated(l.cfg.Dir, baseOf(name))
		if err != nil {
			return nil, false, err
		}
		for _, file := range append(files, l.chainNamed(name).current()) {
			err := found.read(ctx, file, &q)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
				return nil, false, err
			}
		}
	}
	lines, more = found.page()
	return lines, more, nil
}

func (l *Log) chainNamed(name string) *chain { return l.chains[slices.Index(chainNames, name)] }

// oldest keeps the oldest of the records that it is given, as a heap with the newest of
// them on top.
type oldest struct {
	limit int
	kept  []listed
	more  bool
}

type listed struct {
	place Place
	line  []byte
}

// Len implements heap.Interface.
func (o *oldest) Len() int { return len(o.kept) }

// Less implements heap.Interface.
func (o *oldest) Less(i, j int) bool { return o.kept[i].place.Compare(o.kept[j].place) > 0 }

// Swap implements heap.Interface.
func (o *oldest) Swap(i, j int) { o.kept[i], o.kept[j] = o.kept[j], o.kept[i] }

// Push implements heap.Interface.
func (o *oldest) Push(x any) { o.kept = append(o.kept, x.(listed)) }

// Pop implements heap.Interface.
func (o *oldest) Pop() any {
	last := o.kept[len(o.kept)-1]
	o.kept = o.kept[:len(o.kept)-1]
	return last
}

// read goes through a file. Lines out of the time that is wanted are not decoded.
func (o *oldest) read(ctx context.Context, path string, q *Query) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := newLines(f)
	for n := 0; ; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, whole, err := lines.next()
		switch {
		case errors.Is(err, io.EOF), err == nil && !whole:
			return nil
		case err != nil:
			return fmt.Errorf("read the audit log: %w", err)
		}
		at, ok := timeOf(line)
		if !ok || at.Before(q.Since) || at.Before(q.After.Time) {
			continue
		}
		if len(o.kept) == o.limit && at.After(o.kept[0].place.Time) && o.more {
			continue
		}
		r, _, err := decodeRecord(line)
		if err != nil || !q.selects(&r) {
			continue
		}
		place := Place{r.Time, q.Source, r.Chain, r.Seq}
		if q.After != (Place{}) && place.Compare(q.After) <= 0 {
			continue
		}
		o.keep(listed{place, line})
	}
}

func (o *oldest) keep(one listed) {
	if len(o.kept) == o.limit {
		o.more = true
		if one.place.Compare(o.kept[0].place) > 0 {
			return
		}
		heap.Pop(o)
	}
	one.line = bytes.Clone(one.line)
	heap.Push(o, one)
}

// page returns the lines in their order.
func (o *oldest) page() (lines [][]byte, more bool) {
	slices.SortFunc(o.kept, func(a, b listed) int { return a.place.Compare(b.place) })
	size := 0
	for _, one := range o.kept {
		if size += len(one.line); size > maxPageBytes && len(lines) > 0 {
			return lines, true
		}
		lines = append(lines, one.line)
	}
	return lines, o.more
}

// timeOf returns the time of a record by its line: it is one of the first fields, and
// what stands before it are the names of the log itself.
func timeOf(line []byte) (time.Time, bool) {
	const field = `"time":"`
	i := bytes.Index(line, []byte(field))
	if i < 0 {
		return time.Time{}, false
	}
	text := line[i+len(field):]
	j := bytes.IndexByte(text, '"')
	if j < 0 {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(text[:j]))
	return at, err == nil
}

// DecodeLine returns the record of a line that another server has listed, which may be
// of another release. The error means that it is no record.
func DecodeLine(line []byte) (Record, error) {
	var r Record
	if len(line) > maxLine || json.Unmarshal(line, &r) != nil || r.Seq == 0 {
		return Record{}, errNotARecord
	}
	return r, nil
}
