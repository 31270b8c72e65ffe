package resource

import "reflect"

// What `to` and `from` items may target (§4.6, §4.7).
var (
	toTargets   = []TargetKind{TargetMesh, TargetService, TargetHTTPRoute}
	fromTargets = []TargetKind{TargetMesh, TargetMeshSubset, TargetService, TargetServiceSubset}
)

// Item is one element of `to` or `from`: what it is about, and its configuration.
type Item[C any] struct {
	TargetRef *Target `json:"targetRef" required:"true" doc:"What the item is about."`
	Beside    C       `json:",inline"`
	Default   *C      `json:"default,omitzero" doc:"Another place for the configuration beside targetRef."`
}

// written reports whether configuration stands beside the targetRef.
func (i *Item[C]) written() bool { return !reflect.ValueOf(&i.Beside).Elem().IsZero() }

// conf is the configuration and the path of the item or field that holds it; nil
// when there is none.
func (i *Item[C]) conf(at Path) (*C, Path) {
	switch {
	case i.Default != nil:
		return i.Default, at.Field("default")
	case i.written():
		return &i.Beside, at
	}
	return nil, at
}

// checkItems reports what is wrong with each item on its own.
func checkItems[C any, P checkerOf[C]](at Path, items []Item[C], allowed []TargetKind, r *Report) {
	for i := range items {
		item, at := &items[i], at.Index(i)
		if item.TargetRef != nil {
			item.TargetRef.check(at.Field("targetRef"), allowed, r)
		}
		if item.Default != nil && item.written() {
			r.Errorf(at, "has configuration both beside targetRef and under default; keep one of them")
			continue
		}
		conf, where := item.conf(at)
		if conf == nil || reflect.ValueOf(conf).Elem().IsZero() {
			r.Errorf(at, "configures nothing: add configuration beside targetRef or under default")
			continue
		}
		P(conf).check(where, r)
	}
}

// normalItems is the engines' view of items.
func normalItems[C any](at Path, items []Item[C]) []TargetItem {
	if items == nil {
		return nil
	}
	normal := make([]TargetItem, len(items))
	for i := range items {
		tree := map[string]any{}
		if conf, _ := items[i].conf(Root); conf != nil {
			tree = treeOf(conf)
		}
		if n, ok := any(&items[i].Beside).(treeNormalizer); ok {
			n.normalizeTree(tree)
		}
		normal[i] = TargetItem{Target: items[i].TargetRef.normalized(), Conf: tree, Path: at.Index(i)}
	}
	return normal
}

// treeNormalizer is implemented by configurations with several accepted
// spellings of one value.
type treeNormalizer interface {
	// normalizeTree replaces accepted spellings in tree by the canonical one.
	normalizeTree(tree map[string]any)
}

// listsOf is a pointer to S, which holds the items of a policy, wherever they stand.
type listsOf[S, C any] interface {
	*S
	lists() (to, from []Item[C])
	// names are the names of the lists, for messages.
	names() string
	fieldHinter
}

// ToList holds the items of a kind that configures outbounds.
type ToList[C any] struct {
	To []Item[C] `json:"to,omitzero" doc:"Configuration of outbounds, each item with what it targets; earlier items have priority."`
}

func (l *ToList[C]) lists() (to, from []Item[C]) { return l.To, nil }

func (*ToList[C]) names() string { return "`to`" }

func (*ToList[C]) fieldHint(name string) string {
	if name == "from" {
		return "the kind configures outbounds only: use `to`"
	}
	return ""
}

// FromList holds the items of a kind that configures inbounds.
type FromList[C any] struct {
	From []Item[C] `json:"from,omitzero" doc:"Configuration of inbounds, each item with the callers it targets; earlier items have priority."`
}

func (l *FromList[C]) lists() (to, from []Item[C]) { return nil, l.From }

func (*FromList[C]) names() string { return "`from`" }

func (*FromList[C]) fieldHint(name string) string {
	if name == "to" {
		return "the kind configures inbounds only: use `from`"
	}
	return ""
}

// BothLists holds the items of a kind that configures outbounds and inbounds.
type BothLists[C any] struct {
	To   []Item[C] `json:"to,omitzero" doc:"Configuration of outbounds, each item with what it targets; earlier items have priority."`
	From []Item[C] `json:"from,omitzero" doc:"Configuration of inbounds, each item with the callers it targets; earlier items have priority."`
}

func (l *BothLists[C]) lists() (to, from []Item[C]) { return l.To, l.From }

func (*BothLists[C]) names() string { return "`to` or `from`" }

func (*BothLists[C]) fieldHint(string) string { return "" }
