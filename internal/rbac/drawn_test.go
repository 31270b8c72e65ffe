package rbac

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// Generators of small worlds, in which rules and questions meet often: a rule is
// aimed at a resource, and its conditions are made of what that contains.

func pick[T any](t *rapid.T, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(t, label)
}

// oneIn is true once in n draws.
func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == 1 }

func drawTags(t *rapid.T) resource.TagSelector {
	tags := resource.TagSelector{}
	if !oneIn(t, 4, "no service") {
		tags["kuma.io/service"] = pick(t, "value", "web", "web", "api", "*")
	}
	if len(tags) == 0 || rapid.Bool().Draw(t, "version") {
		tags["version"] = pick(t, "value", "v1", "v1", "v2", "*")
	}
	return tags
}

func drawTarget(t *rapid.T, kinds ...resource.TargetKind) resource.Target {
	target := resource.Target{Kind: pick(t, "target", kinds...)}
	switch target.Kind {
	case "Mesh":
	case "MeshSubset":
		target.Tags = drawTags(t)
	case "ServiceSubset", "MeshServiceSubset":
		target.Name, target.Tags = pick(t, "name", "web", "api"), resource.TagSelector{"version": pick(t, "value", "v1", "v2", "*")}
	default:
		target.Name = pick(t, "name", "web", "api")
	}
	return target
}

var (
	topTargets = []resource.TargetKind{
		"Mesh", "MeshSubset", "Service", "MeshService", "ServiceSubset", "MeshServiceSubset", "Proxy", "HTTPRoute", "MeshHTTPRoute", "MeshGatewayRoute",
	}
	toTargets   = []resource.TargetKind{"Mesh", "Service", "MeshService", "HTTPRoute"}
	fromTargets = []resource.TargetKind{"Mesh", "MeshSubset", "Service", "ServiceSubset", "MeshServiceSubset"}
)

// anItem is the least that an item of each kind configures.
var anItem = map[resource.Kind]string{
	"MeshTrafficPermission": `{"action": "ALLOW"}`,
	"MeshTrafficRoute":      `{"loadBalancer": {"random": {}}}`,
	"MeshCircuitBreaker":    `{"connectionLimits": {"maxRetries": 1}}`,
	"MeshHealthCheck":       `{"interval": "1s"}`,
	"MeshHTTPFault":         `{"http": []}`,
	"MeshRequestRetry":      `{"http": {"numRetries": 1}}`,
	"MeshUpstreamTimeout":   `{"connectTimeout": "1s"}`,
	"MeshRateLimit":         `{"local": {"http": {"disabled": true}}}`,
	"MeshLogging":           `{"backends": []}`,
}

// directions are the sections that the kinds with items have.
var directions = map[resource.Kind][]string{
	"MeshTrafficPermission": {"from"}, "MeshTrafficRoute": {"to"}, "MeshCircuitBreaker": {"to", "from"},
	"MeshHealthCheck": {"to"}, "MeshHTTPFault": {"from", "to"}, "MeshRequestRetry": {"to"},
	"MeshUpstreamTimeout": {"to"}, "MeshRateLimit": {"from", "to"}, "MeshLogging": {"to", "from"},
}

func drawItems(t *rapid.T, kind resource.Kind) map[string]any {
	block := map[string]any{}
	for _, section := range directions[kind] {
		if len(block) > 0 && rapid.Bool().Draw(t, "one section") {
			break
		}
		targets := toTargets
		if section == "from" {
			targets = fromTargets
		}
		var items []any
		for range rapid.IntRange(1, 2).Draw(t, "items") {
			var conf map[string]any
			if err := json.Unmarshal([]byte(anItem[kind]), &conf); err != nil {
				panic(err)
			}
			item := map[string]any{"targetRef": drawTarget(t, targets...)}
			if rapid.Bool().Draw(t, "under default") {
				item["default"] = conf
			} else {
				maps.Copy(item, conf)
			}
			items = append(items, item)
		}
		block[section] = items
	}
	return block
}

