package rpcerr

import "errors"

// Effect says what became of the write that an error is about. It travels as
// metadata of the error, so that a client says it in its own words. An error
// without one says nothing about it: a client that lost the answer to a write
// does not know either.
type Effect string

const (
	// EffectNone: certainly nothing was written.
	EffectNone Effect = "none"
	// EffectUnknown: the write may have taken effect, or may yet. Repeating it
	// under the same request id is safe and tells.
	EffectUnknown Effect = "unknown"
)

// metaEffect is the key of an Effect in the metadata.
const metaEffect = "effect"

// WithEffect returns an error that says what became of its write, unless it says
// so already. The *Error in its chain is copied; an error without one stays as it
// is.
func WithEffect(err error, effect Effect) error {
	var e *Error
	if !errors.As(err, &e) || e.Metadata[metaEffect] != "" {
		return err
	}
	out := e.WithMetadata(metaEffect, string(effect))
	// What was put around the error is part of the message.
	out.Message, out.cause = err.Error(), err
	return out
}

// EffectOf returns what an error says about its write; empty where it says
// nothing.
func EffectOf(err error) Effect {
	var e *Error
	if errors.As(err, &e) {
		return Effect(e.Metadata[metaEffect])
	}
	return ""
}
