package resource

import (
	"errors"
	"fmt"
	"regexp/syntax"
)

const (
	// MaxRegexBytes bounds a regular expression, in bytes.
	MaxRegexBytes = 1 << 10
	// MaxRegexProgram bounds what a regular expression is compiled to, in
	// instructions of RE2: a few characters with nested repetitions stand for
	// millions.
	MaxRegexProgram = 4000
)

// CheckRegex returns the size of the program that an RE2 regular expression is
// compiled to, in instructions, without compiling it: an upper bound, with every
// range of a character class counted as one.
//
// The error says what is wrong with the expression, as the end of a sentence
// about it: its syntax, or that it exceeds MaxRegexBytes or MaxRegexProgram.
func CheckRegex(text string) (int, error) {
	if len(text) > MaxRegexBytes {
		return 0, fmt.Errorf("has %d bytes; at most %d are allowed", len(text), MaxRegexBytes)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if why := (*syntax.Error)(nil); errors.As(err, &why) {
		what := "is not a regular expression (RE2)"
		if why.Code == syntax.ErrLarge || why.Code == syntax.ErrInvalidRepeatSize {
			what = "is too large"
		}
		return 0, fmt.Errorf("%s: %s: `%s`", what, why.Code, why.Expr)
	}
	if err != nil {
		return 0, fmt.Errorf("is not a regular expression (RE2): %w", err)
	}
	n := instructions(parsed)
	if n > MaxRegexProgram {
		return n, fmt.Errorf("is compiled to %d instructions; at most %d are allowed: repeat less", n, MaxRegexProgram)
	}
	return n, nil
}

// instructions returns how many instructions an expression is compiled to at
// most. The parser limits nested repetitions to a thousand and depth to a
// thousand, so that the number cannot overflow.
func instructions(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/2
	case syntax.OpCapture:
		return n + 2
	case syntax.OpStar:
		return n + 2 // as (x+)? where x may be empty
	case syntax.OpPlus, syntax.OpQuest:
		return n + 1
	case syntax.OpAlternate:
		return n + len(re.Sub)
	case syntax.OpRepeat:
		if re.Max < 0 {
			return n*max(re.Min, 1) + 2
		}
		return max(1, n*re.Min+(n+1)*(re.Max-re.Min))
	case syntax.OpConcat:
		return n
	default:
		return n + 1
	}
}
