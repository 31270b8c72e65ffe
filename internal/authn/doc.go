// Package authn proves who is talking to whom: certificates for servers, signed
// tokens for callers, and the principal that a request is made by.
//
// It guarantees that a key is never readable by others on disk (0600, replaced
// atomically, synced before it counts), that a connection is TLS 1.3 or refused,
// that a token is accepted only under the one algorithm and the one use its key
// was made for, that credentials which do not verify refuse the request instead
// of making it anonymous (§6.6), and that every refusal says which of
// the many reasons it was.
//
// It refuses to decide what a principal may do: that is access control, which
// says through Authenticator.Admit who may call a service at all.
//
// Keys and tokens are values here. Where they are kept (secrets of the global,
// files of a data directory) is the business of those who assemble a server.
package authn
