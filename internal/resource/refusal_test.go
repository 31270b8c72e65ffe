package resource_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// TestRefusals is the list of what a document can get wrong, with every word
// that its author reads.
func TestRefusals(t *testing.T) {
	zone := "type: Zone\nname: east\n"
	tests := []struct {
		rule, text string
		opts       resource.DecodeOptions
		want       []string
	}{
		{rule: "§1.2 unknown kind", text: "type: Zones\nname: a", want: []string{
			"in.yaml: document 1 (Zones/a), line 1: type: unknown kind \"Zones\"; did you mean \"Zone\"?",
		}},
		{rule: "§1.2 unknown kind, nothing near", text: "kind: ClusterRoleBinding\nmetadata: {name: a}", want: []string{
			"in.yaml: document 1 (ClusterRoleBinding/a), line 1: kind: unknown kind \"ClusterRoleBinding\"; `meridian explain` lists the kinds",
		}},
		{rule: "§1.2 no kind", text: "name: a", want: []string{
			"in.yaml: document 1, line 1: type: is required: the kind of the resource, such as TrafficPermission",
		}},
		{rule: "§1.2 no name", text: "type: Zone", want: []string{
			"in.yaml: document 1 (Zone/), line 1: name: is required",
		}},
		{rule: "§1.2 no metadata", text: "kind: Zone", want: []string{
			"in.yaml: document 1 (Zone/), line 1: metadata.name: is required",
		}},
		{rule: "§1.2 unknown field", text: zone + "enabeld: true", want: []string{
			"in.yaml: document 1 (Zone/east), line 3: enabeld: unknown field `enabeld`; did you mean `enabled`?",
		}},
		{rule: "§1.2 unknown field, nothing near", text: zone + "colour: red", want: []string{
			"in.yaml: document 1 (Zone/east), line 3: colour: unknown field `colour`; known here: enabled",
		}},
		{rule: "§1.2 unknown field deep inside", text: "type: Mesh\nname: m\nmtls:\n  backends:\n  - name: a\n    type: builtin\n    dpCrt: {}", want: []string{
			"in.yaml: document 1 (Mesh/m), line 7: mtls.backends[0].dpCrt: unknown field `dpCrt`; did you mean `dpCert`?",
		}},
		{rule: "§1.2 unknown field in metadata", text: "kind: Zone\nmetadata: {name: a, lables: {}}", want: []string{
			"in.yaml: document 1 (Zone/a), line 2: metadata.lables: unknown field `lables`; did you mean `labels`?",
		}},
		{rule: "§1.2 a spec field at the top of the Kubernetes form", text: "kind: Zone\nmetadata: {name: a}\nenabled: true", want: []string{
			"in.yaml: document 1 (Zone/a), line 3: enabled: unknown field `enabled`; it goes under `spec`",
		}},
		{
			rule: "§1.2 required fields at the top of the Kubernetes form are said to be misplaced, not missing too",
			text: "kind: TrafficPermission\nmetadata: {name: a}\nsources: [{match: {a: b}}]\nspec: {destinations: [{match: {a: b}}]}", want: []string{
				"in.yaml: document 1 (TrafficPermission/default/a), line 3: sources: unknown field `sources`; it goes under `spec`",
			},
		},
		{
			rule: "§1.2 a tag of the wrong type is one mistake",
			text: "type: TrafficPermission\nname: a\nsources: [{match: {a: true}}]\ndestinations: [{match: {a: b}}]", want: []string{
				"in.yaml: document 1 (TrafficPermission/default/a), line 3: sources[0].match.a: expected a string, got true; put it in quotes",
			},
		},
		{rule: "§1.2 wrong type", text: zone + "enabled: 'yes'", want: []string{
			`in.yaml: document 1 (Zone/east), line 3: enabled: expected true or false, got the string "yes"`,
		}},
		{rule: "§1.2 wrong type: a number for text", text: "type: Secret\nname: s\ndata: 12", want: []string{
			"in.yaml: document 1 (Secret/default/s), line 3: data: expected a string, got the number 12; put it in quotes",
		}},
		{rule: "§1.2 wrong type: an object for a list", text: "type: Mesh\nname: m\nmtls: {backends: {name: a}}", want: []string{
			"in.yaml: document 1 (Mesh/m), line 3: mtls.backends: expected a list, got an object; begin each item with a dash (-)",
		}},
		{rule: "§1.2 wrong type: spec", text: "type: Zone\nname: a\nspec: []", want: []string{
			"in.yaml: document 1 (Zone/a), line 3: spec: expected an object, got a list",
		}},
		{rule: "§1.2 a duplicate key", text: zone + "enabled: true\nenabled: false", want: []string{
			"in.yaml: document 1 (Zone/east), line 4: enabled: written twice, first in line 3; keep one of them",
		}},
		{rule: "§1.2 a bad duration", text: "type: Mesh\nname: m\nmtls: {backends: [{name: a, type: b, dpCert: {requestTimeout: 5 seconds}}]}", want: []string{
			`in.yaml: document 1 (Mesh/m), line 3: mtls.backends[0].dpCert.requestTimeout: expected a duration such as 5s, 100ms or 1h30m, got "5 seconds"`,
		}},
		{rule: "§1.2 a duration without unit", text: "type: Mesh\nname: m\nmtls: {backends: [{name: a, type: b, dpCert: {requestTimeout: 15}}]}", want: []string{
			"in.yaml: document 1 (Mesh/m), line 3: mtls.backends[0].dpCert.requestTimeout: expected a duration with its unit, such as 15s, got the number 15",
		}},
		{rule: "§1.2 a negative duration", text: "type: Mesh\nname: m\nmtls: {backends: [{name: a, type: b, dpCert: {requestTimeout: -1s}}]}", want: []string{
			`in.yaml: document 1 (Mesh/m), line 3: mtls.backends[0].dpCert.requestTimeout: a duration cannot be negative, got "-1s"`,
		}},
		{rule: "§1.2 a percentage out of range", text: "type: Mesh\nname: m\ntracing: {backends: [{name: a, type: b, sampling: 101}]}", want: []string{
			"in.yaml: document 1 (Mesh/m), line 3: tracing.backends[0].sampling: a percentage lies between 0 and 100, got 101",
		}},
		{rule: "§1.2 an unknown value", text: "type: Mesh\nname: m\nmatching: {sourceDestination: Kuma2021, targetRef: Random}", want: []string{
			"in.yaml: document 1 (Mesh/m), line 3: matching.sourceDestination: unknown value \"Kuma2021\"; did you mean `Kuma2020`?",
			"in.yaml: document 1 (Mesh/m), line 3: matching.targetRef: unknown value \"Random\"; use one of FirstWins, LastWins",
		}},
		{rule: "§1.2 a bad time", text: zone + "creationTime: yesterday", want: []string{
			`in.yaml: document 1 (Zone/east), line 3: creationTime: expected a time such as 2026-01-31T20:00:00Z, got the string "yesterday"`,
		}},
		{rule: "§1.2 a bad version", text: zone + "version: -1", want: []string{
			"in.yaml: document 1 (Zone/east), line 3: version: expected a whole number, got the number -1",
		}},
		{rule: "§1.2 both forms in one", text: "type: Zone\nname: a\nmetadata: {name: a}", want: []string{
			"in.yaml: document 1, line 1: type: the document mixes two forms; write either `type` and `name`, or `apiVersion`, `kind` and `metadata`",
		}},
		{rule: "§1.2 spec fields in both places", text: zone + "enabled: true\nspec: {}", want: []string{
			"in.yaml: document 1 (Zone/east), line 3: enabled: stands beside `spec`; the fields of a Zone go either all under `spec` or all at the top level",
		}},
		{rule: "§1.2 an unknown field beside spec", text: zone + "sepc: {}\nspec: {}", want: []string{
			"in.yaml: document 1 (Zone/east), line 3: sepc: unknown field `sepc`; did you mean `spec`?",
		}},
		{rule: "§1.2 the meshes of field and label differ", text: "kind: Secret\nmesh: a\nmetadata: {name: s, labels: {kuma.io/mesh: b}}\nspec: {data: ''}", want: []string{
			`in.yaml: document 1 (Secret/s), line 2: mesh: says "a" and the label kuma.io/mesh says "b"; keep one of them`,
		}},
		{rule: "§1.2 a mesh in an annotation", text: "kind: Secret\nmetadata: {name: s, annotations: {kuma.io/mesh: b}}\nspec: {data: ''}", want: []string{
			"in.yaml: document 1 (Secret/default/s), line 2: metadata.annotations[\"kuma.io/mesh\"]: the mesh is named by `mesh` at the top level or by the label kuma.io/mesh, not by an annotation",
		}},
		{rule: "§1.2 not the mesh asked for", text: "type: Secret\nmesh: a\nname: s\ndata: ''", opts: resource.DecodeOptions{Mesh: "b", MeshExplicit: true}, want: []string{
			`in.yaml: document 1 (Secret/a/s), line 2: mesh: the document is for mesh "a", the command for mesh "b"; leave out one of them`,
		}},
		{rule: "§1.1 a mesh on a global-scoped kind", text: zone + "mesh: default", want: []string{
			"in.yaml: document 1 (Zone/east), line 3: mesh: a Zone does not live in a mesh; leave the mesh out",
		}},
		{rule: "§1.1 a name with a capital", text: "type: Zone\nname: East_1", want: []string{
			`in.yaml: document 1 (Zone/East_1), line 2: name: "East_1" cannot hold 'E': a name is made of lower-case letters, digits, - and .; "east-1" would do`,
		}},
		{rule: "§1.1 a name with a dash at its end", text: "type: Zone\nname: a.-b", want: []string{
			`in.yaml: document 1 (Zone/a.-b), line 2: name: "a.-b" must begin and end with a letter or digit, before and after every dot too; "a.b" would do`,
		}},
		{rule: "§1.1 a name that cannot be repaired", text: "type: Zone\nname: '*'", want: []string{
			`in.yaml: document 1 (Zone/*), line 2: name: "*" cannot hold '*': a name is made of lower-case letters, digits, - and .`,
		}},
		{rule: "§1.1 a name of 300 characters", text: "type: Zone\nname: " + strings.Repeat("a", 300), want: []string{
			"in.yaml: document 1 (Zone/" + strings.Repeat("a", 60) + "…), line 2: name: \"" + strings.Repeat("a", 60) + "…\" is 300 characters long; a name has at most 253",
		}},
		{rule: "§1.1 a mesh that cannot be", text: "type: Secret\nmesh: De_mo\nname: s\ndata: ''", want: []string{
			`in.yaml: document 1 (Secret/De_mo/s), line 2: mesh: "De_mo" cannot hold 'D': a name is made of lower-case letters, digits, - and .; "de-mo" would do`,
		}},
		{rule: "§1.2 two documents with one identity", text: zone + "---\nkind: Zone\nmetadata: {name: east}", want: []string{
			"in.yaml: document 2 (Zone/east), line 4: Zone/east is already defined in in.yaml, document 1, line 1; keep one of them",
		}},
		{rule: "§1.2 not a document", text: "hello, world", want: []string{
			"in.yaml: document 1, line 1: expected an object with `type` and `name`, got the string \"hello, world\"",
		}},
		{rule: "§1.2 not YAML", text: "type: Zone\nname: [", want: []string{
			"in.yaml, line 2: not valid YAML: did not find expected node content",
		}},
		{rule: "§1.2 binary", text: "\x7fELF\x02\x01\x01\x00\x00", want: []string{
			"in.yaml: not valid YAML: control characters are not allowed",
		}},
		{rule: "§1.2 a number that YAML versions read differently", text: zone + "enabled: 010", want: []string{
			"in.yaml, line 3: 010 is ambiguous: put it in quotes if it is text, write it without the leading zero if it is a number",
		}},
		{rule: "§1.2 no number", text: zone + "enabled: .nan", want: []string{
			"in.yaml, line 3: .nan is no number that can be used here; put it in quotes if it is text",
		}},
		{rule: "§1.2 a tag", text: zone + "enabled: !!binary aGk=", want: []string{
			"in.yaml, line 3: the tag !!binary is not supported; write the value as plain text",
		}},
		{rule: "§1.2 nested too deeply", text: zone + "x: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), want: []string{
			"in.yaml, line 3: nested more than 108 levels deep",
		}},
		{rule: "§1.2 an alias inside its own anchor", text: zone + "x: &a [*a]", want: []string{
			"in.yaml, line 3: nested more than 108 levels deep",
		}},
		{rule: "§1.2 an alias bomb", text: aliasBomb(), want: []string{
			"in.yaml, line 6: the aliases expand to more than 100000 values",
		}},
		{rule: "§1.2 everything of every document at once", text: "type: Zone\nname: A\nenabeld: 1\n---\ntype: Mesh\nname: m\nmatching: {unset: Never}\nrouting: {zoneEgress: 1}", want: []string{
			`in.yaml: document 1 (Zone/A), line 2: name: "A" cannot hold 'A': a name is made of lower-case letters, digits, - and .; "a" would do`,
			"in.yaml: document 1 (Zone/A), line 3: enabeld: unknown field `enabeld`; did you mean `enabled`?",
			`in.yaml: document 2 (Mesh/m), line 7: matching.unset: unknown value "Never"; use one of Allowed, Forbidden`,
			"in.yaml: document 2 (Mesh/m), line 8: routing.zoneEgress: expected true or false, got the number 1",
		}},
	}
	for _, test := range tests {
		t.Run(test.rule, func(t *testing.T) {
			documents, err := resource.Decode("in.yaml", []byte(test.text), test.opts)
			require.Empty(t, documents, "all or nothing")
			var failed resource.DocumentErrors
			require.ErrorAs(t, err, &failed)
			require.Equal(t, test.want, strings.Split(err.Error(), "\n"))
		})
	}
}