// drawTargetRefSpec writes a targetRef policy in any of its forms.
func drawTargetRefSpec(t *rapid.T, kind resource.Kind) map[string]any {
	spec := map[string]any{}
	if !oneIn(t, 4, "no target") {
		spec["targetRef"] = drawTarget(t, topTargets...)
	}
	if len(directions[kind]) == 0 {
		spec["conf"] = map[string]any{}
		return spec
	}
	switch pick(t, "form", "direct", "conf", "defaults", "overrides", "both", "unset") {
	case "direct":
		maps.Copy(spec, drawItems(t, kind))
	case "conf":
		spec["conf"] = drawItems(t, kind)
	case "defaults":
		spec["defaults"] = drawItems(t, kind)
	case "overrides":
		spec["overrides"] = drawItems(t, kind)
	case "both":
		spec["defaults"], spec["overrides"] = drawItems(t, kind), drawItems(t, kind)
	case "unset":
		spec[directions[kind][0]] = []any{}
	}
	return spec
}

func drawSelectors(t *rapid.T) []any {
	var list []any
	for range rapid.IntRange(1, 2).Draw(t, "entries") {
		list = append(list, map[string]any{"match": drawTags(t)})
	}
	return list
}

func drawInheritedSpec(t *rapid.T, kind resource.Kind) map[string]any {
	ref := map[string]any{"kind": pick(t, "target", "Gateway", "HTTPRoute", "GRPCRoute"), "name": pick(t, "name", "web", "api")}
	if rapid.Bool().Draw(t, "section") {
		ref["sectionName"] = "http"
	}
	if group := pick(t, "group", "", "", "", "gateway.networking.k8s.io", "gateway.networking.k8s.io", "example.com"); group != "" {
		ref["group"] = group
	}
	rules := map[string]any{"limits": map[string]any{"a": map[string]any{}}}
	if kind == "AuthPolicy" {
		rules = map[string]any{"rules": map[string]any{"authentication": map[string]any{"a": map[string]any{}}}}
	}
	spec := map[string]any{"targetRef": ref}
	if block := pick(t, "block", "", "defaults", "overrides"); block != "" {
		spec[block] = rules
	} else {
		maps.Copy(spec, rules)
	}
	return spec
}

// specsOf has the kinds that are no policies, as far as they take part: those
// with selectors, and some of no mesh and of one.
var specsOf = map[resource.Kind]string{
	"Mesh": `{}`, "Zone": `{}`, "HTTPRoute": `{}`, "GlobalSecret": `{"data": "AA=="}`, "Secret": `{"data": "AA=="}`,
	"AccessRoleBinding": `{"subjects": [{"type": "User", "name": "u"}], "roles": ["r"]}`,
}

// drawnKinds are all policies and some others; those more often that few
// conditions hold for.
func drawnKinds() []resource.Kind {
	seldom := append(kindsOf(resource.Inherited), "MeshGateway", "MeshGatewayRoute")
	kinds := slices.Concat(kindsOf(resource.SourceDestination), kindsOf(resource.TargetRef), seldom, seldom, seldom)
	return append(kinds, slices.Sorted(maps.Keys(specsOf))...)
}

func drawObject(t *rapid.T, kind resource.Kind) Object {
	d, _ := resource.Describe(kind)
	spec := map[string]any{}
	switch {
	case kind == "VirtualOutbound":
		spec = map[string]any{"selectors": drawSelectors(t), "conf": map[string]any{
			"host": "{{.service}}", "port": "80", "parameters": []any{map[string]any{"name": "service", "tagKey": "kuma.io/service"}},
		}}
	case kind == "ProxyTemplate" || kind == "TrafficTrace" || kind == "MeshGateway" || kind == "MeshGatewayRoute":
		spec["selectors"] = drawSelectors(t)
	case d.Class == resource.SourceDestination:
		spec["sources"], spec["destinations"] = drawSelectors(t), drawSelectors(t)
	case d.Class == resource.TargetRef:
		spec = drawTargetRefSpec(t, kind)
	case d.Class == resource.Inherited:
		spec = drawInheritedSpec(t, kind)
	default:
		if err := json.Unmarshal([]byte(specsOf[kind]), &spec); err != nil {
			panic(err)
		}
	}
	mesh := ""
	if d.Scope == resource.MeshScoped {
		mesh = pick(t, "mesh", "default", "demo")
	}
	return ObjectOf(build(t, string(kind), mesh, pick(t, "name", "a", "b", "c"), spec))
}

