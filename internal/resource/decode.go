package resource

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"meridian/internal/doctree"
)

// How a spec's Go type describes its documents. These conventions are read by
// the decoder below and by Fields:
//
//   - `json:"name,omitzero"` names the field; an embedded struct without a name
//     is inlined; `json:"-"` hides a field. Names are matched exactly.
//   - `doc:"one sentence"` is the text of `meridian explain`.
//   - `enum:"A|B|C"` restricts a string, the elements of a list of strings, or
//     the values of a map of strings.
//   - `min:"1"`, `max:"100"` and `above:"0s"` bound numbers and durations, or
//     those in a list; `notEmpty:"true"` and `format:"path"` are for text
//     (limits.go lists the formats).
//   - `required:"true"` refuses a document without the field;
//     `required:"validated"` says that Validate does, with better words.
//
// Optional scalars whose zero value means something (0s, 0, false, "") are
// pointers. A nil slice or map is absent, an empty one was written as [] or {}.
// A null, and a name with nothing behind it, is an absent field. `any` receives
// a value as encoding/json with UseNumber would produce it and json.RawMessage
// as its canonical JSON; both are opaque: nothing below them is checked.

// nodeDecoder is implemented, on the pointer, by types that read their own
// part of a document. Problems go to dec.errorf, or dec.errorAt below dec.path;
// whatever was stored is discarded with the document then.
type nodeDecoder interface {
	decodeNode(n *doctree.Node, dec *decoder)
}

// fieldHinter is implemented by types that know a better answer to an unknown
// field than the nearest name, such as the kind to use instead. An empty hint
// falls back to the nearest name.
type fieldHinter interface {
	fieldHint(name string) string
}

// decoder fills a typed value from a tree and collects everything wrong.
type decoder struct {
	report Report
	// undecoded are the paths whose absence a later check should not complain
	// about: the author wrote them, but misspelt or with the wrong type.
	undecoded []Path
	// at is the path that steps lead on from, to what is being decoded. Paths are
	// made for messages only: most documents need none.
	at    Path
	steps []step
	first [usualDepth]step // steps are in it, unless there are more
}

// usualDepth is how deep most specs are.
const usualDepth = 8

// step is one step of a path: a field, the key of a map, or an index where name is empty.
type step struct {
	name  string
	index int
	key   bool
}

// path is the path of what is being decoded.
func (d *decoder) path() Path {
	at := d.at
	for _, s := range d.steps {
		switch {
		case s.key:
			at = doctree.MemberPath(at, s.name)
		case s.name != "":
			at = at.Field(s.name)
		default:
			at = at.Index(s.index)
		}
	}
	return at
}

// below decodes n, which is a step away, into v.
func (d *decoder) below(s step, n *doctree.Node, v reflect.Value, field *fieldPlan) {
	d.steps = append(d.steps, s)
	d.value(n, v, field)
	d.steps = d.steps[:len(d.steps)-1]
}

// errorf reports a problem of what is being decoded.
func (d *decoder) errorf(format string, args ...any) { d.errorAt(d.path(), format, args...) }

func (d *decoder) errorAt(at Path, format string, args ...any) {
	if len(d.report.Problems) > maxProblems {
		return // enough is enough, see curb
	}
	d.undecoded = append(d.undecoded, at)
	d.report.Errorf(at, format, args...)
}

// into decodes n into what target points to.
func (d *decoder) into(target any, n *doctree.Node, at Path) {
	d.at, d.steps = at, d.first[:0]
	d.value(n, reflect.ValueOf(target).Elem(), nil)
}

// value decodes n into v. field is the struct field that v belongs to, nil at
// the root.
func (d *decoder) value(n *doctree.Node, v reflect.Value, field *fieldPlan) {
	if v.Kind() != reflect.Pointer && v.CanAddr() {
		if own, ok := v.Addr().Interface().(nodeDecoder); ok {
			problems := len(d.report.Problems)
			own.decodeNode(n, d)
			d.limit(v, field, problems)
			return
		}
	}
	switch v.Type() {
	case rawType:
		v.SetBytes(n.Canonical(nil))
		return
	case anyType:
		if value := n.Plain(); value != nil {
			v.Set(reflect.ValueOf(value))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), field)
	case reflect.Struct:
		d.object(n, v)
	case reflect.Slice:
		d.list(n, v, field)
	case reflect.Map:
		d.table(n, v, field)
	default:
		problems := len(d.report.Problems)
		d.scalar(n, v, field)
		d.limit(v, field, problems)
	}
}

