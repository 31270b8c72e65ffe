// Package wire builds the document of inspect proxy and eval proxy: the resources that
// a zone sends to the proxy of a dataplane, the policies behind each value, and what of
// the policies on the dataplane has no effect on it.
//
// Guarantees. The resources are those of the server itself, from one code path; a zone
// and files give the same document for the same resources.
//
// Non-goals: what a proxy has accepted, which package serve knows.
package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/texttable"
	"meridian/internal/xds"
	"meridian/internal/xds/generate"
	"meridian/internal/xds/generate/envoy"
	"meridian/internal/xds/generate/grpc"
	"meridian/internal/xds/support"
	"meridian/internal/xds/world"
)

// Answer is what the proxy of a dataplane is sent.
type Answer struct {
	answer.Partial
	Mesh      resource.MeshName `json:"mesh"`
	Dataplane string            `json:"dataplane"`
	Zone      resource.ZoneName `json:"zone,omitempty"`
	Dialect   xds.Dialect       `json:"dialect"`
	AsOf      resource.Revision `json:"asOf"`
	// Withheld says why nothing is sent; absent when it is not so.
	Withheld  string     `json:"withheld,omitempty"`
	Resources []Resource `json:"resources"`
	// Gaps are the fields of policies that have no or not quite the effect that they
	// describe.
	Gaps []Gap `json:"gaps"`
	// Extra are resources that the proxy says that it has and is not sent; absent unless
	// it was asked.
	Extra []Extra `json:"extra,omitempty"`
}

// Resource is one resource as it is sent.
type Resource struct {
	// Type is CDS, EDS, LDS or RDS.
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	// Resource is the message as JSON.
	Resource json.RawMessage `json:"resource"`
	Origins  []Origin        `json:"origins"`
	// Live is what the proxy says that it runs in its place; absent unless it was asked.
	Live *Live `json:"live,omitempty"`
}

// Origin says where a value of a resource comes from.
type Origin struct {
	// Path is a JSON pointer into the resource.
	Path string        `json:"path"`
	Kind resource.Kind `json:"kind"`
	Name string        `json:"name"`
	// Field is a JSON pointer into what the policy configures, or into the spec of
	// another kind; empty for the whole.
	Field string `json:"field"`
}

// Gap is a field of a policy and what becomes of it.
type Gap struct {
	// Attachment is the part of the dataplane, such as "outbound backend:4001".
	Attachment string        `json:"attachment"`
	Kind       resource.Kind `json:"kind"`
	Name       string        `json:"name"`
	// Field is a JSON pointer as that of an Origin; empty for the whole.
	Field  string         `json:"field"`
	Status support.Status `json:"status"`
	Note   string         `json:"note"`
}

// Types are the names of the types of resources, in the order of answers.
func Types() []string {
	names := make([]string, len(xds.Types))
	for i, t := range xds.Types {
		names[i] = t.String()
	}
	return names
}

// Dialects are the kinds of proxies that there are answers for.
func Dialects() []string {
	var names []string
	for _, d := range support.Dialects() {
		names = append(names, string(d))
	}
	return names
}

// Ask answers for a dataplane. kind leaves only the resources of one type, "" none out.
// dialect is the kind of proxy, "" for gRPC. Errors: answer.ErrNotFound, answer.ErrInvalid.
func Ask(m *policy.Matcher, mesh resource.MeshName, name, kind string, dialect xds.Dialect, zone resource.ZoneName, asOf resource.Revision) (*Answer, error) {
	return AskLive(m, mesh, name, kind, dialect, zone, asOf, nil)
}

