package targetref

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// walk goes through the policies that select a dataplane, from the most to the
// least specific, and puts what they say about one attachment, or one route of
// it, in order.
//
// At every level of targets, defaults come first, in the order of
// §4.3; then overrides, the newest first, so that every override ends up above
// all defaults and above the overrides of more specific policies
// (§4.10).
type walk struct {
	*policy.Query
	order
	route *route

	// under are the steps of defaults, the highest priority first; over are the
	// blocks of overrides, the lowest first, each in the same order inside.
	under []placed
	over  [][]placed
	// closed is the policy whose atomic override is the whole configuration:
	// less specific defaults add nothing to it.
	closed *compiled
	unset  []unsetting
	notes  map[*compiled]*notes // policies that reach the attachment, for an explanation
	picked []*item              // scratch
}

// placed is a step in its place.
type placed struct {
	policy.Step
	from *compiled
	// same is what the step's item targets, where configurations are kept apart
	// by caller; empty elsewhere.
	same string
}

// unsetting is what one policy takes out of less specific defaults.
type unsetting struct {
	by       *compiled
	pointers []policy.Pointer
	// same lists the targets of the from items it is about; nil is everything.
	same []string
}

// notes are what an explanation has to say about a policy besides its rank.
type notes struct {
	said []string
}

func (n *notes) String() string { return strings.Join(n.said, "; ") }

// perCaller reports whether what is built is an ordered list for callers.
func (w *walk) perCaller() bool { return w.Attachment.Type == policy.OnInbound }

// rule walks the policies in order. It returns false when none of them has a
// say; where an explanation is wanted, an entry without steps says why.
func (w *walk) rule(line []*compiled) (policy.Rule, bool) {
	for start := 0; start < len(line); {
		end := start
		for end < len(line) && line[end].level == line[start].level {
			end++
		}
		w.level(line[start:end])
		start = end
	}
	rule := policy.Rule{Target: policy.Target{Attachment: *w.Attachment, Kind: w.Kind}, PerCaller: w.perCaller()}
	if w.route != nil {
		rule.Attachment.Route = w.route.name
	}
	rule.Steps = w.steps()
	if w.Explain && (len(rule.Steps) > 0 || len(w.notes) > 0) {
		rule.Unused = w.unused(rule.Steps, line)
		rule.Warnings = w.partly(line)
		return rule, true
	}
	return rule, len(rule.Steps) > 0
}

// level takes the policies of one kind of target.
func (w *walk) level(level []*compiled) {
	var over []*compiled
	for _, c := range level {
		if c.route != nil && (w.route == nil || c.route.routeID != w.route.routeID || !c.onRoute(w.Query)) {
			continue
		}
		if c.under != nil {
			w.takeDefaults(c)
		}
		if len(c.unset) > 0 {
			w.takeUnset(c)
		}
		if c.over != nil {
			over = append(over, c)
		}
	}
	slices.SortFunc(over, compareOverrides)
	for _, c := range over {
		w.takeOverrides(c)
	}
}

// pick returns a block's items that select the attachment, highest priority
// first. The slice is valid until the next call.
func (w *walk) pick(b *block) []*item {
	w.picked = w.picked[:0]
	items := b.items(w.Attachment.Type)
	for i := range items {
		if items[i].selects(w.Query, w.route) {
			w.picked = append(w.picked, &items[i])
		}
	}
	if w.lastWins {
		slices.Reverse(w.picked)
	}
	return w.picked
}

// note records that a policy reaches the attachment and, unless the text is
// empty, something to say about it.
func (w *walk) note(c *compiled, format string, args ...any) *notes {
	if !w.Explain {
		return nil
	}
	n := w.notes[c]
	if n == nil {
		if w.notes == nil {
			w.notes = map[*compiled]*notes{}
		}
		n = &notes{}
		w.notes[c] = n
	}
	if text := fmt.Sprintf(format, args...); text != "" && !slices.Contains(n.said, text) {
		n.said = append(n.said, text)
	}
	return n
}

// takeDefaults adds a policy's bare configuration or defaults below what is
// there.
func (w *walk) takeDefaults(c *compiled) {
	items := w.pick(c.under)
	if len(items) == 0 {
		return
	}
	w.note(c, "")
	switch {
	case w.closed != nil:
		w.note(c, "its %s are below the atomic override of %s, which is the whole configuration", c.under.plural(), w.closed.key.Name)
		return
	case c.under.atomic && w.started():
		w.note(c, "its defaults are atomic and more specific policies already configure this %s", w.Attachment.Type)
		return
	}
	steps := w.place(c, c.under, items)
	w.under = append(w.under, steps...)
}

// takeOverrides adds a policy's overrides above what is there.
func (w *walk) takeOverrides(c *compiled) {
	items := w.pick(c.over)
	if len(items) == 0 {
		return
	}
	w.note(c, "")
	steps := w.place(c, c.over, items)
	if len(steps) == 0 {
		return
	}
	if c.over.atomic {
		w.replace(c)
	}
	w.over = append(w.over, steps)
}

// replace drops every step in favour of an atomic override.
func (w *walk) replace(by *compiled) {
	drop := func(p *placed) {
		if p.from != by {
			w.note(p.from, "is replaced by the atomic override of %s", by.key.Name)
		}
	}
	for i := range w.under {
		drop(&w.under[i])
	}
	for _, steps := range w.over {
		for i := range steps {
			drop(&steps[i])
		}
	}
	w.under, w.over, w.closed = nil, nil, by
}

// started reports whether anything is configured yet.
func (w *walk) started() bool {
	return len(w.over) > 0 || slices.ContainsFunc(w.under, func(p placed) bool { return len(p.Conf) > 0 })
}

