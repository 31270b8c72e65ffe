package dataplane

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	// liveTimeout bounds how long a proxy is waited for that is asked what it runs.
	liveTimeout = 6 * time.Second
	// maxLiveBytes bounds its answer, and maxLiveWaiting those who wait for it.
	maxLiveBytes   = 1 << 20
	maxLiveWaiting = 64

	// ReasonNotLive is why a proxy cannot be asked what it runs.
	ReasonNotLive = "NOT_LIVE"
)

// liveRequest is what a session is asked of what its proxy runs. One request at a time is
// under way, and answers all who ask meanwhile.
type liveRequest struct {
	id uint64
	// due: it is to be sent. open: it is not answered yet.
	due, open bool
	waiting   []chan *meridianv1.DataplaneLive
	// parts are the resources that have come of the answer, and bytes their size.
	parts []*meridianv1.LiveResource
	bytes int
}

// Live returns what the proxy of a dataplane itself says that it runs. The errors are for
// who asks.
func (d *Service) Live(ctx context.Context, key resource.Key) (*meridianv1.DataplaneLive, error) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	answered := make(chan *meridianv1.DataplaneLive, 1)
	d.mu.Lock()
	var s *session
	if p := d.proxies[key]; p != nil && p.session != nil && p.session.registered {
		s = p.session
	}
	switch {
	case s == nil:
		d.mu.Unlock()
		return nil, rpcerr.New(rpcerr.NotFound, ReasonNotLive, "no agent of dataplane %q in mesh %q is connected to this zone: its proxy cannot be asked what it runs", key.Name, key.Mesh)
	case !s.answersLive:
		d.mu.Unlock()
		return nil, rpcerr.New(rpcerr.Invalid, ReasonNotLive, "the agent of dataplane %q in mesh %q runs no Envoy that could be asked, or is of an earlier release: `meridian proxy status` says what its proxies have accepted", key.Name, key.Mesh)
	case len(s.live.waiting) == maxLiveWaiting:
		d.mu.Unlock()
		return nil, rpcerr.New(rpcerr.Unavailable, ReasonNotLive, "%d others wait for what the proxy of dataplane %q in mesh %q says that it runs: try again later", maxLiveWaiting, key.Name, key.Mesh)
	}
	if s.live.waiting = append(s.live.waiting, answered); !s.live.open {
		s.live.id++
		s.live.due, s.live.open = true, true
		s.scheduleLocked()
	}
	d.mu.Unlock()
	defer s.stopWaiting(answered)
	select {
	case live := <-answered:
		if why := live.GetError(); why != "" {
			return nil, rpcerr.New(rpcerr.Timeout, ReasonNotLive, "dataplane %q in mesh %q: %s", key.Name, key.Mesh, why)
		}
		return live, nil
	case <-s.ctx.Done():
		return nil, rpcerr.New(rpcerr.NotFound, ReasonNotLive, "the agent of dataplane %q in mesh %q has gone", key.Name, key.Mesh)
	case <-ctx.Done():
		return nil, rpcerr.New(rpcerr.Timeout, ReasonNotLive, "the agent of dataplane %q in mesh %q does not say what its proxy runs within %s", key.Name, key.Mesh, liveTimeout)
	}
}

// stopWaiting forgets who has waited, also where the proxy never answers.
func (s *session) stopWaiting(answered chan *meridianv1.DataplaneLive) {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	s.live.waiting = slices.DeleteFunc(s.live.waiting, func(other chan *meridianv1.DataplaneLive) bool { return other == answered })
}

// sendLiveRequest sends the request that is due.
func (s *session) sendLiveRequest() error {
	s.service.mu.Lock()
	s.live.due = false
	id := s.live.id
	s.service.mu.Unlock()
	return s.stream.Send(&meridianv1.ConnectResponse{LiveRequest: &meridianv1.DataplaneLiveRequest{Id: id}})
}

// takeLive takes the answer to the request that is under way.
func (s *session) takeLive(m *meridianv1.DataplaneLive) error {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	if !s.live.open || s.live.due || m.GetId() != s.live.id {
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "what the proxy runs is said without having been asked for")
	}
	if s.live.bytes += proto.Size(m); s.live.bytes > maxLiveBytes {
		return rpcerr.New(rpcerr.TooLarge, ReasonBadAnswer, "what the proxy says that it runs has more than %d bytes", maxLiveBytes)
	}
	s.live.parts = append(s.live.parts, m.GetResources()...)
	if m.GetMore() {
		return nil
	}
	m.Resources, s.live.parts, s.live.bytes = s.live.parts, nil, 0
	for _, answered := range s.live.waiting {
		answered <- m
	}
	s.live.open, s.live.waiting = false, nil
	return nil
}
