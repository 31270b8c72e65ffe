package cli

import (
	"bytes"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/clientconfig"
	"meridian/internal/resource"
)

const completionLong = `Print a script that teaches a shell to complete meridian's commands, flags and
kinds.

  bash:  source <(meridian completion bash)
  zsh:   meridian completion zsh > "${fpath[1]}/_meridian"
  fish:  meridian completion fish | source`

func newCompletionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "Print a completion script for a shell",
		Long:      completionLong,
		Example:   "  meridian completion bash",
		Args:      exactly("SHELL"),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			var (
				script bytes.Buffer
				err    error
			)
			switch args[0] {
			case "bash":
				err = cmd.Root().GenBashCompletionV2(&script, true)
			case "zsh":
				err = cmd.Root().GenZshCompletion(&script)
			case "fish":
				err = cmd.Root().GenFishCompletion(&script, true)
			default:
				return exit.Usagef("unknown shell %q; use one of bash, zsh, fish", args[0])
			}
			if err != nil {
				return err
			}
			return a.Output(script.Bytes())
		},
	}
}

// completeFlags teaches the shell the values of the flags that have a fixed
// choice: the output formats of each command, and the control planes known.
func (a *app) completeFlags(cmd *cobra.Command) {
	if f := cmd.Flags().Lookup("output"); f != nil {
		if formats, ok := f.Value.(*print.FormatFlag); ok {
			offer(cmd, "output", func() []string { return strings.Split(formats.List(), "|") })
		}
	}
	if cmd.PersistentFlags().Lookup("context") != nil {
		offer(cmd, "context", a.contextNames)
	}
	for _, c := range cmd.Commands() {
		a.completeFlags(c)
	}
}

// offer makes a flag complete to one of some words.
func offer(cmd *cobra.Command, flag string, words func() []string) {
	// It fails for a flag that does not exist or is completed already.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return words(), cobra.ShellCompDirectiveNoFileComp
	})
}

// contextNames lists the control planes of the configuration, none where it
// cannot be read.
func (a *app) contextNames() []string {
	path, _, err := a.connection.ConfigPath()
	if err != nil {
		return nil
	}
	contexts, err := clientconfig.LoadContexts(path)
	if err != nil {
		return nil
	}
	return client.ContextNames(contexts)
}

// completeKinds offers the kinds, in the plural, for the first argument.
func completeKinds(keep func(*resource.Descriptor) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var kinds []cobra.Completion
		if len(args) == 0 {
			for _, d := range resource.Kinds() {
				if keep == nil || keep(d) {
					kinds = append(kinds, cobra.CompletionWithDesc(d.Plural, d.Summary))
				}
			}
		}
		return kinds, cobra.ShellCompDirectiveNoFileComp
	}
}
