package discovery

import (
	"context"
	"errors"
	"time"

	"meridian/internal/rpcerr"
	"meridian/internal/xds"
	"meridian/internal/xds/serve"
)

// wakeWorker calls a worker.
func (d *Service) wakeWorker() {
	select {
	case d.wake <- struct{}{}:
	default: // one is called already, and calls the next
	}
}

// work makes what is to be sent to the streams in the queue until ctx ends.
func (d *Service) work(ctx context.Context) error {
	for {
		if s := d.next(); s != nil {
			s.work()
			continue
		}
		select {
		case <-d.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// next takes the first of the queue; nil when it is empty.
func (d *Service) next() *stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.queue.pop()
	if !d.queue.empty() {
		d.wakeWorker()
	}
	return s
}

// work brings a stream up to date and sends what there is to send.
func (s *stream) work() {
	d := s.service
	d.mu.Lock()
	if s.ended {
		d.mu.Unlock()
		return
	}
	stale := s.stale
	s.stale, s.due = false, false
	d.streams.Add(1) // its handler is still there
	d.mu.Unlock()
	responses, err := s.prepare(stale)
	d.changed(s.key)
	s.report(false)
	if err != nil || len(responses) == 0 {
		s.done(err)
		return
	}
	// A proxy that has stopped reading can hold up a send: not a worker's.
	go func() {
		for _, r := range responses {
			if err := s.send(r); err != nil {
				s.done(err)
				return
			}
			d.sent.Add(1)
		}
		s.done(nil)
	}()
}

// prepare returns what is to be sent now. A panic ends this stream and no other.
func (s *stream) prepare(stale bool) (responses []serve.Response, err error) {
	defer s.recover()
	var set *xds.Set
	if stale {
		if set, err = s.resources(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if set != nil {
		s.machine.SetTarget(set)
		s.withheld = set.Withheld
	}
	now := s.service.cfg.Now()
	for {
		if s.unsent == nil {
			r, ok := s.machine.Next(now)
			if !ok {
				break
			}
			s.unsent, s.unsentSince = &r, now
		}
		if err := s.reserve(*s.unsent); err != nil {
			if now.Sub(s.unsentSince) >= maxUnsent {
				return nil, s.service.refuse(err)
			}
			s.remind(retryUnsent, true)
			return responses, s.charge()
		}
		responses = append(responses, *s.unsent)
		s.unsent = nil
	}
	s.remind(s.machine.Wake().Sub(now), !s.machine.Wake().IsZero())
	return responses, s.charge()
}

// resources returns what the proxy is to have, if it may still be served.
func (s *stream) resources() (*xds.Set, error) {
	cfg := &s.service.cfg
	if err := cfg.Dataplanes.Check(*s.token, s.key); err != nil {
		return nil, err
	}
	set, err := cfg.Source.Resources(s.key, s.dialect)
	switch {
	case err == nil:
		return set, nil
	case errors.Is(err, xds.ErrDialect):
		return nil, rpcerr.New(rpcerr.Invalid, ReasonUnsupported, "%q is a proxy that this zone does not configure over xDS yet: it serves gRPC clients and servers", s.client)
	case errors.Is(err, xds.ErrNoDataplane):
		return nil, rpcerr.New(rpcerr.NotFound, ReasonNoDataplane, "dataplane %q in mesh %q was deleted", s.key.Name, s.key.Mesh)
	}
	s.service.logger(s).Error("the resources of a proxy cannot be made", "error", err)
	return nil, errInternal
}

// remind has the stream looked at again after a time, when set.
func (s *stream) remind(after time.Duration, set bool) {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if set && !s.ended {
		s.timer = time.AfterFunc(after, s.schedule)
	}
}

// done ends the work that work began.
func (s *stream) done(err error) {
	defer s.service.streams.Done()
	if err != nil {
		s.end(err)
		return
	}
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	s.scheduled = false
	s.scheduleLocked()
}
