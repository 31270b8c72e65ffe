package resource

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/doctree"
)

// sample has a field of every sort that a spec may have.
type sample struct {
	inlined
	Text     string            `json:"text,omitzero" enum:"red|green"`
	Flag     *bool             `json:"flag,omitzero"`
	Small    int8              `json:"small,omitzero"`
	Count    *uint32           `json:"count,omitzero"`
	Ratio    *float64          `json:"ratio,omitzero"`
	Wait     *Duration         `json:"wait,omitzero"`
	Share    Percentage        `json:"share,omitzero"`
	Colours  []string          `json:"colours,omitzero" enum:"red|green"`
	Labels   map[string]string `json:"labels,omitzero"`
	Children []sample          `json:"children,omitzero"`
	Body     json.RawMessage   `json:"body,omitzero"`
	Anything any               `json:"anything,omitzero"`
	Hidden   string            `json:"-"`
}

type inlined struct {
	Inner string `json:"inner,omitzero"`
}

func (*sample) fieldHint(name string) string {
	if name == "targetRef" {
		return "use the kind MeshSample for that"
	}
	return ""
}

// decodeSample decodes YAML into a sample and returns the problems, a line each.
func decodeSample(t *testing.T, text string) (sample, string) {
	t.Helper()
	documents, _, err := doctree.Parse([]byte(text), false)
	require.NoError(t, err)
	require.Len(t, documents, 1)
	var s sample
	dec := &decoder{}
	dec.into(&s, documents[0], Root)
	lines := make([]string, len(dec.report.Problems))
	for i, p := range dec.report.Problems {
		lines[i] = p.String()
	}
	return s, strings.Join(lines, "\n")
}

func TestDecodeEverySort(t *testing.T) {
	s, problems := decodeSample(t, `
inner: in
text: red
flag: false
small: -128
count: 0
ratio: 0.10
wait: 0s
share: 99.9
colours: []
labels: {a.b/c: d}
children: [{text: green}]
body: {b: 1.0, a: null}
anything: [1, x, true, null, {a: 2.5}]
`)
	require.Empty(t, problems)
	require.Equal(t, "in", s.Inner)
	require.Equal(t, "red", s.Text)
	require.False(t, *s.Flag)
	require.Equal(t, int8(-128), s.Small)
	require.Equal(t, uint32(0), *s.Count)
	require.InDelta(t, 0.1, *s.Ratio, 0)
	require.Equal(t, "0s", s.Wait.String())
	require.Equal(t, time.Duration(0), s.Wait.Value())
	require.InDelta(t, 99.9, float64(s.Share), 0)
	require.NotNil(t, s.Colours, "[] is present")
	require.Equal(t, map[string]string{"a.b/c": "d"}, s.Labels)
	require.Equal(t, "green", s.Children[0].Text)
	require.Equal(t, `{"a":null,"b":1}`, string(s.Body))
	require.Equal(t, []any{json.Number("1"), "x", true, nil, map[string]any{"a": json.Number("2.5")}}, s.Anything)
}

func TestDecodeAbsence(t *testing.T) {
	s, problems := decodeSample(t, "flag:\ncount: ~\ncolours: null\nchildren:\nbody: null\n")
	require.Empty(t, problems)
	require.Equal(t, sample{Body: json.RawMessage("null")}, s, "an opaque null is a value, every other an absence")
}

