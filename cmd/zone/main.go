// Command meridian-zone runs a zone control plane.
package main

import (
	"context"
	"log/slog"
	"os"

	"meridian/internal/server"
	"meridian/internal/zone"
)

func main() {
	var cfg zone.Config
	server.Program{
		Name: "meridian-zone", Summary: "runs a zone control plane.",
		Usage: "--data-dir DIR --name ZONE [--join-bundle FILE] [flags]", EnvPrefix: zone.EnvPrefix, Flags: &cfg, Options: &cfg.Options,
		Serve: func(ctx context.Context, log *slog.Logger, hangups <-chan os.Signal) error {
			return zone.Run(ctx, cfg, log, hangups)
		},
	}.Main()
}
