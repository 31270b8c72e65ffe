package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Run executes one command line (args without the program's name) and returns
// the exit code. env holds "NAME=value" entries as os.Environ does. Nothing is
// read from or written to the process besides the given streams, files that
// the arguments name, and the client configuration file.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	a := &app{
		stdin:  stdin,
		stdout: stdout,
		stderr: stderr,
		env:    parseEnvironment(env),
		now:    time.Now,
	}
	return a.run(ctx, args)
}

// app is one invocation: its streams, its surroundings and the flags that all
// commands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            map[string]string
	now            func() time.Time

	connection connectionFlags
}

func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCommand(a)
	err := checkCommandName(root, args)
	if err == nil {
		root.SetArgs(args)
		root.SetIn(a.stdin)
		root.SetOut(a.stdout)
		root.SetErr(a.stderr)
		var cmd *cobra.Command
		cmd, err = root.ExecuteContextC(ctx)
		nameCommand(err, cmd)
	}
	// A pipe closed by its reader (`meridian get … | head`) is not a failure of
	// the command.
	if errors.Is(err, errOutputClosed) {
		return exitOK
	}
	r := explainError(err)
	for i, line := range r.lines {
		if i == 0 {
			line = a.paint(a.stderr, red, "Error:") + " " + line
		}
		_, _ = fmt.Fprintln(a.stderr, line)
	}
	return r.code
}

// message writes one line for people to standard error.
func (a *app) message(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, format+"\n", args...)
}

// warn writes one warning to standard error.
func (a *app) warn(text string) {
	_, _ = fmt.Fprintf(a.stderr, "%s %s\n", a.paint(a.stderr, yellow, "Warning:"), text)
}

func parseEnvironment(env []string) map[string]string {
	values := make(map[string]string, len(env))
	for _, entry := range env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			values[name] = value
		}
	}
	return values
}

// nameCommand tells a usage error which command's help explains it.
func nameCommand(err error, cmd *cobra.Command) {
	var usage *usageError
	if errors.As(err, &usage) && usage.command == "" && cmd != nil {
		usage.command = cmd.CommandPath()
	}
}
