package policy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// precedence is the place of a step in a list that needs no engine.
type precedence struct {
	name  string
	place int
}

func (s precedence) Over(other policy.Precedence) policy.Decision {
	o := other.(precedence)
	return policy.Decision{Rule: "0.1", Won: s.name + " is above " + o.name, Lost: "below " + s.name}
}

func (s precedence) Alone() policy.Decision { return policy.Decision{Rule: "0.0", Won: "alone"} }

func tree(t testing.TB, text string) policy.Tree {
	t.Helper()
	parsed, err := policy.ParseTree([]byte(text))
	require.NoError(t, err)
	return parsed
}

func step(t testing.TB, op policy.Op, name, conf string) policy.Step {
	t.Helper()
	return policy.Step{
		Op: op, Conf: tree(t, conf), Origin: resource.Key{Kind: "K", Mesh: "m", Name: name}, Precedence: precedence{name: name},
	}
}

// TestFold shows what the four ops do, the most specific step first.
func TestFold(t *testing.T) {
	const fill, unless, overlay, replace = policy.Fill, policy.Unless, policy.Overlay, policy.Replace
	type s struct {
		op   policy.Op
		conf string
	}
	tests := map[string]struct {
		units policy.Units
		steps []s
		want  string
		from  map[policy.Pointer]string
	}{
		"objects merge, scalars from the first (§4.5)": {
			steps: []s{{fill, `{"a":1,"h":{"x":1}}`}, {fill, `{"a":2,"b":2,"h":{"x":2,"y":2}}`}},
			want:  `{"a":1,"b":2,"h":{"x":1,"y":2}}`,
			from:  map[policy.Pointer]string{"/a": "p0", "/b": "p1", "/h/x": "p0", "/h/y": "p1"},
		},
		"lists are taken whole and the empty list is a value (§1.2, §4.8)": {
			steps: []s{{fill, `{"l":[]}`}, {fill, `{"l":[1]}`}},
			want:  `{"l":[]}`, from: map[policy.Pointer]string{"/l": "p0"},
		},
		"0s is a value (§1.2)": {
			steps: []s{{fill, `{"t":"0s"}`}, {fill, `{"t":"1h"}`}},
			want:  `{"t":"0s"}`, from: map[policy.Pointer]string{"/t": "p0"},
		},
		"an empty object is a leaf until it is filled": {
			steps: []s{{fill, `{"tcp":{},"http":{}}`}, {fill, `{"http":{"x":1}}`}},
			want:  `{"tcp":{},"http":{"x":1}}`, from: map[policy.Pointer]string{"/tcp": "p0", "/http/x": "p1"},
		},
		"a scalar keeps out an object, and an object a scalar": {
			steps: []s{{fill, `{"a":1,"b":{"x":1}}`}, {fill, `{"a":{"x":2},"b":2}`}},
			want:  `{"a":1,"b":{"x":1}}`, from: map[policy.Pointer]string{"/a": "p0", "/b/x": "p0"},
		},
		"an atomic default comes first or not at all": {
			steps: []s{{unless, `{"a":1}`}, {unless, `{"a":2,"b":2}`}},
			want:  `{"a":1}`, from: map[policy.Pointer]string{"/a": "p0"},
		},
		"a policy that configures nothing has been chosen all the same": {
			steps: []s{{unless, `{}`}, {unless, `{"a":2}`}},
			want:  `{}`, from: map[policy.Pointer]string{},
		},
		"where rules are counted, nothing is nothing (§5.4)": {
			units: policy.Units{Depth: 2, EmptyIsNone: true},
			steps: []s{{fill, `{}`}, {unless, `{"s":{"a":{"x":2}}}`}},
			want:  `{"s":{"a":{"x":2}}}`, from: map[policy.Pointer]string{"/s/a": "p1"},
		},
		"an override sets every field it has": {
			steps: []s{{fill, `{"a":1,"h":{"x":1,"y":1}}`}, {overlay, `{"a":2,"h":{"x":2}}`}},
			want:  `{"a":2,"h":{"x":2,"y":1}}`, from: map[policy.Pointer]string{"/a": "p1", "/h/x": "p1", "/h/y": "p0"},
		},
		"an override replaces an object by a scalar": {
			steps: []s{{fill, `{"h":{"x":1,"y":1}}`}, {overlay, `{"h":2}`}},
			want:  `{"h":2}`, from: map[policy.Pointer]string{"/h": "p1"},
		},
		"an atomic override leaves nothing below it": {
			steps: []s{{fill, `{"a":1,"b":1}`}, {replace, `{"c":2}`}, {fill, `{"d":3}`}},
			want:  `{"c":2,"d":3}`, from: map[policy.Pointer]string{"/c": "p1", "/d": "p2"},
		},
		"bodies below the depth are opaque (§5.3)": {
			units: policy.Units{Depth: 2},
			steps: []s{{fill, `{"s":{"a":{"x":1}}}`}, {fill, `{"s":{"a":{"y":2},"b":{"y":2}}}`}},
			want:  `{"s":{"a":{"x":1},"b":{"y":2}}}`, from: map[policy.Pointer]string{"/s/a": "p0", "/s/b": "p1"},
		},
		"names with slashes are escaped": {
			steps: []s{{fill, `{"a/b":{"~":1}}`}},
			want:  `{"a/b":{"~":1}}`, from: map[policy.Pointer]string{"/a~1b/~0": "p0"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fold := policy.NewFold(tt.units)
			for i, st := range tt.steps {
				fold.Add(step(t, st.op, fmt.Sprintf("p%d", i), st.conf))
			}
			got, err := json.Marshal(fold.Conf())
			require.NoError(t, err)
			require.JSONEq(t, tt.want, string(got))
			from := map[policy.Pointer]string{}
			for p, key := range fold.Fields() {
				from[p] = key.Name
			}
			require.Equal(t, tt.from, from)
		})
	}
}

