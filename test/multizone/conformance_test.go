//go:build multizone

package multizone

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

const scenarios = "../../internal/policy/testdata"

// asOfLine is the one line by which a live answer may differ from an offline
// one.
var asOfLine = regexp.MustCompile(`(?m)^  "asOf": \d+,$`)

// Every conformance folder gives a live zone's answers too: its policies are
// applied to the global, its dataplanes to the zone, and the question is asked
// in the zone and through the global.
func TestConformanceLive(t *testing.T) {
	global := newGlobal(t).start().ready()
	folders, err := filepath.Glob(filepath.Join(scenarios, "*", "want.json"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	live := map[string]*process{}
	for _, path := range folders {
		if _, zone := question(t, filepath.Dir(path)); live[zone] == nil {
			live[zone] = newZone(t, global, zone).start().ready()
		}
	}
	for _, path := range folders {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			args, zoneName := question(t, dir)
			zone := live[zoneName]
			load(t, global, zone, filepath.Join(dir, "input.yaml"))
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			expected := asOfLine.ReplaceAllString(string(want), "")
			ask := append([]string{"inspect"}, append(args, "-o", "json")...)
			require.Equal(t, expected, asOfLine.ReplaceAllString(zone.must(ask...), ""), "asked in the zone")
			through := global.must(append(ask, "--zone", zoneName)...)
			require.Equal(t, expected, asOfLine.ReplaceAllString(through, ""), "asked through the global")
		})
	}
}

// question reads a scenario's command and the zone it is about.
func question(t *testing.T, dir string) (args []string, zone string) {
	t.Helper()
	command, err := os.ReadFile(filepath.Join(dir, "command"))
	require.NoError(t, err)
	args, zone = strings.Fields(string(command)), "default"
	if i := slices.Index(args, "--zone"); i >= 0 {
		zone = args[i+1]
		args = slices.Delete(args, i, i+2)
	}
	return args, zone
}

// load replaces everything that the clusters hold by a scenario's input. Batches
// are applied in the order of the modification times that the documents give,
// so that the times the leader chooses have the same order.
func load(t *testing.T, global, zone *process, input string) {
	t.Helper()
	documents, err := resource.Load([]string{input}, nil, resource.DecodeOptions{})
	require.NoError(t, err)
	remove(t, zone, resource.OwnedByZone)
	remove(t, global, resource.OwnedByGlobal)
	byTime := map[time.Time][]*resource.Resource{}
	meshes := map[string]*resource.Resource{}
	var dataplanes []*resource.Resource
	for _, d := range documents {
		switch key := d.Resource.Key(); key.Kind {
		case "Dataplane":
			dataplanes = append(dataplanes, d.Resource)
			meshes[string(key.Mesh)] = meshes[string(key.Mesh)]
		case "Mesh":
			meshes[key.Name] = d.Resource
		default:
			at := d.Resource.Meta().ModificationTime
			byTime[at] = append(byTime[at], d.Resource)
			if key.Mesh != "" {
				meshes[string(key.Mesh)] = meshes[string(key.Mesh)]
			}
		}
	}
	// Offline an undefined mesh is an empty one; a server wants it written.
	var batch []*resource.Resource
	for name, r := range meshes {
		if r == nil {
			r = resourcetest.Build(t, "Mesh", "", name, "{}")
		}
		batch = append(batch, r)
	}
	apply(t, global, batch)
	times := make([]time.Time, 0, len(byTime))
	for at := range byTime {
		times = append(times, at)
	}
	slices.SortFunc(times, time.Time.Compare)
	for _, at := range times {
		apply(t, global, byTime[at])
	}
	apply(t, zone, dataplanes)
}

func apply(t *testing.T, p *process, batch []*resource.Resource) {
	t.Helper()
	if len(batch) == 0 {
		return
	}
	var b bytes.Buffer
	require.NoError(t, resource.Encode(&b, resource.FormatYAML, batch...))
	args := []string{"apply", "-f", "-"}
	if p.program == "meridian-global" {
		args = append(args, "--wait=zones")
	}
	p.mustWith(b.String(), args...)
}

// remove deletes what an earlier scenario left: policies before their meshes,
// which come back empty where they are needed.
func remove(t *testing.T, p *process, owner resource.Owner) {
	t.Helper()
	var documents []resource.Document
	export := p.must("export", "-o", "yaml")
	if strings.TrimSpace(export) != "" {
		var err error
		documents, err = resource.Decode("export", []byte(export), resource.DecodeOptions{})
		require.NoError(t, err)
	}
	var gone []*resource.Resource
	for _, d := range documents {
		row, ok := resource.Describe(d.Resource.Key().Kind)
		require.True(t, ok)
		if row.Owner == owner && (row.Scope == resource.MeshScoped || row.Kind == "Mesh") {
			gone = append(gone, d.Resource)
		}
	}
	if len(gone) == 0 {
		return
	}
	var b bytes.Buffer
	require.NoError(t, resource.Encode(&b, resource.FormatYAML, gone...))
	p.mustWith(b.String(), "delete", "-f", "-")
}
