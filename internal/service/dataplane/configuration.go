package dataplane

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// entry is what a proxy was sent for one target, by its digest.
type entry struct {
	target policy.Target
	digest [sha256.Size]byte
}

// configuration is everything that takes effect on a dataplane, in order of the
// targets. It is shared between dataplanes and never modified.
type configuration struct {
	entries []entry
	// messages are the entries as they are sent.
	messages []*meridianv1.EffectiveEntry
	// rules is what it was made from: as long as it is held, no other rules can
	// be taken for these.
	rules []policy.Rule
}

// builder makes configurations. Dataplanes that share their rules share the
// configuration too, so that a change of a whole mesh is encoded once per shape
// and not once per proxy. Safe for concurrent use.
type builder struct {
	mu   sync.Mutex
	made map[*policy.Rule]*configuration // by the first of its rules; guarded by mu
}

// reset drops what was made before a change. It bounds memory only: rules that
// changed are other rules.
func (b *builder) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.made)
}

// build returns the configuration that rules come to.
func (b *builder) build(rules []policy.Rule) (*configuration, error) {
	if len(rules) == 0 {
		return &configuration{}, nil
	}
	b.mu.Lock()
	c := b.made[&rules[0]]
	b.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c = &configuration{
		entries: make([]entry, len(rules)), messages: make([]*meridianv1.EffectiveEntry, len(rules)), rules: rules,
	}
	for i := range rules {
		message, err := encodeEntry(&rules[i])
		if err != nil {
			return nil, err
		}
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("encode %s on %s: %w", rules[i].Kind, rules[i].Attachment.String(), err)
		}
		c.entries[i] = entry{target: rules[i].Target, digest: sha256.Sum256(encoded)}
		c.messages[i] = message
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.made == nil {
		b.made = make(map[*policy.Rule]*configuration)
	}
	b.made[&rules[0]] = c
	return c, nil
}

// diff returns what leads from the entries that a proxy has to this
// configuration: both lists are in order of the targets.
func (c *configuration) diff(have []entry) (set []*meridianv1.EffectiveEntry, removed []*meridianv1.EffectiveTarget) {
	for i, j := 0, 0; i < len(have) || j < len(c.entries); {
		switch order := compareAt(have, i, c.entries, j); {
		case order < 0:
			removed = append(removed, encodeTarget(&have[i].target))
			i++
		case order > 0:
			set = append(set, c.messages[j])
			j++
		default:
			if have[i].digest != c.entries[j].digest {
				set = append(set, c.messages[j])
			}
			i, j = i+1, j+1
		}
	}
	return set, removed
}

// compareAt orders the heads of two lists by target; an empty list comes last.
func compareAt(a []entry, i int, b []entry, j int) int {
	switch {
	case j == len(b):
		return -1
	case i == len(a):
		return 1
	default:
		return a[i].target.Compare(&b[j].target)
	}
}

func encodeTarget(t *policy.Target) *meridianv1.EffectiveTarget {
	a := &t.Attachment
	return &meridianv1.EffectiveTarget{
		Type: string(a.Type), Port: a.Port, Service: a.Service, Tags: a.Tags, Route: a.Route, Kind: string(t.Kind),
	}
}

func encodeEntry(rule *policy.Rule) (*meridianv1.EffectiveEntry, error) {
	e := &meridianv1.EffectiveEntry{Target: encodeTarget(&rule.Target), PerCaller: rule.PerCaller}
	for _, p := range rule.Policies() {
		e.Policies = append(e.Policies, p.Name)
	}
	var err error
	if !rule.PerCaller {
		e.Conf, err = encodeTree(rule.Fold().Conf())
		return e, err
	}
	for i, shadow := range rule.Shadows() {
		step := &rule.Steps[i]
		r := &meridianv1.EffectiveCallerRule{Match: step.Match, Policy: step.Origin.Name}
		if r.Conf, err = encodeTree(step.Conf); err != nil {
			return nil, err
		}
		if shadow >= 0 {
			r.ShadowedBy = rule.Steps[shadow].Origin.Name
		}
		e.Rules = append(e.Rules, r)
	}
	return e, nil
}

// encodeTree spells a configuration as compact JSON with sorted members.
func encodeTree(t policy.Tree) ([]byte, error) {
	if t == nil {
		t = policy.Tree{}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(t); err != nil {
		return nil, fmt.Errorf("encode the configuration of a proxy: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// effective reads the configuration of a dataplane and the revision it is as of.
type read func(ask func(*policy.Matcher, resource.Revision) error) error

func (b *builder) effective(read read, key resource.Key) (*configuration, resource.Revision, error) {
	var rules []policy.Rule
	var revision resource.Revision
	err := read(func(m *policy.Matcher, asOf resource.Revision) (err error) {
		revision = asOf
		rules, err = m.Effective(key)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	c, err := b.build(rules)
	return c, revision, err
}
