package specificity_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/policy/policytest"
	"meridian/internal/resource"
)

// world is a set of resources that a test changes.
type world struct{ policytest.World }

func newWorld() *world { return &world{policytest.NewWorld()} }

func (w *world) put(t require.TestingT, kind, mesh, name, spec string, modified time.Time) resource.Key {
	return w.Put(t, resource.Meta{Key: resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}, ModificationTime: modified}, spec)
}

// Names that random worlds are made of: few, so that they meet.
var (
	services = []string{"a", "b", "c"}
	versions = []string{"v1", "v2"}
	meshes   = []string{"m1", "m2"}
	kinds    = []string{"TrafficPermission", "FaultInjection", "RateLimit", "TrafficLog", "Timeout", "HealthCheck", "ProxyTemplate"}
)

func drawTags(rt *rapid.T) map[string]string {
	tags := map[string]string{resource.ServiceTag: rapid.SampledFrom(services).Draw(rt, "service")}
	if rapid.Bool().Draw(rt, "versioned") {
		tags["version"] = rapid.SampledFrom(versions).Draw(rt, "version")
	}
	return tags
}

func drawSelector(rt *rapid.T) map[string]any {
	match := map[string]string{}
	if rapid.IntRange(0, 3).Draw(rt, "by service") > 0 {
		match[resource.ServiceTag] = rapid.SampledFrom(append([]string{"*"}, services...)).Draw(rt, "service")
	}
	if len(match) == 0 || rapid.Bool().Draw(rt, "by version") {
		match["version"] = rapid.SampledFrom(append([]string{"*"}, versions...)).Draw(rt, "version")
	}
	return map[string]any{"match": match}
}

func drawSelectors(rt *rapid.T) []any {
	var selectors []any
	for range rapid.IntRange(1, 3).Draw(rt, "selectors") {
		selectors = append(selectors, drawSelector(rt))
	}
	return selectors
}

// drawPolicy puts a random policy.
func (w *world) drawPolicy(rt *rapid.T) resource.Key {
	kind := rapid.SampledFrom(kinds).Draw(rt, "kind")
	spec := map[string]any{}
	if kind == "ProxyTemplate" {
		spec["selectors"] = drawSelectors(rt)
	} else {
		spec["sources"], spec["destinations"] = drawSelectors(rt), drawSelectors(rt)
	}
	n := rapid.IntRange(1, 3).Draw(rt, "conf")
	switch kind {
	case "FaultInjection":
		spec["conf"] = map[string]any{"delay": map[string]any{"percentage": 50, "value": fmt.Sprintf("%ds", n)}}
	case "RateLimit":
		spec["conf"] = map[string]any{"http": map[string]any{"requests": n, "interval": "10s"}}
	case "TrafficLog":
		spec["conf"] = map[string]any{"backend": fmt.Sprintf("b%d", n)}
	case "Timeout":
		spec["conf"] = map[string]any{"connectTimeout": fmt.Sprintf("%ds", n)}
	case "ProxyTemplate":
		spec["conf"] = map[string]any{"imports": []string{fmt.Sprintf("i%d", n)}}
	}
	name := fmt.Sprintf("p%d", rapid.IntRange(1, 5).Draw(rt, "name"))
	modified := time.Unix(int64(rapid.IntRange(0, 2).Draw(rt, "modified")), 0)
	return w.put(rt, kind, rapid.SampledFrom(meshes).Draw(rt, "mesh"), name, policytest.Spell(rt, spec), modified)
}

// drawDataplane puts a random dataplane.
func (w *world) drawDataplane(rt *rapid.T) resource.Key {
	networking := map[string]any{"address": "10.0.0.1"}
	ports := func(least int) []any {
		var ports []any
		for range rapid.IntRange(least, 2).Draw(rt, "ports") {
			ports = append(ports, map[string]any{"port": rapid.IntRange(1, 2).Draw(rt, "port"), "tags": drawTags(rt)})
		}
		return ports
	}
	if rapid.IntRange(0, 3).Draw(rt, "gateway") == 0 {
		networking["gateway"] = map[string]any{"tags": drawTags(rt)}
	} else {
		networking["inbound"] = ports(1)
	}
	if out := ports(0); len(out) > 0 {
		networking["outbound"] = out
	}
	name := fmt.Sprintf("d%d", rapid.IntRange(1, 5).Draw(rt, "dataplane"))
	mesh := rapid.SampledFrom(meshes).Draw(rt, "mesh")
	return w.put(rt, "Dataplane", mesh, name, policytest.Spell(rt, map[string]any{"networking": networking}), time.Time{})
}

// drawMesh puts a random mesh.
func (w *world) drawMesh(rt *rapid.T) resource.Key {
	spec := fmt.Sprintf(`{"matching":{"sourceDestination":%q}}`, rapid.SampledFrom([]string{"KongMesh", "Kuma2020"}).Draw(rt, "rules"))
	return w.put(rt, "Mesh", "", rapid.SampledFrom(meshes).Draw(rt, "mesh"), spec, time.Time{})
}

// drawChange makes one random change and returns its key.
func (w *world) drawChange(rt *rapid.T) resource.Key {
	switch rapid.IntRange(0, 9).Draw(rt, "change") {
	case 0:
		return w.drawMesh(rt)
	case 1, 2:
		return w.drawDataplane(rt)
	case 3, 4:
		if len(w.Resources) > 0 {
			keys := w.Keys()
			key := rapid.SampledFrom(keys).Draw(rt, "delete")
			delete(w.Resources, key)
			return key
		}
	}
	return w.drawPolicy(rt)
}

// drawWorld makes a world of meshes, dataplanes and policies.
func drawWorld(rt *rapid.T) *world {
	w := newWorld()
	for _, mesh := range meshes {
		w.put(rt, "Mesh", "", mesh, `{}`, time.Time{})
	}
	for range rapid.IntRange(0, 6).Draw(rt, "dataplanes") {
		w.drawDataplane(rt)
	}
	for range rapid.IntRange(0, 12).Draw(rt, "policies") {
		w.drawPolicy(rt)
	}
	if rapid.Bool().Draw(rt, "meshes") {
		w.drawMesh(rt)
	}
	return w
}

func matcher(view policy.View) *policy.Matcher {
	m := policy.NewMatcher(specificityEngine)
	m.Reset(view)
	return m
}

// dataplanes lists the dataplanes of a view, and some that do not exist.
func dataplanes(t testing.TB) []resource.Key {
	t.Helper()
	var keys []resource.Key
	for _, mesh := range meshes {
		for i := 1; i <= 5; i++ {
			keys = append(keys, policy.DataplaneKey(resource.MeshName(mesh), fmt.Sprintf("d%d", i)))
		}
	}
	return keys
}
