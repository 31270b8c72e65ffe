// Package condition compiles and evaluates the `when` expressions of policies
// (§5.6) in the Common Expression Language.
//
// Guarantees. An expression is checked once, when it is written: its syntax, its
// names, that it can be a truth value, and its size: length, nodes, and the
// programs of its regular expressions. Evaluation is a function of the
// expression and its inputs; it is bounded in cost, recursion and, as a last
// resort, time, so that no expression can stall a control plane; it never
// panics. A compiled expression is immutable and safe for concurrent use, and
// the same text is compiled once.
//
// Non-goals: functions that read a clock, a random source or anything outside
// the input; the same policies give the same answer everywhere and at any time.
package condition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"

	"meridian/internal/resource"
)

// The variables an expression may use.
const (
	// VarSelf is the lower effective policy: kind, metadata and spec.
	VarSelf = "self"
	// VarSpec is self.spec.
	VarSpec = "spec"
	// VarTarget is the object that the policy with the expression targets.
	VarTarget = "target"
)

// Options bound what an expression may cost.
type Options struct {
	// Variables are the names that an expression may use, each an object. nil stands for
	// those of policies.
	Variables []string
	// Fields are further variables by their qualified names, such as zone.lag, with their
	// types: an expression that misspells one is refused. Their values are given to
	// EvalWith by the same names.
	Fields map[string]*cel.Type
	// MaxLength is the longest expression accepted, in bytes.
	MaxLength int
	// CostLimit is the budget of one evaluation in CEL cost units, about one per
	// operation and per ten characters handled.
	CostLimit uint64
	// Timeout ends an evaluation that is inside its budget and yet too slow.
	Timeout time.Duration
	// MaxNodes bounds the nodes of an expression's syntax tree, those that macros
	// expand to included. The type checker takes a time that grows with their square.
	MaxNodes int
	// MaxRegex bounds the programs of all regular expressions of an expression
	// together, in instructions.
	MaxRegex int
	// CacheBytes bounds the compiled expressions that are kept, in bytes as
	// Condition.Bytes estimates them.
	CacheBytes int
}

// DefaultOptions are the bounds used in production.
func DefaultOptions() Options {
	return Options{
		MaxLength: 4 << 10, MaxNodes: 1000, MaxRegex: resource.MaxRegexProgram,
		CostLimit: 100_000, Timeout: time.Second, CacheBytes: 16 << 20,
	}
}

// interruptEvery is after how many loop iterations the deadline is looked at.
const interruptEvery = 100

// maxRecursion bounds how deeply an expression may nest.
const maxRecursion = 100

// Compiler compiles expressions, and remembers by their text those that are in
// use. It is safe for concurrent use.
type Compiler struct {
	env   *cel.Env
	opts  Options
	cache *cache
}

// NewCompiler returns a compiler.
func NewCompiler(opts Options) (*Compiler, error) {
	if opts.Variables == nil {
		opts.Variables = []string{VarSelf, VarSpec, VarTarget}
	}
	var variables []cel.EnvOption
	for _, name := range opts.Variables {
		variables = append(variables, cel.Variable(name, cel.MapType(cel.StringType, cel.DynType)))
	}
	for _, name := range slices.Sorted(maps.Keys(opts.Fields)) {
		variables = append(variables, cel.Variable(name, opts.Fields[name]))
	}
	env, err := cel.NewEnv(append(variables,
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserRecursionLimit(maxRecursion),
		cel.ParserExpressionSizeLimit(opts.MaxLength),
		cel.ExpressionNodeLimit(opts.MaxNodes),
		ext.Strings(),
		// Regular expressions are checked by checkRegexes: the library's validators
		// compile them before they look at their size.
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)...)
	if err != nil {
		return nil, fmt.Errorf("build the environment of conditions: %w", err)
	}
	return &Compiler{env: env, opts: opts, cache: newCache(opts.CacheBytes)}, nil
}

// InvalidError means that an expression cannot be used: its syntax, a name or
// its type is wrong. The author has to correct it.
type InvalidError struct {
	Expression string
	Message    string
}

// Error says what is wrong with the expression, on one line.
func (e *InvalidError) Error() string { return e.Message }

// Condition is a compiled expression.
type Condition struct {
	text    string
	program cel.Program
	timeout time.Duration
	limit   uint64
	bytes   int
}

// String returns the expression as it was written.
func (c *Condition) String() string { return c.text }

// Bytes estimates what the compiled expression takes in memory.
func (c *Condition) Bytes() int { return c.bytes }

// Compile checks and compiles the expression of a policy that is in use, and
// remembers it. The error is an *InvalidError.
func (c *Compiler) Compile(text string) (*Condition, error) {
	compiled, err := c.examine(text)
	if err == nil {
		c.cache.add(compiled)
	}
	return compiled, err
}

