// Package rollout decides about changes that reach the zones by stages
// (docs/operations/rollouts.md): which zones a stage has, when the next one begins, when
// a rollout halts, and the transactions that store all of that.
//
// Guarantees. Everything is a function of its arguments: the Rollout as it is stored, what
// is known of the zones, and the time. So any server continues where another one stopped,
// and two that decide on the same Rollout write at most one of their decisions: each
// transaction has the version that it was decided on as a precondition. A stage begins
// after the one before it; none is skipped or begun twice. Completion is one transaction
// of the whole change and the end of the rollout. A condition is checked when the rollout
// is begun, and its evaluation is bounded.
//
// Non-goals: asking zones, waiting, rights; what zones show (package overlay).
package rollout
