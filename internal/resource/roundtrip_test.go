package resource_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/resource"
)

var formats = []resource.Format{
	resource.FormatYAML, resource.FormatJSON, resource.FormatJSONList, resource.FormatKubernetesYAML,
}

// requireRoundTrip checks that a resource survives every format with identity,
// envelope, canonical spec and hash unchanged, and its spec being stored.
func requireRoundTrip(t require.TestingT, r *resource.Resource) {
	require.Equal(t, r.Spec(), r.Store(r.Meta()).Spec(), "as it is decoded once more")
	for _, format := range formats {
		var b bytes.Buffer
		require.NoError(t, resource.Encode(&b, format, r))
		documents, err := resource.Decode("again", b.Bytes(), resource.DecodeOptions{})
		require.NoError(t, err, "format %d:\n%s", format, b.String())
		require.Len(t, documents, 1, b.String())
		again := documents[0].Resource
		require.Equal(t, r.Meta(), again.Meta(), b.String())
		require.Equal(t, string(r.Canonical()), string(again.Canonical()), b.String())
		require.Equal(t, r.Hash(), again.Hash())
	}
}

// anyText draws text with everything that has ever broken a YAML writer.
func anyText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z]{1,8}`),
		rapid.String(),
		rapid.SampledFrom([]string{
			"", " ", "~", "null", "Null", "true", "True", "yes", "No", "on", "off", "y", "n", "0", "010", "0x1F", "0o17", "1_000",
			"1e3", "1.", ".5", "-", "- a", "a: b", "a #b", "#", "?", "? a", "|", ">", "&a", "*", "*a", "!", "!!str", "%", "@", "`",
			"<<", "=", "---", "...", "--- a", "a:", ":a", "12:30:45", "2020-01-01", ".nan", ".inf", "-.inf", "'", "\"", "\\", "{", "[a]", ",",
			"a\nb", "a\nb\n", "a\n\nb\n", "a\n\n", "\na", " a\nb", "a\n b\n", "a \nb", "a\tb", "\ta\nb", "a\n\tb", "\r", "a\r\nb", "a\n#b\n", "---\na\n", "...\n\na",
			"\x00", "\x07", "\x1b", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufffe", "\U0001F600", "café", "1h30m", "0s", "5s", "<nil>",
		}),
	)
}

// anyValue draws JSON values as an opaque configuration might hold.
func anyValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := 6
		if depth == 0 {
			kinds = 4
		}
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return json.Number(rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?`).Draw(t, "number"))
		case 3:
			return anyText().Draw(t, "text")
		case 4:
			return rapid.SliceOfN(anyValue(depth-1), 0, 4).Draw(t, "list")
		default:
			return rapid.MapOfN(anyText(), anyValue(depth-1), 0, 4).Draw(t, "object")
		}
	})
}

func anyTime(t *rapid.T, label string) time.Time {
	if rapid.Bool().Draw(t, label+" known") {
		return time.Unix(rapid.Int64Range(0, 4e9).Draw(t, label), rapid.Int64Range(0, 999_999_999).Draw(t, label+" ns")).UTC()
	}
	return time.Time{}
}

// printable reports whether a text may be the value of a label (§1.1).
func printable(text string) bool {
	report := &resource.Report{}
	resource.CheckLabels(resource.Key{}, map[string]string{"a": text}, "labels", report)
	return !report.Failed()
}

// §1.2: export | apply changes nothing, whatever the content.
func TestRoundTripProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		meta := resource.Meta{
			Key:              key("Mesh", "", rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]{1,5})?`).Draw(t, "name")),
			CreationTime:     anyTime(t, "creation"),
			ModificationTime: anyTime(t, "modification"),
			Version:          rapid.Uint64().Draw(t, "version"),
			Revision:         resource.Revision(rapid.Uint64().Draw(t, "revision")),
			Rollout:          rapid.SampledFrom([]string{"", "", "canary"}).Draw(t, "rollout"),
		}
		if labels := rapid.MapOfN(rapid.StringMatching(`([a-z]{1,5}\.x/)?[a-zA-Z]([-_.]?[a-z]){0,4}`), anyText().Filter(printable), 0, 3).Draw(t, "labels"); len(labels) > 0 {
			meta.Labels = labels
		}
		conf := anyValue(3).Draw(t, "conf")
		spec, err := json.Marshal(map[string]any{"logging": map[string]any{"backends": []any{
			map[string]any{"name": "a", "type": "file", "format": anyText().Draw(t, "format"), "conf": conf},
		}}})
		require.NoError(t, err)
		r, _, err := resource.Build(meta, spec)
		require.NoError(t, err)
		requireRoundTrip(t, r)
	})
}