func TestFoldEffect(t *testing.T) {
	fold := policy.NewFold(policy.Units{})
	fold.Add(step(t, policy.Fill, "low", `{"a":1,"h":{"x":1}}`))
	e := fold.Add(step(t, policy.Fill, "default", `{"a":2,"b":2,"h":{"x":2}}`))
	require.Equal(t, policy.Effect{Used: true, Set: []policy.Pointer{"/b"}, Lost: []policy.Pointer{"/a", "/h/x"}}, e)
	e = fold.Add(step(t, policy.Overlay, "override", `{"a":3,"c":3}`))
	require.Equal(t, policy.Effect{Used: true, Set: []policy.Pointer{"/a", "/c"}, Displaced: []policy.Pointer{"/a"}}, e)
	e = fold.Add(step(t, policy.Unless, "late", `{"z":4}`))
	require.Equal(t, policy.Effect{Lost: []policy.Pointer{"/z"}}, e)
	e = fold.Add(step(t, policy.Replace, "all", `{"a":5}`))
	require.Equal(t, []policy.Pointer{"/a", "/b", "/c", "/h/x"}, e.Displaced)
}

func TestWithout(t *testing.T) {
	full := tree(t, `{"rules":{"authentication":{"a":{"x":1},"b":{}}},"limits":{"l":[1]}}`)
	before := copyOf(full)
	rest, removed := policy.Without(full, []policy.Pointer{"/rules/authentication/a", "/limits"}, 0)
	require.Equal(t, tree(t, `{"rules":{"authentication":{"b":{}}}}`), rest)
	require.Equal(t, []policy.Pointer{"/limits/l", "/rules/authentication/a/x"}, removed)
	require.Equal(t, before, full)

	same, removed := policy.Without(full, []policy.Pointer{"/rules/authentication/ab"}, 0)
	require.Empty(t, removed)
	require.Equal(t, before, same)
}

