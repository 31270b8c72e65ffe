package rbac

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// naive reads SEMANTICS §6.1–§6.3 from the documents for every question, with
// no index and nothing in common with Check but the types.
type naive struct {
	roles    map[string]resource.AccessRole
	bindings []resource.AccessRoleBinding
}

func (n naive) allowed(r Request) bool {
	switch r.Access {
	case resource.AccessCreate:
		return n.grants(r, r.New)
	case resource.AccessUpdate:
		return n.grants(r, r.Old) && n.grants(r, r.New)
	case resource.AccessDelete:
		return n.grants(r, r.Old)
	default:
		return n.grants(r, Object{})
	}
}

func (n naive) grants(r Request, o Object) bool {
	for _, b := range n.bindings {
		mine := false
		for _, s := range b.Subjects {
			mine = mine || s.Type == "User" && s.Name == r.Subject.Name ||
				s.Type == "Group" && slices.Contains(r.Subject.Groups, s.Name)
		}
		for _, role := range b.Roles {
			for _, rule := range n.roles[role].Rules {
				if mine && slices.Contains(rule.Access, r.Access) && naiveRule(rule, r, o) {
					return true
				}
			}
		}
	}
	return false
}

func naiveRule(rule resource.AccessRule, r Request, o Object) bool {
	token := r.Access == resource.AccessGenerateDataplaneToken
	if r.Access == resource.AccessCreate || r.Access == resource.AccessUpdate || r.Access == resource.AccessDelete {
		if len(rule.Types) > 0 && !slices.Contains(rule.Types, o.Key.Kind) ||
			len(rule.Names) > 0 && !slices.Contains(rule.Names, o.Key.Name) ||
			rule.Mesh != nil && (o.Key.Mesh == "" || *rule.Mesh != "*" && *rule.Mesh != o.Key.Mesh) {
			return false
		}
	} else if rule.Mesh != nil && (!token || *rule.Mesh != "*" && *rule.Mesh != r.Token.Mesh) {
		return false
	}
	if len(rule.When) == 0 {
		return true
	}
	for _, w := range rule.When {
		var spec map[string]any
		if o.Spec != nil {
			text, err := json.Marshal(o.Spec)
			if err != nil {
				panic(err)
			}
			if err := json.Unmarshal(text, &spec); err != nil {
				panic(err)
			}
		}
		if naiveSelectors(w.Sources, spec["sources"]) && naiveSelectors(w.Destinations, spec["destinations"]) &&
			naiveSelectors(w.Selectors, spec["selectors"]) && naiveTarget(w.TargetRef, spec) &&
			naiveItems(w.To, spec["to"]) && naiveItems(w.From, spec["from"]) &&
			(w.DPToken == nil || token && naiveToken(w.DPToken, r.Token)) {
			return true
		}
	}
	return false
}

func naiveSelectors(q *resource.TagQualifier, section any) bool {
	if q == nil {
		return true
	}
	entries, _ := section.([]any)
	for _, e := range entries {
		tags := e.(map[string]any)["match"].(map[string]any)
		if !naiveCovers(q.Match, tags) {
			return false
		}
	}
	return len(entries) > 0
}

func naiveCovers(want map[string]string, have map[string]any) bool {
	for tag, value := range want {
		got, ok := have[tag]
		if !ok || value != "*" && got != value {
			return false
		}
	}
	return true
}

func naiveTags(kind, name string, tags map[string]any) (map[string]any, bool) {
	out := map[string]any{}
	for k, v := range tags {
		out[k] = v
	}
	switch kind {
	case "Service", "MeshService", "ServiceSubset", "MeshServiceSubset":
		out["kuma.io/service"] = name
	case "Mesh", "MeshSubset":
	default:
		return nil, false
	}
	return out, true
}

func naiveRef(kind, name string, tags map[string]string, ref map[string]any) bool {
	refKind, _ := ref["kind"].(string)
	refName, _ := ref["name"].(string)
	refTags, _ := ref["tags"].(map[string]any)
	wide := map[string]any{}
	for k, v := range tags {
		wide[k] = v
	}
	want, tagged := naiveTags(kind, name, wide)
	have, refTagged := naiveTags(refKind, refName, refTags)
	if !tagged || !refTagged {
		return tagged == refTagged && kind == refKind && name == refName
	}
	text := map[string]string{}
	for k, v := range want {
		text[k] = v.(string)
	}
	return naiveCovers(text, have)
}

func naiveTarget(q *resource.PolicyTargetRef, spec map[string]any) bool {
	if q == nil {
		return true
	}
	if _, policy := spec["to"]; !policy {
		if _, policy = spec["from"]; !policy {
			return false
		}
	}
	ref, ok := spec["targetRef"].(map[string]any)
	if !ok {
		ref = map[string]any{"kind": "Mesh"}
	}
	return naiveRef(string(q.Kind), q.Name, q.Tags, ref)
}

