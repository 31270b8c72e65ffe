// Package print writes what the command has to say: data on standard output, as
// tables for people or as JSON, YAML or names for programs, and messages on
// standard error.
//
// Guarantees. Standard output carries data only. A cell of a table is one line,
// and an empty one is "-", so that columns can be counted. Colours appear on
// terminals only. What a server sent as JSON is printed byte for byte, except for
// characters that would act on a terminal: those are escaped in everything that is
// printed (texttable.Escape).
//
// Non-goals: asking a server, and deciding the exit code.
package print

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"meridian/internal/doctree"
	"meridian/internal/texttable"
)

// ErrClosed means that the reader of standard output has gone.
var ErrClosed = errors.New("the reader of the output has gone")

// Format is how data is printed.
type Format string

// Printer prints data on standard output and messages on standard error. It is
// not safe for concurrent use.
type Printer struct {
	Stdout, Stderr io.Writer
	// Color allows colours where a stream is a terminal.
	Color bool
	// Now is what ages are measured from.
	Now func() time.Time
}

// The formats that commands offer.
const (
	FormatTable Format = "table"
	FormatWide  Format = "wide"
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
	FormatName  Format = "name"
)

// FormatFlag is the value of -o: one of the formats that a command offers.
type FormatFlag struct {
	Value   Format
	offered []Format
}

// BindFormat defines -o with the formats offered, the first being the default.
func BindFormat(flags *pflag.FlagSet, offered ...Format) *FormatFlag {
	f := &FormatFlag{Value: offered[0], offered: offered}
	flags.VarP(f, "output", "o", "output format: "+f.usage())
	return f
}

// List is the offered formats, separated by |.
func (f *FormatFlag) List() string {
	names := make([]string, len(f.offered))
	for i, o := range f.offered {
		names[i] = string(o)
	}
	return strings.Join(names, "|")
}

// usage also names the formats that select from JSON.
func (f *FormatFlag) usage() string {
	if slices.Contains(f.offered, FormatJSON) {
		return f.List() + "|jsonpath=PATH|custom-columns=NAME:PATH,…"
	}
	return f.List()
}

// String implements pflag.Value.
func (f *FormatFlag) String() string { return string(f.Value) }

// Type implements pflag.Value.
func (f *FormatFlag) Type() string { return "format" }

// Set implements pflag.Value.
func (f *FormatFlag) Set(s string) error {
	if Format(s).selects() && slices.Contains(f.offered, FormatJSON) {
		_, err := Format(s).selection()
		f.Value = Format(s)
		return err
	}
	if !slices.Contains(f.offered, Format(s)) {
		return fmt.Errorf("this command prints %s", f.List())
	}
	f.Value = Format(s)
	return nil
}

// Structured reports whether a format is for programs, as one document.
func (f Format) Structured() bool { return f == FormatJSON || f == FormatYAML || f.selects() }

// Output puts text on standard output, escaped.
func (p *Printer) Output(text []byte) error { return p.Raw([]byte(texttable.Escape(string(text)))) }

// Raw puts data that is not text on standard output, as it is.
func (p *Printer) Raw(data []byte) error {
	if _, err := p.Stdout.Write(data); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
			return ErrClosed
		}
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// Println puts a line on standard output.
func (p *Printer) Println(text string) error { return p.Output([]byte(text + "\n")) }

// WriteDocument prints a JSON document as it is, or the same as YAML.
func (p *Printer) WriteDocument(f Format, document []byte) error {
	if f.selects() {
		return p.writeSelection(f, document)
	}
	if f == FormatYAML {
		text, err := YAML(document)
		if err != nil {
			return fmt.Errorf("convert the answer to YAML: %w", err)
		}
		return p.Output([]byte(text))
	}
	return p.writeJSON(document)
}

// writeJSON prints a JSON document, escaped.
func (p *Printer) writeJSON(document []byte) error {
	text := texttable.EscapeJSON(string(document))
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return p.Raw([]byte(text))
}

// YAML is a JSON document as YAML, in which everything that Escape replaces stands in
// double quotes, where it keeps its meaning.
func YAML(document []byte) (string, error) {
	values, _, err := doctree.ParseJSON(document)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = doctree.WriteYAML(&out, values...)
	return out.String(), err
}

// WriteValue prints a value as indented JSON or as YAML.
func (p *Printer) WriteValue(f Format, value any) error {
	document, err := indentJSON(value)
	if err != nil {
		return err
	}
	return p.WriteDocument(f, document)
}

func indentJSON(value any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encode the output: %w", err)
	}
	return buf.Bytes(), nil
}

// Table is rows under a header, for people.
type Table struct {
	Header []string
	rows   [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// Table prints a table, cut to the width of a terminal.
func (p *Printer) Table(t *Table) error { return p.Output([]byte(t.String(p.Columns()))) }

// String lays the table out with "-" for an empty cell, so that columns can be
// counted. limit is the longest line, 0 for none.
func (t *Table) String(limit int) string {
	out := texttable.New("", t.Header...)
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = OrDash(cell)
		}
		out.Add(cells...)
	}
	return out.String(limit)
}

// Columns is the width of the terminal that standard output is, 0 for none.
func (p *Printer) Columns() int {
	f, ok := p.Stdout.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd())) // fails where it is no terminal
	if err != nil {
		return 0
	}
	return width
}

// OrDash is a cell of a table: one line, "-" where it is empty.
func OrDash(cell string) string {
	if cell == "" {
		return "-"
	}
	return strings.Join(strings.Fields(cell), " ")
}

// Message writes one line for people to standard error.
func (p *Printer) Message(format string, args ...any) {
	p.message(texttable.Escape(fmt.Sprintf(format, args...)))
}

// message writes a line to standard error that is escaped but for its colours.
func (p *Printer) message(line string) { _, _ = fmt.Fprintln(p.Stderr, line) }

// Failure writes the lines of an error to standard error.
func (p *Printer) Failure(lines ...string) {
	for i, line := range lines {
		line = texttable.Escape(line)
		if i == 0 {
			line = p.Paint(p.Stderr, Red, "Error:") + " " + line
		}
		p.message(line)
	}
}

// Warn writes one warning to standard error.
func (p *Printer) Warn(text string) {
	p.message(p.Paint(p.Stderr, Yellow, "Warning:") + " " + texttable.Escape(text))
}

// Color is an ANSI colour.
type Color string

// The colours in use.
const (
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
)

// Paint colours text where w is a terminal and colours are allowed.
func (p *Printer) Paint(w io.Writer, c Color, text string) string {
	if !p.Color || !IsTerminal(w) {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Escaped returns a writer that escapes what it is given, text by text, and passes
// it on to w.
func Escaped(w io.Writer) io.Writer { return escaped{w} }

type escaped struct{ to io.Writer }

// Write implements io.Writer.
func (e escaped) Write(text []byte) (int, error) {
	if _, err := io.WriteString(e.to, texttable.Escape(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
