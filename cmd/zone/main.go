// Command meridian-zone runs a zone control plane.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"meridian/internal/server"
	"meridian/internal/version"
	"meridian/internal/zone"
)

func main() {
	os.Exit(server.Run(os.Stderr, run))
}

func run(ctx context.Context, hangups <-chan os.Signal) error {
	flags := pflag.NewFlagSet("meridian-zone", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(os.Stdout)
	flags.Usage = func() {
		fmt.Printf("meridian-zone runs a zone control plane.\n\nUsage:\n  meridian-zone --data-dir DIR --name ZONE [--join-bundle FILE] [flags]\n\nFlags:\n%s\nEvery flag is also an environment variable (%sGRPC_ADDR) and a key of --config.\n",
			flags.FlagUsages(), zone.EnvPrefix)
	}
	var cfg zone.Config
	cfg.Bind(flags)
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := server.ParseFlags(flags, os.Args[1:], zone.EnvPrefix, os.Environ()); err != nil {
		return err
	}
	if *showVersion {
		fmt.Println("meridian-zone", version.String())
		return nil
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	log, err := server.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	return zone.Run(ctx, cfg, log, hangups)
}
