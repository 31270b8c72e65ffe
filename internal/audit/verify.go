package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// Chains are what was found of each, that of writes first.
	Chains   []ChainReport `json:"chains"`
	Problems []Problem     `json:"problems"`
	// Notes are worth knowing and no problems.
	Notes []string `json:"notes,omitempty"`
}

// ChainReport is what Verify found of a chain.
type ChainReport struct {
	// Chain is how the names of its files begin: audit for writes.
	Chain string `json:"chain"`
	// Records that verify, the first and the last of them.
	Records uint64 `json:"records"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	// Hash is the last one's.
	Hash string `json:"hash"`
}

// Files returns the files of a log's directory, oldest first, and its checkpoint
// if there is one. A file that is missing by the checkpoint is among them.
func Files(dir string) (files []string, checkpoints []Head, err error) {
	// The checkpoint first: records that are written meanwhile come after it. What
	// it says of the oldest file may change meanwhile: then once more.
	before, err := readHeads(dir)
	if err != nil {
		return nil, nil, err
	}
	for {
		files = nil
		for _, name := range chainNames {
			full, err := rotated(dir, baseOf(name))
			if err != nil {
				return nil, nil, err
			}
			files = append(files, full...)
			current := filepath.Join(dir, baseOf(name)+fileSuffix)
			_, err = os.Stat(current)
			if err == nil || len(before) > 0 && before[0].of(name).Seq > 0 {
				files = append(files, current)
			}
		}
		after, err := readHeads(dir)
		if err != nil {
			return nil, nil, err
		}
		if sameFirst(before, after) {
			break
		}
		before = after
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%s holds no audit log", dir)
	}
	return files, before, nil
}

func readHeads(dir string) ([]Head, error) {
	head, err := ReadHead(filepath.Join(dir, HeadFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []Head{head}, err
}

func sameFirst(a, b []Head) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return !slices.ContainsFunc(chainNames, func(name string) bool { return a[0].of(name).First != b[0].of(name).First })
}

// Verify reads files, in the order of their first records, as one log and checks
// every record and its place in its chain. With checkpoints it also checks that the
// log leads up to each of them. Whether these are signed is for Head.CheckSignature.
// The error means that a file could not be read.
func Verify(files []string, checkpoints ...Head) (Report, error) {
	l := verification{report: Report{Problems: []Problem{}}, checkpoints: checkpoints, chains: map[string]*verified{}}
	ends, err := inOrder(files)
	if err != nil {
		return Report{}, err
	}
	for i, end := range ends {
		last := i == len(ends)-1 || ends[i+1].chain != end.chain
		if err := l.file(end, last); err != nil {
			return Report{}, err
		}
	}
	for _, name := range chainNames {
		if c := l.chains[name]; c != nil {
			c.finish()
		}
	}
	return l.report, nil
}

// fileOf is a file, the chain that it is of, and its first record.
type fileOf struct {
	path, chain string
	first       uint64
}

// inOrder sorts files by their first record that can be read. A file without any is
// of the chain that its name says.
func inOrder(files []string) ([]fileOf, error) {
	out := make([]fileOf, 0, len(files))
	for _, file := range files {
		end, err := lastRecord(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		of := fileOf{file, end.chain, end.first}
		if name, known := chainByName(file); known || end.first == 0 {
			of.chain = name
		}
		out = append(out, of)
	}
	slices.SortStableFunc(out, func(a, b fileOf) int {
		return cmp.Or(cmp.Compare(slices.Index(chainNames, a.chain), slices.Index(chainNames, b.chain)), cmp.Compare(a.first, b.first))
	})
	return slices.Compact(out), nil
}

// chainByName returns the chain that a file is of by its name, and whether it is named
// as the log names its files. Any other file may have records of all chains.
func chainByName(file string) (name string, known bool) {
	for _, name := range chainNames {
		rest, ok := strings.CutPrefix(filepath.Base(file), baseOf(name))
		if ok && (rest == fileSuffix || strings.HasPrefix(rest, "-")) {
			return name, true
		}
	}
	return "", false
}

// verification follows a log.
type verification struct {
	report      Report
	checkpoints []Head
	chains      map[string]*verified
}

func (l *verification) problem(file string, line int, format string, args ...any) {
	l.report.Problems = append(l.report.Problems, Problem{file, line, fmt.Sprintf(format, args...)})
}

// chain returns what is known of a chain, of which there is something in a file.
func (l *verification) chain(name, path string) *verified {
	c := l.chains[name]
	if c == nil {
		c = &verified{verification: l, name: name}
		l.chains[name] = c
	}
	c.end = path
	return c
}

// file reads a file. last says that it is the last of its chain.
func (l *verification) file(of fileOf, last bool) error {
	c := l.chain(of.chain, of.path)
	f, err := os.Open(of.path)
	if errors.Is(err, fs.ErrNotExist) {
		l.problem(of.path, 0, "the file is missing")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := newLines(f)
	_, single := chainByName(of.path)
	for n := 1; ; n++ {
		line, whole, err := lines.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", of.path, err)
		}
		switch {
		case !whole && last:
			l.report.Notes = append(l.report.Notes, fmt.Sprintf("%s:%d: the last record is not complete; it may be being written", of.path, n))
			continue
		case !whole:
			l.problem(of.path, n, "the file ends within a record")
			continue
		}
		r, hash, err := decodeRecord(line)
		switch {
		case err != nil:
			l.problem(of.path, n, "%v", err)
			c.altered()
			continue
		case single && r.Chain != of.chain:
			l.problem(of.path, n, "record %d of %s stands among those of %s: it was moved or copied", r.Seq, baseOf(r.Chain), baseOf(of.chain))
			continue
		case !slices.Contains(chainNames, r.Chain):
			l.problem(of.path, n, "record %d is of %s, which this release does not know", r.Seq, r.Chain)
			continue
		}
		c = l.chain(r.Chain, of.path)
		c.record(of.path, n, r, hash)
	}
}

// verified follows a chain.
type verified struct {
	*verification
	name  string
	end   string // the last file with something of it
	found ChainReport
	// seq is the last record's number, hash its hash; hash is empty after a record
	// that does not verify, whose own hash is unknown.
	seq     uint64
	hash    string
	started bool
	unread  uint64 // lines before the first record
	// passed are the checkpoints whose records were met.
	passed []int
}

// altered takes what stands in the place of the next record.
func (c *verified) altered() {
	if c.started {
		c.seq++
	} else {
		c.unread++
	}
	c.hash = ""
}

// record checks the place of a record.
func (c *verified) record(path string, n int, r Record, hash string) {
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
	c.found.Records++
	for i := range c.checkpoints {
		if mark := c.checkpoints[i].of(c.name); r.Seq == mark.Seq {
			c.passed = append(c.passed, i)
			if hash != mark.Hash {
				c.problem(path, n, "record %d is not the one that the checkpoint was made of: the log was written anew", r.Seq)
			}
		}
	}
}

// begin takes the first record of all.
func (c *verified) begin(path string, n int, r Record) {
	c.found.First = r.Seq
	var kept uint64
	for i := range c.checkpoints {
		kept = max(kept, c.checkpoints[i].of(c.name).First)
	}
	switch {
	case r.Seq == 1 && r.Prev != zeroHash:
		c.problem(path, n, "record 1 does not begin a log")
	case kept > 0 && r.Seq > kept+c.unread:
		c.problem(path, n, "%s missing at the beginning, by the checkpoint", span(kept, r.Seq-1))
	case r.Seq > 1 && len(c.report.Problems) == 0:
		c.report.Notes = append(c.report.Notes, fmt.Sprintf("%s begins with record %d: those before it have been removed, as full files are in time", baseOf(c.name), r.Seq))
	}
}

// finish compares the end with the checkpoints.
func (c *verified) finish() {
	c.found.Chain, c.found.Last, c.found.Hash = baseOf(c.name), c.seq, c.hash
	if c.started || c.name == "" {
		c.report.Chains = append(c.report.Chains, c.found)
	}
	for i := range c.checkpoints {
		mark := c.checkpoints[i].of(c.name)
		switch {
		case mark.Seq == 0 || slices.Contains(c.passed, i):
		case mark.Seq > c.seq:
			c.problem(c.end, 0, "%s missing at the end, by the checkpoint", span(c.seq+1, mark.Seq))
		case mark.Seq < c.found.First:
			c.report.Notes = append(c.report.Notes, fmt.Sprintf("the checkpoint is of record %d of %s, before these files", mark.Seq, baseOf(c.name)))
		default:
			c.problem(c.end, 0, "record %d, which the checkpoint was made of, is missing or does not verify", mark.Seq)
		}
	}
}

func span(from, to uint64) string {
	if from == to {
		return fmt.Sprintf("record %d is", from)
	}
	return fmt.Sprintf("records %d to %d are", from, to)
}
