// Command meridian-global runs a server of the global control plane.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"meridian/internal/global"
	"meridian/internal/server"
	"meridian/internal/version"
)

func main() {
	os.Exit(server.Run(os.Stderr, run))
}

func run(ctx context.Context, hangups <-chan os.Signal) error {
	flags := pflag.NewFlagSet("meridian-global", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(os.Stdout)
	flags.Usage = func() {
		fmt.Printf("meridian-global runs a server of the global control plane.\n\nUsage:\n  meridian-global --data-dir DIR [flags]\n\nFlags:\n%s\nEvery flag is also an environment variable (%sGRPC_ADDR) and a key of --config.\n",
			flags.FlagUsages(), global.EnvPrefix)
	}
	var cfg global.Config
	cfg.Bind(flags)
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := server.ParseFlags(flags, os.Args[1:], global.EnvPrefix, os.Environ()); err != nil {
		return err
	}
	if *showVersion {
		fmt.Println("meridian-global", version.String())
		return nil
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	log, err := server.NewLogger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	return global.Run(ctx, cfg, log, hangups)
}
