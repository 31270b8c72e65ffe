package zone

import (
	"context"
	"fmt"
	"slices"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/service/dataplane"
	"meridian/internal/service/discovery"
	"meridian/internal/service/identities"
	"meridian/internal/xds"
	"meridian/internal/xds/serve"
)

// newDataplaneService returns the service of the zone's proxies.
func (z *zone) newDataplaneService() *dataplane.Service {
	return dataplane.New(dataplane.Config{
		Matching: z.Matching, Local: z.Store, Writer: z.Writer, Grace: z.cfg.DataplaneGrace, Now: z.Now, Log: z.Log, Turns: z.Turns, Refused: z.Limits.Refused,
		Identities: z.identities, Certified: z.certified, Unattended: z.resources.Unattended,
		Server: z.serverOfSeveral(), Absent: z.absent, Changed: z.proxyChanged(), Zone: resource.ZoneName(z.cfg.Name),
		Prepare: func(r *resource.Resource) (*resource.Resource, error) { return z.prepare(z.view(), r) },
	})
}

// newIdentities returns the keeper of the zone's certificate authorities.
func (z *zone) newIdentities() *identities.Keeper {
	return identities.New(identities.Config{
		Zone: resource.ZoneName(z.cfg.Name), View: z.view, Stores: z.stores(), Local: z.Store, Writer: z.Writer, Now: z.Now, Log: z.Log,
		Elsewhere: z.identitiesElsewhere(),
		Undenied: func(mesh resource.MeshName) int {
			if revoked := z.world.Mesh(mesh).Revoked; revoked != nil {
				return revoked.Left
			}
			return 0
		},
	})
}

// newDiscovery returns the xDS service of the zone's proxies.
func (z *zone) newDiscovery() *discovery.Service {
	return discovery.New(discovery.Config{
		Source: z.proxySource(), Dataplanes: z.dataplanes, Budget: z.Limits.XDS(), Refused: z.Limits.Refused, Now: z.Now, Log: z.Log,
		Changed: z.proxyChanged(),
	})
}

// serveDiscovery serves proxies over xDS once the zone holds everything that they can
// depend on: what it stored itself, and a first state of the global.
func (z *zone) serveDiscovery(ctx context.Context) error {
	if z.globalStore != nil && z.globalStore.Revision() == 0 {
		if err := z.globalStore.Wait(ctx, 1); err != nil {
			z.discovery.Close()
			return nil // the zone stops
		}
	}
	return z.discovery.Run(ctx)
}

// proxyState says in the words of docs/contract.md how a dataplane's proxy
// stands to the zone.
func proxyState(s dataplane.State) *answer.ProxyState {
	state := &answer.ProxyState{
		State: answer.ProxyManual, RegisteredBy: answer.ByOperator, Acked: s.Acked, Lag: s.Lag, LastError: s.LastError, Draining: s.Draining,
	}
	if s.Registered {
		state.State, state.RegisteredBy = answer.ProxyOffline, answer.ByProxy
	}
	if s.Connected {
		state.State = answer.ProxyOnline
	}
	return state
}

// proxyState is the state of a dataplane's proxy. What one that follows the zone over
// xDS has taken on is what its streams have accepted.
func (s *inspectService) proxyState(key resource.Key) *answer.ProxyState {
	at := s.proxies.State(key)
	if !at.Connected && s.others != nil {
		if r := s.others.report(key); r != nil { // at another server of the zone
			at.Connected, at.Acked, at.Lag, at.LastError = true, resource.Revision(r.GetAcked()), r.GetLag(), r.GetLastError()
			return proxyState(at)
		}
	}
	state := proxyState(at)
	streams := s.xds.Status(key)
	if len(streams) == 0 {
		return state
	}
	state.Acked, state.Lag = 0, 0
	for _, stream := range streams {
		for _, t := range stream.Types {
			switch {
			case t.State == serve.NotSent:
				continue
			case t.State != serve.Synced:
				state.Lag++
			}
			if state.Acked == 0 || t.Revision < state.Acked {
				state.Acked = t.Revision
			}
			if state.LastError == "" {
				state.LastError = t.Detail
			}
		}
	}
	return state
}

