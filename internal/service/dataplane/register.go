package dataplane

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"meridian/internal/authn/token"
	"meridian/internal/commit"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// LabelRegisteredBy marks a dataplane that a proxy registered, with the value
// ByProxy: such a dataplane goes when its proxy does.
//
// LabelRegisteredAt names the server, of a zone of several, at which it did that last.
const (
	LabelRegisteredBy = "meridian.io/registered-by"
	ByProxy           = "proxy"
	LabelRegisteredAt = "meridian.io/registered-at"
)

// byProxy reports whether a stored dataplane was registered by a proxy.
func byProxy(r *resource.Resource) bool { return r.Meta().Labels[LabelRegisteredBy] == ByProxy }

// draining reports whether a dataplane is to be sent no requests.
func draining(r *resource.Resource) bool {
	return r.Meta().Labels[resource.DrainingLabel] == resource.Draining
}

// withDraining returns a dataplane that a proxy registered, draining or not.
func withDraining(r *resource.Resource, drains bool) *resource.Resource {
	labels := map[string]string{}
	maps.Copy(labels, r.Meta().Labels)
	delete(labels, resource.DrainingLabel)
	if drains {
		labels[resource.DrainingLabel] = resource.Draining
	}
	return r.WithMeta(resource.Meta{Key: r.Key(), Labels: labels})
}

const (
	// maxRegistering bounds the registrations under way, each of which takes a
	// goroutine and memory of its own, and half of them those of one caller. Those of
	// one moment share a write.
	maxRegistering = 128
	// maxHelloBytes bounds the hellos that are arriving or wait for their registration,
	// maxCallerHelloBytes those of one caller. A stream whose hello has not arrived
	// counts as the largest.
	maxHelloBytes, maxCallerHelloBytes = 128 << 20, 96 << 20
	// maxRemovals bounds one batch of registrations to remove.
	maxRemovals = 256
	// retryRemoval is how long a removal that failed waits.
	retryRemoval = time.Second
)

// registration is what a proxy's hello comes to.
type registration struct {
	// resource is the dataplane as it is, or would be, stored.
	resource *resource.Resource
	// stored is what was there; nil for nothing.
	stored *resource.Resource
	// write is true when resource has yet to be stored.
	write bool
}

// parseSpec returns the dataplane that a hello describes, which the token covers;
// nil when it describes none, but means one that an operator has applied.
func (d *Service) parseSpec(token token.Token, key resource.Key, spec []byte) (*resource.Resource, error) {
	if len(spec) == 0 {
		return nil, nil
	}
	r, _, err := resource.BuildInZone(resource.Meta{Key: key}, spec, d.cfg.Zone)
	if err == nil {
		r, err = d.cfg.Prepare(r)
	}
	if err != nil {
		return nil, invalid(key, err)
	}
	return r, checkToken(token, r)
}

// decide decides what a hello comes to on what is stored now: the registration
// of the dataplane it describes, or the one that an operator applied.
func (d *Service) decide(token token.Token, key resource.Key, described *resource.Resource, drains bool) (registration, error) {
	stored, have := d.cfg.Local.View().Get(key)
	switch {
	case described == nil && (!have || byProxy(stored)):
		return registration{}, rpcerr.New(rpcerr.Invalid, ReasonUnknown,
			"dataplane %q in mesh %q does not exist: send its spec with the hello", key.Name, key.Mesh)
	case described == nil:
		return registration{resource: stored, stored: stored}, checkToken(token, stored)
	case !have:
		meta := resource.Meta{Key: key, Labels: map[string]string{LabelRegisteredBy: ByProxy}}
		return registration{resource: d.here(withDraining(described.WithMeta(meta), drains)), write: true}, nil
	case slices.Equal(stored.Canonical(), described.Canonical()) && byProxy(stored) && (draining(stored) != drains || registeredAt(stored) != d.cfg.Server):
		return registration{resource: d.here(withDraining(stored, drains)), stored: stored, write: true}, nil
	case slices.Equal(stored.Canonical(), described.Canonical()):
		return registration{resource: stored, stored: stored}, nil
	case byProxy(stored):
		if err := checkToken(token, stored); err != nil {
			return registration{}, err // it would take over another service's dataplane (§6.8)
		}
		meta := resource.Meta{Key: key, Labels: stored.Meta().Labels}
		return registration{resource: d.here(withDraining(described.WithMeta(meta), drains)), stored: stored, write: true}, nil
	}
	return registration{}, rpcerr.New(rpcerr.Invalid, ReasonOperatorApplied,
		"an operator applied dataplane %q in mesh %q, and not as the proxy describes it: connect without a spec to take that one, or have it deleted", key.Name, key.Mesh)
}

