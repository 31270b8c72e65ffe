// Package rpcerr carries errors across gRPC and back: what a server says is
// wrong arrives at the caller with the same code, message, violations and
// reason.
//
// It guarantees that FromStatus(ToStatus(err)) equals err for every *Error, and
// that an error nobody classified arrives as Internal with its text. On the
// wire an error is a gRPC status with google.rpc details: BadRequest for an
// invalid request, PreconditionFailure for a conflict, and ErrorInfo (domain
// "meridian") for the reason and metadata, so that clients that know nothing of
// this package can read it too.
//
// It refuses to classify the errors of other packages: whoever serves a request
// knows which of its errors is a conflict and which is the caller's fault.
package rpcerr
