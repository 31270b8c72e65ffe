package dataplane

import (
	"maps"
	"slices"

	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// errCutOff ends the streams of proxies while the server cannot write. It has the reason of
// a zone that drains: agents of every release then look for another address, and leave only
// for one that takes their dataplane.
var errCutOff = rpcerr.New(rpcerr.Unavailable, ReasonDraining, "the server is cut off from the others of its zone: register at another one")

// errRestored ends the streams of proxies whose registration a restored state has at another
// server.
var errRestored = rpcerr.New(rpcerr.Unavailable, ReasonNotRegistered, "the state of the zone was restored: register again")

// registeredAt is the server at which a proxy registered a dataplane; empty where that is
// not known, or in a zone of one server.
func registeredAt(r *resource.Resource) string { return r.Meta().Labels[LabelRegisteredAt] }

// here returns a dataplane as it is registered at this server.
func (d *Service) here(r *resource.Resource) *resource.Resource {
	if registeredAt(r) == d.cfg.Server {
		return r
	}
	labels := maps.Clone(r.Meta().Labels)
	delete(labels, LabelRegisteredAt)
	if d.cfg.Server != "" {
		labels[LabelRegisteredAt] = d.cfg.Server
	}
	return r.WithMeta(resource.Meta{Key: r.Key(), Labels: labels})
}

// looksAfter reports whether this server removes a dataplane when its proxy is gone: one
// that was registered here, or at a server that is absent. Called with the service locked.
func (d *Service) looksAfter(r *resource.Resource) bool {
	if !byProxy(r) {
		return false
	}
	server := registeredAt(r)
	return d.cfg.Server == "" || server == d.cfg.Server || d.cfg.Absent(server)
}

// looksAfterNow is looksAfter for callers that have not locked the service.
func (d *Service) looksAfterNow(r *resource.Resource) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.suspended && d.looksAfter(r)
}

// Adopt starts the grace period of every registration that this server looks after, and
// whose proxy is not here, unless it has begun. Call it when another server is absent.
func (d *Service) Adopt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	view := d.cfg.Local.View()
	for r := range view.List(resource.KindDataplane, "") {
		if d.proxies[r.Key()] == nil && d.looksAfter(r) {
			d.startGraceLocked(r.Key())
		}
	}
}

// KeepRegistrations returns the resources of a backup with the registrations of the running
// state in place of its own: those are of the proxies that are there now, whatever is restored.
// Where meshes are stored beside them, those without a mesh in the backup go.
func KeepRegistrations(running *store.View, saved []*resource.Resource, meshesElsewhere bool) []*resource.Resource {
	all := slices.DeleteFunc(slices.Clone(saved), func(r *resource.Resource) bool { return r.Key().Kind == resource.KindDataplane && byProxy(r) })
	there := map[resource.Key]bool{}
	for _, r := range all {
		there[r.Key()] = true
	}
	for r := range running.List(resource.KindDataplane, "") {
		key := r.Key()
		if byProxy(r) && !there[key] && (meshesElsewhere || there[resource.Key{Kind: resource.KindMesh, Name: string(key.Mesh)}]) {
			all = append(all, r)
		}
	}
	return all
}

// Suspend has proxies go to other servers while this one is cut off from those: it cannot
// write, and what it has may be out of date. Streams of proxies end and are refused, and
// those that hold a registration (see Hold) continue, as in a zone that drains. Nothing is
// removed meanwhile, and after it every grace period begins anew.
func (d *Service) Suspend(suspended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.suspended == suspended {
		return
	}
	if d.suspended = suspended; suspended {
		for s := range d.sessions {
			if s.registered {
				s.end(errCutOff)
			}
		}
		return
	}
	d.expiries = nil
	view := d.cfg.Local.View()
	for key, p := range d.proxies {
		if p.session != nil || p.kept() || p.removing != nil {
			continue
		}
		if r, ok := view.Get(key); ok && d.looksAfter(r) {
			p.leaving = false
			d.startGraceLocked(key)
		} else {
			delete(d.proxies, key)
		}
	}
	d.wakeExpiries()
}

// refusesProxies returns why no proxies are taken now; nil if they are.
func (d *Service) refusesProxies() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.draining:
		return errDraining
	case d.suspended:
		return errCutOff
	}
	return nil
}

// wakeExpiries has removeExpired look again.
func (d *Service) wakeExpiries() {
	select {
	case d.expiriesChanged <- struct{}{}:
	default:
	}
}

// Proxies returns the state of every proxy that is connected here.
func (d *Service) Proxies() map[resource.Key]State {
	d.mu.Lock()
	keys := make([]resource.Key, 0, len(d.proxies))
	for key := range d.proxies {
		keys = append(keys, key)
	}
	d.mu.Unlock()
	states := make(map[resource.Key]State, len(keys))
	for _, key := range keys {
		if state := d.State(key); state.Connected {
			states[key] = state
		}
	}
	return states
}

// Attended notes that the agent of a dataplane has an identity from another server.
func (d *Service) Attended(key resource.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, waits := d.unattended[key]; waits {
		delete(d.unattended, key)
		d.elsewhere[key] = struct{}{}
	}
}

// heldLocked reports whether a dataplane was sent a certificate, here or by another server.
func (d *Service) heldLocked(key resource.Key) bool {
	_, here := d.holders[key]
	_, elsewhere := d.elsewhere[key]
	return here || elsewhere
}
