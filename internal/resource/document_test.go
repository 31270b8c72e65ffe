package resource_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// acceptOne decodes a source that holds exactly one document.
func acceptOne(t *testing.T, text string, opts resource.DecodeOptions) *resource.Resource {
	t.Helper()
	documents, err := resource.Decode("in.yaml", []byte(text), opts)
	require.NoError(t, err)
	require.Len(t, documents, 1)
	return documents[0].Resource
}

func key(kind, mesh, name string) resource.Key {
	return resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}
}

const dataplaneSpec = `networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: web}}]}`

// §1.1: a resource is (type, mesh, name); the namespace is a label;
// times and versions in a document are kept.
func TestIdentityAndEnvelope(t *testing.T) {
	at := func(s string) time.Time {
		parsed, err := time.Parse(time.RFC3339Nano, s)
		require.NoError(t, err)
		return parsed
	}
	tests := []struct {
		rule, text string
		want       resource.Meta
	}{
		{
			"§1.1 mesh-scoped", "type: Dataplane\nmesh: demo\nname: web-1\n" + dataplaneSpec,
			resource.Meta{Key: key("Dataplane", "demo", "web-1")},
		},
		{
			"§1.1 global-scoped has no mesh", "type: Zone\nname: east",
			resource.Meta{Key: key("Zone", "", "east")},
		},
		{
			"§1.1 an empty mesh is none", "type: Zone\nname: east\nmesh: ''",
			resource.Meta{Key: key("Zone", "", "east")},
		},
		{
			"§1.1 a namespace is part of the name", "kind: Zone\nmetadata: {name: east, namespace: kong}",
			resource.Meta{Key: key("Zone", "", "east.kong"), Labels: map[string]string{resource.LabelNamespace: "kong"}},
		},
		{
			"§1.1 the namespace default is not", "kind: Zone\nmetadata: {name: east, namespace: default}",
			resource.Meta{Key: key("Zone", "", "east"), Labels: map[string]string{resource.LabelNamespace: "default"}},
		},
		{
			"§1.1 a universal document has the stored name", "type: Zone\nname: east.kong\nlabels: {k8s.kuma.io/namespace: kong}",
			resource.Meta{Key: key("Zone", "", "east.kong"), Labels: map[string]string{resource.LabelNamespace: "kong"}},
		},
		{
			"§1.1 names are subdomains", "type: Zone\nname: east.eu-1.example",
			resource.Meta{Key: key("Zone", "", "east.eu-1.example")},
		},
		{
			"§1.1 times, version and revision in the universal form",
			"type: Zone\nname: east\ncreationTime: 2020-01-01T20:00:00.0000Z\nmodificationTime: '2021-01-01T20:00:00.5+01:00'\nversion: 3\nrevision: 18446744073709551615",
			resource.Meta{
				Key: key("Zone", "", "east"), CreationTime: at("2020-01-01T20:00:00Z"),
				ModificationTime: at("2021-01-01T19:00:00.5Z"), Version: 3, Revision: 18446744073709551615,
			},
		},
		{
			"§1.1 times at the top level of the Kubernetes form",
			"kind: Zone\nmetadata: {name: east}\nmodificationTime: 2021-01-01T20:00:00Z",
			resource.Meta{Key: key("Zone", "", "east"), ModificationTime: at("2021-01-01T20:00:00Z")},
		},
		{
			"§1.1 metadata.creationTimestamp",
			"kind: Zone\nmetadata: {name: east, creationTimestamp: 2021-01-01T20:00:00Z}",
			resource.Meta{Key: key("Zone", "", "east"), CreationTime: at("2021-01-01T20:00:00Z")},
		},
		{
			"§1.1 a null creationTimestamp is none", "kind: Zone\nmetadata: {name: east, creationTimestamp: null}",
			resource.Meta{Key: key("Zone", "", "east")},
		},
		{
			"§1.2 labels in the universal form", "type: Zone\nname: east\nlabels: {team: a}",
			resource.Meta{Key: key("Zone", "", "east"), Labels: map[string]string{"team": "a"}},
		},
		{
			"§1.2 fields that Kubernetes adds are not read",
			"apiVersion: kuma.io/v1alpha1\nkind: Zone\nmetadata: {name: east, uid: x, generation: 2, annotations: {a: b}, managedFields: [{}]}\nstatus: {conditions: []}",
			resource.Meta{Key: key("Zone", "", "east")},
		},
	}
	for _, test := range tests {
		t.Run(test.rule, func(t *testing.T) {
			require.Equal(t, test.want, acceptOne(t, test.text, resource.DecodeOptions{}).Meta())
		})
	}
}

