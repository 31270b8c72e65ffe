package print

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"meridian/internal/resource"
	"meridian/internal/texttable"
)

// column is one column of a table of resources: what it is called and what it
// shows of a spec.
type column struct {
	title string
	show  func(spec map[string]any) string
}

// columnsOf returns the columns that tell resources of a kind apart.
func columnsOf(d *resource.Descriptor) []column {
	switch {
	case d == nil:
		return nil
	case d.Kind == resource.KindMesh:
		return []column{
			{"MTLS", func(spec map[string]any) string { return OrWord(textAt(spec, "mtls", "enabledBackend"), "off") }},
			{"MATCHING", func(spec map[string]any) string {
				return OrWord(textAt(spec, "matching", "sourceDestination"), "KongMesh") + "," +
					OrWord(textAt(spec, "matching", "targetRef"), "FirstWins")
			}},
		}
	case d.Kind == resource.KindZone:
		return []column{{"ENABLED", func(spec map[string]any) string {
			if enabled, ok := spec["enabled"].(bool); ok {
				return strconv.FormatBool(enabled)
			}
			return "true"
		}}}
	case d.Kind == resource.KindDataplane:
		return []column{
			{"ADDRESS", func(spec map[string]any) string { return textAt(spec, "networking", "address") }},
			{"SERVICES", services},
		}
	case d.Class == resource.SourceDestination && d.Direction == resource.OnDataplane:
		return []column{{"SELECTORS", selectorsAt("selectors")}}
	case d.Class == resource.SourceDestination:
		return []column{{"SOURCES", selectorsAt("sources")}, {"DESTINATIONS", selectorsAt("destinations")}}
	case d.Class == resource.TargetRef, d.Class == resource.Inherited:
		return []column{{"TARGET", targetRef}}
	}
	return nil
}

// resourceTable lists resources, all of a kind or, with kind nil, mixed. status
// are further columns.
func (p *Printer) resourceTable(resources []*resource.Resource, kind *resource.Descriptor, wide bool, status []StatusColumn) *Table {
	t := &Table{}
	inMesh := kind == nil || kind.Scope == resource.MeshScoped
	if kind == nil {
		t.Header = append(t.Header, "TYPE")
	}
	if inMesh {
		t.Header = append(t.Header, "MESH")
	}
	t.Header = append(t.Header, "NAME")
	columns := columnsOf(kind)
	for _, c := range columns {
		t.Header = append(t.Header, c.title)
	}
	for i := range status {
		t.Header = append(t.Header, status[i].title())
	}
	t.Header = append(t.Header, "VERSION", "AGE")
	rolledOut := slices.ContainsFunc(resources, func(r *resource.Resource) bool { return r.Meta().Rollout != "" })
	if rolledOut {
		t.Header = append(t.Header, "ROLLOUT")
	}
	if wide {
		t.Header = append(t.Header, "REVISION", "MODIFIED", "LABELS")
	}
	for _, r := range resources {
		m := r.Meta()
		var row []string
		if kind == nil {
			row = append(row, string(m.Kind))
		}
		if inMesh {
			row = append(row, string(m.Mesh))
		}
		row = append(row, m.Shown())
		spec := specObject(r)
		for _, c := range columns {
			row = append(row, alternatives(c.show(spec), wide))
		}
		for i := range status {
			row = append(row, status[i].Reasons[m.Key])
		}
		row = append(row, strconv.FormatUint(m.Version, 10), p.Age(m.CreationTime))
		if rolledOut {
			row = append(row, cmp.Or(m.Rollout, "-"))
		}
		if wide {
			row = append(row, strconv.FormatUint(uint64(m.Revision), 10), Stamp(m.ModificationTime), Tags(m.Labels))
		}
		t.Add(row...)
	}
	return t
}

// specObject returns a spec as a tree, empty when it is not an object.
func specObject(r *resource.Resource) map[string]any {
	var spec map[string]any
	if json.Unmarshal(r.Canonical(), &spec) != nil {
		return nil
	}
	return spec
}

// textAt returns the string at a path of an object, or "".
func textAt(object map[string]any, path ...string) string {
	for _, name := range path[:len(path)-1] {
		object, _ = object[name].(map[string]any)
	}
	text, _ := object[path[len(path)-1]].(string)
	return text
}

// OrWord is the text, or otherwise where it is empty.
func OrWord(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// selectorsAt shows a list of selectors: tags joined by commas, alternatives by
// " | ".
func selectorsAt(section string) func(map[string]any) string {
	return func(spec map[string]any) string {
		list, _ := spec[section].([]any)
		var alternatives []string
		for _, item := range list {
			selector, _ := item.(map[string]any)
			alternatives = append(alternatives, Tags(stringMap(selector["match"])))
		}
		return strings.Join(alternatives, alternative)
	}
}

// alternative separates the selectors of a cell; maxAlternatives is how many of
// them a table shows that is not wide.
const (
	alternative     = " | "
	maxAlternatives = 3
)

// alternatives is a cell with a limited number of selectors, and the number of those
// that it leaves out.
func alternatives(cell string, wide bool) string {
	all := strings.Split(cell, alternative)
	if wide || len(all) <= maxAlternatives+1 {
		return cell
	}
	return fmt.Sprintf("%s%s%d more", strings.Join(all[:maxAlternatives], alternative), alternative, len(all)-maxAlternatives)
}

// targetRef shows a policy's targetRef; without one a policy is about the mesh.
func targetRef(spec map[string]any) string {
	ref, ok := spec["targetRef"].(map[string]any)
	if !ok {
		return string(resource.TargetMesh)
	}
	text := textAt(ref, "kind")
	if name := textAt(ref, "name"); name != "" {
		text += "/" + name
	}
	if section := textAt(ref, "sectionName"); section != "" {
		text += "/" + section
	}
	if tags := Tags(stringMap(ref["tags"])); tags != "" {
		text += " " + tags
	}
	return text
}

// services shows what a dataplane offers: each service once.
func services(spec map[string]any) string {
	networking, _ := spec["networking"].(map[string]any)
	var names []string
	collect := func(holder any) {
		object, _ := holder.(map[string]any)
		if name := stringMap(object["tags"])[resource.ServiceTag]; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	inbounds, _ := networking["inbound"].([]any)
	for _, inbound := range inbounds {
		collect(inbound)
	}
	collect(networking["gateway"])
	return strings.Join(names, ",")
}

func stringMap(value any) map[string]string {
	object, _ := value.(map[string]any)
	out := make(map[string]string, len(object))
	for name, v := range object {
		out[name], _ = v.(string)
	}
	return out
}

func sortedNames[V any](object map[string]V) []string { return slices.Sorted(maps.Keys(object)) }

// Tags prints tags in bytewise order.
func Tags(tags map[string]string) string {
	parts := make([]string, 0, len(tags))
	for _, name := range sortedNames(tags) {
		parts = append(parts, name+"="+tags[name])
	}
	return strings.Join(parts, ",")
}

// Age prints the time since t in its largest unit: 45s, 12m, 3h, 9d.
func (p *Printer) Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return texttable.Age(p.Now().Sub(t))
}

// Stamp prints a time to the second, in UTC.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