// invalid says what is wrong with a proxy's dataplane.
func invalid(key resource.Key, err error) error {
	var meshless *store.MeshMissingError
	if rpcerr.HasReason(err, ReasonNoMesh) || errors.As(err, &meshless) {
		// It may be on its way here, and its proxy has done nothing wrong.
		return rpcerr.New(rpcerr.NotFound, ReasonNoMesh, "dataplane %q cannot be registered yet: %w", key.Name, err)
	}
	refusal := rpcerr.New(rpcerr.Invalid, ReasonInvalid, "dataplane %q in mesh %q cannot be registered: %w", key.Name, key.Mesh, err)
	var document *resource.DocumentError
	if !errors.As(err, &document) {
		return refusal
	}
	for _, p := range document.Problems {
		if p.Severity == resource.Error {
			refusal = refusal.WithViolations(rpcerr.Violation{Field: "hello.spec." + string(p.Path), Description: p.String()})
		}
	}
	return refusal
}

// store stores the dataplane of a hello, unless it is stored already.
func (d *Service) store(s *session, key resource.Key, described *resource.Resource, drains bool) (*resource.Resource, error) {
	var (
		w       registration
		refused error
	)
	_, err := commit.Write(s.ctx, d.cfg.Writer, func() (batch commit.Batch, err error) {
		if s.ctx.Err() != nil {
			refused = context.Cause(s.ctx)
			return batch, refused
		}
		if w, refused = d.decide(*s.token, key, described, drains); refused != nil || !w.write {
			return batch, refused
		}
		batch.Time, batch.Ops = d.cfg.Now(), []store.Op{store.Put(w.resource)}
		batch.Preconditions = []store.Precondition{unchanged(key, w.stored)}
		return batch, nil
	})
	var meshless *store.MeshMissingError
	switch {
	case refused != nil:
		return nil, refused
	case err == nil:
		return w.resource, nil
	case errors.As(err, &meshless):
		return nil, invalid(key, err)
	}
	return nil, rpcerr.New(rpcerr.Unavailable, ReasonNotRegistered, "the dataplane could not be registered: %w", err)
}

// drain labels what a session registered as draining, so that others send it no more
// requests.
func (d *Service) drain(s *session) error {
	key := s.proxy.key
	d.mu.Lock()
	s.drains = true
	d.mu.Unlock()
	var ended error
	_, err := commit.Write(s.ctx, d.cfg.Writer, func() (batch commit.Batch, err error) {
		if s.ctx.Err() != nil {
			ended = context.Cause(s.ctx)
			return batch, ended
		}
		stored, have := d.cfg.Local.View().Get(key)
		if !have || !byProxy(stored) || draining(stored) {
			return batch, nil
		}
		batch.Time, batch.Ops = d.cfg.Now(), []store.Op{store.Put(withDraining(stored, true))}
		batch.Preconditions = []store.Precondition{unchanged(key, stored)}
		return batch, nil
	})
	switch {
	case ended != nil:
		return ended
	case err != nil:
		return rpcerr.New(rpcerr.Unavailable, ReasonNotRegistered, "the dataplane could not be withdrawn from others: %w", err)
	}
	d.logger(s).Info("proxy draining")
	return nil
}

