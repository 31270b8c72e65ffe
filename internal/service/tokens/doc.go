// Package tokens serves the TokenService: it issues user and dataplane tokens,
// lists what was issued, rotates signing keys and revokes (§6.8), the
// same on the global and in a zone.
//
// It guarantees that no token is handed out whose record is not stored, so that
// every token can be listed and revoked; that what was decided by access control
// still holds when the record, key or revocation is written; and that a token or
// a private key appears in an answer to its issuer and nowhere else.
//
// It refuses to know roles: access control decides, and says what is missing.
package tokens
