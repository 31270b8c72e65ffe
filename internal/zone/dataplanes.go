package zone

import (
	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/service/dataplane"
)

// newDataplaneService returns the service of the zone's proxies.
func (z *zone) newDataplaneService() *dataplane.Service {
	return dataplane.New(dataplane.Config{
		Matching: z.Matching, Local: z.Store, Writer: z.Writer, Grace: z.cfg.DataplaneGrace, Now: z.Now, Log: z.Log, Turns: z.Turns, Refused: z.Limits.Refused,
		Prepare: func(r *resource.Resource) (*resource.Resource, error) { return z.prepare(z.view(), r) },
	})
}

// proxyState says in the words of docs/contract.md how a dataplane's proxy
// stands to the zone.
func proxyState(s dataplane.State) *answer.ProxyState {
	state := &answer.ProxyState{
		State: answer.ProxyManual, RegisteredBy: answer.ByOperator, Acked: s.Acked, Lag: s.Lag, LastError: s.LastError,
	}
	if s.Registered {
		state.State, state.RegisteredBy = answer.ProxyOffline, answer.ByProxy
	}
	if s.Connected {
		state.State = answer.ProxyOnline
	}
	return state
}

// dataplaneList lists the zone's dataplanes and how their proxies stand to it.
func (s *inspectService) dataplaneList(m *policy.Matcher, mesh resource.MeshName) (any, error) {
	a, err := answer.Dataplanes(m, mesh, s.zone)
	if err != nil {
		return nil, err
	}
	for i := range a.Items {
		a.Items[i].ProxyState = proxyState(s.proxies.State(policy.DataplaneKey(a.Items[i].Mesh, a.Items[i].Name)))
	}
	return a, nil
}

// connection is what goes beside an answer about one dataplane; nil for other
// questions.
func (s *inspectService) connection(req *meridianv1.InspectRequest) *meridianv1.DataplaneConnection {
	q, ok := req.GetQuestion().(*meridianv1.InspectRequest_Dataplane)
	if !ok {
		return nil
	}
	state := proxyState(s.proxies.State(policy.DataplaneKey(resource.MeshName(req.GetMesh()), q.Dataplane.GetName())))
	return &meridianv1.DataplaneConnection{
		State: state.State, RegisteredBy: state.RegisteredBy, Acked: uint64(state.Acked), Lag: state.Lag, LastError: state.LastError,
	}
}
