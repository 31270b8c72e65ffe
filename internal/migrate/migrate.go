package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meridian/internal/policy"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

// Result is what became of one resource.
type Result struct {
	Resource *resource.Resource
	// Into are the resources in its place; itself where it is no policy to translate.
	Into []*resource.Resource
	// Path and Reason say why it was not translated, where it should have been.
	Path   resource.Path
	Reason string
}

// Migration is a set of resources and what it became.
type Migration struct {
	Results []Result
	// After is everything that is there afterwards.
	After []*resource.Resource
}

// Refused lists what could not be translated.
func (m *Migration) Refused() (refused []Result) {
	for _, r := range m.Results {
		if r.Reason != "" {
			refused = append(refused, r)
		}
	}
	return refused
}

// ToTargetRef translates source/destination policies into those with a targetRef.
func ToTargetRef(all []*resource.Resource) *Migration {
	view := policy.NewSnapshot(all...)
	type unit struct {
		mesh resource.MeshName
		kind resource.Kind
	}
	of := map[unit][]*resource.Resource{}
	for _, r := range all {
		if d, ok := resource.Describe(r.Key().Kind); ok && d.Class == resource.SourceDestination {
			u := unit{r.Key().Mesh, r.Key().Kind}
			of[u] = append(of[u], r)
		}
	}
	made := map[resource.Key][]*resource.Resource{}
	refused := map[resource.Key]Result{}
	for u, policies := range of {
		t := translation{mesh: policy.MeshOf(view, u.mesh), kind: u.kind, into: (*targetref.Engine)(nil).Successors()[u.kind]}
		for _, r := range policies {
			if path, reason := t.add(r); reason != "" {
				refused[r.Key()] = Result{Path: path, Reason: reason}
			}
		}
		if len(t.refusedOf(policies, refused)) == 0 {
			of, err := t.build()
			if err == nil {
				maps.Copy(made, of)
				continue
			}
			refused[policies[0].Key()] = Result{Reason: err.Error()}
		}
		for _, r := range policies {
			if _, named := refused[r.Key()]; !named {
				refused[r.Key()] = Result{Reason: fmt.Sprintf("another %s of the mesh cannot be translated, and where both generations meet the older one has no effect (§4.11)", u.kind)}
			}
		}
	}
	m := &Migration{}
	for _, r := range all {
		result := Result{Resource: r, Into: []*resource.Resource{r}}
		if into, ok := made[r.Key()]; ok {
			result.Into = into
		}
		if why, ok := refused[r.Key()]; ok {
			result.Path, result.Reason = why.Path, why.Reason
		}
		m.Results = append(m.Results, result)
		m.After = append(m.After, result.Into...)
	}
	return m
}

// translation is that of the policies of one kind in one mesh.
type translation struct {
	mesh *policy.Mesh
	kind resource.Kind
	into resource.Kind
	// pieces are what becomes a policy each.
	pieces []piece
}

// piece is the part of a policy that has one rank wherever it matches, for dataplanes of
// one selector.
type piece struct {
	of       *resource.Resource
	tags     int
	exact    int
	modified time.Time
	// target selects the dataplanes, items are whom the piece is about there.
	target resource.TagSelector
	items  []policy.Tree
	conf   policy.Tree
	// last is set on what stands below all others.
	last bool
}

func (t *translation) refusedOf(policies []*resource.Resource, refused map[resource.Key]Result) (keys []resource.Key) {
	for _, r := range policies {
		if _, ok := refused[r.Key()]; ok {
			keys = append(keys, r.Key())
		}
	}
	return keys
}

// add takes a policy apart; a reason says why that is not possible.
func (t *translation) add(r *resource.Resource) (at resource.Path, reason string) {
	convert, ok := kinds[t.kind]
	if !ok {
		return resource.Root, fmt.Sprintf("%s is not translated: write a %s by hand", t.kind, t.into)
	}
	tree := policy.Tree{}
	if spec, ok := r.Spec().(resource.ConfSpec); ok {
		tree = spec.ConfTree()
	}
	if t.kind != resource.KindTrafficPermission && len(tree) == 0 {
		return "conf", "it configures nothing and only takes the place of less specific policies, which no targetRef policy does"
	}
	conf, reason := convert(tree)
	if reason != "" {
		return "conf", reason
	}
	p := piece{of: r, conf: conf, modified: r.Meta().ModificationTime}
	if p.modified.IsZero() {
		p.modified = r.Meta().CreationTime // §1.1
	}
	switch spec := r.Spec().(type) {
	case resource.DataplaneSpec:
		for _, selector := range spec.DataplaneSelectors() {
			t.take(p, selector, nil, selector)
		}
	case resource.ConnectionSpec:
		if d, _ := resource.Describe(t.kind); d.Direction == resource.OnInbound {
			t.inbound(p, spec)
			return "", ""
		}
		for i, to := range spec.DestinationSelectors() {
			service := to[resource.ServiceTag]
			if len(to) != 1 || service == "" {
				return resource.Path("destinations").Index(i).Field("match"), "`to` of a targetRef policy names services, and no other tags of outbounds (§4.6)"
			}
			item := policy.Tree{"kind": resource.TargetMesh}
			if service != resource.AnyValue {
				item = policy.Tree{"kind": resource.TargetService, "name": service}
			}
			for _, from := range spec.SourceSelectors() {
				t.take(p, from, []policy.Tree{item}, from, to)
			}
		}
	}
	return "", ""
}

