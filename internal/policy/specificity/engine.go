package specificity

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// Engine implements policy.Engine for the twelve source/destination kinds. It
// is stateless.
type Engine struct{}

var (
	_ policy.Engine   = Engine{}
	_ policy.Surveyor = Engine{}
)

// Kinds implements policy.Engine: the table of kinds says which these are.
func (Engine) Kinds() []resource.Kind {
	var kinds []resource.Kind
	for _, d := range resource.Kinds() {
		if d.Class == resource.SourceDestination {
			kinds = append(kinds, d.Kind)
		}
	}
	return kinds
}

// compiled is a policy ready to be ranked.
type compiled struct {
	key      resource.Key
	modified time.Time
	// Sources and destinations of connection policies; selectors of dataplane
	// policies are sources: they select the dataplane itself.
	sources, destinations side
	// conf is made when the policy first takes effect somewhere: to file a policy takes
	// its selectors alone.
	conf func() policy.Tree
}

// Compile implements policy.Engine. Every combination of a source and a
// destination is an area the policy reaches; on inbounds, the destinations
// alone say where, and the sources only for whom.
func (Engine) Compile(_ policy.View, r *resource.Resource) *policy.Policy {
	c := newCompiled(r)
	written := r.Spec()
	c.conf = sync.OnceValue(func() policy.Tree {
		if spec, ok := r.Spec().(resource.ConfSpec); ok {
			if conf := spec.ConfTree(); conf != nil {
				return conf
			}
		}
		return policy.Tree{}
	})
	p := &policy.Policy{Resource: r, Data: c}
	switch written.(type) {
	case resource.DataplaneSpec:
		for i := range c.sources.written {
			p.Reach = append(p.Reach, policy.Reach{On: policy.OnDataplane, Member: c.sources.written[i].match})
		}
	case resource.ConnectionSpec:
		for i := range c.destinations.written {
			to := c.destinations.written[i].match
			if direction(c.key.Kind) == resource.OnInbound {
				p.Reach = append(p.Reach, policy.Reach{On: policy.OnInbound, Member: to, Attachment: to})
				continue
			}
			for j := range c.sources.written {
				from := c.sources.written[j].match
				p.Reach = append(p.Reach, policy.Reach{On: policy.OnOutbound, Member: from, Attachment: to})
			}
		}
	}
	return p
}

// newCompiled returns a policy as far as it takes to rank it.
func newCompiled(r *resource.Resource) *compiled {
	c := &compiled{key: r.Key(), modified: r.Meta().ModificationTime}
	if c.modified.IsZero() {
		c.modified = r.Meta().CreationTime // §1.1: never modified since
	}
	switch spec := r.Spec().(type) {
	case resource.DataplaneSpec:
		c.sources = newSide(spec.DataplaneSelectors())
	case resource.ConnectionSpec:
		c.sources, c.destinations = newSide(spec.SourceSelectors()), newSide(spec.DestinationSelectors())
	}
	return c
}

func direction(kind resource.Kind) resource.Direction {
	if d, ok := resource.Describe(kind); ok {
		return d.Direction
	}
	return 0
}

// Rules implements policy.Engine.
func (Engine) Rules(q *policy.Query) []policy.Rule {
	bids, unused := collect(q)
	if len(bids) == 0 {
		return nil
	}
	slices.SortFunc(bids, func(a, b bid) int { return compareBids(&a, &b) })
	rule := policy.Rule{Target: policy.Target{Attachment: *q.Attachment, Kind: q.Kind}}
	if q.Attachment.Type == policy.OnInbound {
		rule.PerCaller = true
		rule.Steps, rule.Unused = perCaller(q, bids)
	} else {
		rule.Steps = make([]policy.Step, len(bids))
		for i := range bids {
			rule.Steps[i] = bids[i].step(&bids[i], policy.Unless)
		}
	}
	rule.Unused = append(rule.Unused, unused...)
	return []policy.Rule{rule}
}

// winnerOnly reports whether one policy wins and the query does not include the
// others: then they need not be sorted.
func winnerOnly(q *policy.Query) bool {
	perCaller := q.Attachment.Type == policy.OnInbound && q.Mesh.Matching.SourceDestination == resource.Kuma2020
	return !q.Explain && !perCaller
}

