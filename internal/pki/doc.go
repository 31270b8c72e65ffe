// Package pki provides the certificates of servers and the TLS configuration of
// servers and clients.
//
// Guarantees. A private key is readable by its owner only (0600), encrypted where
// there are keys for that, replaced atomically and synced before it is used. Connections are TLS 1.3. A certificate
// is renewed before it expires, and a failed reload leaves the current one in use.
// A failed handshake names its cause.
//
// Non-goals. It revokes no certificates, and it knows neither tokens nor
// resources.
package pki