// AskLive is Ask with what the proxy itself says that it runs; nil where it was not asked.
func AskLive(m *policy.Matcher, mesh resource.MeshName, name, kind string, dialect xds.Dialect, zone resource.ZoneName, asOf resource.Revision, running *Running) (*Answer, error) {
	if kind != "" && !slices.Contains(Types(), kind) {
		return nil, fmt.Errorf("%w: there is no type %q of resources: use one of %s", answer.ErrInvalid, kind, strings.Join(Types(), ", "))
	}
	dialect = cmp.Or(dialect, xds.GRPC)
	made := map[xds.Dialect]func(*policy.Matcher, *world.World, resource.Key, resource.Revision) (*xds.Set, error){
		xds.GRPC: grpc.Proxy, xds.Envoy: envoy.Proxy,
	}[dialect]
	if made == nil {
		return nil, fmt.Errorf("%w: there are no proxies of the kind %q: use one of %s", answer.ErrInvalid, dialect, strings.Join(Dialects(), ", "))
	}
	w, ok := policy.FollowerOf[*world.World](m)
	if !ok {
		return nil, fmt.Errorf("%w: only zones make resources for proxies", answer.ErrInvalid)
	}
	key := policy.DataplaneKey(mesh, name)
	set, err := made(m, w, key, asOf)
	if errors.Is(err, xds.ErrNoDataplane) {
		return nil, fmt.Errorf("%w: no dataplane %s in mesh %s", answer.ErrNotFound, name, mesh)
	}
	if err != nil {
		return nil, err
	}
	a := &Answer{
		Mesh: mesh, Dataplane: name, Zone: zone, Dialect: dialect, AsOf: asOf, Withheld: set.Withheld,
		Resources: []Resource{}, Gaps: []Gap{},
	}
	for r := range set.All() {
		if kind != "" && kind != r.Type.String() {
			continue
		}
		shown, err := show(r)
		if err != nil {
			return nil, err
		}
		a.Resources = append(a.Resources, shown)
	}
	if running != nil {
		if err := a.compare(set, kind, running); err != nil {
			return nil, err
		}
	}
	a.Gaps, err = gaps(m, w, key, dialect)
	if err != nil {
		return nil, err
	}
	oversized, err := oversized(m, w, key, dialect)
	if err != nil {
		return nil, err
	}
	for _, o := range slices.Concat(set.Omitted, set.Unmade, oversized) {
		for _, source := range o.Sources {
			a.Gaps = append(a.Gaps, Gap{Attachment: o.Attachment, Kind: source.Kind, Name: source.Name, Status: support.Unsupported, Note: o.Why})
		}
	}
	return a, nil
}

// oversized are the permissions, in effect or tried, that proxies of a kind do not take.
func oversized(m *policy.Matcher, w *world.World, key resource.Key, dialect xds.Dialect) ([]xds.Omission, error) {
	spec, rules, err := generate.Read(m, w, key)
	if err != nil {
		return nil, err
	}
	if dialect == xds.GRPC {
		return grpc.Oversized(key.Mesh, w.MeshOf(key), spec, rules)
	}
	tried, err := generate.TriedOn(m, key)
	if err != nil {
		return nil, err
	}
	return envoy.Oversized(key.Mesh, w.MeshOf(key), spec, rules, tried)
}

// show writes a resource as JSON.
func show(r *xds.Resource) (Resource, error) {
	m, err := r.Message()
	if err != nil {
		return Resource{}, err
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return Resource{}, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	// The encoder leaves spaces to chance.
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return Resource{}, fmt.Errorf("%s: %w", r.Ref(), err)
	}
	shown := Resource{Type: r.Type.String(), Name: r.Name, Version: r.Version, Resource: compact.Bytes(), Origins: []Origin{}}
	for _, o := range r.Origins {
		shown.Origins = append(shown.Origins, Origin{Path: o.Path, Kind: o.Source.Kind, Name: o.Source.Name, Field: o.Field})
	}
	return shown, nil
}

