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

// aborting is how long a command may take to put things in order after a second signal.
const aborting = 3 * time.Second

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
			cancel()
		}
	}
	return finish(done, signals, &editor)
}

// stopping is what finish knows of a command: see cli.Foreground.
type stopping interface {
	Grace() time.Duration
	Abort()
}

// finish waits for a command that was told to stop, and returns the exit code. A command
// that reads standard input cannot be stopped: it is left behind. A second signal ends the
// process at once, or has a command that has something to put in order do so at once.
func finish(done <-chan int, signals <-chan os.Signal, command stopping) int {
	limit, aborted := time.After(grace+command.Grace()), false
	for {
		select {
		case code := <-done:
			if aborted {
				return interrupted
			}
			return code
		case <-signals:
			if aborted || command.Grace() == 0 {
				return interrupted
			}
			aborted = true
			command.Abort()
			limit = time.After(aborting)
		case <-limit:
			return interrupted
		}
	}
}
