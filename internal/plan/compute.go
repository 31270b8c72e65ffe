package plan

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/permission"
	"meridian/internal/resource"
)

// maxDecisions bounds how often it is decided whether a caller may call an inbound: what
// differs is decided once for all inbounds with the same permissions.
const maxDecisions = 4_000_000

// Caller is dataplanes of one zone that call with the same tags.
type Caller struct {
	Mesh resource.MeshName `json:"mesh"`
	// Zone is the zone they are in. Callers leaves it empty; a global sets it.
	Zone  resource.ZoneName `json:"zone,omitempty"`
	Tags  []resource.Tags   `json:"tags"`
	Names []string          `json:"names"`
}

// Callers are the dataplanes of meshes, by the tags that they call with, in order.
func Callers(m *policy.Matcher, meshes []resource.MeshName) []Caller {
	var all []Caller
	_ = m.Read(func(r *policy.Reading) error { // which returns no error
		at := map[string]int{}
		for _, mesh := range meshes {
			for key, shape := range r.Dataplanes(mesh) {
				id := string(mesh) + "\x00" + policy.TagSetsKey(shape.Members)
				i, known := at[id]
				if !known {
					i = len(all)
					at[id] = i
					all = append(all, Caller{Mesh: mesh, Tags: shape.Members})
				}
				all[i].Names = append(all[i].Names, key.Name)
			}
		}
		return nil
	})
	return all
}

// Dataplanes adds to a plan what a change would make of the dataplanes of a matcher, and
// of who may call them. zone is that of dataplanes that name none, elsewhere are the
// callers in other zones. It fails only with the cause of ctx.
func (p *Plan) Dataplanes(ctx context.Context, m *policy.Matcher, change *Batch, zone resource.ZoneName, elsewhere []Caller) error {
	p.Found = newSides()
	c, err := m.CompareLooking(ctx, change.On, change.Keys(), p.Found.looks(ctx))
	if err != nil {
		return err
	}
	p.AsOf = c.Revision
	w := &work{plan: p, ctx: ctx, zone: zone, comparison: c, callers: map[resource.MeshName]*callers{}, fields: map[string]*fields{}}
	for name, mesh := range c.Meshes {
		w.callers[name] = newCallers(name, mesh.Callers, zone, elsewhere)
	}
	if err := w.connections(); err != nil {
		return err
	}
	if err := w.settings(); err != nil {
		return err
	}
	for key, n := range c.Places {
		p.Places = append(p.Places, Place{key.Kind, key.Mesh, key.Name, n.Used, n.Superseded})
	}
	w.list()
	p.sort()
	return nil
}

// list puts what was found into the plan, with as many rows as fit.
func (w *work) list() {
	slices.SortFunc(w.found, func(a, b found) int { return compareConnections(a.Connections, b.Connections) })
	rows := maxRows
	for i := range w.found {
		f := &w.found[i]
		f.Rows = f.rows(rows)
		rows -= len(f.Rows)
		w.plan.Connections = append(w.plan.Connections, f.Connections)
	}
	all := slices.SortedFunc(maps.Values(w.fields), func(a, b *fields) int { return compareFields(a.Fields, b.Fields) })
	rows = maxRows
	for _, f := range all {
		f.Rows = f.rows(rows)
		rows -= len(f.Rows)
		w.plan.Fields = append(w.plan.Fields, f.Fields)
	}
}

// caller is dataplanes that call with the same tags.
type caller struct {
	before, after []resource.Tags // nil: not there
	names         []string
	zone          resource.ZoneName
	here          bool // they are dataplanes of the matcher
	places        []int
}

// stays reports whether the change leaves the callers themselves as they are.
func (c *caller) stays() bool {
	return (c.before == nil) == (c.after == nil) && policy.TagSetsKey(c.before) == policy.TagSetsKey(c.after)
}

