package condition

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
)

func newCompiler(t testing.TB, opts Options) *Compiler {
	t.Helper()
	c, err := NewCompiler(opts)
	require.NoError(t, err)
	return c
}

// policyWith returns an input whose spec is the given JSON.
func policyWith(t testing.TB, spec string) Input {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(spec)))
	d.UseNumber()
	var tree map[string]any
	require.NoError(t, d.Decode(&tree))
	return Input{
		Self:   map[string]any{"kind": "AuthPolicy", "metadata": map[string]any{"name": "lower"}, "spec": tree},
		Spec:   tree,
		Target: map[string]any{"kind": "Gateway", "metadata": map[string]any{"name": "gw"}},
	}
}

const spec = `{"rules": {"authentication": {"a": 100, "half": 0.5, "n": "text", "l": [1, 2, 3], "big": 1e3}, "authorization": {}}}`

// §5.6: the cases of an expression, by what it evaluates to.
func TestConditionOutcomes(t *testing.T) {
	c := newCompiler(t, DefaultOptions())
	tests := []struct {
		name, expression string
		want             Outcome
		reason           string
	}{
		{"true", `spec.rules.authentication.a > 50`, Matched, ""},
		{"false", `spec.rules.authentication.a > 100`, NotMatched, "false"},
		{"self and spec are one", `self.spec.rules.authentication.a == spec.rules.authentication.a`, Matched, ""},
		{"metadata of self", `self.kind == "AuthPolicy" && self.metadata.name == "lower"`, Matched, ""},
		{"the target", `target.kind == "Gateway"`, Matched, ""},
		{"integral numbers are ints", `spec.rules.authentication.a % 7 == 2`, Matched, ""},
		{"an integral number with an exponent is an int", `spec.rules.authentication.big % 7 == 6`, Matched, ""},
		{"other numbers are doubles", `spec.rules.authentication.half < 1`, Matched, ""},
		{"int and double compare", `spec.rules.authentication.a > 99.5`, Matched, ""},
		{"macro", `spec.rules.authentication.l.exists(x, x == 3)`, Matched, ""},
		{"empty section is present", `size(spec.rules.authorization) == 0`, Matched, ""},
		{"has", `has(spec.rules.authentication.zz)`, NotMatched, "false"},
		{"string extension", `spec.rules.authentication.n.upperAscii() == "TEXT"`, Matched, ""},
		{"missing key is not matched", `spec.rules.authentication.zz > 1`, NotMatched, "no such key: zz"},
		{"missing section is not matched", `spec.limits.a.rates.exists(r, r.limit > 50)`, NotMatched, "no such key: limits"},
		{"missing key by index", `spec["limits"]["a"] == 1`, NotMatched, "no such key: limits"},
		{"a missing key does not hide a true alternative", `spec.zz == 1 || spec.rules.authentication.a == 100`, Matched, ""},
		{"run-time type error", `spec.rules.authentication.n > 5`, Failed, "no such overload"},
		{"division by zero", `1 / (spec.rules.authentication.a - 100) > 0`, Failed, "division by zero"},
		{"not a bool", `spec.rules.authentication.a`, Failed, "the result is a int, neither true nor false"},
		{"index out of range", `spec.rules.authentication.l[9] == 1`, Failed, "index out of bounds: 9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			compiled, err := c.Compile(tt.expression)
			require.NoError(t, err)
			got := compiled.Eval(context.Background(), policyWith(t, spec))
			require.Equal(t, tt.want, got.Outcome, got.Reason)
			require.Contains(t, got.Reason, tt.reason)
		})
	}
}

// §5.6: what apply and validate refuse.
func TestInvalidExpressions(t *testing.T) {
	c := newCompiler(t, DefaultOptions())
	tests := []struct{ name, expression, want string }{
		{"empty", " ", "the expression is empty"},
		{"syntax", "spec.a >", "at character 9: Syntax error"},
		{"undeclared name", "sepc.a > 1", "at character 1: undeclared reference to 'sepc'"},
		{"undeclared function", "now() > 1", "undeclared reference to 'now'"},
		{"static non-bool", "1 + 1", "gives a int; a condition must be true or false"},
		{"static type clash", `"a" + 1 == "a1"`, "found no matching overload"},
		{"bad pattern", `"a".matches("(")`, "is not a regular expression (RE2)"},
		{"too long", "true" + strings.Repeat(" ", 5000), "at most 4096 are allowed"},
		{"too deep", strings.Repeat("(", 300) + "true" + strings.Repeat(")", 300), "recursion limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Compile(tt.expression)
			var invalid *InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Contains(t, invalid.Error(), tt.want)
			require.NotContains(t, invalid.Error(), "\n")
		})
	}
}

