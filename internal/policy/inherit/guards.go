package inherit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// guarded is what of a policy may do nothing without being noticed: rules that its
// conditions ask for, and rules that it unsets.
type guarded struct {
	schema *schema
	// asked has the rules that a block's condition names, and whether a policy below
	// has them on some path.
	asked map[string]map[policy.Pointer]bool
	// below are the rules of policies below, on all paths.
	below map[policy.Pointer]bool
	// unset has what became of each rule that is unset.
	unset map[policy.Pointer]unsetting
}

// unsetting is what an unset meets on the paths of its policy.
type unsetting struct {
	effective bool
	// overriddenBy is the label of a policy whose override sets the rule all the same.
	overriddenBy string
}

func (g *guarded) init(c *compiled, mayUnset bool) {
	g.schema = &schemas[c.target.schema]
	g.asked, g.below, g.unset = map[string]map[policy.Pointer]bool{}, map[policy.Pointer]bool{}, map[policy.Pointer]unsetting{}
	for i := range c.blocks {
		for _, rule := range c.blocks[i].asks {
			if g.asked[c.blocks[i].name] == nil {
				g.asked[c.blocks[i].name] = map[policy.Pointer]bool{}
			}
			g.asked[c.blocks[i].name][rule] = false
		}
	}
	if mayUnset {
		for _, rule := range c.unset {
			g.unset[rule] = unsetting{}
		}
	}
}

// look takes in a path on which the policy is the link at of the chain.
func (g *guarded) look(o *outcome, at int) {
	if len(g.asked) > 0 {
		has := map[policy.Pointer]bool{}
		for i := range o.chain[:at] {
			for j := range o.chain[i].blocks {
				note(has, o.chain[i].blocks[j].leaves)
			}
		}
		for i := range o.chain[at].blocks { // the defaults first
			b := &o.chain[at].blocks[i]
			for rule := range g.asked[b.name] {
				g.asked[b.name][rule] = g.asked[b.name][rule] || has[rule]
			}
			if len(g.asked[b.name]) > 0 {
				maps.Copy(g.below, has)
			}
			note(has, b.leaves)
		}
	}
	for rule, met := range g.unset {
		if _, dropped := o.dropped[rule]; dropped {
			met.effective = true
		}
		if by, ok := o.owner[rule]; ok && by.link > at && by.block.name == blockOverrides {
			met.overriddenBy = o.chain[by.link].label
		}
		g.unset[rule] = met
	}
}

func note(rules map[policy.Pointer]bool, more []policy.Pointer) {
	for _, rule := range more {
		rules[rule] = true
	}
}

// guards are the conditions of a policy that asks for what is not there. There are
// none before a route leads through its target.
func (s *survey) guards() (conditions []policy.Condition) {
	if s.paths == 0 {
		return nil
	}
	g := &s.guarded
	var unknown []string
	for _, block := range slices.Sorted(maps.Keys(g.asked)) {
		for _, rule := range slices.Sorted(maps.Keys(g.asked[block])) {
			if !g.asked[block][rule] {
				unknown = append(unknown, fmt.Sprintf("%s.when asks for %s%s", block, g.schema.id(rule), meantRule(g.schema.id(rule), g.ids(g.below))))
			}
		}
	}
	if len(unknown) > 0 {
		conditions = append(conditions, policy.Condition{
			Type: typeUnknownRule, Status: isTrue, Reason: reasonNoSuchRule,
			Message: "No policy below has a rule on any path: " + strings.Join(unknown, "; "),
		})
	}
	return append(conditions, g.withoutEffect()...)
}

func (g *guarded) withoutEffect() (conditions []policy.Condition) {
	overridden, nothing := []string{}, []string{}
	for _, rule := range slices.Sorted(maps.Keys(g.unset)) {
		switch met := g.unset[rule]; {
		case met.overriddenBy != "":
			overridden = append(overridden, fmt.Sprintf("%s by %s", g.schema.id(rule), met.overriddenBy))
		case !met.effective:
			nothing = append(nothing, g.schema.id(rule))
		}
	}
	add := func(reason, text string, rules []string) {
		if len(rules) > 0 {
			conditions = append(conditions, policy.Condition{
				Type: typeUnsetWithoutEffect, Status: isTrue, Reason: reason, Message: text + strings.Join(rules, ", "),
			})
		}
	}
	add(reasonUnsetOverride, "An unset takes no override out; overridden: ", overridden)
	add(reasonUnsetNothing, "No policy above has a default that is unset: ", nothing)
	return conditions
}

