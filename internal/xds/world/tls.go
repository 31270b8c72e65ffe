package world

import (
	"meridian/internal/identity"
	"meridian/internal/resource"
)

// proxyTLS is how far a dataplane's proxy is with mutual TLS.
type proxyTLS struct {
	// certified: it has a certificate. listening: it has accepted listeners with TLS for
	// all inbounds.
	certified, listening bool
	// envoy: it is an Envoy, which was connected.
	envoy bool
	// unattended: no agent has come for it in the time that they have.
	unattended bool
}

// leftOut reports whether requests with mutual TLS are not sent to the dataplane, since it
// has no certificate.
func (p proxyTLS) leftOut() bool { return p.unattended && !p.certified }

// unnamed returns why a dataplane of this zone can have no certificate; empty if it can.
func (w *World) unnamed(r *resource.Resource) string {
	spec := r.Spec().(*resource.Dataplane)
	for _, tags := range spec.TagSets() {
		if of := tags[resource.ZoneTag]; of != "" && of != string(w.zone) {
			return "" // another zone gives it one
		}
	}
	if _, err := identity.Of(w.zone, r.Key().Mesh, r.Key().Name, spec.TagSets()); err != nil {
		return err.Error()
	}
	return ""
}

// LeftOut returns why others send a dataplane no requests for want of a certificate; empty
// if they do. It is a sentence for operators.
func (w *World) LeftOut(dataplane resource.Key) string {
	settings := w.Mesh(dataplane.Mesh)
	w.mu.RLock()
	defer w.mu.RUnlock()
	r, exists := w.view.Get(dataplane)
	if !exists || !settings.Secure() || len(r.Spec().(*resource.Dataplane).Inbounds()) == 0 {
		return ""
	}
	if why := w.unnamed(r); why != "" {
		return "others send it no requests, since the mesh is STRICT and it can have no certificate: " + why
	}
	if w.proxies[dataplane].leftOut() {
		return "others send it no requests, since the mesh is STRICT and no agent has come for its certificate: run `meridian proxy run` beside it"
	}
	return ""
}

// MeshOf is Mesh as it holds for the proxies of one dataplane. Where plaintext is accepted
// beside TLS, its outbounds use TLS once it has a certificate. Where mutual TLS was turned
// off, its inbounds accept TLS for as long as it has one: who calls may not have heard.
func (w *World) MeshOf(dataplane resource.Key) Mesh {
	settings := w.Mesh(dataplane.Mesh)
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !w.proxies[dataplane].certified {
		return settings
	}
	switch {
	case settings.Certified():
		settings.Offers = settings.Permissive
	case settings.Exists && !settings.MTLS:
		settings.MTLS, settings.Permissive, settings.BackendType = true, true, BuiltinCA
	}
	return settings
}

// SetCertified notes whether a dataplane's proxy has a certificate, and reports whether
// that is new.
func (w *World) SetCertified(dataplane resource.Key, has bool) bool {
	return w.setProxy(dataplane, func(p *proxyTLS) { p.certified = has })
}

// SetListening notes whether a dataplane's proxy is an Envoy, and whether that has accepted
// listeners with TLS for all its inbounds, and reports whether that is new.
func (w *World) SetListening(dataplane resource.Key, envoy, has bool) bool {
	return w.setProxy(dataplane, func(p *proxyTLS) { p.listening, p.envoy = has, envoy })
}

// SetUnattended notes that no agent has come for a dataplane, which so has no certificate
// until SetCertified says otherwise, and reports whether that is new.
func (w *World) SetUnattended(dataplane resource.Key) bool {
	return w.setProxy(dataplane, func(p *proxyTLS) { p.unattended = true })
}

func (w *World) setProxy(dataplane resource.Key, set func(*proxyTLS)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, exists := w.view.Get(dataplane)
	before := w.proxies[dataplane]
	now := before
	if set(&now); !exists || now == before {
		return false
	}
	if w.proxies[dataplane] = now; now == (proxyTLS{}) {
		delete(w.proxies, dataplane)
	}
	touched := changes{}
	for _, in := range w.instancesOf(r) {
		touched.of(Service{dataplane.Mesh, in.tags[resource.ServiceTag]}).all = true
	}
	w.refresh(touched)
	w.dirty.Dataplanes = append(w.dirty.Dataplanes, dataplane)
	return true
}
