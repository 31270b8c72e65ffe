package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meridian/internal/cli/exit"
)

const rootLong = `meridian writes meshes and policies to a control plane, shows what is effective
where, and says why. With 'eval' and 'validate' it answers from files, without
any server.`

const (
	groupResources = "resources"
	groupAnswers   = "answers"
	groupFleet     = "fleet"
	groupSetup     = "setup"
)

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "meridian",
		Short:         "Multi-zone service-mesh control plane",
		Long:          rootLong,
		Version:       versionLine(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.DisableDefaultCmd = true
	a.connection.Bind(root.PersistentFlags())
	root.AddGroup(
		&cobra.Group{ID: groupResources, Title: "Resources:"},
		&cobra.Group{ID: groupAnswers, Title: "Answers:"},
		&cobra.Group{ID: groupFleet, Title: "Zones, dataplanes and servers:"},
		&cobra.Group{ID: groupSetup, Title: "Set-up:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupResources, newApplyCommand(a), newPlanCommand(a), newGetCommand(a), newDescribeCommand(a), newDeleteCommand(a),
		newEditCommand(a), newExportCommand(a), newWatchCommand(a), newValidateCommand(a), newDiffCommand(a), newHistoryCommand(a), newBlameCommand(a), newRollbackCommand(a), newRolloutCommand(a), newExplainCommand(a), newAPIResourcesCommand(a))
	add(groupAnswers, newInspectCommand(a), newWhyCommand(a), newEvalCommand(a), newTestCommand(a), newLintCommand(a), newAnalyzeCommand(a), newMigrateCommand(a))
	add(groupFleet, newStatusCommand(a), newZonesCommand(a), newDataplanesCommand(a), newProxyCommand(a), newClusterCommand(a))
	add(groupSetup, newAuthCommand(a), newGenerateCommand(a), newTokensCommand(a), newAuditCommand(a),
		newConfigCommand(a), newCompletionCommand(a), newVersionCommand(a))
	root.SetHelpCommandGroupID(groupSetup)
	root.SetHelpCommand(newHelpCommand())
	root.InitDefaultHelpCmd()
	a.completeFlags(root)
	return root
}

// newHelpCommand replaces cobra's, which takes an unknown command for success.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command",
		Example: "  meridian help apply",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkCommandName(cmd.Root(), args); err != nil {
				return err
			}
			of, rest, err := cmd.Root().Find(args)
			if err == nil && of.HasSubCommands() && len(rest) > 0 && of != cmd.Root() {
				return unknownCommand(of, rest[0])
			}
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// newGroup returns a command that only holds others. It does not parse flags,
// so that a misspelt subcommand is reported before the flags that follow it.
func newGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use:                use,
		Short:              short,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			for i := 0; i < len(args); i++ {
				switch arg := args[i]; {
				case arg == "-h" || arg == "--help":
					return cmd.Help()
				case !strings.HasPrefix(arg, "-"):
					return unknownCommand(cmd, arg)
				case isSwitch(cmd, arg):
				case !strings.Contains(arg, "="):
					i++ // presumably its value
				}
			}
			if len(args) > 0 {
				return exit.Usagef("%s requires a command: one of %s", cmd.CommandPath(), strings.Join(commandNames(cmd), ", "))
			}
			return cmd.Help()
		},
	}
	group.AddCommand(commands...)
	var examples []string
	for _, c := range commands {
		if first, _, _ := strings.Cut(c.Example, "\n"); !strings.HasSuffix(first, "\\") {
			examples = append(examples, first)
		}
	}
	group.Example = strings.Join(examples, "\n")
	return group
}

// isSwitch reports whether an argument is a flag of every command that takes no
// value.
func isSwitch(cmd *cobra.Command, arg string) bool {
	f := cmd.InheritedFlags().Lookup(strings.TrimLeft(arg, "-"))
	return f != nil && f.NoOptDefVal != ""
}

// checkCommandName refuses an unknown command before its flags are looked at:
// of `meridian aply -f x` the wrong word is "aply".
func checkCommandName(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil
	}
	if _, _, err := root.Find(args); err == nil {
		return nil
	}
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			return unknownCommand(root, args[i])
		}
		name := strings.TrimLeft(args[i], "-")
		if f := root.PersistentFlags().Lookup(name); f != nil && f.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return nil
}

func unknownCommand(cmd *cobra.Command, name string) error {
	names := commandNames(cmd)
	err := fmt.Errorf("unknown command %q%s", name, exit.DidYouMean(name, names))
	return &exit.UsageError{Command: cmd.CommandPath(), Err: err}
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// flagError rewords what is wrong with a flag and names the nearest one.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		missing *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
	)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return err
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		err = fmt.Errorf("unknown flag -%s", unknown.GetSpecifiedName())
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		name := unknown.GetSpecifiedName()
		err = fmt.Errorf("unknown flag --%s%s", name, exit.DidYouMean(name, names))
	case errors.As(err, &missing):
		err = fmt.Errorf("--%s requires a value", missing.GetFlag().Name)
	case errors.As(err, &invalid):
		cause := invalid.Unwrap()
		switch invalid.GetFlag().Value.Type() {
		case "duration":
			cause = errors.New("not a duration; write one such as 30s, 5m or 24h")
			if _, days := invalid.GetFlag().Value.(durationValue); days {
				cause = errors.New("not a duration; write one such as 90m, 24h or 30d")
			}
		case "uint", "uint32", "uint64":
			cause = errors.New("not a number; write one such as 0 or 1841")
		case "bool":
			cause = errors.New("write true or false")
		}
		err = fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), cause)
	}
	return &exit.UsageError{Command: cmd.CommandPath(), Err: err}
}

// atLeastOne returns an argument check that names what is missing.
func atLeastOne(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return exit.Usagef("missing %s", name)
		}
		return nil
	}
}

// exactly returns an argument check that names what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return between(len(names), names...)
}

// between returns an argument check: at least low of the named arguments, at
// most all of them.
func between(low int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return exit.Usagef("missing %s", strings.Join(names[len(args):low], " and "))
		case len(args) > len(names) && len(names) == 0:
			return exit.Usagef("unexpected argument %q: this command takes flags only", args[0])
		case len(args) > len(names):
			return exit.Usagef("unexpected argument %q after %s", args[len(names)], strings.Join(names, " "))
		}
		return nil
	}
}
