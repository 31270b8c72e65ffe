package specificity

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// maxComparisons bounds how many pairs of selectors are compared for the advice on
// one batch, and how many policies that may tie are looked at. What lies beyond is not
// looked at. A policy whose spec has to be decoded for it counts as decoding, which is
// what that takes: about ten microseconds, and as much garbage.
const (
	maxComparisons = 200_000
	decoding       = 10
)

// maxTied bounds how many policies that tie with one are looked for.
const maxTied = 256

// survey advises on the policies of one batch.
type survey struct {
	view     policy.View
	dps      *policy.Census
	terms    *policy.Terms
	compiled map[resource.Key]*compiled
	// several has the dataplanes of each mesh that are selected by more than one tag
	// set: the distinct sets of sets.
	several map[resource.MeshName][][]resource.Tags
	left    int // of maxComparisons
}

// Survey implements policy.Surveyor.
func (Engine) Survey(view policy.View) policy.Adviser {
	return &survey{
		view: view, dps: policy.NewCensus(view), terms: policy.NewTerms(view, Terms),
		compiled: map[resource.Key]*compiled{}, several: map[resource.MeshName][][]resource.Tags{},
		left: maxComparisons,
	}
}

// Advise implements policy.Adviser: backends that the Mesh does not define (§1.4),
// selectors that match nothing (§3.2), policies that are equally specific (§3.4), and a
// mesh that denies every connection.
func (s *survey) Advise(view policy.View, r *resource.Resource) []resource.Problem {
	report := &resource.Report{Problems: s.Warnings(view, r)}
	if d, ok := resource.Describe(r.Key().Kind); ok && d.Class == resource.SourceDestination {
		s.tie(report, r)
	}
	return report.Problems
}

// Warnings implements policy.Warner: everything but the policies that are equally specific.
func (s *survey) Warnings(_ policy.View, r *resource.Resource) []resource.Problem {
	report := &resource.Report{}
	if mesh, ok := s.view.Get(resource.Key{Kind: resource.KindMesh, Name: string(r.Key().Mesh)}); ok {
		if referrer, ok := r.Spec().(resource.BackendReferrer); ok {
			backends(report, r.Key().Mesh, mesh.Spec().(*resource.Mesh), referrer)
		}
	}
	if mesh, ok := r.Spec().(*resource.Mesh); ok {
		s.deniesAll(report, resource.MeshName(r.Key().Name), mesh)
	}
	if d, ok := resource.Describe(r.Key().Kind); ok && d.Class == resource.SourceDestination {
		s.selectsNothing(report, r)
	}
	return report.Problems
}

// selectsNothing warns of selectors that match none of the dataplanes, where some are
// known. The callers of inbounds may be in other zones: of theirs, it warns of probable
// misspellings.
func (s *survey) selectsNothing(report *resource.Report, r *resource.Resource) {
	here := s.dps.Of(r.Key().Mesh)
	if len(here.Specs) == 0 {
		return
	}
	type lacks = func(resource.TagSelector) (message string, near bool)
	each := func(section resource.Path, selectors []resource.TagSelector, lacks lacks, onlyNear bool) {
		for i, selector := range selectors {
			if message, near := lacks(selector); message != "" && (near || !onlyNear) {
				report.Findf(resource.CodeSelectsNothing, section.Index(i).Field("match"), "%s", message)
			}
		}
	}
	switch spec := r.Spec().(type) {
	case resource.DataplaneSpec:
		each("selectors", spec.DataplaneSelectors(), here.Lacks, false)
	case resource.ConnectionSpec:
		inbound := direction(r.Key().Kind) == resource.OnInbound
		each("sources", spec.SourceSelectors(), here.Lacks, inbound)
		if inbound {
			each("destinations", spec.DestinationSelectors(), here.Lacks, false)
		} else {
			each("destinations", spec.DestinationSelectors(), here.OutboundsLack, false)
		}
	}
}

