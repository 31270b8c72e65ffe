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
// printed already, and their proxies have accepted it where that is asked for, and says
// meanwhile which have not.
func (a *app) waitForZones(ctx context.Context, c *client.Client, request *meridianv1.WaitForZonesRequest) error {
	var (
		pending []*meridianv1.PendingZone
		told    string
	)
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
	return explainWait(c, err, request, pending)
}

// waitedFor names the zones that are waited for.
func waitedFor(zones []*meridianv1.PendingZone) string {
	names := make([]string, len(zones))
	for i, z := range zones {
		names[i] = fmt.Sprintf("zone %s (%s)", z.GetName(), z.GetState())
		if z.GetProxiesBehind() > 0 {
			names[i] = fmt.Sprintf("%s in zone %s", proxies(z.GetProxiesBehind()), z.GetName())
		}
	}
	return strings.Join(names, ", ")
}

func proxies(n uint32) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

// reasonProxiesRejected is why a wait ends early: only proxies are left that have
// rejected the change.
const reasonProxiesRejected = "PROXIES_REJECTED"

// explainWait says which zones a wait ended without, and that the write stands.
func explainWait(c *client.Client, err error, request *meridianv1.WaitForZonesRequest, pending []*meridianv1.PendingZone) error {
	revision, what := request.GetRevision(), "not every zone has applied it"
	if request.GetEnforced() {
		what = "not every proxy has accepted it"
	}
	var f *exit.Failure
	var answered *rpcerr.Error
	var out *exit.Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f) && f.Code == exit.Timeout, errors.As(err, &answered) && answered.Code == rpcerr.Timeout:
		out = exit.Failf(exit.Timeout, "revision %d is written, but %s within %s", revision, what, c.Timeout)
	case rpcerr.HasReason(err, reasonProxiesRejected):
		out = exit.Failf(exit.Timeout, "revision %d is written, but proxies have rejected it: `meridian proxy status` says why", revision)
	case errors.Is(err, context.Canceled):
		out = exit.Failf(exit.Interrupted, "interrupted: revision %d is written, but it is not known whether %s", revision, strings.Replace(what, "not every", "every", 1))
	default:
		report := exit.Explain(err)
		if rpcerr.CodeOf(err) == rpcerr.TooLarge { // there are too many waits: the input is not at fault
			report.Code = exit.Unavailable
		}
		out = exit.Failf(report.Code, "revision %d is written, but it is not known whether %s: %s", revision, strings.Replace(what, "not every", "every", 1), report.Lines[0])
		return out.With(report.Lines[1:]...)
	}
	for _, z := range pending {
		line := fmt.Sprintf("  zone %s is %s at revision %d", z.GetName(), z.GetState(), z.GetRevision())
		if z.GetLastError() != "" {
			line += ": " + z.GetLastError()
		}
		if n := z.GetProxiesBehind(); n > 0 {
			line = fmt.Sprintf("  %s in zone %s", proxies(n), z.GetName())
		}
		out.Details = append(out.Details, line)
		for _, p := range z.GetProxies() {
			out.Details = append(out.Details, fmt.Sprintf("    %s in mesh %s: %s", p.GetDataplane(), p.GetMesh(), p.GetState()))
		}
	}
	if len(pending) == 0 {
		return out.With("`meridian zones` shows how far they are.")
	}
	return out
}