// gaps lists what of the rules on a dataplane, and of the routes of the services that
// it sends to, proxies do not do as written.
func gaps(m *policy.Matcher, w *world.World, key resource.Key, dialect xds.Dialect) ([]Gap, error) {
	spec, rules, err := generate.Read(m, w, key)
	if err != nil {
		return nil, err
	}
	list := []Gap{}
	if why := w.LeftOut(key); why != "" {
		at := policy.Attachment{Type: policy.OnDataplane}
		list = append(list, Gap{Attachment: at.String(), Kind: resource.KindDataplane, Name: key.Name, Status: support.Unsupported, Note: why})
	}
	if dialect == xds.Envoy {
		for _, u := range envoy.NotServed(spec) {
			list = append(list, Gap{
				Attachment: u.Attachment.String(), Kind: resource.KindDataplane, Name: key.Name, Field: u.Field, Status: support.Unsupported, Note: u.Why,
			})
		}
	}
	if dialect == xds.Envoy {
		unexposed, err := envoy.NotExposed(key.Mesh, w.MeshOf(key), spec, rules)
		if err != nil {
			return nil, err
		}
		at := policy.Attachment{Type: policy.OnDataplane}
		for _, u := range unexposed {
			list = append(list, Gap{Attachment: at.String(), Kind: u.Source.Kind, Name: u.Source.Name, Field: u.Field, Status: support.Unsupported, Note: u.Why})
		}
	}
	permissions := Permissions(w.Mesh(key.Mesh), dialect)
	for i := range rules {
		list = append(list, ruleGaps(&rules[i], dialect)...)
		if dialect == xds.Envoy {
			list = append(list, callerGaps(w.Mesh(key.Mesh), &rules[i])...)
		}
		if permissions.Status != support.Enforced && (dialect == xds.GRPC || w.Mesh(key.Mesh).MTLS) {
			list = append(list, permissionGaps(&rules[i], permissions)...)
		}
	}
	outbounds := generate.Outbound(spec)
	for i := range outbounds {
		for _, r := range w.Routes(key.Mesh, outbounds[i].Service) {
			tree, err := policy.ParseTree(r.Canonical())
			if err != nil {
				return nil, err
			}
			walk(tree, nil, "", func(field []string, at policy.Pointer) {
				list = appendGap(list, dialect, &outbounds[i], r.Key(), "", field, at)
			})
		}
	}
	return list, nil
}

// ruleGaps are those of one rule: for a rule that differs per caller, of every policy
// in it.
func ruleGaps(r *policy.Rule, dialect xds.Dialect) (list []Gap) {
	visitRule(r, func(source resource.Key, direction string, field []string, at policy.Pointer) {
		list = appendGap(list, dialect, &r.Attachment, source, direction, field, at)
	})
	return list
}

// Covered says of how many of the fields that a policy sets in a configuration proxies
// of a kind do not, or not quite, what they say.
type Covered struct {
	Policy                            resource.Key
	Fields, Unsupported, Approximated int
}

func (c *Covered) count(dialect xds.Dialect, direction string, field []string) {
	c.Fields++
	switch got, _ := support.Configured(dialect, c.Policy.Kind, direction, field); got.Status {
	case support.Unsupported:
		c.Unsupported++
	case support.Approximated:
		c.Approximated++
	case support.Enforced, support.Decided:
	}
}

// Coverage returns what proxies do with each policy that is in effect in a rule, in the
// order of their fields.
func Coverage(dialect xds.Dialect, r *policy.Rule) []Covered {
	var list []Covered
	visitRule(r, func(source resource.Key, direction string, field []string, _ policy.Pointer) {
		i := slices.IndexFunc(list, func(c Covered) bool { return c.Policy == source })
		if i < 0 {
			i, list = len(list), append(list, Covered{Policy: source})
		}
		list[i].count(dialect, direction, field)
	})
	return list
}

// RouteCoverage returns what proxies do with a route of a service.
func RouteCoverage(dialect xds.Dialect, route *resource.Resource) Covered {
	c := Covered{Policy: route.Key()}
	if tree, err := policy.ParseTree(route.Canonical()); err == nil { // it was decoded before
		walk(tree, nil, "", func(field []string, _ policy.Pointer) { c.count(dialect, "", field) })
	}
	return c
}