// limit reports a value that does not keep its field's limits, unless it could
// not be decoded: problems is how many there were before.
func (d *decoder) limit(v reflect.Value, field *fieldPlan, problems int) {
	if field == nil || field.limits == nil || len(d.report.Problems) > problems {
		return
	}
	if violation := field.limits.violation(v); violation != "" {
		d.errorf("%s", violation)
	}
}

func (d *decoder) object(n *doctree.Node, v reflect.Value) {
	if n.Shape != doctree.Object {
		d.errorf("expected an object, got %s", n.Describe())
		return
	}
	plan := planOf(v.Type())
	for _, m := range n.Members {
		i, known := plan.byName[m.Name]
		if !known {
			d.unknown(plan, v, m.Name)
			continue
		}
		field := &plan.fields[i]
		if m.Value.Shape == doctree.Null && !field.opaque {
			m.Value.Absent = true
			continue
		}
		d.below(step{name: m.Name}, m.Value, v.FieldByIndex(field.index), field)
	}
	for i := range plan.fields {
		if field := &plan.fields[i]; field.enforced {
			if value := n.Get(field.name); value != nil && !value.Absent {
				continue
			}
			if path := d.path().Field(field.name); !slices.Contains(d.undecoded, path) {
				d.errorAt(path, "is required")
			}
		}
	}
}

func (d *decoder) unknown(plan *structPlan, v reflect.Value, name string) {
	at := d.path()
	path := doctree.MemberPath(at, name)
	if v.CanAddr() {
		if hinter, ok := v.Addr().Interface().(fieldHinter); ok {
			if hint := hinter.fieldHint(name); hint != "" {
				d.errorAt(path, "unknown field `%s`; %s", doctree.Clip(name), hint)
				d.undecoded = append(d.undecoded, at) // meant for another kind: what is missing here is noise
				return
			}
		}
	}
	if len(d.report.Problems) > maxProblems {
		return
	}
	if near, ok := Nearest(name, plan.names); ok {
		d.undecoded = append(d.undecoded, at.Field(near))
		d.errorAt(path, "unknown field `%s`; did you mean `%s`?", doctree.Clip(name), near)
		return
	}
	d.errorAt(path, "unknown field `%s`; %s", doctree.Clip(name), plan.choices())
}

func (d *decoder) list(n *doctree.Node, v reflect.Value, field *fieldPlan) {
	if n.Shape != doctree.List {
		d.errorf("expected a list, got %s%s", n.Describe(), dashHint(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items)))
	for i, item := range n.Items {
		if item.Shape == doctree.Null && v.Type().Elem() != anyType && v.Type().Elem() != rawType {
			d.errorAt(d.path().Index(i), "the item is empty; remove it or give it a value")
			continue
		}
		d.below(step{index: i}, item, v.Index(i), field)
	}
}

// dashHint helps those who forgot the dash of a list's only item.
func dashHint(n *doctree.Node) string {
	if n.Shape == doctree.Object {
		return "; begin each item with a dash (-)"
	}
	return ""
}

func (d *decoder) table(n *doctree.Node, v reflect.Value, field *fieldPlan) {
	if n.Shape != doctree.Object {
		d.errorf("expected an object, got %s", n.Describe())
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Members)))
	element := v.Type().Elem()
	key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(element).Elem() // copied into the map
	for _, m := range n.Members {
		if m.Value.Shape == doctree.Null && element != anyType && element != rawType {
			d.errorAt(doctree.MemberPath(d.path(), m.Name), "has no value; remove it or give it one")
			continue
		}
		key.SetString(m.Name)
		value.SetZero()
		d.below(step{name: m.Name, key: true}, m.Value, value, field)
		v.SetMapIndex(key, value)
	}
	if tags, ok := v.Interface().(Tags); ok {
		v.Set(reflect.ValueOf(shared.of(tags)))
	}
}