// deniesAll warns of a mesh that denies every connection: with mutual TLS, a caller
// needs a permission (§3.6).
func (s *survey) deniesAll(report *resource.Report, name resource.MeshName, mesh *resource.Mesh) {
	if !mesh.MTLSEnabled() {
		return
	}
	for _, kind := range []resource.Kind{resource.KindTrafficPermission, resource.KindMeshTrafficPermission} {
		for r := range s.view.List(kind, name) {
			if !r.Shadowed() {
				return
			}
		}
	}
	report.Findf(resource.CodeDeniesAll, resource.Path("mtls").Field("enabledBackend"),
		"denies every connection: with mutual TLS a caller needs a %s or %s, and mesh %s has none",
		resource.KindTrafficPermission, resource.KindMeshTrafficPermission, name)
}

// tie notes the policies that are as specific as this one for something that both
// match, and which of them has priority.
func (s *survey) tie(report *resource.Report, r *resource.Resource) {
	matching := policy.MeshOf(s.view, r.Key().Mesh).Matching.SourceDestination
	together := r.Key().Kind == resource.KindTrafficPermission && matching == resource.Kuma2020 // §3.5
	if together || s.left <= 0 {
		return
	}
	if stored, ok := s.view.Get(r.Key()); ok {
		r = stored // with its times
	}
	mine := &bid{compiled: s.policy(r), byTime: matching != resource.Kuma2020}
	var above, below tied
	top := mine
	for other := range s.mayTie(r, matching) {
		if s.left--; s.left < 0 || len(above.names)+len(below.names) == maxTied {
			above.more, below.more = true, true
			break
		}
		if other.Key() == r.Key() || other.Shadowed() != r.Shadowed() {
			continue
		}
		theirs := &bid{compiled: s.policy(other), byTime: mine.byTime}
		if !s.equal(mine.compiled, theirs.compiled, matching) {
			continue
		}
		byTime := mine.byTime && !mine.modified.Equal(theirs.modified)
		if compareBids(mine, theirs) < 0 {
			below.add(other.Key().Name, byTime)
			continue
		}
		above.add(other.Key().Name, byTime)
		if compareBids(theirs, top) < 0 {
			top = theirs
		}
	}
	decides := "the one modified later, then the name that sorts first"
	if !mine.byTime {
		decides = "the name that sorts first"
	}
	cause := fmt.Sprintf("equally specific policies that match the same: %s has priority (%s)", top.key.Name, decides)
	if above.more { // which is the first of all is not known
		cause = fmt.Sprintf("more than %d equally specific policies that match the same: one of them has priority (%s)", maxTied, decides)
	}
	below.note(report, cause, "has priority over")
	above.note(report, cause, "has lower priority than")
}

// maxTies bounds how many equally specific policies a note names.
const maxTies = 3

// tied are policies that tie with one, and what decides between them.
type tied struct {
	names  []string
	byTime int  // for how many the time decides, not the name
	more   bool // there may be more of them
}

func (t *tied) add(name string, byTime bool) {
	t.names = append(t.names, name)
	if byTime {
		t.byTime++
	}
}

// note says which policies tie and what decides.
func (t *tied) note(report *resource.Report, cause, verb string) {
	if len(t.names) == 0 {
		return
	}
	slices.Sort(t.names)
	names := strings.Join(t.names[:min(maxTies, len(t.names))], ", ")
	switch more := len(t.names) - maxTies; {
	case more > 0 && t.more:
		names += fmt.Sprintf(" and at least %d more", more)
	case more > 0:
		names += fmt.Sprintf(" and %d more", more)
	}
	decides := "of equally specific policies that match the same, the one modified later has priority, then the name that sorts first"
	switch t.byTime {
	case 0:
		decides = "of equally specific policies that match the same, the name that sorts first has priority"
	case len(t.names):
		decides = "of equally specific policies that match the same, the one modified later has priority"
	}
	report.Tie(resource.Root, cause, "%s %s: %s", verb, names, decides)
}

