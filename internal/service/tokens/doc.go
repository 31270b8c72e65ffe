// Package tokens serves the TokenService: it issues user and dataplane tokens,
// lists what was issued, rotates signing keys and revokes (§6.8), the
// same on the global and in a zone.
//
// Guarantees. No token is returned before its record is stored, so that every token
// can be listed and revoked. The access decision still holds when the record, key
// or revocation is written. A token or a private key appears in the answer to its
// issuer and nowhere else.
//
// Non-goals. It does not decide who may issue, rotate or revoke; package authz
// does.
package tokens
