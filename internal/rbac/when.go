package rbac

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// condition is one entry of a rule's `when`: every qualifier that is there must
// hold (§6.3).
type condition struct {
	// tags are the qualifiers of sources, destinations and selectors; nil when
	// absent.
	tags                [3]tagSet
	targetRef, to, from *target
	token               *resource.TokenQualifier
}

// tagSections names the sections of condition.tags.
var tagSections = [3]string{"sources", "destinations", "selectors"}

// tagSet is a set of tags in bytewise order of their names, which is quicker to
// go through than a map.
type tagSet []resource.TokenTag

func tagSetOf(tags map[string]string) tagSet {
	set := tagSet{}
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		set = append(set, resource.TokenTag{Name: name, Value: tags[name]})
	}
	return set
}

func (s tagSet) asMap() map[string]string {
	tags := map[string]string{}
	for _, tag := range s {
		tags[tag.Name] = tag.Value
	}
	return tags
}

// The sections of handles after those of condition.tags.
const (
	sectionTargetRef = len(tagSections) + iota
	sectionTo
	sectionFrom
	sections
)

// handle returns a tag that whatever fulfils the condition has.
func (w *condition) handle() (handle, bool) {
	for section, tags := range w.tags {
		if h, ok := tags.handle(section); ok {
			return h, true
		}
	}
	for i, t := range [...]*target{w.targetRef, w.to, w.from} {
		if t == nil {
			continue
		}
		section := sectionTargetRef + i
		if !t.tagged {
			return handle{section, string(t.kind), t.name}, true
		}
		if h, ok := t.want.handle(section); ok {
			return h, true
		}
	}
	return handle{}, false
}

func (s tagSet) handle(section int) (handle, bool) {
	for _, tag := range s {
		if tag.Value != resource.AnyValue {
			return handle{section, tag.Name, tag.Value}, true
		}
	}
	return handle{}, false
}

func compileCondition(w *resource.AccessWhen) condition {
	var c condition
	for i, q := range [3]*resource.TagQualifier{w.Sources, w.Destinations, w.Selectors} {
		if q != nil {
			c.tags[i] = tagSetOf(q.Match)
		}
	}
	if w.TargetRef != nil {
		c.targetRef = qualifierOf(w.TargetRef.Normalized())
	}
	for _, q := range []struct {
		from *resource.TargetQualifier
		into **target
	}{{w.To, &c.to}, {w.From, &c.from}} {
		if q.from != nil {
			*q.into = qualifierOf(q.from.TargetRef.Normalized())
		}
	}
	if w.DPToken != nil {
		c.token = w.DPToken
	}
	return c
}

// target is a targetRef as qualifiers are compared: a set of tags, or, for the
// kinds that are none, a kind and a name (§6.3).
type target struct {
	kind resource.TargetKind
	name string
	// tagged tells the kinds that stand for tags: those in tags, and that of the
	// service, unless it is empty, before one of its name in tags.
	tagged  bool
	service string
	tags    map[string]string
	// want has all of them when the target is a qualifier's.
	want tagSet
}

func targetOf(t resource.Target) target {
	switch t.Kind {
	case resource.TargetMesh:
		return target{kind: t.Kind, tagged: true}
	case resource.TargetMeshSubset:
		return target{kind: t.Kind, tagged: true, tags: t.Tags}
	case resource.TargetService:
		return target{kind: t.Kind, tagged: true, service: t.Name}
	case resource.TargetServiceSubset:
		return target{kind: t.Kind, tagged: true, service: t.Name, tags: t.Tags}
	}
	return target{kind: t.Kind, name: t.Name}
}

func qualifierOf(t resource.Target) *target {
	q := targetOf(t)
	q.want = tagSetOf(q.allTags())
	return &q
}

// tag returns the value of a tag that the target stands for.
func (t *target) tag(name string) (string, bool) {
	if name == resource.ServiceTag && t.service != "" {
		return t.service, true
	}
	value, ok := t.tags[name]
	return value, ok
}

func (t *target) allTags() map[string]string {
	tags := maps.Clone(t.tags)
	if tags == nil {
		tags = map[string]string{}
	}
	if t.service != "" {
		tags[resource.ServiceTag] = t.service
	}
	return tags
}

// gatewayGroup is the API group that an inherited policy's target has unless it
// says otherwise.
const gatewayGroup = "gateway.networking.k8s.io"

// inheritedTarget is the target of an inherited policy. One of its sections is
// narrower than the whole, so a qualifier that names the whole covers it.
func inheritedTarget(t resource.InheritedTarget) target {
	kind := t.Kind
	if t.Group != nil && *t.Group != gatewayGroup {
		kind = *t.Group + "/" + kind // another kind than any that a role can name
	}
	return target{kind: resource.TargetKind(kind), name: t.Name}
}

