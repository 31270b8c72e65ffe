package texttable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape replaces what would act on a terminal instead of being shown there:
// control characters of C0 and C1 other than newline and tab, DEL, line and
// paragraph separators, format characters, which include all that change the
// direction of text, and bytes that are not UTF-8. A character becomes \uXXXX, or
// \UXXXXXXXX beyond 16 bits, as in YAML, and a byte \xXX. Within the double quotes
// of YAML the result means the same text.
func Escape(text string) string {
	return escape(text, func(r rune) string { return fmt.Sprintf(`\U%08x`, r) }, `\x%02x`)
}

// EscapeJSON is Escape for a JSON document, which means the same afterwards: there a
// character beyond 16 bits is a pair of \uXXXX, and a byte that is not UTF-8 \ufffd,
// which is what a parser makes of it.
func EscapeJSON(document string) string {
	return escape(document, func(r rune) string {
		high, low := utf16.EncodeRune(r)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}, `\ufffd`)
}

func escape(text string, beyond func(rune) string, invalid string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 16)
	for at, r := range text {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(beyond(r))
		case r != utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x`, r)
		case strings.HasPrefix(text[at:], string(utf8.RuneError)):
			b.WriteRune(r) // the replacement character itself
		case strings.Contains(invalid, "%"):
			fmt.Fprintf(&b, invalid, text[at])
		default:
			b.WriteString(invalid)
		}
	}
	return b.String()
}

// hidden reports characters to replace, and whether there may be bytes to replace.
func hidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < utf8.RuneSelf:
		return r < ' ' || r == 0x7f
	}
	return r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}