// inbound takes a policy on inbounds apart, by the rules of the mesh (§3.3, §3.5).
func (t *translation) inbound(p piece, spec resource.ConnectionSpec) {
	var callers []policy.Tree
	for _, from := range spec.SourceSelectors() {
		callers = append(callers, policy.Tree{"kind": resource.TargetMeshSubset, "tags": tree(from)})
	}
	each := t.mesh.Matching.SourceDestination == resource.Kuma2020 && t.kind != resource.KindTrafficPermission
	for _, to := range spec.DestinationSelectors() {
		if !each {
			t.take(p, to, callers, to)
			continue
		}
		for i, from := range spec.SourceSelectors() {
			t.take(p, to, callers[i:i+1], to, from)
		}
	}
}

func (t *translation) take(p piece, target resource.TagSelector, items []policy.Tree, ranked ...resource.TagSelector) {
	for _, s := range ranked {
		p.tags, p.exact = p.tags+len(s), p.exact+s.Exact()
	}
	p.target, p.items = target, items
	t.pieces = append(t.pieces, p)
}

func tree(s resource.TagSelector) policy.Tree {
	out := policy.Tree{}
	for tag, value := range s {
		out[tag] = value
	}
	return out
}

// compare puts the piece that wins first (§3.3, §3.4).
func (t *translation) compare(a, b piece) int {
	byTime := 0
	if t.mesh.Matching.SourceDestination != resource.Kuma2020 {
		byTime = b.modified.Compare(a.modified)
	}
	return cmp.Or(cmp.Compare(b.tags, a.tags), cmp.Compare(b.exact, a.exact), byTime, strings.Compare(a.of.Key().Name, b.of.Key().Name))
}

// build makes the policies, by the policy that each comes from. All have one kind of
// target, so that their names alone put them in the order of the ranks (§4.3).
func (t *translation) build() (map[resource.Key][]*resource.Resource, error) {
	slices.SortStableFunc(t.pieces, t.compare)
	together := t.mesh.Matching.SourceDestination == resource.Kuma2020
	if t.kind == resource.KindTrafficPermission && together {
		// Who matches none of the permissions of an inbound is denied (§3.6).
		for _, p := range slices.Clone(t.pieces) {
			p.last, p.items, p.conf = true, []policy.Tree{{"kind": resource.TargetMesh}}, policy.Tree{"action": resource.ActionDeny}
			t.pieces = append(t.pieces, p)
		}
	}
	made := map[resource.Key][]*resource.Resource{}
	for i, p := range t.pieces {
		place := i
		if t.mesh.Matching.TargetRef != resource.LastWins {
			place = len(t.pieces) - 1 - i
		}
		r, err := t.policy(&p, place)
		if err != nil {
			return nil, err
		}
		made[p.of.Key()] = append(made[p.of.Key()], r)
	}
	return made, nil
}

