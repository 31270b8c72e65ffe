package resource

import (
	"reflect"
)

// What `to` and `from` items may target (§4.6, §4.7).
var (
	toTargets   = []TargetKind{TargetMesh, TargetService, TargetHTTPRoute}
	fromTargets = []TargetKind{TargetMesh, TargetMeshSubset, TargetService, TargetServiceSubset}
)

// itemParts is an item of `to` or `from` taken apart: its configuration stands
// inline beside the targetRef, or under default.
type itemParts struct {
	ref     *Target
	inline  checker
	under   checker // nil when there is no default
	written bool    // something stands inline
}

// itemOf is a pointer to an item of type I.
type itemOf[I any] interface {
	*I
	parts() itemParts
}

// ItemRef is the head of every item.
type ItemRef struct {
	TargetRef *Target `json:"targetRef" required:"true" doc:"What the item is about."`
}

// partsOf takes an item apart.
func partsOf[C any, P checkerOf[C]](head *ItemRef, inline, under *C) itemParts {
	parts := itemParts{ref: head.TargetRef, inline: P(inline), written: !reflect.ValueOf(inline).Elem().IsZero()}
	if under != nil {
		parts.under = P(under)
	}
	return parts
}

// conf is the configuration, wherever it stands; nil when there is none.
func (p itemParts) conf() (checker, Path) {
	switch {
	case p.under != nil:
		return p.under, "default"
	case p.written:
		return p.inline, Root
	}
	return nil, Root
}

// checkItems reports what is wrong with each item on its own.
func checkItems[I any, P itemOf[I]](at Path, items []I, allowed []TargetKind, r *Report) {
	for i := range items {
		item, parts := at.Index(i), P(&items[i]).parts()
		if parts.ref != nil {
			parts.ref.check(item.Field("targetRef"), allowed, r)
		}
		if parts.under != nil && parts.written {
			r.Errorf(item, "has configuration both beside targetRef and under default; keep one of them")
			continue
		}
		conf, where := parts.conf()
		switch {
		case conf == nil || reflect.ValueOf(conf).Elem().IsZero():
			r.Errorf(item, "configures nothing: add configuration beside targetRef or under default")
		case where == Root:
			conf.check(item, r)
		default:
			conf.check(item.Field(string(where)), r)
		}
	}
}

// normalItems is the engines' view of items.
func normalItems[I any, P itemOf[I]](at Path, items []I) []TargetItem {
	if items == nil {
		return nil
	}
	normal := make([]TargetItem, len(items))
	for i := range items {
		parts := P(&items[i]).parts()
		tree := map[string]any{}
		if conf, _ := parts.conf(); conf != nil {
			tree = treeOf(conf)
		}
		if n, ok := parts.inline.(treeNormalizer); ok {
			n.normalizeTree(tree)
		}
		normal[i] = TargetItem{Target: parts.ref.normalized(), Conf: tree, Path: at.Index(i)}
	}
	return normal
}

// treeNormalizer is implemented by configurations with several accepted
// spellings of one value.
type treeNormalizer interface {
	// normalizeTree replaces accepted spellings in tree by the canonical one.
	normalizeTree(tree map[string]any)
}

// confTypeOf is the type of an item's configuration.
func confTypeOf[I any, P itemOf[I]]() reflect.Type {
	return reflect.TypeOf(P(new(I)).parts().inline).Elem()
}

// section is the part of a policy that holds items, wherever it stands.
type section[I any] interface {
	lists() (to, from []I)
	check(at Path, r *Report)
}

// ToSection holds the items of a kind that configures outbounds.
type ToSection[I any, P itemOf[I]] struct {
	To []I `json:"to,omitzero" doc:"Configuration of outbounds, each item with what it targets; earlier items have priority."`
}

func (s *ToSection[I, P]) lists() (to, from []I) { return s.To, nil }

func (s *ToSection[I, P]) check(at Path, r *Report) {
	checkItems[I, P](at.Field("to"), s.To, toTargets, r)
}

func (*ToSection[I, P]) fieldHint(name string) string {
	if name == "from" {
		return "the kind configures outbounds only: use `to`"
	}
	return ""
}

// FromSection holds the items of a kind that configures inbounds.
type FromSection[I any, P itemOf[I]] struct {
	From []I `json:"from,omitzero" doc:"Configuration of inbounds, each item with the callers it targets; earlier items have priority."`
}

func (s *FromSection[I, P]) lists() (to, from []I) { return nil, s.From }

func (s *FromSection[I, P]) check(at Path, r *Report) {
	checkItems[I, P](at.Field("from"), s.From, fromTargets, r)
}

func (*FromSection[I, P]) fieldHint(name string) string {
	if name == "to" {
		return "the kind configures inbounds only: use `from`"
	}
	return ""
}

// BothSection holds the items of a kind that configures outbounds and inbounds.
type BothSection[I any, P itemOf[I]] struct {
	To   []I `json:"to,omitzero" doc:"Configuration of outbounds, each item with what it targets; earlier items have priority."`
	From []I `json:"from,omitzero" doc:"Configuration of inbounds, each item with the callers it targets; earlier items have priority."`
}

func (s *BothSection[I, P]) lists() (to, from []I) { return s.To, s.From }

func (s *BothSection[I, P]) check(at Path, r *Report) {
	checkItems[I, P](at.Field("to"), s.To, toTargets, r)
	checkItems[I, P](at.Field("from"), s.From, fromTargets, r)
}
