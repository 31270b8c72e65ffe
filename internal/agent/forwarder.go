package agent

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"meridian/internal/rpcerr"
	"meridian/internal/version"
)

const (
	// maxPassedBytes bounds what is under way to one collector, in bytes.
	maxPassedBytes = 4 << 20
	// maxPassedCalls bounds the calls under way to it. They are on one connection of Envoy
	// with those for all others, and count to maxRelayedStreams: those for a collector that
	// hangs do not have the others wait.
	maxPassedCalls = 32
)

// forwarder passes log entries and spans of an Envoy on to collectors of OpenTelemetry.
type forwarder struct {
	log *slog.Logger

	mu    sync.Mutex
	ended bool
	known map[destination]*forwarded
}

// destination is a collector, and what it is sent, by its method and its address.
type destination struct{ method, address string }

// telemetry names what it is sent, for messages.
func (d destination) telemetry() string {
	if d.method == ExportTraces {
		return "spans"
	}
	return "log entries"
}

// forwarded is what goes to a destination.
type forwarded struct {
	conn *grpc.ClientConn
	// calls are those under way to it, which have bytes.
	calls, bytes int
	// failed is why it did not take the last ones; empty if it did.
	failed string
}

func newForwarder(log *slog.Logger) *forwarder {
	return &forwarder{log: log, known: map[destination]*forwarded{}}
}

// close ends what is under way.
func (c *forwarder) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, to := range c.known {
		_ = to.conn.Close()
	}
	clear(c.known)
}

// pass passes what is encoded on to a collector, and returns its answer. It waits up to
// logTimeout for one that cannot be reached. The error is a status, for Envoy.
func (c *forwarder) pass(ctx context.Context, at destination, data []byte) (answer []byte, err error) {
	to, err := c.begin(at, len(data))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	m := &message{}
	err = to.conn.Invoke(ctx, at.method, &message{data}, m, grpc.ForceCodecV2(bytesCodec{}), grpc.WaitForReady(true))
	c.took(to, at, len(data), err)
	if err != nil {
		return nil, err
	}
	return m.data, nil
}

// begin counts a call to a collector.
func (c *forwarder) begin(at destination, size int) (*forwarded, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.known[at]
	if to == nil && len(c.known) == maxReceivers {
		maps.DeleteFunc(c.known, func(_ destination, other *forwarded) bool {
			idle := other.calls == 0
			if idle {
				_ = other.conn.Close()
			}
			return idle
		})
	}
	switch {
	case c.ended:
		return nil, status.Error(codes.Unavailable, "the agent ends")
	case to == nil && len(c.known) == maxReceivers:
		return nil, status.Errorf(codes.ResourceExhausted, "telemetry is under way to %d collectors", maxReceivers)
	case to == nil:
		conn, err := grpc.NewClient("dns:///"+at.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithIdleTimeout(logIdle), grpc.WithUserAgent("meridian-proxy/"+version.String()))
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		to = &forwarded{conn: conn}
		c.known[at] = to
	}
	if to.calls == maxPassedCalls || to.calls > 0 && to.bytes+size > maxPassedBytes {
		c.failed(to, at, "too much waits for it")
		return nil, status.Errorf(codes.ResourceExhausted, "%d calls with %d bytes are under way to the collector", to.calls, to.bytes)
	}
	to.calls++
	to.bytes += size
	return to, nil
}

// took notes the end of a call.
func (c *forwarder) took(to *forwarded, at destination, size int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to.calls--
	to.bytes -= size
	switch {
	case c.ended:
	case err != nil:
		c.failed(to, at, rpcerr.FromStatus(err).Error())
	case to.failed != "":
		to.failed = ""
		c.log.Info("the collector takes what it is sent again", "collector", at.address, "sent", at.telemetry())
	}
}

// failed logs why a collector does not take what it is sent, where it did before.
func (c *forwarder) failed(to *forwarded, at destination, why string) {
	if to.failed == "" {
		c.log.Warn("telemetry is dropped: a collector does not take it", "collector", at.address, "sent", at.telemetry(), "error", why)
	}
	to.failed = why
}
