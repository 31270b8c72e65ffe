package rpcerr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Domain is the ErrorInfo domain of every error of this product.
const Domain = "meridian"

// Code says what kind of failure an error is, and so what the caller can do.
type Code int

const (
	// Internal is a failure of the server, not of the caller.
	Internal Code = iota
	// NotFound: a named object does not exist.
	NotFound
	// Invalid: the request can never succeed as it is; Violations say why.
	Invalid
	// Conflict: the request contradicts what is stored now; read again, decide
	// again, retry. Violations name the preconditions that failed.
	Conflict
	// OutOfRange: the revision asked for is no longer retained, or not yet
	// written.
	OutOfRange
	// Unauthenticated: the caller did not prove who it is.
	Unauthenticated
	// Denied: the caller is known and may not do this.
	Denied
	// Unavailable: no answer is possible right now; retry later or at another server.
	Unavailable
	// Timeout: the deadline passed; whether the request took effect is unknown.
	Timeout
	// Canceled: the caller went away.
	Canceled
	// TooLarge: the request or its answer exceeds a limit: for good, or, where
	// RetryAfter is set, a limit of the moment.
	TooLarge
	// Unsupported: this server does not know the method.
	Unsupported
)

var codeNames = [...]string{
	Internal: "internal", NotFound: "not found", Invalid: "invalid", Conflict: "conflict",
	OutOfRange: "out of range", Unauthenticated: "unauthenticated", Denied: "denied",
	Unavailable: "unavailable", Timeout: "timeout", Canceled: "canceled",
	TooLarge: "too large", Unsupported: "unsupported",
}

// String returns the code in words.
func (c Code) String() string {
	if c < 0 || int(c) >= len(codeNames) {
		return fmt.Sprintf("code %d", int(c))
	}
	return codeNames[c]
}

// Violation is one thing wrong with a request.
type Violation struct {
	// Field is the path of the offending value in the request or document; for
	// a Conflict, the subject of the precondition, such as a resource's key.
	Field string
	// Description says what is wrong and what to write instead.
	Description string
	// Reason names the problem for programs, in upper snake case; may be empty.
	Reason string
}

// Error is a classified failure. Treat it as immutable: the With methods
// return copies.
type Error struct {
	Code Code
	// Message is what people read, complete on its own.
	Message string
	// Reason names the failure for programs, in upper snake case; may be empty.
	Reason string
	// Metadata is further data for programs; it travels only with a Reason.
	Metadata map[string]string
	// Violations travel with Invalid and Conflict only.
	Violations []Violation
	// RetryAfter, unless zero, is after how long the same request may succeed.
	RetryAfter time.Duration

	cause error
}

// New returns an error of a code and reason with a formatted message. A wrapped
// operand (%w) becomes its cause, which stays on this side of the wire.
func New(code Code, reason, format string, args ...any) *Error {
	formatted := fmt.Errorf(format, args...)
	return &Error{Code: code, Reason: reason, Message: formatted.Error(), cause: errors.Unwrap(formatted)}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the error this one was made from, nil after a journey.
func (e *Error) Unwrap() error { return e.cause }

// WithViolations returns a copy with further violations.
func (e *Error) WithViolations(violations ...Violation) *Error {
	out := *e
	out.Violations = append(slices.Clone(e.Violations), violations...)
	return &out
}

// WithMetadata returns a copy with one more metadata entry.
func (e *Error) WithMetadata(key, value string) *Error {
	out := *e
	out.Metadata = maps.Clone(e.Metadata)
	if out.Metadata == nil {
		out.Metadata = make(map[string]string, 1)
	}
	out.Metadata[key] = value
	return &out
}

// WithRetry returns a copy that says after how long to repeat the request.
func (e *Error) WithRetry(after time.Duration) *Error {
	out := *e
	out.RetryAfter = after
	return &out
}

// RetryAfter returns after how long an error says to repeat the request; zero where
// it does not say.
func RetryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// CodeOf returns the code of the first *Error in err's chain, Internal when
// there is none. A nil error has no code: do not ask.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// HasReason reports whether err holds an *Error with that reason.
func HasReason(err error, reason string) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == reason
}
