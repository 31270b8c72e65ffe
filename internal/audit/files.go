package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// rotated returns the full files of a chain, oldest first.
func rotated(dir, base string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, base+"-[0-9]*"+fileSuffix))
	if err != nil {
		return nil, fmt.Errorf("list the files of the audit log: %w", err)
	}
	slices.Sort(files) // the numbers have leading zeros
	return files, nil
}

// fileEnd is what a file ends with.
type fileEnd struct {
	head  Mark
	chain string // of the first record
	first uint64 // the first record's
	lines int
	// size is that of the whole lines, torn that of what follows them.
	size, torn int64
	// bad is what is wrong with the last line.
	bad error
	// writes are those that it records, sorted.
	writes []recordedWrite
}

// lastRecord reads a file to its end. Only the lines that matter are decoded: the
// last, and those up to the first that is a record.
func lastRecord(path string) (end fileEnd, err error) {
	f, err := os.Open(path)
	if err != nil {
		return fileEnd{}, err
	}
	defer func() { _ = f.Close() }()
	defer func() { slices.SortFunc(end.writes, recordedWrite.compare) }()
	lines := newLines(f)
	var last []byte
	for {
		line, whole, err := lines.next()
		if err != nil && !errors.Is(err, io.EOF) {
			return end, fmt.Errorf("read %s of the audit log: %w", path, err)
		}
		if err != nil || !whole {
			end.torn = int64(len(line))
			break
		}
		last = append(last[:0], line...)
		end.lines++
		end.size += int64(len(line)) + 1
		if w := writeOf(line); w.revision > 0 {
			end.writes = append(end.writes, w)
		}
		if end.first == 0 {
			if r, _, bad := decodeRecord(line); bad == nil {
				end.first, end.chain = r.Seq, r.Chain
			}
		}
	}
	if end.lines == 0 {
		return end, nil
	}
	r, hash, bad := decodeRecord(last)
	if bad == nil {
		end.head = Mark{Seq: r.Seq, Hash: hash, Time: r.Time}
	}
	end.bad = bad
	return end, nil
}

// lines reads lines of bounded length.
type lines struct{ r *bufio.Reader }

func newLines(r io.Reader) *lines { return &lines{bufio.NewReaderSize(r, maxLine)} }

// next returns the next line without its newline, and whether it has one. A line
// that is too long comes in pieces, none of which is a record.
func (l *lines) next() (line []byte, whole bool, err error) {
	line, err = l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return bytes.TrimSuffix(line, []byte("\n")), true, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return line, true, nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, false, nil
	}
	return nil, false, err
}

// errNoRecord means that a file holds no record.
var errNoRecord = errors.New("it holds no record")

// firstRecord returns the number of the first record of a file that verifies.
func firstRecord(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	lines := newLines(f)
	for {
		line, _, err := lines.next()
		if errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("%s: %w", path, errNoRecord)
		}
		if err != nil {
			return 0, fmt.Errorf("read %s of the audit log: %w", path, err)
		}
		if r, _, bad := decodeRecord(line); bad == nil {
			return r.Seq, nil
		}
	}
}
