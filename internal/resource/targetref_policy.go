package resource

import "reflect"

// noOwnConf is embedded by the kinds whose configuration stands in items.
type noOwnConf struct{}

// OwnConf implements TargetRefSpec: there is none.
func (noOwnConf) OwnConf() map[string]any { return nil }

// itemBlock is a block of defaults or overrides that holds items.
type itemBlock[I any] struct {
	head *BlockHead
	body section[I]
}

// itemView is a policy with items, whatever its directions: where each of its
// forms stands. It lets the three shapes below share one implementation.
type itemView[I any, P itemOf[I]] struct {
	target    *PolicyTarget
	unset     *PolicyUnset
	direct    section[I] // directly in the spec
	conf      section[I] // under conf; nil when absent
	defaults  *itemBlock[I]
	overrides *itemBlock[I]
	lists     string // names of the kind's lists, for messages
}

// bare returns the items of the bare form and the path that holds their lists.
func (v itemView[I, P]) bare() (to, from []I, at Path) {
	if v.conf != nil {
		to, from = v.conf.lists()
		return to, from, "conf"
	}
	to, from = v.direct.lists()
	return to, from, Root
}

func (v itemView[I, P]) toItems() []TargetItem {
	to, _, at := v.bare()
	return normalItems[I, P](at.Field("to"), to)
}

func (v itemView[I, P]) fromItems() []TargetItem {
	_, from, at := v.bare()
	return normalItems[I, P](at.Field("from"), from)
}

func (v itemView[I, P]) itemTargets() (to, from []Target) {
	add := func(s section[I]) {
		toItems, fromItems := s.lists()
		to, from = appendTargets[I, P](to, toItems), appendTargets[I, P](from, fromItems)
	}
	add(v.direct)
	if v.conf != nil {
		add(v.conf)
	}
	for _, b := range v.blocks {
		add(b.body)
	}
	return to, from
}

func appendTargets[I any, P itemOf[I]](targets []Target, items []I) []Target {
	for i := range items {
		targets = append(targets, P(&items[i]).parts().ref.normalized())
	}
	return targets
}

func (b *itemBlock[I]) normal(at Path, items func(Path, []I) []TargetItem) *TargetBlock {
	if b == nil {
		return nil
	}
	to, from := b.body.lists()
	return &TargetBlock{
		Strategy: b.head.strategy(), When: b.head.when(), OnError: b.head.onError(), Path: at,
		To: items(at.Field("to"), to), From: items(at.Field("from"), from),
	}
}

func (v itemView[I, P]) defaultsBlock() *TargetBlock {
	return v.defaults.normal("defaults", normalItems[I, P])
}

func (v itemView[I, P]) overridesBlock() *TargetBlock {
	return v.overrides.normal("overrides", normalItems[I, P])
}

// validate implements Spec for every policy with items (§4.1, §4.10).
func (v itemView[I, P]) validate(at Path, r *Report) {
	v.target.check(at, r)
	to, from := v.direct.lists()
	direct := to != nil || from != nil
	v.direct.check(at, r)
	if v.conf != nil {
		v.conf.check(at.Field("conf"), r)
		if direct {
			r.Errorf(at.Field("conf"), "the items stand both here and directly in the spec; keep them in one place")
		}
	}
	bare := direct
	if v.conf != nil {
		confTo, confFrom := v.conf.lists()
		bare = bare || confTo != nil || confFrom != nil
		from = append(from[:len(from):len(from)], confFrom...)
	}
	for name, block := range v.blocks {
		from = append(from[:len(from):len(from)], block.check(at.Field(name), v.lists, r)...)
	}
	checkForms(at, formsOf{
		bare: bare, bareName: v.lists, defaults: v.defaults != nil, overrides: v.overrides != nil, unset: v.unset.Unset != nil,
	}, r)
	if kind := v.target.TopTarget().Kind; len(from) > 0 && (kind == TargetHTTPRoute || kind == TargetMeshGatewayRoute) {
		r.Warnf(at.Field("targetRef").Field("kind"), "a policy on one %s configures outbounds; its from items never take effect", kind)
	}
	v.unset.check(at, confTypeOf[I, P](), r)
}

