package rbac

import (
	"encoding/json"
	"slices"

	"meridian/internal/resource"
)

// naive reads §6.1–§6.3 from the documents for every question, with
// no index and nothing in common with Check but the types.
type naive struct {
	roles    map[string]resource.AccessRole
	bindings []resource.AccessRoleBinding
	// trees has the specs that were looked at, as they would be written.
	trees map[resource.Spec]map[string]any
	// saw counts what decisions depended on; nil to skip that.
	saw map[string]int
}

func (n naive) allowed(r Request) bool {
	switch r.Access {
	case resource.AccessCreate, resource.AccessRead:
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
				if mine && naiveGrants(rule.Access, r.Access, o.Key.Kind) && n.rule(rule, r, o) {
					return true
				}
			}
		}
	}
	return false
}

// naiveGrants: reading takes any access to a resource; of secrets, UPDATE (§6.1).
func naiveGrants(granted []resource.Access, wanted resource.Access, kind resource.Kind) bool {
	if wanted != resource.AccessRead {
		return slices.Contains(granted, wanted)
	}
	secret := kind == "GlobalSecret" || kind == "Secret"
	for _, a := range granted {
		if a == "UPDATE" || !secret && (a == "CREATE" || a == "DELETE" || a == "READ") {
			return true
		}
	}
	return false
}

func (n naive) rule(rule resource.AccessRule, r Request, o Object) bool {
	token := r.Access == resource.AccessGenerateDataplaneToken
	if slices.Contains([]resource.Access{"CREATE", "UPDATE", "DELETE", "READ"}, r.Access) {
		if len(rule.Types) > 0 && !slices.ContainsFunc(rule.Types, func(k resource.Kind) bool {
			return k == o.Key.Kind || k == "UpstreamTimeout" && o.Key.Kind == "MeshUpstreamTimeout"
		}) ||
			len(rule.Names) > 0 && !slices.Contains(rule.Names, o.Key.Name) ||
			rule.Mesh != nil && (o.Key.Mesh == "" || *rule.Mesh != "*" && *rule.Mesh != o.Key.Mesh) {
			return false
		}
	} else if rule.Mesh != nil && (!token || *rule.Mesh != "*" && *rule.Mesh != r.Token.Mesh) {
		return false
	}
	held := len(rule.When) == 0
	for _, w := range rule.When {
		held = n.entry(w, r, o) || held
	}
	if len(rule.When) > 0 && o.spec() != nil {
		n.note("kind "+string(o.Key.Kind), held)
	}
	return held
}

func (n naive) note(what string, held bool) {
	if n.saw == nil {
		return
	}
	if held {
		n.saw[what+" holds"]++
	} else {
		n.saw[what+" fails"]++
	}
}

// entry decides one entry of `when`: all qualifiers that are there.
func (n naive) entry(w resource.AccessWhen, r Request, o Object) bool {
	spec, ok := n.trees[o.spec()]
	if !ok {
		spec = tree(o.spec())
		n.trees[o.spec()] = spec
	}
	all := true
	for _, q := range []struct {
		name  string
		there bool
		holds func() bool
	}{
		{"sources", w.Sources != nil, func() bool { return naiveSelectors(w.Sources, spec["sources"]) }},
		{"destinations", w.Destinations != nil, func() bool { return naiveSelectors(w.Destinations, spec["destinations"]) }},
		{"selectors", w.Selectors != nil, func() bool { return naiveSelectors(w.Selectors, spec["selectors"]) }},
		{"targetRef", w.TargetRef != nil, func() bool { return naiveTop(w.TargetRef, o.Key.Kind, spec) }},
		{"to", w.To != nil, func() bool { return naiveItems(w.To, "to", spec) }},
		{"from", w.From != nil, func() bool { return naiveItems(w.From, "from", spec) }},
		{"dpToken", w.DPToken != nil, func() bool {
			return r.Access == resource.AccessGenerateDataplaneToken && naiveToken(w.DPToken, r.Token)
		}},
	} {
		if q.there {
			held := q.holds()
			n.note(q.name, held)
			all = all && held
		}
	}
	return all
}

// tree is a spec as it would be written.
func tree(spec resource.Spec) map[string]any {
	var out map[string]any
	if spec == nil {
		return out
	}
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err)
	}
	return out
}

func naiveSelectors(q *resource.TagQualifier, section any) bool {
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

// oneName gives the kinds of targets that have two names one of them.
var oneName = map[string]string{"MeshService": "Service", "MeshServiceSubset": "ServiceSubset", "MeshHTTPRoute": "HTTPRoute"}

// naiveTags are the tags that a target stands for, if it does.
func naiveTags(ref map[string]any) (map[string]any, bool) {
	out := map[string]any{}
	given, _ := ref["tags"].(map[string]any)
	for k, v := range given {
		out[k] = v
	}
	switch ref["kind"] {
	case "Service", "ServiceSubset":
		out["kuma.io/service"] = ref["name"]
	case "Mesh", "MeshSubset":
	default:
		return nil, false
	}
	return out, true
}

func naiveRef(q, ref map[string]any) bool {
	for _, r := range []map[string]any{q, ref} {
		if name, ok := oneName[r["kind"].(string)]; ok {
			r["kind"] = name
		}
	}
	want, tagged := naiveTags(q)
	have, refTagged := naiveTags(ref)
	if !tagged || !refTagged {
		return tagged == refTagged && q["kind"] == ref["kind"] && q["name"] == ref["name"]
	}
	text := map[string]string{}
	for k, v := range want {
		text[k] = v.(string)
	}
	return naiveCovers(text, have)
}

// written is a value as a document has it.
func written(v any) map[string]any {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(text, &out); err != nil {
		panic(err)
	}
	return out
}

func naiveTop(q *resource.PolicyTargetRef, kind resource.Kind, spec map[string]any) bool {
	ref, _ := spec["targetRef"].(map[string]any)
	switch {
	case spec == nil:
		return false // nothing but the identity is known
	case slices.Contains(kindsOf(resource.TargetRef), kind):
		if ref == nil {
			ref = map[string]any{"kind": "Mesh"}
		}
	case slices.Contains(kindsOf(resource.Inherited), kind):
		if group, ok := ref["group"]; ok && group != "gateway.networking.k8s.io" {
			return false
		}
	default:
		return false
	}
	return naiveRef(written(q), ref)
}

func naiveItems(q *resource.TargetQualifier, section string, spec map[string]any) bool {
	blocks, n := []any{spec, spec["conf"], spec["defaults"], spec["overrides"]}, 0
	for _, b := range blocks {
		block, _ := b.(map[string]any)
		items, _ := block[section].([]any)
		for _, item := range items {
			n++
			if !naiveRef(written(q.TargetRef), item.(map[string]any)["targetRef"].(map[string]any)) {
				return false
			}
		}
	}
	return n > 0
}

func naiveToken(q *resource.TokenQualifier, t Token) bool {
	named := len(q.Names) == 0
	for _, n := range q.Names {
		named = named || n == t.Name || n[len(n)-1] == '*' && len(t.Name) >= len(n)-1 && t.Name[:len(n)-1] == n[:len(n)-1]
	}
	if !named {
		return false
	}
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

// kindsOf lists the kinds of a class.
func kindsOf(class resource.Class) []resource.Kind {
	var kinds []resource.Kind
	for _, d := range resource.Kinds() {
		if d.Class == class {
			kinds = append(kinds, d.Kind)
		}
	}
	return kinds
}
