package resource

import (
	"reflect"
	"slices"
)

// Block is a block of defaults or overrides with content of type T.
type Block[T any] struct {
	BlockHead
	Content T `json:",inline"`
}

func (b *Block[T]) fieldHint(name string) string {
	if h, ok := any(&b.Content).(fieldHinter); ok {
		return h.fieldHint(name)
	}
	return ""
}

// Blocks are the two blocks of a policy; nil when absent.
type Blocks[T any] struct {
	DefaultsBlock  *Block[T] `json:"defaults,omitzero" doc:"Configuration that more specific policies can replace; instead of the bare form."`
	OverridesBlock *Block[T] `json:"overrides,omitzero" doc:"Configuration that replaces what more specific policies say; instead of the bare form."`
}

// each yields the blocks that are there, with the fields that hold them.
func (b *Blocks[T]) each(yield func(string, *Block[T]) bool) {
	if b.DefaultsBlock != nil && !yield("defaults", b.DefaultsBlock) {
		return
	}
	if b.OverridesBlock != nil {
		yield("overrides", b.OverridesBlock)
	}
}

// formsOf says which forms a policy uses.
type formsOf struct {
	bare, defaults, overrides, unset bool
	bareName                         string
	// mayBeEmpty: a policy that configures nothing is accepted (§1.2).
	mayBeEmpty bool
}

// checkForms refuses policies that say nothing and those that mix a bare
// configuration with blocks (§4.10, §5.2).
func checkForms(at Path, f formsOf, r *Report) {
	switch {
	case f.bare && (f.defaults || f.overrides):
		block := "defaults"
		if !f.defaults {
			block = "overrides"
		}
		r.Errorf(at.Field(block), "cannot stand beside bare %s; move them into `defaults`, or leave the block out", f.bareName)
	case !f.bare && !f.defaults && !f.overrides && !f.unset && f.mayBeEmpty:
		r.Findf(CodeNoEffect, at, "configures nothing: write %s, `defaults`, `overrides` or `unset`", f.bareName)
	case !f.bare && !f.defaults && !f.overrides && !f.unset:
		r.Errorf(at, "configures nothing: write %s, `defaults`, `overrides` or `unset`", f.bareName)
	}
}

// ItemPolicy is the shape of the kinds whose configuration, of type C, stands in
// items, which S holds.
type ItemPolicy[C any, PC checkerOf[C], S any, PS listsOf[S, C]] struct {
	PolicyTarget
	Items S  `json:",inline"`
	Conf  *S `json:"conf,omitzero" doc:"Another place for the items."`
	Blocks[S]
	PolicyUnset
}

type (
	// ToPolicy is the shape of the kinds that configure outbounds.
	ToPolicy[C any, PC checkerOf[C]] = ItemPolicy[C, PC, ToList[C], *ToList[C]]
	// FromPolicy is the shape of the kinds that configure inbounds.
	FromPolicy[C any, PC checkerOf[C]] = ItemPolicy[C, PC, FromList[C], *FromList[C]]
	// BothPolicy is the shape of the kinds that configure outbounds and inbounds.
	BothPolicy[C any, PC checkerOf[C]] = ItemPolicy[C, PC, BothLists[C], *BothLists[C]]
)

func (p *ItemPolicy[C, PC, S, PS]) fieldHint(name string) string {
	return PS(&p.Items).fieldHint(name)
}

// places yields every place that holds items, with its path.
func (p *ItemPolicy[C, PC, S, PS]) places(yield func(Path, PS) bool) {
	if !yield(Root, &p.Items) || p.Conf != nil && !yield("conf", p.Conf) {
		return
	}
	for name, block := range p.each {
		if !yield(Path(name), &block.Content) {
			return
		}
	}
}

// bare returns the items of the bare form and the path that holds their lists.
func (p *ItemPolicy[C, PC, S, PS]) bare() (to, from []Item[C], at Path) {
	if p.Conf != nil {
		to, from = PS(p.Conf).lists()
		return to, from, "conf"
	}
	to, from = PS(&p.Items).lists()
	return to, from, Root
}

// Validate implements Spec (§4.1, §4.10).
func (p *ItemPolicy[C, PC, S, PS]) Validate(at Path, r *Report) {
	p.PolicyTarget.check(at, r)
	names := PS(&p.Items).names()
	to, from := p.checkLists(at, &p.Items, r)
	bare := to != nil || from != nil
	if p.Conf != nil {
		confTo, confFrom := p.checkLists(at.Field("conf"), p.Conf, r)
		if bare {
			r.Errorf(at.Field("conf"), "the items stand both here and directly in the spec; keep them in one place")
		}
		bare = bare || confTo != nil || confFrom != nil
		from = slices.Concat(from, confFrom)
	}
	for name, block := range p.each {
		block.BlockHead.check(at.Field(name), r)
		blockTo, blockFrom := p.checkLists(at.Field(name), &block.Content, r)
		if len(blockTo) == 0 && len(blockFrom) == 0 {
			r.Errorf(at.Field(name), "is empty: write %s, or leave the block out", names)
		}
		from = slices.Concat(from, blockFrom)
	}
	checkForms(at, formsOf{
		mayBeEmpty: true, bare: bare, bareName: names, defaults: p.DefaultsBlock != nil, overrides: p.OverridesBlock != nil, unset: p.Unset != nil,
	}, r)
	if kind := p.TopTarget().Kind; len(from) > 0 && (kind == TargetHTTPRoute || kind == TargetMeshGatewayRoute) {
		r.Findf(CodeNoEffect, at.Field("targetRef").Field("kind"), "a policy on one %s configures outbounds; its from items never take effect", kind)
	}
	p.PolicyUnset.check(at, reflect.TypeFor[C](), r)
}

