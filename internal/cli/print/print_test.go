package print

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"meridian/internal/resource"
)

func TestTable(t *testing.T) {
	tab := &Table{Header: []string{"NAME", "STATE"}}
	tab.Add("é", "fine")
	tab.Add("longer", "")
	tab.Add("x", "two\nlines ")
	require.Equal(t, "NAME    STATE\né       fine\nlonger  -\nx       two lines\n", tab.String(0))
}

// Whatever a zone, a proxy or a user has written, nothing that is printed acts on the
// terminal, and documents mean what they meant.
func TestNothingPrintedActsOnATerminal(t *testing.T) {
	const hostile = "\x1b]0;title\x07\u009b2J\u202egpj\r\x9b\U000e0041"
	var out, messages bytes.Buffer
	p := &Printer{Stdout: &out, Stderr: &messages, Now: time.Now}
	tab := &Table{Header: []string{"NAME"}}
	tab.Add(hostile)
	value := map[string]string{"name": hostile}
	want, err := json.Marshal(value)
	require.NoError(t, err)
	labelled := resource.New(resource.Meta{Key: resource.Key{Kind: "Mesh", Name: "m"}, Labels: map[string]string{"a": strings.ToValidUTF8(hostile, "?")}}, nil, []byte("{}"))
	for name, printed := range map[string]func() error{
		"table":         func() error { return p.Table(tab) },
		"line":          func() error { return p.Println(hostile) },
		"message":       func() error { p.Message("%s", hostile); return nil },
		"warning":       func() error { p.Warn(hostile); return nil },
		"failure":       func() error { p.Failure(hostile, hostile); return nil },
		"help":          func() error { _, err := Escaped(&out).Write([]byte(hostile)); return err },
		"JSON":          func() error { return p.WriteValue(FormatJSON, value) },
		"YAML":          func() error { return p.WriteValue(FormatYAML, value) },
		"selection":     func() error { return p.WriteValue("jsonpath={.name}", value) },
		"columns":       func() error { return p.WriteValue("custom-columns=N:.name", value) },
		"resource":      func() error { return p.Resource(FormatJSON, labelled, nil) },
		"resource YAML": func() error { return p.Resource(FormatYAML, labelled, nil) },
		"resources":     func() error { return p.Resources(FormatJSON, []*resource.Resource{labelled}, nil) },
		"wide":          func() error { return p.Resources(FormatWide, []*resource.Resource{labelled}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			out.Reset()
			messages.Reset()
			require.NoError(t, printed())
			text := out.String() + messages.String()
			require.Contains(t, text, "gpj")
			for _, r := range text {
				require.True(t, r == '\n' || r == '\ufffd' || unicode.IsPrint(r), "%U in %q", r, text)
			}
			var got map[string]string
			switch name {
			case "JSON":
				require.NoError(t, json.Unmarshal(out.Bytes(), &got))
			case "YAML":
				require.NoError(t, yaml.Unmarshal(out.Bytes(), &got))
			default:
				return
			}
			again, err := json.Marshal(got)
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(again))
		})
	}
}
