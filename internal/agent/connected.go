package agent

import (
	"context"

	"google.golang.org/grpc/stats"
)

// connected counts the connections of the agent's socket.
type connected struct{ agent *agent }

// TagConn implements stats.Handler.
func (connected) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (c connected) HandleConn(_ context.Context, s stats.ConnStats) {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s.(type) {
	case *stats.ConnBegin:
		a.connections++
	case *stats.ConnEnd:
		if a.connections--; a.connections == 0 && a.idle != nil {
			close(a.idle)
			a.idle = nil
		}
	}
}

// TagRPC implements stats.Handler.
func (connected) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (connected) HandleRPC(context.Context, stats.RPCStats) {}

// drained returns a channel that is closed once no client is connected, or the drain
// time is over.
func (a *agent) drained() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	over, idle := make(chan struct{}), make(chan struct{})
	if a.connections == 0 {
		close(over)
		return over
	}
	a.idle = idle
	a.cfg.Log.Info("draining: waiting for the application to close its connections", "connections", a.connections, "for", a.cfg.Drain)
	go func() {
		defer close(over)
		select {
		case <-idle:
		case <-a.drainTimeOver():
		case <-a.cfg.Abort:
		}
	}()
	return over
}
