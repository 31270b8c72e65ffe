package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"meridian/internal/policy/answer"
	"meridian/internal/rpcerr"
)

// Exit codes of the command, fixed by its contract.
const (
	exitOK          = 0
	exitNo          = 1 // a difference, a denial, an object that does not exist
	exitUsage       = 2 // wrong command line or invalid input
	exitConflict    = 3 // a precondition or version did not hold
	exitDenied      = 4 // not authenticated, or access denied
	exitUnavailable = 5 // the control plane cannot be reached
	exitTimeout     = 6
	// exitInterrupted is what a shell expects of a command that a signal ended.
	exitInterrupted = 130
)

// failure is an error that already knows its exit code and what may be done
// about it.
type failure struct {
	code int
	err  error
	// details follow the first line, one line each.
	details []string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failf(code int, format string, args ...any) *failure {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

// with adds lines that follow the message.
func (f *failure) with(details ...string) *failure {
	f.details = append(f.details, details...)
	return f
}

// usageError is a mistake on the command line; its report points to the help of
// the command that was meant.
type usageError struct {
	command string // as in "meridian get"; empty until the command is known
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// report is what becomes of an error: the exit code and the lines to print,
// the first without its "Error: ".
type report struct {
	code  int
	lines []string
}

// explainError maps every error of the command to its report. It is the only
// place where exit codes are decided.
func explainError(err error) report {
	var (
		f     *failure
		usage *usageError
	)
	switch {
	case err == nil:
		return report{code: exitOK}
	case errors.Is(err, errNo):
		return report{code: exitNo}
	case errors.As(err, &f):
		return report{code: f.code, lines: append(splitLines(err.Error()), f.details...)}
	case errors.As(err, &usage):
		lines := splitLines(err.Error())
		if usage.command != "" {
			lines = append(lines, fmt.Sprintf("Run '%s --help' for usage.", usage.command))
		}
		return report{code: exitUsage, lines: lines}
	case errors.Is(err, answer.ErrNotFound):
		return report{code: exitNo, lines: splitLines(err.Error())}
	case errors.Is(err, answer.ErrInvalid):
		return report{code: exitUsage, lines: splitLines(err.Error())}
	case errors.Is(err, context.DeadlineExceeded):
		return report{code: exitTimeout, lines: []string{"timed out"}}
	case errors.Is(err, context.Canceled):
		return report{code: exitInterrupted, lines: []string{"interrupted"}}
	}
	var answered *rpcerr.Error
	if errors.As(rpcerr.FromStatus(err), &answered) {
		return explainAnswer(answered)
	}
	return report{code: exitNo, lines: splitLines(err.Error())}
}

// codeOf maps what a server answered to the exit code.
func codeOf(c rpcerr.Code) int {
	switch c {
	case rpcerr.Invalid, rpcerr.OutOfRange, rpcerr.TooLarge, rpcerr.Unsupported:
		return exitUsage
	case rpcerr.Conflict:
		return exitConflict
	case rpcerr.Unauthenticated, rpcerr.Denied:
		return exitDenied
	case rpcerr.Unavailable:
		return exitUnavailable
	case rpcerr.Timeout:
		return exitTimeout
	case rpcerr.Canceled:
		return exitInterrupted
	default: // NotFound, and a server that failed
		return exitNo
	}
}

// explainAnswer reports what a server answered: its message, then the problems
// it listed. A problem that the message already contains is not repeated.
func explainAnswer(e *rpcerr.Error) report {
	r := report{code: codeOf(e.Code), lines: splitLines(e.Message)}
	switch e.Code {
	case rpcerr.Internal:
		r.lines[0] = "the control plane failed: " + r.lines[0]
	case rpcerr.Unsupported:
		r.lines[0] = "this control plane cannot answer that: " + r.lines[0]
		r.lines = append(r.lines, "A zone answers for its dataplanes; the global for its zones, its servers and the tokens of both. An older release may not know the question.")
	}
	for _, v := range e.Violations {
		if !strings.Contains(e.Message, v.Description) {
			r.lines = append(r.lines, "  "+v.Description)
		}
	}
	return r
}

func splitLines(s string) []string {
	return strings.Split(strings.TrimRight(s, "\n"), "\n")
}
