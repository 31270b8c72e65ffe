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

// Types and reasons of conditions (§5.8). Several policies on one
// target are folded together (§5.5), so that none is ever Conflicted.
const (
	typeAccepted = "Accepted"
	typeEnforced = "Enforced"
	// typeConditionFailed says that a `when` could not be decided somewhere
	// (§5.6).
	typeConditionFailed = "ConditionFailed"
	// typeUnknownRule says that a `when` asks for a rule that no policy below has on
	// any path (§5.6).
	typeUnknownRule = "UnknownRule"
	// typeUnsetWithoutEffect says that an unset takes nothing out (§5.8).
	typeUnsetWithoutEffect = "UnsetWithoutEffect"

	reasonAccepted          = "Accepted"
	reasonInvalid           = "Invalid"
	reasonTargetNotFound    = "TargetNotFound"
	reasonEnforced          = "Enforced"
	reasonPartiallyEnforced = "PartiallyEnforced"
	reasonOverridden        = "Overridden"
	reasonUnknown           = "Unknown"
	reasonEvaluationFailed  = "EvaluationFailed"
	reasonUnaffected        = "Unaffected"
	reasonAffected          = "Affected"
	reasonPartiallyAffected = "PartiallyAffected"
	reasonNoSuchRule        = "NoSuchRule"
	reasonUnsetOverride     = "Override"
	reasonUnsetNothing      = "NoDefault"
)

// The sentences of the status tables that Kuadrant published, in its spelling, which readers of status match
// on.
const (
	saidAccepted = "Policy has been accepted"
	saidInvalid  = "Policy is invalid"
	saidEnforced = "Policy has been successfuly enforced" //nolint:misspell // as Kuadrant spells it
	saidIssues   = "Policy has encountered some issues"
)

// maxTold bounds how many paths a message names.
const maxTold = 3

const (
	isTrue  = "True"
	isFalse = "False"
)

// Conditions implements policy.Conditioner, for policies and for the objects
// that they can target.
func (x *Index) Conditions(key resource.Key) ([]policy.Condition, bool) {
	return x.conditions(key, inFull)
}

// States implements policy.Conditioner.
func (x *Index) States(key resource.Key) ([]policy.Condition, bool) {
	states, known := x.conditions(key, brief)
	for i := range states {
		states[i].Message = ""
	}
	return states, known
}

// detail is how much of a condition's message is worth its price.
type detail int

const (
	// brief leaves out the name that was probably meant.
	brief detail = iota
	inFull
)

