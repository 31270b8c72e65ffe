// Package texttable lays out text in columns for people.
//
// Guarantees. Columns are two spaces apart, lines have no trailing spaces, and a
// cell is one line whatever it holds, and acts on no terminal (Escape). With a limit no line of a row is longer than
// it, as long as every column can have 8 characters: the widest cells are cut, and
// end in an ellipsis.
//
// Non-goals: colours, and widths of characters other than one.
package texttable

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// gap is the number of spaces between columns; minimum is the width below which a
// limit cuts no column.
const (
	gap     = 2
	minimum = 8
)

// Table is rows of cells, the first of which is the header.
type Table struct {
	indent string
	rows   []Row
}

// Row is one row, and the lines below it.
type Row struct {
	cells []string
	notes []string
}

// New returns a table whose lines begin with indent.
func New(indent string, header ...string) *Table {
	t := &Table{indent: indent}
	t.Add(header...)
	return t
}

// Add appends a row, and returns it until the next one is added.
func (t *Table) Add(cells ...string) *Row {
	for i, cell := range cells {
		cells[i] = Escape(strings.Join(strings.Fields(cell), " "))
	}
	t.rows = append(t.rows, Row{cells: cells})
	return &t.rows[len(t.rows)-1]
}

// Note adds a line below the row, which is never cut.
func (r *Row) Note(format string, args ...any) {
	r.notes = append(r.notes, Escape(fmt.Sprintf(format, args...)))
}

// String lays the table out. limit is the longest line, 0 for none.
func (t *Table) String(limit int) string {
	widths := t.widths(limit)
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, gap, ' ', 0)
	for _, r := range t.rows {
		cut := make([]string, len(r.cells))
		for i, cell := range r.cells {
			cut[i] = shorten(cell, widths[i])
		}
		_, _ = fmt.Fprintln(w, strings.Join(cut, "\t")) // a strings.Builder never fails
	}
	_ = w.Flush()
	var out strings.Builder
	lines := strings.Split(b.String(), "\n")
	for i, r := range t.rows {
		out.WriteString(strings.TrimRight(t.indent+lines[i], " ") + "\n")
		for _, note := range r.notes {
			out.WriteString(t.indent + "    " + note + "\n")
		}
	}
	return out.String()
}

// widths are the widths of the columns, the widest ones reduced until a line fits.
func (t *Table) widths(limit int) []int {
	var widths []int
	for _, r := range t.rows {
		for i, cell := range r.cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := utf8.RuneCountInString(t.indent) + gap*(len(widths)-1)
	for _, w := range widths {
		total += w
	}
	for ; limit > 0 && total > limit; total-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= minimum {
			break
		}
		widths[widest]--
	}
	return widths
}

func shorten(cell string, width int) string {
	if utf8.RuneCountInString(cell) <= width {
		return cell
	}
	return string([]rune(cell)[:width-1]) + "…"
}