// Canonical JSON has the value of the original and is its own canonical form.
func TestCanonicalizeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		original, err := json.Marshal(anyValue(4).Draw(t, "value"))
		require.NoError(t, err)
		canonical, err := resource.Canonicalize(original)
		require.NoError(t, err)
		var want, got any
		require.NoError(t, json.Unmarshal(original, &want))
		require.NoError(t, json.Unmarshal(canonical, &got))
		require.Equal(t, want, got)
		again, err := resource.Canonicalize(canonical)
		require.NoError(t, err)
		require.Equal(t, string(canonical), string(again))
	})
}

func TestCanonicalNumbers(t *testing.T) {
	for literal, want := range map[string]string{
		"0": "0", "-0": "0", "0.0": "0", "0e5": "0", "1.0": "1", "1.50": "1.5", "-1.50": "-1.5", "100": "100", "1e2": "100", "1E+2": "100",
		"120e-1": "12", "0.001": "0.001", "1e-3": "0.001", "123456789012345678901234567890": "1.2345678901234567890123456789e29",
		"1e24": "1000000000000000000000000", "1e25": "1e25", "1.5e30": "1.5e30", "1e-25": "0.0000000000000000000000001", "1e-26": "1e-26",
		"9007199254740993": "9007199254740993", "0.1000000000000000055511151231257827": "1.000000000000000055511151231257827e-1",
	} {
		canonical, err := resource.Canonicalize([]byte(literal))
		require.NoError(t, err)
		require.Equal(t, want, string(canonical), literal)
	}
	for _, literal := range []string{"1e401", "1e-401", "1e99999999999999999999", "00", "1.", ".1", "+1", "0x1", "NaN", "1 2", ""} {
		_, err := resource.Canonicalize([]byte(literal))
		require.Error(t, err, literal)
	}
}

// A spec with a field that the universal form uses itself goes under `spec`.
func TestCollidingFieldsStandUnderSpec(t *testing.T) {
	r := resource.New(resource.Meta{Key: key("Zone", "", "a")}, new(resource.Zone), []byte(`{"name":"inner","x":1}`))
	var b bytes.Buffer
	require.NoError(t, resource.Encode(&b, resource.FormatYAML, r))
	require.Equal(t, "type: Zone\nname: a\nspec:\n  name: inner\n  x: 1\n", b.String())
}

func TestEncodeYAMLReadsWell(t *testing.T) {
	r := acceptOne(t, `
type: Mesh
name: default
labels: {team: a}
version: 3
revision: 7
logging:
  backends:
  - name: file
    type: file
    format: "one\n  two\n"
    conf: {path: /tmp/access.log, list: [[1, 2], [], {}, {a: 1, b: [x]}], empty: "", on: "true", n: 5s}
`, resource.DecodeOptions{})
	var b bytes.Buffer
	require.NoError(t, resource.Encode(&b, resource.FormatYAML, r))
	require.Equal(t, `type: Mesh
name: default
version: 3
revision: 7
labels:
  team: a
logging:
  backends:
  - conf:
      empty: ""
      list:
      - - 1
        - 2
      - []
      - {}
      - a: 1
        b:
        - x
      "n": 5s
      "on": "true"
      path: /tmp/access.log
    format: |
      one
        two
    name: file
    type: file
`, b.String())
}