// covers reports whether a qualifier's target covers a policy's.
func (t *target) covers(other *target) bool {
	if !t.tagged || !other.tagged {
		return t.tagged == other.tagged && t.kind == other.kind && t.name == other.name
	}
	for _, tag := range t.want {
		if have, ok := other.tag(tag.Name); !ok || tag.Value != resource.AnyValue && have != tag.Value {
			return false
		}
	}
	return true
}

func (t *target) String() string {
	if !t.tagged {
		return string(t.kind) + " " + t.name
	}
	if tags := t.allTags(); len(tags) > 0 {
		return tagText(tags)
	}
	return "the whole mesh"
}

// uncovered returns the first tag that selector lacks or has with a value the
// qualifier does not accept, and whether there is one. `*` in the qualifier
// accepts any value of a tag that is present; a `*` in the selector is covered
// by nothing else.
func uncovered(qualifier tagSet, selector map[string]string) (resource.TokenTag, bool) {
	for _, tag := range qualifier {
		have, ok := selector[tag.Name]
		if !ok || tag.Value != resource.AnyValue && have != tag.Value {
			return tag, true
		}
	}
	return resource.TokenTag{}, false
}

// content is what conditions look at. Its sections are taken out of the spec
// when the first qualifier asks for them.
type content struct {
	spec    resource.Spec
	token   Token
	isToken bool

	lists  [3][]resource.TagSelector // sources, destinations, selectors
	listed bool
	top    *target
	topped bool
	items  [2][]target // to, from
	aimed  bool
}

func contentOf(spec resource.Spec) *content { return &content{spec: spec} }

// contentOfToken is what there is to look at when a token is generated: tags,
// if it is a dataplane's.
func contentOfToken(access resource.Access, t Token) *content {
	if access != resource.AccessGenerateDataplaneToken {
		t = Token{}
	}
	return &content{token: t, isToken: true}
}

func (c *content) selectors() [3][]resource.TagSelector {
	if !c.listed {
		c.listed = true
		if s, ok := c.spec.(resource.ConnectionSpec); ok {
			c.lists[0], c.lists[1] = s.SourceSelectors(), s.DestinationSelectors()
		}
		if s, ok := c.spec.(resource.DataplaneSpec); ok {
			c.lists[2] = s.DataplaneSelectors()
		}
	}
	return c.lists
}

// target returns the policy's own target, nil when it has none.
func (c *content) target() *target {
	if c.topped {
		return c.top
	}
	c.topped = true
	switch s := c.spec.(type) {
	case resource.TargetRefSpec:
		top := targetOf(s.TopTarget())
		c.top = &top
	case resource.InheritedSpec:
		top := inheritedTarget(s.Target())
		c.top = &top
	}
	return c.top
}

// targets returns those of the policy's `to` and `from` items in every form and
// block.
func (c *content) targets() *[2][]target {
	if c.aimed {
		return &c.items
	}
	c.aimed = true
	if s, ok := c.spec.(resource.TargetRefSpec); ok {
		to, from := s.ItemTargets()
		for i, targets := range [...][]resource.Target{to, from} {
			c.items[i] = make([]target, len(targets))
			for j, t := range targets {
				c.items[i][j] = targetOf(t)
			}
		}
	}
	return &c.items
}

// shortfall is why a condition does not hold, as data: most conditions fail on
// the way to one that holds, and their reasons are not shown. The zero value says that it
// holds.
type shortfall struct {
	section string // of the qualifier, such as "destinations"
	why     cause
	entry   int // of the section, from 0
	// tag is the one that does not do, with what was wanted and what stands there.
	tag, want, have string
	// wanted and got are targets.
	wanted, got *target
}

// cause is what kind of shortfall it is.
type cause int

const (
	sectionAbsent cause = iota
	contentUnknown
	tagAbsent
	tagDiffers
	targetDiffers
	itemDiffers
	tokenTagAbsent
	tokenTagDiffers
	tokenNameDiffers
)

func (s shortfall) none() bool { return s.section == "" }

