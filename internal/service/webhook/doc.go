// Package webhook serves the admission webhook of Kubernetes: an AdmissionReview v1
// endpoint over HTTPS, which decides whether a user of Kubernetes may write an
// object of this product (§6.9).
//
// Guarantees. An object in Kubernetes is decided by the decoder and the evaluator
// that decide writes here: an UPDATE on the stored and the new content (§6.4), a
// DELETE on the stored content. Users and groups count as Kubernetes names them;
// none is added. The access rules are the current ones: a change acknowledged before
// the review arrived is in effect. A review changes nothing, so a dry run and the
// request itself get the same answer. A review that cannot be decoded, or that
// contradicts itself, is an HTTP error and no decision, which the API server treats
// by its failurePolicy. Headers, bodies, their total size and the time of a review
// are bounded.
//
// Non-goals. It stores, changes and imports nothing. Objects of other API groups,
// and CONNECT, are allowed without a decision.
package webhook
