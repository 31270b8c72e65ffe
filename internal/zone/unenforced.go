package zone

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/shadow"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/support"
	"meridian/internal/xds/wire"
)

// maxShortfalls bounds the fields that are named of one resource for one kind of proxies.
const maxShortfalls = 6

// holders are the dataplanes on which a resource holds, and whether it does on inbounds
// and on outbounds.
type holders map[resource.Key]struct{ inbound, outbound bool }

// unenforced says what of a resource the proxies do not, or not quite, obey on which it
// holds and that follow the zone over xDS. Where there is none, and for kinds that do not
// concern proxies, it says nothing.
func (s *inspectService) unenforced(key resource.Key) ([]answer.Warning, error) {
	connected := s.xds.Proxies()
	d, ok := resource.Describe(key.Kind)
	if !ok || len(connected) == 0 || d.Class == resource.AccessControl {
		return nil, nil
	}
	var on holders
	var written *resource.Resource
	permissions := map[xds.Dialect]support.Answer{}
	err := s.matching.Read(func(m *policy.Matcher, _ resource.Revision) error {
		return m.Read(func(r *policy.Reading) (err error) {
			if written, ok = r.View().Get(key); !ok {
				return nil
			}
			if resource.Permission(key.Kind) {
				for _, dialect := range support.Dialects() {
					permissions[dialect] = wire.Permissions(s.world.Mesh(key.Mesh), dialect)
				}
			}
			trial, _ := policy.FollowerOf[*shadow.Trial](m)
			if trial != nil && trial.Tried(key) {
				permissions[xds.GRPC] = support.Answer{Status: support.Unsupported, Note: "gRPC servers try no permissions: what this one would deny is not counted or logged"}
			}
			on, err = s.holders(r, trial, key, connected)
			return err
		})
	})
	if err != nil || !ok {
		return nil, err
	}
	var warnings []answer.Warning
	for _, dialect := range support.Dialects() {
		// The mesh itself is why nothing is sent: no resource on the proxies has an effect.
		withheld := map[string]int{}
		following := holders{}
		example := ""
		for _, proxy := range connected {
			at, held := on[proxy]
			if !held {
				continue
			}
			switch reason, follows := s.xds.Follows(proxy, dialect); {
			case !follows:
			case reason != "":
				withheld[reason]++
			default:
				following[proxy] = at
				if example == "" {
					example = proxy.Name
				}
			}
		}
		for _, reason := range slices.Sorted(maps.Keys(withheld)) {
			warnings = append(warnings, s.warnOf(dialect, "", support.Unsupported, "nothing is sent to them: "+reason, withheld[reason]))
		}
		if len(following) == 0 {
			continue
		}
		if got := permissions[dialect]; got.Note != "" {
			warnings = append(warnings, s.warnOf(dialect, "", got.Status, got.Note, len(following)))
			if got.Status == support.Unsupported {
				continue
			}
		}
		short, err := wire.Shortfalls(dialect, written)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		warnings = append(warnings, s.shortfalls(dialect, short, following, example)...)
	}
	return warnings, nil
}

// shortfalls are the warnings about proxies of one kind.
func (s *inspectService) shortfalls(dialect xds.Dialect, short []wire.Shortfall, on holders, example string) (warnings []answer.Warning) {
	more := 0
	for _, f := range short {
		proxies := 0
		for _, at := range on {
			if f.Direction == "" || f.Direction == "from" && at.inbound || f.Direction == "to" && at.outbound {
				proxies++
			}
		}
		switch {
		case proxies == 0:
		case len(warnings) == maxShortfalls:
			more += f.Fields
		default:
			warnings = append(warnings, s.warnOf(dialect, string(f.Path), f.Status, f.Note, proxies))
		}
	}
	if more > 0 {
		note := fmt.Sprintf("this is about %d more fields: `meridian inspect proxy %s` lists what has no effect there", more, example)
		warnings = append(warnings, s.warnOf(dialect, "", support.Approximated, note, len(on)))
	}
	return warnings
}

func (s *inspectService) warnOf(dialect xds.Dialect, path string, status support.Status, note string, proxies int) answer.Warning {
	return answer.UnenforcedWarning(path, &answer.Unenforced{
		Dialect: string(dialect), Status: string(status), Note: note, Zones: []answer.UnenforcedIn{{Zone: s.zone, Proxies: proxies}},
	})
}

// holders returns on which of the connected dataplanes a resource holds: a mesh on all of
// its dataplanes, a route on those that send to its services, and a permission that is
// only tried where it would hold.
func (s *inspectService) holders(r *policy.Reading, trial *shadow.Trial, key resource.Key, connected []resource.Key) (holders, error) {
	on := holders{}
	if r.Matches(key.Kind) {
		place := r.Placements
		if trial != nil && trial.Tried(key) {
			place = trial.Placements
		}
		placed, err := place(key)
		if err != nil && !errors.Is(err, policy.ErrNoPolicy) {
			return nil, fmt.Errorf("place %s: %w", key, err)
		}
		for _, p := range placed {
			if p.Superseded != nil {
				continue
			}
			at := on[p.Dataplane]
			for i := range p.Attachments {
				at.inbound = at.inbound || p.Attachments[i].Type == policy.OnInbound
				at.outbound = at.outbound || p.Attachments[i].Type == policy.OnOutbound
			}
			on[p.Dataplane] = at
		}
		return on, nil
	}
	for _, proxy := range connected {
		if s.concerns(key, proxy) {
			on[proxy] = struct{ inbound, outbound bool }{true, true}
		}
	}
	return on, nil
}

// concerns reports whether what is no policy on dataplanes concerns one of them.
func (s *inspectService) concerns(key, proxy resource.Key) bool {
	switch key.Kind {
	case resource.KindMesh:
		return string(proxy.Mesh) == key.Name
	case resource.KindDataplane:
		return proxy == key
	case resource.KindHTTPRoute, resource.KindGRPCRoute:
		found, ok := s.world.Dataplane(proxy)
		if !ok || proxy.Mesh != key.Mesh {
			return false
		}
		outbounds := generate.Outbound(found.Spec().(*resource.Dataplane))
		for i := range outbounds {
			if slices.ContainsFunc(s.world.Routes(key.Mesh, outbounds[i].Service), func(r *resource.Resource) bool { return r.Key() == key }) {
				return true
			}
		}
	default:
	}
	return false
}
