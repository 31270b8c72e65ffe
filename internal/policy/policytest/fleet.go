package policytest

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"meridian/internal/resource"
)

// FleetMesh is the mesh of a drawn fleet.
const FleetMesh resource.MeshName = "m"

// Names that fleets are made of: few, so that they meet.
var (
	fleetServices = []string{"a", "b"}
	fleetVersions = []string{"v1", "v2"}
)

// FleetOptions choose what a drawn fleet has.
type FleetOptions struct {
	// TargetRef and SourceDestination are whether there are policies of §4 and of §3.
	TargetRef, SourceDestination bool
	// Blocks is whether those of §4 have defaults, overrides, conditions and unset.
	Blocks bool
	// OneInbound is whether no dataplane has more than one.
	OneInbound bool
}

// DrawFleet draws one mesh with dataplanes and policies.
func DrawFleet(rt *rapid.T, o FleetOptions) World {
	w := NewWorld()
	mesh := object{"matching": object{
		"sourceDestination": rapid.SampledFrom([]string{resource.KongMesh, resource.Kuma2020}).Draw(rt, "source/destination"),
		"targetRef":         rapid.SampledFrom([]string{resource.FirstWins, resource.LastWins}).Draw(rt, "targetRef"),
	}}
	if rapid.Bool().Draw(rt, "mtls") {
		mesh["mtls"] = object{"enabledBackend": "ca", "backends": []any{object{"name": "ca", "type": "builtin"}}}
	}
	w.Put(rt, resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: string(FleetMesh)}}, Spell(rt, mesh))
	for i := range rapid.IntRange(1, 4).Draw(rt, "dataplanes") {
		w.drawFleetDataplane(rt, i, o.OneInbound)
	}
	// Few kinds, so that policies of one kind meet.
	older := rapid.SliceOfNDistinct(rapid.SampledFrom([]resource.Kind{
		resource.KindTrafficPermission, resource.KindTimeout, resource.KindFaultInjection, resource.KindRateLimit,
		resource.KindTrafficLog, resource.KindRetry, resource.KindTrafficTrace,
	}), 1, 3, rapid.ID).Draw(rt, "kinds")
	newer := rapid.SampledFrom([]resource.Kind{
		resource.KindMeshTrafficPermission, resource.KindMeshUpstreamTimeout, resource.KindMeshRateLimit,
	}).Draw(rt, "kind")
	for range rapid.IntRange(1, 10).Draw(rt, "policies") {
		if o.TargetRef && (!o.SourceDestination || rapid.Bool().Draw(rt, "generation")) {
			w.drawTargetRef(rt, newer, o.Blocks)
		} else {
			w.drawSourceDestination(rt, rapid.SampledFrom(older).Draw(rt, "kind"))
		}
	}
	return w
}

func drawTags(rt *rapid.T) object {
	tags := object{resource.ServiceTag: rapid.SampledFrom(fleetServices).Draw(rt, "service")}
	if rapid.Bool().Draw(rt, "versioned") {
		tags["version"] = rapid.SampledFrom(fleetVersions).Draw(rt, "version")
	}
	return tags
}

func (w World) drawFleetDataplane(rt *rapid.T, i int, one bool) {
	ports := func(label string, least, most int) []any {
		var all []any
		for n := range rapid.IntRange(least, most).Draw(rt, label) {
			all = append(all, object{"port": 1 + n, "tags": drawTags(rt)})
		}
		return all
	}
	networking := object{"address": "10.0.0.1"}
	if rapid.IntRange(0, 4).Draw(rt, "gateway") == 0 {
		networking["gateway"] = object{"tags": drawTags(rt)}
	} else {
		most := 2
		if one {
			most = 1
		}
		networking["inbound"] = ports("inbounds", 1, most)
	}
	if out := ports("outbounds", 0, 2); len(out) > 0 {
		networking["outbound"] = out
	}
	key := resource.Key{Kind: resource.KindDataplane, Mesh: FleetMesh, Name: fmt.Sprintf("d%d", i)}
	w.Put(rt, resource.Meta{Key: key}, Spell(rt, object{"networking": networking}))
}

func (w World) putFleet(rt *rapid.T, kind resource.Kind, spec object) {
	w.Put(rt, resource.Meta{
		Key:              resource.Key{Kind: kind, Mesh: FleetMesh, Name: fmt.Sprintf("p%d", rapid.IntRange(1, 6).Draw(rt, "name"))},
		CreationTime:     time.Unix(1, 0),
		ModificationTime: time.Unix(int64(rapid.IntRange(1, 3).Draw(rt, "modified")), 0),
	}, Spell(rt, spec))
}