func (x *Index) conditions(key resource.Key, d detail) ([]policy.Condition, bool) {
	isPolicy := schemaOf(key.Kind) >= 0
	if !Follows(key.Kind) {
		return nil, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.meshes[key.Mesh]
	switch {
	case m == nil:
		return nil, true
	case !isPolicy:
		return x.targetConditionsLocked(m, key, d), true
	case m.policies[key] == nil:
		return nil, true
	default:
		conditions, _ := x.policyConditionsLocked(m, m.policies[key], d)
		return conditions, true
	}
}

// policyConditionsLocked returns the conditions of a policy, and what became of
// its rules where it is accepted.
func (x *Index) policyConditionsLocked(m *mesh, c *compiled, d detail) ([]policy.Condition, tally) {
	if why := m.refusal(c, d); why != nil {
		return []policy.Condition{*why, {
			Type: typeEnforced, Status: isFalse, Reason: reasonUnknown, Message: saidIssues + ": it is not accepted",
		}}, tally{}
	}
	accepted := policy.Condition{Type: typeAccepted, Status: isTrue, Reason: reasonAccepted, Message: saidAccepted}
	if len(c.unset) > 0 && !m.mayUnset {
		accepted.Message += ". Its unset has no effect: the mesh forbids unsetting"
	}
	s := x.surveyLocked(m, c)
	return s.conditions(accepted), s.rules
}

// conditions are those of a policy that is accepted.
func (s *survey) conditions(accepted policy.Condition) []policy.Condition {
	conditions := []policy.Condition{accepted, s.enforced()}
	if len(s.failures) > 0 {
		conditions = append(conditions, policy.Condition{
			Type: typeConditionFailed, Status: isTrue, Reason: reasonEvaluationFailed, Message: s.failureMessage(),
		})
	}
	return append(conditions, s.guards()...)
}

// refusal returns the condition of a policy that is not accepted, or nil.
func (m *mesh) refusal(c *compiled, d detail) *policy.Condition {
	if c.invalid != "" {
		return &policy.Condition{Type: typeAccepted, Status: isFalse, Reason: reasonInvalid, Message: saidInvalid + ": " + c.invalid}
	}
	objects := m.objects
	if d == brief {
		objects = func(resource.Kind) []string { return nil }
	}
	name, why := m.missing(c.target, objects)
	if why == "" {
		return nil
	}
	return &policy.Condition{
		Type: typeAccepted, Status: isFalse, Reason: reasonTargetNotFound,
		Message: fmt.Sprintf("Policy target %s was not found: %s", name, why),
	}
}

// missing says what of a target does not exist; nothing when all of it does.
// objects lists what its object could be named.
func (m *mesh) missing(t target, objects func(resource.Kind) []string) (name, why string) {
	sections, what, exists := m.sectionsOf(t)
	switch {
	case t.name == "":
		return string(t.kind), "targetRef has no name"
	case !exists:
		return t.name, fmt.Sprintf("mesh %q has no %s of that name%s", m.name, t.kind, meant(t.name, objects(t.kind)))
	case t.section != "" && !slices.Contains(sections, t.section):
		return t.name + "/" + t.section, fmt.Sprintf("%s %s has no %s of that name%s", t.kind, t.name, what, meant(t.section, sections))
	default:
		return "", ""
	}
}

// sectionsOf lists the sections of a target's object and says what they are;
// false when there is no such object.
func (m *mesh) sectionsOf(t target) (sections []string, what string, exists bool) {
	if t.kind != resource.KindGateway {
		r := m.routes[resource.Key{Kind: t.kind, Mesh: m.name, Name: t.name}]
		if r == nil {
			return nil, "rule", false
		}
		return r.rules, "rule", true
	}
	g := m.gateways[t.name]
	if g == nil {
		return nil, "listener", false
	}
	for i := range g.listeners {
		sections = append(sections, g.listeners[i].Name)
	}
	return sections, "listener", true
}

// objects lists what a kind of target could be named, in bytewise order.
func (m *mesh) objects(kind resource.Kind) []string {
	if kind == resource.KindGateway {
		return slices.Sorted(maps.Keys(m.gateways))
	}
	var names []string
	for key := range m.routes {
		if key.Kind == kind {
			names = append(names, key.Name)
		}
	}
	slices.Sort(names)
	return names
}

func meant(name string, candidates []string) string {
	if near, ok := resource.Nearest(name, candidates); ok {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// survey is what became of a policy on all its paths.
type survey struct {
	paths int
	// rules counts the policy's rules on all paths; unsets counts defaults that
	// it took out.
	rules  tally
	unsets int
	// overridden and unset have the policy's rules by who overrode or unset
	// them; the others have the rules that policies above added to its own.
	overridden, unset, defaultsAdded, overridesAdded byPolicy
	skipped                                          map[string]bool // blocks
	failures                                         []failure
	guarded                                          guarded
	// detached says why there are no paths, where that is known.
	detached string
}

// tally counts rules by what became of them.
type tally struct{ effective, overridden, unset, skipped int }

func (t *tally) add(other tally) {
	t.effective += other.effective
	t.overridden += other.overridden
	t.unset += other.unset
	t.skipped += other.skipped
}

// failure is a condition that could not be decided on a path.
type failure struct {
	path   policy.Path
	block  string
	reason string
	used   bool
}

// byPolicy is identities of rules by the label of a policy.
type byPolicy map[string]map[string]bool

func (b byPolicy) add(policy, rule string) {
	if b[policy] == nil {
		b[policy] = map[string]bool{}
	}
	b[policy][rule] = true
}

// String prints "p: x, y; by q: z" in bytewise order.
func (b byPolicy) String() string {
	var parts []string
	for _, policy := range slices.Sorted(maps.Keys(b)) {
		parts = append(parts, policy+": "+strings.Join(slices.Sorted(maps.Keys(b[policy])), ", "))
	}
	return strings.Join(parts, "; by ")
}

func (x *Index) surveyLocked(m *mesh, c *compiled) *survey {
	s := &survey{
		overridden: byPolicy{}, unset: byPolicy{}, defaultsAdded: byPolicy{}, overridesAdded: byPolicy{},
		skipped: map[string]bool{},
	}
	s.guarded.init(c, m.mayUnset)
	seen := map[*outcome]tally{} // rules without policies of their own share one
	for v := range x.visitsLocked(m, c.target) {
		t, again := seen[v.outcome]
		if !again {
			t = s.look(v.outcome, c)
			s.guarded.look(v.outcome, v.outcome.linkOf(c))
			seen[v.outcome] = t
		}
		s.paths++
		s.rules.add(t)
		s.addFailures(v, v.outcome.linkOf(c))
	}
	if s.paths == 0 {
		s.detached = m.detached(c.target)
	}
	return s
}

// addFailures notes the conditions of a policy that could not be decided on a
// path.
func (s *survey) addFailures(v visit, at int) {
	for _, d := range v.outcome.decided {
		if d.link == at && d.failed() {
			s.failures = append(s.failures, failure{v.leg.path(v.rule), d.block.name, d.verdict.Reason, d.used})
		}
	}
}

// look takes in what became of the policy on a path and returns the count of its
// rules.
func (s *survey) look(o *outcome, c *compiled) (t tally) {
	sch, at := &schemas[c.target.schema], o.linkOf(c)
	for f := range o.fates(at) {
		switch f.state {
		case policy.RuleEffective:
			t.effective++
		case policy.RuleOverridden:
			t.overridden++
			if f.by.link != at {
				s.overridden.add(o.chain[f.by.link].label, sch.id(f.rule))
			}
		case policy.RuleUnset:
			t.unset++
			s.unset.add(o.chain[f.by.link].label, sch.id(f.rule))
		case policy.RuleSkipped:
			t.skipped++
			s.skipped[f.block.name] = true
		}
	}
	for rule, owner := range o.owner {
		if owner.link <= at {
			continue
		}
		if added := o.chain[owner.link].label; owner.block.name == blockDefaults {
			s.defaultsAdded.add(added, sch.id(rule))
		} else if !slices.ContainsFunc(o.losers[rule], func(l claim) bool { return l.link == at }) {
			s.overridesAdded.add(added, sch.id(rule))
		}
	}
	for _, d := range o.dropped {
		if d.by == at {
			s.unsets++
		}
	}
	return t
}

func (d *decision) failed() bool  { return d.verdict.Outcome == condition.Failed }
func (d *decision) matched() bool { return d.verdict.Outcome == condition.Matched }

// enforced judges a policy that is accepted. One that asks for nothing at the
// moment, since its conditions do not hold, is enforced: it is not a fault.
func (s *survey) enforced() policy.Condition {
	lost := len(s.overridden)+len(s.unset) > 0
	c := policy.Condition{Type: typeEnforced, Status: isTrue, Reason: reasonEnforced}
	switch {
	case s.paths == 0:
		c.Status, c.Reason, c.Message = isFalse, reasonUnknown, saidIssues+": no route leads through its target"
		if s.detached != "" {
			c.Message += ": " + s.detached
		}
		return c
	case s.rules.effective == 0 && lost:
		by := slices.Collect(maps.Keys(s.overridden))
		by = append(by, slices.Collect(maps.Keys(s.unset))...)
		slices.Sort(by)
		c.Status, c.Reason = isFalse, reasonOverridden
		c.Message = "Policy has been overridden by " + strings.Join(slices.Compact(by), ", ")
		return c
	case s.rules.effective == 0 && len(s.failures) > 0:
		c.Status, c.Reason, c.Message = isFalse, reasonUnknown, saidIssues+": "+s.failureMessage()
		return c
	case lost:
		c.Reason = reasonPartiallyEnforced
	}
	c.Message = s.enforcedMessage()
	return c
}

// enforcedMessage composes the message from the parts that hold.
func (s *survey) enforcedMessage() string {
	var parts []string
	add := func(what string, rules byPolicy) {
		if len(rules) > 0 {
			parts = append(parts, "the following "+what+" by "+rules.String())
		}
	}
	add("rules have been overridden", s.overridden)
	add("rules have been unset", s.unset)
	add("defaults have been added", s.defaultsAdded)
	add("overrides have been added", s.overridesAdded)
	message := saidEnforced
	if len(parts) > 0 {
		message += ". T" + strings.TrimPrefix(strings.Join(parts, "; "), "t")
	}
	if s.rules.effective == 0 && s.unsets == 0 && len(s.skipped) > 0 {
		blocks := strings.Join(slices.Sorted(maps.Keys(s.skipped)), " and ")
		message += fmt.Sprintf(". It asks for nothing at the moment: the condition of its %s does not hold on any path", blocks)
	}
	return message
}

func (s *survey) failureMessage() string {
	var told []string
	for i, f := range s.failures {
		if i == maxTold {
			told = append(told, fmt.Sprintf("and on %d more", len(s.failures)-i))
			break
		}
		then := "left out"
		if f.used {
			then = "applied, as onError says"
		}
		told = append(told, fmt.Sprintf("%s.when on %s: %s (%s)", f.block, f.path, f.reason, then))
	}
	return "the condition could not be decided: " + strings.Join(told, "; ")
}

// targetConditionsLocked returns whether a route is attached, and for every kind that
// the mesh has policies of, how they affect an object that policies can target.
func (x *Index) targetConditionsLocked(m *mesh, key resource.Key, d detail) []policy.Condition {
	var conditions []policy.Condition
	if r := m.routes[key]; r != nil {
		conditions = m.routeConditions(r, d)
	}
	for schema := range schemas {
		if m.written[schema] == 0 {
			continue
		}
		a := x.affectionsLocked(m, target{schema: schema, kind: key.Kind, name: key.Name})
		conditions = append(conditions, a.condition(schemas[schema].kind))
	}
	return conditions
}

// affections are the sections of an object on which policies contribute to what
// is enforced.
type affections struct {
	prefix string // of sections in messages
	total  int
	// idle sections have no path through them.
	idle map[int]bool
	// open has the paths on which no policy is effective, in order.
	open []policy.Path
	// sections has the affected ones by policy; whole the policies that are not
	// about single sections of the object.
	sections map[string]map[int]bool
	whole    map[string]bool
}

func (x *Index) affectionsLocked(m *mesh, t target) *affections {
	sections, what, _ := m.sectionsOf(t)
	a := &affections{
		prefix: what + "s", total: len(sections),
		idle: map[int]bool{}, sections: map[string]map[int]bool{}, whole: map[string]bool{},
	}
	for i := range a.total {
		a.idle[i] = true
	}
	seen := map[*outcome][]*compiled{} // ways with one chain share its outcome
	for v := range x.pathsLocked(m, t) {
		if v.outcome == nil || len(v.outcome.owner) == 0 {
			a.open = append(a.open, v.leg.path(v.rule))
		}
		if v.outcome == nil {
			continue
		}
		section := v.rule
		if t.kind == resource.KindGateway {
			section = v.leg.listener
		}
		delete(a.idle, section)
		policies, again := seen[v.outcome]
		if !again {
			policies = v.outcome.contributors()
			seen[v.outcome] = policies
		}
		for _, c := range policies {
			a.add(c, t, section)
		}
	}
	return a
}

// contributors are the policies with an effective rule.
func (o *outcome) contributors() []*compiled {
	links := make([]bool, len(o.chain))
	for _, c := range o.owner {
		links[c.link] = true
	}
	var policies []*compiled
	for i, contributes := range links {
		if contributes {
			policies = append(policies, o.chain[i].compiled)
		}
	}
	return policies
}

// add notes that a policy contributes to a section of the target's object.
func (a *affections) add(c *compiled, t target, section int) {
	if t.kind == resource.KindGateway && c.target.kind != resource.KindGateway {
		return // it is about the route, not about the gateway
	}
	if a.sections[c.label] == nil {
		a.sections[c.label] = map[int]bool{}
	}
	a.sections[c.label][section] = true
	if c.target.section == "" || c.target.kind != t.kind {
		a.whole[c.label] = true
	}
}

// condition puts affections in the words of Kuadrant's status (§5.8).
func (a *affections) condition(kind resource.Kind) policy.Condition {
	c := policy.Condition{Type: "kuadrant.io/" + string(kind) + "Affected", Status: isTrue, Reason: reasonPartiallyAffected}
	if len(a.sections) == 0 {
		c.Status, c.Reason = isFalse, reasonUnaffected
		c.Message = fmt.Sprintf("The object is not affected by any %s", kind)
		return c
	}
	var entirely, partly []string
	covered := map[int]bool{}
	for _, label := range slices.Sorted(maps.Keys(a.sections)) {
		mine := a.sections[label]
		if a.whole[label] {
			maps.Copy(mine, a.idle)
		}
		maps.Copy(covered, mine)
		if len(mine) == a.total {
			entirely = append(entirely, label)
			continue
		}
		var sections []string
		for _, i := range slices.Sorted(maps.Keys(mine)) {
			sections = append(sections, fmt.Sprintf("%s.%d", a.prefix, i))
		}
		partly = append(partly, fmt.Sprintf("The following sections of the object are affected by %s %s: %s",
			kind, label, strings.Join(sections, ", ")))
	}
	if len(covered) == a.total && len(a.open) == 0 {
		c.Reason = reasonAffected
	}
	if len(covered) == a.total && len(a.open) > 0 {
		partly = append(partly, fmt.Sprintf("No %s is effective on %s", kind, pathsText(a.open)))
	}
	if len(entirely) > 0 {
		partly = slices.Insert(partly, 0, fmt.Sprintf("The object is affected by %s %s", kind, strings.Join(entirely, ", ")))
	}
	c.Message = strings.Join(partly, ". ")
	return c
}
