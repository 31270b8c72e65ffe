package texttable

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain, é, 日本, 🙂\n\tnext":    "plain, é, 日本, 🙂\n\tnext",
		"\x1b[2J":                    `\u001b[2J`,
		"\u009b31m":                  `\u009b31m`,
		"a\rb\x00\x07\x7f":           `a\u000db\u0000\u0007\u007f`,
		"\u202egpj.exe":              `\u202egpj.exe`,
		"\u2066a\u2069\u200e\u2028z": `\u2066a\u2069\u200e\u2028z`,
		"a\xffb\x9b31m":              `a\xffb\x9b31m`,
		"\ufffd":                     "\ufffd",
		"\U000e0041":                 `\U000e0041`,
	} {
		require.Equal(t, want, Escape(in))
	}
	require.Equal(t, `"\udb40\udc41"`, EscapeJSON("\"\U000e0041\""))
	require.Equal(t, `"a\ufffdb"`, EscapeJSON("\"a\xffb\""))
}

// What is escaped shows nothing but what it is, and means in JSON and in the double
// quotes of YAML what it meant.
func TestEscapeKeepsTheMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.RuneFrom(nil, unicode.Cf, unicode.Cc), rapid.RuneFrom([]rune("ab\"\\\n")))).Draw(t, "text")
		for _, r := range Escape(text) {
			require.False(t, hidden(r) && r != '\ufffd', "%U", r)
		}
		document, err := json.Marshal(text)
		require.NoError(t, err)
		var got string
		require.NoError(t, json.Unmarshal([]byte(EscapeJSON(string(document))), &got))
		require.Equal(t, text, got)
		quoted, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: text})
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal([]byte(Escape(string(quoted))), &got))
		require.Equal(t, text, got)
	})
}

func TestCellsAreEscaped(t *testing.T) {
	tab := New("", "NAME", "ZONE")
	tab.Add("\x1b]0;title\x07", "\u202ewest").Note("by %s", "\u009b2J")
	require.Equal(t, "NAME                  ZONE\n"+`\u001b]0;title\u0007  \u202ewest`+"\n    by \\u009b2J\n", tab.String(0))
}
