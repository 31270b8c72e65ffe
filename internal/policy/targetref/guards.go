package targetref

import (
	"fmt"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// Types and reasons of the conditions of policies whose guards do nothing (§4.10, §5.8).
const (
	typeUnknownField       = "UnknownField"
	typeUnsetWithoutEffect = "UnsetWithoutEffect"

	reasonNoSuchField   = "NoSuchField"
	reasonUnsetOverride = "Override"
	reasonUnsetNothing  = "NoDefault"
)

// idle is a guard of a policy that does nothing: a field that a condition asks for and
// that no more specific policy sets, or an unset that takes nothing out.
type idle struct {
	at             resource.Path
	condition, why string
	reason         string
	about          string // what the condition says of it
}

// maxLooks bounds how many policies are looked at for the guards of a batch. What lies
// beyond is not looked at.
const maxLooks = 500_000

// idleGuards finds the guards of a policy that do nothing, whatever dataplane they are
// about: in the whole mesh there is nothing for them.
func (s *survey) idleGuards(c *compiled, spec resource.TargetRefSpec, mayUnset bool) (found []idle) {
	asks := false
	for _, b := range c.blocks() {
		asks = asks || b.when != nil
	}
	if !asks && (len(c.unset) == 0 || !mayUnset) {
		return nil
	}
	peers := s.ofKind(c.key.Kind, c.key.Mesh)
	if s.looks += len(peers); s.looks > maxLooks {
		return nil
	}
	peers = slices.DeleteFunc(slices.Clone(peers), func(p *compiled) bool { return p.key == c.key })
	for _, b := range []struct {
		block *block
		form  *resource.TargetBlock
	}{{c.under, spec.Defaults()}, {c.over, spec.Overrides()}} {
		if b.block == nil || b.form == nil || b.block.when == nil {
			continue
		}
		for _, field := range condition.Fields(spec, b.form.When) {
			if !setBelow(c, b.block, policy.Pointer(field), peers) {
				found = append(found, idle{
					at: b.form.Path.Field("when"), condition: typeUnknownField, reason: reasonNoSuchField,
					why:   fmt.Sprintf("asks for %s, which no more specific policy sets: until one does, the condition sees nothing there", field),
					about: fmt.Sprintf("%s.when asks for %s", b.block.form, field),
				})
			}
		}
	}
	if !mayUnset {
		return found // which is said
	}
	for i, field := range c.unset {
		at := resource.Path("unset").Index(i)
		defaulted, override := setAbove(c, field, peers)
		switch {
		case override != nil:
			found = append(found, idle{
				at: at, condition: typeUnsetWithoutEffect, reason: reasonUnsetOverride,
				why:   fmt.Sprintf("does not take %s out of the overrides of %s, which hold all the same", field, override.key.Name),
				about: fmt.Sprintf("%s by %s", field, override.key.Name),
			})
		case !defaulted:
			found = append(found, idle{
				at: at, condition: typeUnsetWithoutEffect, reason: reasonUnsetNothing,
				why:   fmt.Sprintf("no less specific policy has a default for %s: nothing is taken out", field),
				about: string(field),
			})
		}
	}
	return found
}

// ofKind returns the policies of a kind in a mesh.
func (s *survey) ofKind(kind resource.Kind, mesh resource.MeshName) []*compiled {
	all := resource.Key{Kind: kind, Mesh: mesh}
	if known, ok := s.kinds[all]; ok {
		return known
	}
	found := []*compiled{}
	for r := range s.view.List(kind, mesh) {
		if _, ok := r.Spec().(resource.TargetRefSpec); ok {
			found = append(found, s.policy(r).Data.(*compiled))
		}
	}
	s.kinds[all] = found
	return found
}

// setBelow reports whether a policy that ranks below a block sets a field, or something
// inside it.
func setBelow(c *compiled, b *block, field policy.Pointer, peers []*compiled) bool {
	if b.form == overrides && c.under != nil && c.under.sets(field) {
		return true // its own defaults are below its overrides
	}
	return slices.ContainsFunc(peers, func(p *compiled) bool {
		if p.level < c.level {
			return false
		}
		return slices.ContainsFunc(p.blocks(), func(b *block) bool { return b.sets(field) })
	})
}

// setAbove reports whether a policy on a target of the same kind or a less specific one
// has a default for a field, and returns one whose overrides set it.
func setAbove(c *compiled, field policy.Pointer, peers []*compiled) (defaulted bool, override *compiled) {
	for _, p := range peers {
		if p.level > c.level {
			continue
		}
		defaulted = defaulted || p.under != nil && p.under.sets(field)
		if p.over != nil && p.over.sets(field) && p.over.when == nil {
			override = p
		}
	}
	return defaulted, override
}

// sets reports whether an item of the block sets a field or something inside it.
func (b *block) sets(field policy.Pointer) bool {
	for _, items := range [][]item{b.to, b.from, b.own} {
		for i := range items {
			if _, has := policy.At(items[i].conf, field); has {
				return true
			}
		}
	}
	return false
}

// guards warns of guards that do nothing.
func (a *advice) guards(spec resource.TargetRefSpec) {
	for _, g := range a.idleGuards(a.compiled, spec, a.matching.Unset != resource.UnsetForbidden) {
		a.Findf(resource.CodeNoEffect, g.at, "%s", g.why)
	}
}

// Conditions implements policy.Judge: guards that do nothing, by type and reason.
func (s *survey) Conditions(r *resource.Resource) (conditions []policy.Condition) {
	spec, ok := r.Spec().(resource.TargetRefSpec)
	if !ok {
		return nil
	}
	mayUnset := policy.MeshOf(s.view, r.Key().Mesh).Matching.Unset != resource.UnsetForbidden
	said := map[string]string{
		reasonNoSuchField:   "No more specific policy sets a field that is asked for: ",
		reasonUnsetOverride: "An unset takes no override out; overridden: ",
		reasonUnsetNothing:  "No less specific policy has a default that is unset: ",
	}
	about := map[string][]string{}
	for _, g := range s.idleGuards(s.policy(r).Data.(*compiled), spec, mayUnset) {
		if about[g.reason] == nil {
			conditions = append(conditions, policy.Condition{Type: g.condition, Status: "True", Reason: g.reason})
		}
		about[g.reason] = append(about[g.reason], g.about)
	}
	for i := range conditions {
		conditions[i].Message = said[conditions[i].Reason] + strings.Join(about[conditions[i].Reason], "; ")
	}
	return conditions
}

// deniesAll warns of permissions that leave no caller: nothing in the mesh allows one.
func (a *advice) deniesAll(r *resource.Resource) {
	if a.key.Kind != resource.KindMeshTrafficPermission || r.Shadowed() {
		return
	}
	denied := resource.Path("")
	for _, b := range a.blocks() {
		for i := range b.from {
			if b.from[i].target.Kind == resource.TargetMesh && b.from[i].conf["action"] == resource.ActionDeny {
				denied = b.from[i].path
			}
		}
	}
	if denied == "" {
		return
	}
	for other := range a.view.List(a.key.Kind, a.key.Mesh) {
		if !other.Shadowed() && a.policy(other).Data.(*compiled).allows() {
			return
		}
	}
	a.Findf(resource.CodeDeniesAll, denied, "denies every caller, and no %s of mesh %s allows one: nothing can connect to what the policy selects", a.key.Kind, a.key.Mesh)
}

// allows reports whether an item of a permission allows callers.
func (c *compiled) allows() bool {
	for _, b := range c.blocks() {
		if slices.ContainsFunc(b.from, func(it item) bool { return it.conf["action"] == resource.ActionAllow }) {
			return true
		}
	}
	return false
}
