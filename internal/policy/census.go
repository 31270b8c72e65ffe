package policy

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"meridian/internal/resource"
)

// maxGuesses bounds for how many names of a batch a misspelling is looked for:
// each is compared with every name there is.
const maxGuesses = 100

// Census is what the dataplanes of a view are like, for advice on one batch. What it
// finds out about a mesh is kept. It is not safe for concurrent use.
type Census struct {
	view    View
	meshes  map[resource.MeshName]*Dataplanes
	guesses int
}

// NewCensus returns a census of a view.
func NewCensus(view View) *Census {
	return &Census{view: view, meshes: map[resource.MeshName]*Dataplanes{}}
}

// Dataplanes are those of one mesh as far as they are known in the view: all of them
// in a zone, none on the global. Every part is found out when it is first asked for.
type Dataplanes struct {
	Specs []*resource.Dataplane
	// Consumed are the services of outbounds.
	Consumed func() map[string]bool

	census *Census
	// members are the tag sets of inbounds and gateways, sent those of outbounds, each
	// set once.
	members, sent func() *tagSets
}

// tagSets are distinct tag sets.
type tagSets struct {
	all       []resource.Tags
	byService map[string][]resource.Tags
	// values are the values of every tag.
	values map[string]map[string]bool
}

// Of returns the dataplanes of a mesh.
func (c *Census) Of(mesh resource.MeshName) *Dataplanes {
	if known := c.meshes[mesh]; known != nil {
		return known
	}
	d := &Dataplanes{census: c}
	for r := range c.view.List(resource.KindDataplane, mesh) {
		d.Specs = append(d.Specs, r.Spec().(*resource.Dataplane))
	}
	d.members = sync.OnceValue(func() *tagSets { return d.count((*resource.Dataplane).TagSets) })
	d.sent = sync.OnceValue(func() *tagSets { return d.count(sentTags) })
	d.Consumed = sync.OnceValue(func() map[string]bool { return d.sent().values[resource.ServiceTag] })
	c.meshes[mesh] = d
	return d
}

func sentTags(spec *resource.Dataplane) []resource.Tags {
	var sets []resource.Tags
	for _, out := range spec.Outbounds() {
		sets = append(sets, out.Tags)
	}
	return sets
}

func (d *Dataplanes) count(of func(*resource.Dataplane) []resource.Tags) *tagSets {
	t := &tagSets{byService: map[string][]resource.Tags{}, values: map[string]map[string]bool{}}
	seen := map[string]bool{}
	for _, spec := range d.Specs {
		for _, tags := range of(spec) {
			spelled := fmt.Sprint(tags) // maps are printed in key order
			if seen[spelled] {
				continue
			}
			seen[spelled] = true
			service := tags[resource.ServiceTag]
			t.all = append(t.all, tags)
			t.byService[service] = append(t.byService[service], tags)
			for tag, value := range tags {
				if t.values[tag] == nil {
					t.values[tag] = map[string]bool{}
				}
				t.values[tag][value] = true
			}
		}
	}
	return t
}

func (t *tagSets) has(selector resource.TagSelector) bool {
	sets := t.all
	if service, ok := selector[resource.ServiceTag]; ok && service != resource.AnyValue {
		sets = t.byService[service]
	}
	return slices.ContainsFunc(sets, selector.Matches)
}

// Lacks says what of a selector no inbound or gateway has, and what was probably
// meant; nothing when one matches. near is whether there is something that was.
func (d *Dataplanes) Lacks(selector resource.TagSelector) (message string, near bool) {
	return d.census.lacks(d.members(), selector, "inbound")
}

// OutboundsLack is Lacks for outbounds; nothing where there are none.
func (d *Dataplanes) OutboundsLack(selector resource.TagSelector) (message string, near bool) {
	if len(d.sent().all) == 0 {
		return "", false
	}
	return d.census.lacks(d.sent(), selector, "outbound")
}

func (c *Census) lacks(t *tagSets, selector resource.TagSelector, what string) (message string, near bool) {
	if t.has(selector) {
		return "", false
	}
	var pairs []string
	for _, tag := range slices.Sorted(maps.Keys(selector)) {
		value := selector[tag]
		switch {
		case len(t.values[tag]) == 0:
			guess, near := c.DidYouMean(tag, maps.Keys(t.values))
			return "no " + what + " has the tag " + tag + guess, near
		case value != resource.AnyValue && !t.values[tag][value]:
			guess, near := c.DidYouMean(value, maps.Keys(t.values[tag]))
			return "no " + what + " has " + tag + "=" + value + guess, near
		}
		pairs = append(pairs, tag+"="+value)
	}
	return "no " + what + " has all of " + strings.Join(pairs, ", "), false
}

// DidYouMean is the end of a message about an unknown name; nothing when a batch
// has had enough of them.
func (c *Census) DidYouMean(word string, known iter.Seq[string]) (text string, near bool) {
	if c.guesses++; c.guesses > maxGuesses {
		return "", false
	}
	if near, ok := resource.Nearest(word, slices.Collect(known)); ok {
		return "; did you mean " + near + "?", true
	}
	return "", false
}