func drawToken(t *rapid.T) Token {
	token := Token{
		Mesh: pick[resource.MeshName](t, "mesh", "default", "demo"), Name: pick(t, "dataplane", "", "web-1", "db"), Tags: map[string][]string{},
	}
	for _, tag := range []string{"kuma.io/service", "version"} {
		if !oneIn(t, 4, "no tag") {
			token.Tags[tag] = rapid.SliceOfN(rapid.SampledFrom([]string{"web", "web", "api"}), 1, 2).Draw(t, "values")
		}
	}
	return token
}

// wider returns a target that covers the given one, more often than not.
func wider(t *rapid.T, ref any) resource.Target {
	if oneIn(t, 4, "another target") || ref == nil {
		return drawTarget(t, "Mesh", "Service")
	}
	var target resource.Target
	text, err := json.Marshal(ref)
	if err == nil {
		err = json.Unmarshal(text, &target)
	}
	if err != nil {
		panic(err)
	}
	if target.Tags != nil && rapid.Bool().Draw(t, "any value") {
		target.Tags = maps.Clone(target.Tags)
		for tag := range target.Tags {
			target.Tags[tag] = "*"
		}
	}
	return target
}

// someOf returns a qualifier that a selector is covered by, more often than not.
func someOf(t *rapid.T, section any) *resource.TagQualifier {
	entries, _ := section.([]any)
	if len(entries) == 0 || oneIn(t, 4, "other tags") {
		return &resource.TagQualifier{Match: drawTags(t)}
	}
	match := resource.TagSelector{}
	for tag, value := range entries[0].(map[string]any)["match"].(map[string]any) {
		if oneIn(t, 3, "any value") {
			value = "*"
		}
		if len(match) == 0 || rapid.Bool().Draw(t, "one more tag") {
			match[tag] = value.(string)
		}
	}
	return &resource.TagQualifier{Match: match}
}

// firstItem returns the target of the first item of a section, wherever it is.
func firstItem(spec map[string]any, section string) any {
	for _, b := range []any{spec, spec["conf"], spec["defaults"], spec["overrides"]} {
		block, _ := b.(map[string]any)
		if items, _ := block[section].([]any); len(items) > 0 {
			return items[0].(map[string]any)["targetRef"]
		}
	}
	return nil
}

func drawTokenTags(t *rapid.T, token Token) []resource.TokenTag {
	tags := []resource.TokenTag{{Name: pick(t, "tag", "kuma.io/service", "version"), Value: "web"}}
	if values := token.Tags[tags[0].Name]; len(values) > 0 {
		tags[0].Value = values[0]
	}
	return tags
}

// drawWhen draws a condition on what an object contains or a token carries. The
// qualifier of a section that is not there comes in seldom.
func drawWhen(t *rapid.T, o Object, token Token) resource.AccessWhen {
	spec := tree(o.spec())
	aboutToken := oneIn(t, 5, "about the token")
	if aboutToken {
		spec, o = nil, Object{}
	}
	draw := func(label string, there bool) bool {
		return there && rapid.Bool().Draw(t, label) || oneIn(t, 40, "all the same "+label)
	}
	for {
		var w resource.AccessWhen
		for _, q := range []struct {
			section string
			into    **resource.TagQualifier
		}{{"sources", &w.Sources}, {"destinations", &w.Destinations}, {"selectors", &w.Selectors}} {
			if draw(q.section, spec[q.section] != nil) {
				*q.into = someOf(t, spec[q.section])
			}
		}
		class := resource.Infrastructure
		if d, ok := resource.Describe(o.Key.Kind); ok {
			class = d.Class
		}
		if draw("targetRef", class == resource.TargetRef || class == resource.Inherited) {
			q := resource.PolicyTargetRef(wider(t, spec["targetRef"]))
			w.TargetRef = &q
		}
		for _, q := range []struct {
			section string
			into    **resource.TargetQualifier
		}{{"to", &w.To}, {"from", &w.From}} {
			if first := firstItem(spec, q.section); draw(q.section, first != nil) {
				*q.into = &resource.TargetQualifier{TargetRef: wider(t, first)}
			}
		}
		if draw("dpToken", aboutToken) {
			w.DPToken = &resource.TokenQualifier{Tags: drawTokenTags(t, token)}
			if oneIn(t, 3, "names") {
				w.DPToken.Names = []string{pick(t, "name", "web-1", "web-*", "*")}
			}
		}
		if w != (resource.AccessWhen{}) {
			return w
		}
	}
}

