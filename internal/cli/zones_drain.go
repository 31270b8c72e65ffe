package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

const (
	// stateDraining is the state of a zone that is in sync and to drain.
	stateDraining = "draining"
	// drainTimeout is how long a drain is waited for unless --timeout says otherwise.
	drainTimeout = 5 * time.Minute
	// drainPoll is how often it is looked at: zones say every second how far they are.
	drainPoll = time.Second
)

func newZoneDrain(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain ZONE",
		Short: "Have the dataplanes of a zone leave, and wait for it",
		Long: `Have a zone take no dataplanes, and tell the proxies and agents that it has to leave:
others send them no more requests, and their registrations end with a code that has
them go to another address, if they were given one. What is left is configured as
before. Dataplanes that an operator applied stay until they are deleted.

The command waits until the zone has no dataplanes, for --timeout (5m when absent;
then the exit code is 6, and the zone continues draining). The zone drains, over
restarts, until 'meridian zones enable ZONE'. A zone that is offline begins when
it connects. The last zone that takes dataplanes is drained only with --force.`,
		Example: "  meridian zones drain east --timeout 10m",
		Args:    exactly("ZONE"),
	}
	force := cmd.Flags().Bool("force", false, "drain the last zone that takes dataplanes")
	output := bindResults(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("timeout") {
			a.connection.Timeout = drainTimeout
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), a.connection.Timeout)
		defer cancel()
		if !*force {
			if err := a.checkAnotherZone(ctx, args[0]); err != nil {
				return err
			}
		}
		if err := a.switchZone(ctx, output.Value, args[0], drainZone); err != nil {
			return err
		}
		return a.awaitDrained(cmd.Context(), ctx, args[0])
	}
	return cmd
}

// checkAnotherZone fails where no other zone takes dataplanes, or it is not known
// whether one does.
func (a *app) checkAnotherZone(ctx context.Context, name string) error {
	known, err := call(ctx, a, (*client.Client).Zones, &meridianv1.ZonesRequest{})
	if err != nil {
		return err
	}
	takes := func(z *meridianv1.ZoneStatus) bool {
		return z.GetName() != name && len(z.GetInstances()) > 0 && z.GetDrain() == nil
	}
	if !slices.ContainsFunc(known.GetZones(), func(z *meridianv1.ZoneStatus) bool { return z.GetName() == name }) {
		return nil // writing it says that there is none
	}
	switch {
	case slices.ContainsFunc(known.GetZones(), takes):
		return nil
	case len(known.GetNotes()) > 0:
		return exit.Failf(exit.Conflict, "drain zone %s: it may be the last one that takes dataplanes: %s", name, known.GetNotes()[0]).
			With("Use --force to drain it.")
	}
	return exit.Failf(exit.Conflict, "drain zone %s: no other zone is connected that takes dataplanes", name).
		With("Use --force to drain it: its proxies have nowhere to go.")
}

// awaitDrained returns when a zone that was told to drain has no dataplanes, and says
// meanwhile how many are left. limited ends with the time for it, ctx with the user's
// patience.
func (a *app) awaitDrained(ctx, limited context.Context, name string) error {
	told, last, until := "", "", a.Now().Add(a.connection.Timeout)
	for {
		state, done, err := a.drainState(limited, name)
		switch {
		case ctx.Err() != nil:
			return exit.Failf(exit.Interrupted, "interrupted: zone %s continues draining", name).With(stopDraining(name))
		case limited.Err() != nil, err == nil && !done && a.Now().After(until):
			if err == nil {
				last = state
			}
			failure := exit.Failf(exit.Timeout, "zone %s is not drained within %s; it continues draining", name, a.connection.Timeout)
			if last != "" {
				failure = failure.With("  " + last)
			}
			return failure.With(stopDraining(name))
		case err != nil:
			return err
		case done:
			a.Message("%s", state)
			return nil
		}
		if last = state; state != told {
			a.Message("Waiting for %s.", state)
			told = state
		}
		client.Pause(limited, drainPoll)
	}
}

func stopDraining(name string) string {
	return "`meridian zones enable " + name + "` ends the draining."
}

// drainState says how far a zone has drained, and whether it is done.
func (a *app) drainState(ctx context.Context, name string) (state string, done bool, err error) {
	known, err := call(ctx, a, (*client.Client).Zones, &meridianv1.ZonesRequest{})
	if err != nil {
		return "", false, err
	}
	at := slices.IndexFunc(known.GetZones(), func(z *meridianv1.ZoneStatus) bool { return z.GetName() == name })
	if at < 0 || known.GetZones()[at].GetDrain() == nil {
		return "", false, exit.Failf(exit.Conflict, "zone %s drains no more: it was enabled, applied without the label, or deleted meanwhile", name)
	}
	z := known.GetZones()[at]
	text := "zone " + name
	switch d := z.GetDrain(); {
	case d.GetUnsupported():
		return text + ", which runs a release that cannot drain: upgrade it", false, nil
	case len(z.GetInstances()) == 0:
		state = text + ", which is " + z.GetState() + ": it begins when it connects"
		if notes := known.GetNotes(); len(notes) > 0 {
			state += " (" + notes[0] + ")"
		}
		return state, false, nil
	case z.GetState() == "stale":
		return text + ", which is connected and does not answer", false, nil
	case !d.GetBegun():
		return text + " to begin", false, nil
	case d.GetDataplanes() == 0:
		return "Zone " + name + " is drained: it has no dataplanes.", true, nil
	}
	return text + ": " + leftBehind(z.GetDrain()), false, nil
}

// leftBehind says what a zone that drains still has.
func leftBehind(d *meridianv1.ZoneDrain) string {
	parts := []string{print.Plural(int(d.GetDataplanes()), "dataplane") + " left"} //nolint:gosec // a count
	if n := d.GetDataplanesApplied(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d applied by operators, which have to be deleted", n))
	}
	return strings.Join(parts, ", ")
}

// progress says after a state how far a zone has drained, where that is known.
func (d *drainView) progress() string {
	if d == nil || !d.Begun {
		return ""
	}
	return ": " + leftBehind(&meridianv1.ZoneDrain{Dataplanes: d.Dataplanes, DataplanesApplied: d.Applied})
}
