package global

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/service/admin"
	zonesync "meridian/internal/sync"
)

// stateDisabled is the state of a zone that may not connect.
const stateDisabled = "disabled"

// stateDraining is shown for a zone that is in sync and to drain.
const stateDraining = "draining"

// shownState is the state of a zone as operators see it: that it is to drain where
// nothing is wrong with it.
func shownState(z zonesync.ZoneStatus) string {
	if z.ToDrain && z.State == zonesync.ZoneInSync {
		return stateDraining
	}
	return string(z.State)
}

// draining reports whether a zone is to drain.
func (g *global) draining(zone resource.ZoneName) bool {
	r, ok := g.Store.View().Get(resource.Key{Kind: resource.KindZone, Name: string(zone)})
	return ok && toDrain(r)
}

func toDrain(r *resource.Resource) bool {
	return r.Meta().Labels[resource.DrainingLabel] == resource.Draining
}

// changesAuthorization reports whether a change of a kind can change which zones may
// be connected.
func changesAuthorization(kind resource.Kind) bool {
	return kind == resource.KindZone || kind == resource.KindGlobalSecret || kind == resource.KindTokenRevocation
}

// authorizeZone decides whether a token authorizes a zone, at first and for as long
// as it is connected: the token must name the zone and not be revoked or have expired, and
// the Zone must be enabled (§7.7).
func (g *global) authorizeZone(_ context.Context, raw string, zone resource.ZoneName) (until time.Time, err error) {
	verified, err := g.Verifier().Zone(raw, string(zone), token.ScopeControlPlane)
	if err != nil {
		return until, err
	}
	view := g.Store.View()
	r, ok := view.Get(resource.Key{Kind: resource.KindZone, Name: string(zone)})
	switch {
	case !ok:
		return until, fmt.Errorf("there is no Zone %q on the global; `meridian generate zone-token --zone %s` creates it", zone, zone)
	case !r.Spec().(*resource.Zone).IsEnabled():
		return until, fmt.Errorf("Zone %q is disabled on the global", zone)
	}
	return verified.Expires, nil
}

// withResources adds the zones that only have a Zone to those that have been
// connected, and says which are disabled or to drain; in order of their names.
func (g *global) withResources(all []zonesync.ZoneStatus) []zonesync.ZoneStatus {
	for r := range g.Store.View().List(resource.KindZone, "") {
		name := resource.ZoneName(r.Key().Name)
		i := slices.IndexFunc(all, func(z zonesync.ZoneStatus) bool { return z.Name == name })
		if i < 0 {
			all = append(all, zonesync.ZoneStatus{Name: name, State: zonesync.ZoneOffline})
			i = len(all) - 1
		}
		if !r.Spec().(*resource.Zone).IsEnabled() {
			all[i].State = stateDisabled
		}
		all[i].ToDrain = toDrain(r)
	}
	slices.SortFunc(all, func(a, b zonesync.ZoneStatus) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return all
}

// enabledZones names the zones that may connect.
func (g *global) enabledZones() []resource.ZoneName {
	var out []resource.ZoneName
	for r := range g.Store.View().List(resource.KindZone, "") {
		if r.Spec().(*resource.Zone).IsEnabled() {
			out = append(out, resource.ZoneName(r.Key().Name))
		}
	}
	return out
}

// waitForZones waits until zones have applied a revision, and their proxies have accepted
// it where that is asked for.
func (g *global) waitForZones(ctx context.Context, w admin.ZoneWait, progress func([]admin.PendingZone) error) ([]string, error) {
	notes, err := g.fleet.WaitApplied(ctx, zoneWait{
		revision: w.Revision, enabled: g.enabledZones, all: !w.ConnectedOnly,
		progress: func(zones []zonesync.ZoneStatus) error {
			pending := make([]admin.PendingZone, len(zones))
			for i, z := range zones {
				pending[i] = admin.PendingZone{Name: z.Name, State: string(z.State), Revision: z.Revision, LastError: z.LastError}
			}
			return progress(pending)
		},
	})
	if err != nil || !w.Enforced {
		return notes, err
	}
	more, err := g.questions().waitForProxies(ctx, w, progress)
	return append(notes, more...), err
}

// zonesHere returns what this server knows of every zone.
func (g *global) zonesHere() []zonesync.ZoneStatus { return g.withResources(g.sync.Zones()) }

// zonesEverywhere returns what is known of every zone by the servers that
// answer.
func (g *global) zonesEverywhere(ctx context.Context) fleetStatus {
	c := g.fleet.Status(ctx)
	c.zones = g.withResources(c.zones)
	return c
}

// otherServers returns how to reach the other servers of this global.
func (g *global) otherServers() []peer {
	var out []peer
	for _, s := range g.Node.Servers() {
		if s.Name != g.cfg.Name {
			out = append(out, peer{s.Name, g.Node.PeerConn(s.Addr)})
		}
	}
	return out
}

// zoneAuthorities are the authorities that zones are to verify servers by.
func (g *global) zoneAuthorities() []byte {
	if g.PKI.CA() == nil {
		return nil
	}
	return g.PKI.CAPEM()
}

// unconfirmed lists the zones that have not confirmed the authorities of a digest. Where
// they verify a certificate that was given, there is nothing to confirm.
func (g *global) unconfirmed(ctx context.Context, trusted string) (missing []*meridianv1.RotateCAMissing) {
	for _, z := range g.zonesEverywhere(ctx).zones {
		reason := ""
		switch {
		case z.State == stateDisabled:
		case len(z.Instances) == 0:
			reason = "it is offline"
		case z.Authorities != trusted:
			reason = "it has not confirmed the authorities yet"
		}
		if reason != "" {
			missing = append(missing, &meridianv1.RotateCAMissing{Kind: "zone", Name: string(z.Name), Reason: reason})
		}
	}
	return missing
}