// drawRule draws a rule that is aimed at an object and a token.
func drawRule(t *rapid.T, o Object, token Token) resource.AccessRule {
	var rule resource.AccessRule
	rule.Access = rapid.SliceOfNDistinct(rapid.SampledFrom(Accesses()), 2, 7, rapid.ID).Draw(t, "access")
	if rapid.Bool().Draw(t, "types") {
		rule.Types = []resource.Kind{o.Key.Kind, pick(t, "type", drawnKinds()...)}
		if o.Key.Kind == "MeshUpstreamTimeout" && rapid.Bool().Draw(t, "spelling") {
			rule.Types[0] = "UpstreamTimeout"
		}
	}
	if oneIn(t, 3, "names") {
		rule.Names = []string{pick(t, "name", "a", "b"), o.Key.Name}
	}
	if oneIn(t, 3, "mesh") {
		mesh := pick[resource.MeshName](t, "mesh", "default", "demo", "*")
		rule.Mesh = &mesh
	}
	for range pick(t, "entries", 1, 1, 1, 1, 2, 2, 3, 0) {
		rule.When = append(rule.When, drawWhen(t, o, token))
	}
	return rule
}

// drawn is a world: two resources of every kind, roles with rules aimed at some
// of them, and bindings.
type drawn struct {
	view     world
	naive    naive
	old, now []Object // of one kind at each place
	tokens   []Token
}

func drawWorld(t *rapid.T, rules int) *drawn {
	d := &drawn{naive: naive{roles: map[string]resource.AccessRole{}, trees: map[resource.Spec]map[string]any{}}, tokens: []Token{drawToken(t), drawToken(t)}}
	for _, kind := range drawnKinds() {
		d.old, d.now = append(d.old, drawObject(t, kind)), append(d.now, drawObject(t, kind))
	}
	aims := rapid.Permutation(append(slices.Clone(d.old), d.now...)).Draw(t, "aims")
	for i := range 4 {
		var role resource.AccessRole
		for range rules {
			role.Rules = append(role.Rules, drawRule(t, aims[0], pick(t, "token", d.tokens...)))
			aims = aims[1:]
		}
		name := fmt.Sprintf("r%d", i)
		d.naive.roles[name] = role
		d.view = append(d.view, build(t, "AccessRole", "", name, role))
	}
	for i := range rapid.IntRange(2, 6).Draw(t, "bindings") {
		b := resource.AccessRoleBinding{
			Subjects: []resource.Subject{pick(t, "subject", resource.Subject{Type: "User", Name: "ann"},
				resource.Subject{Type: "User", Name: "g"}, resource.Subject{Type: "Group", Name: "g"}, resource.Subject{Type: "Group", Name: "h"})},
			Roles: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"r0", "r1", "r2", "r3", "none"}), 1, 3, rapid.ID).Draw(t, "gives"),
		}
		d.naive.bindings = append(d.naive.bindings, b)
		d.view = append(d.view, build(t, "AccessRoleBinding", "", fmt.Sprintf("b%d", i), b))
	}
	return d
}

