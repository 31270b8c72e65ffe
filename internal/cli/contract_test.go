package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of flags in docs/contract.md, and the files of testdata, instead of comparing with them")

const (
	contract     = "../../docs/contract.md"
	flagsHeading = "### Every command and its flags\n\n"
)

// flagNames lists the flags that a command defines itself.
func flagNames(flags *pflag.FlagSet) string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		names = append(names, "`"+name+"`")
	})
	return strings.Join(names, ", ")
}

// flagsTable is the table of all commands that do something, with their own flags.
func flagsTable(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Every command has %s.\n\n| command | flags |\n|---|---|\n", flagNames(root.PersistentFlags()))
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			flags := flagNames(c.LocalNonPersistentFlags())
			if !c.Hidden && (flags != "" || !c.HasSubCommands()) { // a group alone does nothing
				fmt.Fprintf(&b, "| `%s` | %s |\n", strings.TrimPrefix(c.CommandPath(), "meridian "), flags)
			}
			walk(c)
		}
	}
	walk(root)
	return b.String()
}

// The page lists every command with every flag, and none that does not exist.
func TestContractListsEveryCommandAndFlag(t *testing.T) {
	text, err := os.ReadFile(contract)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), flagsHeading)
	require.True(t, found, "%s has the heading %q", contract, strings.TrimSpace(flagsHeading))
	table, after, found := strings.Cut(rest, "\n## ")
	require.True(t, found)
	want := flagsTable(newRootCommand(newApp(strings.NewReader(""), io.Discard, io.Discard, map[string]string{}, time.Now)))
	if *update {
		require.NoError(t, os.WriteFile(contract, []byte(before+flagsHeading+want+"\n## "+after), 0o600))
		return
	}
	require.Equal(t, want, table, "go test ./internal/cli -run TestContract -update writes it")
}

// What the rest of the page says about commands and flags is in the tree as well.
func TestContractNamesNothingElse(t *testing.T) {
	text, err := os.ReadFile(contract)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## The command\n")
	require.True(t, found)
	root := newRootCommand(newApp(strings.NewReader(""), io.Discard, io.Discard, map[string]string{}, time.Now))
	defined := flagsOf(root)
	for _, name := range regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(section, -1) {
		require.True(t, defined[name], "no command has the flag %s", name)
	}
	commands := false // in a table of commands
	for row := range strings.Lines(section) {
		commands = strings.HasPrefix(row, "| command |") || commands && strings.HasPrefix(row, "|")
		if !commands {
			continue
		}
		cell := regexp.MustCompile(`[^\\]\|`).Split(strings.TrimPrefix(row, "|"), 2)[0]
		parent := root
		for _, span := range regexp.MustCompile("`([a-z][^`]*)`").FindAllStringSubmatch(cell, -1) {
			cmd := commandNamed(root, span[1])
			if cmd == nil { // such as `leader` after `cluster members`
				cmd = commandNamed(parent, span[1])
			}
			require.NotNil(t, cmd, "%s has no command %q", parent.CommandPath(), span[1])
			parent = cmd
			if !cmd.HasSubCommands() {
				parent = cmd.Parent()
			}
		}
	}
}

// commandNamed returns the command below parent that text begins with, or nil.
func commandNamed(parent *cobra.Command, text string) *cobra.Command {
	at := parent
	for word := range strings.FieldsSeq(text) {
		if !at.HasSubCommands() || strings.ToLower(word) != word || !regexp.MustCompile(`^[a-z]`).MatchString(word) {
			break
		}
		var next *cobra.Command
		for alternative := range strings.SplitSeq(word, `\|`) {
			next = nil
			for _, c := range at.Commands() {
				if c.Name() == alternative {
					next = c
				}
			}
			if next == nil {
				return nil
			}
		}
		at = next
	}
	if at == parent {
		return nil
	}
	return at
}

// flagsOf are the flags of a command and of those below it.
func flagsOf(cmd *cobra.Command) map[string]bool {
	all := map[string]bool{}
	add := func(f *pflag.Flag) { all["--"+f.Name] = true }
	cmd.Flags().VisitAll(add)
	cmd.PersistentFlags().VisitAll(add)
	for _, c := range cmd.Commands() {
		for name := range flagsOf(c) {
			all[name] = true
		}
	}
	return all
}
