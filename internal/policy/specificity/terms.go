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
// its pairs of a source and a destination are, with their services; what ties with it is
// among those that have a term of its own, or one that begins alike.
const (
	bySource      = "s" // the rank of a pair, the service of its source, that of its destination
	byDestination = "d" // the rank of a pair, the service of its destination, that of its source
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

// term is of a rank with services. Each part ends with what no other part has, so that
// a term of fewer services is a prefix of those that add one to them.
func term(of string, r rank, services ...string) string {
	t := of + strconv.Itoa(r.tags) + "." + strconv.Itoa(r.exact) + "="
	for _, service := range services {
		t += service + "\n"
	}
	return t
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
		terms = append(terms, term(bySource, p.rank, p.source, p.destination))
		if p.destination != "" {
			terms = append(terms, term(byDestination, p.rank, p.destination, p.source))
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
			for _, service := range meeting(to.service) {
				prefixes[term(byInbound, to.rank, service...)] = true
			}
		}
	} else {
		beside := s.beside(key.Mesh, s.policy(r).sources)
		for _, p := range pairs {
			for _, prefix := range p.meeting(beside) {
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

// meeting returns the services of selectors that one of a service may meet: its own and
// any, and more; nothing, once, where it may meet all.
func meeting(service string, more ...string) [][]string {
	if service == resource.AnyValue || service == "" {
		return [][]string{nil}
	}
	services := [][]string{{service}, {resource.AnyValue}}
	for _, other := range more {
		services = append(services, []string{other})
	}
	return services
}

// meeting returns the prefixes of the terms of pairs that may tie with one, where sources
// of more services may meet its source.
func (p pair) meeting(beside []string) []string {
	of, first, second := bySource, meeting(p.source, beside...), meeting(p.destination)
	if p.source == resource.AnyValue && p.destination != "" {
		of, first, second = byDestination, second, first
	}
	var prefixes []string
	for _, a := range first {
		for _, b := range second {
			prefixes = append(prefixes, term(of, p.rank, slices.Concat(a, b)...))
		}
	}
	return prefixes
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
