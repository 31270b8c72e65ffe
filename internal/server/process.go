package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
)

// Exit codes of the servers, the same as the command's.
const (
	ExitOK       = 0
	ExitFailure  = 1
	ExitUsage    = 2
	exitOnSignal = 130
)

// Run runs a server until it fails or a signal asks it to stop, and returns the
// process's exit code. SIGINT and SIGTERM cancel the context that run is given;
// a second one ends the process at once. hangups delivers each SIGHUP.
func Run(stderr io.Writer, run func(ctx context.Context, hangups <-chan os.Signal) error) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)

	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- run(ctx, hangups) }()
	for stopping := false; ; {
		select {
		case err := <-done:
			return report(stderr, err)
		case s := <-signals:
			if stopping {
				_, _ = fmt.Fprintf(stderr, "second %s: stopping at once\n", s)
				return exitOnSignal
			}
			stopping = true
			cancel(fmt.Errorf("received %s", s))
		}
	}
}

func report(stderr io.Writer, err error) int {
	var usage *UsageError
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
		return ExitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "Error: %v\n", err)
		return ExitUsage
	default:
		_, _ = fmt.Fprintf(stderr, "Error: %v\n", err)
		return ExitFailure
	}
}

// NewLogger returns the process's logger. level is debug, info, warn or error;
// format is text or json.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level: %q is none of debug, info, warn, error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, usagef("--log-format: %q is neither text nor json", format)
	}
}