func (d *decoder) scalar(n *doctree.Node, v reflect.Value, field *fieldPlan) {
	switch v.Kind() {
	case reflect.String:
		d.text(n, v, field)
	case reflect.Bool:
		if n.Shape != doctree.Bool {
			d.errorf("expected true or false, got %s", n.Describe())
			return
		}
		v.SetBool(n.Text == "true")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		value, err := strconv.ParseInt(n.Text, 10, 64)
		if !d.whole(n, err) {
			return
		}
		if v.OverflowInt(value) {
			d.errorf("the number %s is out of range", n.Text)
			return
		}
		v.SetInt(value)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		value, err := strconv.ParseUint(n.Text, 10, 64)
		if n.Shape == doctree.Number && strings.HasPrefix(n.Text, "-") {
			d.errorf("the number cannot be negative, got %s", doctree.Clip(n.Text))
			return
		}
		if !d.whole(n, err) {
			return
		}
		if v.OverflowUint(value) {
			d.errorf("the number %s is out of range", n.Text)
			return
		}
		v.SetUint(value)
	case reflect.Float32, reflect.Float64:
		value, err := strconv.ParseFloat(n.Text, 64)
		if n.Shape != doctree.Number {
			d.errorf("expected a number, got %s", n.Describe())
			return
		}
		if err != nil {
			d.errorf("the number %s is out of range", doctree.Clip(n.Text))
			return
		}
		v.SetFloat(value)
	default:
		panic(fmt.Sprintf("resource: no decoding of %s at %s", v.Type(), d.path())) // a bug in a spec's type, found by the table's test
	}
}

// whole reports whether n was a whole number in range, err being the result of
// parsing it.
func (d *decoder) whole(n *doctree.Node, err error) bool {
	switch {
	case n.Shape != doctree.Number:
		d.errorf("expected a number, got %s", n.Describe())
	case strings.Contains(n.Text, "e-"), strings.Contains(n.Text, ".") && !strings.Contains(n.Text, "e"):
		d.errorf("expected a whole number, got %s", doctree.Clip(n.Text))
	case err != nil:
		d.errorf("the number %s is out of range", doctree.Clip(n.Text))
	default:
		return true
	}
	return false
}

func (d *decoder) text(n *doctree.Node, v reflect.Value, field *fieldPlan) {
	if n.Shape != doctree.Text {
		hint := ""
		if n.Shape == doctree.Number || n.Shape == doctree.Bool {
			hint = "; put it in quotes"
		}
		d.errorf("expected a string, got %s%s", n.Describe(), hint)
		return
	}
	if field != nil && len(field.enum) > 0 && !slices.Contains(field.enum, n.Text) {
		hint := didYouMean(n.Text, field.enum)
		if hint == "" {
			hint = "; use one of " + strings.Join(field.enum, ", ")
		}
		d.errorf("unknown value %q%s", doctree.Clip(n.Text), hint)
		return
	}
	v.SetString(n.Text)
}

var (
	rawType         = reflect.TypeFor[json.RawMessage]()
	anyType         = reflect.TypeFor[any]()
	nodeDecoderType = reflect.TypeFor[nodeDecoder]()
)

// fieldPlan is what the tags of one struct field say.
type fieldPlan struct {
	name     string
	index    []int
	typ      reflect.Type
	doc      string
	enum     []string
	required bool // as explained to users
	enforced bool // by the decoder
	opaque   bool // any or json.RawMessage: a null is a value
	limits   *limits
}

// structPlan is what the tags of a struct say.
type structPlan struct {
	fields []fieldPlan
	byName map[string]int
	names  []string
}

// choices is the end of a message about an unknown field.
func (p *structPlan) choices() string {
	const most = 12
	switch {
	case len(p.names) == 0:
		return "no fields are known here"
	case len(p.names) > most:
		return "known here are " + strings.Join(p.names[:most], ", ") + ", …"
	default:
		return "known here: " + strings.Join(p.names, ", ")
	}
}

// plans remembers the result of makePlan, a pure function of the type.
var plans sync.Map // reflect.Type → *structPlan

func planOf(t reflect.Type) *structPlan {
	if plan, ok := plans.Load(t); ok {
		return plan.(*structPlan)
	}
	plan := &structPlan{byName: map[string]int{}}
	plan.add(t, nil)
	stored, _ := plans.LoadOrStore(t, plan)
	return stored.(*structPlan)
}

func (p *structPlan) add(t reflect.Type, index []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := append(append([]int(nil), index...), i)
		// A field whose type is a type parameter cannot be embedded: inline says it is.
		if name == "" && f.Type.Kind() == reflect.Struct && (f.Anonymous || option == "inline") {
			p.add(f.Type, at)
			continue
		}
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		plan := fieldPlan{
			name: name, index: at, typ: f.Type, doc: f.Tag.Get("doc"),
			required: f.Tag.Get("required") != "",
			enforced: f.Tag.Get("required") == "true",
			opaque:   f.Type == anyType || f.Type == rawType,
			limits:   limitsOf(f.Tag),
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			plan.enum = strings.Split(enum, "|")
		}
		p.byName[name] = len(p.fields)
		p.fields = append(p.fields, plan)
		p.names = append(p.names, name)
	}
}