// place makes steps of a block's items, as far as its condition holds and no
// more specific policy has unset them.
func (w *walk) place(c *compiled, b *block, items []*item) []placed {
	steps := make([]placed, 0, len(items))
	holds := map[string]bool{}
	for _, it := range items {
		same := w.sameOf(it)
		if b.conditional() {
			held, known := holds[same]
			if !known {
				held = w.holds(c, b, same)
				holds[same] = held
			}
			if !held {
				continue
			}
		}
		conf := it.conf
		if b.form != overrides && len(w.unset) > 0 {
			if conf = w.without(c, it); conf == nil {
				continue
			}
		}
		s := policy.Step{Op: policy.Fill, Conf: conf, Origin: c.key, Match: it.callers}
		st := &precedence{compiled: c, form: b.form, item: it, order: w.order, notes: w.note(c, "")}
		if w.Explain && b.when != nil {
			st.held = fmt.Sprintf(", when (%s)", b.when)
		}
		s.Precedence = st
		steps = append(steps, placed{Step: s, from: c, same: same})
	}
	return steps
}

// sameOf is by what configurations are kept apart (§4.10): the target
// of a from item.
func (w *walk) sameOf(it *item) string {
	if w.perCaller() {
		return it.same
	}
	return ""
}

// takeUnset remembers what a policy takes out of less specific defaults: on the
// attachments that its items are about, on every one when it has no items.
func (w *walk) takeUnset(c *compiled) {
	u := unsetting{by: c, pointers: c.unset}
	if !c.unsetsAlone() {
		reaches := false
		for _, b := range c.blocks() {
			for _, it := range w.pick(b) {
				reaches = true
				if w.perCaller() {
					u.same = append(u.same, it.same)
				}
			}
		}
		if !reaches {
			return
		}
	}
	if w.Mesh.Matching.Unset == resource.UnsetForbidden {
		w.note(c, "its unset has no effect: the mesh forbids it (§1.4)")
		return
	}
	w.note(c, "")
	w.unset = append(w.unset, u)
	if !w.perCaller() && c.unsetsAlone() {
		// It is used if something is taken out: an empty step holds its place.
		st := &precedence{compiled: c, form: bare, order: w.order, notes: w.note(c, "")}
		w.under = append(w.under, placed{Step: policy.Step{Op: policy.Fill, Conf: policy.Tree{}, Origin: c.key, Precedence: st}, from: c})
	}
}

// without is an item's configuration without what more specific policies unset;
// nil when nothing is left of it.
func (w *walk) without(c *compiled, it *item) policy.Tree {
	conf := it.conf
	for _, u := range w.unset {
		if u.same != nil && !slices.Contains(u.same, it.same) || u.by == c {
			continue
		}
		rest, removed := policy.Without(conf, u.pointers, 0)
		if len(removed) == 0 {
			continue
		}
		conf = rest
		w.note(c, "%s unsets its %s", u.by.key.Name, pointers(removed))
		w.note(u.by, "takes %s out of %s", pointers(removed), c.key.Name)
		w.keep(u.by)
		if len(conf) == 0 {
			return nil
		}
	}
	return conf
}

// keep marks that a policy's unset has had an effect.
func (w *walk) keep(c *compiled) {
	for i := range w.under {
		if s, ok := w.under[i].Precedence.(*precedence); ok && w.under[i].from == c {
			s.effective = true
		}
	}
}

func pointers(list []policy.Pointer) string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

// steps puts overrides above defaults.
func (w *walk) steps() []policy.Step {
	steps := make([]policy.Step, 0, len(w.under)+len(w.over))
	for _, block := range slices.Backward(w.over) {
		for i := range block {
			steps = append(steps, block[i].Step)
		}
	}
	for i := range w.under {
		s := w.under[i].Precedence.(*precedence)
		if s.item == nil && !s.effective {
			continue // an unset that met nothing
		}
		steps = append(steps, w.under[i].Step)
	}
	if len(steps) > 0 && !slices.ContainsFunc(steps[1:], func(s policy.Step) bool { return s.Origin != steps[0].Origin }) {
		for i := range steps {
			steps[i].Precedence.(*precedence).sole = true
		}
	}
	return steps
}

// unused returns the policies without a step, each with the reason.
func (w *walk) unused(steps []policy.Step, line []*compiled) []policy.Unused {
	present := make(map[resource.Key]bool, len(steps))
	for i := range steps {
		present[steps[i].Origin] = true
	}
	var unused []policy.Unused
	for _, c := range line {
		if present[c.key] {
			continue
		}
		p := policy.Unused{Policy: c.key}
		if n := w.notes[c]; n != nil {
			p.Rule, p.Reason = "4.10", n.String()
			if p.Reason == "" {
				p.Reason = "there is nothing to unset here"
			}
		} else {
			p.Missed = true
			p.Rule, p.Reason = w.missed(c)
		}
		unused = append(unused, p)
	}
	return unused
}

// missed says why a policy that selects the dataplane is not about the
// attachment.
func (w *walk) missed(c *compiled) (rule, reason string) {
	switch {
	case w.Attachment.Type == policy.OnInbound && c.route != nil:
		return "4.2", fmt.Sprintf("holds for %s only, which is about outbounds", c.target)
	case w.Attachment.Type == policy.OnInbound:
		return "4.7", "has no from items"
	case c.route != nil:
		return "4.2", fmt.Sprintf("holds for %s only", c.target)
	case !c.has(policy.OnOutbound):
		return "4.6", "has no to items"
	case w.route != nil:
		return "4.6", "none of its to items selects this outbound or this route"
	default:
		return "4.6", "none of its to items selects this outbound"
	}
}