// visitRule visits the fields of a rule, with the policy that sets each: for a rule that
// differs per caller, those of every policy in it.
func visitRule(r *policy.Rule, visit func(source resource.Key, direction string, field []string, at policy.Pointer)) {
	direction := ""
	if d, ok := resource.Describe(r.Kind); ok && d.Class == resource.TargetRef && r.Attachment.Type == policy.OnInbound {
		direction = "from"
	}
	fold := r.Fold()
	fields := fold.Fields()
	if r.PerCaller {
		visitSteps(r, direction, visit)
		return
	}
	if len(fields) == 0 {
		for _, p := range r.Policies() {
			visit(p, direction, nil, "")
		}
		return
	}
	walk(fold.Conf(), nil, "", func(field []string, at policy.Pointer) {
		leaf := at
		for leaf != "" {
			if _, ok := fields[leaf]; ok {
				break
			}
			leaf = leaf[:strings.LastIndexByte(string(leaf), '/')]
		}
		visit(fields[leaf], direction, field, at)
	})
}

// visitSteps visits the fields that each policy of a rule sets for some callers, or the
// policy as a whole where it sets none.
func visitSteps(r *policy.Rule, direction string, visit func(source resource.Key, direction string, field []string, at policy.Pointer)) {
	for _, p := range r.Policies() {
		seen := map[policy.Pointer]bool{}
		for i := range r.Steps {
			s := &r.Steps[i]
			if s.Origin != p || len(s.Conf) == 0 {
				continue
			}
			walk(s.Conf, nil, "", func(field []string, at policy.Pointer) {
				if !seen[at] {
					seen[at] = true
					visit(p, direction, field, at)
				}
			})
		}
		if len(seen) == 0 {
			visit(p, direction, nil, "")
		}
	}
}

// callerGaps are those of what holds for some callers only, where Envoy cannot tell.
func callerGaps(mesh world.Mesh, r *policy.Rule) (list []Gap) {
	policies, why := envoy.Unheeded(mesh, r)
	for _, p := range policies {
		list = append(list, Gap{Attachment: r.Attachment.String(), Kind: p.Kind, Name: p.Name, Status: support.Unsupported, Note: why})
	}
	return list
}

// permissionGaps are those of permissions in a mesh where it is not known of every caller
// who calls.
func permissionGaps(r *policy.Rule, got support.Answer) (list []Gap) {
	if !resource.Permission(r.Kind) {
		return nil
	}
	for _, p := range r.Policies() {
		list = append(list, Gap{
			Attachment: r.Attachment.String(), Kind: p.Kind, Name: p.Name, Status: got.Status,
			Note: got.Note,
		})
	}
	return list
}

// appendGap appends a gap, unless the field is enforced or the one before says the
// same of the field around it.
func appendGap(list []Gap, dialect xds.Dialect, a *policy.Attachment, source resource.Key, direction string, field []string, at policy.Pointer) []Gap {
	got, ok := support.Configured(dialect, source.Kind, direction, field)
	if !ok || got.Status == support.Enforced || got.Status == support.Decided {
		return list
	}
	return append(list, Gap{
		Attachment: a.String(), Kind: source.Kind, Name: source.Name, Field: string(at), Status: got.Status, Note: got.Note,
	})
}

// walk visits the leaves of a value in bytewise order of names: the path as package
// support has it, and the pointer.
func walk(value any, field []string, at policy.Pointer, visit func([]string, policy.Pointer)) {
	switch v := value.(type) {
	case policy.Tree:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			walk(v[name], append(slices.Clip(field), name), at.Field(name), visit)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		objects := len(v) > 0
		for _, item := range v {
			_, object := item.(policy.Tree)
			objects = objects && object
		}
		if objects {
			for i, item := range v {
				walk(item, append(slices.Clip(field), "[]"), at.Field(fmt.Sprint(i)), visit)
			}
			return
		}
	}
	visit(field, at)
}

