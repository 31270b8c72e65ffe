package cli

import (
	"io"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// everyCommand calls check for every command of the tree that is not the root.
func everyCommand(t *testing.T, check func(t *testing.T, cmd *cobra.Command)) {
	t.Helper()
	a := newApp(strings.NewReader(""), io.Discard, io.Discard, map[string]string{}, time.Now)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			t.Run(c.CommandPath(), func(t *testing.T) { check(t, c) })
			walk(c)
		}
	}
	walk(newRootCommand(a))
}

// TestHelp holds the help of every command to the style page: one short line that
// begins with a verb, and an example.
func TestHelp(t *testing.T) {
	everyCommand(t, func(t *testing.T, cmd *cobra.Command) {
		require.LessOrEqual(t, utf8.RuneCountInString(cmd.Short), 60, cmd.Short)
		require.NotEmpty(t, cmd.Short)
		first, _ := utf8.DecodeRuneInString(cmd.Short)
		require.True(t, unicode.IsUpper(first), cmd.Short)
		require.False(t, strings.HasSuffix(cmd.Short, "."), cmd.Short)
		require.NotEmpty(t, cmd.Example, "an example")
		for line := range strings.Lines(cmd.Long) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 86, line)
		}
	})
}

// TestExamples are command lines that the command takes: the command exists, and
// so does every flag.
func TestExamples(t *testing.T) {
	everyCommand(t, func(t *testing.T, cmd *cobra.Command) {
		example := strings.ReplaceAll(cmd.Example, "\\\n", " ")
		shown := false
		for line := range strings.Lines(example) {
			line, found := strings.CutPrefix(strings.TrimSpace(line), "meridian ")
			if !found {
				continue // of another program
			}
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " > ")
			line, _, _ = strings.Cut(line, " < ")
			a := newApp(strings.NewReader(""), io.Discard, io.Discard, map[string]string{}, time.Now)
			named, rest, err := newRootCommand(a).Find(strings.Fields(line))
			require.NoError(t, err, line)
			shown = shown || strings.HasPrefix(named.CommandPath()+" ", cmd.CommandPath()+" ")
			if named.DisableFlagParsing {
				continue
			}
			require.NoError(t, named.ParseFlags(rest), line)
			require.NoError(t, named.ValidateArgs(named.Flags().Args()), line)
		}
		require.True(t, shown, "no example is of the command itself")
	})
}
