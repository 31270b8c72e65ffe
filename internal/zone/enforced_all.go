package zone

import (
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/xds/enforce"
)

// enforcedOf counts for every policy of a kind, in one mesh or in all, the proxies that
// obey it: one look at each proxy, whatever the number of policies. What no proxy uses is
// not among them.
func (s *inspectService) enforcedOf(kind resource.Kind, mesh resource.MeshName) ([]answer.ConditionsItem, error) {
	counts := map[resource.Key]*answer.ProxiesIn{}
	var keys []resource.Key
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
				keys = append(keys, key)
			}
			counts[key].Proxies++
			if state.Holds() {
				counts[key].Obey++
			}
		}
	}
	slices.SortFunc(keys, resource.Key.Compare)
	items := make([]answer.ConditionsItem, len(keys))
	for i, key := range keys {
		items[i] = answer.EnforcedItem(key, []answer.ProxiesIn{*counts[key]})
	}
	return items, nil
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
