// Package exit holds the exit codes of the command and the errors that carry them.
//
// Guarantees. Every error of the command is mapped to one of the codes, in Explain
// and nowhere else. The report begins with what failed; the lines after it say
// what to do.
//
// Non-goals: printing.
package exit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"meridian/internal/policy/answer"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// Exit codes of the command, fixed by docs/contract.md.
const (
	OK          = 0
	No          = 1 // a difference, a denial, an object that does not exist
	Usage       = 2 // wrong command line or invalid input
	Conflict    = 3 // a precondition or version did not hold
	Denied      = 4 // not authenticated, or access denied
	Unavailable = 5 // the control plane cannot be reached
	Timeout     = 6
	// Interrupted is what a shell expects of a command that a signal ended.
	Interrupted = 130
)

// ErrNo means that the answer was "no" and has been printed: the exit code is
// all that is left to say.
var ErrNo = errors.New("the answer is no")

// Failure is an error that already knows its exit code and what may be done
// about it.
type Failure struct {
	Code int
	Err  error
	// Details follow the first line, one line each.
	Details []string
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Failf returns a failure with an exit code and a message.
func Failf(code int, format string, args ...any) *Failure {
	return &Failure{Code: code, Err: fmt.Errorf(format, args...)}
}

// With adds lines that follow the message.
func (f *Failure) With(details ...string) *Failure {
	f.Details = append(f.Details, details...)
	return f
}

// UsageError is a mistake on the command line; its report points to the help of
// the command that was meant.
type UsageError struct {
	// Command is as in "meridian get", empty until the command is known.
	Command string
	Err     error
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a mistake on the command line.
func Usagef(format string, args ...any) error {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// Report is what becomes of an error: the exit code and the lines to print,
// the first without its "Error: ".
type Report struct {
	Code  int
	Lines []string
}

// Explain maps every error of the command to its report. It is the only
// place where exit codes are decided.
func Explain(err error) Report {
	var (
		f     *Failure
		usage *UsageError
	)
	switch {
	case err == nil:
		return Report{Code: OK}
	case errors.Is(err, ErrNo):
		return Report{Code: No}
	case errors.As(err, &f):
		return Report{Code: f.Code, Lines: append(Lines(err.Error()), f.Details...)}
	case errors.As(err, &usage):
		lines := Lines(err.Error())
		if usage.Command != "" {
			lines = append(lines, fmt.Sprintf("Run '%s --help' for usage.", usage.Command))
		}
		return Report{Code: Usage, Lines: lines}
	case errors.Is(err, answer.ErrNotFound):
		return Report{Code: No, Lines: Lines(err.Error())}
	case errors.Is(err, answer.ErrInvalid):
		return Report{Code: Usage, Lines: Lines(err.Error())}
	case errors.Is(err, context.DeadlineExceeded):
		return Report{Code: Timeout, Lines: []string{"timed out"}}
	case errors.Is(err, context.Canceled):
		return Report{Code: Interrupted, Lines: []string{"interrupted"}}
	}
	var answered *rpcerr.Error
	if errors.As(rpcerr.FromStatus(err), &answered) {
		return explainAnswer(answered)
	}
	return Report{Code: No, Lines: Lines(err.Error())}
}

// codeOf maps what a server answered to the exit code.
func codeOf(e *rpcerr.Error) int {
	if e.RetryAfter > 0 {
		return Unavailable
	}
	switch e.Code {
	case rpcerr.Invalid, rpcerr.OutOfRange, rpcerr.TooLarge, rpcerr.Unsupported:
		return Usage
	case rpcerr.Conflict:
		return Conflict
	case rpcerr.Unauthenticated, rpcerr.Denied:
		return Denied
	case rpcerr.Unavailable:
		return Unavailable
	case rpcerr.Timeout:
		return Timeout
	case rpcerr.Canceled:
		return Interrupted
	default: // NotFound, and a server that failed
		return No
	}
}

// explainAnswer reports what a server answered: its message, then the problems
// it listed. A problem that the message already contains is not repeated.
func explainAnswer(e *rpcerr.Error) Report {
	r := Report{Code: codeOf(e), Lines: Lines(e.Message)}
	switch e.Code {
	case rpcerr.Internal:
		r.Lines[0] = "the control plane failed: " + r.Lines[0]
	case rpcerr.Unsupported:
		r.Lines[0] = "this control plane cannot answer that: " + r.Lines[0]
		r.Lines = append(r.Lines, "A zone answers for its dataplanes, and one with --raft-addr for its servers; the global for its zones, its servers, its rollouts and the tokens of both. An older release may not know the question.")
	}
	for _, v := range e.Violations {
		if !strings.Contains(e.Message, v.Description) {
			r.Lines = append(r.Lines, "  "+v.Description)
		}
	}
	r.Lines = append(r.Lines, Effect(e)...)
	if e.Reason == "VERSION_CONFLICT" {
		r.Lines = append(r.Lines, "It was changed since it was read, or `version` in the document is old: read it again with `meridian get -o yaml`; apply --force ignores `version`.")
	}
	return r
}

// Effect says in a line what became of the write that an error is about, where
// the error tells and does not go without saying: what was denied or does not
// exist was not written.
func Effect(err error) []string {
	switch rpcerr.EffectOf(err) {
	case rpcerr.EffectUnknown:
		return []string{"Whether it was written is not known."}
	case rpcerr.EffectNone:
		switch rpcerr.CodeOf(err) {
		case rpcerr.Denied, rpcerr.Unauthenticated, rpcerr.NotFound:
		default:
			return []string{"Nothing was written."}
		}
	}
	return nil
}

// Lines splits a text into its lines.
func Lines(s string) []string {
	return strings.Split(strings.TrimRight(s, "\n"), "\n")
}

// DidYouMean ends a sentence about an unknown name with the nearest valid one,
// or with nothing.
func DidYouMean(name string, names []string) string {
	if nearest, ok := resource.Nearest(name, names); ok {
		return fmt.Sprintf("; did you mean %q?", nearest)
	}
	return ""
}
