// Package webhook is the door through which Kubernetes asks whether one of its
// users may write an object of this product: an AdmissionReview v1 endpoint over
// HTTPS (§6.9).
//
// It guarantees that an object in Kubernetes is decided by the same evaluator,
// the same decoder and the same words as a resource written here: an UPDATE on
// what is stored and on what would be (§6.4), a DELETE on what is stored. Users
// and groups count exactly as Kubernetes names them; none is added. The access
// rules are those of the moment: one that was acknowledged before the review
// arrived decides it. A review changes nothing, so that a dry run and the real
// thing get one answer.
//
// It refuses to guess. A review that cannot be understood, or that contradicts
// itself, is an HTTP error and no decision, which the API server treats by the
// failurePolicy of its configuration. Objects of other API groups, and CONNECT,
// are none of its business and allowed.
//
// Unless it is told whose clients may ask, the endpoint does not authenticate its
// callers: it says yes or no and does nothing. Whoever can reach it can learn what
// somebody may do, which every user may know anyway (§6.1). Headers, bodies, what is
// held of all of them, and patience with slow callers are bounded.
package webhook
