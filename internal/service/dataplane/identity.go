package dataplane

import (
	"crypto/ecdsa"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/meshca"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/identities"
)

// ReasonBadRequest is the reason of a refused request for a certificate.
const ReasonBadRequest = "BAD_CERTIFICATE_REQUEST"

// requestEvery is the least time between two requests of a stream.
const requestEvery = time.Second

// retryIdentity is how long a failed write of an authority waits for the next attempt.
const retryIdentity = 5 * time.Second

// identity is what a session knows of its dataplane's certificate. Guarded by
// service.mu.
type identity struct {
	// key is that of the last request; nil before the first one.
	key *ecdsa.PublicKey
	// requested is when the last request came.
	requested time.Time
	// stale: what the proxy has is to be replaced.
	stale bool
	// of is the dataplane that the last certificate names.
	of *resource.Resource
	// plaintext: the mesh accepts plaintext beside TLS.
	plaintext bool
	// refused: the last identity that was sent has no certificate.
	refused bool
	// version and stamp are those of the last identity that was sent, since the version of
	// the first with this stamp, and acked the stamp of the last one that the proxy has
	// acknowledged.
	version, since uint64
	stamp, acked   string
	// answered is the newest version that the proxy has acknowledged.
	answered uint64
}

// requestCertificate takes a request for a certificate.
func (s *session) requestCertificate(m *meridianv1.DataplaneCertificateRequest) error {
	d := s.service
	now := d.cfg.Now()
	d.mu.Lock()
	last := s.identity.requested
	s.identity.requested = now
	d.mu.Unlock()
	if !last.IsZero() && now.Sub(last) < requestEvery {
		return rpcerr.New(rpcerr.TooLarge, ReasonLimit, "a proxy asks for a certificate at most once in %s", requestEvery)
	}
	key, err := meshca.ParseRequest(m.GetCsr())
	if err != nil {
		return rpcerr.New(rpcerr.Invalid, ReasonBadRequest, "%w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.identity.key, s.identity.stale = key, true
	s.scheduleLocked()
	return nil
}

// acknowledgeIdentity takes a proxy's word that it has the identity of a version.
func (s *session) acknowledgeIdentity(version uint64) error {
	d := s.service
	d.mu.Lock()
	newest, certified := s.identity.version, !s.identity.refused
	first := version > s.identity.answered && version <= newest // another time has no effect, and costs nothing
	if first {
		s.identity.answered = version
	}
	if first && version >= s.identity.since {
		s.identity.acked = s.identity.stamp
		d.holders.acknowledged(s.proxy.key, s.identity.stamp)
		d.cfg.Identities.Acknowledged()
	}
	d.mu.Unlock()
	if version == 0 || version > newest {
		return rpcerr.New(rpcerr.Invalid, ReasonBadAnswer, "the answer is to identity %d, and the last one was %d", version, newest)
	}
	if first && version == newest {
		d.cfg.Certified(s.proxy.key, certified)
	}
	return nil
}

// renamedLocked has a dataplane that is not what its certificate was made of get another
// one.
func (s *session) renamedLocked(r *resource.Resource) {
	if s.identity.key != nil && s.identity.of != r {
		s.identity.stale = true
		s.scheduleLocked()
	}
}

// sendIdentity sends the identity of now.
func (s *session) sendIdentity() error {
	d := s.service
	select {
	case d.signing <- struct{}{}:
	case <-s.ctx.Done():
		return nil
	}
	d.mu.Lock()
	s.identity.stale = false
	key := s.identity.key
	stored, _ := d.cfg.Local.View().Get(s.proxy.key)
	s.identity.of = stored
	d.mu.Unlock()
	issued, err := d.cfg.Identities.Issue(s.ctx, s.proxy.key, key, *s.token)
	<-d.signing
	if err != nil {
		s.retryIdentity(err)
		return nil
	}
	if issued.Of != nil { // it may have changed since the session was checked
		if err := checkToken(*s.token, issued.Of); err != nil {
			return err
		}
	}
	if issued.Refused != "" {
		d.logger(s).Warn("a dataplane gets no certificate", "reason", issued.Refused)
	}
	d.mu.Lock()
	if s.identity.plaintext = issued.Plaintext; !issued.Plaintext {
		s.proxy.plaintext = nil
	}
	s.identity.version++
	s.identity.refused = len(issued.Certificate) == 0
	if issued.Of != nil {
		s.identity.of = issued.Of
	}
	if len(issued.Certificate) > 0 {
		d.holders.issued(s.proxy.key, issued.Until)
	}
	if s.identity.stamp != issued.Stamp || s.identity.since == 0 {
		s.identity.stamp, s.identity.since = issued.Stamp, s.identity.version
	}
	message := &meridianv1.DataplaneIdentity{
		Version: s.identity.version, Certificate: issued.Certificate, Roots: issued.Roots, Refused: issued.Refused, Plaintext: issued.Plaintext,
	}
	d.mu.Unlock()
	return s.stream.Send(&meridianv1.ConnectResponse{Identity: message})
}

// retryIdentity has an identity made again that a failed write has kept from being made.
// The stream continues: the proxy keeps what it has.
func (s *session) retryIdentity(err error) {
	d := s.service
	if s.ctx.Err() != nil {
		return
	}
	d.logger(s).Warn("no certificate could be issued: trying again", "error", err)
	time.AfterFunc(retryIdentity, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !s.ended {
			s.identity.stale = true
			s.scheduleLocked()
		}
	})
}

// IdentitiesChanged has the proxies of a mesh be sent new identities.
func (d *Service) IdentitiesChanged(mesh resource.MeshName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.sessions {
		if s.identity.key != nil && s.proxy != nil && s.proxy.key.Mesh == mesh {
			s.identity.stale = true
			s.scheduleLocked()
		}
	}
}

// Unacknowledged counts the dataplanes of a mesh that have a valid certificate and have
// not acknowledged the identity of a stamp, with those that are about to be sent one. One
// that was refused has nothing to acknowledge, unless an earlier certificate is valid.
func (d *Service) Unacknowledged(mesh resource.MeshName, stamp string) identities.Waiting {
	now := d.cfg.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	var waiting identities.Waiting
	for key, p := range d.proxies {
		if s := p.session; key.Mesh == mesh && s != nil && s.identity.key != nil && !s.identity.refused && s.identity.acked != stamp {
			waiting.Connected++
		}
	}
	for key := range d.holders.without(mesh, stamp, now) {
		switch p := d.proxies[key]; {
		case p == nil || p.session == nil:
			waiting.Away++
		case p.session.identity.key == nil || p.session.identity.refused || p.session.identity.acked == stamp:
			waiting.Connected++
		}
	}
	return waiting
}
