package answer

import (
	"bufio"
	"fmt"
	"io"

	"meridian/internal/texttable"
)

// Form is how a page is printed.
type Form struct {
	// Wide adds the configuration and the policies that are not in effect.
	Wide bool
	// Columns is the width of the terminal, 0 for none.
	Columns int
	// Names has how names of the document are shown.
	Names Names
}

// printer writes lines and remembers the first error.
type printer struct {
	w       *bufio.Writer
	columns int
}

func newPrinter(w io.Writer, form Form) *printer {
	return &printer{w: bufio.NewWriter(w), columns: form.Columns}
}

// table prints a table.
func (p *printer) table(t *texttable.Table) { _, _ = p.w.WriteString(t.String(p.columns)) }

func (p *printer) line(format string, args ...any) {
	_, _ = fmt.Fprintf(p.w, format+"\n", args...) // bufio keeps the error for Flush
}

func (p *printer) close() error {
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
