package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// choose returns the zones that have the change from a stage on, sorted: those that have
// it, and those that the stage adds. enabled are the zones that may connect.
//
// A share is one of all enabled zones, those that have the change included: it adds zones
// in an order that depends on the names of the rollout and the zones alone, until the
// share, rounded up, is reached. So a zone that is added to the mesh moves no other zone
// out of its stage.
func choose(name string, stage *resource.RolloutStage, enabled, have []resource.ZoneName) []resource.ZoneName {
	chosen := map[resource.ZoneName]bool{}
	for _, zone := range have {
		chosen[zone] = true
	}
	switch {
	case stage.All:
		for _, zone := range enabled {
			chosen[zone] = true
		}
	case stage.Percent != nil:
		left := share(*stage.Percent, len(enabled))
		var others []resource.ZoneName
		for _, zone := range enabled {
			if chosen[zone] {
				left--
			} else {
				others = append(others, zone)
			}
		}
		slices.SortFunc(others, func(a, b resource.ZoneName) int {
			return cmp.Or(cmp.Compare(rank(name, a), rank(name, b)), cmp.Compare(a, b))
		})
		for _, zone := range others[:max(0, min(left, len(others)))] {
			chosen[zone] = true
		}
	default:
		for _, zone := range enabled {
			if slices.ContainsFunc(stage.Zones, func(pattern string) bool { return matches(pattern, string(zone)) }) {
				chosen[zone] = true
			}
		}
	}
	out := make([]resource.ZoneName, 0, len(chosen))
	for zone := range chosen {
		out = append(out, zone)
	}
	slices.Sort(out)
	return out
}

// share is a percentage of n, rounded up.
func share(percent uint32, n int) int { return (int(percent)*n + 99) / 100 }

// rank orders the zones of a rollout.
func rank(rollout string, zone resource.ZoneName) uint64 {
	sum := sha256.Sum256([]byte(rollout + "/" + string(zone))) // names have no slash
	return binary.BigEndian.Uint64(sum[:])
}

// matches reports whether a name matches a pattern, in which * stands for any characters.
// It takes a time that grows with the product of both lengths at most.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, resource.AnyValue)
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return true
}
