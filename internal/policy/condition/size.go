package condition

import (
	"fmt"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/overloads"

	"meridian/internal/resource"
)

// size is what decides how much memory a compiled expression takes.
type size struct {
	nodes int
	// regex is the instructions of all its regular expressions.
	regex int
}

// What compiled expressions were seen to take, in bytes, rounded up.
const (
	bytesAtLeast        = 1 << 10
	bytesPerNode        = 256
	bytesPerInstruction = 160
)

func (s size) bytes() int {
	return bytesAtLeast + s.nodes*bytesPerNode + s.regex*bytesPerInstruction
}

// measure returns the size of an expression, before anything is made of it.
//
// The error says which regular expression cannot be used. One that is not
// written as a literal could not be judged before it is evaluated, each time.
func (c *Compiler) measure(expression *ast.AST) (size, error) {
	var (
		s     size
		wrong error
	)
	ast.PreOrderVisit(expression.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		s.nodes++
		if wrong != nil || e.Kind() != ast.CallKind || e.AsCall().FunctionName() != overloads.Matches {
			return
		}
		args := e.AsCall().Args()
		pattern, literal := literalText(args[len(args)-1])
		if !literal {
			wrong = at(expression, e, "the regular expression of matches must be written as a string literal")
			return
		}
		n, err := resource.CheckRegex(pattern)
		if err != nil {
			wrong = at(expression, e, "the regular expression of matches %s", err)
			return
		}
		if s.regex += n; s.regex > c.opts.MaxRegex {
			wrong = at(expression, e, "the regular expressions of the condition take %d instructions together; at most %d are allowed: repeat less, or write fewer", s.regex, c.opts.MaxRegex)
		}
	}))
	return s, wrong
}

func literalText(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().Value().(string)
	return text, ok
}

// at returns an error with its place in the expression.
func at(in *ast.AST, e ast.Expr, format string, args ...any) error {
	return fmt.Errorf("at character %d: %w", in.SourceInfo().GetStartLocation(e.ID()).Column()+1, fmt.Errorf(format, args...))
}