func naiveItems(q *resource.TargetQualifier, section any) bool {
	if q == nil {
		return true
	}
	items, _ := section.([]any)
	for _, item := range items {
		ref := item.(map[string]any)["targetRef"].(map[string]any)
		if !naiveRef(string(q.TargetRef.Kind), q.TargetRef.Name, q.TargetRef.Tags, ref) {
			return false
		}
	}
	return len(items) > 0
}

func naiveToken(q *resource.TokenQualifier, t Token) bool {
	for _, tag := range q.Tags {
		if len(t.Tags[tag.Name]) == 0 {
			return false
		}
		for _, v := range t.Tags[tag.Name] {
			if v != tag.Value {
				return false
			}
		}
	}
	return true
}

// Generators of small worlds, in which rules and questions meet often.

func pick[T any](t *rapid.T, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(t, label)
}

func maybe[T any](t *rapid.T, label string, draw func() T) *T {
	if !rapid.Bool().Draw(t, label) {
		return nil
	}
	v := draw()
	return &v
}

func drawTags(t *rapid.T) resource.TagSelector {
	tags := resource.TagSelector{}
	if rapid.Bool().Draw(t, "service") {
		tags["kuma.io/service"] = pick(t, "value", "web", "api", "*")
	}
	if len(tags) == 0 || rapid.Bool().Draw(t, "version") {
		tags["version"] = pick(t, "value", "v1", "v2", "*")
	}
	return tags
}

func drawTarget(t *rapid.T, kinds ...resource.TargetKind) resource.Target {
	target := resource.Target{Kind: pick(t, "target", kinds...)}
	switch target.Kind {
	case "MeshSubset":
		target.Tags = drawTags(t)
	case "ServiceSubset":
		target.Name, target.Tags = pick(t, "name", "web", "api"), resource.TagSelector{"version": pick(t, "value", "v1", "v2", "*")}
	case "Service", "Proxy":
		target.Name = pick(t, "name", "web", "api")
	}
	return target
}

var topTargets = []resource.TargetKind{"Mesh", "MeshSubset", "Service", "ServiceSubset", "Proxy"}

func drawWhen(t *rapid.T) resource.AccessWhen {
	qualifier := func() resource.TagQualifier { return resource.TagQualifier{Match: drawTags(t)} }
	item := func() resource.TargetQualifier {
		return resource.TargetQualifier{TargetRef: drawTarget(t, "Mesh", "Service")}
	}
	for {
		w := resource.AccessWhen{
			Sources: maybe(t, "sources", qualifier), Destinations: maybe(t, "destinations", qualifier),
			Selectors: maybe(t, "selectors", qualifier), To: maybe(t, "to", item), From: maybe(t, "from", item),
			TargetRef: maybe(t, "targetRef", func() resource.PolicyTargetRef {
				return resource.PolicyTargetRef(drawTarget(t, topTargets...))
			}),
			DPToken: maybe(t, "dpToken", func() resource.TokenQualifier {
				return resource.TokenQualifier{Tags: []resource.TokenTag{{Name: "kuma.io/service", Value: pick(t, "value", "web", "api")}}}
			}),
		}
		if w != (resource.AccessWhen{}) {
			return w
		}
	}
}

func drawRule(t *rapid.T) resource.AccessRule {
	rule := resource.AccessRule{
		Types:  rapid.SliceOfNDistinct(rapid.SampledFrom([]resource.Kind{"TrafficPermission", "TrafficTrace", "MeshUpstreamTimeout", "Mesh"}), 0, 3, rapid.ID).Draw(t, "types"),
		Names:  rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b"}), 0, 2, rapid.ID).Draw(t, "names"),
		Mesh:   maybe(t, "mesh", func() resource.MeshName { return pick[resource.MeshName](t, "mesh", "default", "demo", "*") }),
		Access: rapid.SliceOfNDistinct(rapid.SampledFrom(Accesses()), 1, 7, rapid.ID).Draw(t, "access"),
	}
	for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "entries") {
		rule.When = append(rule.When, drawWhen(t))
	}
	return rule
}

func drawObject(t *rapid.T) Object {
	mesh, name := pick(t, "mesh", "default", "demo"), pick(t, "name", "a", "b", "c")
	entries := func(label string) []any {
		var list []any
		for range rapid.IntRange(1, 2).Draw(t, label) {
			list = append(list, map[string]any{"match": drawTags(t)})
		}
		return list
	}
	switch kind := pick(t, "kind", "TrafficPermission", "TrafficTrace", "MeshUpstreamTimeout", "Mesh"); kind {
	case "TrafficPermission":
		return ObjectOf(build(t, kind, mesh, name, map[string]any{"sources": entries("sources"), "destinations": entries("destinations")}))
	case "TrafficTrace":
		return ObjectOf(build(t, kind, mesh, name, map[string]any{"selectors": entries("selectors")}))
	case "MeshUpstreamTimeout":
		var items []any
		for range rapid.IntRange(1, 2).Draw(t, "items") {
			items = append(items, map[string]any{"targetRef": drawTarget(t, "Mesh", "Service"), "connectTimeout": "1s"})
		}
		return ObjectOf(build(t, kind, mesh, name, map[string]any{"targetRef": drawTarget(t, topTargets...), "to": items}))
	default:
		return ObjectOf(build(t, kind, "", name, map[string]any{}))
	}
}

