package policytest

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// Siblings is the kind that each Mesh kind of these worlds supersedes (§4.11).
var Siblings = map[resource.Kind]resource.Kind{
	resource.KindMeshTrafficPermission: resource.KindTrafficPermission,
	resource.KindMeshUpstreamTimeout:   resource.KindTimeout,
	resource.KindMeshLogging:           resource.KindTrafficLog,
	resource.KindMeshTracing:           resource.KindTrafficTrace,
}

// GenerationKinds are the kinds of policies of these worlds.
var GenerationKinds = []resource.Kind{
	resource.KindMeshTrafficPermission, resource.KindMeshUpstreamTimeout, resource.KindMeshLogging, resource.KindMeshTracing,
	resource.KindTrafficPermission, resource.KindTimeout, resource.KindTrafficLog, resource.KindTrafficTrace,
}

var services = []string{"a", "b", "c"}

// Generations is a world of policies of both generations in the mesh m, for dataplanes of a
// few services.
type Generations struct{ World }

func (w Generations) put(rt *rapid.T, kind resource.Kind, name string, spec any) resource.Key {
	meta := resource.Meta{
		Key:              resource.Key{Kind: kind, Mesh: "m", Name: name},
		ModificationTime: time.Unix(int64(rapid.IntRange(0, 2).Draw(rt, "modified")), 0),
	}
	if kind == resource.KindMesh {
		meta.Key = resource.Key{Kind: kind, Name: name}
	}
	return w.Put(rt, meta, Spell(rt, spec))
}

type object = map[string]any

func (w Generations) drawPolicy(rt *rapid.T) resource.Key {
	kind := rapid.SampledFrom(GenerationKinds).Draw(rt, "kind")
	service := rapid.SampledFrom(services)
	n := rapid.IntRange(1, 2).Draw(rt, "value")
	match := func(label string) []any {
		return []any{object{"match": object{resource.ServiceTag: rapid.SampledFrom(append([]string{"*"}, services...)).Draw(rt, label)}}}
	}
	target := func(label string, kinds ...string) object {
		t := object{"kind": rapid.SampledFrom(append(kinds, string(resource.KindMesh))).Draw(rt, label)}
		switch t["kind"] {
		case "Service":
			t["name"] = service.Draw(rt, label+" service")
		case "Proxy":
			t["name"] = fmt.Sprintf("d%d", rapid.IntRange(1, 3).Draw(rt, "proxy"))
		case string(resource.KindHTTPRoute):
			t["name"] = "r1"
		}
		return t
	}
	spec := object{}
	if _, mesh := Siblings[kind]; mesh {
		spec["targetRef"] = target("target", "Service", "Proxy")
	}
	backend := fmt.Sprintf("b%d", n)
	item := func(conf object, at object) []any { conf["targetRef"] = at; return []any{conf} }
	switch kind {
	case resource.KindMeshTrafficPermission:
		action := rapid.SampledFrom([]string{"ALLOW", "DENY"}).Draw(rt, "action")
		spec["from"] = item(object{"action": action}, target("from", "Service"))
	case resource.KindMeshUpstreamTimeout:
		spec["to"] = item(object{"connectTimeout": fmt.Sprintf("%ds", n)}, target("to", "Service", string(resource.KindHTTPRoute)))
	case resource.KindMeshLogging:
		spec["to"] = item(object{"backends": []any{object{"name": backend}}}, target("to", "Service"))
		if rapid.Bool().Draw(rt, "from too") {
			spec["from"] = item(object{"backends": []any{object{"name": backend}}}, target("from", "Service"))
		}
	case resource.KindMeshTracing:
		spec["conf"] = object{"backends": []any{object{"name": backend}}}
	case resource.KindTrafficTrace:
		spec["selectors"], spec["conf"] = match("selector"), object{"backend": backend}
	default:
		spec["sources"], spec["destinations"] = match("source"), match("destination")
		switch kind {
		case resource.KindTimeout:
			spec["conf"] = object{"connectTimeout": fmt.Sprintf("%ds", n)}
		case resource.KindTrafficLog:
			spec["conf"] = object{"backend": backend}
		}
	}
	return w.put(rt, kind, fmt.Sprintf("p%d", rapid.IntRange(1, 3).Draw(rt, "name")), spec)
}

func (w Generations) drawDataplane(rt *rapid.T) resource.Key {
	ports := func(label string, least int) []any {
		var ports []any
		for range rapid.IntRange(least, 2).Draw(rt, label) {
			ports = append(ports, object{
				"port": rapid.IntRange(1, 2).Draw(rt, "port"),
				"tags": object{resource.ServiceTag: rapid.SampledFrom(services).Draw(rt, "service")},
			})
		}
		return ports
	}
	networking := object{"address": "10.0.0.1", "inbound": ports("inbounds", 1)}
	if out := ports("outbounds", 0); len(out) > 0 {
		networking["outbound"] = out
	}
	return w.put(rt, resource.KindDataplane, fmt.Sprintf("d%d", rapid.IntRange(1, 3).Draw(rt, "dataplane")), object{"networking": networking})
}

// DrawGenerations draws a world.
func DrawGenerations(rt *rapid.T) Generations {
	w := Generations{NewWorld()}
	rules := rapid.SampledFrom([]string{"KongMesh", "Kuma2020"}).Draw(rt, "rules")
	w.put(rt, resource.KindMesh, "m", object{"matching": object{"sourceDestination": rules}})
	w.put(rt, resource.KindHTTPRoute, "r1", object{
		"parentRefs": []any{object{"kind": "Service", "name": "a"}}, "rules": []any{object{"backendRefs": []any{object{"name": "a"}}}},
	})
	for range rapid.IntRange(1, 3).Draw(rt, "dataplanes") {
		w.drawDataplane(rt)
	}
	for range rapid.IntRange(1, 8).Draw(rt, "policies") {
		w.drawPolicy(rt)
	}
	return w
}

// DrawChange changes one resource, or removes it, and returns its key.
func (w Generations) DrawChange(rt *rapid.T) resource.Key {
	switch rapid.IntRange(0, 4).Draw(rt, "change") {
	case 0:
		return w.drawDataplane(rt)
	case 1:
		var policies []resource.Key
		for _, key := range w.Keys() {
			if slices.Contains(GenerationKinds, key.Kind) {
				policies = append(policies, key)
			}
		}
		if len(policies) > 0 {
			key := rapid.SampledFrom(policies).Draw(rt, "removed")
			delete(w.Resources, key)
			return key
		}
	}
	return w.drawPolicy(rt)
}
