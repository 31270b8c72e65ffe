package zone

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"meridian/internal/controlplane/cluster"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/service/discovery"
	"meridian/internal/xds/enforce"
)

// A wait for proxies looks again after firstLook at first, and after lastLook at most.
const firstLook, lastLook = 5 * time.Millisecond, 500 * time.Millisecond

// stateUnknown is the state of a zone while some of its servers do not say what their proxies
// have taken on.
const stateUnknown = "unknown"

// outstanding are the proxies that had something to take on at one time.
type outstanding struct {
	zone *zone
	xds  *discovery.Outstanding
	// changed is by dataplane up to which change of its configuration a proxy has to take
	// them on that is sent it by the dataplane service.
	changed map[resource.Key]uint64
}

// outstanding returns the proxies that have something to take on of what the zone has
// applied so far.
func (z *zone) outstanding() (*outstanding, error) {
	o := &outstanding{zone: z, changed: map[resource.Key]uint64{}}
	err := z.Matching.Read(func(m *policy.Matcher, _ resource.Revision) error { // which reports every change
		o.xds = z.discovery.Outstanding()
		return m.Read(func(r *policy.Reading) error {
			for key := range r.Dataplanes("") {
				if made, taken := z.dataplanes.Changes(key); taken < made && z.dataplanes.State(key).Connected {
					o.changed[key] = made
				}
			}
			return nil
		})
	})
	return o, err
}

// behind returns those that have yet to take it on.
func (o *outstanding) behind() map[resource.Key]enforce.State {
	states := o.xds.Behind()
	for key, changed := range o.changed {
		at := o.zone.dataplanes.State(key)
		made, taken := o.zone.dataplanes.Changes(key)
		if !at.Connected || taken == made || taken >= changed {
			delete(o.changed, key)
			continue
		}
		states[key] = enforce.Worse(states[key], pendingState(at.Refused))
	}
	return states
}

// waitForProxies returns when every connected proxy, at whatever server of the zone, has
// accepted what it has to take on of a revision of the zone's own resources, or went away. It
// ends early with admin.ErrProxiesRejected when the proxies that are left have rejected it.
func (z *zone) waitForProxies(ctx context.Context, revision resource.Revision, progress func([]admin.PendingZone) error) error {
	if newest := z.Store.Revision(); revision > newest {
		return rpcerr.New(rpcerr.OutOfRange, "REVISION_UNKNOWN", "wait for revision %d: it is not written yet; the newest is %d", revision, newest)
	}
	o, err := z.outstanding()
	if err != nil {
		return err
	}
	elsewhere := z.others.awaiting(ctx, revision)
	defer elsewhere.stop()
	told, silent, began := 0, 0, z.Now()
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		states := o.behind()
		unknown := elsewhere.behind(states)
		if len(states) == 0 && len(unknown) == 0 {
			return nil
		}
		pending, rejected := z.pending(states)
		rejected = rejected && len(unknown) == 0
		if z.Now().Sub(began) < cluster.AnswerTimeout {
			unknown = nil // the others have yet to answer
		} else if len(unknown) > 0 {
			pending.State, pending.LastError = stateUnknown, "no answer from "+strings.Join(unknown, ", ")
		}
		if pending.ProxiesBehind != told || len(unknown) != silent || rejected {
			told, silent = pending.ProxiesBehind, len(unknown)
			if err := progress([]admin.PendingZone{pending}); err != nil {
				return err
			}
		}
		if rejected {
			return admin.ErrProxiesRejected
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pending says which proxies of the zone are waited for; rejected: all of them have
// rejected it.
func (z *zone) pending(states map[resource.Key]enforce.State) (pending admin.PendingZone, rejected bool) {
	pending = admin.PendingZone{Name: resource.ZoneName(z.cfg.Name), State: z.role(), Revision: z.Store.Revision(), ProxiesBehind: len(states)}
	rejected = true
	for key, state := range states {
		rejected = rejected && state == enforce.Rejected
		pending.Proxies = append(pending.Proxies, admin.PendingProxy{Mesh: key.Mesh, Name: key.Name, State: string(state)})
	}
	slices.SortFunc(pending.Proxies, func(a, b admin.PendingProxy) int {
		return cmp.Or(cmp.Compare(b.State, a.State), cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
	pending.Proxies = pending.Proxies[:min(len(pending.Proxies), answer.MaxBehind)]
	return pending, rejected
}
