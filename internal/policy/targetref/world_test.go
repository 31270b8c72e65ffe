package targetref_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/policy/targetref"
	"meridian/internal/resource"
)

// world is a set of resources that a test changes.
type world struct{ policytest.World }

func newWorld() *world { return &world{policytest.NewWorld()} }

// put adds a resource; created is its creation time, which orders overrides.
func (w *world) put(t require.TestingT, kind, mesh, name, spec string, created int) resource.Key {
	return w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}, CreationTime: time.Unix(int64(created), 0)}, spec)
}

func matcher(view policy.View) *policy.Matcher {
	m := policy.NewMatcher(targetref.New())
	m.Reset(view)
	return m
}

// Names that random worlds are made of: few, so that they meet.
var (
	services = []string{"a", "b", "c"}
	versions = []string{"v1", "v2"}
	routes   = []string{"r1", "r2"}
	kinds    = []string{"MeshUpstreamTimeout", "MeshTrafficPermission", "MeshCircuitBreaker", "MeshTracing"}
)

const mesh = "m"

type object = map[string]any

func pick[T any](rt *rapid.T, from []T) T { return rapid.SampledFrom(from).Draw(rt, "pick") }

func odds(rt *rapid.T, n int) bool { return rapid.IntRange(1, n).Draw(rt, "odds") == 1 }

func drawTags(rt *rapid.T) map[string]string {
	tags := map[string]string{resource.ServiceTag: pick(rt, services)}
	if odds(rt, 2) {
		tags["version"] = pick(rt, versions)
	}
	return tags
}

// drawTarget draws a target of one of the kinds.
func drawTarget(rt *rapid.T, kinds ...string) object {
	kind := pick(rt, kinds)
	target := object{"kind": kind}
	switch kind {
	case "Service":
		target["name"] = pick(rt, services)
	case "ServiceSubset":
		target["name"], target["tags"] = pick(rt, services), object{"version": pick(rt, append(versions, "*"))}
	case "MeshSubset":
		target["tags"] = object{"version": pick(rt, append(versions, "*"))}
	case "Proxy":
		target["name"] = fmt.Sprintf("d%d", rapid.IntRange(1, 4).Draw(rt, "proxy"))
	case "HTTPRoute", "MeshGatewayRoute":
		target["name"] = pick(rt, routes)
	}
	return target
}

// drawConf draws a configuration that sets some of a few fields.
func drawConf(rt *rapid.T, kind string) object {
	n := rapid.IntRange(1, 3).Draw(rt, "value")
	conf := object{}
	switch kind {
	case "MeshUpstreamTimeout":
		for _, field := range []string{"connectTimeout", "idleTimeout"} {
			if odds(rt, 2) {
				conf[field] = fmt.Sprintf("%ds", n)
			}
		}
		if len(conf) == 0 || odds(rt, 2) {
			conf["http"] = object{pick(rt, []string{"requestTimeout", "streamIdleTimeout"}): fmt.Sprintf("%dm", n)}
		}
	case "MeshTrafficPermission":
		conf["action"] = pick(rt, []string{"ALLOW", "DENY"})
	case "MeshCircuitBreaker":
		limits := object{pick(rt, []string{"maxRequests", "maxRetries", "maxConnections"}): n}
		conf["connectionLimits"] = limits
		if odds(rt, 3) {
			limits["maxPendingRequests"] = n
		}
	case "MeshTracing":
		conf["backends"] = []any{}
		if odds(rt, 2) {
			conf["sampling"] = object{pick(rt, []string{"overall", "random"}): n}
		}
		if odds(rt, 2) {
			conf["backends"] = []any{object{"name": fmt.Sprintf("b%d", n)}}
		}
	}
	return conf
}

// drawContent draws what a form of a policy holds.
func drawContent(rt *rapid.T, kind string) object {
	if kind == "MeshTracing" {
		return drawConf(rt, kind)
	}
	list := func(targets ...string) []any {
		var items []any
		for range rapid.IntRange(1, 3).Draw(rt, "items") {
			it := drawConf(rt, kind)
			if odds(rt, 2) {
				it = object{"default": it}
			}
			it["targetRef"] = drawTarget(rt, targets...)
			items = append(items, it)
		}
		return items
	}
	content := object{}
	if kind != "MeshTrafficPermission" {
		content["to"] = list("Mesh", "Service", "HTTPRoute")
	}
	if kind != "MeshUpstreamTimeout" && (len(content) == 0 || odds(rt, 2)) {
		content["from"] = list("Mesh", "MeshSubset", "Service", "ServiceSubset")
	}
	return content
}

var unsettable = map[string][]string{
	"MeshUpstreamTimeout":   {"/connectTimeout", "/http", "/http/requestTimeout"},
	"MeshTrafficPermission": {"/action"},
	"MeshCircuitBreaker":    {"/connectionLimits", "/connectionLimits/maxRequests"},
	"MeshTracing":           {"/sampling", "/backends"},
}

var topTargets = []string{"Mesh", "Mesh", "MeshSubset", "Service", "Service", "ServiceSubset", "Proxy", "MeshGatewayRoute", "HTTPRoute"}

