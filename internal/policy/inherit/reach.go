package inherit

import (
	"cmp"
	"encoding/json"
	"iter"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Route implements policy.Inheritance.
func (x *Index) Route(name resource.MeshName, route string) (policy.PathsState, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m, found := x.meshes[name], false
	if m == nil {
		return policy.PathsState{}, false
	}
	state := policy.PathsState{Paths: []policy.PathRules{}, Conditions: []policy.Condition{}}
	var legs []*leg
	kinds := 0
	for _, kind := range routeKinds {
		key := resource.Key{Kind: kind, Mesh: name, Name: route}
		if r := m.routes[key]; r != nil {
			found = true
			legs = append(legs, r.legs...)
			for _, c := range x.targetConditionsLocked(m, key, inFull) {
				c.RouteKind = kind
				state.Conditions = append(state.Conditions, c)
			}
			kinds++
		}
	}
	if kinds < 2 {
		for i := range state.Conditions {
			state.Conditions[i].RouteKind = ""
		}
	}
	slices.SortStableFunc(legs, compareLegs)
	state.Cut = !x.tellLocked(m, legs, &state.Paths)
	return state, found
}

// Gateway implements policy.Inheritance.
func (x *Index) Gateway(name resource.MeshName, gateway string) (policy.PathsState, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.meshes[name]
	if m == nil || m.gateways[gateway] == nil {
		return policy.PathsState{}, false
	}
	key := resource.Key{Kind: resource.KindGateway, Mesh: name, Name: gateway}
	state := policy.PathsState{
		Paths:      []policy.PathRules{},
		Conditions: append([]policy.Condition{}, x.targetConditionsLocked(m, key, inFull)...),
		Rejected:   m.rejected(gateway),
	}
	state.Cut = !x.tellLocked(m, m.legsInOrder(target{kind: key.Kind, name: gateway}), &state.Paths) || len(state.Rejected) > policy.MaxPlaces
	return state, true
}

// tellLocked appends what policies come to on the ways to routes, by rule and
// kind. It reports whether that fits into an answer, and stops where it does not.
func (x *Index) tellLocked(m *mesh, legs []*leg, paths *[]policy.PathRules) bool {
	places, size := 0, 0
	sizes := map[*outcome]int{} // ways with one chain share its outcome
	for _, l := range legs {
		for rule := range l.route.rules {
			for schema := range schemas {
				o := x.atLocked(m, l, rule, schema)
				if o == nil {
					continue
				}
				bytes, known := sizes[o]
				if !known {
					bytes = o.size()
					sizes[o] = bytes
				}
				places += 1 + len(o.owner) + len(o.losers) + len(o.dropped)
				size += bytes
				if places > policy.MaxPlaces || size > policy.MaxPathBytes {
					return false
				}
				*paths = append(*paths, o.told(&schemas[schema], l.path(rule)))
			}
		}
	}
	return true
}

// size is the length of the effective rules as JSON.
func (o *outcome) size() int {
	encoded, err := json.Marshal(o.rules)
	if err != nil {
		return 0 // not JSON: rules are decoded from it
	}
	return len(encoded)
}

// told is an outcome as it is told to the outside.
func (o *outcome) told(s *schema, at policy.Path) policy.PathRules {
	p := policy.PathRules{
		Path: at, Kind: s.kind, Rules: o.rules,
		Origins: map[string]resource.Key{}, Overridden: map[string]resource.Key{}, Unset: map[string]resource.Key{},
		OverriddenOf: map[string][]resource.Key{}, UnsetOf: map[string][]resource.Key{},
	}
	for rule, c := range o.owner {
		p.Origins[s.id(rule)] = o.chain[c.link].key
	}
	for rule, losers := range o.losers {
		for _, loser := range losers {
			if winner, lost := o.lost(rule, loser.link); lost {
				p.Overridden[s.id(rule)] = o.chain[winner.link].key
				o.tellLoser(p.OverriddenOf, s.id(rule), loser)
			}
		}
	}
	for rule, d := range o.dropped {
		p.Unset[s.id(rule)] = o.chain[d.by].key
		for _, loser := range d.from {
			o.tellLoser(p.UnsetOf, s.id(rule), loser)
		}
	}
	for _, d := range o.decided {
		p.Decided = append(p.Decided, o.toldDecision(d))
	}
	return p
}

// tellLoser adds the policy of a block that lost a rule, each once: it may have lost
// both its blocks.
func (o *outcome) tellLoser(of map[string][]resource.Key, id string, loser claim) {
	if key := o.chain[loser.link].key; !slices.Contains(of[id], key) {
		of[id] = append(of[id], key)
	}
}

func (o *outcome) toldDecision(d decision) policy.Decided {
	return policy.Decided{
		Policy: o.chain[d.link].key, Block: d.block.name, Expression: d.block.when.String(),
		Matched: d.matched(), Failed: d.failed(), Reason: d.verdict.Reason, Used: d.used,
	}
}

// visit is one rule of a route on one listener, with its effective policy.
type visit struct {
	leg     *leg
	rule    int
	outcome *outcome
}

// visitsLocked yields the paths through a target on which the effective policy of its
// kind is not empty of policies, in order.
func (x *Index) visitsLocked(m *mesh, t target) iter.Seq[visit] {
	return func(yield func(visit) bool) {
		for v := range x.pathsLocked(m, t) {
			if v.outcome != nil && !yield(v) {
				return
			}
		}
	}
}

// pathsLocked is visitsLocked with the paths that have no policy of the kind: their
// outcome is nil.
func (x *Index) pathsLocked(m *mesh, t target) iter.Seq[visit] {
	return func(yield func(visit) bool) {
		for _, l := range m.legsInOrder(t) {
			only := l.ruleOf(t)
			for rule := range l.route.rules {
				if only >= 0 && rule != only {
					continue
				}
				if !yield(visit{l, rule, x.atLocked(m, l, rule, t.schema)}) {
					return
				}
			}
		}
	}
}

// legsInOrder are the ways to routes that lead through a target, by gateway,
// listener, and kind and name of the route.
func (m *mesh) legsInOrder(t target) []*leg {
	return slices.SortedFunc(m.legsThrough(t), func(a, b *leg) int {
		return cmp.Or(compareLegs(a, b), a.route.key.Compare(b.route.key))
	})
}

// linkOf returns the place of a policy on a chain, or -1.
func (o *outcome) linkOf(c *compiled) int {
	return slices.IndexFunc(o.chain, func(l link) bool { return l.compiled == c })
}

// fate is what became of one rule of a policy's block on one path.
type fate struct {
	rule  policy.Pointer
	block *block
	state policy.RuleState
	// by is the block that overrode the rule, or has the policy that unset it.
	by claim
}

// fates yields what became of every rule of a policy, by its index in chain, or
// of the one in only, in order of block and rule.
func (o *outcome) fates(at int, only ...policy.Pointer) iter.Seq[fate] {
	return func(yield func(fate) bool) {
		for i := range o.chain[at].blocks {
			b := &o.chain[at].blocks[i]
			rules := b.leaves
			if len(only) > 0 {
				rules = slices.DeleteFunc(slices.Clone(only), func(rule policy.Pointer) bool { return !b.has(rule) })
			}
			for _, rule := range rules {
				if !yield(o.fate(rule, claim{at, b})) {
					return
				}
			}
		}
	}
}

// has reports whether the block writes a rule.
func (b *block) has(rule policy.Pointer) bool {
	_, found := slices.BinarySearch(b.leaves, rule)
	return found
}

func (o *outcome) fate(rule policy.Pointer, c claim) fate {
	f := fate{rule: rule, block: c.block, state: policy.RuleEffective}
	same := func(other claim) bool { return other == c }
	switch d := o.dropped[rule]; {
	case o.skipped(c):
		f.state = policy.RuleSkipped
	case slices.ContainsFunc(d.from, same):
		f.state, f.by = policy.RuleUnset, claim{link: d.by}
	case o.owner[rule] != c && !o.agrees(rule, c):
		f.state, f.by = policy.RuleOverridden, o.winner(rule)
	}
	return f
}

// skipped reports whether a block was left out for its condition.
func (o *outcome) skipped(c claim) bool {
	return slices.ContainsFunc(o.decided, func(d decision) bool { return d.claim == c && !d.used })
}

// Reach implements policy.Inheritance.
func (x *Index) Reach(key resource.Key, id string) (places []policy.RuleReach, ids []string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.meshes[key.Mesh]
	if m == nil || m.policies[key] == nil {
		return nil, nil, false
	}
	c := m.policies[key]
	s := &schemas[schemaOf(key.Kind)]
	var only []policy.Pointer
	for i := range c.blocks {
		for _, rule := range c.blocks[i].leaves {
			name := s.id(rule)
			ids = append(ids, name)
			if name == id && len(only) == 0 {
				only = append(only, rule)
			}
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if c.invalid != "" || (id != "" && only == nil) {
		return nil, ids, true
	}
	for v := range x.visitsLocked(m, c.target) {
		at := v.outcome.linkOf(c)
		for f := range v.outcome.fates(at, only...) {
			if len(places) > policy.MaxPlaces {
				return places, ids, true
			}
			places = append(places, v.reach(at, s.id(f.rule), f))
		}
	}
	slices.SortStableFunc(places, func(a, b policy.RuleReach) int { return strings.Compare(a.ID, b.ID) })
	return places, ids, true
}

func (v visit) reach(at int, id string, f fate) policy.RuleReach {
	o := v.outcome
	r := policy.RuleReach{Path: v.leg.path(v.rule), ID: id, Block: f.block.name, State: f.state}
	mine := precedence{o.chain[at], f.block}
	switch f.state {
	case policy.RuleEffective:
		d := mine.Alone()
		r.DecidedBy, r.Reason = d.Rule, d.Won
	case policy.RuleUnset:
		r.By = o.chain[f.by.link].key
		r.DecidedBy, r.Reason = "5.4", "unset by "+o.chain[f.by.link].label+" on "+levelNames[o.chain[f.by.link].level]
	case policy.RuleOverridden:
		winner := o.chain[f.by.link]
		r.By = winner.key
		d := precedence{winner, f.by.block}.Over(mine)
		r.DecidedBy, r.Reason = d.Rule, d.Lost
		if d.Rule == "" { // the policy's own other block
			r.DecidedBy, r.Reason = "5.4", "is overridden by the policy's own "+f.by.block.name
		}
	case policy.RuleSkipped:
		for _, d := range o.decided {
			if d.claim == (claim{at, f.block}) {
				r.DecidedBy, r.Reason = "5.6", "when: "+d.verdict.Reason
			}
		}
	}
	return r
}
