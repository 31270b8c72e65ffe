// Package authn authenticates gRPC requests: it establishes the principal that
// makes a request, from its token or its address, and hands it on in the context.
//
// Guarantees. Credentials that do not verify refuse the request; they never make
// it anonymous (§6.6). A stream ends when its token expires or is revoked (§6.8).
// Every refusal names its reason.
//
// Non-goals. It does not authorize: Authenticator.Authorize decides which services
// a principal may call, package authz what it may do there. Tokens are issued and
// verified by package token, certificates by package pki.
package authn
