package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"meridian/internal/version"
)

// Program is the command line of a server.
type Program struct {
	// Name is the program's, such as meridian-zone.
	Name string
	// Summary is what it does, the end of a sentence that begins with its name, and
	// Usage which flags have to be given.
	Summary, Usage string
	// EnvPrefix begins the environment variables that stand for flags.
	EnvPrefix string
	// Flags are the settings, and Options those of them that every server has.
	Flags interface {
		Bind(flags *pflag.FlagSet)
		Validate() error
	}
	Options *Options
	// Serve runs the server with the settings until ctx ends. hangups delivers each
	// SIGHUP.
	Serve func(ctx context.Context, log *slog.Logger, hangups <-chan os.Signal) error
}

// Main runs the program and ends the process.
func (p Program) Main() { os.Exit(Run(os.Stderr, p.run)) }

func (p Program) run(ctx context.Context, hangups <-chan os.Signal) error {
	flags := pflag.NewFlagSet(p.Name, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(os.Stdout)
	flags.Usage = func() {
		fmt.Printf("%s %s\n\nUsage:\n  %s %s\n\nFlags:\n%s\nEvery flag is also an environment variable (%sGRPC_ADDR) and a key of --config.\n",
			p.Name, p.Summary, p.Name, p.Usage, flags.FlagUsages(), p.EnvPrefix)
	}
	p.Flags.Bind(flags)
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := ParseFlags(flags, os.Args[1:], p.EnvPrefix, os.Environ()); err != nil {
		return err
	}
	if *showVersion {
		fmt.Println(p.Name, version.String())
		return nil
	}
	if err := p.Flags.Validate(); err != nil {
		return err
	}
	log, err := NewLogger(os.Stderr, p.Options.LogLevel, p.Options.LogFormat)
	if err != nil {
		return err
	}
	return p.Serve(ctx, log, hangups)
}