// equal reports whether two policies can match something with equal ranks (§3.3),
// as rankOn and perCaller rank them. Destinations are matched against one inbound or
// outbound; sources, and the selectors of policies of dataplanes, against a dataplane,
// which matches with any of its inbounds.
func (s *survey) equal(a, b *compiled, matching string) bool {
	inbound := direction(a.key.Kind) == resource.OnInbound
	switch {
	case len(a.destinations.written) == 0: // policies of dataplanes
		return s.anyTie(a.sources, b.sources, rank{}, rank{}, s.oneDataplane(a.key.Mesh))
	case inbound && matching != resource.Kuma2020: // callers do not count
		return s.anyTie(a.destinations, b.destinations, rank{}, rank{}, s.meet)
	}
	for i := range a.destinations.written {
		for j := range b.destinations.written {
			to, from := &a.destinations.written[i], &b.destinations.written[j]
			if s.meet(to, from) && s.anyTie(a.sources, b.sources, to.rank, from.rank, s.oneDataplane(a.key.Mesh)) {
				return true
			}
		}
	}
	return false
}

// anyTie reports whether an entry of each side can match the same, as meet has it,
// and, with what is added to them, rank equally.
func (s *survey) anyTie(a, b side, plusA, plusB rank, meet func(a, b *selector) bool) bool {
	for i := range a.written {
		for j := range b.written {
			x, y := &a.written[i], &b.written[j]
			if x.plus(plusA) == y.plus(plusB) && meet(x, y) {
				return true
			}
		}
	}
	return false
}

// meet reports whether some tags are matched by both selectors.
func (s *survey) meet(a, b *selector) bool {
	if s.left--; s.left < 0 {
		return false
	}
	for _, w := range a.wants {
		if other, ok := b.match[w.tag]; ok && other != w.value && other != resource.AnyValue && w.value != resource.AnyValue {
			return false
		}
	}
	return true
}

// oneDataplane reports whether one dataplane of the mesh can be matched by both
// selectors: by the same tags, or where there is one whose inbounds have both.
func (s *survey) oneDataplane(mesh resource.MeshName) func(a, b *selector) bool {
	return func(a, b *selector) bool {
		if s.meet(a, b) {
			return true
		}
		for _, sets := range s.severalIn(mesh) {
			if s.left--; s.left < 0 {
				return false
			}
			if a.matchesAny(sets) && b.matchesAny(sets) {
				return true
			}
		}
		return false
	}
}

// severalIn returns the distinct sets of tag sets of the dataplanes of a mesh that have
// more than one.
func (s *survey) severalIn(mesh resource.MeshName) [][]resource.Tags {
	if list, ok := s.several[mesh]; ok {
		return list
	}
	list, seen := [][]resource.Tags{}, map[string]bool{}
	for r := range s.view.List(resource.KindDataplane, mesh) {
		sets := r.Spec().(*resource.Dataplane).TagSets()
		if len(sets) < 2 {
			continue
		}
		if spelled := fmt.Sprint(sets); !seen[spelled] { // maps are printed in key order
			seen[spelled] = true
			list = append(list, sets)
		}
	}
	s.several[mesh] = list
	return list
}

func (s *survey) policy(r *resource.Resource) *compiled {
	c := s.compiled[r.Key()]
	if c == nil {
		s.left -= decoding
		c = newCompiled(r)
		s.compiled[r.Key()] = c
	}
	return c
}

// backends warns of backends that the mesh does not define.
func backends(report *resource.Report, name resource.MeshName, mesh *resource.Mesh, referrer resource.BackendReferrer) {
	for _, ref := range referrer.BackendRefs() {
		if ref.Name != "" && !hasBackend(mesh, ref) {
			report.Findf(resource.CodeBackendNotFound, ref.Path, "mesh %s has no %s backend %q; the policy configures nothing until it has",
				name, ref.Use, ref.Name)
		}
	}
}

func hasBackend(mesh *resource.Mesh, ref resource.BackendRef) bool {
	switch ref.Use {
	case resource.LoggingBackend:
		return mesh.HasLoggingBackend(ref.Name)
	case resource.TracingBackend:
		return mesh.HasTracingBackend(ref.Name)
	default:
		return mesh.Metrics != nil && slices.ContainsFunc(mesh.Metrics.Backends, func(b resource.Backend) bool {
			return b.Name == ref.Name
		})
	}
}
