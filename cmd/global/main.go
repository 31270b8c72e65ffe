// Command meridian-global runs a server of the global control plane.
package main

import (
	"context"
	"log/slog"
	"os"

	"meridian/internal/global"
	"meridian/internal/server"
)

func main() {
	var cfg global.Config
	server.Program{
		Name: "meridian-global", Summary: "runs a server of the global control plane.",
		Usage: "--data-dir DIR [flags]", EnvPrefix: global.EnvPrefix, Flags: &cfg, Options: &cfg.Options,
		Serve: func(ctx context.Context, log *slog.Logger, hangups <-chan os.Signal) error {
			return global.Run(ctx, cfg, log, hangups)
		},
	}.Main()
}
