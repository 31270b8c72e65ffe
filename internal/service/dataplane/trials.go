package dataplane

import (
	"time"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	// A proxy may send maxTrials messages about permissions that are tried within trialsTime:
	// it sends one in five seconds, of which several may arrive at once. One may have
	// maxTrialCounts counts, and maxTrialBytes bytes.
	maxTrials      = 10
	trialsTime     = 10 * time.Second
	maxTrialCounts = 256
	maxTrialBytes  = 64 << 10
)

// toldTrials counts the messages of a session about permissions that are tried.
type toldTrials struct {
	since    time.Time
	messages int
}

// takeTrial takes what a proxy has counted of permissions that are tried.
func (s *session) takeTrial(m *meridianv1.DataplaneTrial) error {
	d := s.service
	now := d.cfg.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(s.tried.since) >= trialsTime {
		s.tried.since, s.tried.messages = now, 0
	}
	s.tried.messages++
	switch {
	case s.tried.messages > maxTrials:
		return rpcerr.New(rpcerr.TooLarge, ReasonLimit, "a proxy tells what it tries at most %d times in %s", maxTrials, trialsTime)
	case len(m.GetCounts()) > maxTrialCounts || proto.Size(m) > maxTrialBytes:
		return rpcerr.New(rpcerr.TooLarge, ReasonLimit, "a proxy tells at most %d counts of what it tries, in %d bytes", maxTrialCounts, maxTrialBytes)
	}
	s.proxy.trial = m
	return nil
}

// Trials returns what the proxies of a mesh, or of all, have counted of permissions that are
// tried. The messages must not be modified.
func (d *Service) Trials(mesh resource.MeshName) map[resource.Key]*meridianv1.DataplaneTrial {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := map[resource.Key]*meridianv1.DataplaneTrial{}
	for key, p := range d.proxies {
		if p.trial != nil && (mesh == "" || key.Mesh == mesh) {
			found[key] = p.trial
		}
	}
	return found
}
