package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"meridian/internal/consensus"
	"meridian/internal/rbac"
	"meridian/internal/resource"
)

const (
	// statusInterval is how often a server that waits for the others looks again at
	// what is missing, tellFirst when it first says so in the log, and tellEvery how
	// often after that.
	statusInterval = time.Second
	firstWarning   = 3 * time.Second
	warnInterval   = 15 * time.Second
	// bootstrapPatience is how long a server that does not lead waits for the
	// leader to write what a new control plane begins with.
	bootstrapPatience = 5 * time.Second
	// leaderTimeout is how long a request waits for a leader while there is none:
	// for some elections, and not so long that its caller gives up without having
	// been told.
	leaderTimeout = 4 * time.Second
)

// AwaitStart waits until everything committed has been applied here and the
// control plane has what it begins with. It waits for as long as it takes: a server of
// several that gave up would only make it longer.
func (c *Server) AwaitStart(ctx context.Context) error {
	look, tell := time.NewTicker(statusInterval), time.NewTicker(firstWarning)
	defer look.Stop()
	defer tell.Stop()
	for {
		c.Readiness.SetReason(c.waitReason(ctx))
		select {
		case <-c.Node.Ready():
			if err := removeJoinState(c.cfg.DataDir); err != nil {
				return err
			}
			return c.awaitBootstrap(ctx)
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-tell.C:
			tell.Reset(warnInterval)
			c.Log.Warn("not ready yet", "reason", c.waitReason(ctx))
		}
	}
}

// waitReason says what the log of this server lacks to be ready: a leader, and who
// of those that could choose one is here.
func (c *Server) waitReason(ctx context.Context) string {
	if err := c.Node.Disk().Err(); err != nil {
		return err.Error()
	}
	waiting := "waiting for " + c.Node.Waiting()
	if id, _ := c.Node.Leader(); id != "" {
		return waiting + ", " + id
	}
	return waiting + memberSummary(c.Node.Members(ctx), c.cfg.Name)
}

// memberSummary says which other members answer, and why those do not that do not.
func memberSummary(members []consensus.Member, self string) string {
	var here, away []string
	for _, m := range members {
		switch {
		case m.Name == self:
		case m.State == consensus.StateUnreachable:
			away = append(away, fmt.Sprintf("%s at %s (%s)", m.Name, m.Raft, m.Problem))
		default:
			here = append(here, m.Name)
		}
	}
	var text string
	if len(here) > 0 {
		text += "; reached " + strings.Join(here, ", ")
	}
	if len(away) > 0 {
		text += "; cannot reach " + strings.Join(away, ", ")
	}
	return text
}

// awaitBootstrap returns when the control plane has its initial resources. The leader
// writes them, the others wait for them: for a limited time, since they may have
// been deleted, and the leader writes them again only when it becomes leader.
func (c *Server) awaitBootstrap(ctx context.Context) error {
	patience := time.NewTimer(bootstrapPatience)
	defer patience.Stop()
	for {
		if c.Node.IsLeader() {
			err := c.Bootstrap(ctx, c.hooks.Bootstrap())
			if err == nil || ctx.Err() != nil {
				return nil
			}
			if !retryable(err) {
				return err
			}
		}
		missing := c.missing()
		if missing == "" {
			return nil
		}
		c.Readiness.SetReason("waiting for the leader to write " + missing)
		changed, stop := context.WithTimeout(ctx, statusInterval)
		err := c.Store.Wait(changed, c.Store.Revision()+1)
		stop()
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			if leader, _ := c.Node.Leader(); leader != "" && !c.Node.IsLeader() {
				c.Log.Warn("the leader has not written the initial resources: continuing without", "missing", missing, "error", err)
				return nil
			}
			patience.Reset(bootstrapPatience)
		default:
		}
	}
}

// retryable reports whether an error of the log is about the leadership of the
// moment.
func retryable(err error) bool {
	return errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, consensus.ErrUnavailable) || errors.Is(err, consensus.ErrUnknownOutcome)
}

// bootstrapOnLeadership writes the initial resources that a previous leader may not
// have written, whenever this server becomes leader, until ctx ends.
func (c *Server) bootstrapOnLeadership(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.leadershipGained:
		}
		if err := c.Bootstrap(ctx, c.hooks.Bootstrap()); err != nil && !retryable(err) && ctx.Err() == nil {
			c.Log.Error("cannot write the initial resources", "error", err)
		}
	}
}

// missing names something of what a control plane begins with that is not there, or
// nothing.
func (c *Server) missing() string {
	view := c.Store.View()
	if _, ok := view.Get(resource.Key{Kind: resource.KindAccessRole, Name: rbac.AdminRole}); !ok {
		return "the role " + rbac.AdminRole
	}
	for _, use := range c.hooks.Bootstrap().Uses {
		if !c.Keys.Has(use) {
			return "a signing key for " + string(use) + "s"
		}
	}
	if c.Keys.AdminToken() == "" {
		return "the admin token"
	}
	return ""
}
