package targetref

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// plural names a form's content in a sentence.
func (b *block) plural() string {
	if b.form == bare {
		return "items"
	}
	return b.form.String()
}

// conditional reports whether the block may be left out.
func (b *block) conditional() bool { return b.when != nil || b.invalid != "" }

// conditional compiles a block's condition. One that was stored although it
// cannot be used leaves the block out (§5.6).
func (e *Engine) conditional(b *block, when string) *block {
	if when == "" {
		return b
	}
	compiled, err := e.compile(when)
	if err != nil {
		b.invalid = err.Error()
	}
	b.when = compiled
	return b
}

func (e *Engine) compile(when string) (*condition.Condition, error) {
	compiler, err := e.compiler()
	if err != nil {
		return nil, fmt.Errorf("prepare the conditions of targetRef policies: %w", err)
	}
	return compiler.Compile(when)
}

// holds decides a block's condition on what more specific policies come to
// (§4.10).
func (w *walk) holds(c *compiled, b *block, same string) bool {
	where := b.plural()
	if b.invalid != "" {
		w.note(c, "its %s are left out: when is invalid: %s", where, b.invalid)
		return false
	}
	self := w.self(same)
	verdict := b.when.Eval(context.Background(), condition.Input{
		Self: selfOf(self, c.key), Spec: self, Target: targetOf(c.target, w.Attachment, w.route),
	})
	switch {
	case verdict.Outcome == condition.Matched:
		return true
	case verdict.Outcome == condition.NotMatched:
		w.note(c, "when (%s) of its %s does not hold: %s", b.when, where, verdict.Reason)
		return false
	case b.onError == resource.ApplyOnError:
		w.note(c, "the condition of its %s failed and onError is apply: %s", where, verdict.Reason)
		return true
	default:
		w.note(c, "when (%s) of its %s failed: %s", b.when, where, verdict.Reason)
		return false
	}
}

// self is the configuration so far: of the attachment, or of the callers with
// one target. It is only read.
func (w *walk) self(same string) policy.Tree {
	f := policy.NewFold(policy.Units{})
	apply := func(steps []placed) {
		for i := range steps {
			if steps[i].same == same {
				f.Add(steps[i].Step)
			}
		}
	}
	for _, block := range slices.Backward(w.over) {
		apply(block)
	}
	apply(w.under)
	return f.Conf()
}

// selfOf is what conditions see as self: the fields of the configuration and,
// as in the inherited policies (§5.6), kind, metadata and spec. No
// configuration has fields of these names.
func selfOf(conf policy.Tree, key resource.Key) map[string]any {
	self := maps.Clone(conf)
	self["kind"] = string(key.Kind)
	self["metadata"] = map[string]any{"mesh": string(key.Mesh)}
	self["spec"] = conf
	return self
}

// targetOf is what conditions see as target: the policy's target and the
// attachment that is configured.
func targetOf(t resource.Target, a *policy.Attachment, r *route) map[string]any {
	at := map[string]any{
		"type": string(a.Type), "port": int64(a.Port), "service": a.Service, "tags": texts(a.Tags), "route": "",
	}
	if r != nil {
		at["route"] = r.name
	}
	return map[string]any{"kind": string(t.Kind), "name": t.Name, "tags": texts(t.Tags), "attachment": at}
}

func texts[M ~map[string]string](m M) map[string]any {
	values := make(map[string]any, len(m))
	for k, v := range m {
		values[k] = v
	}
	return values
}
