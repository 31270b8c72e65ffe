package resource

import (
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Regular expressions are bounded by their length and by their programs.
func TestRegexesAreBounded(t *testing.T) {
	tests := []struct{ name, pattern, wrong string }{
		{"a path", `^/api/v[0-9]{1,3}/(users|groups)/[a-zA-Z0-9_-]{1,64}$`, ""},
		{"a host", `^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$`, ""},
		{"a UUID", `[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}`, ""},
		{"letters", `(?i)\pL+`, ""},
		{"long", strings.Repeat("a", MaxRegexBytes+1), "has 1025 bytes; at most 1024 are allowed"},
		{"nested repeats", "((((abc){10}){10}){10})", "is compiled to "},
		{"a repeated word", "(" + strings.Repeat("a", 1000) + "){1000}", "is compiled to "},
		{"nothing, repeated", "((){1000})" + strings.Repeat("(){1000}", 100), "is compiled to "},
		{"repeats beyond RE2", "((a{1000}){1000})", "is too large: "},
		{"classes", strings.Repeat(`\pL`, 300), "is compiled to "},
		{"no expression", "(", "is not a regular expression (RE2): missing closing ): `(`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := CheckRegex(tt.pattern)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "bytes allocated")
			if tt.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.wrong)
		})
	}
}

// What is accepted compiles to no more than was counted.
func FuzzRegex(f *testing.F) {
	for _, s := range []string{"", "a", "(a{100}){10}", `(?i)\pL{3}`, "a|b|", "(?:a?)*", "[^a-z]{0,5}", `\Qa.b\E`, "(a{0}){7}", "x**", "(?s).{1,}", "^$", `\bé{2,3}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		n, err := CheckRegex(pattern)
		if err != nil {
			return
		}
		re, err := syntax.Parse(pattern, syntax.Perl)
		require.NoError(t, err)
		program, err := syntax.Compile(re.Simplify())
		require.NoError(t, err)
		// Besides: the instruction that fails, the one that matches, and an empty one.
		require.LessOrEqual(t, len(program.Inst), n+3)
		require.LessOrEqual(t, n, MaxRegexProgram)
	})
}