func (t *translation) policy(p *piece, place int) (*resource.Resource, error) {
	content := policy.Tree{}
	d, _ := resource.Describe(t.kind)
	items := make([]any, 0, len(p.items)+1)
	for _, target := range p.items {
		items = append(items, policy.Tree{"targetRef": target, "default": p.conf})
	}
	permission := t.kind == resource.KindTrafficPermission
	exclusive := t.mesh.Matching.SourceDestination != resource.Kuma2020 || d.Direction != resource.OnInbound
	if permission && exclusive {
		// A caller that the chosen permission does not name is denied (§3.6).
		deny := policy.Tree{"targetRef": policy.Tree{"kind": resource.TargetMesh}, "default": policy.Tree{"action": resource.ActionDeny}}
		if t.mesh.Matching.TargetRef == resource.LastWins {
			items = slices.Insert(items, 0, any(deny))
		} else {
			items = append(items, deny)
		}
	}
	switch d.Direction {
	case resource.OnInbound:
		content["from"] = items
	case resource.OnOutbound:
		content["to"] = items
	default:
		for name, value := range p.conf {
			content[name] = value
		}
	}
	spec := policy.Tree{"targetRef": policy.Tree{"kind": resource.TargetMeshSubset, "tags": tree(p.target)}}
	if exclusive {
		// Exactly one policy holds on an attachment (§3.5).
		content["strategy"] = resource.Atomic
		spec["defaults"] = content
	} else {
		for name, value := range content {
			spec[name] = value
		}
	}
	name := p.of.Key().Name
	meta := p.of.Meta()
	meta.Key = resource.Key{Kind: t.into, Mesh: p.of.Key().Mesh, Name: fmt.Sprintf("m%05d-%s", place, name[:min(len(name), maxName)])}
	return build(meta, spec)
}

// maxName leaves space for what is put before names.
const maxName = 240

func build(meta resource.Meta, spec policy.Tree) (*resource.Resource, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", meta.Key, err)
	}
	r, _, err := resource.Build(meta, text)
	if err != nil {
		return nil, fmt.Errorf("the successor cannot say it: %w", err)
	}
	return r, nil
}

// Reorder makes the meshes let the first or the last of several targetRef policies set a
// field (FirstWins, LastWins), and turns the order of the policies and of their items
// round, so that the same one sets it (§4.5).
func Reorder(all []*resource.Resource, to string) *Migration {
	turned := map[resource.MeshName]bool{}
	for _, r := range all {
		if mesh, ok := r.Spec().(*resource.Mesh); ok && mesh.EffectiveMatching().TargetRef != to {
			turned[resource.MeshName(r.Key().Name)] = true
		}
	}
	type level struct {
		mesh   resource.MeshName
		kind   resource.Kind
		target resource.TargetKind
	}
	of := map[level][]*resource.Resource{}
	for _, r := range all {
		if spec, ok := r.Spec().(resource.TargetRefSpec); ok && turned[r.Key().Mesh] {
			l := level{r.Key().Mesh, r.Key().Kind, spec.TopTarget().Kind}
			of[l] = append(of[l], r)
		}
	}
	place := map[resource.Key]int{}
	for _, peers := range of {
		if len(peers) < 2 {
			continue
		}
		slices.SortFunc(peers, func(a, b *resource.Resource) int { return strings.Compare(b.Key().Name, a.Key().Name) })
		for i, r := range peers {
			place[r.Key()] = i
		}
	}
	m := &Migration{}
	for _, r := range all {
		result := Result{Resource: r, Into: []*resource.Resource{r}}
		_, policies := r.Spec().(resource.TargetRefSpec)
		isMesh := r.Key().Kind == resource.KindMesh && turned[resource.MeshName(r.Key().Name)]
		if isMesh || policies && turned[r.Key().Mesh] {
			made, err := turn(r, to, place)
			if err != nil {
				result.Reason = err.Error()
			} else {
				result.Into = []*resource.Resource{made}
			}
		}
		m.Results = append(m.Results, result)
		m.After = append(m.After, result.Into...)
	}
	return m
}

func turn(r *resource.Resource, to string, place map[resource.Key]int) (*resource.Resource, error) {
	spec := policy.Tree{}
	d := json.NewDecoder(strings.NewReader(string(r.Canonical())))
	d.UseNumber()
	if err := d.Decode(&spec); err != nil {
		return nil, fmt.Errorf("read %s: %w", r.Key(), err)
	}
	meta := r.Meta()
	if meta.Kind == resource.KindMesh {
		matching, _ := spec["matching"].(policy.Tree)
		if matching == nil {
			matching = policy.Tree{}
		}
		matching["targetRef"] = to
		spec["matching"] = matching
		return build(meta, spec)
	}
	for _, block := range []any{spec, spec["conf"], spec["defaults"], spec["overrides"]} {
		if b, ok := block.(policy.Tree); ok {
			for _, list := range []string{"to", "from"} {
				if items, ok := b[list].([]any); ok {
					slices.Reverse(items)
				}
			}
		}
	}
	if i, ok := place[r.Key()]; ok {
		meta.Name = fmt.Sprintf("m%05d-%s", i, meta.Name[:min(len(meta.Name), maxName)])
	}
	return build(meta, spec)
}
