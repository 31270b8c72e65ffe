// Package rpcerr carries errors across gRPC and back: what a server says is
// wrong arrives at the caller with the same code, message, violations and
// reason.
//
// Guarantees: FromStatus(ToStatus(err)) equals err for every *Error, and an
// unclassified error arrives as Internal with its text. On the
// wire an error is a gRPC status with google.rpc details: BadRequest for an
// invalid request, PreconditionFailure for a conflict, and ErrorInfo (domain
// "meridian") for the reason and metadata, so that clients that know nothing of
// this package can read it too.
//
// Non-goals: classifying the errors of other packages. The handler of a request
// knows which of its errors is a conflict and which is the caller's fault.
package rpcerr