// Hostile expressions stay inside their budget.
func TestHostileExpressionsStayInsideTheBudget(t *testing.T) {
	c := newCompiler(t, DefaultOptions())
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 200), ",") + "]"
	tests := map[string]string{
		"nested loops": list + ".all(a, " + list + ".all(b, " + list + ".all(c, " + list + ".all(d, a+b+c+d > 0))))",
		"string bomb":  list + `.map(a, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".replace("x", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx").replace("x", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")).size() > 0`,
	}
	for name, expression := range tests {
		t.Run(name, func(t *testing.T) {
			compiled, err := c.Compile(expression)
			require.NoError(t, err)
			require.Equal(t, Failed, compiled.Eval(context.Background(), policyWith(t, spec)).Outcome)
		})
	}
}

func TestDeadline(t *testing.T) {
	opts := DefaultOptions()
	opts.CostLimit, opts.Timeout = 1<<62, time.Nanosecond
	c := newCompiler(t, opts)
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 200), ",") + "]"
	compiled, err := c.Compile(list + ".all(a, " + list + ".all(b, " + list + ".all(c, a+b+c > 0)))")
	require.NoError(t, err)
	got := compiled.Eval(context.Background(), policyWith(t, spec))
	require.Equal(t, Verdict{Failed, "evaluation took longer than 1ns"}, got)
}

// Expressions in use are kept within a number of bytes, those that were used last.
func TestSameTextIsCompiledOnceAndTheCacheIsBounded(t *testing.T) {
	text := func(i int) string { return fmt.Sprintf("%d == %d", i, i) }
	opts := DefaultOptions()
	c := newCompiler(t, opts)
	one, err := c.examine(text(0))
	require.NoError(t, err)
	opts.CacheBytes = 2 * one.Bytes()
	c = newCompiler(t, opts)
	a, err := c.Compile(text(0))
	require.NoError(t, err)
	for i := range 3 {
		b, err := c.Compile(text(0))
		require.NoError(t, err)
		require.Same(t, a, b)
		_, err = c.Compile(text(1 + i))
		require.NoError(t, err)
		require.LessOrEqual(t, c.cache.bytes, opts.CacheBytes)
	}
	require.Len(t, c.cache.byText, 2)
	require.Contains(t, c.cache.byText, text(0), "it was used again and again")
	require.Contains(t, c.cache.byText, text(3))
	opts.CacheBytes = one.Bytes() - 1
	c = newCompiler(t, opts)
	_, err = c.Compile(text(0))
	require.NoError(t, err, "what is too large for the cache is compiled all the same")
	require.Zero(t, c.cache.bytes)
}

// policyWhen returns a spec with a condition.
func policyWhen(t *testing.T, when string) resource.Spec {
	t.Helper()
	spec, err := json.Marshal(map[string]any{
		"targetRef": map[string]any{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"},
		"defaults":  map[string]any{"when": when, "rules": map[string]any{"metadata": map[string]any{"a": 1}}},
	})
	require.NoError(t, err)
	r, _, err := resource.Build(resource.Meta{Key: resource.Key{Kind: "AuthPolicy", Mesh: "default", Name: "a"}}, spec)
	require.NoError(t, err)
	return r.Spec()
}

// A spec that a caller would like to write leaves nothing behind: the caller may be
// refused, as often as they like.
func TestCheckingKeepsNothing(t *testing.T) {
	c := newCompiler(t, DefaultOptions())
	for i := range 100 {
		require.Empty(t, c.Check(policyWhen(t, fmt.Sprintf("%d == %d", i, i))))
	}
	require.Zero(t, c.cache.bytes)
	require.Empty(t, c.cache.byText)
}

// §5.6: what an expression may be, by its size.
func TestTheSizeOfExpressions(t *testing.T) {
	chain := func(s, sep string, n int) string { return strings.TrimSuffix(strings.Repeat(s+sep, n), sep) }
	tests := []struct{ name, expression, wrong string }{
		{"long", chain("true", "||", 800), "the expression has 4798 bytes; at most 4096 are allowed"},
		{"nodes", chain("1 in[1]", "||", 400), "expression node count exceeds limit"},
		{"nodes of macros", strings.Repeat("[1].exists(x,", 90) + "true" + strings.Repeat(")", 90), "exceeds limit of 1000 while expanding macro"},
		{"nested", strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), "recursion limit exceeded"},
		{"nested repeats", `"a".matches("(a{100}){10}")`, ""},
		{"more nested repeats", `"a".matches("((abcdefg){100}){10}")`, "is compiled to"},
		{"one of them too many", chain(`"a".matches("(a{100}){10}")`, "||", 4), "at character 99: the regular expressions of the condition take"},
		{"classes", `"a".matches("(?i)` + strings.Repeat(`\\pL`, 100) + `")`, "is compiled to"},
		{"a long regular expression", `"a".matches("` + strings.Repeat("a", 1025) + `")`, "has 1025 bytes; at most 1024 are allowed"},
		{"not one", `"a".matches("(")`, "at character 12: the regular expression of matches is not a regular expression (RE2): missing closing )"},
		{"as a function", `matches("a", "(")`, "is not a regular expression"},
		{"made at run time", `"a".matches(spec.a)`, "must be written as a string literal"},
		{"put together", `"a".matches("(a{100})" + "{10}")`, "must be written as a string literal"},
		{"in a macro", `["a"].exists(x, x.matches("("))`, "is not a regular expression"},
	}
	c := newCompiler(t, DefaultOptions())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			compiled, err := c.Compile(tt.expression)
			if tt.wrong == "" {
				require.NoError(t, err)
				require.NotNil(t, compiled)
				return
			}
			require.ErrorContains(t, err, tt.wrong)
		})
	}
}

