package generate

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
)

// Conf is what the policies of one kind come to on an outbound or one of its routes.
// A nil Conf has nothing in it.
type Conf struct {
	// Kind is that of the policies.
	Kind   resource.Kind
	tree   policy.Tree
	fields map[policy.Pointer]resource.Key
}

// NewConf is what one rule comes to.
func NewConf(rule *policy.Rule) *Conf {
	fold := rule.Fold()
	return &Conf{rule.Kind, fold.Conf(), fold.Fields()}
}

// Rules are the rules of one outbound, and of its routes, as matching has
// them.
type Rules []policy.Rule

// On returns the configuration of a kind on a route, "" for the outbound itself. A
// kind and its successor are given together: where the successor holds for anything on
// the outbound, it holds for all of it (§4.11). A route without an entry of its own has
// the outbound's.
func (rules Rules) On(route string, kind, successor resource.Kind) *Conf {
	for i := range rules {
		if rules[i].Kind == successor && len(rules[i].Steps) > 0 {
			kind = successor
		}
	}
	var own, outbound *policy.Rule
	for i := range rules {
		r := &rules[i]
		if r.Kind != kind || len(r.Steps) == 0 {
			continue
		}
		switch r.Attachment.Route {
		case "":
			outbound = r
		case route:
			own = r
		}
	}
	switch {
	case own != nil:
		return NewConf(own)
	case outbound != nil:
		return NewConf(outbound)
	}
	return nil
}

// Named reports whether a route has an entry of its own for one of two kinds.
func (rules Rules) Named(route string, kinds ...resource.Kind) bool {
	for i := range rules {
		for _, kind := range kinds {
			if route != "" && rules[i].Kind == kind && rules[i].Attachment.Route == route && len(rules[i].Steps) > 0 {
				return true
			}
		}
	}
	return false
}

// Equal reports whether two say the same, on the word of the same policies.
func (c *Conf) Equal(other *Conf) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.Kind == other.Kind && reflect.DeepEqual(c.tree, other.tree) && maps.Equal(c.fields, other.fields)
}

// Get returns the value at a pointer, or false.
func (c *Conf) Get(at policy.Pointer) (any, bool) {
	if c == nil {
		return nil, false
	}
	return policy.At(c.tree, at)
}

// Has reports whether something is written at a pointer.
func (c *Conf) Has(at policy.Pointer) bool {
	_, ok := c.Get(at)
	return ok
}

// Origin says that the value at path in a resource is that of a field.
func (c *Conf) Origin(path string, field policy.Pointer) []xds.Origin {
	if c == nil {
		return nil
	}
	for at := field; ; at = at[:strings.LastIndexByte(string(at), '/')] {
		if source, ok := c.fields[at]; ok {
			return []xds.Origin{{Path: path, Source: source, Field: string(field)}}
		}
		if at == "" {
			break
		}
	}
	// The field is an object whose members are leaves: it is from a policy that wrote one.
	var origins []xds.Origin
	for leaf, source := range c.fields {
		if field.Covers(leaf) && (origins == nil || source.Compare(origins[0].Source) < 0) {
			origins = []xds.Origin{{Path: path, Source: source, Field: string(field)}}
		}
	}
	return origins
}

// Origins are those of the whole, one for each policy.
func (c *Conf) Origins() (origins []xds.Origin) {
	for _, source := range slices.SortedFunc(maps.Values(c.fields), resource.Key.Compare) {
		if len(origins) == 0 || origins[len(origins)-1].Source != source {
			origins = append(origins, xds.Origin{Source: source})
		}
	}
	return origins
}

// Decode reads what is at a pointer into a value of a spec's type; false when there is
// nothing.
func (c *Conf) Decode(at policy.Pointer, into any) (bool, error) {
	value, ok := c.Get(at)
	if !ok {
		return false, nil
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return false, fmt.Errorf("%s: read %s: %w", c.Kind, at, err)
	}
	return true, nil
}

// Duration returns the duration at a pointer; false when there is none.
func (c *Conf) Duration(at policy.Pointer) (time.Duration, bool) {
	value, _ := c.Get(at)
	text, ok := value.(string)
	if !ok {
		return 0, false
	}
	d, err := resource.ParseDuration(text)
	return d.Value(), err == nil
}

// Number returns the number at a pointer; false when there is none.
func (c *Conf) Number(at policy.Pointer) (float64, bool) {
	value, _ := c.Get(at)
	n, ok := value.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}

// Bool returns whether true is written at a pointer.
func (c *Conf) Bool(at policy.Pointer) bool {
	value, _ := c.Get(at)
	b, _ := value.(bool)
	return b
}

// RulesOf returns the rules of an outbound and its routes.
func RulesOf(rules []policy.Rule, a *policy.Attachment) Rules {
	var mine Rules
	for _, r := range rules {
		bare := r.Attachment
		bare.Route = ""
		if bare.Compare(a) == 0 {
			mine = append(mine, r)
		}
	}
	return mine
}