// examine is Compile for an expression that may never be in use: it leaves
// nothing behind.
func (c *Compiler) examine(text string) (*Condition, error) {
	if cached, ok := c.cache.get(text); ok {
		return cached, nil
	}
	return c.compile(text)
}

func (c *Compiler) compile(text string) (*Condition, error) {
	invalid := func(format string, args ...any) error {
		return &InvalidError{Expression: text, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case strings.TrimSpace(text) == "":
		return nil, invalid("the expression is empty: write a condition such as `spec.limits.size() > 3`, or leave `when` out")
	case len(text) > c.opts.MaxLength:
		return nil, invalid("the expression has %d bytes; at most %d are allowed", len(text), c.opts.MaxLength)
	}
	ast, issues := c.env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, invalid("%s", firstIssue(issues))
	}
	size, err := c.measure(ast.NativeRep())
	if err != nil {
		return nil, invalid("%s", err)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, invalid("the expression gives a %s; a condition must be true or false", t)
	}
	program, err := c.env.Program(ast,
		cel.EvalOptions(cel.OptOptimize),
		cel.CostLimit(c.opts.CostLimit),
		cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		return nil, invalid("%v", err)
	}
	return &Condition{text: text, program: program, timeout: c.opts.Timeout, limit: c.opts.CostLimit, bytes: len(text) + size.bytes()}, nil
}

// firstIssue puts the first problem of a compilation on one line, with its
// place in the expression.
func firstIssue(issues *cel.Issues) string {
	errs := issues.Errors()
	if len(errs) == 0 {
		return issues.Err().Error()
	}
	message := strings.Join(strings.Fields(errs[0].Message), " ")
	return fmt.Sprintf("at character %d: %s", errs[0].Location.Column()+1, message)
}

// Input is what an expression sees. The maps hold JSON values as
// encoding/json decodes them (numbers as json.Number) and are only read.
type Input struct {
	Self   map[string]any
	Spec   map[string]any
	Target map[string]any
}

// Outcome is what an evaluation came to.
type Outcome int

const (
	// NotMatched means that the expression is false, or asks for something that
	// is not there.
	NotMatched Outcome = iota
	// Matched means that the expression is true.
	Matched
	// Failed means that the expression could not be decided: a run-time error, a
	// value that is neither true nor false, or an exhausted budget. The block's
	// onError says what then happens.
	Failed
)

// Verdict is the outcome of an evaluation and, unless it matched, why.
type Verdict struct {
	Outcome Outcome
	Reason  string
}

// Eval evaluates the condition. It never panics and never takes longer than
// the options allow.
func (c *Condition) Eval(ctx context.Context, in Input) Verdict {
	return c.EvalWith(ctx, map[string]any{VarSelf: in.Self, VarSpec: in.Spec, VarTarget: in.Target})
}

// EvalWith is Eval for an expression of other variables: JSON values by their names.
func (c *Condition) EvalWith(ctx context.Context, variables map[string]any) (verdict Verdict) {
	defer func() {
		if r := recover(); r != nil {
			verdict = Verdict{Failed, fmt.Sprintf("evaluation broke off: %v", r)}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	value, _, err := c.program.ContextEval(ctx, variables)
	if err != nil {
		return c.failure(ctx, err)
	}
	switch value {
	case types.True:
		return Verdict{Outcome: Matched}
	case types.False:
		return Verdict{NotMatched, "false"}
	default:
		return Verdict{Failed, fmt.Sprintf("the result is a %s, neither true nor false", typeName(value))}
	}
}

func (c *Condition) failure(ctx context.Context, err error) Verdict {
	message := err.Error()
	var cancelled interpreter.EvalCancelledError
	switch {
	case ctx.Err() != nil:
		return Verdict{Failed, fmt.Sprintf("evaluation took longer than %s", c.timeout)}
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return Verdict{Failed, fmt.Sprintf("evaluation exceeds the cost limit of %d", c.limit)}
	case missingKey(err):
		return Verdict{NotMatched, message}
	default:
		return Verdict{Failed, message}
	}
}

// missingKey reports whether an evaluation asked for a key that is not there,
// which means "not matched" (§5.6) and is no error. The library tells it from other
// errors by its text alone: the type of the error is unexported, and the state of an
// evaluation has the place of an error and not its kind. has() does not help, since
// what is asked for may be computed. TestMissingKeyIsTheLibrarysText fails when the
// text changes.
func missingKey(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.HasPrefix(err.Error(), "no such key: ") {
			return true
		}
	}
	return false
}

func typeName(v ref.Val) string {
	if v == nil {
		return "nothing"
	}
	return v.Type().TypeName()
}