// §1.2: one decoder for both forms; the content is the same.
func TestForms(t *testing.T) {
	forms := map[string]string{
		"universal, spec at the top level": "type: Zone\nname: east\nenabled: false",
		"universal, spec under spec":       "type: Zone\nname: east\nspec:\n  enabled: false",
		"Kubernetes":                       "apiVersion: kuma.io/v1alpha1\nkind: Zone\nmetadata:\n  name: east\nspec:\n  enabled: false",
		"Kubernetes without apiVersion":    "kind: Zone\nmetadata:\n  name: east\nspec:\n  enabled: false",
		"JSON":                             `{"type":"Zone","name":"east","enabled":false}`,
		"JSON list":                        `{"items":[{"type":"Zone","name":"east","enabled":false}]}`,
		"JSON array":                       `[{"type":"Zone","name":"east","enabled":false}]`,
		"Kubernetes list":                  "apiVersion: v1\nkind: List\nitems:\n- kind: Zone\n  metadata: {name: east}\n  spec: {enabled: false}",
		"YAML anchors and merge keys":      "type: Zone\nname: &n east\n<<: {enabled: false, name: *n}",
		"a byte order mark":                "\ufefftype: Zone\nname: east\nenabled: false",
		"flow style YAML":                  "{type: Zone, name: east, enabled: false,}",
		"documents without content":        "---\n# nothing\n---\ntype: Zone\nname: east\nenabled: false\n---\n",
	}
	for name, text := range forms {
		t.Run(name, func(t *testing.T) {
			r := acceptOne(t, text, resource.DecodeOptions{})
			require.Equal(t, key("Zone", "", "east"), r.Key())
			require.Equal(t, `{"enabled":false}`, string(r.Canonical()))
			require.False(t, r.Spec().(*resource.Zone).IsEnabled())
		})
	}
}

// §1.2: where the mesh of a document comes from.
func TestMeshOfADocument(t *testing.T) {
	universal := func(mesh string) string { return mesh + "\ntype: Secret\nname: s\ndata: ''" }
	tests := []struct {
		rule, text string
		opts       resource.DecodeOptions
		want       resource.MeshName
	}{
		{"absent means default", universal(""), resource.DecodeOptions{}, "default"},
		{"absent is the command's", universal(""), resource.DecodeOptions{Mesh: "demo"}, "demo"},
		{"the document's own", universal("mesh: own"), resource.DecodeOptions{Mesh: "demo"}, "own"},
		{"the document's own, the same asked for", universal("mesh: demo"), resource.DecodeOptions{Mesh: "demo", MeshExplicit: true}, "demo"},
		{"Kubernetes, top level", "kind: Secret\nmesh: own\nmetadata: {name: s}\nspec: {data: ''}", resource.DecodeOptions{}, "own"},
		{"Kubernetes, label", "kind: Secret\nmetadata: {name: s, labels: {kuma.io/mesh: own}}\nspec: {data: ''}", resource.DecodeOptions{}, "own"},
		{"Kubernetes, both and the same", "kind: Secret\nmesh: own\nmetadata: {name: s, labels: {kuma.io/mesh: own}}\nspec: {data: ''}", resource.DecodeOptions{}, "own"},
		{"Kubernetes, absent", "kind: Secret\nmetadata: {name: s}\nspec: {data: ''}", resource.DecodeOptions{}, "default"},
	}
	for _, test := range tests {
		t.Run("§1.2 "+test.rule, func(t *testing.T) {
			r := acceptOne(t, test.text, test.opts)
			require.Equal(t, test.want, r.Key().Mesh)
			require.Empty(t, r.Meta().Labels, "the mesh is identity, not a label")
		})
	}
}