// checkLists reports what is wrong with the items of one place, and returns them.
func (p *ItemPolicy[C, PC, S, PS]) checkLists(at Path, lists PS, r *Report) (to, from []Item[C]) {
	to, from = lists.lists()
	checkItems[C, PC](at.Field("to"), to, toTargets, r)
	checkItems[C, PC](at.Field("from"), from, fromTargets, r)
	return to, from
}

// ToItems implements TargetRefSpec.
func (p *ItemPolicy[C, PC, S, PS]) ToItems() []TargetItem {
	to, _, at := p.bare()
	return normalItems(at.Field("to"), to)
}

// FromItems implements TargetRefSpec.
func (p *ItemPolicy[C, PC, S, PS]) FromItems() []TargetItem {
	_, from, at := p.bare()
	return normalItems(at.Field("from"), from)
}

// ItemTargets implements TargetRefSpec.
func (p *ItemPolicy[C, PC, S, PS]) ItemTargets() (to, from []Target) {
	add := func(targets []Target, items []Item[C]) []Target {
		for i := range items {
			targets = append(targets, items[i].TargetRef.normalized())
		}
		return targets
	}
	for _, place := range p.places {
		toItems, fromItems := place.lists()
		to, from = add(to, toItems), add(from, fromItems)
	}
	return to, from
}

// OwnConf implements TargetRefSpec: there is none.
func (p *ItemPolicy[C, PC, S, PS]) OwnConf() map[string]any { return nil }

// Defaults implements TargetRefSpec.
func (p *ItemPolicy[C, PC, S, PS]) Defaults() *TargetBlock {
	return p.block(p.DefaultsBlock, "defaults")
}

// Overrides implements TargetRefSpec.
func (p *ItemPolicy[C, PC, S, PS]) Overrides() *TargetBlock {
	return p.block(p.OverridesBlock, "overrides")
}

func (p *ItemPolicy[C, PC, S, PS]) block(block *Block[S], at Path) *TargetBlock {
	if block == nil {
		return nil
	}
	to, from := PS(&block.Content).lists()
	out := block.targetBlock(at)
	out.To, out.From = normalItems(at.Field("to"), to), normalItems(at.Field("from"), from)
	return out
}

// OwnPolicy is the shape of the kinds that configure a dataplane as a whole,
// without items (§4.8).
type OwnPolicy[C any, PC checkerOf[C]] struct {
	PolicyTarget
	Conf    *C `json:"conf,omitzero" doc:"What the policy configures; fields merge by priority, lists replace."`
	Default *C `json:"default,omitzero" doc:"Another place for conf."`
	Blocks[C]
	PolicyUnset
}

// Validate implements Spec.
func (p *OwnPolicy[C, PC]) Validate(at Path, r *Report) {
	p.PolicyTarget.check(at, r)
	checkConf[C, PC](at.Field("conf"), p.Conf, r)
	if p.Default != nil {
		PC(p.Default).check(at.Field("default"), r)
		if p.Conf != nil {
			r.Errorf(at.Field("default"), "is another place for `conf`; keep one of them")
		}
	}
	for name, block := range p.each {
		block.BlockHead.check(at.Field(name), r)
		if reflect.ValueOf(&block.Content).Elem().IsZero() {
			r.Errorf(at.Field(name), "is empty: write what `conf` would hold, or leave the block out")
		}
		PC(&block.Content).check(at.Field(name), r)
	}
	checkForms(at, formsOf{
		mayBeEmpty: true, bare: p.Conf != nil || p.Default != nil, bareName: "`conf`",
		defaults: p.DefaultsBlock != nil, overrides: p.OverridesBlock != nil, unset: p.Unset != nil,
	}, r)
	p.PolicyUnset.check(at, reflect.TypeFor[C](), r)
}

// ToItems implements TargetRefSpec: the kind has none.
func (p *OwnPolicy[C, PC]) ToItems() []TargetItem { return nil }

// FromItems implements TargetRefSpec: the kind has none.
func (p *OwnPolicy[C, PC]) FromItems() []TargetItem { return nil }

// ItemTargets implements TargetRefSpec: there are no items.
func (p *OwnPolicy[C, PC]) ItemTargets() (to, from []Target) { return nil, nil }

// OwnConf implements TargetRefSpec.
func (p *OwnPolicy[C, PC]) OwnConf() map[string]any {
	if p.Default != nil {
		return confTree(p.Default)
	}
	return confTree(p.Conf)
}

// Defaults implements TargetRefSpec.
func (p *OwnPolicy[C, PC]) Defaults() *TargetBlock { return ownBlock(p.DefaultsBlock, "defaults") }

// Overrides implements TargetRefSpec.
func (p *OwnPolicy[C, PC]) Overrides() *TargetBlock { return ownBlock(p.OverridesBlock, "overrides") }

func ownBlock[C any](block *Block[C], at Path) *TargetBlock {
	if block == nil {
		return nil
	}
	out := block.targetBlock(at)
	out.Own = treeOf(&block.Content)
	return out
}

func (*OwnPolicy[C, PC]) fieldHint(name string) string {
	if name == "to" || name == "from" {
		return "the kind configures whole dataplanes: write its fields under `conf`"
	}
	return ""
}
