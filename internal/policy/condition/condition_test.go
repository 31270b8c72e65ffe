package condition

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		{"bad pattern", `"a".matches("(")`, "invalid matches argument"},
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

func TestSameTextIsCompiledOnceAndTheCacheIsBounded(t *testing.T) {
	opts := DefaultOptions()
	opts.CacheSize = 2
	c := newCompiler(t, opts)
	a, err := c.Compile("true")
	require.NoError(t, err)
	b, err := c.Compile("true")
	require.NoError(t, err)
	require.Same(t, a, b)
	for _, text := range []string{"1 == 1", "2 == 2"} {
		_, err := c.Compile(text)
		require.NoError(t, err)
	}
	require.Len(t, c.cache, 2)
	require.NotContains(t, c.cache, "true", "the oldest goes first")
}

func FuzzCondition(f *testing.F) {
	for _, s := range []string{"true", "spec.a > 1", "self.spec.rules.exists(k, k == 'a')", "[1,2].map(x, x*x)[7] == 1", "'a'.matches('a+')", "{'a': 1}.a == 1"} {
		f.Add(s)
	}
	c := newCompiler(f, DefaultOptions())
	f.Fuzz(func(t *testing.T, expression string) {
		compiled, err := c.Compile(expression)
		if err != nil {
			return
		}
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