// callers are those of a mesh.
type callers struct {
	all []caller
	// services are those of all of them, in order; each caller has places in it.
	services []string
	// at has the places of every dataplane of the matcher in all, by its name.
	at map[string][]int
}

func newCallers(mesh resource.MeshName, here []policy.CallerComparison, zone resource.ZoneName, elsewhere []Caller) *callers {
	c := &callers{at: map[string][]int{}}
	for i, group := range here {
		c.all = append(c.all, caller{before: group.Before, after: group.After, zone: zoneIn(group.After, zoneIn(group.Before, zone)), names: group.Names, here: true})
		for _, name := range group.Names {
			c.at[name] = append(c.at[name], i)
		}
	}
	for _, group := range elsewhere {
		if group.Mesh == mesh {
			c.all = append(c.all, caller{before: group.Tags, after: group.Tags, zone: cmp.Or(group.Zone, zoneIn(group.Tags, "")), names: group.Names})
		}
	}
	for i := range c.all {
		c.services = append(c.services, c.all[i].services()...)
	}
	slices.Sort(c.services)
	c.services = slices.Compact(c.services)
	for i := range c.all {
		for _, service := range c.all[i].services() {
			at, _ := slices.BinarySearch(c.services, service)
			c.all[i].places = append(c.all[i].places, at)
		}
	}
	return c
}

// zoneIn is the zone that tags of a dataplane name, another one where they name none.
func zoneIn(sets []resource.Tags, otherwise resource.ZoneName) resource.ZoneName {
	for _, tags := range sets {
		if zone := tags[resource.ZoneTag]; zone != "" {
			return resource.ZoneName(zone)
		}
	}
	return otherwise
}

func (c *caller) services() []string {
	tags := c.after
	if tags == nil {
		tags = c.before
	}
	return servicesOf(tags)
}

