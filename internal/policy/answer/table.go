package answer

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is aligned text: columns two spaces apart, and lines of their own below
// a row.
type table struct {
	indent string
	rows   []row
}

type row struct {
	cells []string
	notes []string
}

func newTable(indent string, header ...string) *table {
	return &table{indent: indent, rows: []row{{cells: header}}}
}

func (t *table) add(cells ...string) *row {
	t.rows = append(t.rows, row{cells: cells})
	return &t.rows[len(t.rows)-1]
}

// note adds a line below the row.
func (r *row) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// write prints the table, without trailing spaces.
func (t *table) write(w *printer) {
	var widths []int
	for _, r := range t.rows {
		for i, cell := range r.cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, r := range t.rows {
		var line strings.Builder
		line.WriteString(t.indent)
		for i, cell := range r.cells {
			line.WriteString(cell)
			if i < len(r.cells)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		w.line("%s", strings.TrimRight(line.String(), " "))
		for _, note := range r.notes {
			w.line("%s    %s", t.indent, note)
		}
	}
}

// printer writes lines and remembers the first error.
type printer struct {
	w *bufio.Writer
}

func newPrinter(w io.Writer) *printer { return &printer{w: bufio.NewWriter(w)} }

func (p *printer) line(format string, args ...any) {
	_, _ = fmt.Fprintf(p.w, format+"\n", args...) // bufio keeps the error for Flush
}

func (p *printer) close() error {
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("answer: write: %w", err)
	}
	return nil
}
