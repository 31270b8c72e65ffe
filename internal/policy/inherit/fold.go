package inherit

import (
	"context"
	"reflect"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// link is one accepted policy on a path.
type link struct {
	*compiled
	object *object // that the policy targets
	// level counts from the rule up; links of one level are ordered by
	// §5.5.
	level int
}

// outcome is the effective policy of a path and how it came about.
type outcome struct {
	// chain has the policies of the path, the most specific first.
	chain []link
	rules policy.Tree
	// owner has the block that set each effective rule.
	owner map[policy.Pointer]claim
	// losers are the blocks that wrote a rule and lost it, in order; taker is
	// who last kept or took it from them.
	losers map[policy.Pointer][]claim
	taker  map[policy.Pointer]claim
	// dropped are the defaults that were unset.
	dropped map[policy.Pointer]dropping
	// decided are the conditions that were evaluated, in order.
	decided []decision
}

// claim is a block of a policy on the chain.
type claim struct {
	link  int // index in chain
	block *block
}

// dropping is a default that was unset.
type dropping struct {
	by   int // index in chain of the first policy that unset it
	from []claim
}

// decision is the evaluation of a block's condition.
type decision struct {
	claim
	verdict condition.Verdict
	used    bool
}

// fold reduces the chain of a path, the most specific policy first, to the
// effective policy (§5.4). mayUnset is false where the mesh forbids
// unsetting (§1.4).
func fold(s *schema, chain []link, mayUnset bool) *outcome {
	f := &folding{
		schema:  s,
		fold:    policy.NewFold(s.units()),
		unsetBy: map[policy.Pointer]int{},
		outcome: &outcome{
			chain: chain, owner: map[policy.Pointer]claim{}, losers: map[policy.Pointer][]claim{},
			taker: map[policy.Pointer]claim{}, dropped: map[policy.Pointer]dropping{},
		},
	}
	for i := range chain {
		for j := range chain[i].blocks {
			b := claim{link: i, block: &chain[i].blocks[j]}
			if f.holds(b) {
				f.add(b)
			}
		}
		if mayUnset {
			f.unset(i)
		}
	}
	f.outcome.rules = f.fold.Conf()
	return f.outcome
}

// folding is a fold under way.
type folding struct {
	*outcome
	schema *schema
	fold   *policy.Fold
	// unsetBy has the rules that were unset so far and the first policy that
	// did, as its index in chain; unsetting are its keys.
	unsetBy   map[policy.Pointer]int
	unsetting []policy.Pointer
}

// holds decides a block's condition on what the more specific blocks result in
// (§5.6).
func (f *folding) holds(c claim) bool {
	when := c.block.when
	if when == nil {
		return true
	}
	at := f.chain[c.link]
	// The compiler bounds the cost of an evaluation; it is never canceled.
	verdict := when.Eval(context.Background(), condition.Input{
		Self:   f.self(c.link),
		Spec:   f.spec(c.link),
		Target: at.object.asTarget(at.target.section),
	})
	d := decision{claim: c, verdict: verdict}
	switch verdict.Outcome {
	case condition.Matched:
		d.used = true
	case condition.Failed:
		d.used = c.block.onError == resource.ApplyOnError
	}
	f.decided = append(f.decided, d)
	return d.used
}

// self is the effective policy below a link: the rules so far, with the metadata
// and the targetRef of the nearest policy below.
func (f *folding) self(link int) map[string]any {
	named := metadata(resource.Meta{})
	if link > 0 {
		named = f.chain[link-1].metadata
	}
	return map[string]any{"kind": string(f.schema.kind), "metadata": named, "spec": f.spec(link)}
}

// spec is self.spec.
func (f *folding) spec(link int) map[string]any {
	spec := f.schema.spec(f.fold.Conf())
	spec["targetRef"] = map[string]any{}
	if link > 0 {
		spec["targetRef"] = f.chain[link-1].targetRef
	}
	return spec
}

// add folds a block in and notes who gained and lost by it.
func (f *folding) add(c claim) {
	step := policy.Step{
		Op: c.block.op, Conf: c.block.rules, Origin: f.chain[c.link].key,
		Precedence: precedence{f.chain[c.link], c.block},
	}
	if c.block.name == blockDefaults {
		step.Conf = f.withoutUnset(c)
	}
	e := f.fold.Add(step)
	for _, rule := range e.Displaced {
		f.lose(rule, f.owner[rule], c)
		delete(f.owner, rule)
	}
	for _, rule := range e.Set {
		f.owner[rule] = c
	}
	for _, rule := range e.Lost {
		winner, taken := f.owner[rule]
		if !taken {
			winner = f.mostSpecific()
		}
		f.lose(rule, c, winner)
	}
}

// withoutUnset returns the rules of a defaults block that are not unset, and
// notes the others.
func (f *folding) withoutUnset(c claim) policy.Tree {
	rest, removed := policy.Without(c.block.rules, f.unsetting, f.schema.depth())
	for _, rule := range removed {
		d, again := f.dropped[rule]
		if !again {
			d.by = f.unsetBy[rule]
		}
		d.from = append(d.from, c)
		f.dropped[rule] = d
	}
	return rest
}

func (f *folding) lose(rule policy.Pointer, loser, winner claim) {
	f.losers[rule] = append(f.losers[rule], loser)
	f.taker[rule] = winner
}

// mostSpecific is the block that keeps an atomic default out: of those that
// hold a rule, the most specific.
func (f *folding) mostSpecific() claim {
	first := claim{link: len(f.chain)}
	for _, c := range f.owner {
		if c.link < first.link || (c.link == first.link && c.block.name < first.block.name) {
			first = c
		}
	}
	return first
}

// unset adds what a policy unsets for those above it.
func (f *folding) unset(link int) {
	for _, rule := range f.chain[link].unset {
		if _, already := f.unsetBy[rule]; !already {
			f.unsetBy[rule] = link
			f.unsetting = append(f.unsetting, rule)
		}
	}
}

// winner is the block that decides a rule that another block lost: the one that
// set it, or that excluded it by being atomic.
func (o *outcome) winner(rule policy.Pointer) claim {
	if c, effective := o.owner[rule]; effective {
		return c
	}
	return o.taker[rule]
}

// lost reports whether a policy, by its index in chain, lost a rule to another
// one, and to whom. A policy whose own override replaced its default lost
// nothing.
func (o *outcome) lost(rule policy.Pointer, link int) (claim, bool) {
	if !slices.ContainsFunc(o.losers[rule], func(c claim) bool { return c.link == link }) {
		return claim{}, false
	}
	w := o.winner(rule)
	return w, w.link != link && !slices.ContainsFunc(o.losers[rule], func(c claim) bool {
		return c.link == link && o.agrees(rule, c)
	})
}

// agrees reports whether what a block writes for a rule is what another policy
// puts in force: then it is not overridden (§5.8).
func (o *outcome) agrees(rule policy.Pointer, c claim) bool {
	winner, effective := o.owner[rule]
	if !effective || winner.link == c.link {
		return false
	}
	inForce, _ := policy.At(winner.block.rules, rule)
	written, ok := policy.At(c.block.rules, rule)
	return ok && reflect.DeepEqual(written, inForce)
}
