package zone

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/resource"
	"meridian/internal/service/dataplane"
)

// follower is another server that is told of the proxies of this one.
type follower struct {
	// urgent are proxies of which it is told at once, and dirty, guarded by the mu of
	// otherServers, those of which it is told at the next review.
	urgent chan resource.Key
	dirty  map[resource.Key]struct{}
}

// proxyTLS is what others are told of mutual TLS of a proxy.
type proxyTLS struct{ identified, certified, envoy, listening bool }

// certified notes whether a proxy of this server has a certificate.
func (o *otherServers) certified(key resource.Key, has bool) {
	o.note(key, func(t *proxyTLS) { t.identified, t.certified = true, has })
}

// listening notes whether a proxy of this server is an Envoy, and listens with TLS.
func (o *otherServers) listening(key resource.Key, envoy, secure bool) {
	o.note(key, func(t *proxyTLS) { t.envoy, t.listening = envoy, secure })
}

func (o *otherServers) note(key resource.Key, change func(*proxyTLS)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.tls[key]
	now := before
	if change(&now); now == before {
		return
	}
	o.tls[key] = now
	for f := range o.told {
		select {
		case f.urgent <- key:
		default: // the next review says it
			f.dirty[key] = struct{}{}
		}
	}
}

// changed notes that something else may have changed about a proxy of this server. It is
// called with services locked.
func (o *otherServers) changed(key resource.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := range o.told {
		f.dirty[key] = struct{}{}
	}
	o.retellLocked(key) // it may be gone here, and be at another server
}

// maxNotified bounds the changes that wait to be told to one server at once.
const maxNotified = 1024

// Proxies tells another server of the proxies of this one.
func (o *otherServers) Proxies(_ *peerv1.ProxiesRequest, stream grpc.ServerStreamingServer[peerv1.ProxiesResponse]) error {
	if !o.assembled.Load() {
		return errStarting
	}
	f := &follower{urgent: make(chan resource.Key, maxNotified), dirty: map[resource.Key]struct{}{}}
	o.mu.Lock()
	o.told[f] = struct{}{}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.told, f)
	}()
	sent := map[resource.Key]*peerv1.ProxyReport{}
	tick, repeat := time.NewTicker(reviewInterval), time.NewTicker(repeatInterval)
	defer tick.Stop()
	defer repeat.Stop()
	for response := o.difference(sent); ; {
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-tick.C:
			response = o.differenceOf(sent, o.takeDirty(f))
		case key := <-f.urgent:
			response = o.differenceOf(sent, f.takeUrgent(key))
		case <-repeat.C:
			response = o.difference(sent)
		case <-stream.Context().Done():
			return nil
		}
	}
}

// takeDirty takes the proxies of which another server is to be told.
func (o *otherServers) takeDirty(f *follower) map[resource.Key]struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	dirty := f.dirty
	f.dirty = map[resource.Key]struct{}{}
	return dirty
}

// takeUrgent takes those of which it is told at once, after the first.
func (f *follower) takeUrgent(first resource.Key) map[resource.Key]struct{} {
	keys := map[resource.Key]struct{}{first: {}}
	for {
		select {
		case key := <-f.urgent:
			keys[key] = struct{}{}
		default:
			return keys
		}
	}
}

// difference is what leads from what was sent to what holds now, which it notes as sent.
func (o *otherServers) difference(sent map[resource.Key]*peerv1.ProxyReport) *peerv1.ProxiesResponse {
	out := &peerv1.ProxiesResponse{}
	here := o.zone.dataplanes.Proxies()
	for key := range here {
		o.add(out, sent, key)
	}
	for key := range sent {
		if _, ok := here[key]; !ok {
			delete(sent, key)
			out.Proxies = append(out.Proxies, &peerv1.ProxyReport{Mesh: string(key.Mesh), Name: key.Name, Gone: true})
		}
	}
	o.forget(here)
	return out
}

// differenceOf is that of some proxies.
func (o *otherServers) differenceOf(sent map[resource.Key]*peerv1.ProxyReport, keys map[resource.Key]struct{}) *peerv1.ProxiesResponse {
	out := &peerv1.ProxiesResponse{}
	for key := range keys {
		switch _, said := sent[key]; {
		case o.zone.dataplanes.State(key).Connected:
			o.add(out, sent, key)
		case said:
			o.forgetTLS(key)
			delete(sent, key)
			out.Proxies = append(out.Proxies, &peerv1.ProxyReport{Mesh: string(key.Mesh), Name: key.Name, Gone: true})
		}
	}
	return out
}

// add adds what is to be said of a proxy, unless it was said.
func (o *otherServers) add(out *peerv1.ProxiesResponse, sent map[resource.Key]*peerv1.ProxyReport, key resource.Key) {
	state := o.zone.inspect.proxyState(key)
	o.mu.Lock()
	t := o.tls[key]
	o.mu.Unlock()
	report := &peerv1.ProxyReport{
		Mesh: string(key.Mesh), Name: key.Name, Acked: uint64(state.Acked), Lag: state.Lag, LastError: state.LastError,
		Refused:    o.zone.dataplanes.State(key).Refused,
		Identified: t.identified, Certified: t.certified, Envoy: t.envoy, Listening: t.listening,
	}
	if before := sent[key]; before != nil && proto.Equal(before, report) {
		return
	}
	sent[key] = report
	out.Proxies = append(out.Proxies, report)
}

// forget forgets the proxies that are not here.
func (o *otherServers) forget(here map[resource.Key]dataplane.State) {
	o.mu.Lock()
	var gone []resource.Key
	for key := range o.tls {
		if _, ok := here[key]; !ok {
			gone = append(gone, key)
		}
	}
	o.mu.Unlock()
	for _, key := range gone {
		o.forgetTLS(key)
	}
}

// forgetTLS forgets what is known of mutual TLS of a proxy that is not here: when it returns,
// it may have to begin anew. What is noted of one that returns meanwhile stays.
func (o *otherServers) forgetTLS(key resource.Key) {
	o.mu.Lock()
	before, known := o.tls[key]
	delete(o.tls, key)
	o.mu.Unlock()
	if !known || !o.zone.dataplanes.State(key).Connected {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, again := o.tls[key]; !again {
		o.tls[key] = before
	}
}