// §1.2: what was written stays as written.
func TestCanonicalSpec(t *testing.T) {
	tests := []struct{ rule, spec, want string }{
		{"members are sorted", `mtls: {backends: [], enabledBackend: ""}`, `{"mtls":{"backends":[],"enabledBackend":""}}`},
		{"[] is a value", `logging: {backends: []}`, `{"logging":{"backends":[]}}`},
		{"a field without a value is absent", "mtls:\nlogging: {defaultBackend: }", `{"logging":{}}`},
		{
			"durations stay as written", `mtls: {backends: [{name: a, type: b, dpCert: {rotation: {expiration: 0s}, requestTimeout: 90s}}]}`,
			`{"mtls":{"backends":[{"dpCert":{"requestTimeout":"90s","rotation":{"expiration":"0s"}},"name":"a","type":"b"}]}}`,
		},
		{
			"numbers keep every digit", `tracing: {backends: [{name: a, type: b, conf: {x: 12345678901234567890.10, y: 1e3, z: 0x10, o: 0o17, n: -0}}]}`,
			`{"tracing":{"backends":[{"conf":{"n":0,"o":15,"x":12345678901234567890.1,"y":1000,"z":16},"name":"a","type":"b"}]}}`,
		},
		{
			"yes is text, as in YAML 1.2", `tracing: {backends: [{name: yes, type: off, conf: {a: no, b: null, c: 2020-01-01, d: 1_000, e: 12:30}}]}`,
			`{"tracing":{"backends":[{"conf":{"a":"no","b":null,"c":"2020-01-01","d":"1_000","e":"12:30"},"name":"yes","type":"off"}]}}`,
		},
	}
	for _, test := range tests {
		t.Run("§1.2 "+test.rule, func(t *testing.T) {
			r := acceptOne(t, "type: Mesh\nname: m\n"+test.spec, resource.DecodeOptions{})
			require.Equal(t, test.want, string(r.Canonical()))
		})
	}
}

// §1.2: every seed-like document decodes and survives every format.
func TestDocumentsRoundTrip(t *testing.T) {
	documents, err := resource.Load([]string{"testdata/forms"}, nil, resource.DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, documents, 16)
	for _, d := range documents {
		requireRoundTrip(t, d.Resource)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("b/two.yml", "type: Zone\nname: two\n---\ntype: Zone\nname: three")
	write("a.json", `{"type":"Zone","name":"one"} {"type":"Zone","name":"four"}`)
	write("readme.md", "not a document")
	write(".hidden/x.yaml", "type: Nonsense")
	write("b/.y.yaml", "type: Nonsense")
	require.NoError(t, os.Symlink(filepath.Join(dir, "a.json"), filepath.Join(t.TempDir(), "link.yaml")))

	documents, err := resource.Load([]string{dir, "-"}, strings.NewReader("type: Zone\nname: five"), resource.DecodeOptions{})
	require.NoError(t, err)
	var got []string
	for _, d := range documents {
		got = append(got, strings.TrimPrefix(d.Source, dir+"/")+" "+d.Resource.Key().Name)
	}
	require.Equal(t, []string{"a.json one", "a.json four", "b/two.yml two", "b/two.yml three", "stdin five"}, got)
}

func TestWarningsDoNotRefuse(t *testing.T) {
	documents, err := resource.Decode("in.yaml", []byte("type: Zone\nname: a"), resource.DecodeOptions{})
	require.NoError(t, err)
	require.Empty(t, documents[0].Problems)
	require.Equal(t, 1, documents[0].Index)
	require.Equal(t, 1, documents[0].Line)
}

// Build is what the store does with every record; it accepts what Decode made.
func TestBuildFromCanonical(t *testing.T) {
	documents, err := resource.Load([]string{"testdata/forms"}, nil, resource.DecodeOptions{})
	require.NoError(t, err)
	for _, d := range documents {
		again, warnings, err := resource.Build(d.Resource.Meta(), d.Resource.Canonical())
		require.NoError(t, err)
		require.Empty(t, warnings)
		require.Equal(t, d.Resource.Canonical(), again.Canonical())
		require.Equal(t, d.Resource.Spec(), again.Spec())
		require.Equal(t, d.Resource.Hash(), again.Hash())
	}
}

func TestHash(t *testing.T) {
	base := acceptOne(t, "type: Zone\nname: a\nlabels: {x: y}", resource.DecodeOptions{})
	same := acceptOne(t, `{"name":"a","type":"Zone","version":9,"creationTime":"2020-01-01T00:00:00Z","labels":{"x":"y"}}`, resource.DecodeOptions{})
	require.Equal(t, base.Hash(), same.Hash(), "what the server assigns does not count")
	for _, text := range []string{
		"type: Zone\nname: b\nlabels: {x: y}",
		"type: Zone\nname: a",
		"type: Zone\nname: a\nlabels: {xy: ''}",
		"type: Zone\nname: a\nlabels: {x: y}\nenabled: true",
	} {
		require.NotEqual(t, base.Hash(), acceptOne(t, text, resource.DecodeOptions{}).Hash(), text)
	}
	meta := base.Meta()
	meta.Name = "b"
	require.NotEqual(t, base.Hash(), base.WithMeta(meta).Hash())
}
