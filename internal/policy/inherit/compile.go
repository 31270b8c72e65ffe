package inherit

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// The names of blocks.
const (
	blockDefaults  = "defaults"
	blockOverrides = "overrides"
)

// target is what policies of one kind attach to: an object, or one section of
// it.
type target struct {
	schema  int
	kind    resource.Kind
	name    string
	section string // empty: the whole object
}

// compiled is a policy ready to be folded.
type compiled struct {
	key     resource.Key
	created time.Time
	// label is namespace/name, or the name where there is no namespace.
	label    string
	metadata map[string]any
	// targetRef is what conditions above see of the policy's target.
	targetRef map[string]any
	target    target
	blocks    []block
	unset     []policy.Pointer
	// invalid says why the policy is left out; empty when it is not.
	invalid string
}

// block is a policy's defaults or overrides.
type block struct {
	name  string
	op    policy.Op
	rules policy.Tree
	// leaves are the places of the rules, in bytewise order.
	leaves []policy.Pointer
	when   *condition.Condition // nil: always
	// asks are the rules that the condition names.
	asks    []policy.Pointer
	onError resource.OnError
}

// compile prepares a policy. One that cannot be used is compiled all the same,
// with the reason.
func compile(compiler *condition.Compiler, r *resource.Resource, schema int) *compiled {
	meta := r.Meta()
	c := &compiled{key: meta.Key, created: meta.CreationTime, label: label(meta), metadata: metadata(meta)}
	spec, ok := r.Spec().(resource.InheritedSpec)
	if !ok {
		c.invalid = fmt.Sprintf("a %s has no rules to inherit", meta.Kind)
		return c
	}
	at := spec.Target()
	c.target = target{schema: schema, kind: resource.Kind(at.Kind), name: refer(&meta, at.Name), section: at.Section()}
	c.targetRef = map[string]any{"group": "gateway.networking.k8s.io", "kind": at.Kind, "name": at.Name}
	if at.Group != nil {
		c.targetRef["group"] = *at.Group
	}
	if at.SectionName != nil {
		c.targetRef["sectionName"] = *at.SectionName
	}
	for _, id := range spec.UnsetRules() {
		c.unset = append(c.unset, pointer(id))
	}
	c.add(compiler, blockDefaults, spec, spec.Defaults(), policy.Unless, policy.Fill)
	c.add(compiler, blockOverrides, spec, spec.Overrides(), policy.Replace, policy.Overlay)
	return c
}

// add compiles a block, whose op depends on its strategy (§5.4).
func (c *compiled) add(compiler *condition.Compiler, name string, spec resource.InheritedSpec, b *resource.RuleBlock, atomic, merge policy.Op) {
	if b == nil {
		return
	}
	made := block{name: name, op: atomic, rules: b.Rules, onError: b.OnError}
	made.leaves = policy.Leaves(b.Rules, schemas[c.target.schema].depth())
	if b.Strategy == resource.Merge {
		made.op = merge
	}
	if b.When != "" {
		when, err := compiler.Compile(b.When)
		if err != nil {
			c.invalid = cmp.Or(c.invalid, string(b.Path.Field("when"))+": "+err.Error())
		}
		made.when = when
		for _, id := range condition.Rules(spec, b.When) {
			made.asks = append(made.asks, pointer(id))
		}
	}
	c.blocks = append(c.blocks, made)
}

// refer is the stored name of an object that a policy targets, which is in its own
// namespace (§1.1); none for a target without a name.
func refer(meta *resource.Meta, name string) string {
	if name == "" {
		return ""
	}
	return meta.Refer(name, nil)
}

// label is how status messages name a policy: namespace/name, where it has a namespace.
func label(meta resource.Meta) string {
	if namespace := meta.Labels[resource.LabelNamespace]; namespace != "" {
		_, name := meta.Namespace()
		return namespace + "/" + name
	}
	return meta.Name
}

// metadata is what a condition sees as an object's metadata.
func metadata(meta resource.Meta) map[string]any {
	labels := make(map[string]any, len(meta.Labels))
	for name, value := range meta.Labels {
		if name != resource.LabelNamespace {
			labels[name] = value
		}
	}
	_, name := meta.Namespace()
	return map[string]any{
		"name": name, "namespace": meta.Labels[resource.LabelNamespace],
		"mesh": string(meta.Mesh), "labels": labels,
	}
}

// compareSpecific orders policies of one target from the most specific, which
// is folded first, to the established one, which counts as higher: the older
// creation time, then the namespace/name that sorts first (§5.5).
func compareSpecific(a, b *compiled) int {
	return cmp.Or(b.created.Compare(a.created), strings.Compare(b.label, a.label), b.key.Compare(a.key))
}