// blocks yields the blocks that are there, by name.
func (v itemView[I, P]) blocks(yield func(string, *itemBlock[I]) bool) {
	if v.defaults != nil && !yield("defaults", v.defaults) {
		return
	}
	if v.overrides != nil {
		yield("overrides", v.overrides)
	}
}

// check reports what is wrong with a block and returns its from items.
func (b *itemBlock[I]) check(at Path, lists string, r *Report) []I {
	b.head.check(at, r)
	b.body.check(at, r)
	to, from := b.body.lists()
	if len(to) == 0 && len(from) == 0 {
		r.Errorf(at, "is empty: write %s, or leave the block out", lists)
	}
	return from
}

// formsOf says which forms a policy uses.
type formsOf struct {
	bare, defaults, overrides, unset bool
	bareName                         string
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
	case !f.bare && !f.defaults && !f.overrides && !f.unset:
		r.Errorf(at, "configures nothing: write %s, `defaults`, `overrides` or `unset`", f.bareName)
	}
}

// ToBlock is a block of defaults or overrides for outbounds.
type ToBlock[I any, P itemOf[I]] struct {
	BlockHead
	ToSection[I, P]
}

// ToPolicy is the shape of the kinds that configure outbounds.
type ToPolicy[I any, P itemOf[I]] struct {
	PolicyTarget
	ToSection[I, P]
	Conf           *ToSection[I, P] `json:"conf,omitzero" doc:"Another place for to."`
	DefaultsBlock  *ToBlock[I, P]   `json:"defaults,omitzero" doc:"Configuration that more specific policies can replace; instead of bare to."`
	OverridesBlock *ToBlock[I, P]   `json:"overrides,omitzero" doc:"Configuration that replaces what more specific policies say; instead of bare to."`
	PolicyUnset
	noOwnConf
}

func (p *ToPolicy[I, P]) view() itemView[I, P] {
	v := itemView[I, P]{target: &p.PolicyTarget, unset: &p.PolicyUnset, direct: &p.ToSection, lists: "`to`"}
	if p.Conf != nil {
		v.conf = p.Conf
	}
	if b := p.DefaultsBlock; b != nil {
		v.defaults = &itemBlock[I]{&b.BlockHead, &b.ToSection}
	}
	if b := p.OverridesBlock; b != nil {
		v.overrides = &itemBlock[I]{&b.BlockHead, &b.ToSection}
	}
	return v
}

// Validate implements Spec.
func (p *ToPolicy[I, P]) Validate(at Path, r *Report) { p.view().validate(at, r) }

// ToItems implements TargetRefSpec.
func (p *ToPolicy[I, P]) ToItems() []TargetItem { return p.view().toItems() }

// FromItems implements TargetRefSpec: the kind has none.
func (p *ToPolicy[I, P]) FromItems() []TargetItem { return nil }

// ItemTargets implements TargetRefSpec.
func (p *ToPolicy[I, P]) ItemTargets() (to, from []Target) { return p.view().itemTargets() }

// Defaults implements TargetRefSpec.
func (p *ToPolicy[I, P]) Defaults() *TargetBlock { return p.view().defaultsBlock() }

// Overrides implements TargetRefSpec.
func (p *ToPolicy[I, P]) Overrides() *TargetBlock { return p.view().overridesBlock() }

// FromBlock is a block of defaults or overrides for inbounds.
type FromBlock[I any, P itemOf[I]] struct {
	BlockHead
	FromSection[I, P]
}

// FromPolicy is the shape of the kinds that configure inbounds.
type FromPolicy[I any, P itemOf[I]] struct {
	PolicyTarget
	FromSection[I, P]
	Conf           *FromSection[I, P] `json:"conf,omitzero" doc:"Another place for from."`
	DefaultsBlock  *FromBlock[I, P]   `json:"defaults,omitzero" doc:"Configuration that more specific policies can replace; instead of bare from."`
	OverridesBlock *FromBlock[I, P]   `json:"overrides,omitzero" doc:"Configuration that replaces what more specific policies say; instead of bare from."`
	PolicyUnset
	noOwnConf
}

