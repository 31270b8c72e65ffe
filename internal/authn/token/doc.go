// Package token issues and verifies the signed tokens of users, zones, dataplanes
// and joining servers, and keeps their signing keys, the bootstrap admin token and
// the records of issued tokens as resources (§6.8).
//
// Guarantees. A token is accepted only with the algorithm and the use that its key
// was made for; an error names the reason of a refusal. A key or the admin token
// is created once, on however many servers and however often a start is
// interrupted. A change of stored keys and revocations takes effect on the next
// token that is issued or verified.
//
// Non-goals. It does not decide for whom a token may be issued, or who may rotate
// or revoke: its callers ask package authz.
package token
