package cli

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

// Run executes one command line (args without the program's name) and returns
// the exit code. env holds "NAME=value" entries as os.Environ does. Nothing is
// read from or written to the process besides the given streams, files that
// the arguments name, and the client configuration file. foreground tells while
// another program has the terminal.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string, foreground *Foreground) int {
	a := newApp(stdin, stdout, stderr, parseEnvironment(env), time.Now)
	a.foreground = foreground
	return a.run(ctx, args)
}

// Foreground tells while a command runs another program on the terminal, such as an
// editor. Ctrl-C is then meant for that program, and reaches both. It is safe for
// concurrent use.
type Foreground struct {
	running atomic.Bool
	grace   atomic.Int64
	made    sync.Once
	abort   func()
	aborted <-chan struct{}
}

// Grace is how long the command takes to finish after it was told to stop, at most,
// beyond what every command may take.
func (f *Foreground) Grace() time.Duration { return time.Duration(f.grace.Load()) }

// finish says that the command may take this long to finish, and returns a channel that is
// closed once it is to take no longer than it must.
func (f *Foreground) finish(after time.Duration) (aborted <-chan struct{}) {
	f.prepare()
	f.grace.Store(int64(after))
	return f.aborted
}

// Abort has a command that has a Grace take no longer to finish than it must, which is about
// a second.
func (f *Foreground) Abort() {
	f.prepare()
	f.abort()
}

func (f *Foreground) prepare() {
	f.made.Do(func() {
		aborted := make(chan struct{})
		f.aborted, f.abort = aborted, sync.OnceFunc(func() { close(aborted) })
	})
}

// Running reports whether another program has the terminal.
func (f *Foreground) Running() bool { return f.running.Load() }

// run runs a program that has the terminal until it ends.
func (f *Foreground) run(program *exec.Cmd) error {
	f.running.Store(true)
	defer f.running.Store(false)
	return program.Run()
}

// app is one invocation: its streams, its surroundings and the flags that all
// commands share.
type app struct {
	*print.Printer
	stdin      io.Reader
	connection client.Flags
	foreground *Foreground
	// zoneServers is the zone whose servers a command is about (bindZoneServers); empty for
	// those of the control plane that is asked.
	zoneServers string
	// fleetBudget is how long apply asks zones.
	fleetBudget time.Duration
	// lossBudget is how long is waited for what a change takes away.
	lossBudget time.Duration
	// partResources bounds a batch of apply --in-batches.
	partResources int
}

func newApp(stdin io.Reader, stdout, stderr io.Writer, env map[string]string, now func() time.Time) *app {
	return &app{
		Printer: &print.Printer{
			Stdout: stdout, Stderr: stderr, Now: now, Color: env["NO_COLOR"] == "" && env["TERM"] != "dumb",
		},
		stdin:      stdin,
		connection: client.Flags{Env: env},
		foreground: &Foreground{}, fleetBudget: fleetBudget, lossBudget: lossBudget, partResources: partResources,
	}
}

// connect opens the control plane that the flags and the configuration choose.
// Nothing is sent until the first call.
func (a *app) connect() (*client.Client, error) { return a.connection.Connect(a.Message) }

// call sends one request to the control plane.
func call[Q, R any](ctx context.Context, a *app, method func(*client.Client, context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	c, err := a.connect()
	if err != nil {
		var none R
		return none, err
	}
	defer c.Close()
	return client.Ask(ctx, c, method, request)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCommand(a)
	err := checkCommandName(root, args)
	if err == nil {
		root.SetArgs(args)
		root.SetIn(a.stdin)
		root.SetOut(print.Escaped(a.Stdout))
		root.SetErr(print.Escaped(a.Stderr))
		var cmd *cobra.Command
		cmd, err = root.ExecuteContextC(ctx)
		nameCommand(err, cmd)
	}
	// A pipe closed by its reader (`meridian get … | head`) is not a failure of
	// the command.
	if errors.Is(err, print.ErrClosed) {
		return exit.OK
	}
	r := exit.Explain(err)
	a.Failure(r.Lines...)
	return r.Code
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

// nameCommand adds to a usage error the command whose help explains it.
func nameCommand(err error, cmd *cobra.Command) {
	var usage *exit.UsageError
	if errors.As(err, &usage) && usage.Command == "" && cmd != nil {
		usage.Command = cmd.CommandPath()
	}
}