// aliasBomb is the classic nine lines that stand for a billion words.
func aliasBomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		previous := string(rune('0' + i - 1))
		b.WriteString("a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.TrimSuffix(strings.Repeat("*a"+previous+", ", 9), ", ") + "]\n")
	}
	return b.String()
}

// §2.1: a written selector needs a tag.
func TestSelectorWithoutTags(t *testing.T) {
	_, err := resource.Decode("in.yaml", []byte("type: TrafficPermission\nname: p\nsources:\n- match: {}\ndestinations:\n- match: {kuma.io/service: '*'}"), resource.DecodeOptions{})
	require.ErrorContains(t, err, "in.yaml: document 1 (TrafficPermission/default/p), line 4: sources[0].match: ")
}

func TestJSONRefusals(t *testing.T) {
	tests := []struct{ text, want string }{
		{`{"type": "Zone"`, `in.json, line 1: not valid JSON: expected a comma or }, found the end of the text`},
		{"{\"type\":\n\"Zone\" \"name\": 1}", `in.json, line 2: not valid JSON: expected a comma or }, found '"'`},
		{`{type: Zone}`, `in.json, line 1: not valid JSON: expected a name in double quotes, found 't'`},
		{`{"type" "Zone"}`, `in.json, line 1: not valid JSON: expected a colon, found '"'`},
		{`{"type": Zone}`, `in.json, line 1: not valid JSON: expected a value, found 'Z'`},
		{`{"version": 01}`, `in.json, line 1: not valid JSON: "01" is not a number`},
		{`{"version": 1e999}`, `in.json, line 1: not valid JSON: the number 1e999 is out of range`},
		{`{"name": "a`, `in.json, line 1: not valid JSON: a string is not closed`},
		{`{"name": "\x"}`, `in.json, line 1: not valid JSON: a string has an escape that JSON does not know: "\x"`},
		{"{\"name\": \"a\nb\"}", `in.json, line 1: not valid JSON: a string holds the control character '\n'; write it as an escape`},
		{"{\"name\": \"\xff\"}", `in.json, line 1: not valid JSON: a string is not valid UTF-8`},
		{`{"type":"Zone","name":"a","name":"b"}`, `in.json: document 1 (Zone/a), line 1: name: written twice, first in line 1; keep one of them`},
		{`12`, "in.json: document 1, line 1: expected an object with `type` and `name`, got the number 12"},
		{`{"items":[{"type":"Zone","name":"a"},null]}`, "in.json: document 2, line 1: expected an object with `type` and `name`, got nothing"},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			_, err := resource.Decode("in.json", []byte(test.text), resource.DecodeOptions{})
			require.EqualError(t, err, test.want)
		})
	}
}

