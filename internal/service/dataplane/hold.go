package dataplane

import (
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Check decides whether the holder of a token may act for the proxy of a dataplane
// that exists (§6.8). Errors are *rpcerr.Error: Denied when the token does not cover
// the dataplane, NotFound when there is none, which a proxy that registers beside it
// can wait for. Who is not covered by name is not told whether it exists.
func (d *Service) Check(token token.Token, key resource.Key) error {
	if err := checkTokenForKey(token, key); err != nil {
		return err
	}
	r, ok := d.cfg.Local.View().Get(key)
	if !ok {
		return rpcerr.New(rpcerr.NotFound, ReasonUnknown,
			"dataplane %q in mesh %q does not exist: register it with `meridian proxy run`, or apply it", key.Name, key.Mesh)
	}
	return checkToken(token, r)
}

// Hold keeps the registration of a dataplane until release is called, as a stream of
// Connect does; several holds, and that stream, join. The grace period begins after
// the last. It fails while the registration is being removed, with an *rpcerr.Error of
// code NotFound: the proxy has to register again.
func (d *Service) Hold(key resource.Key) (release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.proxies[key]
	if p == nil {
		p = &proxy{key: key}
		d.proxies[key] = p
	}
	if p.removing != nil {
		return nil, rpcerr.New(rpcerr.NotFound, ReasonUnknown, "the registration of dataplane %q in mesh %q is being removed: register it again", key.Name, key.Mesh)
	}
	p.held++
	d.changedLocked(p)
	return func() { d.release(p) }, nil
}

func (d *Service) release(p *proxy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changedLocked(p)
	if p.held--; p.held == 0 && p.session == nil && d.proxies[p.key] == p {
		d.leftLocked(p)
	}
}