// String says it for people.
func (s shortfall) String() string {
	switch s.why {
	case sectionAbsent:
		return s.section + " stands in the condition, and there is no such section here"
	case contentUnknown:
		return s.section + " cannot be judged without the content"
	case tagAbsent:
		return fmt.Sprintf("%s wants %s: %s, entry %d does not name that tag", s.section, s.tag, s.want, s.entry+1)
	case tagDiffers:
		return fmt.Sprintf("%s wants %s: %s, entry %d has %s", s.section, s.tag, s.want, s.entry+1, s.have)
	case targetDiffers:
		return fmt.Sprintf("%s wants %s, the policy's is %s", s.section, s.wanted, s.got)
	case itemDiffers:
		return fmt.Sprintf("%s wants %s, item %d targets %s", s.section, s.wanted, s.entry+1, s.got)
	case tokenNameDiffers:
		if s.have == "" {
			return fmt.Sprintf("%s wants a name among %s, the token is for any name", s.section, s.want)
		}
		return fmt.Sprintf("%s wants a name among %s, the token is for %s", s.section, s.want, s.have)
	case tokenTagAbsent:
		return fmt.Sprintf("%s wants %s: %s, the token does not carry that tag", s.section, s.tag, s.want)
	default:
		return fmt.Sprintf("%s wants %s: %s, the token carries %s", s.section, s.tag, s.want, s.have)
	}
}

// unmet returns the first qualifier that does not hold.
func (w *condition) unmet(c *content) shortfall {
	if c.spec != nil || c.isToken {
		return w.unmetBy(c)
	}
	for _, q := range w.qualifiers() {
		return shortfall{section: q, why: contentUnknown}
	}
	return shortfall{}
}

func (w *condition) unmetBy(c *content) shortfall {
	for i, want := range w.tags {
		if want == nil {
			continue
		}
		selectors := c.selectors()[i]
		if len(selectors) == 0 {
			return shortfall{section: tagSections[i]}
		}
		for j, s := range selectors {
			if tag, missing := uncovered(want, s); missing {
				return tagShortfall(tagSections[i], tag, s, j)
			}
		}
	}
	if s := w.unmetTargets(c); !s.none() {
		return s
	}
	return w.unmetToken(c)
}

func (w *condition) unmetTargets(c *content) shortfall {
	if w.targetRef != nil {
		switch top := c.target(); {
		case top == nil:
			return shortfall{section: "targetRef"}
		case !w.targetRef.covers(top):
			return shortfall{section: "targetRef", why: targetDiffers, wanted: w.targetRef, got: top}
		}
	}
	for i, q := range [...]struct {
		section string
		want    *target
	}{{"to", w.to}, {"from", w.from}} {
		if q.want == nil {
			continue
		}
		items := c.targets()[i]
		if len(items) == 0 {
			return shortfall{section: q.section}
		}
		for j := range items {
			if !q.want.covers(&items[j]) {
				return shortfall{section: q.section, why: itemDiffers, entry: j, wanted: q.want, got: &items[j]}
			}
		}
	}
	return shortfall{}
}

// unmetToken holds §6.3 for dpToken: the tag is present and every
// value the token carries for it is the one granted.
func (w *condition) unmetToken(c *content) shortfall {
	if w.token == nil {
		return shortfall{}
	}
	if !c.isToken {
		return shortfall{section: "dpToken"}
	}
	if !w.token.Allows(c.token.Name) {
		return shortfall{section: "dpToken", why: tokenNameDiffers, want: strings.Join(w.token.Names, ", "), have: c.token.Name}
	}
	for _, tag := range w.token.Tags {
		values := c.token.Tags[tag.Name]
		if len(values) == 0 {
			return shortfall{section: "dpToken", why: tokenTagAbsent, tag: tag.Name, want: tag.Value}
		}
		for _, v := range values {
			if v != tag.Value {
				return shortfall{section: "dpToken", why: tokenTagDiffers, tag: tag.Name, want: tag.Value, have: v}
			}
		}
	}
	return shortfall{}
}

// qualifiers names the qualifiers that are there.
func (w *condition) qualifiers() []string {
	var names []string
	for _, q := range [...]struct {
		name    string
		written bool
	}{
		{tagSections[0], w.tags[0] != nil},
		{tagSections[1], w.tags[1] != nil},
		{tagSections[2], w.tags[2] != nil},
		{"targetRef", w.targetRef != nil},
		{"to", w.to != nil},
		{"from", w.from != nil},
		{"dpToken", w.token != nil},
	} {
		if q.written {
			names = append(names, q.name)
		}
	}
	return names
}

func tagShortfall(section string, tag resource.TokenTag, have map[string]string, entry int) shortfall {
	short := shortfall{section: section, why: tagAbsent, entry: entry, tag: tag.Name, want: tag.Value}
	if value, ok := have[tag.Name]; ok {
		short.why, short.have = tagDiffers, value
	}
	return short
}

func tagText(tags map[string]string) string {
	parts := make([]string, 0, len(tags))
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		parts = append(parts, name+": "+tags[name])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
