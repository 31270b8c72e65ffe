// Command meridian is the operator's command: it applies, shows and explains
// resources. Package cli is all of it; this file connects it to the process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"meridian/internal/cli"
)

// interrupted is what a shell expects of a process that SIGINT ended.
const interrupted = 130

// grace is how long a command may take to stop after a signal.
const grace = time.Second

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	done := make(chan int, 1)
	go func() { done <- cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()) }()
	select {
	case code := <-done:
		return code
	case <-ctx.Done():
		stop() // a second signal ends the process at once
	}
	// A command that reads standard input cannot be stopped: it is left behind.
	select {
	case code := <-done:
		return code
	case <-time.After(grace):
		return interrupted
	}
}