// collect ranks the candidates that match the attachment (§3.2, §3.3)
// and, when asked to explain, says why the others do not.
func collect(q *policy.Query) ([]bid, []policy.Unused) {
	var bids []bid
	var unused []policy.Unused
	winner := winnerOnly(q)
	byTime := q.Mesh.Matching.SourceDestination != resource.Kuma2020
	for _, candidate := range q.Candidates {
		c := candidate.Data.(*compiled)
		if r, matches := c.rankOn(q); matches {
			b := bid{compiled: c, rank: r, byTime: byTime}
			switch {
			case !winner || len(bids) == 0:
				bids = append(bids, b)
			case compareBids(&b, &bids[0]) < 0:
				bids[0] = b
			}
		} else if q.Explain {
			unused = append(unused, policy.Unused{
				Policy: c.key, Missed: true, Rule: "3.2",
				Reason: fmt.Sprintf("its destinations do not match this %s", q.Attachment.Type),
			})
		}
	}
	return bids, unused
}

// rankOn matches a policy with an attachment (§3.2) and ranks it
// (§3.3): outbound policies by the tags of both sides together, inbound
// policies by their destinations alone, for the caller is not known yet.
func (c *compiled) rankOn(q *policy.Query) (rank, bool) {
	switch q.Attachment.Type {
	case policy.OnDataplane:
		return c.sources.best(q.Dataplane.Members)
	case policy.OnInbound:
		return c.destinations.bestOf(q.Attachment.Tags)
	default:
		to, matches := c.destinations.bestOf(q.Attachment.Tags)
		if !matches {
			return rank{}, false
		}
		from, matches := c.sources.best(q.Dataplane.Members)
		return from.plus(to), matches
	}
}

// step turns a bid into a step, which keeps precedence.
func (b *bid) step(precedence *bid, op policy.Op) policy.Step {
	s := policy.Step{Op: op, Conf: b.conf(), Origin: b.key, Precedence: precedence}
	if b.source != nil {
		s.Match = b.source.match
	}
	return s
}

// perCaller lists for which callers the sorted bids of an inbound hold
// (§3.5).
func perCaller(q *policy.Query, bids []bid) ([]policy.Step, []policy.Unused) {
	switch {
	case q.Mesh.Matching.SourceDestination != resource.Kuma2020:
		return chosen(q, bids)
	case q.Kind == resource.KindTrafficPermission:
		for i := range bids {
			bids[i].together = true
		}
		return everySource(bids, policy.Fill), nil
	default:
		return rankedPerCaller(bids), nil
	}
}

// chosen gives an inbound exactly one policy, with its sources in the order
// they are written (§3.5, KongMesh).
func chosen(q *policy.Query, bids []bid) ([]policy.Step, []policy.Unused) {
	if len(bids) > 1 {
		bids[0].runnerUp = &bids[1]
	}
	var unused []policy.Unused
	if q.Explain {
		for i := range bids[1:] {
			d := bids[0].Over(&bids[1+i])
			unused = append(unused, policy.Unused{Policy: bids[1+i].key, Rule: d.Rule, Reason: d.Lost})
		}
	}
	if q.Kind == resource.KindTrafficPermission {
		return everySource(bids[:1], policy.Fill), unused
	}
	return everySource(bids[:1], policy.Unless), unused
}

// everySource makes one step for every source of every bid, in order. Permissions
// are merged defaults: they have nothing to set and so add up.
func everySource(bids []bid, op policy.Op) []policy.Step {
	var steps []policy.Step
	for i := range bids {
		for j := range bids[i].sources.written {
			s := bids[i].step(&bids[i], op)
			s.Match = bids[i].sources.written[j].match
			steps = append(steps, s)
		}
	}
	return steps
}

// rankedPerCaller ranks over both selectors for a given connection
// (§3.5, Kuma2020): the first step that matches a caller is that of the policy
// that ranks best for it.
func rankedPerCaller(bids []bid) []policy.Step {
	var each []bid
	for i := range bids {
		for j := range bids[i].sources.written {
			b := bids[i]
			b.source = &b.sources.written[j]
			b.rank = b.rank.plus(b.source.rank)
			each = append(each, b)
		}
	}
	slices.SortStableFunc(each, func(a, b bid) int { return compareBids(&a, &b) })
	steps := make([]policy.Step, len(each))
	for i := range each {
		each[i].perCaller, each[i].first = len(bids) > 1, each[i].key == each[0].key
		steps[i] = each[i].step(&each[i], policy.Unless)
	}
	return steps
}