func servicesOf(sets []resource.Tags) []string {
	var services []string
	for _, tags := range sets {
		services = append(services, tags[resource.ServiceTag])
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// work is a comparison that is made into a plan.
type work struct {
	plan       *Plan
	ctx        context.Context
	zone       resource.ZoneName
	comparison *policy.Comparison
	callers    map[resource.MeshName]*callers
	decisions  int
	found      []found
	fields     map[string]*fields
}

// class is inbounds on which the same permissions are in effect, before and after.
type class struct {
	mesh            resource.MeshName
	zone            resource.ZoneName
	existed, exists bool
	before, after   permission.List
	same            bool
	inbounds        []*policy.InboundComparison
}

// classes puts inbounds together for which everything about a caller is the same.
func (w *work) classes() []*class {
	var all []*class
	at := map[string]*class{}
	for i := range w.comparison.Inbounds {
		in := &w.comparison.Inbounds[i]
		mesh := w.comparison.Meshes[in.Shape.Mesh]
		c := class{mesh: in.Shape.Mesh, zone: zoneOf(in.Shape, w.zone), existed: in.Existed, exists: in.Exists}
		if in.Existed {
			c.before = permission.Of(mesh.Before.MTLS, in.Before)
		}
		if in.Exists {
			c.after = permission.Of(mesh.After.MTLS, in.After)
		}
		before, after := spell(&c.before), spell(&c.after)
		c.same = in.Existed == in.Exists && before == after
		id := strings.Join([]string{string(c.mesh), string(c.zone), strconv.FormatBool(c.existed), strconv.FormatBool(c.exists), before, after}, "\x00")
		if at[id] == nil {
			at[id] = &c
			all = append(all, &c)
		}
		at[id].inbounds = append(at[id].inbounds, in)
	}
	return all
}

// spell writes a list so that equal lists, and only they, have equal texts.
func spell(l *permission.List) string {
	data, err := json.Marshal(l) // maps are written in the order of their keys
	if err != nil {
		panic(fmt.Sprintf("plan: encode permissions: %v", err)) // it is made of strings
	}
	return string(data)
}

func zoneOf(shape *policy.Shape, otherwise resource.ZoneName) resource.ZoneName {
	if zone := shape.Zone(); zone != "" {
		return zone
	}
	return otherwise
}

// connections adds the connections that would be allowed or denied otherwise.
func (w *work) connections() error {
	for _, c := range w.classes() {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		mesh := w.callers[c.mesh]
		callers := mesh.all
		if w.decisions += len(callers); w.decisions > maxDecisions {
			w.plan.Left.Unexamined += pairs(c.inbounds, callers)
			continue
		}
		outcomes := map[string]*outcome{}
		for i := range callers {
			if c.same && callers[i].stays() {
				continue
			}
			o := c.decide(&callers[i])
			if o.before == nil && o.after == nil || o.before != nil && o.after != nil && *o.before == *o.after {
				continue
			}
			id := o.key()
			if outcomes[id] == nil {
				outcomes[id] = &o
			}
			outcomes[id].callers = append(outcomes[id].callers, i)
		}
		for _, o := range outcomes {
			w.add(c, o, mesh)
		}
	}
	return nil
}

// pairs counts the connections of callers to inbounds.
func pairs(inbounds []*policy.InboundComparison, callers []caller) int {
	to, from := 0, 0
	for _, in := range inbounds {
		to += len(in.Names)
	}
	for i := range callers {
		from += len(callers[i].names)
	}
	return to * from
}

// outcome is what would become of connections.
type outcome struct {
	before, after *bool
	by            []string
	callers       []int // places, in order
}

func (o *outcome) key() string {
	return word(o.before) + "\x00" + word(o.after) + "\x00" + strings.Join(o.by, "\x00")
}

func (c *class) decide(from *caller) outcome {
	var o outcome
	if c.existed && from.before != nil {
		allow, by := c.before.Decide(from.before)
		o.before, o.by = &allow, names(by)
	}
	if c.exists && from.after != nil {
		allow, by := c.after.Decide(from.after)
		o.after, o.by = &allow, names(by)
	}
	return o
}

func names(keys []resource.Key) []string {
	list := make([]string, len(keys))
	for i, key := range keys {
		list[i] = key.Name
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// add adds the connections of an outcome to the inbounds of a class.
func (w *work) add(c *class, o *outcome, mesh *callers) {
	out := Connections{Mesh: c.mesh, Before: o.before, After: o.after, By: o.by, Zone: c.zone}
	if out.By == nil {
		out.By = []string{}
	}
	from, services := 0, make([]bool, len(mesh.services))
	for _, i := range o.callers {
		from += len(mesh.all[i].names)
		for _, at := range mesh.all[i].places {
			services[at] = true
		}
	}
	for _, in := range c.inbounds {
		out.To = append(out.To, in.Attachment.Service)
		out.Count += from * len(in.Names)
		for _, name := range in.Names {
			for _, at := range mesh.at[name] {
				if _, own := slices.BinarySearch(o.callers, at); own {
					out.Count--
				}
			}
		}
	}
	if out.Count == 0 {
		return
	}
	slices.Sort(out.To)
	out.To = firstOf(slices.Compact(out.To))
	out.From = chosen(mesh.services, services)
	w.found = append(w.found, found{out, c, o, mesh})
}

// chosen are the services that are set, with more than are shown counted in one text.
func chosen(services []string, set []bool) []string {
	var out []string
	more := 0
	for i, is := range set {
		switch {
		case is && len(out) <= maxServices:
			out = append(out, services[i])
		case is:
			more++
		}
	}
	if more > 0 {
		out[maxServices] = fmt.Sprintf("%d more", more+1)
	}
	return out
}

// found is a group of connections, and where it comes from.
type found struct {
	Connections
	class   *class
	outcome *outcome
	callers *callers
}

// rows lists the connections of a group, at most so many.
func (f *found) rows(most int) []Pair {
	if most == 0 {
		return nil
	}
	c, o := f.class, f.outcome
	var rows []Pair
	for _, in := range c.inbounds {
		for _, to := range in.Names {
			for _, i := range o.callers {
				group := &f.callers.all[i]
				for _, from := range group.names {
					if group.here && from == to {
						continue
					}
					if rows = append(rows, Pair{from, group.zone, to, in.Attachment.Port}); len(rows) == most {
						return rows
					}
				}
			}
		}
	}
	return rows
}

// settings adds the values that would be otherwise.
func (w *work) settings() error {
	perCaller := map[string][]*policy.Difference{}
	for i := range w.comparison.Differences {
		d := &w.comparison.Differences[i]
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		switch {
		case resource.Permission(d.Kind): // they are connections
		case d.Before != nil && d.Before.PerCaller || d.After != nil && d.After.PerCaller:
			id := string(d.Shape.Mesh) + "\x00" + string(d.Kind) + "\x00" + steps(d.Before) + "\x00" + steps(d.After)
			perCaller[id] = append(perCaller[id], d)
		default:
			for _, change := range changes(d.Before, d.After) {
				w.field(d, change, nil)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(perCaller)) {
		if err := w.forCallers(perCaller[id]); err != nil {
			return err
		}
	}
	for id, f := range w.fields {
		if f.done(); f.Count == 0 { // they would be of a dataplane that calls itself
			delete(w.fields, id)
		}
	}
	return nil
}

// steps spells the steps of a rule so that rules that do the same to every caller have
// equal texts.
func steps(r *policy.Rule) string {
	if r == nil {
		return ""
	}
	data, err := json.Marshal([]any{r.PerCaller, r.Units, stepsOf(r)})
	if err != nil {
		panic(fmt.Sprintf("plan: encode a rule: %v", err)) // it came from JSON
	}
	return string(data)
}

func stepsOf(r *policy.Rule) []any {
	all := make([]any, len(r.Steps))
	for i := range r.Steps {
		s := &r.Steps[i]
		all[i] = []any{s.Op, s.Conf, s.Origin, s.Match}
	}
	return all
}

// forCallers adds the values that would be otherwise for some callers, of attachments on
// which the same rules are.
func (w *work) forCallers(same []*policy.Difference) error {
	first := same[0]
	groups := map[string][]*caller{}
	callers := w.callers[first.Shape.Mesh].all
	for i := range callers {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		from := &callers[i]
		if from.before == nil || from.after == nil {
			continue // its connections come or go as a whole
		}
		if w.decisions++; w.decisions > maxDecisions {
			w.plan.Left.Fields += len(same)
			return nil
		}
		id := matching(first.Before, from.before) + "/" + matching(first.After, from.after)
		groups[id] = append(groups[id], from)
	}
	for _, id := range slices.Sorted(maps.Keys(groups)) {
		group := groups[id]
		found := changes(ofCaller(first.Before, group[0].before), ofCaller(first.After, group[0].after))
		for _, change := range found {
			for _, d := range same {
				w.field(d, change, group)
			}
		}
	}
	return nil
}

// matching names the steps of a rule that hold for a caller.
func matching(r *policy.Rule, from []resource.Tags) string {
	if r == nil {
		return ""
	}
	var b strings.Builder
	for i := range r.Steps {
		s := r.Steps[i].Match
		if len(s) == 0 || slices.ContainsFunc(from, s.Matches) {
			b.WriteString(strconv.Itoa(i))
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// ofCaller is the part of a rule that holds for a caller; nil for nothing.
func ofCaller(r *policy.Rule, from []resource.Tags) *policy.Rule {
	if r == nil {
		return nil
	}
	if mine := r.ForCaller(from); len(mine.Steps) > 0 {
		return mine
	}
	return nil
}

// change is one value that would be otherwise.
type change struct {
	field         policy.Pointer
	before, after any
	by            string
}

// changes compares what two rules come to, leaf by leaf.
func changes(before, after *policy.Rule) []change {
	var was, is policy.Tree
	var origins map[policy.Pointer]resource.Key
	leaves := map[policy.Pointer]bool{}
	if before != nil {
		fold := before.Fold()
		was = fold.Conf()
		for p := range fold.Fields() {
			leaves[p] = true
		}
	}
	if after != nil {
		fold := after.Fold()
		is, origins = fold.Conf(), fold.Fields()
		for p := range origins {
			leaves[p] = true
		}
	}
	var found []change
	for _, p := range slices.Sorted(maps.Keys(leaves)) {
		c := change{field: p, by: origins[p].Name}
		c.before, _ = policy.At(was, p)
		c.after, _ = policy.At(is, p)
		if text(c.before) != text(c.after) {
			found = append(found, c)
		}
	}
	if len(found) == 0 && (before == nil) != (after == nil) { // it sets nothing, and still takes effect
		c := change{}
		if before != nil {
			c.before = policy.Tree{}
		} else if c.after = (policy.Tree{}); len(after.Steps) > 0 {
			c.by = after.Steps[0].Origin.Name
		}
		found = append(found, c)
	}
	return found
}

// text is a value as JSON.
func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("plan: encode a value: %v", err)) // it came from JSON
	}
	return string(data)
}

// fields is a group of values under construction.
type fields struct {
	Fields
	from, services, dataplanes map[string]bool
	refs                       []ref
}

// ref is where values of a group are: for callers, unless they are nil.
type ref struct {
	difference *policy.Difference
	callers    []*caller
}

// rows lists the values of a group, at most so many.
func (f *fields) rows(most int) []At {
	var rows []At
	for _, r := range f.refs {
		for _, name := range r.difference.Names {
			at := At{Dataplane: name, Attachment: r.difference.Attachment}
			if r.callers == nil {
				if len(rows) == most {
					return rows
				}
				rows = append(rows, at)
			}
			for _, group := range r.callers {
				for _, from := range group.names {
					if group.here && from == name {
						continue
					}
					if len(rows) == most {
						return rows
					}
					at.From, at.FromZone = from, group.zone
					rows = append(rows, at)
				}
			}
		}
	}
	return rows
}

// field adds a value on the attachment of a difference, for some callers or all.
func (w *work) field(d *policy.Difference, c change, callers []*caller) {
	zone := zoneOf(d.Shape, w.zone)
	id := strings.Join([]string{
		string(d.Shape.Mesh), string(zone), string(d.Kind), string(d.Attachment.Type), strconv.FormatBool(callers != nil),
		string(c.field), text(c.before), text(c.after), c.by,
	}, "\x00")
	f := w.fields[id]
	if f == nil {
		f = &fields{
			Fields: Fields{
				Mesh: d.Shape.Mesh, Zone: zone, Kind: d.Kind, Field: string(c.field), Before: c.before, After: c.after, By: c.by,
				Side: string(d.Attachment.Type),
			},
			from: map[string]bool{}, services: map[string]bool{}, dataplanes: map[string]bool{},
		}
		w.fields[id] = f
	}
	if d.Attachment.Service != "" {
		f.services[d.Attachment.Service] = true
	}
	for _, name := range d.Names {
		f.dataplanes[name] = true
	}
	f.refs = append(f.refs, ref{d, callers})
	if callers == nil {
		f.Count += len(d.Names)
	}
	for _, group := range callers {
		f.Count += len(group.names) * len(d.Names)
		if !group.here {
			continue
		}
		for _, name := range d.Names {
			if _, own := slices.BinarySearch(group.names, name); own {
				f.Count--
			}
		}
	}
	for _, group := range callers {
		for _, service := range group.services() {
			f.from[service] = true
		}
	}
}

func (f *fields) done() {
	f.From, f.Services = slices.Sorted(maps.Keys(f.from)), slices.Sorted(maps.Keys(f.services))
	f.Dataplanes = len(f.dataplanes)
}