func TestDecodeProblems(t *testing.T) {
	for text, want := range map[string]string{
		"text: blue":                        "text: unknown value \"blue\"; use one of red, green",
		"colours: [red, gren]":              "colours[1]: unknown value \"gren\"; did you mean `green`?",
		"colours: red":                      `colours: expected a list, got the string "red"`,
		"colours: [red, ]\nsmall: 1":        "",
		"colours: [~]":                      "colours[0]: the item is empty; remove it or give it a value",
		"small: 128":                        "small: the number 128 is out of range",
		"small: 1e-30":                      "small: expected a whole number, got 1e-30",
		"small: 99999999999999999999999999": "small: the number 9.9999999999999999999999999e25 is out of range",
		"count: 4294967296":                 "count: the number 4294967296 is out of range",
		"count: many":                       `count: expected a number, got the string "many"`,
		"ratio: 1e400":                      "ratio: the number 1e400 is out of range",
		"ratio: ''":                         `ratio: expected a number, got the string ""`,
		"wait: 5":                           "wait: expected a duration with its unit, such as 5s, got the number 5",
		"wait: -5":                          "wait: expected a duration with its unit, such as 5s, got the number -5",
		"wait: [5s]":                        "wait: expected a duration such as 5s, 100ms or 1h30m, got a list",
		"share: half":                       `share: expected a percentage between 0 and 100, such as 50 or 99.9, got the string "half"`,
		"share: 100.1":                      "share: a percentage lies between 0 and 100, got 100.1",
		"labels: []":                        "labels: expected an object, got a list",
		"labels: {a: true}":                 `labels.a: expected a string, got true; put it in quotes`,
		"children: [{txet: red}]":           "children[0].txet: unknown field `txet`; did you mean `text`?",
		"children: [[]]":                    "children[0]: expected an object, got a list",
		"Hidden: x":                         "Hidden: unknown field `Hidden`; known here are inner, text, flag, small, count, ratio, wait, share, colours, labels, children, body, …",
		"targetRef: {}":                     "targetRef: unknown field `targetRef`; use the kind MeshSample for that",
		"'a b': 1":                          "[\"a b\"]: unknown field `a b`; known here are inner, text, flag, small, count, ratio, wait, share, colours, labels, children, body, …",
	} {
		_, problems := decodeSample(t, text)
		require.Equal(t, want, problems, text)
	}
}

// What validation says about a field that could not be decoded is left out.
func TestDoubts(t *testing.T) {
	dec := &decoder{}
	dec.errorAt("conf.to[0]", "broken")
	for path, want := range map[Path]bool{
		"conf.to[0]": true, "conf.to[0].kind": true, "conf.to[0][1]": true, "conf": true, Root: true,
		"conf.to[1]": false, "conf.to[01]": false, "conf.from": false, "con": false,
	} {
		require.Equal(t, want, dec.undecodedAt(path), path)
	}
}

// A problem's path leads back to its line, whatever the names in it.
func TestLineOfAPath(t *testing.T) {
	documents, _, err := doctree.Parse([]byte("a:\n  b.c:\n  - d\n  - \"q\\\"]\":\n      e: 1\n"), false)
	require.NoError(t, err)
	for path, want := range map[Path]int{
		Root: 1, "a": 1, Path("a").Key("b.c"): 2, Path("a").Key("b.c").Index(0): 3, Path("a").Key("b.c").Index(1): 4,
		Path("a").Key("b.c").Index(1).Key(`q"]`).Field("e"): 5, Path("a").Key("b.c").Index(7): 2, "a.x.y": 1,
		"a[": 1, "a[x]": 1, `a["`: 1, "..": 1, "a[99999999999999999999]": 1,
	} {
		require.Equal(t, want, doctree.LineAt(documents[0], path), path)
	}
}

func TestParseDuration(t *testing.T) {
	d := MustDuration("1h30m")
	require.Equal(t, 90*time.Minute, d.Value())
	text, err := json.Marshal(d)
	require.NoError(t, err)
	require.Equal(t, `"1h30m"`, string(text))
	for _, bad := range []string{"", "5", "5 s", "1d", "-1s", "abc"} {
		_, err := ParseDuration(bad)
		require.Error(t, err, bad)
	}
	require.Panics(t, func() { MustDuration("1d") })
}

func TestDocumentErrorsUnwrap(t *testing.T) {
	_, err := Decode("in.yaml", []byte("type: Zone"), DecodeOptions{})
	var one *DocumentError
	require.ErrorAs(t, err, &one)
	require.Equal(t, 1, one.Index)
}