func (p *FromPolicy[I, P]) view() itemView[I, P] {
	v := itemView[I, P]{target: &p.PolicyTarget, unset: &p.PolicyUnset, direct: &p.FromSection, lists: "`from`"}
	if p.Conf != nil {
		v.conf = p.Conf
	}
	if b := p.DefaultsBlock; b != nil {
		v.defaults = &itemBlock[I]{&b.BlockHead, &b.FromSection}
	}
	if b := p.OverridesBlock; b != nil {
		v.overrides = &itemBlock[I]{&b.BlockHead, &b.FromSection}
	}
	return v
}

// Validate implements Spec.
func (p *FromPolicy[I, P]) Validate(at Path, r *Report) { p.view().validate(at, r) }

// ToItems implements TargetRefSpec: the kind has none.
func (p *FromPolicy[I, P]) ToItems() []TargetItem { return nil }

// FromItems implements TargetRefSpec.
func (p *FromPolicy[I, P]) FromItems() []TargetItem { return p.view().fromItems() }

// ItemTargets implements TargetRefSpec.
func (p *FromPolicy[I, P]) ItemTargets() (to, from []Target) { return p.view().itemTargets() }

// Defaults implements TargetRefSpec.
func (p *FromPolicy[I, P]) Defaults() *TargetBlock { return p.view().defaultsBlock() }

// Overrides implements TargetRefSpec.
func (p *FromPolicy[I, P]) Overrides() *TargetBlock { return p.view().overridesBlock() }

// BothBlock is a block of defaults or overrides for outbounds and inbounds.
type BothBlock[I any, P itemOf[I]] struct {
	BlockHead
	BothSection[I, P]
}

// BothPolicy is the shape of the kinds that configure outbounds and inbounds.
type BothPolicy[I any, P itemOf[I]] struct {
	PolicyTarget
	BothSection[I, P]
	Conf           *BothSection[I, P] `json:"conf,omitzero" doc:"Another place for to and from."`
	DefaultsBlock  *BothBlock[I, P]   `json:"defaults,omitzero" doc:"Configuration that more specific policies can replace; instead of bare to and from."`
	OverridesBlock *BothBlock[I, P]   `json:"overrides,omitzero" doc:"Configuration that replaces what more specific policies say; instead of bare to and from."`
	PolicyUnset
	noOwnConf
}

func (p *BothPolicy[I, P]) view() itemView[I, P] {
	v := itemView[I, P]{target: &p.PolicyTarget, unset: &p.PolicyUnset, direct: &p.BothSection, lists: "`to` or `from`"}
	if p.Conf != nil {
		v.conf = p.Conf
	}
	if b := p.DefaultsBlock; b != nil {
		v.defaults = &itemBlock[I]{&b.BlockHead, &b.BothSection}
	}
	if b := p.OverridesBlock; b != nil {
		v.overrides = &itemBlock[I]{&b.BlockHead, &b.BothSection}
	}
	return v
}

// Validate implements Spec.
func (p *BothPolicy[I, P]) Validate(at Path, r *Report) { p.view().validate(at, r) }

// ToItems implements TargetRefSpec.
func (p *BothPolicy[I, P]) ToItems() []TargetItem { return p.view().toItems() }

// FromItems implements TargetRefSpec.
func (p *BothPolicy[I, P]) FromItems() []TargetItem { return p.view().fromItems() }

// ItemTargets implements TargetRefSpec.
func (p *BothPolicy[I, P]) ItemTargets() (to, from []Target) { return p.view().itemTargets() }

// Defaults implements TargetRefSpec.
func (p *BothPolicy[I, P]) Defaults() *TargetBlock { return p.view().defaultsBlock() }