// A refused expression costs little, and an accepted one keeps no more than is
// counted for it.
func TestExpressionsTakeBoundedMemory(t *testing.T) {
	fill := func(s, sep string, limit int) string {
		text := s
		for len(text)+len(sep)+len(s) <= limit {
			text += sep + s
		}
		return text
	}
	c := newCompiler(t, DefaultOptions())
	for name, text := range map[string]string{
		"alternatives":       fill("true", "||", 4096),
		"fields":             fill("spec.a", "||", 1500),
		"lists":              fill("1 in[1]", "||", 4096),
		"sums":               fill("1", "+", 4096) + ">0",
		"maps":               "{" + fill("1:1", ",", 1000) + "}.size() > 0",
		"comprehensions":     strings.Repeat("[1].map(x,", 45) + "true" + strings.Repeat(")", 45) + ".size() > 0",
		"selections":         strings.Repeat("a.", 2000),
		"nested repeats":     fill(`"a".matches("(`+strings.Repeat("abc", 20)+`){1000}")`, "||", 4096),
		"permitted repeats":  fill(`"a".matches("(a{90}){10}")`, "||", 120),
		"classes":            `"a".matches("(?i)` + strings.Repeat(`\\pL`, 1000) + `")`,
		"permitted classes":  `"a".matches("` + strings.Repeat(`\\pL`, 5) + `")`,
		"literals":           `"` + strings.Repeat("a", 4000) + `" == ""`,
		"unfinished":         strings.Repeat("(a||b&&", 500),
		"unfinished ternary": strings.Repeat("a ? ", 1000),
		"signs":              strings.Repeat("-", 4000) + "1",
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			compiled, err := c.examine(text)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(48<<20), "bytes allocated")
			if err != nil {
				return
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			// The parser keeps what it has learned of the grammar, once.
			require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(compiled.Bytes())+512<<10, "bytes kept")
			runtime.KeepAlive(compiled)
		})
	}
}

func FuzzCondition(f *testing.F) {
	for _, s := range []string{"true", "spec.a > 1", "self.spec.rules.exists(k, k == 'a')", "[1,2].map(x, x*x)[7] == 1", "'a'.matches('a+')", "{'a': 1}.a == 1", "'a'.matches('(a{100}){10}')", "[1].exists(x, 'b'.matches('(?i)\\\\pL{9}'))"} {
		f.Add(s)
	}
	c := newCompiler(f, DefaultOptions())
	f.Fuzz(func(t *testing.T, expression string) {
		compiled, err := c.Compile(expression)
		require.LessOrEqual(t, c.cache.bytes, DefaultOptions().CacheBytes)
		if err != nil {
			return
		}
		require.Less(t, compiled.Bytes(), 1<<20, "a condition takes less than a MiB")
		first := compiled.Eval(context.Background(), policyWith(t, spec))
		if strings.Contains(first.Reason, "took longer") {
			return
		}
		require.Equal(t, first, compiled.Eval(context.Background(), policyWith(t, spec)), "evaluation is a function")
	})
}

func BenchmarkCachedCondition(b *testing.B) {
	c := newCompiler(b, DefaultOptions())
	in := policyWith(b, spec)
	for b.Loop() {
		compiled, err := c.Compile("spec.rules.authentication.a > 50")
		if err != nil {
			b.Fatal(err)
		}
		if got := compiled.Eval(context.Background(), in); got.Outcome != Matched {
			b.Fatal(got)
		}
	}
}

// A missing key is recognised by the text that the library gives it, wherever it looks
// for one: in a map of the input, one that the expression makes, and below either.
func TestMissingKeyIsTheLibrarysText(t *testing.T) {
	c, err := NewCompiler(DefaultOptions())
	require.NoError(t, err)
	spec := `{"rules": {"authentication": {"a": 1}}}`
	for _, expression := range []string{
		`spec.zz == 1`, `spec["zz"] == 1`, `self.spec.rules.zz == 1`, `target.zz == 1`, `{"a": 1}["zz"] == 1`, `{"a": {"b": 1}}.a.zz == 1`,
		`spec.rules[spec.rules.authentication.a == 1 ? "zz" : "authentication"] == 1`, `spec.rules.map(k, spec.rules[k].zz)[0] == 1`,
	} {
		compiled, err := c.Compile(expression)
		require.NoError(t, err, expression)
		verdict := compiled.Eval(context.Background(), policyWith(t, spec))
		require.Equal(t, NotMatched, verdict.Outcome, "%s: %s", expression, verdict.Reason)
		require.Equal(t, "no such key: zz", verdict.Reason, expression)
	}
}
