package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Problem is one place where a log is not what was written.
type Problem struct {
	File string `json:"file"`
	// Line counts from 1; 0 means the file as a whole.
	Line int `json:"line,omitempty"`
	// What is wrong there.
	What string `json:"what"`
}

// String returns the place and what is wrong there.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.What
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.What)
}

// Report is what Verify found.
type Report struct {
	// Records that verify, the first and the last of them.
	Records uint64 `json:"records"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	// Hash is the last one's.
	Hash     string    `json:"hash"`
	Problems []Problem `json:"problems"`
	// Notes are worth knowing and no problems.
	Notes []string `json:"notes,omitempty"`
}

// Files returns the files of a log's directory, oldest first, and its checkpoint
// if there is one.
func Files(dir string) ([]string, *Head, error) {
	// The checkpoint first: records that are written meanwhile come after it.
	head, err := ReadHead(filepath.Join(dir, HeadFile))
	checkpoint := &head
	if errors.Is(err, os.ErrNotExist) {
		checkpoint, err = nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	files, err := rotated(dir)
	if err != nil {
		return nil, nil, err
	}
	current := filepath.Join(dir, CurrentFile)
	if _, err := os.Stat(current); err == nil {
		files = append(files, current)
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%s holds no audit log", dir)
	}
	return files, checkpoint, nil
}

// Verify reads files, in the order of their first records, as one log and checks
// every record and its place in the chain. With a checkpoint it also checks that
// the log leads up to it. The error means that a file could not be read.
func Verify(files []string, checkpoint *Head) (Report, error) {
	ordered, err := inOrder(files)
	if err != nil {
		return Report{}, err
	}
	c := chain{checkpoint: checkpoint, report: Report{Problems: []Problem{}}}
	for i, file := range ordered {
		if err := c.file(file, i == len(ordered)-1); err != nil {
			return Report{}, err
		}
	}
	c.finish(ordered)
	return c.report, nil
}

// inOrder sorts files by their first record that can be read.
func inOrder(files []string) ([]string, error) {
	first := make(map[string]uint64, len(files))
	for _, file := range files {
		end, err := lastRecord(file)
		if err != nil {
			return nil, err
		}
		first[file] = end.first
	}
	out := slices.Clone(files)
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(first[a], first[b]) })
	return slices.Compact(out), nil
}

// chain follows a log.
type chain struct {
	report     Report
	checkpoint *Head
	// seq is the last record's number, hash its hash; hash is empty after a record
	// that does not verify, whose own hash is unknown.
	seq     uint64
	hash    string
	started bool
	// passed is true when the checkpoint's record was met.
	passed bool
}

func (c *chain) problem(file string, line int, format string, args ...any) {
	c.report.Problems = append(c.report.Problems, Problem{file, line, fmt.Sprintf(format, args...)})
}

func (c *chain) file(path string, last bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := newLines(f)
	for n := 1; ; n++ {
		line, whole, err := lines.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		switch {
		case whole:
			c.record(path, n, line)
		case last:
			c.report.Notes = append(c.report.Notes, fmt.Sprintf("%s:%d: the last record is not complete; it may be being written", path, n))
		default:
			c.problem(path, n, "the file ends within a record")
		}
	}
}

// record checks one line and its place.
func (c *chain) record(path string, n int, line []byte) {
	r, hash, err := decodeRecord(line)
	if err != nil {
		c.problem(path, n, "%v", err)
		if c.started {
			c.seq++ // what stands here is taken for the next record, altered
		}
		c.hash = ""
		return
	}
	switch {
	case !c.started:
		c.begin(path, n, r)
	case r.Seq <= c.seq:
		c.problem(path, n, "record %d stands after record %d: it was moved, copied or inserted", r.Seq, c.seq)
		return
	case r.Seq > c.seq+1:
		c.problem(path, n, "%s missing before record %d", span(c.seq+1, r.Seq-1), r.Seq)
	case c.hash != "" && r.Prev != c.hash:
		c.problem(path, n, "record %d does not follow from the one before it: that one was altered or replaced", r.Seq)
	}
	c.started, c.seq, c.hash = true, r.Seq, hash
	c.report.Records++
	if c.checkpoint != nil && r.Seq == c.checkpoint.Seq {
		c.passed = true
		if hash != c.checkpoint.Hash {
			c.problem(path, n, "record %d is not the one that the checkpoint was made of: the log was written anew", r.Seq)
		}
	}
}

// begin takes the first record of all.
func (c *chain) begin(path string, n int, r Record) {
	c.report.First = r.Seq
	switch {
	case r.Seq == 1 && r.Prev != zeroHash:
		c.problem(path, n, "record 1 does not begin a log")
	case r.Seq > 1 && len(c.report.Problems) == 0:
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("the log begins with record %d: those before it have been removed, as full files are in time", r.Seq))
	}
}

// finish compares the end with the checkpoint.
func (c *chain) finish(files []string) {
	c.report.Last, c.report.Hash = c.seq, c.hash
	if c.checkpoint == nil || c.passed || c.checkpoint.Seq == 0 {
		return
	}
	end := files[len(files)-1]
	switch {
	case c.checkpoint.Seq > c.seq:
		c.problem(end, 0, "%s missing at the end, by the checkpoint", span(c.seq+1, c.checkpoint.Seq))
	case c.checkpoint.Seq < c.report.First:
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("the checkpoint is of record %d, before these files", c.checkpoint.Seq))
	default:
		c.problem(end, 0, "record %d, which the checkpoint was made of, is missing or does not verify", c.checkpoint.Seq)
	}
}

func span(from, to uint64) string {
	if from == to {
		return fmt.Sprintf("record %d is", from)
	}
	return fmt.Sprintf("records %d to %d are", from, to)
}