// Overrides implements TargetRefSpec.
func (p *BothPolicy[I, P]) Overrides() *TargetBlock { return p.view().overridesBlock() }

// blockOf is a pointer to a block of type B around a configuration.
type blockOf[B any] interface {
	*B
	parts() (*BlockHead, checker)
}

// OwnPolicy is the shape of the kinds that configure a dataplane as a whole,
// without items (§4.8).
type OwnPolicy[C any, PC checkerOf[C], B any, PB blockOf[B]] struct {
	PolicyTarget
	Conf           *C `json:"conf,omitzero" doc:"What the policy configures; fields merge by priority, lists replace."`
	Default        *C `json:"default,omitzero" doc:"Another place for conf."`
	DefaultsBlock  *B `json:"defaults,omitzero" doc:"Configuration that more specific policies can replace; instead of conf."`
	OverridesBlock *B `json:"overrides,omitzero" doc:"Configuration that replaces what more specific policies say; instead of conf."`
	PolicyUnset
}

// Validate implements Spec.
func (p *OwnPolicy[C, PC, B, PB]) Validate(at Path, r *Report) {
	p.PolicyTarget.check(at, r)
	if p.Conf != nil {
		PC(p.Conf).check(at.Field("conf"), r)
	}
	if p.Default != nil {
		PC(p.Default).check(at.Field("default"), r)
		if p.Conf != nil {
			r.Errorf(at.Field("default"), "is another place for `conf`; keep one of them")
		}
	}
	for _, block := range []struct {
		at Path
		b  *B
	}{{at.Field("defaults"), p.DefaultsBlock}, {at.Field("overrides"), p.OverridesBlock}} {
		if block.b == nil {
			continue
		}
		head, conf := PB(block.b).parts()
		head.check(block.at, r)
		if reflect.ValueOf(conf).Elem().IsZero() {
			r.Errorf(block.at, "is empty: write what `conf` would hold, or leave the block out")
		}
		conf.check(block.at, r)
	}
	checkForms(at, formsOf{
		bare: p.Conf != nil || p.Default != nil, bareName: "`conf`",
		defaults: p.DefaultsBlock != nil, overrides: p.OverridesBlock != nil, unset: p.Unset != nil,
	}, r)
	p.PolicyUnset.check(at, reflect.TypeFor[C](), r)
}

// ToItems implements TargetRefSpec: the kind has none.
func (p *OwnPolicy[C, PC, B, PB]) ToItems() []TargetItem { return nil }

// FromItems implements TargetRefSpec: the kind has none.
func (p *OwnPolicy[C, PC, B, PB]) FromItems() []TargetItem { return nil }

// OwnConf implements TargetRefSpec.
func (p *OwnPolicy[C, PC, B, PB]) OwnConf() map[string]any {
	if p.Default != nil {
		return confTree(p.Default)
	}
	return confTree(p.Conf)
}

// ItemTargets implements TargetRefSpec: there are no items.
func (p *OwnPolicy[C, PC, B, PB]) ItemTargets() (to, from []Target) { return nil, nil }

// Defaults implements TargetRefSpec.
func (p *OwnPolicy[C, PC, B, PB]) Defaults() *TargetBlock {
	return ownBlock[B, PB](p.DefaultsBlock, "defaults")
}

// Overrides implements TargetRefSpec.
func (p *OwnPolicy[C, PC, B, PB]) Overrides() *TargetBlock {
	return ownBlock[B, PB](p.OverridesBlock, "overrides")
}

func ownBlock[B any, PB blockOf[B]](block *B, at Path) *TargetBlock {
	if block == nil {
		return nil
	}
	head, conf := PB(block).parts()
	return &TargetBlock{Strategy: head.strategy(), When: head.when(), OnError: head.onError(), Own: treeOf(conf), Path: at}
}

func (*OwnPolicy[C, PC, B, PB]) fieldHint(name string) string {
	if name == "to" || name == "from" {
		return "the kind configures whole dataplanes: write its fields under `conf`"
	}
	return ""
}
