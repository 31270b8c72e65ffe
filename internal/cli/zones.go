package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
)

func newZonesCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "zones",
		Short:   "Show the sync state of every zone",
		Example: "  meridian zones -o wide",
		Long: `Show the sync state of every zone: the revision it has applied and
persisted, how many changes it has yet to acknowledge, and its last error.

States: in-sync, lagging (connected, behind), stale (connected, no progress),
offline, disabled, draining (in sync, and takes no dataplanes).`,
		Args: exactly(),
	}
	strict := cmd.Flags().Bool("strict", false, "exit with 6 when a server could not be asked for its zones")
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		zones, err := zones(cmd.Context(), c)
		if err != nil {
			return err
		}
		for _, note := range zones.GetNotes() {
			a.Warn("zones may be shown as offline that are not: " + note)
		}
		if err := a.printZones(output.Value, zones); err != nil {
			return err
		}
		if notes := zones.GetNotes(); *strict && len(notes) > 0 {
			return incompleteFailure(notes[0], len(notes)-1)
		}
		return nil
	}
	cmd.AddCommand(
		newZoneSwitch(a, "enable", "Accept connections and dataplanes of a zone", `Accept connections of a zone, and have it take dataplanes: this ends
'meridian zones disable' and 'meridian zones drain'.`, enableZone),
		newZoneSwitch(a, "disable", "Refuse connections of a zone", "", disableZone),
		newZoneDrain(a),
		newZoneDelete(a))
	return cmd
}

func zones(ctx context.Context, c *client.Client) (*meridianv1.ZonesResponse, error) {
	return client.Ask(ctx, c, (*client.Client).Zones, &meridianv1.ZonesRequest{})
}

// zoneView is a zone's status as JSON.
type zoneView struct {
	Name      string   `json:"name"`
	State     string   `json:"state"`
	Revision  uint64   `json:"revision"`
	Lag       uint64   `json:"lag"`
	Instances []string `json:"instances"`
	Servers   []string `json:"servers"`
	Versions  []string `json:"versions"`
	// ServersOfZone is there for a zone of several servers that is connected.
	ServersOfZone uint32            `json:"serversOfZone,omitempty"`
	LastError     string            `json:"lastError"`
	LastSeen      string            `json:"lastSeen,omitempty"`
	Quarantined   []quarantinedView `json:"quarantined"`
	// Drain is there for a zone that is to drain.
	Drain *drainView `json:"drain,omitempty"`
}

// drainView is how far a zone has drained. The numbers hold once it has begun.
type drainView struct {
	Begun bool `json:"begun"`
	// Dataplanes are left, Applied of them by an operator.
	Dataplanes  uint64 `json:"dataplanes"`
	Applied     uint64 `json:"applied"`
	Unsupported bool   `json:"unsupported,omitempty"`
}

type quarantinedView struct {
	Type    string `json:"type"`
	Mesh    string `json:"mesh,omitempty"`
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	Message string `json:"message"`
}

func viewZone(z *meridianv1.ZoneStatus) zoneView {
	view := zoneView{
		Name: z.GetName(), State: z.GetState(), Revision: z.GetRevision(), Lag: z.GetLag(),
		Instances: append([]string{}, z.GetInstances()...), Servers: append([]string{}, z.GetServers()...), Versions: append([]string{}, z.GetVersions()...), LastError: z.GetLastError(),
		Quarantined: []quarantinedView{}, ServersOfZone: z.GetServersOfZone(),
	}
	if t := z.GetLastSeen(); t != nil {
		view.LastSeen = t.AsTime().UTC().Format(time.RFC3339)
	}
	if d := z.GetDrain(); d != nil {
		view.Drain = &drainView{Begun: d.GetBegun(), Dataplanes: d.GetDataplanes(), Applied: d.GetDataplanesApplied(), Unsupported: d.GetUnsupported()}
	}
	for _, q := range z.GetQuarantined() {
		view.Quarantined = append(view.Quarantined, quarantinedView{
			Type: q.GetKind(), Mesh: q.GetMesh(), Name: q.GetName(), Version: q.GetVersion(), Message: q.GetMessage(),
		})
	}
	return view
}

