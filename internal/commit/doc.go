// Package commit writes batches that were decided on what is stored: decide,
// propose, and decide again when what the decision depended on has changed
// meanwhile.
//
// It guarantees that a batch is proposed only with the conditions it was decided
// on, that every decision after the first is made on a state that holds every
// write acknowledged before it, that the number of decisions is bounded, and that
// every error is an *rpcerr.Error that says what became of the write: its effect
// is rpcerr.EffectNone where certainly nothing was written and
// rpcerr.EffectUnknown where that is not known. Memory refuses a repeated request
// that may have been written and forgotten.
//
// Non-goals: it does not know what a batch means or who may write it, and it does
// not repeat a write of unknown effect. The caller of the API does that, by its
// request id.
package commit
