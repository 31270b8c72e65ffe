package global

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/service/admin"
	zonesync "meridian/internal/sync"
)

// Zones are asked about their proxies with pauses that grow from the first to the last of
// these: most proxies answer within milliseconds.
const (
	firstProxyPause = 10 * time.Millisecond
	lastProxyPause  = 500 * time.Millisecond
)

// waitForProxies returns when the proxies that a change touched have accepted it, in
// every zone that is connected: all of them have applied it. Of a wait for all zones
// also those count that go away meanwhile, until they are back. It ends early with
// admin.ErrProxiesRejected when the proxies that are left have rejected it.
func (s *inspectService) waitForProxies(ctx context.Context, w admin.ZoneWait, progress func([]admin.PendingZone) error) ([]string, error) {
	request := question.Request(question.Proxies{Behind: w.Revision}, "", "")
	var told []admin.PendingZone
	for pause := firstProxyPause; ; pause = min(2*pause, lastProxyPause) {
		known := s.zones(ctx)
		pending, notes, rejected := proxiesBehind(known, s.askEach(ctx, known, request), w)
		if len(pending) == 0 && ctx.Err() == nil {
			return notes, nil
		}
		if !slices.EqualFunc(told, pending, samePending) {
			told = pending
			if err := progress(pending); err != nil {
				return nil, err
			}
		}
		if rejected {
			return nil, admin.ErrProxiesRejected
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("the proxies of %d zones have yet to accept it: %w", len(pending), context.Cause(ctx))
		}
	}
}

func samePending(a, b admin.PendingZone) bool {
	return a.Name == b.Name && a.State == b.State && a.ProxiesBehind == b.ProxiesBehind
}

// instancesOf counts the connected instances of a zone.
func instancesOf(known fleetStatus, zone resource.ZoneName) int {
	for _, k := range known.zones {
		if k.Name == zone {
			return len(k.Instances)
		}
	}
	return 0
}

// proxiesBehind returns the zones with proxies that have yet to accept a change, or of
// which that is not known. rejected: there is nothing else to wait for than proxies that
// have rejected it.
func proxiesBehind(known fleetStatus, all replies, w admin.ZoneWait) (pending []admin.PendingZone, notes []string, rejected bool) {
	rejected = true
	status := func(zone resource.ZoneName) admin.PendingZone {
		z := admin.PendingZone{Name: zone, State: string(zonesync.ZoneOffline)}
		for _, k := range known.zones {
			if k.Name == zone {
				z.State, z.Revision, z.LastError = string(k.State), k.Revision, k.LastError
			}
		}
		return z
	}
	for _, r := range all.found {
		z := status(r.zone)
		if n := instancesOf(known, r.zone); n > 1 {
			notes = append(notes, fmt.Sprintf("zone %s has %d instances, and one of them was asked: what the proxies of the others have accepted is not known", r.zone, n))
		}
		var list answer.ProxiesAnswer
		err := answer.Unmarshal(r.response.GetJson(), &list)
		switch b := list.Behind; {
		case err != nil || b == nil:
			notes = append(notes, fmt.Sprintf("zone %s cannot say what its proxies have accepted: its release is older than this one's", r.zone))
		case b.AsOf < w.Revision: // an instance that is behind answered
			rejected = false
			pending = append(pending, z)
		case b.Count > 0:
			rejected = rejected && b.Rejected == b.Count
			z.ProxiesBehind = b.Count
			for _, p := range b.Some {
				z.Proxies = append(z.Proxies, admin.PendingProxy{Mesh: p.Mesh, Name: p.Name, State: p.State})
			}
			pending = append(pending, z)
		}
	}
	for _, a := range all.absent {
		z := status(a.Zone)
		z.LastError = a.Reason
		rejected = false
		pending = append(pending, z)
	}
	for _, z := range known.zones {
		_, connected := known.servers[z.Name]
		switch {
		case connected || z.State == stateDisabled:
		case w.ConnectedOnly:
			notes = append(notes, fmt.Sprintf("zone %s is offline: what its proxies have accepted is not known", z.Name))
		default:
			rejected = false
			pending = append(pending, status(z.Name))
		}
	}
	slices.SortFunc(pending, func(a, b admin.PendingZone) int { return cmp.Compare(a.Name, b.Name) })
	return pending, notes, rejected && len(pending) > 0
}
