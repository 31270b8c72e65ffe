package zone

import (
	"cmp"
	"errors"
	"slices"
	"strconv"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/enforce"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/serve"
	"meridian/internal/xds/world"
)

// enforced is what the proxies that follow the zone over xDS do with a policy, as a
// condition; none where no proxy uses it. more is what those of other servers do.
func (s *inspectService) enforced(policyKey resource.Key, more []*peerv1.PolicyEnforcement) ([]policy.Condition, error) {
	e, err := s.enforcement(policyKey)
	if err != nil {
		return nil, err
	}
	for _, m := range more {
		e.add(m)
	}
	if e.proxies() == 0 {
		return nil, nil
	}
	return []policy.Condition{answer.Enforcement(s.zone, e.holds, e.approximated, e.lacking, cmp.Or(e.lacks, e.part))}, nil
}

// enforcement is what the proxies of this server do with a policy.
func (s *inspectService) enforcement(policyKey resource.Key) (enforcement, error) {
	e := enforcement{lacking: map[string]int{}}
	d, ok := resource.Describe(policyKey.Kind)
	if !ok || d.Class == resource.AccessControl {
		return e, nil
	}
	var reader enforce.Reader
	for _, key := range s.xds.Proxies() {
		if key.Mesh != policyKey.Mesh {
			continue
		}
		all, err := s.effects(&reader, key, &policyKey)
		if err != nil {
			return e, err
		}
		var worst enforce.State
		for _, effects := range all {
			for i := range effects {
				for _, p := range effects[i].Policies {
					if p.Key == policyKey {
						worst = enforce.Worse(worst, p.State)
					}
				}
			}
		}
		switch {
		case worst == "" || worst == enforce.Unused: // it is not in effect there, or not asked for
		case worst.Holds():
			if e.holds++; worst == enforce.Approximated {
				e.approximated, e.part = e.approximated+1, cmp.Or(e.part, key)
			}
		default:
			e.lacking[string(worst)]++
			e.lacks = cmp.Or(e.lacks, key)
		}
	}
	return e, nil
}

// effects returns what the proxies of a dataplane do with what is in effect on it, one
// list for each kind of proxy that follows the zone; nil when none does. With only, it
// looks at nothing but one policy.
func (s *inspectService) effects(reader *enforce.Reader, key resource.Key, only *resource.Key) ([][]enforce.Effect, error) {
	var all [][]enforce.Effect
	for _, dialect := range s.xds.Dialects(key) {
		// Before the rules: what is newer in them is pending, never called enforced.
		set, err := s.resources.Resources(key, dialect)
		switch {
		case errors.Is(err, xds.ErrNoDataplane), errors.Is(err, xds.ErrDialect):
			continue // its streams end
		case err != nil:
			return nil, err
		}
		var rules []policy.Rule
		var mesh world.Mesh
		var routes []*resource.Resource
		err = s.matching.Read(func(m *policy.Matcher, _ resource.Revision) error {
			spec, found, err := generate.Read(m, s.world, key)
			if err != nil {
				return err
			}
			rules, mesh = found, s.world.Mesh(key.Mesh)
			if only != nil && !routed(only.Kind) {
				return nil
			}
			outbounds := generate.Outbound(spec)
			for i := range outbounds {
				routes = append(routes, s.world.Routes(key.Mesh, outbounds[i].Service)...)
			}
			return nil
		})
		switch {
		case errors.Is(err, xds.ErrNoDataplane):
			continue
		case err != nil:
			return nil, err
		}
		effects := reader.Effects(dialect, mesh, set, rules, routes, only, func(resources []*xds.Resource) []serve.Delivery {
			return s.xds.Deliveries(key, dialect, resources)
		})
		if len(effects) > 0 {
			all = append(all, effects)
		}
	}
	return all, nil
}

// routed reports whether resources of a kind may be routes of services.
func routed(kind resource.Kind) bool {
	return kind == resource.KindHTTPRoute || kind == resource.KindGRPCRoute
}

// wire says for each kind on each attachment of a dataplane what its proxies do with it.
func (s *inspectService) wire(key resource.Key, acked resource.Revision) ([]*meridianv1.WireState, error) {
	all, err := s.effects(&enforce.Reader{}, key, nil)
	if err != nil {
		return nil, err
	}
	// Two outbounds may print alike, and a dataplane may have proxies of two kinds.
	var rows []answer.WireKey
	states := map[answer.WireKey]enforce.State{}
	for _, effects := range all {
		for i := range effects {
			row := answer.WireKey{Attachment: effects[i].Attachment.String(), Kind: effects[i].Kind}
			if _, known := states[row]; !known {
				rows = append(rows, row)
			}
			states[row] = enforce.Worse(states[row], effects[i].State)
		}
	}
	out := make([]*meridianv1.WireState, len(rows))
	for i, row := range rows {
		out[i] = &meridianv1.WireState{Attachment: row.Attachment, Kind: string(row.Kind), State: wireText(states[row], acked)}
	}
	return out, nil
}

// wireText is a state as the column WIRE has it.
func wireText(s enforce.State, acked resource.Revision) string {
	switch s {
	case enforce.Enforced:
		return answer.WireRevision + strconv.FormatUint(uint64(acked), 10)
	case enforce.Unused:
		return answer.WireUnused
	default:
		return string(s)
	}
}

// behind lists the proxies that have yet to accept a change of a revision: those over
// xDS, and those that the dataplane service sends their configuration.
func (s *inspectService) behind(m *policy.Matcher, revision, asOf resource.Revision) (*answer.ProxiesBehind, error) {
	states := s.xds.Behind(revision)
	err := m.Read(func(r *policy.Reading) error {
		for key := range r.Dataplanes("") {
			if at := s.proxies.State(key); at.Connected && at.Lag > 0 && at.Acked < revision {
				states[key] = enforce.Worse(states[key], pendingState(at.Refused))
			}
		}
		return nil
	})
	b := &answer.ProxiesBehind{AsOf: asOf, Count: len(states), Some: []answer.ProxyBehind{}}
	for key, state := range states {
		if state == enforce.Rejected {
			b.Rejected++
		}
		b.Some = append(b.Some, answer.ProxyBehind{Mesh: key.Mesh, Name: key.Name, State: string(state)})
	}
	slices.SortFunc(b.Some, func(x, y answer.ProxyBehind) int {
		return cmp.Or(cmp.Compare(y.State, x.State), cmp.Compare(x.Mesh, y.Mesh), cmp.Compare(x.Name, y.Name))
	})
	b.Some = b.Some[:min(len(b.Some), answer.MaxBehind)]
	return b, err
}

func pendingState(refused bool) enforce.State {
	if refused {
		return enforce.Rejected
	}
	return enforce.Pending
}