// unchanged is the precondition that a key is still what r is; nil for nothing.
func unchanged(key resource.Key, r *resource.Resource) store.Precondition {
	if r == nil {
		return store.Precondition{Key: key}
	}
	return store.Precondition{Key: key, Version: r.Meta().Version, Revision: r.Meta().Revision}
}

// startGraceLocked starts the grace period of a registered dataplane.
func (d *Service) startGraceLocked(key resource.Key) {
	p := d.proxies[key]
	if p == nil {
		p = &proxy{key: key}
		d.proxies[key] = p
	}
	p.deadline = d.cfg.Now().Add(d.cfg.Grace)
	if p.leaving {
		p.deadline = d.cfg.Now()
		d.expiries = slices.Insert(d.expiries, 0, expiry{key, p.deadline})
	} else {
		d.expiries = append(d.expiries, expiry{key, p.deadline})
	}
	d.wakeExpiries()
}

// removeExpired removes the registrations whose grace period is over, until ctx
// ends.
func (d *Service) removeExpired(ctx context.Context) error {
	for {
		due, next := d.expired()
		if len(due) > 0 {
			d.removeRegistrations(ctx, due)
			if ctx.Err() != nil {
				return nil
			}
			continue
		}
		if !pause(ctx, next, d.expiriesChanged) {
			return nil
		}
	}
}

// expired takes up to maxRemovals proxies whose time is up, marked as being removed,
// or says how long it takes until the next one's is; zero when there is none.
func (d *Service) expired() ([]*proxy, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.cfg.Now()
	var due []*proxy
	if d.suspended {
		return nil, 0 // Suspend starts the grace periods anew
	}
	for len(d.expiries) > 0 && len(due) < maxRemovals {
		first := d.expiries[0]
		p := d.proxies[first.key]
		if p != nil && p.session == nil && !p.kept() && p.removing == nil && p.deadline.Equal(first.deadline) {
			if wait := first.deadline.Sub(now); wait > 0 {
				return due, wait
			}
			p.removing = make(chan struct{})
			due = append(due, p)
		}
		d.expiries = d.expiries[1:]
	}
	return due, 0
}

// removeRegistrations deletes the registrations of proxies that due returned.
func (d *Service) removeRegistrations(ctx context.Context, due []*proxy) {
	err := d.deleteRegistrations(ctx, due)
	if err != nil && ctx.Err() == nil {
		d.cfg.Log.Error("cannot remove the dataplanes of proxies that have gone: trying again", "dataplanes", len(due), "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range due {
		close(p.removing)
		p.removing = nil
		if p.session != nil || p.kept() || d.proxies[p.key] != p {
			continue // it is back, and was waiting for this
		}
		if err == nil {
			delete(d.proxies, p.key)
			continue
		}
		p.deadline = d.cfg.Now().Add(retryRemoval)
		d.expiries = slices.Insert(d.expiries, 0, expiry{p.key, p.deadline})
	}
}

// deleteRegistrations deletes what is still as a proxy left it. What an operator
// has taken over since stays.
func (d *Service) deleteRegistrations(ctx context.Context, due []*proxy) error {
	left, removed := d.cfg.Local.View(), 0
	_, err := commit.Write(ctx, d.cfg.Writer, func() (commit.Batch, error) {
		view := d.cfg.Local.View()
		batch := commit.Batch{Txn: store.Txn{Time: d.cfg.Now()}}
		for _, p := range due {
			r, ok := left.Get(p.key)
			if now, _ := view.Get(p.key); ok && d.looksAfterNow(r) && now == r {
				batch.Ops = append(batch.Ops, store.Delete(p.key))
				batch.Preconditions = append(batch.Preconditions, unchanged(p.key, r))
			}
		}
		removed = len(batch.Ops)
		return batch, nil
	})
	if err == nil && removed > 0 {
		d.cfg.Log.Info("removed the dataplanes of proxies that have gone", "dataplanes", removed)
	}
	return err
}