func drawRequest(t *rapid.T) Request {
	r := Request{
		Subject: Subject{Name: pick(t, "user", "ann", "bob"), Groups: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"g", "h"}), 0, 2, rapid.ID).Draw(t, "groups")},
		Access:  pick(t, "access", Accesses()...),
	}
	if OnResources(r.Access) {
		r.Old, r.New = drawObject(t), drawObject(t)
		return r
	}
	r.Token = Token{Mesh: pick[resource.MeshName](t, "mesh", "default", "demo"), Tags: map[string][]string{}}
	if rapid.Bool().Draw(t, "tagged") {
		r.Token.Tags["kuma.io/service"] = rapid.SliceOfN(rapid.SampledFrom([]string{"web", "api"}), 1, 2).Draw(t, "values")
	}
	return r
}

// The index finds exactly what reading every rule finds, whatever the roles.
func TestCheckEqualsAPlainReading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := naive{roles: map[string]resource.AccessRole{}}
		var w world
		for i := range rapid.IntRange(1, 3).Draw(t, "roles") {
			role := resource.AccessRole{Rules: []resource.AccessRule{drawRule(t), drawRule(t)}}
			name := fmt.Sprintf("r%d", i)
			n.roles[name] = role
			w = append(w, build(t, "AccessRole", "", name, role))
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "bindings") {
			b := resource.AccessRoleBinding{
				Subjects: []resource.Subject{pick(t, "subject", resource.Subject{Type: "User", Name: "ann"},
					resource.Subject{Type: "User", Name: "g"}, resource.Subject{Type: "Group", Name: "g"}, resource.Subject{Type: "Group", Name: "h"})},
				Roles: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"r0", "r1", "r2", "none"}), 1, 3, rapid.ID).Draw(t, "gives"),
			}
			n.bindings = append(n.bindings, b)
			w = append(w, build(t, "AccessRoleBinding", "", fmt.Sprintf("b%d", i), b))
		}
		r := drawRequest(t)
		d := Compile(w).Check(r)
		require.Equal(t, n.allowed(r), d.Allowed, "%v", d.Denial)
		require.Equal(t, d.Allowed, d.Denial == nil)
		if !d.Allowed && d.Denial.Nearest != nil {
			require.NotEmpty(t, d.Denial.Because, "the nearest rule says where it failed")
		}
	})
}

// What is granted by a rule that is contained in another is granted by the other.
func TestWithinIsSound(t *testing.T) {
	contained := 0
	rapid.Check(t, func(t *rapid.T) {
		inner, outer := drawRule(t), drawRule(t)
		if rapid.Bool().Draw(t, "related") { // unrelated rules seldom contain one another
			inner = narrowed(t, outer)
		}
		a, b := compileRule("a", 0, &inner), compileRule("b", 0, &outer)
		if !a.Within(b) {
			return
		}
		contained++
		r := drawRequest(t)
		r.Subject = Subject{Name: "ann"}
		if grantsAlone(inner, r) {
			require.True(t, grantsAlone(outer, r), "%+v is not within %+v", inner, outer)
		}
	})
	require.Positive(t, contained)
}

func grantsAlone(rule resource.AccessRule, r Request) bool {
	n := naive{
		roles:    map[string]resource.AccessRole{"r": {Rules: []resource.AccessRule{rule}}},
		bindings: []resource.AccessRoleBinding{{Subjects: []resource.Subject{{Type: "User", Name: "ann"}}, Roles: []string{"r"}}},
	}
	return n.allowed(r)
}

// narrowed returns the rule with some restriction added.
func narrowed(t *rapid.T, rule resource.AccessRule) resource.AccessRule {
	if len(rule.Access) > 1 && rapid.Bool().Draw(t, "less access") {
		rule.Access = rule.Access[1:]
	}
	if len(rule.Names) == 0 && rapid.Bool().Draw(t, "fewer names") {
		rule.Names = []string{"a"}
	}
	if rule.Mesh == nil && rapid.Bool().Draw(t, "a mesh") {
		mesh := resource.MeshName("default")
		rule.Mesh = &mesh
	}
	if len(rule.When) == 0 && rapid.Bool().Draw(t, "a condition") {
		rule.When = []resource.AccessWhen{drawWhen(t)}
	}
	return rule
}