func (g *guarded) ids(rules map[policy.Pointer]bool) []string {
	var ids []string
	for rule := range rules {
		ids = append(ids, g.schema.id(rule))
	}
	slices.Sort(ids)
	return ids
}

// pathsText names paths, as many as a message holds.
func pathsText(paths []policy.Path) string {
	var texts []string
	for i, path := range paths {
		if i == maxTold {
			texts = append(texts, fmt.Sprintf("%d more", len(paths)-i))
			break
		}
		texts = append(texts, fmt.Sprint(path))
	}
	return strings.Join(texts, ", ")
}

// adviseRules warns of rules that no policy of the mesh has: in conditions, and in
// unset. Which of them lie on the paths of the policy is for its status.
func (a *adviser) adviseRules(r *resource.Resource, spec resource.InheritedSpec, report *resource.Report) {
	for _, b := range []*resource.RuleBlock{spec.Defaults(), spec.Overrides()} {
		if b == nil {
			continue
		}
		for _, id := range condition.Rules(spec, b.When) {
			if known, hint := a.known(r, id, spec); !known {
				report.Findf(resource.CodeNoEffect, b.Path.Field("when"), "asks for %s, which no policy of the mesh has: until one does, the condition sees nothing there%s", id, hint)
			}
		}
	}
	for i, id := range spec.UnsetRules() {
		if !mayUnset(a.view, r.Key().Mesh) {
			break // which is said
		}
		if known, hint := a.known(r, id, nil); !known {
			report.Findf(resource.CodeNoEffect, resource.Path("unset").Index(i), "no policy of the mesh has %s: nothing is taken out%s", id, hint)
		}
	}
}

// known reports whether a policy of the mesh other than r has a rule, or own has,
// and names the nearest that there is.
func (a *adviser) known(r *resource.Resource, id resource.RuleID, own resource.InheritedSpec) (known bool, hint string) {
	key := resource.Key{Kind: r.Key().Kind, Mesh: r.Key().Mesh}
	rules, listed := a.rules[key]
	if !listed {
		rules = map[string]int{}
		for p := range a.view.List(key.Kind, key.Mesh) {
			if spec, ok := p.Spec().(resource.InheritedSpec); ok {
				for _, name := range rulesOf(p.Key().Kind, spec) {
					rules[name]++
				}
			}
		}
		a.rules[key] = rules
	}
	mine := 0
	if spec, ok := r.Spec().(resource.InheritedSpec); ok && own == nil {
		for _, name := range rulesOf(key.Kind, spec) {
			if name == id.String() {
				mine++
			}
		}
	}
	if rules[id.String()] > mine {
		return true, ""
	}
	if a.guesses++; a.guesses > maxGuesses {
		return false, ""
	}
	return false, meantRule(id.String(), slices.Sorted(maps.Keys(rules)))
}

// meantRule suggests the rule of the same section with the nearest name.
func meantRule(id string, ids []string) string {
	section, name, ok := strings.Cut(id, ".")
	if !ok {
		return meant(id, ids)
	}
	var names []string
	for _, other := range ids {
		if of, rest, _ := strings.Cut(other, "."); of == section {
			names = append(names, rest)
		}
	}
	if near, ok := resource.Nearest(name, names); ok {
		return fmt.Sprintf("; did you mean %q?", section+"."+near)
	}
	return ""
}

// rulesOf names the rules of a policy's blocks, once for each block.
func rulesOf(kind resource.Kind, spec resource.InheritedSpec) (names []string) {
	s := &schemas[schemaOf(kind)]
	for _, b := range []*resource.RuleBlock{spec.Defaults(), spec.Overrides()} {
		if b != nil {
			for _, leaf := range policy.Leaves(b.Rules, s.depth()) {
				names = append(names, s.id(leaf))
			}
		}
	}
	return names
}