// drawTree makes small trees over few names, so that they collide.
func drawTree(rt *rapid.T, depth int) policy.Tree {
	t := policy.Tree{}
	for _, name := range []string{"a", "b", "c/d"} {
		switch kind := rapid.IntRange(0, 4).Draw(rt, name); {
		case kind == 0:
		case kind == 1:
			t[name] = json.Number(fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "n")))
		case kind == 2:
			t[name] = []any{rapid.SampledFrom([]any{"x", "y"}).Draw(rt, "item")}
		case depth > 0:
			t[name] = drawTree(rt, depth-1)
		}
	}
	return t
}

func copyOf(v any) any {
	switch v := v.(type) {
	case policy.Tree:
		c := policy.Tree{}
		for name, member := range v {
			c[name] = copyOf(member)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i := range v {
			c[i] = copyOf(v[i])
		}
		return c
	default:
		return v
	}
}

// drawSteps makes a stack of any ops.
func drawSteps(rt *rapid.T) []policy.Step {
	var steps []policy.Step
	for i := range rapid.IntRange(0, 6).Draw(rt, "steps") {
		name := fmt.Sprintf("p%d", i)
		steps = append(steps, policy.Step{
			Op:     policy.Op(rapid.IntRange(0, 3).Draw(rt, "op")),
			Conf:   drawTree(rt, 2),
			Origin: resource.Key{Kind: "K", Mesh: "m", Name: name}, Precedence: precedence{name, i},
		})
	}
	return steps
}

// naiveMerge is deep merge as §4.5 words it: top's fields win.
func naiveMerge(top, below policy.Tree) policy.Tree {
	merged := copyOf(below).(policy.Tree)
	for name, v := range top {
		mine, isObject := v.(policy.Tree)
		theirs, wasObject := merged[name].(policy.Tree)
		if isObject && wasObject {
			merged[name] = naiveMerge(mine, theirs)
		} else {
			merged[name] = copyOf(v)
		}
	}
	return merged
}

func TestFoldNeverWritesToItsInputs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt)
		before := make([]any, len(steps))
		for i := range steps {
			before[i] = copyOf(steps[i].Conf)
		}
		rule := policy.Rule{Steps: steps}
		rule.Fold()
		rule.Verdicts()
		rule.FieldVerdicts()
		for i := range steps {
			require.Equal(rt, before[i], any(steps[i].Conf))
		}
	})
}

func TestFoldEqualsNaiveMerge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt)
		fold := policy.NewFold(policy.Units{})
		want := policy.Tree{}
		added := 0
		for _, s := range steps {
			fold.Add(s)
			switch {
			case s.Op == policy.Unless && added > 0:
				continue
			case s.Op == policy.Fill:
				want = naiveMerge(want, s.Conf)
			case s.Op == policy.Overlay:
				want = naiveMerge(s.Conf, want)
			default:
				want = copyOf(s.Conf).(policy.Tree)
			}
			added++
		}
		require.Equal(rt, want, fold.Conf())
	})
}

// Provenance names, for every leaf of the result and nothing else, a policy
// that has this value there (§2.2).
func TestFoldProvenanceIsTrue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt)
		rule := policy.Rule{Steps: steps}
		fold := rule.Fold()
		require.Equal(rt, policy.Leaves(fold.Conf(), 0), slices.Sorted(maps.Keys(fold.Fields())))
		for _, v := range rule.FieldVerdicts() {
			require.Equal(rt, fold.Fields()[v.Field], v.Winner.Policy)
			got, ok := policy.At(fold.Conf(), v.Field)
			require.True(rt, ok)
			require.Equal(rt, got, v.Winner.Value)
			i := slices.IndexFunc(steps, func(s policy.Step) bool { return s.Origin == v.Winner.Policy })
			theirs, ok := policy.At(steps[i].Conf, v.Field)
			require.True(rt, ok)
			require.Equal(rt, got, theirs)
		}
	})
}

