// Package xds is what those who make the configuration of proxies and those who
// send it share: a resource of Envoy's xDS API as bytes with its provenance, the
// set of resources of one proxy, and the Source that a zone's server asks for it.
//
// It guarantees:
//
//   - A resource's bytes are deterministic, and its version is a hash of them: two
//     processes that make the same resource give it the same version, so a zone
//     that restarts resends nothing that is unchanged.
//   - What a resource refers to is read from the message itself, so a reference
//     that is sent is never one that was forgotten.
//
// Resources and sets are immutable: they are shared between proxies.
//
// Non-goals: what a policy comes to, which package generate decides; the protocol,
// which package serve speaks.
package xds