func TestEncodeRefusals(t *testing.T) {
	zone := acceptOne(t, "type: Zone\nname: a", resource.DecodeOptions{})
	var b bytes.Buffer
	require.EqualError(t, resource.Encode(&b, resource.FormatJSON, zone, zone), "encode: a JSON object holds one resource, not 2")
	require.EqualError(t, resource.Encode(&b, resource.FormatJSON), "encode: a JSON object holds one resource, not 0")
	broken := resource.New(zone.Meta(), zone.Spec(), []byte("["))
	require.EqualError(t, resource.Encode(&b, resource.FormatYAML, zone, broken), "encode Zone/a: its spec is not a JSON object")
	require.Zero(t, b.Len(), "nothing is written unless everything can be")
	require.NoError(t, resource.Encode(&b, resource.FormatJSONList))
	require.Equal(t, "{\n  \"items\": []\n}\n", b.String())
}

// FuzzDecode: never a panic, and what decodes encodes and decodes to the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("type: Zone\nname: a\nenabled: true\n---\nkind: Mesh\nmetadata: {name: m, labels: {a: b}}\nspec: {mtls: {backends: []}}"))
	f.Add([]byte(`{"items":[{"type":"Secret","name":"s","data":"","creationTime":"2020-01-01T00:00:00Z","version":1}]}`))
	f.Add([]byte("type: Dataplane\nname: web-1\nnetworking: {address: 10.0.0.1, inbound: [{port: 80, tags: &t {kuma.io/service: web}}, {port: 0x51, tags: {<<: *t, v: '1'}}]}"))
	f.Add([]byte("type: TrafficLog\nname: l\nsources: [{match: {a: '*'}}]\ndestinations: [{match: {b: c}}]\nconf: {backend: x}"))
	f.Add([]byte("type: Mesh\nname: m\nlogging: {backends: [{name: a, type: b, format: \"a\\n b\\n\", conf: {x: [null, 1e3, {y: |-\n z\n}]}}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, source := range []string{"in.yaml", "in.json"} {
			documents, err := resource.Decode(source, data, resource.DecodeOptions{})
			if err != nil {
				require.NotEmpty(t, err.Error())
				continue
			}
			for _, d := range documents {
				requireRoundTrip(t, d.Resource)
			}
		}
	})
}

// FuzzBuild: whatever a store or a peer hands over, never a panic, and an
// accepted spec is stable.
func FuzzBuild(f *testing.F) {
	f.Add("Mesh", `{"mtls":{"enabledBackend":"a","backends":[{"name":"a","type":"b"}]}}`)
	f.Add("Dataplane", `{"networking":{"address":"::1","gateway":{"tags":{"kuma.io/service":"g"}}}}`)
	f.Fuzz(func(t *testing.T, kind, spec string) {
		mesh := ""
		if d, ok := resource.Describe(resource.Kind(kind)); ok && d.Scope == resource.MeshScoped {
			mesh = "default"
		}
		r, _, err := resource.Build(resource.Meta{Key: key(kind, mesh, "a")}, []byte(spec))
		if err != nil {
			return
		}
		again, _, err := resource.Build(r.Meta(), r.Canonical())
		require.NoError(t, err)
		require.Equal(t, r.Canonical(), again.Canonical())
	})
}

func BenchmarkBuild(b *testing.B) {
	spec := []byte(`{"conf":{"backend":"splunk"},"destinations":[{"match":{"kuma.io/service":"backend"}}],"sources":[{"match":{"cloud":"aws","kuma.io/service":"web","region":"us"}}]}`)
	meta := resource.Meta{Key: key("TrafficLog", "default", "web-to-backend-policy")}
	b.ReportAllocs()
	b.SetBytes(int64(len(spec)))
	for b.Loop() {
		if _, _, err := resource.Build(meta, spec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeYAML(b *testing.B) {
	var text bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&text, "---\ntype: TrafficLog\nmesh: default\nname: log-%d\nsources:\n- match:\n    kuma.io/service: web\ndestinations:\n- match:\n    kuma.io/service: backend\nconf:\n  backend: splunk\n", i)
	}
	b.ReportAllocs()
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if _, err := resource.Decode("in.yaml", text.Bytes(), resource.DecodeOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