// requests yields every question that the world suggests.
func (d *drawn) requests(yield func(Request) bool) {
	for _, subject := range []Subject{{Name: "ann", Groups: []string{"h"}}, {Name: "bob", Groups: []string{"g"}}, {Name: "g"}} {
		for i := range d.now {
			for _, r := range []Request{
				{Access: resource.AccessCreate, New: d.now[i]},
				{Access: resource.AccessUpdate, Old: d.old[i], New: d.now[i]},
				{Access: resource.AccessDelete, Old: d.old[i]},
				{Access: resource.AccessRead, New: d.now[i]},
				{Access: resource.AccessRead, New: Object{Key: d.now[i].Key}},
				{Access: resource.AccessDelete, Old: Object{Key: d.old[i].Key}},
			} {
				if r.Subject = subject; !yield(r) {
					return
				}
			}
		}
		for _, token := range d.tokens {
			for _, access := range Accesses()[4:] {
				if !yield(Request{Subject: subject, Access: access, Token: token}) {
					return
				}
			}
		}
	}
}

// The index finds exactly what reading every rule finds, whatever the roles. The
// worlds are worth something only as long as the conditions of every kind both
// hold and fail in them, and so does each qualifier.
func TestCheckEqualsAPlainReading(t *testing.T) {
	saw := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := drawWorld(t, 8)
		d.naive.saw = saw
		set := Compile(d.view)
		for r := range d.requests {
			got := set.Check(r)
			require.Equal(t, d.naive.allowed(r), got.Allowed, "%+v\n%v", r, got.Denial)
			require.Equal(t, got.Allowed, got.Denial == nil)
			if !got.Allowed && got.Denial.Nearest != nil {
				require.NotEmpty(t, got.Denial.Because, "the nearest rule says where it failed")
			}
		}
	})
	for _, q := range []string{"sources", "destinations", "selectors", "targetRef", "to", "from", "dpToken"} {
		require.Positive(t, saw[q+" holds"], q)
		require.Positive(t, saw[q+" fails"], q)
	}
	for _, kind := range drawnKinds() {
		if _, other := specsOf[kind]; other {
			continue // nothing in it for a condition to hold by
		}
		require.Positive(t, saw["kind "+string(kind)+" holds"], kind)
		require.Positive(t, saw["kind "+string(kind)+" fails"], kind)
	}
}

// What is granted by a rule that is contained in another is granted by the other.
func TestWithinIsSound(t *testing.T) {
	contained, granted := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		aim, token := drawObject(t, pick(t, "kind", drawnKinds()...)), drawToken(t)
		inner, outer := drawRule(t, aim, token), drawRule(t, aim, token)
		if rapid.Bool().Draw(t, "related") { // unrelated rules seldom contain one another
			inner = narrowed(t, outer, aim, token)
		}
		a, b := compileRule("a", 0, &inner), compileRule("b", 0, &outer)
		if !a.Within(b) {
			return
		}
		contained++
		d := drawn{tokens: []Token{token, drawToken(t)}, old: []Object{aim}, now: []Object{aim}}
		for range 4 {
			d.old = append(d.old, drawObject(t, aim.Key.Kind))
			d.now = append(d.now, drawObject(t, pick(t, "kind", drawnKinds()...)))
		}
		for r := range d.requests {
			if r.Subject.Name == "ann" && grantsAlone(inner, r) {
				granted++
				require.True(t, grantsAlone(outer, r), "%+v is not within %+v", inner, outer)
			}
		}
	})
	require.Positive(t, contained)
	require.Positive(t, granted)
}

func grantsAlone(rule resource.AccessRule, r Request) bool {
	n := naive{
		trees:    map[resource.Spec]map[string]any{},
		roles:    map[string]resource.AccessRole{"r": {Rules: []resource.AccessRule{rule}}},
		bindings: []resource.AccessRoleBinding{{Subjects: []resource.Subject{{Type: "User", Name: "ann"}}, Roles: []string{"r"}}},
	}
	return n.allowed(r)
}

// narrowed returns the rule with some restriction added.
func narrowed(t *rapid.T, rule resource.AccessRule, aim Object, token Token) resource.AccessRule {
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
		rule.When = []resource.AccessWhen{drawWhen(t, aim, token)}
	}
	return rule
}
