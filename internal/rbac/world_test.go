package rbac

import (
	"bytes"
	"encoding/json"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

// world is a view of documents.
type world []*resource.Resource

func (w world) List(kind resource.Kind, _ resource.MeshName) iter.Seq[*resource.Resource] {
	of := slices.DeleteFunc(slices.Clone(w), func(r *resource.Resource) bool { return r.Key().Kind != kind })
	slices.SortFunc(of, func(a, b *resource.Resource) int { return a.Key().Compare(b.Key()) })
	return slices.Values(of)
}

func decode(t testing.TB, text string) world {
	t.Helper()
	documents, err := resource.Decode("test.yaml", []byte(text), resource.DecodeOptions{})
	require.NoError(t, err)
	var w world
	for _, d := range documents {
		w = append(w, d.Resource)
	}
	return w
}

// failer is a test or a property.
type failer interface {
	require.TestingT
	Helper()
}

func build(t failer, kind, mesh, name string, spec any) *resource.Resource {
	t.Helper()
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	key := resource.Key{Kind: resource.Kind(kind), Mesh: resource.MeshName(mesh), Name: name}
	r, _, err := resource.Build(resource.Meta{Key: key}, text)
	require.NoError(t, err, "%s %s", key, text)
	return r
}

func bindingFor(t testing.TB, name string, subject resource.Subject, roles ...string) *resource.Resource {
	return build(t, "AccessRoleBinding", "", name, resource.AccessRoleBinding{Subjects: []resource.Subject{subject}, Roles: roles})
}

// exampleRoles is the world of testdata/roles.yaml, each role bound to the user
// of its name; a user a+b has both.
func exampleRoles(t testing.TB) world {
	t.Helper()
	text, err := os.ReadFile("testdata/roles.yaml")
	require.NoError(t, err)
	w := decode(t, string(text))
	for _, r := range slices.Clone(w) {
		name := r.Key().Name
		w = append(w, bindingFor(t, name, resource.Subject{Type: resource.SubjectUser, Name: name}, name))
	}
	return append(w, bindingFor(t, "both", resource.Subject{Type: resource.SubjectUser, Name: "creator+walk-through"}, "creator", "walk-through"))
}

func object(t testing.TB, text string) Object { return ObjectOf(document(t, text)) }

// document reads a resource as decisions.txt writes it.
func document(t testing.TB, text string) *resource.Resource {
	t.Helper()
	words := strings.Fields(text)
	mesh, name, ok := strings.Cut(words[1], "/")
	require.True(t, ok, text)
	spec := map[string]any{}
	for _, word := range words[2:] {
		field, value, _ := strings.Cut(word, "=")
		writeField(t, words[0], spec, field, value)
	}
	switch words[0] {
	case "AccessRole":
		spec["rules"] = []any{map[string]any{"access": []string{"CREATE"}}}
	case "AccessRoleBinding":
		spec["subjects"], spec["roles"] = []any{map[string]any{"type": "User", "name": "u"}}, []string{"r"}
	case "GlobalSecret":
		spec["data"] = "AA=="
	case "AuthPolicy":
		spec["rules"] = map[string]any{"authentication": map[string]any{"a": map[string]any{}}}
	case "RateLimitPolicy":
		spec["limits"] = map[string]any{"a": map[string]any{}}
	case "RateLimit":
		spec["conf"] = map[string]any{"http": map[string]any{"requests": 1, "interval": "1s"}}
	}
	return build(t, words[0], mesh, name, spec)
}

func writeField(t testing.TB, kind string, spec map[string]any, field, value string) {
	t.Helper()
	sections := map[string]string{"s": "sources", "d": "destinations", "x": "selectors"}
	block, list, nested := strings.Cut(field, ".")
	switch {
	case sections[field] != "":
		var entries []any
		for _, entry := range strings.Split(value, ";") {
			entries = append(entries, map[string]any{"match": tagsOf(entry)})
		}
		spec[sections[field]] = entries
	case field == "conf":
		spec[field] = map[string]any{}
	case field == "t":
		spec["targetRef"] = targetRef(kind, value)
	case nested:
		spec[block] = map[string]any{list: itemsOf(kind, value)}
	case value == "":
		spec[field] = []any{}
	default:
		spec[field] = itemsOf(kind, value)
	}
}

func tagsOf(entry string) map[string]string {
	tags := map[string]string{}
	for _, tag := range strings.Split(entry, ",") {
		name, value, ok := strings.Cut(tag, "=")
		if !ok {
			name, value = resource.ServiceTag, tag
		}
		tags[name] = value
	}
	return tags
}

func targetRef(kind, text string) map[string]any {
	target, rest, _ := strings.Cut(text, ":")
	ref := map[string]any{"kind": target}
	if kind == "AuthPolicy" || kind == "RateLimitPolicy" {
		name, section, ok := strings.Cut(rest, "/")
		ref["name"] = name
		if ok {
			ref["sectionName"] = section
		}
		return ref
	}
	if target != "MeshSubset" {
		name, tags, _ := strings.Cut(rest, ",")
		rest = tags
		if name != "" {
			ref["name"] = name
		}
	}
	if rest != "" {
		ref["tags"] = tagsOf(rest)
	}
	return ref
}

func itemsOf(kind, text string) []any {
	var items []any
	for _, item := range strings.Split(text, ";") {
		conf := map[string]any{"targetRef": targetRef(kind, item)}
		switch kind {
		case "MeshTrafficPermission":
			conf["action"] = "ALLOW"
		case "MeshLogging":
			conf["backends"] = []any{}
		default:
			conf["connectTimeout"] = "1s"
		}
		items = append(items, conf)
	}
	return items
}

func tokenOf(words []string) Token {
	token := Token{}
	for i, word := range words {
		if i == 0 {
			token.Mesh = resource.MeshName(word)
			continue
		}
		if token.Tags == nil {
			token.Tags = map[string][]string{}
		}
		name, value, _ := strings.Cut(word, "=")
		token.Tags[name] = append(token.Tags[name], value)
	}
	return token
}

// requestOf reads a question as decisions.txt writes it.
func requestOf(t testing.TB, user, access, what string) Request {
	t.Helper()
	r := Request{Subject: Subject{Name: user, Groups: []string{"mesh-system:authenticated"}}, Access: resource.Access(access)}
	if rest, ok := strings.CutPrefix(what, "token"); ok {
		r.Token = tokenOf(strings.Fields(rest))
		return r
	}
	old, next, both := strings.Cut(what, " => ")
	switch {
	case both:
		r.Old, r.New = object(t, old), object(t, next)
	case access == "DELETE":
		r.Old = object(t, what)
	default:
		r.New = object(t, what)
	}
	return r
}

// everyForm is an object as it is read from every form that it can be written
// in (§1.2); just itself when it has no content.
func everyForm(t testing.TB, o Object) []Object {
	t.Helper()
	if o.spec() == nil {
		return []Object{o}
	}
	r := build(t, string(o.Key.Kind), string(o.Key.Mesh), o.Key.Name, o.spec())
	nested, err := json.Marshal(map[string]any{"type": o.Key.Kind, "name": o.Key.Name, "mesh": o.Key.Mesh, "spec": o.spec()})
	require.NoError(t, err)
	if o.Key.Mesh == "" {
		nested = bytes.Replace(nested, []byte(`"mesh":"",`), nil, 1)
	}
	forms := []Object{o, ObjectOf(decode(t, string(nested))[0])}
	for _, f := range []resource.Format{resource.FormatYAML, resource.FormatKubernetesYAML, resource.FormatJSON} {
		var b bytes.Buffer
		require.NoError(t, resource.Encode(&b, f, r))
		forms = append(forms, ObjectOf(decode(t, b.String())[0]))
	}
	return forms
}
