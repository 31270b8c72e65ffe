package global

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"meridian/internal/consensus"
)

const (
	// statusInterval is how often a server that waits for the others looks again at
	// what is missing, tellFirst when it first says so in the log, and tellEvery how
	// often after that.
	statusInterval = time.Second
	firstWarning   = 3 * time.Second
	warnInterval   = 15 * time.Second
	// bootstrapPatience is how long a server that does not lead waits for the
	// leader to write what a new global begins with.
	bootstrapPatience = 5 * time.Second
	// leaderTimeout is how long a request waits for a leader while there is none:
	// for some elections, and not so long that its caller gives up without having
	// been told.
	leaderTimeout = 4 * time.Second
)

// awaitStart waits until everything committed has been applied here and the
// global has what it begins with. It waits for as long as it takes: a server of
// several that gave up would only make it longer.
func (g *global) awaitStart(ctx context.Context) error {
	look, tell := time.NewTicker(statusInterval), time.NewTicker(firstWarning)
	defer look.Stop()
	defer tell.Stop()
	for {
		g.Readiness.SetReason(g.waitReason(ctx))
		select {
		case <-g.Node.Ready():
			if err := removeJoinState(g.cfg.DataDir); err != nil {
				return err
			}
			return g.awaitBootstrap(ctx)
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-tell.C:
			tell.Reset(warnInterval)
			g.Log.Warn("not ready yet", "reason", g.waitReason(ctx))
		}
	}
}

// waitReason says what the log of this server lacks to be ready: a leader, and who
// of those that could choose one is here.
func (g *global) waitReason(ctx context.Context) string {
	if err := g.Node.Disk().Err(); err != nil {
		return err.Error()
	}
	waiting := "waiting for " + g.Node.Waiting()
	if id, _ := g.Node.Leader(); id != "" {
		return waiting + ", " + id
	}
	return waiting + memberSummary(g.Node.Members(ctx), g.cfg.Name)
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

// awaitBootstrap returns when the global has its initial resources. The leader
// writes them, the others wait for them: for a limited time, since they may have
// been deleted, and the leader writes them again only when it becomes leader.
func (g *global) awaitBootstrap(ctx context.Context) error {
	patience := time.NewTimer(bootstrapPatience)
	defer patience.Stop()
	for {
		if g.Node.IsLeader() {
			err := g.bootstrap(ctx)
			if err == nil || ctx.Err() != nil {
				return nil
			}
			if !retryable(err) {
				return err
			}
		}
		missing := g.missing()
		if missing == "" {
			return nil
		}
		g.Readiness.SetReason("waiting for the leader to write " + missing)
		changed, stop := context.WithTimeout(ctx, statusInterval)
		err := g.Store.Wait(changed, g.Store.Revision()+1)
		stop()
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			if leader, _ := g.Node.Leader(); leader != "" && !g.Node.IsLeader() {
				g.Log.Warn("the leader has not written the initial resources of a global: continuing without", "missing", missing, "error", err)
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
func (g *global) bootstrapOnLeadership(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.leadershipGained:
		}
		if err := g.bootstrap(ctx); err != nil && !retryable(err) && ctx.Err() == nil {
			g.Log.Error("cannot write what a global begins with", "error", err)
		}
	}
}
