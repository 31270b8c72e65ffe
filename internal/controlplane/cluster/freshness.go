package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meridian/internal/rpcerr"
)

const (
	// suspendAfter is how long a server may be cut off from the leader before it
	// lets its zones go: longer than an election takes, with time for a second
	// one.
	suspendAfter = 5 * time.Second
	// readInterval is how often a server makes sure that it is up to date, and how
	// long that may take.
	readInterval = time.Second
)

// errStale is why a server is not ready that runs well otherwise.
var errStale = errors.New("cut off from the leader: what is read here may be out of date, and clients are sent to other servers")

// reasonStale names it for programs.
const reasonStale = "CUT_OFF"

// checkFresh is the readiness of what this server tells zones.
func (c *Server) checkFresh() error {
	if c.stale.Load() {
		return errStale
	}
	return nil
}

// watchFreshness verifies, until ctx ends, that what this server sends to zones is
// up to date: a server that cannot do a linearizable read for some time may lag far
// behind without noticing, because it is partitioned, because its disk hangs, or
// because there is no leader. It then disconnects its zones and watches, so that
// they move to a server that is up to date, and serves them again when it is.
func (c *Server) watchFreshness(ctx context.Context) error {
	tick := time.NewTicker(readInterval)
	defer tick.Stop()
	current := time.Now()
	for {
		assured, cancel := context.WithTimeout(ctx, readInterval)
		_, err := c.Node.Read(assured)
		cancel()
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && c.stale.CompareAndSwap(true, false):
			c.Log.Info("up to date again: clients are served", "after", now.Sub(current).Round(time.Second))
			c.hooks.Resume()
			c.GRPC.Resume()
			current = now
		case err == nil:
			current = now
		case now.Sub(current) >= suspendAfter && c.stale.CompareAndSwap(false, true):
			c.Log.Warn("cut off from the leader: clients are sent to other servers", "since", current, "error", err)
			c.hooks.Suspend(fmt.Sprintf("it has had no touch with a leader for %s", suspendAfter))
			c.GRPC.Suspend(rpcerr.New(rpcerr.Unavailable, reasonStale, "%w", errStale))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
