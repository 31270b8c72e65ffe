package specificity

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/resource"
)

// A policy ties with one that is as specific (§3.4). So each has as terms how specific
// its pairs of a source and a destination are, with a service of theirs; what ties with
// it is among those that have a term of its own.
const (
	bySource      = "s" // the rank of a pair, and the service of its source
	byDestination = "d" // the rank of a pair, and the service of its destination
	byInbound     = "i" // the rank of a destination alone, and its service
	always        = "*" // a policy with more pairs than maxTerms
)

// maxTerms bounds the pairs of a policy that it has terms for. One with more is compared
// with all of its kind.
const maxTerms = 64

// kind is as much of a selector as terms have.
type kind struct {
	rank
	service string // AnyValue for any
}

func kindsOf(selectors []resource.TagSelector) []kind {
	all := make([]kind, len(selectors))
	for i, match := range selectors {
		all[i] = kind{rank{len(match), match.Exact()}, resource.AnyValue}
		if service, ok := match[resource.ServiceTag]; ok {
			all[i].service = service
		}
	}
	slices.SortFunc(all, func(a, b kind) int { return cmp.Or(a.compare(b.rank), strings.Compare(a.service, b.service)) })
	return slices.Compact(all)
}

// pair is a source and a destination with their rank together. Policies of dataplanes
// have sources alone.
type pair struct {
	rank
	source, destination string
}

// pairsOf returns the pairs of a policy, each once, and its destinations alone; false
// where there are more than maxTerms.
func pairsOf(r *resource.Resource) (pairs []pair, destinations []kind, few bool) {
	switch spec := r.Spec().(type) {
	case resource.DataplaneSpec:
		for _, from := range kindsOf(spec.DataplaneSelectors()) {
			pairs = append(pairs, pair{rank: from.rank, source: from.service})
		}
	case resource.ConnectionSpec:
		sources := kindsOf(spec.SourceSelectors())
		destinations = kindsOf(spec.DestinationSelectors())
		if len(sources)*len(destinations) > maxTerms {
			return nil, nil, false
		}
		for _, from := range sources {
			for _, to := range destinations {
				pairs = append(pairs, pair{from.plus(to.rank), from.service, to.service})
			}
		}
	}
	return pairs, destinations, len(pairs) <= maxTerms
}

// term ends with what no prefix of another does, unless the service is left out.
func term(of string, r rank, service string) string {
	return of + strconv.Itoa(r.tags) + "." + strconv.Itoa(r.exact) + "=" + service + "\n"
}

// Terms returns the terms under which a policy of this engine's kinds is found, by the
// notes on ties; nothing for other kinds.
func Terms(r *resource.Resource) []string {
	d, ok := resource.Describe(r.Key().Kind)
	if !ok || d.Class != resource.SourceDestination {
		return nil
	}
	pairs, destinations, few := pairsOf(r)
	if !few {
		return []string{always}
	}
	var terms []string
	for _, p := range pairs {
		terms = append(terms, term(bySource, p.rank, p.source))
		if p.destination != "" {
			terms = append(terms, term(byDestination, p.rank, p.destination))
		}
	}
	if d.Direction == resource.OnInbound {
		for _, to := range destinations {
			terms = append(terms, term(byInbound, to.rank, to.service))
		}
	}
	slices.Sort(terms)
	return slices.Compact(terms)
}

// mayTie yields the policies that may tie with one, as equal has it, each once: a
// superset of those that do.
func (s *survey) mayTie(r *resource.Resource, matching string) iter.Seq[*resource.Resource] {
	key := r.Key()
	pairs, destinations, few := pairsOf(r)
	if !few {
		return s.view.List(key.Kind, key.Mesh)
	}
	prefixes := map[string]bool{always: true}
	if len(destinations) > 0 && direction(key.Kind) == resource.OnInbound && matching != resource.Kuma2020 {
		for _, to := range destinations {
			for _, prefix := range meeting(byInbound, to.rank, to.service) {
				prefixes[prefix] = true
			}
		}
	} else {
		beside := s.beside(key.Mesh, s.policy(r).sources)
		for _, p := range pairs {
			near := meeting(bySource, p.rank, p.source, beside...)
			if p.destination != "" {
				near = s.fewer(key, near, meeting(byDestination, p.rank, p.destination))
			}
			for _, prefix := range near {
				prefixes[prefix] = true
			}
		}
	}
	return func(yield func(*resource.Resource) bool) {
		seen := map[resource.Key]bool{}
		for _, prefix := range slices.Sorted(maps.Keys(prefixes)) {
			for other := range s.terms.List(key.Kind, key.Mesh, prefix) {
				if seen[other.Key()] {
					continue
				}
				seen[other.Key()] = true
				if !yield(other) {
					return
				}
			}
		}
	}
}

// meeting returns the prefixes of the terms of a rank with a service that a selector of
// a service may meet, or with one of more services.
func meeting(of string, r rank, service string, more ...string) []string {
	if service == resource.AnyValue {
		return []string{strings.TrimSuffix(term(of, r, ""), "\n")}
	}
	prefixes := []string{term(of, r, service), term(of, r, resource.AnyValue)}
	for _, other := range more {
		prefixes = append(prefixes, term(of, r, other))
	}
	return prefixes
}

// enough is how many policies are counted to tell where there are fewer.
const enough = 256

// fewer returns the prefixes under which there are fewer policies, at the cost of
// looking at as many; a where there are enough under both.
func (s *survey) fewer(key resource.Key, a, b []string) []string {
	for limit := 16; limit <= enough; limit *= 4 {
		for _, prefixes := range [][]string{a, b} {
			n := 0
			for _, prefix := range prefixes {
				for range s.terms.List(key.Kind, key.Mesh, prefix) {
					if n++; n >= limit {
						break
					}
				}
			}
			if n < limit {
				return prefixes
			}
		}
	}
	return a
}

// beside returns the services of the dataplanes of several tag sets that a side selects:
// a selector of another of them meets it there.
func (s *survey) beside(mesh resource.MeshName, sources side) []string {
	services := map[string]bool{}
	for _, sets := range s.severalIn(mesh) {
		if s.left--; s.left < 0 {
			break
		}
		if !slices.ContainsFunc(sources.written, func(from selector) bool { return from.matchesAny(sets) }) {
			continue
		}
		for _, tags := range sets {
			services[tags[resource.ServiceTag]] = true
		}
	}
	return slices.Sorted(maps.Keys(services))
}
