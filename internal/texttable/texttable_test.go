package texttable

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestString(t *testing.T) {
	tab := New("  ", "NAME", "STATE", "ERROR")
	tab.Add("é", "fine", "").Note("a line that is %s", "not part of the columns")
	tab.Add("longer", "two\nlines\t", "")
	require.Equal(t, `  NAME    STATE      ERROR
  é       fine
      a line that is not part of the columns
  longer  two lines
`, tab.String(0))
}

// A name of 253 characters, the longest there is, costs the other columns nothing.
func TestALongNameIsCut(t *testing.T) {
	tab := New("", "MESH", "NAME", "VERSION")
	tab.Add("default", strings.Repeat("x", 253), "12")
	tab.Add("default", "web", "3")
	require.Equal(t, `MESH     NAME                  VERSION
default  xxxxxxxxxxxxxxxxxxx…  12
default  web                   3
`, tab.String(38))
	require.Contains(t, tab.String(0), strings.Repeat("x", 253), "output to a file is complete")
}

func TestNoLineIsLongerThanTheLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		columns := rapid.IntRange(1, 6).Draw(rt, "columns")
		limit := rapid.IntRange(columns*(minimum+gap), 120).Draw(rt, "limit")
		tab := New("")
		for range rapid.IntRange(1, 5).Draw(rt, "rows") {
			cells := make([]string, columns)
			for i := range cells {
				cells[i] = rapid.StringN(0, 60, -1).Draw(rt, "cell")
			}
			tab.Add(cells...)
		}
		for line := range strings.Lines(tab.String(limit)) {
			require.LessOrEqual(rt, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), limit)
		}
	})
}