// Restrict leaves out the resources and gaps that rest on what the reader may not
// read.
func (a *Answer) Restrict(may answer.May) {
	a.Partial = answer.Partial{Partial: true}
	read := func(kind resource.Kind, name string) bool {
		key := resource.Key{Kind: kind, Mesh: a.Mesh, Name: name}
		if kind == resource.KindMesh {
			key.Mesh = ""
		}
		ok, _ := may(key)
		return ok
	}
	a.Withheld = answer.RestrictWithheld(a.Withheld, a.Mesh, may)
	a.Resources = slices.DeleteFunc(a.Resources, func(r Resource) bool {
		return slices.ContainsFunc(r.Origins, func(o Origin) bool { return !read(o.Kind, o.Name) })
	})
	// What a resource that is left out refers to would tell of it.
	for _, inner := range []xds.Type{xds.Cluster, xds.Endpoints} {
		a.Resources = slices.DeleteFunc(a.Resources, func(r Resource) bool {
			return r.Type == inner.String() && !slices.ContainsFunc(a.Resources, func(outer Resource) bool {
				return outer.Type != r.Type && bytes.Contains(outer.Resource, []byte(strconv.Quote(r.Name)))
			})
		})
	}
	a.Extra = nil // by their names alone it is not known of what they are made
	a.Gaps = slices.DeleteFunc(a.Gaps, func(g Gap) bool { return !read(g.Kind, g.Name) })
}

// Render prints the page that people read: the resources by name, in a wide form with
// the origin of each value, and the gaps.
func Render(out io.Writer, a *Answer, form answer.Form) error {
	var b strings.Builder
	fmt.Fprintf(&b, "dataplane %s in mesh %s, as its %s proxy is configured", texttable.Escape(a.Dataplane), texttable.Escape(string(a.Mesh)), a.Dialect)
	if a.AsOf > 0 {
		fmt.Fprintf(&b, " at revision %d", a.AsOf)
	}
	b.WriteString("\n")
	if a.Withheld != "" {
		fmt.Fprintf(&b, "Nothing is sent: %s.\n", texttable.Escape(a.Withheld))
	}
	if a.Partial.Partial {
		b.WriteString("What rests on resources that you may not read is left out.\n")
	}
	if len(a.Resources) > 0 {
		header := []string{"TYPE", "NAME", "VERSION", "FROM"}
		live := a.Resources[0].Live != nil
		if live {
			header = slices.Insert(header, 3, "LIVE")
		}
		t := texttable.New("", header...)
		for i := range a.Resources {
			r := &a.Resources[i]
			cells := []string{r.Type, r.Name, r.Version, sources(r.Origins)}
			if live {
				cells = slices.Insert(cells, 3, r.Live.String())
			}
			row := t.Add(cells...)
			if live && r.Live.Message != "" {
				row.Note("  %s", texttable.Escape(r.Live.Message))
			}
			if form.Wide {
				for _, o := range r.Origins {
					row.Note("  %s is %s %s %s", orWhole(o.Path), o.Kind, o.Name, o.Field)
				}
			}
		}
		b.WriteString("\n" + t.String(form.Columns))
	}
	if len(a.Extra) > 0 {
		b.WriteString("\nThe proxy has also, and is not sent:\n")
		t := texttable.New("", "TYPE", "NAME", "VERSION")
		for _, e := range a.Extra {
			t.Add(e.Type, e.Name, e.Version)
		}
		b.WriteString(t.String(form.Columns))
	}
	if len(a.Gaps) > 0 {
		b.WriteString("\nNot, or not quite, as the policies say:\n")
		t := texttable.New("", "ATTACHMENT", "POLICY", "FIELD", "STATUS", "WHY")
		for _, g := range a.Gaps {
			t.Add(g.Attachment, string(g.Kind)+" "+g.Name, orWhole(g.Field), string(g.Status), g.Note)
		}
		b.WriteString(t.String(form.Columns))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func orWhole(pointer string) string {
	if pointer == "" {
		return "all"
	}
	return pointer
}

// sources lists the policies and other resources behind a resource, each once.
func sources(origins []Origin) string {
	var names []string
	for _, o := range origins {
		if name := string(o.Kind) + " " + o.Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	const most = 3
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}
