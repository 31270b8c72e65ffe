package cli

import (
	"bytes"

	"github.com/spf13/cobra"

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
				return usagef("unknown shell %q; use one of bash, zsh, fish", args[0])
			}
			if err != nil {
				return err
			}
			return a.write(script.Bytes())
		},
	}
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
