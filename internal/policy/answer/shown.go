package answer

import (
	"reflect"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Names has the stored names of a document that have a namespace, with the form in
// which people are shown them: "cart.shop" is shown as "shop/cart" (§1.1). A document
// has stored names, and its page those that are shown.
type Names map[string]string

// maxNames bounds how many words of one document are looked up as names.
const maxNames = 4096

// Shown returns the names of an encoded document that are those of namespaced
// resources in a view: of the mesh, or of any where it is empty, that may be read; where may is
// nil all may.
func Shown(view policy.View, mesh resource.MeshName, document []byte, may func(resource.Key) bool) Names {
	meshes := []resource.MeshName{mesh}
	if mesh == "" {
		meshes = nil
		for m := range view.List(resource.KindMesh, "") {
			meshes = append(meshes, resource.MeshName(m.Key().Name))
		}
	}
	var names Names
	seen := map[string]bool{}
	for word := range words(string(document)) {
		if len(seen) >= maxNames {
			break
		}
		if !strings.Contains(word, ".") || seen[word] {
			continue
		}
		seen[word] = true
		if shown, ok := shownIn(view, meshes, word, may); ok {
			if names == nil {
				names = Names{}
			}
			names[word] = shown
		}
	}
	return names
}

func shownIn(view policy.View, meshes []resource.MeshName, name string, may func(resource.Key) bool) (string, bool) {
	for _, d := range resource.Kinds() {
		in := meshes
		if d.Scope != resource.MeshScoped {
			in = []resource.MeshName{""}
		}
		for _, mesh := range in {
			key := resource.Key{Kind: d.Kind, Mesh: mesh, Name: name}
			if r, ok := view.Get(key); ok && (may == nil || may(key)) {
				if meta := r.Meta(); meta.Shown() != name {
					return meta.Shown(), true
				}
			}
		}
	}
	return "", false
}

// words yields the words of a text that could be names: what stands between other
// characters than those of names and "/", without a full stop at its end.
func words(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			end := strings.IndexFunc(text, func(c rune) bool { return !ofWord(c) })
			if end < 0 {
				end = len(text)
			}
			if word := strings.TrimRight(text[:end], "."); word != "" && !yield(word) {
				return
			}
			text = text[min(end+1, len(text)):]
		}
	}
}

func ofWord(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_' || c == '/'
}

// in replaces the names in a text.
func (n Names) in(text string) string {
	if shown, ok := n[text]; ok {
		return shown
	}
	var b strings.Builder
	for len(text) > 0 {
		end := strings.IndexFunc(text, func(c rune) bool { return !ofWord(c) })
		if end < 0 {
			end = len(text)
		}
		word := strings.TrimRight(text[:end], ".")
		if shown, ok := n[word]; ok {
			b.WriteString(shown)
		} else {
			b.WriteString(word)
		}
		next := min(end+1, len(text))
		b.WriteString(text[len(word):next])
		text = text[next:]
	}
	return b.String()
}

// verbatim are the members of documents that are no names of resources and no prose.
var verbatim = []string{"service", "services", "outbounds", "expression", "zone", "instance"}

// Apply replaces the names in a document, which is a pointer to one of this package's
// types: in its strings, and not in values, tags and what is a type of its own.
func (n Names) Apply(document any) {
	if len(n) > 0 {
		n.apply(reflect.ValueOf(document))
	}
}

func (n Names) apply(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n.apply(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			member, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if v.Type().Field(i).IsExported() && !slices.Contains(verbatim, member) {
				n.apply(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			n.apply(v.Index(i))
		}
	case reflect.Map:
		if v.Type().PkgPath() != "" { // tags, and the values of a policy
			return
		}
		for _, key := range v.MapKeys() {
			changed := reflect.New(v.Type().Elem()).Elem()
			changed.Set(v.MapIndex(key))
			n.apply(changed)
			v.SetMapIndex(key, changed)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() {
			v.SetString(n.in(v.String()))
		}
	default: // numbers, truth values, and values of any type
	}
}