func TestLoadRefusals(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.MkdirAll(path("empty"), 0o755))
	require.NoError(t, os.WriteFile(path("comment.yaml"), []byte("# nothing here\n"), 0o600))
	require.NoError(t, os.WriteFile(path("one.yaml"), []byte("type: Zone\nname: a"), 0o600))
	require.NoError(t, os.WriteFile(path("two.yaml"), []byte("\ntype: Zone\nname: a"), 0o600))
	huge, err := os.Create(path("huge.yaml"))
	require.NoError(t, err)
	require.NoError(t, huge.Truncate(100<<20)) // sparse: uses no space
	require.NoError(t, huge.Close())

	large, err := os.Create(path("large.yaml"))
	require.NoError(t, err)
	require.NoError(t, large.Truncate(resource.MaxSourceBytes+1))
	require.NoError(t, large.Close())

	tests := []struct {
		name  string
		paths []string
		want  string
	}{
		{"a missing file", []string{path("gone.yaml")}, path("gone.yaml") + ": no such file or directory"},
		{"a directory without policies", []string{path("empty")}, path("empty") + ": the directory holds no .yaml, .yml or .json file"},
		{"a file of comments", []string{path("comment.yaml")}, path("comment.yaml") + ": holds no resources"},
		{"empty standard input", []string{"-"}, "stdin: holds no resources"},
		{"100 MB", []string{path("huge.yaml")}, path("huge.yaml") + ": a file of documents can have 32 MiB, this one has 100 MiB; split it, or, where lines of `---` separate its documents, apply it with --in-batches"},
		{"a byte too many", []string{path("large.yaml")}, path("large.yaml") + ": a file of documents can have 32 MiB, this one has 33 MiB; split it, or, where lines of `---` separate its documents, apply it with --in-batches"},
		{
			"one identity in two files",
			[]string{path("one.yaml"), path("two.yaml")},
			path("two.yaml") + ": document 1 (Zone/a), line 2: Zone/a is already defined in " + path("one.yaml") + ", document 1, line 1; keep one of them",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			documents, err := resource.Load(test.paths, strings.NewReader(""), resource.DecodeOptions{})
			require.EqualError(t, err, test.want)
			require.Empty(t, documents)
		})
	}
}

