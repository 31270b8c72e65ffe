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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var editor cli.Foreground
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ(), &editor)
	}()
	for ctx.Err() == nil {
		select {
		case code := <-done:
			return code
		case s := <-signals:
			if s == os.Interrupt && editor.Running() {
				continue // it was meant for the editor
			}
			signal.Stop(signals) // a second signal ends the process at once
			cancel()
		}
	}
	// A command that reads standard input cannot be stopped: it is left behind.
	select {
	case code := <-done:
		return code
	case <-time.After(grace + editor.Grace()):
		return interrupted
	}
}