// silentServers are those that could not be asked for their zones.
func silentServers(zones *meridianv1.ZonesResponse) []answer.Absence {
	silent := []answer.Absence{}
	for _, s := range zones.GetIncomplete() {
		silent = append(silent, answer.Absence{Server: s.GetServer(), Reason: s.GetReason()})
	}
	return silent
}

func (a *app) printZones(f print.Format, zones *meridianv1.ZonesResponse) error {
	switch {
	case f.Structured():
		views := make([]zoneView, len(zones.GetZones()))
		for i, z := range zones.GetZones() {
			views[i] = viewZone(z)
		}
		return a.WriteValue(f, struct {
			Items      []zoneView       `json:"items"`
			Revision   uint64           `json:"revision"`
			Notes      []string         `json:"notes,omitempty"`
			Incomplete []answer.Absence `json:"incomplete"`
		}{views, zones.GetRevision(), zones.GetNotes(), silentServers(zones)})
	case f == print.FormatName:
		for _, z := range zones.GetZones() {
			if err := a.Println("Zone/" + z.GetName()); err != nil {
				return err
			}
		}
		return nil
	}
	if len(zones.GetZones()) == 0 {
		a.Message("There are no zones yet. `meridian generate zone-token --zone NAME --valid-for 24h --bundle` makes what a new one joins with.")
		return nil
	}
	return a.Table(a.zoneTable(zones, f == print.FormatWide))
}

// away counts the servers of a zone that are not connected while others of it are.
func away(z *meridianv1.ZoneStatus) int {
	connected := len(z.GetInstances())
	if connected == 0 {
		return 0
	}
	return max(0, int(z.GetServersOfZone())-connected)
}

// zoneState is the state of a zone, with a mark where it is to drain beside it.
func zoneState(z *meridianv1.ZoneStatus) string {
	if z.GetDrain() != nil && z.GetState() != stateDraining {
		return z.GetState() + " (draining)"
	}
	return z.GetState()
}

func (a *app) zoneTable(zones *meridianv1.ZonesResponse, wide bool) *print.Table {
	t := &print.Table{Header: []string{"NAME", "STATE", "REVISION", "LAG", "INSTANCES", "LAST ERROR"}}
	if wide {
		t.Header = []string{"NAME", "STATE", "REVISION", "LAG", "INSTANCES", "SERVERS", "VERSION", "LAST SEEN", "QUARANTINED", "LAST ERROR"}
	}
	for _, z := range zones.GetZones() {
		lastError := z.GetLastError()
		if n := len(z.GetQuarantined()); lastError == "" && n > 0 {
			first := z.GetQuarantined()[0]
			lastError = print.Plural(n, "resource") + " quarantined, first " + first.GetKind() + "/" + first.GetName() + ": " + first.GetMessage()
		}
		row := []string{z.GetName(), zoneState(z), strconv.FormatUint(z.GetRevision(), 10), strconv.FormatUint(z.GetLag(), 10)}
		if z.GetLastSeen() == nil && z.GetRevision() == 0 {
			row[2], row[3] = "", "" // this server has no report of it
		}
		of := "" // how many there should be
		if away(z) > 0 {
			of = fmt.Sprintf(" of %d", z.GetServersOfZone())
		}
		if wide {
			row = append(row, strings.Join(z.GetInstances(), ",")+of, strings.Join(z.GetServers(), ","), strings.Join(z.GetVersions(), ","), a.ago(z.GetLastSeen()), strconv.Itoa(len(z.GetQuarantined())))
		} else {
			row = append(row, strconv.Itoa(len(z.GetInstances()))+of)
		}
		t.Add(append(row, lastError)...)
	}
	return t
}
