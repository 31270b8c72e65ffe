package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// InheritedTarget is what an inherited policy targets (§5.1).
type InheritedTarget struct {
	Group       *string `json:"group,omitzero" doc:"API group of the target; gateway.networking.k8s.io when absent."`
	Kind        string  `json:"kind" required:"true" enum:"Gateway|HTTPRoute|GRPCRoute" doc:"Kind of the target."`
	Name        string  `json:"name,omitzero" doc:"Name of the target."`
	SectionName *string `json:"sectionName,omitzero" notEmpty:"true" doc:"Listener of the Gateway or rule of the route; all of them when absent."`
}

// Section returns the listener or rule that is targeted; empty means the whole
// object.
func (t *InheritedTarget) Section() string {
	if t.SectionName == nil {
		return ""
	}
	return *t.SectionName
}

func (t *InheritedTarget) check(at Path, r *Report) {
	if t.Name == "" {
		r.Findf(CodeTargetNotFound, at.Field("name"), "is missing: the policy targets no %s until it names one", t.Kind)
	}
}

// RuleID is the identity of a rule of an inherited policy (§5.3).
type RuleID struct {
	// Section is empty for the limits of a RateLimitPolicy.
	Section string
	Name    string
}

// String prints the identity as explanations do: the path of `unset` without
// its first step, `authentication.a` or `authentication["a.b"]`; for a limit,
// its name.
func (id RuleID) String() string {
	if id.Section == "" {
		return id.Name
	}
	return string(doctree.MemberPath(Path(id.Section), id.Name))
}

// RuleBlock is a block of defaults or overrides of an inherited policy.
type RuleBlock struct {
	Strategy Strategy
	// When is the condition in CEL; empty means always.
	When    string
	OnError OnError
	// Rules holds the rules by section and name, or by name for limits, each
	// body one opaque value of map[string]any, []any, string, bool, json.Number
	// or nil.
	Rules map[string]any
	// Path is the block's place in the spec; the root for bare rules.
	Path Path
}

// InheritedSpec is implemented by the kinds of §5: one view of their
// forms. Every call builds what it returns; the caller owns the result.
type InheritedSpec interface {
	Spec
	Target() InheritedTarget
	// Defaults returns the defaults block, or bare rules as an atomic one; nil
	// when there is neither.
	Defaults() *RuleBlock
	// Overrides returns the overrides block; nil when absent.
	Overrides() *RuleBlock
	// UnsetRules returns the rules that the policy takes out of defaults from
	// above, in document order.
	UnsetRules() []RuleID
}

// ErrUnset is what ParseUnset wraps.
var ErrUnset = errors.New(`not a rule's path: write rules.<section>.<name> or limits.<name>, with names that hold dots as ["a.b"]`)

// unsetRoots are the first steps of the two kinds of paths.
const (
	unsetRules  = "rules"
	unsetLimits = "limits"
)

// authSections are the sections of an AuthPolicy (§5.3).
var authSections = []string{"authentication", "metadata", "authorization", "response", "callbacks", "patterns"}

// AuthSections returns the sections of an AuthPolicy (§5.3).
func AuthSections() []string { return slices.Clone(authSections) }

// ParseUnset takes a path of `unset` apart (§5.2): the section of an
// AuthPolicy's rules, or "limits", and the name of the rule. Errors wrap
// ErrUnset.
func ParseUnset(path string) (section, name string, err error) {
	steps, ok := pathSteps(path)
	refuse := func(why string) (string, string, error) {
		return "", "", fmt.Errorf("%q is %w: %s", doctree.Clip(path), ErrUnset, why)
	}
	if !ok {
		return refuse("its steps cannot be told apart")
	}
	switch steps[0] {
	case unsetLimits:
		section, steps = unsetLimits, steps[1:]
	case unsetRules:
		if len(steps) == 1 {
			return refuse("the rules cannot be unset as a whole")
		}
		if section = steps[1]; !slices.Contains(authSections, section) {
			return refuse(fmt.Sprintf("there is no section %q%s", doctree.Clip(section), didYouMean(section, authSections)))
		}
		steps = steps[2:]
	default:
		return refuse("it begins with neither rules nor limits")
	}
	switch {
	case len(steps) == 0:
		return refuse(section + " cannot be unset as a whole")
	case len(steps) > 1:
		return refuse("there is more after the rule's name")
	case steps[0] == "":
		return refuse("the rule's name is empty")
	}
	return section, steps[0], nil
}

// pathSteps splits a dotted path with quoted names into its steps; false when
// it is none.
func pathSteps(path string) (steps []string, ok bool) {
	if path == "" || strings.HasPrefix(path, ".") || strings.HasPrefix(path, "[") {
		return nil, false
	}
	for rest := path; rest != ""; {
		name, index, tail, ok := doctree.FirstStep(rest)
		if !ok || index >= 0 {
			return nil, false
		}
		steps, rest = append(steps, name), tail
	}
	return steps, !strings.HasSuffix(path, ".")
}

