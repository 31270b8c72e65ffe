package policy

import (
	"maps"
	"slices"

	"meridian/internal/resource"
)

// Verdict is the outcome for one policy that was considered.
type Verdict struct {
	Policy resource.Key
	// Used is whether the policy contributes to the effective configuration.
	Used bool
	// Rule is the number of the deciding rule in docs/semantics.
	Rule string
	// Reason is one short sentence.
	Reason string
}

// Candidate is one policy that sets a field.
type Candidate struct {
	Verdict
	// Value is what it would have set; nil with Has false when it leaves the
	// field alone and lost as a whole.
	Value any
	Has   bool
}

// FieldVerdict says who decided one leaf field.
type FieldVerdict struct {
	Field  Pointer
	Winner Candidate
	// Losers are the other candidates, the highest priority first.
	Losers []Candidate
}

// trace is a fold of a rule that remembers which step holds which field.
type trace struct {
	rule  *Rule
	fold  *Fold
	owner map[Pointer]int
	// beatenBy is, per step, the first step that kept or took a field from it,
	// or -1.
	beatenBy []int
	// beat is, per step, the first step it kept or took a field from, or -1.
	beat       []int
	tookEffect []bool
}

func (r *Rule) trace() *trace {
	t := &trace{rule: r, fold: NewFold(r.Units), owner: map[Pointer]int{}}
	for i, s := range r.Steps {
		t.beatenBy = append(t.beatenBy, -1)
		t.beat = append(t.beat, -1)
		e := t.fold.Add(s)
		t.tookEffect = append(t.tookEffect, e.Used)
		for _, leaf := range e.Displaced {
			t.record(i, t.owner[leaf])
			delete(t.owner, leaf)
		}
		for _, leaf := range e.Set {
			t.owner[leaf] = i
		}
		for _, leaf := range e.Lost {
			if j := t.holder(leaf); j >= 0 {
				t.record(j, i)
			}
		}
		if j := slices.Index(t.tookEffect, true); !e.Used && t.beatenBy[i] < 0 && j >= 0 {
			t.record(j, i)
		}
	}
	maps.DeleteFunc(t.owner, func(leaf Pointer, _ int) bool {
		_, kept := At(t.fold.Conf(), leaf)
		return !kept
	})
	return t
}

// record notes that one step beat another for the first time.
func (t *trace) record(winner, loser int) {
	if t.beatenBy[loser] < 0 {
		t.beatenBy[loser] = winner
	}
	if t.beat[winner] < 0 && t.rule.Steps[winner].Origin != t.rule.Steps[loser].Origin {
		t.beat[winner] = loser
	}
}

// holder finds the step that holds a field, or the value around or below it.
func (t *trace) holder(leaf Pointer) int {
	if i, ok := t.owner[leaf]; ok {
		return i
	}
	first := -1
	for p, i := range t.owner {
		if (p.Covers(leaf) || leaf.Covers(p)) && (first < 0 || i < first) {
			first = i
		}
	}
	return first
}

// used reports whether a step still shows in the result: it holds a field, or
// used without having any to hold.
func (t *trace) used(i int, holds []bool) bool {
	return holds[i] || (t.tookEffect[i] && len(Leaves(t.rule.Steps[i].Conf, t.rule.Units.Depth)) == 0)
}

// Verdicts says of every policy considered whether it was used and by which
// rule, in the order of the steps; those without a step come last.
func (r *Rule) Verdicts() []Verdict {
	var considered []stepVerdict
	if r.PerCaller {
		considered = r.callerVerdicts()
	} else {
		considered = r.stepVerdicts()
	}
	verdicts := make([]Verdict, 0, len(considered)+len(r.Unused))
	place := map[resource.Key]int{}
	for i, s := range considered {
		v := s.verdict(r, i)
		at, seen := place[v.Policy]
		switch {
		case !seen:
			place[v.Policy] = len(verdicts)
			verdicts = append(verdicts, v)
		case v.Used && !verdicts[at].Used:
			verdicts[at] = v
		}
	}
	for _, p := range r.Unused {
		verdicts = append(verdicts, Verdict{Policy: p.Policy, Rule: p.Rule, Reason: p.Reason})
	}
	return verdicts
}

