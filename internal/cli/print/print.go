// Package print writes what the command has to say: data on standard output, as
// tables for people or as JSON, YAML or names for programs, and messages on
// standard error.
//
// Guarantees. Standard output carries data only. A cell of a table is one line,
// and an empty one is "-", so that columns can be counted. Colours appear on
// terminals only. What a server sent as JSON is printed byte for byte.
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
	"unicode/utf8"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
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
	flags.VarP(f, "output", "o", "output format: "+f.List())
	return f
}

func (f *FormatFlag) List() string {
	names := make([]string, len(f.offered))
	for i, o := range f.offered {
		names[i] = string(o)
	}
	return strings.Join(names, "|")
}

// String implements pflag.Value.
func (f *FormatFlag) String() string { return string(f.Value) }

// Type implements pflag.Value.
func (f *FormatFlag) Type() string { return "format" }

// Set implements pflag.Value.
func (f *FormatFlag) Set(s string) error {
	if !slices.Contains(f.offered, Format(s)) {
		return fmt.Errorf("this command prints %s", f.List())
	}
	f.Value = Format(s)
	return nil
}

// Structured reports whether a format is for programs, as one document.
func (f Format) Structured() bool { return f == FormatJSON || f == FormatYAML }

// Output puts data on standard output.
func (p *Printer) Output(data []byte) error {
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
	if f == FormatYAML {
		converted, err := yaml.JSONToYAML(document)
		if err != nil {
			return fmt.Errorf("convert the answer to YAML: %w", err)
		}
		document = converted
	}
	if !bytes.HasSuffix(document, []byte("\n")) {
		document = append(bytes.Clone(document), '\n')
	}
	return p.Output(document)
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

// Table is rows under a header, aligned for people.
type Table struct {
	Header []string
	rows   [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// String lays the table out: columns two spaces apart, no trailing spaces,
// "-" for an empty cell so that columns can be counted.
func (t *Table) String() string {
	widths := make([]int, len(t.Header))
	lines := append([][]string{t.Header}, t.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(OrDash(cell)))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			cell = OrDash(cell)
			b.WriteString(cell)
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
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
	_, _ = fmt.Fprintf(p.Stderr, format+"\n", args...)
}

// Warn writes one warning to standard error.
func (p *Printer) Warn(text string) {
	_, _ = fmt.Fprintf(p.Stderr, "%s %s\n", p.Paint(p.Stderr, Yellow, "Warning:"), text)
}

// Color is an ANSI colour.
type Color string

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

// IsTerminal reports whether a stream is a character device.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