func TestLoadRefusesEndlessInput(t *testing.T) {
	_, err := resource.Load([]string{"-"}, endless{}, resource.DecodeOptions{})
	require.EqualError(t, err, "stdin: a file of documents can have 32 MiB, this one has more than that; split it, or, where lines of `---` separate its documents, apply it with --in-batches")
}

// endless is a reader that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '#'
	}
	return len(p), nil
}

func TestBuildRefusals(t *testing.T) {
	tests := []struct {
		name string
		key  resource.Key
		spec string
		want string
	}{
		{"unknown kind", key("Zon", "", "a"), `{}`, `Zon/a: type: unknown kind "Zon"; did you mean "Zone"?`},
		{"a spelling is not a kind", key("zone", "", "a"), `{}`, `zone/a: type: unknown kind "zone"; did you mean "Zone"?`},
		{"mesh missing", key("Secret", "", "a"), `{"data":""}`, `Secret/a: mesh: a name is required`},
		{"mesh too many", key("Zone", "default", "a"), `{}`, "Zone/default/a: mesh: a Zone does not live in a mesh; leave the mesh out"},
		{"name", key("Zone", "", "a/b"), `{}`, `Zone/a/b: name: "a/b" cannot hold '/': a name is made of lower-case letters, digits, - and .; "a-b" would do`},
		{"no JSON", key("Zone", "", "a"), `{`, `Zone/a: the spec is not valid JSON: expected a name in double quotes, found the end of the text`},
		{"nothing", key("Zone", "", "a"), ``, `Zone/a: expected one JSON object as the spec, got 0 values`},
		{"not an object", key("Zone", "", "a"), `[]`, `Zone/a: expected an object, got a list`},
		{
			"too large", key("Secret", "default", "a"), `{"data":"` + strings.Repeat("AAAA", 300_000) + `"}`,
			`Secret/default/a: the content takes 1200011 bytes; at most 1048576 are allowed`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, _, err := resource.Build(resource.Meta{Key: test.key}, []byte(test.spec))
			require.Nil(t, r)
			var failed *resource.DocumentError
			require.ErrorAs(t, err, &failed)
			require.EqualError(t, err, test.want)
		})
	}
}

func TestBuildRefusesTheMeshAsALabel(t *testing.T) {
	_, _, err := resource.Build(resource.Meta{Key: key("Zone", "", "a"), Labels: map[string]string{resource.LabelMesh: "x"}}, []byte(`{}`))
	require.EqualError(t, err, `Zone/a: labels["kuma.io/mesh"]: the mesh is part of the identity; leave the label out`)
}

func TestAThousandProblemsAreCutShort(t *testing.T) {
	var b strings.Builder
	b.WriteString("type: Zone\nname: a\n")
	for i := range 5000 {
		b.WriteString("x" + strings.Repeat("y", i%50) + string(rune('a'+i%26)) + ": 1\n")
	}
	_, err := resource.Decode("in.yaml", []byte(b.String()), resource.DecodeOptions{})
	require.Less(t, len(strings.Split(err.Error(), "\n")), 210)
	require.ErrorContains(t, err, "there are more problems; fix these first")
}