// Every policy gets exactly one verdict, and those used are those that the
// result names or that had nothing to set.
func TestVerdictsAgreeWithTheFold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rule := policy.Rule{Steps: drawSteps(rt)}
		fold := rule.Fold()
		holds := map[resource.Key]bool{}
		for _, key := range fold.Fields() {
			holds[key] = true
		}
		verdicts := rule.Verdicts()
		require.Len(rt, verdicts, len(rule.Steps))
		for i, v := range verdicts {
			require.Equal(rt, rule.Steps[i].Origin, v.Policy)
			require.NotEmpty(rt, v.Rule)
			require.NotEmpty(rt, v.Reason)
			if holds[v.Policy] {
				require.True(rt, v.Used)
			} else if v.Used {
				conf := rule.Steps[i].Conf
				filled := slices.ContainsFunc(policy.Leaves(conf, 0), func(leaf policy.Pointer) bool {
					value, _ := policy.At(conf, leaf)
					return reflect.DeepEqual(value, policy.Tree{})
				})
				require.True(rt, len(conf) == 0 || filled, "uses %v without a trace in %v", conf, fold.Conf())
			}
		}
	})
}

// A shadowed step changes nothing for any caller: leaving it out gives the same
// configuration.
func TestShadowedStepsChangeNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt)
		value := rapid.SampledFrom([]string{"", "*", "x", "y"})
		for i := range steps {
			steps[i].Op = rapid.SampledFrom([]policy.Op{policy.Fill, policy.Unless}).Draw(rt, "default")
			steps[i].Match = resource.TagSelector{}
			for _, tag := range []string{resource.ServiceTag, "v"} {
				if v := value.Draw(rt, tag); v != "" {
					steps[i].Match[tag] = v
				}
			}
		}
		rule := policy.Rule{PerCaller: true, Steps: steps}
		var kept []policy.Step
		for i, shadow := range rule.Shadows() {
			if shadow < 0 {
				kept = append(kept, steps[i])
			}
		}
		without := policy.Rule{PerCaller: true, Steps: kept}
		caller := []resource.Tags{{}}
		for _, tag := range []string{resource.ServiceTag, "v"} {
			if v := rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(rt, "caller "+tag); v != "" {
				caller[0][tag] = v
			}
		}
		a, b := rule.ForCaller(caller).Fold(), without.ForCaller(caller).Fold()
		require.True(rt, reflect.DeepEqual(a.Conf(), b.Conf()), "%v differs from %v", a.Conf(), b.Conf())
	})
}

// Whatever object a document holds, its leaves can be found, and one step over
// nothing gives it back.
func FuzzTree(f *testing.F) {
	for _, seed := range []string{`{}`, `null`, `{"a":{"b":[1,{"c":2}],"":{}}}`, `{"a/b":{"~1":1e400,"~":null}}`, `{"x":{"y":{"z":{}}}}`} {
		f.Add([]byte(seed), 0)
		f.Add([]byte(seed), 2)
	}
	f.Fuzz(func(t *testing.T, data []byte, depth int) {
		parsed, err := policy.ParseTree(data)
		if err != nil || depth < 0 {
			return
		}
		before := copyOf(parsed)
		leaves := policy.Leaves(parsed, depth)
		for _, leaf := range leaves {
			_, ok := policy.At(parsed, leaf)
			require.True(t, ok, "%s", leaf)
		}
		rule := policy.Rule{Units: policy.Units{Depth: depth}, Steps: []policy.Step{{Conf: parsed, Precedence: precedence{}}}}
		fold := rule.Fold()
		require.Equal(t, before, any(fold.Conf()))
		require.Len(t, fold.Fields(), len(leaves))
		rest, removed := policy.Without(parsed, leaves, depth)
		require.Equal(t, leaves, removed)
		require.Empty(t, rest)
		require.Equal(t, before, any(parsed))
	})
}
