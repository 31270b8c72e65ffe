package dataplane

import (
	"context"
	"time"

	"meridian/internal/resource"
)

// attendLocked notes whether there is a dataplane that an operator applied: its agent has
// the grace period to come for a certificate.
func (d *Service) attendLocked(key resource.Key, applied bool) {
	_, waits := d.unattended[key]
	switch held := d.heldLocked(key); {
	case !applied:
		delete(d.unattended, key)
		delete(d.elsewhere, key)
	case !waits && !held:
		d.unattended[key] = d.cfg.Now().Add(d.cfg.Grace)
		select {
		case d.applied <- struct{}{}:
		default: // watchApplied is called already
		}
	}
}

// watchApplied tells of the dataplanes that no agent comes for, until ctx ends.
func (d *Service) watchApplied(ctx context.Context) error {
	for {
		due, next := d.unattendedNow()
		for _, key := range due {
			d.cfg.Unattended(key)
		}
		if !pause(ctx, next, d.applied) {
			return nil
		}
	}
}

// pause waits for a time, if that is not 0, or until something has changed. It reports false
// once ctx has ended.
func pause(ctx context.Context, next time.Duration, changed <-chan struct{}) bool {
	var alarm <-chan time.Time
	timer := time.NewTimer(next)
	defer timer.Stop()
	if next > 0 {
		alarm = timer.C
	}
	select {
	case <-alarm:
	case <-changed:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// unattendedNow takes the dataplanes whose agents have had their time, and says how long it
// takes until that of the next one is over; zero when there is none.
func (d *Service) unattendedNow() (due []resource.Key, next time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.cfg.Now()
	for key, end := range d.unattended {
		if end.IsZero() {
			continue
		}
		wait := end.Sub(now)
		switch held := d.heldLocked(key); {
		case held:
			delete(d.unattended, key)
		case wait <= 0:
			d.unattended[key] = time.Time{}
			due = append(due, key)
		case next == 0 || wait < next:
			next = wait
		}
	}
	return due, next
}