// checkUnset reports paths that are none or that the kind does not have.
func checkUnset(at Path, paths []string, limits bool, r *Report) {
	for i, path := range paths {
		section, _, err := ParseUnset(path)
		switch {
		case err != nil:
			r.Errorf(at.Index(i), "%s", err)
		case limits && section != unsetLimits:
			r.Errorf(at.Index(i), "a RateLimitPolicy has limits, not rules: write limits.<name>, got %q", doctree.Clip(path))
		case !limits && section == unsetLimits:
			r.Errorf(at.Index(i), "an AuthPolicy has rules, not limits: write rules.<section>.<name>, got %q", doctree.Clip(path))
		case slices.Contains(paths[:i], path):
			r.Warnf(at.Index(i), "%s is listed twice", doctree.Clip(path))
		}
	}
}

// unsetIDs are the parsed paths; those that are none have been refused.
func unsetIDs(paths []string) []RuleID {
	var ids []RuleID
	for _, path := range paths {
		section, name, err := ParseUnset(path)
		if err != nil {
			continue
		}
		if section == unsetLimits {
			section = ""
		}
		ids = append(ids, RuleID{Section: section, Name: name})
	}
	return ids
}

// RuleBodies are rules by name, each an opaque body.
type RuleBodies map[string]json.RawMessage

// tree decodes the bodies.
func (b RuleBodies) tree() map[string]any {
	tree := make(map[string]any, len(b))
	for name, body := range b {
		tree[name] = plain(body)
	}
	return tree
}

func (b RuleBodies) check(at Path, r *Report) {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		switch {
		case name == "":
			r.Errorf(at.Key(name), "a rule needs a name")
		case string(b[name]) == "null":
			r.Errorf(doctree.MemberPath(at, name), "has no body; write {} for an empty one, or use unset")
		}
	}
}

// AuthRules are the rules of an AuthPolicy by section; bodies are opaque and
// never merged inside (§5.3).
type AuthRules struct {
	Authentication RuleBodies `json:"authentication,omitzero" doc:"How callers prove who they are, by rule name."`
	Metadata       RuleBodies `json:"metadata,omitzero" doc:"What else is fetched about a request, by rule name."`
	Authorization  RuleBodies `json:"authorization,omitzero" doc:"What callers may do, by rule name."`
	Response       RuleBodies `json:"response,omitzero" doc:"What is added to the request or answered, by rule name."`
	Callbacks      RuleBodies `json:"callbacks,omitzero" doc:"Who is told about the decision, by rule name."`
	Patterns       RuleBodies `json:"patterns,omitzero" doc:"Named conditions that other rules refer to."`
}

func (a *AuthRules) sections() []RuleBodies {
	return []RuleBodies{a.Authentication, a.Metadata, a.Authorization, a.Response, a.Callbacks, a.Patterns}
}

// tree returns the rules by section and name, without empty sections; nil when
// there is no rule.
func (a *AuthRules) tree() map[string]any {
	if a == nil {
		return nil
	}
	tree := map[string]any{}
	for i, bodies := range a.sections() {
		if len(bodies) > 0 {
			tree[authSections[i]] = bodies.tree()
		}
	}
	return tree
}

func (a *AuthRules) check(at Path, r *Report) {
	empty := true
	for i, bodies := range a.sections() {
		empty = empty && len(bodies) == 0
		bodies.check(at.Field(authSections[i]), r)
	}
	if empty {
		r.Errorf(at, "holds no rule: write at least one, or leave it out")
	}
}

// AuthPolicy protects the paths of gateways and routes by authentication and
// authorization rules that flow down from gateway to rule.
type AuthPolicy struct {
	TargetRef      InheritedTarget `json:"targetRef" required:"true" doc:"Gateway or route, or one section of it, that the policy is for."`
	Rules          *AuthRules      `json:"rules,omitzero" doc:"Bare rules: defaults that are taken as a whole; instead of defaults and overrides."`
	DefaultsBlock  *AuthBlock      `json:"defaults,omitzero" doc:"Rules that policies further down can replace."`
	OverridesBlock *AuthBlock      `json:"overrides,omitzero" doc:"Rules that replace those of policies further down."`
	Unset          []string        `json:"unset,omitzero" doc:"Rules from above to leave out, such as rules.authentication.a; overrides cannot be unset."`
}

// AuthBlock is a block of defaults or overrides of an AuthPolicy.
type AuthBlock struct {
	BlockHead
	Rules *AuthRules `json:"rules,omitzero" doc:"The rules of the block."`
}

// Validate implements Spec (§5.2).
func (p *AuthPolicy) Validate(at Path, r *Report) {
	p.TargetRef.check(at.Field("targetRef"), r)
	if p.Rules != nil {
		p.Rules.check(at.Field("rules"), r)
	}
	p.DefaultsBlock.check(at.Field("defaults"), r)
	p.OverridesBlock.check(at.Field("overrides"), r)
	checkForms(at, formsOf{
		bare: p.Rules != nil, bareName: "`rules`",
		defaults: p.DefaultsBlock != nil, overrides: p.OverridesBlock != nil, unset: p.Unset != nil,
	}, r)
	checkUnset(at.Field("unset"), p.Unset, false, r)
}

