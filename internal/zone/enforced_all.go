package zone

import (
	"maps"
	"slices"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/xds/enforce"
)

// enforcedOf counts for every policy of a kind, in one mesh or in all, the proxies that
// obey it: one look at each proxy, whatever the number of policies. What no proxy uses is
// not among them. more is what the proxies of other servers do.
func (s *inspectService) enforcedOf(kind resource.Kind, mesh resource.MeshName, more []*peerv1.PolicyEnforcement) ([]answer.ConditionsItem, error) {
	counts, err := s.enforcementOf(kind, mesh)
	if err != nil {
		return nil, err
	}
	for _, m := range more {
		key := decodeKey(m.GetPolicy())
		e := enforcement{lacking: map[string]int{}}
		e.add(m)
		if counts[key] == nil {
			counts[key] = &answer.ProxiesIn{Zone: s.zone}
		}
		counts[key].Obey, counts[key].Proxies = counts[key].Obey+e.holds, counts[key].Proxies+e.proxies()
	}
	keys := slices.SortedFunc(maps.Keys(counts), resource.Key.Compare)
	items := make([]answer.ConditionsItem, len(keys))
	for i, key := range keys {
		items[i] = answer.EnforcedItem(key, []answer.ProxiesIn{*counts[key]})
	}
	return items, nil
}

// enforcementOf counts the proxies of this server.
func (s *inspectService) enforcementOf(kind resource.Kind, mesh resource.MeshName) (map[resource.Key]*answer.ProxiesIn, error) {
	counts := map[resource.Key]*answer.ProxiesIn{}
	var reader enforce.Reader
	for _, proxy := range s.xds.Proxies() {
		if mesh != "" && proxy.Mesh != mesh {
			continue
		}
		all, err := s.effects(&reader, proxy, nil)
		if err != nil {
			return nil, err
		}
		worst := map[resource.Key]enforce.State{}
		for _, effects := range all {
			for i := range effects {
				for _, p := range effects[i].Policies {
					if p.Key.Kind == kind && p.State != enforce.Unused {
						worst[p.Key] = enforce.Worse(worst[p.Key], p.State)
					}
				}
			}
		}
		for key, state := range worst {
			if counts[key] == nil {
				counts[key] = &answer.ProxiesIn{Zone: s.zone}
			}
			counts[key].Proxies++
			if state.Holds() {
				counts[key].Obey++
			}
		}
	}
	return counts, nil
}

// attaches reports whether policies of a kind hold on dataplanes.
func (s *inspectService) attaches(kind resource.Kind) (ok bool) {
	_ = s.matching.Read(func(m *policy.Matcher, _ resource.Revision) error {
		return m.Read(func(r *policy.Reading) error {
			ok = r.Matches(kind)
			return nil
		})
	})
	return ok
}
