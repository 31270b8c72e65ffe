package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/rpcerr"
)

// waitForZones returns when zones have applied a revision that is written and
// printed already, and says meanwhile which have not.
func (a *app) waitForZones(ctx context.Context, c *client.Client, revision uint64, connectedOnly bool) error {
	var (
		pending []*meridianv1.PendingZone
		told    string
	)
	request := &meridianv1.WaitForZonesRequest{Revision: revision, ConnectedOnly: connectedOnly}
	err := c.Call(ctx, func(ctx context.Context) error {
		stream, err := c.WaitForZones(ctx, request)
		for err == nil {
			var m *meridianv1.WaitForZonesResponse
			if m, err = stream.Recv(); err != nil {
				break
			}
			for _, warning := range m.GetWarnings() {
				a.Warn(warning)
			}
			pending = m.GetPending()
			if text := waitedFor(pending); text != "" && text != told {
				a.Message("Waiting for %s.", text)
				told = text
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	return explainWait(c, err, revision, pending)
}

// waitedFor names the zones that are waited for.
func waitedFor(zones []*meridianv1.PendingZone) string {
	names := make([]string, len(zones))
	for i, z := range zones {
		names[i] = fmt.Sprintf("zone %s (%s)", z.GetName(), z.GetState())
	}
	return strings.Join(names, ", ")
}

// explainWait says which zones a wait ended without.
func explainWait(c *client.Client, err error, revision uint64, pending []*meridianv1.PendingZone) error {
	var f *exit.Failure
	var answered *rpcerr.Error
	var out *exit.Failure
	switch {
	case errors.As(err, &f) && f.Code == exit.Timeout, errors.As(err, &answered) && answered.Code == rpcerr.Timeout:
		out = exit.Failf(exit.Timeout, "revision %d is written, but not every zone has applied it within %s", revision, c.Timeout)
	case errors.Is(err, context.Canceled):
		out = exit.Failf(exit.Interrupted, "interrupted: revision %d is written, but not every zone is known to have applied it", revision)
	default:
		return err
	}
	for _, z := range pending {
		line := fmt.Sprintf("  zone %s is %s at revision %d", z.GetName(), z.GetState(), z.GetRevision())
		if z.GetLastError() != "" {
			line += ": " + z.GetLastError()
		}
		out.Details = append(out.Details, line)
	}
	if len(pending) == 0 {
		return out.With("`meridian zones` shows how far they are.")
	}
	return out
}
