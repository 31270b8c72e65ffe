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

// maxPassedBytes bounds what is under way to one collector.
const maxPassedBytes = 4 << 20

// logCollectors passes log entries of an Envoy on to collectors of OpenTelemetry.
type logCollectors struct {
	log *slog.Logger

	mu    sync.Mutex
	ended bool
	known map[string]*logCollector // by address
}

// logCollector is one of them.
type logCollector struct {
	conn *grpc.ClientConn
	// calls are those under way to it, which have bytes.
	calls, bytes int
	// failed is why it did not take the last entries; empty if it did.
	failed string
}

func newLogCollectors(log *slog.Logger) *logCollectors {
	return &logCollectors{log: log, known: map[string]*logCollector{}}
}

// close ends what is under way.
func (c *logCollectors) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, to := range c.known {
		_ = to.conn.Close()
	}
	clear(c.known)
}

// pass passes encoded entries on to a collector, and returns its answer. It waits up to
// logTimeout for one that cannot be reached. The error is a status, for Envoy.
func (c *logCollectors) pass(ctx context.Context, address string, data []byte) (answer []byte, err error) {
	to, err := c.begin(address, len(data))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	m := &message{}
	err = to.conn.Invoke(ctx, ExportLogs, &message{data}, m, grpc.ForceCodecV2(bytesCodec{}), grpc.WaitForReady(true))
	c.took(to, address, len(data), err)
	if err != nil {
		return nil, err
	}
	return m.data, nil
}

// begin counts a call to a collector.
func (c *logCollectors) begin(address string, size int) (*logCollector, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.known[address]
	if to == nil && len(c.known) == maxReceivers {
		maps.DeleteFunc(c.known, func(_ string, other *logCollector) bool {
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
		return nil, status.Errorf(codes.ResourceExhausted, "entries are under way to %d collectors", maxReceivers)
	case to == nil:
		conn, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithIdleTimeout(logIdle), grpc.WithUserAgent("meridian-proxy/"+version.String()))
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		to = &logCollector{conn: conn}
		c.known[address] = to
	}
	if to.calls > 0 && to.bytes+size > maxPassedBytes {
		c.failed(to, address, "too many entries wait for it")
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes are under way to the collector", to.bytes)
	}
	to.calls++
	to.bytes += size
	return to, nil
}

// took notes the end of a call.
func (c *logCollectors) took(to *logCollector, address string, size int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to.calls--
	to.bytes -= size
	switch {
	case c.ended:
	case err != nil:
		c.failed(to, address, rpcerr.FromStatus(err).Error())
	case to.failed != "":
		to.failed = ""
		c.log.Info("the collector takes log entries again", "collector", address)
	}
}

// failed logs why a collector does not take entries, where it did before.
func (c *logCollectors) failed(to *logCollector, address, why string) {
	if to.failed == "" {
		c.log.Warn("log entries are dropped: a collector does not take them", "collector", address, "error", why)
	}
	to.failed = why
}
