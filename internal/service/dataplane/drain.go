package dataplane

import (
	"context"
	"time"

	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// errDraining ends the streams of proxies while the zone drains, and refuses new ones.
var errDraining = rpcerr.New(rpcerr.Unavailable, ReasonDraining, "the zone is draining: register in another zone")

// errDrained ends the streams of proxies whose registration was withdrawn, when the zone
// no longer drains: their next registration is not.
var errDrained = rpcerr.New(rpcerr.Unavailable, ReasonNotRegistered, "the zone was draining and no longer is: register again")

// Drain has the zone drain, or take proxies again. While it drains, what proxies have
// registered is labelled draining, so that others send it no more requests, and the
// streams of proxies end and are refused with UNAVAILABLE and ReasonDraining; a
// registration goes after the grace period, as ever. Streams that hold a registration
// (see Hold) continue: what is left has its configuration.
func (d *Service) Drain(draining bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining == draining {
		return
	}
	d.draining = draining
	if draining {
		d.wakeWithdrawal()
	}
}

// Draining reports whether the zone drains.
func (d *Service) Draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.draining
}

// Left counts the dataplanes of the zone, and those of them that an operator applied.
func (d *Service) Left() (all, applied int) {
	for r := range d.cfg.Local.View().List(resource.KindDataplane, "") {
		if all++; !byProxy(r) {
			applied++
		}
	}
	return all, applied
}

func (d *Service) wakeWithdrawal() {
	select {
	case d.withdraw <- struct{}{}:
	default:
	}
}

// drainRegistrations withdraws what proxies have registered and ends their streams,
// whenever the zone drains, until ctx ends.
func (d *Service) drainRegistrations(ctx context.Context) error {
	for {
		select {
		case <-d.withdraw:
		case <-ctx.Done():
			return nil
		}
		for d.Draining() && ctx.Err() == nil {
			more, err := d.withdrawSome(ctx)
			if err == nil && !more {
				break
			}
			if err == nil {
				continue
			}
			if ctx.Err() == nil {
				d.cfg.Log.Error("cannot withdraw the dataplanes of a zone that drains: trying again", "error", err)
			}
			select {
			case <-time.After(retryRemoval):
			case <-ctx.Done():
			}
		}
		if ctx.Err() == nil {
			d.endRegistered()
		}
	}
}

// withdrawSome labels up to maxRemovals registrations as draining, and says whether
// there are more.
func (d *Service) withdrawSome(ctx context.Context) (more bool, err error) {
	_, err = commit.Write(ctx, d.cfg.Writer, func() (commit.Batch, error) {
		batch := commit.Batch{Txn: store.Txn{Time: d.cfg.Now()}}
		for r := range d.cfg.Local.View().List(resource.KindDataplane, "") {
			if !byProxy(r) || draining(r) {
				continue
			}
			if more = len(batch.Ops) == maxRemovals; more {
				break
			}
			batch.Ops = append(batch.Ops, store.Put(withDraining(r, true)))
			batch.Preconditions = append(batch.Preconditions, unchanged(r.Key(), r))
		}
		return batch, nil
	})
	return more, err
}

// endRegistered ends the streams of the proxies that are registered: all of them while
// the zone drains, and after that those whose registration is still labelled.
func (d *Service) endRegistered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	view := d.cfg.Local.View()
	for s := range d.sessions {
		if !s.registered {
			continue // see connected
		}
		if d.draining {
			s.end(errDraining)
		} else if r, ok := view.Get(s.proxy.key); ok && s.withdrawn(r) {
			s.end(errDrained)
		}
	}
}

// withdrawn reports whether what a session registered is labelled as draining without its
// proxy's having asked for that. Called with the service locked.
func (s *session) withdrawn(r *resource.Resource) bool { return byProxy(r) && draining(r) && !s.drains }