func (b *AuthBlock) check(at Path, r *Report) {
	if b == nil {
		return
	}
	b.BlockHead.check(at, r)
	if b.Rules == nil {
		r.Errorf(at.Field("rules"), "is required: a block without rules does nothing")
		return
	}
	b.Rules.check(at.Field("rules"), r)
}

func (b *AuthBlock) normal(at Path) *RuleBlock {
	if b == nil {
		return nil
	}
	return b.BlockHead.ruleBlock(b.Rules.tree(), at)
}

// ruleBlock is the engines' view of a block.
func (h *BlockHead) ruleBlock(rules map[string]any, at Path) *RuleBlock {
	return &RuleBlock{Strategy: h.strategy(), When: h.when(), OnError: h.onError(), Rules: rules, Path: at}
}

// Target implements InheritedSpec.
func (p *AuthPolicy) Target() InheritedTarget { return p.TargetRef }

// Defaults implements InheritedSpec.
func (p *AuthPolicy) Defaults() *RuleBlock {
	if p.Rules != nil {
		return new(BlockHead).ruleBlock(p.Rules.tree(), Root)
	}
	return p.DefaultsBlock.normal("defaults")
}

// Overrides implements InheritedSpec.
func (p *AuthPolicy) Overrides() *RuleBlock { return p.OverridesBlock.normal("overrides") }

// UnsetRules implements InheritedSpec.
func (p *AuthPolicy) UnsetRules() []RuleID { return unsetIDs(p.Unset) }

// RateLimitPolicy bounds the requests on the paths of gateways and routes by
// limits that flow down from gateway to rule.
type RateLimitPolicy struct {
	TargetRef      InheritedTarget `json:"targetRef" required:"true" doc:"Gateway or route, or one section of it, that the policy is for."`
	Limits         RuleBodies      `json:"limits,omitzero" doc:"Bare limits by name: defaults that are taken as a whole; instead of defaults and overrides."`
	DefaultsBlock  *LimitBlock     `json:"defaults,omitzero" doc:"Limits that policies further down can replace."`
	OverridesBlock *LimitBlock     `json:"overrides,omitzero" doc:"Limits that replace those of policies further down."`
	Unset          []string        `json:"unset,omitzero" doc:"Limits from above to leave out, such as limits.a; overrides cannot be unset."`
}

// LimitBlock is a block of defaults or overrides of a RateLimitPolicy.
type LimitBlock struct {
	BlockHead
	Limits RuleBodies `json:"limits,omitzero" doc:"The limits of the block, by name."`
}

// Validate implements Spec (§5.2).
func (p *RateLimitPolicy) Validate(at Path, r *Report) {
	p.TargetRef.check(at.Field("targetRef"), r)
	p.Limits.check(at.Field("limits"), r)
	if p.Limits != nil && len(p.Limits) == 0 {
		r.Errorf(at.Field("limits"), "holds no limit: write at least one, or leave it out")
	}
	p.DefaultsBlock.check(at.Field("defaults"), r)
	p.OverridesBlock.check(at.Field("overrides"), r)
	checkForms(at, formsOf{
		bare: p.Limits != nil, bareName: "`limits`",
		defaults: p.DefaultsBlock != nil, overrides: p.OverridesBlock != nil, unset: p.Unset != nil,
	}, r)
	checkUnset(at.Field("unset"), p.Unset, true, r)
}

func (b *LimitBlock) check(at Path, r *Report) {
	if b == nil {
		return
	}
	b.BlockHead.check(at, r)
	if len(b.Limits) == 0 {
		r.Errorf(at.Field("limits"), "is required: a block without limits does nothing")
	}
	b.Limits.check(at.Field("limits"), r)
}

func (b *LimitBlock) normal(at Path) *RuleBlock {
	if b == nil {
		return nil
	}
	return b.BlockHead.ruleBlock(b.Limits.tree(), at)
}

// Target implements InheritedSpec.
func (p *RateLimitPolicy) Target() InheritedTarget { return p.TargetRef }

// Defaults implements InheritedSpec.
func (p *RateLimitPolicy) Defaults() *RuleBlock {
	if p.Limits != nil {
		return new(BlockHead).ruleBlock(p.Limits.tree(), Root)
	}
	return p.DefaultsBlock.normal("defaults")
}

// Overrides implements InheritedSpec.
func (p *RateLimitPolicy) Overrides() *RuleBlock { return p.OverridesBlock.normal("overrides") }

// UnsetRules implements InheritedSpec.
func (p *RateLimitPolicy) UnsetRules() []RuleID { return unsetIDs(p.Unset) }
