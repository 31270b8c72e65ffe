package dataplane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/rpcerr"
)

// errInternal ends a stream that the zone has a bug about.
var errInternal error = rpcerr.New(rpcerr.Internal, ReasonInternal, "the zone failed on this dataplane; its log says more")

// markChangedLocked makes the session look at its configuration again.
func (s *session) markChangedLocked() {
	if s.registrationOnly && s.sequence > 0 {
		s.proxy.settled = s.proxy.changed // of configurations that it does not take
		s.service.changedLocked(s.proxy)
		return
	}
	s.changed = true
	s.scheduleLocked()
}

// scheduleLocked puts the session in the queue if it has something to do there.
// One thing at a time: while a configuration is being sent or unanswered it has
// not, and what comes after is the state of then.
func (s *session) scheduleLocked() {
	configuration := s.changed && s.unacked == nil
	if !configuration && !s.identity.stale && !s.live.due || s.scheduled || s.ended {
		return
	}
	s.scheduled = true
	s.service.queue = append(s.service.queue, s)
	s.service.wakeWorker()
}

// wakeWorker calls a worker.
func (d *Service) wakeWorker() {
	select {
	case d.wake <- struct{}{}:
	default: // one is called already, and calls the next
	}
}

// work makes the configurations of those in the queue until ctx ends. There are
// as many workers as processors: that many configurations are made at a time,
// and that many stacks are as large as it takes.
func (d *Service) work(ctx context.Context) error {
	for {
		if s := d.next(); s != nil {
			d.deliver(s)
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
func (d *Service) next() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 {
		d.queue = nil
		return nil
	}
	s := d.queue[0]
	d.queue[0] = nil
	if d.queue = d.queue[1:]; len(d.queue) > 0 {
		d.wakeWorker()
	}
	return s
}

// deliver delivers what is new to a session. A panic ends this session and no
// other.
func (d *Service) deliver(s *session) {
	defer func() {
		if value := recover(); value != nil {
			d.logger(s).Error("a configuration broke off", "panic", value, "stack", string(debug.Stack()))
			s.delivered(errInternal)
		}
	}()
	d.mu.Lock()
	if s.ended {
		d.mu.Unlock()
		return
	}
	d.streams.Add(1) // its handler is still there
	if s.identity.stale {
		d.mu.Unlock()
		// It may take a write, and the proxy may have stopped reading: not a worker's.
		go func() { s.delivered(s.sendIdentity()) }()
		return
	}
	if s.live.due {
		d.mu.Unlock()
		go func() { s.delivered(s.sendLiveRequest()) }()
		return
	}
	s.changed = false
	from := progress{have: s.have, full: s.full, first: s.sequence == 0, changed: s.proxy.changed}
	d.mu.Unlock()
	response, err := s.prepare(from)
	if response == nil {
		s.delivered(err)
		return
	}
	d.sent.Add(1)
	// A proxy that has stopped reading can hold up a send: not a worker's.
	go func() { s.delivered(s.stream.Send(response)) }()
}

// progress is where a session stood when work on it began.
type progress struct {
	have        []entry
	full, first bool
	changed     uint64
}

// prepare returns what leads from there to the configuration of now and notes it
// as sent; nil when nothing does.
func (s *session) prepare(from progress) (*meridianv1.ConnectResponse, error) {
	d := s.service
	read := d.cfg.Matching.ReadCached
	if from.first {
		read = d.cfg.Matching.Read // the registration itself may not be in the matcher yet
	}
	now, revision, err := d.builder.effective(read, s.proxy.key)
	if err == nil && s.registrationOnly {
		now = &configuration{}
	}
	switch {
	case errors.Is(err, policy.ErrNoDataplane):
		return nil, errDeleted
	case err != nil:
		return nil, fmt.Errorf("match %s: %w", s.proxy.key, err)
	}
	response := &meridianv1.ConnectResponse{Revision: uint64(revision), Full: from.full}
	if from.full {
		response.Set = now.messages
	} else {
		response.Set, response.Removed = now.diff(from.have)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !from.full && len(response.GetSet())+len(response.GetRemoved()) == 0 {
		s.proxy.settled = from.changed // the changes came to nothing
		d.changedLocked(s.proxy)
		return nil, nil
	}
	s.sequence++
	response.Sequence, response.TakesTrials = s.sequence, s.sequence == 1
	s.unacked = &delivery{sequence: s.sequence, revision: revision, changed: from.changed}
	s.have, s.full = now.entries, false
	d.changedLocked(s.proxy)
	return response, nil
}

// delivered ends the work that attend began.
func (s *session) delivered(err error) {
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