// proxyList lists the proxies that follow the zone over xDS.
func (s *inspectService) proxyList(m *policy.Matcher, mesh resource.MeshName, q question.Proxies, asOf resource.Revision) (any, error) {
	if q.Behind != 0 {
		behind, err := s.behind(m, q.Behind, asOf)
		return &answer.ProxiesAnswer{Items: []answer.ProxyStatus{}, Behind: behind}, err
	}
	name := q.Name
	a := &answer.ProxiesAnswer{Items: []answer.ProxyStatus{}}
	keys := s.xds.Proxies()
	if name != "" {
		key := policy.DataplaneKey(mesh, name)
		if !s.known(m, key) {
			return nil, fmt.Errorf("%w: mesh %q has no dataplane %q here", answer.ErrNotFound, mesh, name)
		}
		keys = []resource.Key{key}
	}
	for _, key := range keys {
		if mesh != "" && key.Mesh != mesh {
			continue
		}
		item := answer.ProxyStatus{
			Mesh: key.Mesh, Name: key.Name, Zone: s.zone, Streams: []answer.ProxyStream{}, Plaintext: plaintextOf(s.proxies.State(key)),
		}
		for _, stream := range s.xds.Status(key) {
			item.Streams = append(item.Streams, wireStream(stream))
		}
		if len(item.Streams) > 0 || name != "" {
			a.Items = append(a.Items, item)
		}
	}
	return a, nil
}

// plaintextOf is what a dataplane takes without TLS, as answers show it; nil where it is not
// known.
func plaintextOf(s dataplane.State) *answer.ProxyPlaintext {
	p := s.Plaintext
	if p == nil {
		return nil
	}
	return &answer.ProxyPlaintext{
		Connections: p.Connections, Open: p.Open, Last: p.Last.UTC().Format(time.RFC3339), AsOf: p.AsOf.UTC().Format(time.RFC3339),
	}
}

// known reports whether a dataplane exists.
func (*inspectService) known(m *policy.Matcher, key resource.Key) (found bool) {
	_ = m.Read(func(r *policy.Reading) error {
		for other := range r.Dataplanes(key.Mesh) {
			found = found || other == key
		}
		return nil
	})
	return found
}

func wireStream(s discovery.StreamStatus) answer.ProxyStream {
	out := answer.ProxyStream{
		Client: s.Client, Instance: s.Instance, Dialect: string(s.Dialect), Since: s.Since.UTC().Format(time.RFC3339),
		Withheld: s.Withheld, Types: []answer.ProxyType{},
	}
	for _, t := range s.Types {
		shown := answer.ProxyType{Type: t.Type.String(), State: string(t.State), Revision: t.Revision, Resources: t.Resources, Lag: t.Behind, Error: t.Detail}
		for _, r := range t.Rejections {
			shown.Rejected = append(shown.Rejected, wireRejection(r.Resource, r.Detail))
		}
		for _, w := range t.Withheld {
			shown.Withheld = append(shown.Withheld, wireRejection(w.Resource, w.Why))
		}
		out.Types = append(out.Types, shown)
	}
	return out
}

// wireRejection is a resource that a client does not take, or is not sent, with the
// policies of which it was made.
func wireRejection(r *xds.Resource, why string) answer.ProxyRejection {
	shown := answer.ProxyRejection{Name: r.Name, Error: why}
	for _, o := range r.Origins {
		shown.Policies = append(shown.Policies, o.Source)
	}
	slices.SortFunc(shown.Policies, resource.Key.Compare)
	shown.Policies = slices.Compact(shown.Policies)
	return shown
}

// dataplaneList lists the zone's dataplanes and how their proxies stand to it.
func (s *inspectService) dataplaneList(m *policy.Matcher, mesh resource.MeshName) (any, error) {
	a, err := answer.Dataplanes(m, mesh, s.zone)
	if err != nil {
		return nil, err
	}
	for i := range a.Items {
		a.Items[i].ProxyState = s.proxyState(policy.DataplaneKey(a.Items[i].Mesh, a.Items[i].Name))
	}
	return a, nil
}

// connection is what goes beside an answer about one dataplane; nil for other
// questions.
func (s *inspectService) connection(req *meridianv1.InspectRequest) (*meridianv1.DataplaneConnection, error) {
	q, ok := req.GetQuestion().(*meridianv1.InspectRequest_Dataplane)
	if !ok {
		return nil, nil
	}
	key := policy.DataplaneKey(resource.MeshName(req.GetMesh()), q.Dataplane.GetName())
	state := s.proxyState(key)
	wire, err := s.wire(key, state.Acked)
	if err != nil {
		return nil, err
	}
	return &meridianv1.DataplaneConnection{
		State: state.State, RegisteredBy: state.RegisteredBy, Acked: uint64(state.Acked), Lag: state.Lag, LastError: state.LastError, Wire: wire, Draining: state.Draining,
	}, nil
}
