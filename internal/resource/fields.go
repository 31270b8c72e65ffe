package resource

import (
	"reflect"
	"strings"
)

// FieldDoc describes one field of a kind's spec, for `meridian explain`.
type FieldDoc struct {
	// Path is the field's place in the spec, with [] for the items of a list and
	// .* for the values of a map.
	Path string
	// Type is what to write there: string, number, boolean, duration, object, a
	// list or map of one of them.
	Type     string
	Required bool
	// Enum lists the accepted values; nil when any is.
	Enum []string
	Doc  string
}

// Fields lists the fields of a kind's spec, each before those inside it. It
// returns nil for a kind that does not exist.
func Fields(kind Kind) []FieldDoc {
	d, ok := Describe(kind)
	if !ok {
		return nil
	}
	docs := appendFields(nil, specType(d), "", nil)
	if d.Class == TargetRef {
		for i := range docs {
			if target, ok := strings.CutSuffix(docs[i].Path, "targetRef.kind"); ok {
				docs[i].Enum = spellings(targetsIn(target))
			}
		}
	}
	return docs
}

// ConfFields lists the fields of what a targetRef kind configures on an attachment,
// whatever form it is written in (§4.1). It returns nil for other kinds.
func ConfFields(kind Kind) []FieldDoc {
	var docs []FieldDoc
	all := Fields(kind)
	for _, prefix := range []string{"to[].default.", "from[].default.", "conf."} {
		if prefix == "conf." && len(docs) > 0 {
			break // it holds the items
		}
		for _, f := range all {
			if path, ok := strings.CutPrefix(f.Path, prefix); ok {
				f.Path = path
				docs = append(docs, f)
			}
		}
	}
	return docs
}

// specType is the struct type of a kind's spec.
func specType(d *Descriptor) reflect.Type { return reflect.TypeOf(d.New()).Elem() }

func appendFields(docs []FieldDoc, t reflect.Type, prefix string, outers []reflect.Type) []FieldDoc {
	if t.Kind() != reflect.Struct {
		return docs
	}
	for _, outer := range outers {
		if outer == t { // a type inside itself: described once
			return docs
		}
	}
	outers = append(outers, t)
	for _, f := range planOf(t).fields {
		path := prefix + f.name
		name, inner, suffix := typeName(f.typ)
		docs = append(docs, FieldDoc{Path: path, Type: name, Required: f.required, Enum: f.enum, Doc: f.doc})
		if inner != nil {
			docs = appendFields(docs, inner, path+suffix+".", outers)
		}
	}
	return docs
}

// targetsIn are the kinds that the targetRef in an object may have: in an item of
// to or from, or in the spec (§4.2, §4.6, §4.7).
func targetsIn(object string) []TargetKind {
	switch {
	case strings.HasSuffix(object, "to[]."):
		return toTargets
	case strings.HasSuffix(object, "from[]."):
		return fromTargets
	}
	return TargetKinds()
}

// spellings lists the accepted spellings of kinds of targets.
func spellings(kinds []TargetKind) []string {
	var names, later []string
	for _, k := range kinds {
		names = append(names, string(k))
		if k != k.laterSpelling() {
			later = append(later, string(k.laterSpelling()))
		}
	}
	return append(names, later...)
}

// fieldTyper is implemented by types that decode themselves and know better
// than their Go type how to name what they accept.
type fieldTyper interface {
	fieldType() string
}

// typeName names a type for people and returns the struct inside it, if any,
// with the path from the field to that struct.
func typeName(t reflect.Type) (name string, inner reflect.Type, suffix string) {
	if own, ok := reflect.New(t).Interface().(fieldTyper); ok {
		return own.fieldType(), nil, ""
	}
	switch t {
	case rawType, anyType:
		return "any", nil, ""
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.Struct:
		return "object", t, ""
	case reflect.Slice:
		name, inner, suffix = typeName(t.Elem())
		return "list of " + plural(name), inner, "[]" + suffix
	case reflect.Map:
		name, inner, suffix = typeName(t.Elem())
		return "map of " + plural(name), inner, ".*" + suffix
	case reflect.String:
		return "string", nil, ""
	case reflect.Bool:
		return "boolean", nil, ""
	default:
		return "number", nil, ""
	}
}

func plural(name string) string {
	if name == "any" || strings.HasPrefix(name, "list of") || strings.HasPrefix(name, "map of") {
		return name
	}
	return name + "s"
}

func (Duration) fieldType() string   { return "duration" }
func (Percentage) fieldType() string { return "percentage" }
