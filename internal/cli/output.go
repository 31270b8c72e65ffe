package cli

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
	"unicode/utf8"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// errOutputClosed means that the reader of standard output has gone.
var errOutputClosed = errors.New("the reader of the output has gone")

// format is how data is printed.
type format string

const (
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatName  format = "name"
)

// formatFlag is the value of -o: one of the formats that a command offers.
type formatFlag struct {
	value   format
	offered []format
}

// bindFormat defines -o with the formats offered, the first being the default.
func bindFormat(flags *pflag.FlagSet, offered ...format) *formatFlag {
	f := &formatFlag{value: offered[0], offered: offered}
	flags.VarP(f, "output", "o", "output format: "+f.list())
	return f
}

func (f *formatFlag) list() string {
	names := make([]string, len(f.offered))
	for i, o := range f.offered {
		names[i] = string(o)
	}
	return strings.Join(names, "|")
}

// String implements pflag.Value.
func (f *formatFlag) String() string { return string(f.value) }

// Type implements pflag.Value.
func (f *formatFlag) Type() string { return "format" }

// Set implements pflag.Value.
func (f *formatFlag) Set(s string) error {
	if !slices.Contains(f.offered, format(s)) {
		return fmt.Errorf("this command prints %s", f.list())
	}
	f.value = format(s)
	return nil
}

// structured reports whether a format is for programs, as one document.
func (f format) structured() bool { return f == formatJSON || f == formatYAML }

// write puts data on standard output.
func (a *app) write(data []byte) error {
	if _, err := a.stdout.Write(data); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
			return errOutputClosed
		}
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func (a *app) println(text string) error { return a.write([]byte(text + "\n")) }

// writeDocument prints a JSON document as it is, or the same as YAML.
func (a *app) writeDocument(f format, document []byte) error {
	if f == formatYAML {
		converted, err := yaml.JSONToYAML(document)
		if err != nil {
			return fmt.Errorf("convert the answer to YAML: %w", err)
		}
		document = converted
	}
	if !bytes.HasSuffix(document, []byte("\n")) {
		document = append(bytes.Clone(document), '\n')
	}
	return a.write(document)
}

// writeValue prints a value as indented JSON or as YAML.
func (a *app) writeValue(f format, value any) error {
	document, err := indentJSON(value)
	if err != nil {
		return err
	}
	return a.writeDocument(f, document)
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

// table is rows under a header, aligned for people.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// String lays the table out: columns two spaces apart, no trailing spaces,
// "-" for an empty cell so that columns can be counted.
func (t *table) String() string {
	widths := make([]int, len(t.header))
	lines := append([][]string{t.header}, t.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(orDash(cell)))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		for i, cell := range line {
			cell = orDash(cell)
			b.WriteString(cell)
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func orDash(cell string) string {
	if cell == "" {
		return "-"
	}
	// A cell is one line, whatever a server put into it.
	return strings.Join(strings.Fields(cell), " ")
}

// color is an ANSI colour.
type color string

const (
	red    color = "31"
	green  color = "32"
	yellow color = "33"
)

// paint colours text where w is a terminal and NO_COLOR is not set.
func (a *app) paint(w io.Writer, c color, text string) string {
	if a.env["NO_COLOR"] != "" || a.env["TERM"] == "dumb" || !isTerminal(w) {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// isTerminal reports whether a stream is a character device.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