// stepVerdict is the outcome of a step: whether it was used, and its rival.
type stepVerdict struct {
	used bool
	// rival is the step it lost to, or the first it won from; -1: none.
	rival int
}

func (s stepVerdict) verdict(r *Rule, i int) Verdict {
	v := Verdict{Policy: r.Steps[i].Origin, Used: s.used}
	mine := r.Steps[i].Precedence
	switch {
	case s.rival < 0:
		v.Rule, v.Reason = mine.Alone().won()
	case s.used:
		v.Rule, v.Reason = mine.Over(r.Steps[s.rival].Precedence).won()
	default:
		d := r.Steps[s.rival].Precedence.Over(mine)
		v.Rule, v.Reason = d.Rule, d.Lost
	}
	if m, ok := mine.(Remarker); ok {
		v.Reason += m.Remark()
	}
	return v
}

func (r *Rule) stepVerdicts() []stepVerdict {
	t := r.trace()
	holds := make([]bool, len(r.Steps))
	for _, i := range t.owner {
		holds[i] = true
	}
	verdicts := make([]stepVerdict, len(r.Steps))
	for i := range r.Steps {
		if t.used(i, holds) {
			verdicts[i] = stepVerdict{used: true, rival: t.beat[i]}
		} else {
			verdicts[i] = stepVerdict{rival: t.beatenBy[i]}
		}
	}
	return verdicts
}

// callerVerdicts judges an ordered list: a step is lost when an earlier one
// shadows it and it had something to set.
func (r *Rule) callerVerdicts() []stepVerdict {
	verdicts := make([]stepVerdict, len(r.Steps))
	shadows := r.Shadows()
	for i, s := range r.Steps {
		verdicts[i] = stepVerdict{used: true, rival: -1}
		if shadows[i] >= 0 && (s.Op == Unless || len(s.Conf) > 0) && r.Steps[shadows[i]].Origin != s.Origin {
			verdicts[i] = stepVerdict{rival: shadows[i]}
		}
	}
	for i, j := range shadows {
		if j >= 0 && !verdicts[i].used && verdicts[j].rival < 0 {
			verdicts[j].rival = i
		}
	}
	return verdicts
}

// FieldVerdicts says of every leaf field of the configuration who set it, who
// else would have, and why they lost, in bytewise order of the fields. For a
// rule that differs per caller, ask on ForCaller's result.
func (r *Rule) FieldVerdicts() []FieldVerdict {
	t := r.trace()
	fields := slices.Sorted(maps.Keys(t.fold.Fields()))
	verdicts := make([]FieldVerdict, 0, len(fields))
	for _, p := range fields {
		verdicts = append(verdicts, t.field(p))
	}
	return verdicts
}

func (t *trace) field(p Pointer) FieldVerdict {
	w := t.owner[p]
	winner := &t.rule.Steps[w]
	value, _ := At(t.fold.Conf(), p)
	v := FieldVerdict{Field: p, Winner: Candidate{Value: value, Has: true}}
	won := winner.Precedence.Alone()
	for i := range t.rule.Steps {
		s := &t.rule.Steps[i]
		bid, has := bidFor(s.Conf, p)
		if i == w || (!has && (s.Op != Unless || t.tookEffect[i])) {
			continue
		}
		d := winner.Precedence.Over(s.Precedence)
		if d == (Decision{}) {
			continue
		}
		if len(v.Losers) == 0 {
			won = d
		}
		v.Losers = append(v.Losers, Candidate{
			Verdict: Verdict{Policy: s.Origin, Rule: d.Rule, Reason: d.Lost}, Value: bid, Has: has,
		})
	}
	v.Winner.Verdict = Verdict{Policy: winner.Origin, Used: true}
	v.Winner.Rule, v.Winner.Reason = won.won()
	return v
}

// bidFor returns what a configuration has at a field, or the scalar it has in
// the place of an object around it.
func bidFor(t Tree, p Pointer) (any, bool) {
	var v any = t
	for _, name := range p.Names() {
		object, ok := v.(Tree)
		if !ok {
			return v, true
		}
		if v, ok = object[name]; !ok {
			return nil, false
		}
	}
	return v, true
}