// drawPolicy puts a random policy; with blocks it may have merged defaults and
// overrides and unset fields.
func (w *world) drawPolicy(rt *rapid.T, blocks bool) resource.Key {
	kind := pick(rt, kinds)
	spec := object{}
	if !odds(rt, 5) {
		spec["targetRef"] = drawTarget(rt, topTargets...)
	}
	if blocks && odds(rt, 2) {
		for _, form := range []string{"defaults", "overrides"} {
			if form == "overrides" || odds(rt, 2) {
				content := drawContent(rt, kind)
				content["strategy"] = "merge"
				spec[form] = content
			}
		}
	} else {
		spec["conf"] = drawContent(rt, kind)
	}
	if blocks && odds(rt, 3) {
		spec["unset"] = []string{pick(rt, unsettable[kind])}
		if odds(rt, 3) {
			delete(spec, "conf")
		}
	}
	name := fmt.Sprintf("p%d", rapid.IntRange(1, 6).Draw(rt, "name"))
	return w.put(rt, kind, mesh, name, policytest.Spell(rt, spec), rapid.IntRange(0, 2).Draw(rt, "created"))
}

func (w *world) drawRoute(rt *rapid.T) resource.Key {
	name := pick(rt, routes)
	if odds(rt, 2) {
		spec := object{
			"selectors": []any{object{"match": drawTags(rt)}},
			"conf":      object{"tcp": object{"rules": []any{object{"backends": []any{object{"destination": drawTags(rt)}}}}}},
		}
		return w.put(rt, "MeshGatewayRoute", mesh, name, policytest.Spell(rt, spec), 0)
	}
	parent := object{"kind": "Service", "name": pick(rt, services)}
	if odds(rt, 3) {
		parent = object{"kind": "MeshGateway", "name": "g"}
	}
	backends := []any{object{"name": pick(rt, services)}}
	return w.put(rt, "HTTPRoute", mesh, name,
		policytest.Spell(rt, object{"parentRefs": []any{parent}, "rules": []any{object{"backendRefs": backends}}}), 0)
}

func (w *world) drawDataplane(rt *rapid.T) resource.Key {
	networking := object{"address": "10.0.0.1"}
	ports := func(least int) []any {
		var ports []any
		for range rapid.IntRange(least, 3).Draw(rt, "ports") {
			ports = append(ports, object{"port": rapid.IntRange(1, 2).Draw(rt, "port"), "tags": drawTags(rt)})
		}
		return ports
	}
	if odds(rt, 3) {
		networking["gateway"] = object{"tags": drawTags(rt)}
	} else {
		networking["inbound"] = ports(1)
	}
	if out := ports(0); len(out) > 0 {
		networking["outbound"] = out
	}
	return w.put(rt, "Dataplane", mesh, fmt.Sprintf("d%d", rapid.IntRange(1, 4).Draw(rt, "dataplane")),
		policytest.Spell(rt, object{"networking": networking}), 0)
}

func (w *world) drawMesh(rt *rapid.T) resource.Key {
	spec := object{"matching": object{
		"targetRef": pick(rt, []string{"FirstWins", "LastWins"}), "unset": pick(rt, []string{"Allowed", "Allowed", "Forbidden"}),
	}}
	return w.put(rt, "Mesh", "", mesh, policytest.Spell(rt, spec), 0)
}

// drawChange makes one random change and returns its key.
func (w *world) drawChange(rt *rapid.T) resource.Key {
	switch rapid.IntRange(0, 9).Draw(rt, "change") {
	case 0:
		return w.drawMesh(rt)
	case 1, 2:
		return w.drawDataplane(rt)
	case 3, 4:
		return w.drawRoute(rt)
	case 5, 6:
		if keys := w.Keys(); len(keys) > 0 {
			key := pick(rt, keys)
			delete(w.Resources, key)
			return key
		}
	}
	return w.drawPolicy(rt, true)
}

func drawWorld(rt *rapid.T, blocks bool) *world {
	w := newWorld()
	w.drawMesh(rt)
	w.put(rt, "MeshGateway", mesh, "g", `{"selectors":[{"match":{"kuma.io/service":"a"}}]}`, 0)
	for range rapid.IntRange(1, 4).Draw(rt, "dataplanes") {
		w.drawDataplane(rt)
	}
	for range rapid.IntRange(0, 3).Draw(rt, "routes") {
		w.drawRoute(rt)
	}
	for range rapid.IntRange(0, 10).Draw(rt, "policies") {
		w.drawPolicy(rt, blocks)
	}
	return w
}

// dataplanes lists all dataplanes that a random world may have.
func dataplanes() []resource.Key {
	var keys []resource.Key
	for i := 1; i <= 4; i++ {
		keys = append(keys, policy.DataplaneKey(mesh, fmt.Sprintf("d%d", i)))
	}
	return keys
}

func shapeOf(t require.TestingT, m *policy.Matcher, key resource.Key) *policy.Shape {
	var shape *policy.Shape
	require.NoError(t, m.Read(func(r *policy.Reading) (err error) {
		shape, err = r.Dataplane(key)
		return err
	}))
	return shape
}

func effective(t require.TestingT, m *policy.Matcher, key resource.Key) []policy.Rule {
	rules, err := m.Effective(key)
	require.NoError(t, err)
	return rules
}

// load reads a world from YAML.
func load(t testing.TB, documents string) *policy.Matcher {
	t.Helper()
	return matcher(viewOf(t, documents))
}
