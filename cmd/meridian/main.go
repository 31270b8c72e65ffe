// Command meridian is the operator's command: it applies, shows and explains
// resources. Package cli is all of it; this file connects it to the process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"meridian/internal/cli"
)

func main() {
	os.Exit(run())
}

func run() int {
	// The first signal asks the command to stop; NotifyContext is released then,
	// so that a second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())
}
