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

// newProxyRounds returns the questions to zones of the waits for their proxies.
func newProxyRounds() *rounds[proxyVerdict] {
	return &rounds[proxyVerdict]{first: firstProxyPause, last: lastProxyPause}
}

// proxyVerdict is what the zones say of their proxies at one time.
type proxyVerdict struct {
	// pending are the zones with proxies that have yet to accept a change, or of which
	// that is not known; offline are enabled zones that are not connected.
	pending, offline []admin.PendingZone
	notes            []string
	// rejected: nothing is in pending but proxies that have rejected the change.
	rejected bool
}

// waitForProxies returns when the proxies that a change touched have accepted it, in
// every zone that is connected: all of them have applied it. Of a wait for all zones
// also those count that go away meanwhile, until they are back. It ends early with
// admin.ErrProxiesRejected when the proxies that are left have rejected it.
func (s *inspectService) waitForProxies(ctx context.Context, w admin.ZoneWait, progress func([]admin.PendingZone) error) ([]string, error) {
	wait := s.proxies.join(w.Revision)
	defer wait.leave()
	request := question.Request(question.Proxies{Behind: w.Revision}, "", "")
	var told []admin.PendingZone
	for {
		verdict, err := wait.next(ctx, func(ctx context.Context) proxyVerdict {
			known := s.zones(ctx)
			return proxiesBehind(known, s.askEach(ctx, known, request), w.Revision)
		})
		if err != nil {
			return nil, fmt.Errorf("the proxies of %d zones have yet to accept it: %w", len(told), err)
		}
		pending, notes, rejected := verdict.of(w)
		if len(pending) == 0 {
			return notes, nil
		}
		if rejected || !slices.EqualFunc(told, pending, samePending) { // what is told last says which have rejected it
			told = pending
			if err := progress(pending); err != nil {
				return nil, err
			}
		}
		if rejected {
			return nil, admin.ErrProxiesRejected
		}
	}
}

// of is the verdict for a wait: whether zones that are offline count depends on it.
// rejected: there is nothing else to wait for than proxies that have rejected it.
func (v proxyVerdict) of(w admin.ZoneWait) (pending []admin.PendingZone, notes []string, rejected bool) {
	pending, notes = slices.Clone(v.pending), slices.Clone(v.notes)
	if !w.ConnectedOnly {
		pending = append(pending, v.offline...)
		slices.SortFunc(pending, byZone)
		return pending, notes, v.rejected && len(v.offline) == 0
	}
	for _, z := range v.offline {
		notes = append(notes, fmt.Sprintf("zone %s is offline: what its proxies have accepted is not known", z.Name))
	}
	return pending, notes, v.rejected
}

func byZone(a, b admin.PendingZone) int { return cmp.Compare(a.Name, b.Name) }

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

// proxiesBehind is what zones say of the proxies that have yet to accept a revision.
func proxiesBehind(known fleetStatus, all replies, revision resource.Revision) proxyVerdict {
	v := proxyVerdict{rejected: true}
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
		var list answer.ProxiesAnswer
		err := answer.Unmarshal(r.response.GetJson(), &list)
		if n := instancesOf(known, r.zone); n > 1 && (list.Behind == nil || list.Behind.Servers < n) {
			v.notes = append(v.notes, fmt.Sprintf("zone %s has %d instances, and not all of them were asked: what the proxies of the others have accepted is not known", r.zone, n))
		}
		switch b := list.Behind; {
		case err != nil || b == nil:
			v.notes = append(v.notes, fmt.Sprintf("zone %s cannot say what its proxies have accepted: its release is older than this one's", r.zone))
		case b.AsOf < revision: // an instance that is behind answered
			v.rejected = false
			v.pending = append(v.pending, z)
		case b.Count > 0:
			v.rejected = v.rejected && b.Rejected == b.Count
			z.ProxiesBehind = b.Count
			for _, p := range b.Some {
				z.Proxies = append(z.Proxies, admin.PendingProxy{Mesh: p.Mesh, Name: p.Name, State: p.State})
			}
			v.pending = append(v.pending, z)
		}
	}
	for _, a := range all.absent {
		z := status(a.Zone)
		z.LastError = a.Reason
		v.rejected = false
		v.pending = append(v.pending, z)
	}
	for _, z := range known.zones {
		if _, connected := known.servers[z.Name]; !connected && z.State != stateDisabled {
			v.offline = append(v.offline, status(z.Name))
		}
	}
	slices.SortFunc(v.pending, byZone)
	v.rejected = v.rejected && len(v.pending) > 0
	return v
}
