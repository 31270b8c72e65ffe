package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errGateClosed is why a write that waited for the gate was given up.
var errGateClosed = errors.New("it has not ended in time")

// Why the gate is closed.
const (
	whileRestoring   = "the state is being replaced by a backup"
	whileHandingOver = "the leadership is being handed over"
)

// gate holds writes back while the state is being replaced, or while another
// server takes over. The zero value is open.
type gate struct {
	mu     sync.Mutex
	inside int
	why    string
	// reopened is closed when the gate is released; nil while it is open.
	reopened chan struct{}
	// emptied is closed when the last write leaves a closed gate.
	emptied chan struct{}
}

// pass lets a write through, or returns a channel that is closed when the gate is
// released.
func (g *gate) pass() (released <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reopened == nil {
		g.inside++
		return nil
	}
	return g.reopened
}

// enter lets a write through, waiting while the gate is closed, for no longer than
// patience. leave must follow once the write is decided.
//
// Errors: ErrUnavailable, nothing was written.
func (g *gate) enter(ctx context.Context, patience time.Duration) error {
	reopened := g.pass()
	if reopened == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errGateClosed)
	defer cancel()
	for ; reopened != nil; reopened = g.pass() {
		select {
		case <-reopened:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", ErrUnavailable, g.reason(), context.Cause(ctx))
		}
	}
	return nil
}

func (g *gate) reason() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.emptied != nil {
		close(g.emptied)
		g.emptied = nil
	}
}

// hold keeps new writes out and returns once those inside have left. Unless it
// fails, release must follow.
//
// Errors: ErrUnavailable, the gate is as it was.
func (g *gate) hold(ctx context.Context, why string) error {
	g.mu.Lock()
	if g.reopened != nil {
		defer g.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrUnavailable, g.why)
	}
	g.why = why
	g.reopened = make(chan struct{})
	var emptied chan struct{}
	if g.inside > 0 {
		emptied = make(chan struct{})
		g.emptied = emptied
	}
	g.mu.Unlock()
	if emptied == nil {
		return nil
	}
	select {
	case <-emptied:
		return nil
	case <-ctx.Done():
		g.release()
		return fmt.Errorf("%w: writes under way did not end: %w", ErrUnavailable, context.Cause(ctx))
	}
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.reopened)
	g.reopened, g.emptied = nil, nil
}