func (w World) drawSourceDestination(rt *rapid.T, kind resource.Kind) {
	selectors := func(label string) []any {
		var all []any
		for range rapid.IntRange(1, 2).Draw(rt, label) {
			match := object{resource.ServiceTag: rapid.SampledFrom(append([]string{resource.AnyValue}, fleetServices...)).Draw(rt, "service")}
			if rapid.IntRange(0, 2).Draw(rt, "by version") == 0 {
				match["version"] = rapid.SampledFrom(append([]string{resource.AnyValue}, fleetVersions...)).Draw(rt, "version")
			}
			all = append(all, object{"match": match})
		}
		return all
	}
	n := rapid.IntRange(1, 3).Draw(rt, "value")
	spec := object{}
	if kind == resource.KindTrafficTrace {
		spec["selectors"] = selectors("selectors")
	} else {
		spec["sources"], spec["destinations"] = selectors("sources"), selectors("destinations")
	}
	switch kind {
	case resource.KindTimeout:
		spec["conf"] = object{"connectTimeout": fmt.Sprintf("%ds", n)}
		if rapid.Bool().Draw(rt, "http") {
			spec["conf"].(object)["http"] = object{"requestTimeout": fmt.Sprintf("%dm", n)}
		}
	case resource.KindFaultInjection:
		spec["conf"] = object{"delay": object{"percentage": 50, "value": fmt.Sprintf("%ds", n)}}
	case resource.KindRateLimit:
		spec["conf"] = object{"http": object{"requests": n, "interval": "10s"}}
	case resource.KindTrafficLog, resource.KindTrafficTrace:
		spec["conf"] = object{"backend": fmt.Sprintf("b%d", n)}
	case resource.KindRetry:
		spec["conf"] = object{"http": object{"numRetries": n}}
	}
	w.putFleet(rt, kind, spec)
}

func (w World) drawTargetRef(rt *rapid.T, kind resource.Kind, blocks bool) {
	target := func(label string, kinds ...string) object {
		t := object{"kind": rapid.SampledFrom(kinds).Draw(rt, label)}
		switch t["kind"] {
		case "Service":
			t["name"] = rapid.SampledFrom(fleetServices).Draw(rt, "service")
		case "ServiceSubset":
			t["name"], t["tags"] = rapid.SampledFrom(fleetServices).Draw(rt, "service"), object{"version": rapid.SampledFrom(fleetVersions).Draw(rt, "version")}
		case "MeshSubset":
			t["tags"] = object{"version": rapid.SampledFrom(fleetVersions).Draw(rt, "version")}
		case "Proxy":
			t["name"] = fmt.Sprintf("d%d", rapid.IntRange(0, 3).Draw(rt, "proxy"))
		}
		return t
	}
	content := func() object {
		var items []any
		for range rapid.IntRange(1, 3).Draw(rt, "items") {
			n := rapid.IntRange(1, 3).Draw(rt, "value")
			conf := object{}
			switch kind {
			case resource.KindMeshTrafficPermission:
				conf["action"] = rapid.SampledFrom([]string{"ALLOW", "DENY"}).Draw(rt, "action")
			case resource.KindMeshUpstreamTimeout:
				conf["connectTimeout"] = fmt.Sprintf("%ds", n)
				if rapid.Bool().Draw(rt, "http") {
					conf["http"] = object{"requestTimeout": fmt.Sprintf("%dm", n)}
				}
			default:
				conf["local"] = object{"http": object{"requestRate": object{"num": n, "interval": "10s"}}}
			}
			callers := []string{string(resource.TargetMesh), "Service"}
			if kind != resource.KindMeshUpstreamTimeout {
				callers = append(callers, "MeshSubset", "ServiceSubset")
			}
			items = append(items, object{"targetRef": target("item", callers...), "default": conf})
		}
		if kind == resource.KindMeshUpstreamTimeout {
			return object{"to": items}
		}
		return object{"from": items}
	}
	spec := object{"targetRef": target("target", string(resource.TargetMesh), "MeshSubset", "Service", "ServiceSubset", "Proxy")}
	if blocks && rapid.Bool().Draw(rt, "blocks") {
		for _, form := range []string{"defaults", "overrides"} {
			block := content()
			block["strategy"] = rapid.SampledFrom([]string{"merge", "atomic"}).Draw(rt, "strategy")
			if kind == resource.KindMeshUpstreamTimeout && rapid.Bool().Draw(rt, "when") {
				block["when"] = "has(self.connectTimeout)"
			}
			spec[form] = block
		}
		if kind == resource.KindMeshUpstreamTimeout && rapid.Bool().Draw(rt, "unset") {
			spec["unset"] = []any{"/connectTimeout"}
		}
	} else {
		for name, value := range content() {
			spec[name] = value
		}
	}
	w.putFleet(rt, kind, spec)
}
