package resource

import (
	"hash/maphash"
	"maps"
	"sync"
)

const (
	// sharedSets bounds how many tag sets of one generation are remembered, and
	// sharedBytes how large one of them is at most: together a few megabytes.
	sharedSets  = 4096
	sharedBytes = 512
)

// tagSharing keeps equal tag sets in memory once. A mesh has thousands of
// dataplanes and each says of ten services which they are, in a map of its own;
// the services are a few hundred.
//
// Labels are shared alike: what registers proxies gives all of them the same.
//
// It forgets: a set that was not met lately is met as a new one, which costs
// memory and nothing else. What it returns is immutable, as is everything that
// has been decoded. The zero value is empty; it is safe for concurrent use.
type tagSharing struct {
	mu sync.Mutex
	// recent are the sets met since older was recent, by their hashes; guarded by
	// mu.
	recent, older map[uint64]Tags
}

// shared are the tag sets of all resources in the process: a pure function's
// memory, as plans is.
var (
	shared  tagSharing
	tagSeed = maphash.MakeSeed()
)

// SharedLabels returns labels that equal the given ones: the same map for equal
// labels when it can. Neither is to be modified from then on.
func SharedLabels(labels map[string]string) map[string]string { return shared.of(labels) }

// of returns a set that equals tags, the same one for equal tags when it can.
func (s *tagSharing) of(tags Tags) Tags {
	var sum uint64
	size := 0
	for name, value := range tags {
		size += len(name) + len(value)
		sum += maphash.Comparable(tagSeed, [2]string{name, value}) // in any order
	}
	if size > sharedBytes {
		return tags
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.recent[sum]
	if !ok {
		if known, ok = s.older[sum]; !ok {
			known = tags
		}
		if s.recent == nil || len(s.recent) == sharedSets {
			s.recent, s.older = map[uint64]Tags{}, s.recent
		}
		s.recent[sum] = known
	}
	if !maps.Equal(known, tags) {
		return tags // two sets of one hash
	}
	return known
}
